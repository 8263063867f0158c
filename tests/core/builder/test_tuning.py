"""How Build tunes: probes from recalls that are made up, and whole builds that no clock changes."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.builder import tuning
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.search.costs import POOLS
from divgrpc.types import FloatArray
from support.mixed_indexes import stored_as


def crowded(topics: int, copies: int, seed: int = 0) -> FloatArray:
    """Return unit points: twenty stories of each topic, and near-copies of each story."""
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> FloatArray:
        rows = rng.standard_normal(shape)
        return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)

    stories = unit(topics, 1, 64) + 0.8 * unit(topics, 20, 64)
    points = stories[:, :, np.newaxis] + 0.14 * unit(topics, 20, copies, 64)
    points = points.reshape(-1, 64)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True), np.float32)


@given(needed=st.integers(1, 4_000))
def test_about_the_fewest_probes_are_taken(needed: int) -> None:
    """Between two numbers that are tried, on a line that never leaves them."""
    curve, tried = tuning._Curve(0.9), 1
    while not curve.choice:
        bound = 0.9 * np.log(tried) / np.log(needed) if needed > 1 else 1.0
        curve.add(tried, bound, bound)
        tried *= 2
    assert needed <= curve.choice + 1
    assert curve.choice <= needed + 1


def test_probes_that_find_less_are_given_up() -> None:
    """Past the hash limit more probes find less: those that found most are taken."""
    curve = tuning._Curve(0.9)
    for probes in (16, 32, 64, 128):
        assert not curve.choice
        found = 0.8 - abs(probes - 64) / 100
        curve.add(probes, found, found)
    assert curve.choice == 64


@given(st.lists(st.floats(0, 1), min_size=2, max_size=50))
def test_a_lower_bound_is_below_the_mean(shares: list[float]) -> None:
    """By 1.645 standard errors, computed here once more; and never below zero."""
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / (len(shares) - 1)
    expected = max(0.0, mean - 1.645 * (variance / len(shares)) ** 0.5)
    (found,) = tuning.lower_bound(np.array(shares)[:, np.newaxis])
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_slow_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine does meanwhile, builds of the same points are the same."""
    points = crowded(20, 10)
    whole = Index.build(points).engine.manifest.to_json()
    for seconds in (1, 1_000):
        clock = iter(range(0, 10**9, seconds))
        monkeypatch.setattr(time, "perf_counter", lambda clock=clock: float(next(clock)))
        assert Index.build(points).engine.manifest.to_json() == whole


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("copies", [1, 10, 30])
def test_auto_finds_the_candidates_that_a_selector_sees(copies: int, kind: str) -> None:
    """Of points that crowd too, for points and for others, at every number of candidates."""
    points = crowded(1 + 240 // copies, copies)
    if kind == "sparse":
        points = np.where(np.abs(points) > 0.12, points, 0).astype(np.float32)
    index = Index.build(stored_as(points, kind), target_recall=0.95)  # type: ignore[arg-type]
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    rng = np.random.default_rng(1)
    asked = points[rng.choice(len(points), 60, replace=False)]
    stories = asked + 0.0175 * rng.standard_normal(asked.shape) * (asked != 0)
    for queries in (asked, stories.astype(np.float32)):
        products = queries @ (points / lengths).T
        for candidates in POOLS:
            told = QueryParameters(selector="nearest", k=candidates, candidates_limit=candidates)
            found = index.engine.answer(stored_as(queries, kind), told)  # type: ignore[arg-type]
            last = -np.partition(-products, candidates - 1, axis=1)[:, candidates - 1]
            near = np.take_along_axis(products, found.ids, axis=1) >= last[:, np.newaxis] - 1e-5
            # As much below as 60 queries can tell.
            assert near.mean() >= 0.95 - 0.02
    assert index.info.warnings == ()
