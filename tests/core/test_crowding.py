"""By default, crowded points give distinct and near results, and other points lose nothing.

This is a small form of the benchmark `crowding`, which uses larger and real sets of points. The
last tests check the points themselves.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.runs.crowding import OFF, Recalls, Setting, Truth, figures
from divgrpc.index import Index
from divgrpc.types import QueryResult
from divgrpc_lab.data import topics
from support.data import crowded_points
from support.data.crowded_points import KINDS, STORIES, Crowd

_K = 10
_POINTS = 8_000
_QUERIES = 40
_COPIES = {
    **{str(count): crowded_points.even_copies(_POINTS, count) for count in (1, 3, 10, 30)},
    "power law": crowded_points.power_law_copies(_POINTS),
}
_CROWDS = [name for name in _COPIES if name != "1"]
# The least value of gap_closed by diversity: the share of the gap in J between nearest neighbours
# and greedy over all points.
_GAPS = {0.1: 0.95, 0.3: 0.95, 0.5: 0.93}


@cache
def made(copies: str) -> tuple[Crowd, Index]:
    """Return a synthetic set, and an index built from it with default options."""
    crowd = crowded_points.made(copies, _COPIES[copies], _QUERIES)
    return crowd, Index.build(crowd.points)


def truth_of(crowd: Crowd, kind: str) -> Truth:
    """Return the answer of exact search over all points."""
    return Truth.of(crowd, kind, crowd.queries[kind], _K, 1_000)


def answered(crowd: Crowd, index: Index, kind: str) -> tuple[Truth, QueryResult, dict[str, float]]:
    """Return the exact answer, the default answer of the index, and figures of the latter."""
    truth = truth_of(crowd, kind)
    result = index.query(truth.queries.rows, k=_K)
    row = figures(truth, result.ids.astype(np.int64), result.parameters.diversity)
    return truth, result, {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copies", _CROWDS)
def test_defaults_return_distinct_items(copies: str, kind: str) -> None:
    """At least nine of ten results are distinct items of the topic, close to the nearest ones."""
    _, _, row = answered(*made(copies), kind)
    assert row["of topic"] >= 9
    assert row["of best"] >= 0.95


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copies", _COPIES)
def test_auto_reaches_the_target_recall_of_candidates(copies: str, kind: str) -> None:
    """`auto` finds at least the share `target_recall` of the nearest `candidates_limit` points."""
    crowd, index = made(copies)
    truth, result, _ = answered(crowd, index, kind)
    target = float(str(index.info.parameters["target_recall"]))
    assert Recalls(index, truth).of(result.parameters) >= target


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_lose_little_relevance_on_uncrowded_points(kind: str) -> None:
    """Without copies, answers are at most 2 % less relevant than the nearest neighbours."""
    _, _, row = answered(*made("1"), kind)
    assert row["of nearest"] >= 0.98


def test_defaults_lose_little_relevance_on_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(topics.DATA_VARIABLE, raising=False)
    crowd = crowded_points.injected(topics.load([topics.DIGITS])[0], 0, _QUERIES)
    _, _, row = answered(crowd, Index.build(crowd.points), "new documents")
    assert row["of nearest"] >= 0.98


@pytest.mark.parametrize("name", list(topics.SETS))
@pytest.mark.parametrize("kind", ["new documents", "topics"])
def test_marginal_greedy_comes_near_greedy_over_all_points(
    name: str, kind: str, data_folder: Path, index_cache: dict[str, tuple[Crowd, Index]]
) -> None:
    """The query uses defaults, except that near-copies are not collapsed."""
    if name not in index_cache:
        data = topics.load([name], str(data_folder))[0]
        crowd = crowded_points.injected(data, 0, _QUERIES)
        index_cache[name] = crowd, Index.build(crowd.points)
    crowd, index = index_cache[name]
    truth = truth_of(crowd, kind)
    for diversity, least in _GAPS.items():
        setting = Setting("greedy:marginal", diversity, threshold=OFF)
        result = index.query(truth.queries.rows, k=_K, **setting.parameters)
        gap = figures(truth, result.ids.astype(np.int64), diversity)["gap closed"]
        # `gap` is None if nearest neighbours and greedy over all points differ by less than 1 % of
        # J.
        assert gap is None or gap >= least


@pytest.fixture(scope="module")
def index_cache() -> dict[str, tuple[Crowd, Index]]:
    """Return a cache of real sets and their indexes, since building takes seconds."""
    return {}


SEVEN = np.full(3 * STORIES, 7)


def test_made_points_have_the_documented_cosines() -> None:
    crowd = crowded_points.made("seven", SEVEN, 20)
    points, items = crowd.points, crowd.items
    topic = crowd.labels.categories
    near = points @ points.T
    same_item = items[:, None] == items
    same_topic = topic[:, None] == topic
    apart = ~np.eye(len(points), dtype=bool)
    assert near[same_item & apart].mean() == pytest.approx(0.98, abs=0.002)
    assert near[same_topic & ~same_item].mean() == pytest.approx(0.61, abs=0.02)
    assert abs(near[~same_topic].mean()) < 0.1
    assert np.bincount(items).tolist() == SEVEN.tolist()
