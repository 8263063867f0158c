"""`rerank`, `max_sum` and `dpp` agree with the reference and keep their guarantees."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kernels.test_greedy import METRICS, Case, Metrics, cases
from divgrpc.kernels import exact, max_sum_dpp, pairwise
from divgrpc.parameters import QueryParameters
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import Picks, select
from divgrpc.types import EffectiveParameters, FloatArray, Selector
from reference import definitions, selectors
from reference.index import selection_scratch

examples = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
SELECTORS: list[Selector] = ["rerank", "max_sum", "dpp"]


def candidates_of(case: Case) -> CandidateSet:
    """Return all points of a case, nearest first, with their distances."""
    count = len(case.vectors)
    order = np.array(definitions.nearest_rows(case.points(), case.query, range(count)), np.int32)
    points, distances = case.stored(), np.empty(count, np.float32)
    exact.score_rows(points, case.kernel_query(), order, count, distances)
    return CandidateSet(points, order, distances, selection_scratch(count, points))


def parameters(k: int, diversity: float, selector: Selector) -> EffectiveParameters:
    return QueryParameters(k=k, diversity=diversity, selector=selector).resolve(10**6, "scan")


def picked(case: Case, query_parameters: EffectiveParameters) -> tuple[Any, Picks]:
    among = candidates_of(case)
    picks = select(among, query_parameters, case.metric)
    assert not among.scratch.dense.any()
    return among.rows[picks.places].tolist(), picks


def value_of(
    points: definitions.Points,
    query: FloatArray,
    query_parameters: EffectiveParameters,
    before: list[int],
    row: int,
) -> float:
    """Return the reference's value of picking a row after other rows, computed from scratch."""
    near = definitions.nearest_rows(points, query, range(len(points.vectors)))
    k, relevance = min(query_parameters.k, len(near)), 1 - query_parameters.diversity
    if query_parameters.selector == "dpp":
        costs, alike = selectors.likeness(points, query, near)
        at = {r: i for i, r in enumerate(near)}
        volume: list[int] = []
        for pick in [*before, row]:
            larger_volume = [*volume, at[pick]]
            whole = np.linalg.det(alike[np.ix_(larger_volume, larger_volume)])
            remainder = max(whole / np.linalg.det(alike[np.ix_(volume, volume)]), 1e-5)
            volume = larger_volume if remainder > 1e-5 else volume
        return relevance * costs[row] - (1 - relevance) * math.log(remainder)
    if query_parameters.selector == "rerank":
        relevance = 0.0
    costs = selectors.lengths(points, query, near)
    weight = 2 * (1 - relevance) / (k - 1) if k > 1 else 0.0
    apart = sum(selectors.length(points, row, pick) for pick in before)
    return relevance / 2 * costs[row] - weight * apart


def has_copies(points: definitions.Points, rows: list[int]) -> bool:
    """Tell whether two points have the same direction or position, up to rounding."""
    return any(selectors.length(points, *pair) < 2.0**-9 for pair in combinations(rows, 2))


@examples
@given(
    case=cases([1, 2, 5, 25], [1, 2, 15, 16, 33]),
    k=st.sampled_from([1, 2, 3, 8, 40]),
    diversity=st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.9, 1.0]),
    selector=st.sampled_from(SELECTORS),
)
def test_every_pick_minimises_the_formula(
    case: Case, k: int, diversity: float, selector: Selector
) -> None:
    """The value that the kernel reports for the pick is the value of the formula."""
    count, query_parameters = len(case.vectors), parameters(k, diversity, selector)
    rows, picks = picked(case, query_parameters)
    assert len(set(rows)) == len(rows) == min(k, count)
    points = case.points()
    near = definitions.nearest_rows(points, case.query, range(count))
    if selector == "rerank":
        near = near[: len(rows) + int(diversity * (count - len(rows)))]
    for step, (row, value) in enumerate(zip(rows, picks.values.tolist(), strict=True)):
        truth = {
            r: value_of(points, case.query, query_parameters, rows[:step], r)
            for r in near
            if r not in rows[:step]
        }
        room = case.room * (1 + step) + 1e-3 * case.room**0.5
        if selector == "dpp":
            # Rounding may change the logarithm of a small variance by 0.02.
            room += 0.02
        elif has_copies(points, near):
            # A distance of 0 may be rounded to 2**-22, whose square root is 2**-11.
            room += 2 * 2.0**-11
        assert truth[row] <= min(truth.values()) + room
        assert abs(-value - truth[row]) <= room


@settings(max_examples=100)
@given(
    case=cases([40], [24], [0.0]),
    selector=st.sampled_from(SELECTORS),
    diversity=st.sampled_from([0.05, 0.3, 1.0]),
)
def test_picks_agree_with_the_reference(case: Case, selector: Selector, diversity: float) -> None:
    """Points are in general position, so there are no ties."""
    query_parameters = parameters(9, diversity, selector)
    twin = selectors.select(case.points(), case.query, range(40), query_parameters)
    assert picked(case, query_parameters)[0] == [row for row, _ in twin]


@examples
@given(seed=seeds, diversity=st.floats(0.01, 1), k=st.integers(2, 5))
@pytest.mark.parametrize("metric", METRICS)
def test_max_sum_reaches_half_of_the_optimum(
    metric: Metrics, seed: int, diversity: float, k: int
) -> None:
    case = Case.draw(seed, 9, 3, 0.3, metric)
    picks, _ = picked(case, parameters(k, diversity, "max_sum"))
    points, near, relevance = case.points(), list(range(9)), 1 - diversity
    best = max(
        selectors.spread_sum(points, case.query, near, rows, relevance)
        for rows in combinations(near, k)
    )
    value = selectors.spread_sum(points, case.query, near, picks, relevance)
    assert 2 * value >= best * (1 - 1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("stored_sparse", [False, True])
def test_dpp_picks_copies_last(metric: Metrics, stored_sparse: bool) -> None:
    case = Case.draw(4, 12, 20, 0, metric, stored_sparse=stored_sparse)
    case.vectors[6:] = case.vectors[:6]
    rows, picks = picked(case, parameters(12, 1.0, "dpp"))
    assert sorted(row % 6 for row in rows[:6]) == list(range(6))
    near = definitions.nearest_rows(case.points(), case.query, range(12))
    assert rows[6:] == [row for row in near if row in rows[6:]]
    assert np.allclose(picks.values[6:], math.log(max_sum_dpp.REMAINDER_MIN))
    assert np.isfinite(picks.values).all()


def test_dpp_returns_k_results_in_a_space_of_fewer_dimensions() -> None:
    """Three unit vectors span the space, and `dpp` still picks seven more points."""
    rows, picks = picked(Case.draw(1, 30, 3), parameters(10, 0.5, "dpp"))
    assert len(set(rows)) == 10
    # Once no volume is left, the values are close to relevance alone.
    assert (np.diff(picks.values[4:]) <= 1e-3).all()


@pytest.mark.parametrize("selector", [*SELECTORS, "qp_relax"])
def test_no_candidates_give_no_picks(selector: Selector) -> None:
    case = Case.draw(3, 0, 4)
    rows, picks = picked(case, parameters(3, 0.5, selector))
    assert rows == picks.values.tolist() == []


@examples
@given(case=cases([12], [17], [0.3]))
def test_far_from_returns_the_differences_from_a_candidate(case: Case) -> None:
    among = candidates_of(case)
    far = np.full(13, 9, np.float32)
    for pick in (0, 7):
        pairwise.far_from(among.points, among.rows, 12, pick, among.scratch, far)
        row = int(among.rows[pick])
        truth = [definitions.apart(case.points(), row, int(candidate)) for candidate in among.rows]
        truth[pick] = 0
        assert np.abs(far[:12] - truth).max() < case.room
        assert (far[pick], far[12]) == (0, 9)
        alone = [
            pairwise.how_far(among.points, row, candidate) for candidate in among.rows.tolist()
        ]
        assert np.abs(np.delete(np.subtract(far[:12], alone), pick)).max() < case.room


@examples
@given(number=st.floats(1e-5, 2.0**60))
def test_logarithm_agrees_with_the_standard_library(number: float) -> None:
    assert math.isclose(
        max_sum_dpp.logarithm(number), math.log(number), rel_tol=1e-15, abs_tol=3e-16
    )
    assert max_sum_dpp.logarithm(1.0) == 0
