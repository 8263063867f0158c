"""Explanations say why each result was picked, and every pick can be computed anew from them."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from divgrpc import Field, Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import list_distances, objective, recompute_picks, value_entropy
from divgrpc.types import Explanation, FloatArray, Metric, QueryResult, Report

METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]
SELECTORS: dict[str, dict[str, Any]] = {
    "marginal": {"selector": "greedy"},
    "corrected": {"selector": "greedy", "variant": "corrected"},
    "printed": {"selector": "greedy", "variant": "printed"},
    "mmr": {"selector": "mmr"},
    "max_sum": {"selector": "max_sum"},
    "rerank": {"selector": "rerank"},
    "dpp": {"selector": "dpp"},
    "nearest": {"selector": "nearest"},
}
DIALS: list[dict[str, Any]] = [
    {"diversity": 0.0},
    {"diversity": 0.15},
    {"diversity": 0.6},
    {"diversity": 1.0},
    {"diversity": "auto"},
    {"lose_at_most": 0.1},
]
QUERIES = 12


def crowded_points(seed: int = 0, count: int = 1_200, dims: int = 24) -> FloatArray:
    """Return points around few centres, with near-copies."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(40, dims))
    points = centres[rng.integers(0, 40, count)] + 0.3 * rng.normal(size=(count, dims))
    points[-50:] = points[:50] + 1e-3 * rng.normal(size=(50, dims))
    return points.astype(np.float32)


POINTS = crowded_points()


@pytest.fixture(scope="module", params=METRICS)
def index(request: pytest.FixtureRequest) -> Index:
    return Index.build(POINTS, metric=request.param)


def metric_of(index: Index) -> Metric:
    metric: Metric = index.engine.manifest.parameters.metric
    return metric


def check_picks(
    result: QueryResult,
    metric: Metric,
    queries: FloatArray,
    shown: list[int] | None = None,
    points: FloatArray = POINTS,
) -> int:
    """Compute every pick anew, and return the number of picks; `shown` are points shown before."""
    count = 0
    for row, explanation in enumerate(result.explanations):
        values, rivals = recompute_picks(
            result, row, metric, queries[row],
            vectors=points[result.ids[row, : result.counts[row]]],
            displaced_vectors=points[explanation.displaced_ids],
            shown_vectors=None if shown is None else points[shown],
        )  # fmt: skip
        scores = result.selection_scores[row, : len(values)]
        room = 1e-4 * np.maximum(1, np.abs(scores))
        assert (np.abs(values - scores) <= room).all()
        assert (rivals <= values + room).all()
        count += len(values)
    return count


@pytest.mark.parametrize("dial", DIALS, ids=str)
@pytest.mark.parametrize("name", SELECTORS)
def test_every_pick_can_be_computed_anew(name: str, dial: dict[str, Any], index: Index) -> None:
    has_choice = "lose_at_most" in dial or dial.get("diversity") == "auto"
    if has_choice and (name == "nearest" or (name == "printed" and "lose_at_most" in dial)):
        return
    queries = POINTS[:: len(POINTS) // QUERIES][:QUERIES]
    options = SELECTORS[name] | dial
    result = index.query(queries, k=7, explain=True, **options)
    same = index.query(queries, k=7, list_collapsed=True, **options)
    for column in ("ids", "scores", "selection_scores", "collapsed_ids", "collapsed_offsets"):
        assert np.array_equal(getattr(result, column), getattr(same, column), equal_nan=True)
    assert check_picks(result, metric_of(index), queries) == result.counts.sum()


def test_ten_thousand_picks_can_be_computed_anew() -> None:
    index = Index.build(POINTS)
    queries = crowded_points(1, 1_000) + POINTS[:1_000]
    picks = 0
    for part in range(0, 1_000, 250):
        result = index.query(queries[part : part + 250], k=10, explain=True)
        picks += check_picks(result, "cosine", queries[part : part + 250])
    assert picks == 10_000


def test_a_changed_answer_is_not_confirmed() -> None:
    """Two results that changed places have other values than those of the selector."""
    index = Index.build(POINTS)
    result = index.query(POINTS[3], k=6, diversity=0.5, explain=True)
    ids, scores = result.ids.copy(), result.selection_scores.copy()
    ids[0, [2, 4]], scores[0, [2, 4]] = ids[0, [4, 2]], scores[0, [4, 2]]
    changed = replace(result, ids=ids, selection_scores=scores)
    with pytest.raises(AssertionError):
        check_picks(changed, "cosine", POINTS[3:4])


@pytest.mark.parametrize("name", [name for name in SELECTORS if name not in {"max_sum", "dpp"}])
def test_terms_add_up_to_the_bit(name: str, index: Index) -> None:
    result = index.query(POINTS[:5], k=7, explain=True, diversity=0.3, **SELECTORS[name])
    for row, explanation in enumerate(result.explanations):
        terms = explanation.relevance_terms - explanation.penalties
        assert terms.tolist() == result.selection_scores[row].tolist()


@pytest.mark.parametrize("name", SELECTORS)
def test_columns_are_what_they_say(name: str, index: Index) -> None:
    metric = metric_of(index)
    result = index.query(POINTS[:4], k=6, explain=True, diversity=0.5, **SELECTORS[name])
    plain = index.query(
        POINTS[:4], k=2_000, selector="nearest", hash_limit=0, candidates_limit=0
    ).ids
    for row, explanation in enumerate(result.explanations):
        ids = result.ids[row].tolist()
        near = plain[row].tolist()
        ranks = explanation.plain_ranks.tolist()
        assert [near[rank - 1] for rank in ranks] == ids
        displaced = explanation.displaced_ids.tolist()
        assert displaced == [near[rank - 1] for rank in explanation.displaced_plain_ranks]
        assert explanation.displaced_plain_ranks.tolist() == sorted(
            explanation.displaced_plain_ranks
        )
        assert not set(displaced) & set(ids)
        for place, winner in enumerate(explanation.displaced_by.tolist()):
            rank = explanation.displaced_plain_ranks[place]
            assert ranks[winner] > rank
            assert all(earlier < rank for earlier in ranks[:winner])
            value = (
                explanation.displaced_relevance_terms[place]
                - explanation.displaced_penalties[place]
            )
            assert value <= result.selection_scores[row, winner] + 1e-5
        check_causes(metric, result, row)
    if name == "nearest":
        assert not any(len(one.displaced_ids) for one in result.explanations)


def check_causes(metric: Metric, result: QueryResult, row: int) -> None:
    """Compare each cause with the nearest earlier result, found one by one."""
    explanation, ids = result.explanations[row], result.ids[row].tolist()
    for place, point in enumerate(ids):
        check_cause(
            metric, point, ids[:place], explanation.caused_by[place], explanation.distances[place]
        )
    for place, point in enumerate(explanation.displaced_ids.tolist()):
        earlier = ids[: explanation.displaced_by[place]]
        cause = explanation.displaced_caused_by[place]
        check_cause(metric, point, earlier, cause, explanation.displaced_distances[place])


def check_cause(metric: Metric, point: int, earlier: list[int], cause: int, far: float) -> None:
    if not earlier:
        assert cause == -1
        assert math.isnan(far)
        return
    distances = {other: distance(metric, point, other) for other in earlier}
    room = 1e-5 * (1 + far)
    assert abs(distances[cause] - far) <= room
    assert far <= min(distances.values()) + room


def distance(metric: Metric, a: int, b: int) -> float:
    """Return the distance of two points, as a selector measures it."""
    x, y = POINTS[a].astype(float), POINTS[b].astype(float)
    if metric == "euclidean":
        return float(((x - y) ** 2).sum())
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    return float(1 - cosine if metric == "inner_product" else 2 - 2 * cosine)


def test_near_copies_of_results_are_listed_and_not_displaced() -> None:
    index = Index.build(POINTS)
    result = index.query(POINTS[:50:5], k=5, explain=True, diversity=0.4)
    assert result.parameters.list_collapsed
    assert len(result.collapsed_ids)
    for row, explanation in enumerate(result.explanations):
        copies = {i for place in range(5) for i in result.collapsed(row, place).tolist()}
        assert not copies & set(explanation.displaced_ids.tolist())


def test_near_copies_that_complete_an_answer_have_no_penalty() -> None:
    points = np.repeat(np.eye(3, 4, dtype=np.float32), 4, axis=0)
    index = Index.build(points, hash_family="lsh_div")
    result = index.query(points[0], k=8, explain=True, duplicate_threshold=0.99)
    assert result.stats.duplicates.tolist() == [5]
    (explanation,) = result.explanations
    assert explanation.penalties[3:].tolist() == [0] * 5
    assert explanation.caused_by[3:].tolist() == [-1] * 5
    terms = explanation.relevance_terms - explanation.penalties
    assert terms.tolist() == result.selection_scores[0].tolist()


@pytest.mark.parametrize("name", ["marginal", "corrected", "mmr", "rerank", "nearest"])
def test_later_pages_are_explained(name: str, index: Index) -> None:
    options = SELECTORS[name] | {"k": 5, "diversity": 0.6, "explain": True, "with_report": True}
    earlier: list[int] = []
    page = index.query(POINTS[2], paged=True, **options)
    for _ in range(3):
        shown = set(earlier)
        check_picks(page, metric_of(index), POINTS[2:3], earlier)
        earlier += page.ids[0].tolist()
        if name == "nearest":
            assert page.report is not None
            assert page.report.mean_scores == page.report.plain_mean_scores
        (explanation,) = page.explanations
        terms = explanation.relevance_terms - explanation.penalties
        assert terms.tolist() == page.selection_scores[0].tolist()
        assert not shown & set(explanation.displaced_ids.tolist())
        shown |= set(page.ids[0].tolist())
        assert set(explanation.caused_by.tolist()) <= shown | {-1}
        plain = index.query(
            POINTS[2], page_token=page.next_page_token, **options | {"explain": False}
        )
        page = index.query(POINTS[2], page_token=page.next_page_token, **options)
        assert page.ids.tolist() == plain.ids.tolist()
    with pytest.raises(InvalidArgumentError, match="give ids") as fault:
        index.query(POINTS[2], already_shown=POINTS[:1], **options)
    assert fault.value.field == "explain"


@pytest.mark.parametrize("points", [1, 2, 5])
def test_few_points_are_explained(points: int) -> None:
    index = Index.build(POINTS[:points])
    result = index.query(POINTS[0], k=10, explain=True, with_report=True)
    (explanation,) = result.explanations
    assert sorted(explanation.plain_ranks.tolist()) == list(range(1, points + 1))
    assert not len(explanation.displaced_ids)
    assert result.report is not None
    assert math.isnan(result.report.mean_distances[0]) == (points == 1)
    assert math.isnan(result.report.objectives[0])


def test_a_query_without_results_has_an_empty_explanation() -> None:
    index = Index.build(POINTS, attributes={"kind": ["a"] * len(POINTS)})
    result = index.query(POINTS[:2], explain=True, with_report=True, filter=Field("kind") == "b")
    assert [len(one.plain_ranks) for one in result.explanations] == [0, 0]
    assert {field.name for field in fields(Explanation)} >= {"caused_by", "displaced_by"}
    assert result.report is not None
    assert np.isnan(result.report.mean_scores).all()
    assert result.report.entropies == {} or np.isnan(result.report.entropies["kind"]).all()


def test_text_ids_are_those_of_points() -> None:
    names = [f"p{number}" for number in range(len(POINTS))]
    texts = Index.build(POINTS, ids=names).query(POINTS[7], k=5, diversity=0.6, explain=True)
    numbers = Index.build(POINTS).query(POINTS[7], k=5, diversity=0.6, explain=True)
    (named,), (numbered,) = texts.explanations, numbers.explanations
    for column in ("caused_by", "displaced_ids", "displaced_caused_by"):
        expected = ["" if i < 0 else f"p{i}" for i in getattr(numbered, column).tolist()]
        assert getattr(named, column).tolist() == expected


def test_explain_and_qp_relax_exclude_each_other() -> None:
    with pytest.raises(InvalidArgumentError, match="picks all results together") as fault:
        Index.build(POINTS[:50]).query(POINTS[0], explain=True, selector="qp_relax")
    assert fault.value.field == "explain"


@pytest.mark.parametrize("name", [*SELECTORS, "qp_relax"])
def test_a_report_equals_the_metrics(name: str, index: Index) -> None:
    metric = metric_of(index)
    options = SELECTORS.get(name, {"selector": name})
    result = index.query(POINTS[:6], k=5, with_report=True, diversity=0.5, **options)
    plain = index.query(POINTS[:6], k=5, selector="nearest", search="exact")
    assert result.report is not None
    check_report(result.report, metric, result, plain)


def check_report(report: Report, metric: Metric, result: QueryResult, plain: QueryResult) -> None:
    for prefix, part in (("", result), ("plain_", plain)):
        lists = list_distances(POINTS, POINTS[: len(part)], part.ids.astype(np.int64), metric)
        columns = {
            "mean_distances": lists.mean,
            "least_distances": lists.least,
            "mean_scores": part.scores.mean(axis=1),
            "objectives": objective(lists, 0.5),
        }
        for name, values in columns.items():
            reported_values = getattr(report, prefix + name)
            assert np.allclose(reported_values, values, rtol=1e-4, atol=1e-5, equal_nan=True), name


def test_entropies_are_those_of_the_attributes() -> None:
    kinds = [["red", "blue", "green"][number % 3] for number in range(len(POINTS))]
    index = Index.build(POINTS, attributes={"kind": kinds})
    result = index.query(POINTS[:3], k=6, with_report=True, diversity=0.7)
    plain = index.query(POINTS[:3], k=6, selector="nearest", search="exact")
    assert result.report is not None
    for values, part in (
        (result.report.entropies, result),
        (result.report.plain_entropies, plain),
    ):
        expected = [value_entropy([kinds[i] for i in row]) for row in part.ids.tolist()]
        assert values["kind"].tolist() == expected


@pytest.mark.parametrize(
    ("values", "entropy"),
    [
        (["a"], math.nan),
        ([], math.nan),
        (["a", "a"], 0),
        (["a", "b"], 1),
        (["a", "a", "b", "b"], 0.5),
        ([None, None, "a", "a"], 0.5),
        ([("a", "b"), ("a", "b")], 1),
        ([(), ()], 0),
        ([True, 1], 1),
        ([("a", "b"), ("c", "d")], 1),
    ],
)
def test_entropy_of_values(values: list[Any], entropy: float) -> None:
    assert value_entropy(values) == pytest.approx(entropy, nan_ok=True)


def test_a_report_prints_its_means() -> None:
    report = Index.build(POINTS[:100]).query(POINTS[:3], with_report=True).report
    assert repr(report).startswith("Report: 3 rows; mean distance ")


@pytest.mark.parametrize("name", SELECTORS)
def test_picks_among_few_candidates_can_be_computed_anew(name: str) -> None:
    """Fewer candidates than results, and near-copies that fill up an answer."""
    index = Index.build(POINTS[:6])
    options = SELECTORS[name] | {"k": 10, "diversity": 0.6, "explain": True}
    result = index.query(POINTS[7], **options)
    assert check_picks(result, "cosine", POINTS[7:8]) == 6
    points = np.concatenate((POINTS[:6], POINTS[:6] + np.float32(1e-4)))
    result = Index.build(points).query(POINTS[7], duplicate_threshold=0.999, **options)
    assert result.stats.duplicates[0] == 4
    assert check_picks(result, "cosine", POINTS[7:8], points=points) == 6


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"metric": "ip"}, "metric"),
        ({"row": 1}, "row"),
        ({"query": POINTS[:1]}, "query"),
        ({"vectors": POINTS[:2]}, "vectors"),
        ({"vectors": ["a"]}, "vectors"),
        ({"displaced_vectors": POINTS[:700]}, "displaced_vectors"),
        ({"shown_vectors": POINTS[:2, :3]}, "shown_vectors"),
    ],
    ids=str,
)
def test_picks_are_not_computed_from_wrong_arguments(arguments: dict[str, Any], field: str) -> None:
    result = Index.build(POINTS).query(POINTS[3], k=4, explain=True)
    every: dict[str, Any] = {
        "row": 0, "metric": "cosine", "query": POINTS[3], "vectors": POINTS[result.ids[0]],
        "displaced_vectors": POINTS[result.explanations[0].displaced_ids], **arguments,
    }  # fmt: skip
    with pytest.raises(InvalidArgumentError) as fault:
        recompute_picks(result, **every)
    assert fault.value.field == field
    with pytest.raises(InvalidArgumentError, match="explain=True"):
        recompute_picks(Index.build(POINTS).query(POINTS[3], k=4), **every)
