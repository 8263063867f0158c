"""The relaxation of Eq. 3 equals scipy's optimum, and its selections are near the best."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kernels.test_greedy import METRICS, Case, Metrics, cases
from core.search.test_selectors import candidates_of
from divgrpc.index import Index
from divgrpc.kernels import greedy, qp
from divgrpc.search import relaxation
from divgrpc.search.relaxation import CandidateSet, Relaxed, exchange, relax, round_up
from reference import definitions, selectors

examples = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
Numbers = npt.NDArray[np.float64]


def problem(case: Case) -> tuple[CandidateSet, Numbers, Numbers]:
    among = candidates_of(case)
    costs = among.costs
    if case.metric == "inner_product":
        costs = np.empty_like(among.costs)
        greedy.scale_costs(among.costs, len(among), len(among) - 1, costs)
    rows = among.rows.tolist()
    points = case.points()
    truth = definitions.costs(points, case.query, rows)
    apart = [[0.0 if a == b else definitions.apart(points, a, b) for b in rows] for a in rows]
    return replace(among, costs=costs), np.array([truth[row] for row in rows]), np.array(apart)


def check_shares(solution: Relaxed, k: int) -> None:
    assert ((solution.shares >= 0) & (solution.shares <= 1)).all()
    assert abs(solution.shares.sum() - k) < 1e-9 * k


@examples
@given(
    case=cases([2, 3, 8, 20], [1, 3, 17]),
    k=st.sampled_from([1, 2, 4, 20]),
    diversity=st.sampled_from([0.01, 0.1, 0.5, 0.9, 1.0]),
    is_printed=st.booleans(),
)
def test_shares_are_as_good_as_those_of_scipy(
    case: Case, k: int, diversity: float, is_printed: bool
) -> None:
    """The value exceeds scipy's optimum by no more than the reported gap."""
    count = len(case.vectors)
    among, costs, apart = problem(case)
    k, beta = min(k, count), 1.0 if is_printed else diversity
    solution = relax(among, k, 1 - diversity, beta)
    check_shares(solution, k)
    assert solution.gap <= relaxation.TOLERANCE
    prices = (1 - diversity) * costs
    value = selectors.eq_1(prices, apart, solution.shares, beta)
    best = selectors.relaxed(prices, apart, k, beta)
    least = selectors.eq_1(prices, apart, best, beta)
    # The tolerance is relative to the value of the worst selection, approximated by some corners.
    most = max(selectors.eq_1(prices, apart, corner, beta) for corner in corners(count, k, costs))
    room = case.room * k * k + 1e-7 * abs(least)
    assert least - room <= value <= least + relaxation.TOLERANCE * max(most - value, 0) + room


def corners(count: int, k: int, costs: Numbers) -> list[Numbers]:
    """Return some selections: the k nearest, the k farthest, and a few hundred random ones."""
    rng = np.random.default_rng(0)
    orders = [np.argsort(costs), np.argsort(-costs), *(rng.permutation(count) for _ in range(300))]
    selections = np.zeros((len(orders), count))
    for corner, order in zip(selections, orders, strict=True):
        corner[order[:k]] = 1
    return list(selections)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("stored_sparse", [False, True])
@pytest.mark.parametrize("is_printed", [False, True])
def test_rounded_selections_come_near_the_best_of_all(
    metric: Metrics, stored_sparse: bool, is_printed: bool
) -> None:
    """The rounding `exchange` ends nearer to the best selection than the paper's `top_k`."""
    gap_shares: dict[str, list[float]] = {"top_k": [], "exchange": []}
    for seed, diversity in product(range(8), (0.05, 0.2, 0.6)):
        case = Case.draw(seed, 11, 6, 0, metric, stored_sparse=stored_sparse)
        among, costs, apart = problem(case)
        relevance, beta = 1 - diversity, 1.0 if is_printed else diversity
        solution = relax(among, 4, relevance, beta)
        prices = relevance * costs
        _, best = selectors.best_selection(prices, apart, 4, beta)
        floor = selectors.eq_1(prices, apart, solution.shares, beta)
        nearest = selectors.eq_1(prices, apart, (np.arange(11) < 4).astype(np.float64), beta)
        assert best >= floor - 2e-3 * abs(nearest - floor) - 1e-3 * case.room
        places = {"top_k": round_up(solution.shares, 4)}
        support = np.flatnonzero(solution.shares)
        start = np.searchsorted(support, places["top_k"])
        places["exchange"] = support[exchange(among.take(support), start, relevance, beta)]
        for name, selection in places.items():
            shares = np.zeros(11)
            shares[selection] = 1
            assert shares.sum() == 4
            value = selectors.eq_1(prices, apart, shares, beta)
            assert value >= best - case.room
            gap_shares[name].append((nearest - value) / (nearest - best) if nearest > best else 1.0)
    worse = np.array(gap_shares["top_k"]) > np.array(gap_shares["exchange"]) + 1e-3
    assert not worse.any()
    assert np.mean(gap_shares["exchange"]) > 0.9
    assert np.mean(gap_shares["exchange"]) > np.mean(gap_shares["top_k"])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("stored_sparse", [False, True])
def test_small_working_sets_reach_the_same_optimum(
    monkeypatch: pytest.MonkeyPatch, metric: Metrics, stored_sparse: bool
) -> None:
    """Working sets start small, grow by few candidates, or drop cached distances."""
    case = Case.draw(3, 300, 20, 0.2, metric, stored_sparse=stored_sparse)
    among, costs, apart = problem(case)
    values = []
    for start, growth, limit in ((300, 64, 1 << 20), (12, 3, 1 << 20), (300, 64, 2), (12, 3, 2)):
        monkeypatch.setattr(relaxation, "_WORKING_CANDIDATES", start)
        monkeypatch.setattr(relaxation, "_JOINING_CANDIDATES", growth)
        monkeypatch.setattr(relaxation, "_CACHED_DISTANCES", limit)
        solution = relax(among, 6, 0.7, 0.3)
        check_shares(solution, 6)
        assert solution.gap <= relaxation.TOLERANCE
        values.append(selectors.eq_1(0.7 * costs, apart, solution.shares, 0.3))
    nearest = selectors.eq_1(0.7 * costs, apart, (np.arange(300) < 6).astype(np.float64), 0.3)
    assert max(values) - min(values) <= 2e-3 * (nearest - min(values)) + case.room


@pytest.mark.parametrize("metric", METRICS)
def test_equal_points_have_no_duality_gap(metric: Metrics) -> None:
    case = Case.draw(1, 1, 5, 0, metric)
    case.vectors = np.repeat(case.vectors, 40, axis=0)
    solution = relax(problem(case)[0], 4, 0.5, 0.5)
    assert solution.gap == 0
    check_shares(solution, 4)


@examples
@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1), data=st.data())
def test_mark_least_marks_the_k_lowest_values(values: list[float], data: Any) -> None:  # noqa: ANN401  # hypothesis' own
    k = data.draw(st.integers(1, len(values)))
    given_values, marks = np.array(values), np.empty(len(values))
    total = qp.mark_least(given_values, k, np.empty(len(values), np.float32), marks)
    truth = sorted(range(len(values)), key=lambda i: (values[i], i))[:k]
    assert np.flatnonzero(marks).tolist() == sorted(truth)
    assert total == pytest.approx(sum(values[i] for i in truth), rel=1e-12, abs=1e-6)


@examples
@given(case=cases([9], [17], [0.0]))
def test_means_are_weighted_by_shares(case: Case) -> None:
    """Under the inner product, rows are scaled to unit length before they are averaged."""
    among, metric = candidates_of(case), case.metric
    shares = np.array([1, 0, 0.25, 0, 0.75, 0, 1, 0, 0])
    means = qp.mean_of(among.points, among.rows, 9, shares, 3)
    rows = case.vectors[among.rows].astype(np.float64)
    if metric == "inner_product":
        rows = definitions.unit(rows)
    assert np.abs(means[0] - shares @ rows / 3).max() < case.room
    assert qp.sum_of_products(shares, shares) == 1 + 0.0625 + 0.5625 + 1


def test_results_report_the_rounding_and_the_duality_gap() -> None:
    points = np.random.default_rng(0).standard_normal((400, 12)).astype(np.float32)
    index = Index.build(points)
    whole: dict[str, Any] = {"k": 8, "search": "exact", "hash_limit": 0, "candidates_limit": 0}
    best = index.query(points[:3], selector="qp_relax", **whole)
    paper = index.query(points[:3], selector="qp_relax", rounding="top_k", **whole)
    assert (best.parameters.rounding, paper.parameters.rounding) == ("exchange", "top_k")
    assert best.duality_gaps.tobytes() == paper.duality_gaps.tobytes()
    assert best.duality_gaps.shape == (3,)
    assert (best.duality_gaps <= relaxation.TOLERANCE).all()
    assert (best.selection_scores.sum(axis=1) <= paper.selection_scores.sum(axis=1) + 1e-6).all()
    assert (
        index.query(points[:3], selector="qp_relax", diversity=0).duality_gaps.tolist() == [0] * 3
    )
    assert index.query(points[:3]).duality_gaps.shape == (0,)
