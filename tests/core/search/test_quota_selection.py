"""Selection within quotas: never a quota missed that can be met, and no other change of picks."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.arrays import read_only
from divgrpc.columns.quotas import rules_of
from divgrpc.kernels.records import Points
from divgrpc.kernels.registers import record_of
from divgrpc.parameters import QueryParameters
from divgrpc.quotas.bounds import Bounds, QuotaColumn
from divgrpc.quotas.completions import Effort, Programme, Signatures
from divgrpc.search.quota_selection import QuotaSelection
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import select_different
from divgrpc.search.stepwise import StepwiseSelection
from divgrpc.types import EffectiveParameters, FloatArray, Selector, Variant
from divgrpc.types.quotas import Quota, QuotaRule
from reference.index import selection_scratch
from reference.quotas import Instance

SELECTORS: list[Selector] = ["nearest", "greedy", "mmr", "rerank", "max_sum", "dpp"]


def candidates_of(vectors: FloatArray, query: FloatArray) -> tuple[CandidateSet, Any]:
    """Return all points in the order of their squared distances, and this order."""
    points = record_of(Points, {"vectors": read_only(vectors)}, {"d": vectors.shape[1]})
    distances = ((vectors - query) ** 2).sum(axis=1, dtype=np.float32)
    order = np.argsort(distances, kind="stable")
    scratch = selection_scratch(len(vectors), points)
    return CandidateSet(points, order.astype(np.int32), distances[order], scratch), order


def parameters(selector: Selector, k: int, diversity: float = 0.3) -> EffectiveParameters:
    return QueryParameters(k=k, diversity=diversity, selector=selector).resolve(10**6, "exact")


@pytest.mark.parametrize("selector", SELECTORS)
def test_no_quota_is_missed_that_can_be_met(selector: Selector) -> None:
    """Of what no selection can meet, the picks miss as little as enumeration finds."""
    rng = np.random.default_rng(SELECTORS.index(selector))
    for _ in range(100):
        instance = Instance.draw(rng)
        vectors = rng.standard_normal((instance.points, 2)).astype(np.float32)
        if rng.random() < 0.3:
            # Copies of points have other values than their originals.
            vectors = vectors[rng.integers(0, len(vectors), len(vectors))]
        candidates, order = candidates_of(vectors, np.full(2, 0.3, np.float32))
        columns = tuple(map(QuotaColumn.of, instance.columns(order)))
        bounds = Bounds.of(instance.quotas, columns, instance.k)
        selection = QuotaSelection.of(
            candidates,
            bounds,
            parameters(selector, instance.k, float(rng.choice([0, 0.3, 1]))),
            "euclidean",
            copy_limit=float(rng.choice([-1, 0, 0.5])),
        )
        picks = order[selection.select(instance.k).places].tolist()
        assert len(set(picks)) == len(picks)
        assert instance.shortfall(picks) == instance.least_shortfall(), instance


@pytest.mark.parametrize("selector", ["rerank", "max_sum", "dpp"])
@pytest.mark.parametrize("copy_limit", [-1.0, 2.0])
def test_quotas_that_bind_nothing_change_nothing(selector: Selector, copy_limit: float) -> None:
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((60, 6)).astype(np.float32)
    candidates, order = candidates_of(vectors, vectors[0])
    effective = parameters(selector, 8)
    columns = (QuotaColumn.of([int(row) % 3 for row in order]),)
    bounds = Bounds.of((Quota("a", max_each=8),), columns, 8)
    within = QuotaSelection.of(candidates, bounds, effective, "euclidean", copy_limit=copy_limit)
    picks = within.select(8)
    plain, *_ = select_different(candidates, 60, copy_limit, effective, "euclidean")
    assert picks.places.tolist() == plain.places.tolist()
    assert picks.values.tolist() == plain.values.tolist()


def test_a_near_copy_is_picked_if_a_quota_needs_it() -> None:
    vectors = np.array([[0, 0], [0, 0.01], [1, 0], [2, 0]], np.float32)
    candidates, order = candidates_of(vectors, np.zeros(2, np.float32))
    column = QuotaColumn.of([["x", "y", "x", "x"][row] for row in order])
    bounds = Bounds.of((Quota("a", rules={"y": (1, None)}),), (column,), 3)
    selection = QuotaSelection.of(
        candidates, bounds, parameters("greedy", 3), "euclidean", copy_limit=0.1
    )
    picks = selection.select(3)
    assert 1 in picks.places.tolist()
    assert picks.fillers == 1


def test_values_are_told_apart_by_type_and_number() -> None:
    column = QuotaColumn.of([True, 1, 1.0, None, float("nan"), "1", False, 0])
    numbers = column.numbers.tolist()
    assert numbers[1] == numbers[2]
    assert numbers[3] == numbers[4]
    assert len(set(numbers)) == 6
    assert [column.value_of(n) for n in numbers[:2]] == [True, 1]


def test_a_point_counts_once_for_a_value_that_it_has_twice() -> None:
    column = QuotaColumn.of([["a", "b", "a"], [], ["b"]])
    points, numbers = column.pairs()
    assert list(zip(points.tolist(), map(column.value_of, numbers.tolist()), strict=True)) == [
        (0, "a"),
        (0, "b"),
        (1, None),
        (2, "b"),
    ]
    part = column.take(np.array([2, 0]))
    assert [part.value_of(n) for n in part.numbers.tolist()] == ["b", "a", "b"]


def test_a_programme_completes_picks_or_says_that_it_cannot() -> None:
    quotas = (Quota("a", rules={"x": (2, None)}), Quota("b", max_each=1))
    columns = (QuotaColumn.of(["x", "x", "y", "x"]), QuotaColumn.of(["p", "q", "q", "p"]))
    bounds = Bounds.of(quotas, columns, 2).arrays
    signatures = Signatures.of(bounds)
    assert signatures.of_points.tolist() == [0, 1, 2, 0]
    programme = Programme(bounds, signatures, 2, Effort())
    no_picks = np.zeros(3, np.int64)
    assert programme.complete(no_picks) is not None
    assert programme.complete(np.array([0, 0, 1])) is None
    selection, lows = Programme(bounds, signatures, 3, Effort()).relax()
    assert selection.sum() == 2
    assert lows.tolist() == bounds.lows.tolist()


def slow_picks(
    candidates: CandidateSet, values: list[int], quota: Quota, effective: EffectiveParameters
) -> tuple[list[int], list[float]]:
    """Pick one by one with `StepwiseSelection`, from what leaves the least numbers within reach."""
    selection = StepwiseSelection(candidates, effective, "euclidean")
    lows = {rule.value: rule.min or 0 for rule in rules_of(quota)}
    counts: Counter[Any] = Counter()
    places: list[int] = []
    picked_values: list[float] = []
    for step in range(effective.k):
        needs = {value: low - counts[value] for value, low in lows.items() if low > counts[value]}
        must = sum(needs.values()) >= effective.k - step
        allowed = [
            counts[value] < (quota.max_each or 0) and (not must or value in needs)
            for value in values
        ]
        place, value = selection.best(np.array(allowed))
        if place < 0:
            break
        selection.pick(place)
        counts[values[place]] += 1
        places.append(place)
        picked_values.append(value)
    return places, picked_values


@pytest.mark.parametrize("selector", ["nearest", "greedy", "mmr", "max_sum", "dpp"])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 12),
    most=st.integers(1, 4),
    low=st.integers(0, 4),
    diversity=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    is_printed=st.booleans(),
)
def test_picks_are_those_of_a_slow_selection(
    selector: Selector,
    *,
    seed: int,
    k: int,
    most: int,
    low: int,
    diversity: float,
    is_printed: bool,
) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(k, 60))
    vectors = rng.integers(-2, 3, (count, 3)).astype(np.float32)
    candidates, _ = candidates_of(vectors, np.full(3, 0.3, np.float32))
    values = rng.integers(0, 5, count).tolist()
    low = min(low, most, k, values.count(0))
    quota = Quota("a", max_each=most, rules=[QuotaRule(0, low, most)])
    variant: Variant = "printed" if is_printed and selector == "greedy" else "corrected"
    effective = replace(parameters(selector, k, diversity), variant=variant)
    bounds = Bounds.of((quota,), (QuotaColumn.of(values),), k)
    picks = QuotaSelection.of(candidates, bounds, effective, "euclidean").select(k)
    places, picked_values = slow_picks(candidates, values, quota, effective)
    assert picks.places.tolist() == places
    assert picks.values.tolist() == np.array(picked_values, np.float32).tolist()
