"""The search that `auto` chooses from counted work, and the counts themselves."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.builder import tuning
from divgrpc.index import Index
from divgrpc.kernels.inverted_lists import FULL_COLUMN_SHARE
from divgrpc.parameters import QueryParameters
from divgrpc.search.costs import POOLS, SearchTable, Shape, choose, nanoseconds, pool_of
from divgrpc.types import FloatArray, PoolCost, Search, SearchCost
from divgrpc.vectors import SparseRows
from support.data.mixed_indexes import stating, stored_as

ROWS = 20_000
SHAPE = Shape(rows=ROWS, width=128, words=4, planes=256, hashed_dims=128, sparse=False, cells=False)


def pool(candidates: int, recall: float, n_probes: int = 0, **counts: float) -> PoolCost:
    none = dict.fromkeys(("points_scored", "codes_read", "lists_read", "entries_read"), 0.0)
    return PoolCost(candidates, 4 * candidates, n_probes, recall, **none | counts)


def costs(scan: list[float], tables: list[float]) -> tuple[SearchCost, ...]:
    """Return search costs with these recalls, one recall for each number of candidates."""
    exact = tuple(pool(size, 1.0, points_scored=ROWS) for size in POOLS)
    scans = tuple(
        pool(size, recall, points_scored=4 * size, codes_read=ROWS)
        for size, recall in zip(POOLS, scan, strict=True)
    )
    table_pools = tuple(
        pool(size, recall, 10 + place, points_scored=4 * size, lists_read=10.0)
        for place, (size, recall) in enumerate(zip(POOLS, tables, strict=True))
    )
    return (
        SearchCost("tables", 0, 0, table_pools),
        SearchCost("scan", 0, 0, scans),
        SearchCost("exact", 0, 0, exact),
    )


def test_the_cheapest_search_that_reaches_the_target_is_chosen() -> None:
    """A number of candidates between two measured numbers has the search of the larger one."""
    search_costs = costs([0.99, 0.99, 0.96, 0.8], [0.96, 0.7, 0.4, 0.2])
    table = SearchTable(search_costs, SHAPE, 0.95, ("tables", 3))
    choices = {size: table.at(size) for size in (1, 10, 11, 50, 200, 201, 1_000, 5_000)}
    assert choices == {
        1: ("tables", 10),
        10: ("tables", 10),
        11: ("scan", 11),
        50: ("scan", 11),
        200: ("scan", 12),
        201: ("exact", 13),
        1_000: ("exact", 13),
        5_000: ("exact", 13),
    }
    assert SearchTable(costs([1] * 4, [0] * 4), SHAPE, 0.95, ("tables", 3)).at(5_000)[0] == "scan"
    near = costs([1, 1, 1, 0.96], [0] * 4)
    assert SearchTable(near, SHAPE, 0.95, ("tables", 3)).at(5_000)[0] == "exact"
    assert SearchTable((), SHAPE, 0.95, ("tables", 3)).at(200) == ("tables", 3)


@pytest.mark.parametrize(
    ("scan", "tables", "expected"),
    [
        ((0.95, 90), (0.95, 85), "exact"),
        ((0.95, 70), (0.95, 60), "scan"),
        ((0.95, 70), (0.95, 50), "tables"),
        ((0.85, 30), (0.95, 50), "tables"),
        ((0.85, 30), (0.89, 20), "exact"),
        ((0.96, 79), (0.84, 20), "scan"),
        ((0.96, 81), (0.84, 20), "exact"),
    ],
)
def test_a_search_is_preferred_only_if_clearly_cheaper(
    scan: tuple[float, float], tables: tuple[float, float], expected: Search
) -> None:
    """It must cost a fifth less. Prices are in hundredths of the cost of an exact search."""
    exact = pool(10, 1, points_scored=ROWS)
    whole = nanoseconds("exact", exact, SHAPE)

    def priced(search: Search, recall: float, price: float) -> PoolCost:
        least = nanoseconds(search, pool(10, recall), SHAPE)
        step = nanoseconds(search, pool(10, recall, codes_read=1), SHAPE) - least
        pool_cost = pool(10, recall, codes_read=(price * whole / 100 - least) / step)
        assert nanoseconds(search, pool_cost, SHAPE) == pytest.approx(price * whole / 100)
        assert pool_cost.codes_read > 0
        return pool_cost

    by_search: dict[Search, PoolCost] = {
        "exact": exact,
        "scan": priced("scan", *scan),
        "tables": priced("tables", *tables),
    }
    assert choose(by_search, SHAPE, 0.9) == expected


def test_the_default_hash_limit_is_interpolated_from_measurements() -> None:
    search_costs = costs([1] * 4, [0] * 4)
    scans = tuple(
        replace(pool_cost, hash_limit=limit)
        for pool_cost, limit in zip(search_costs[1].pools, (60, 300, 1_200, 5_200), strict=True)
    )
    table = SearchTable(
        (search_costs[0], replace(search_costs[1], pools=scans), search_costs[2]),
        SHAPE,
        0.9,
        ("exact", 1),
    )

    def limits(**options: Any) -> tuple[int, int]:  # noqa: ANN401  # limits of a query
        parameters = QueryParameters(**options)
        effective = table.resolve(parameters, ROWS, 128, "dense", most_probes=100)
        return effective.hash_limit, effective.candidates_limit

    assert limits() == (1_200, 200)
    assert limits(candidates_limit=50) == (300, 50)
    assert limits(candidates_limit=100) == (600, 100)
    assert limits(candidates_limit=400) == (2_200, 400)
    assert limits(candidates_limit=1_000) == (5_200, 1_000)
    assert limits(candidates_limit=2_000) == (10_400, 2_000)
    assert limits(hash_limit=400) == (400, 200)
    assert limits(hash_limit=0) == (0, 200)


def test_a_small_hash_limit_makes_a_small_pool() -> None:
    """With a hash limit below the default, the pool is a quarter of the limit."""
    parameters = QueryParameters(hash_limit=400)
    assert pool_of(parameters.resolve(ROWS, "scan"), ROWS) == 100
    assert pool_of(QueryParameters().resolve(ROWS, "scan"), ROWS) == 200
    every = QueryParameters(candidates_limit=0, hash_limit=0)
    assert pool_of(every.resolve(ROWS, "scan"), ROWS) == ROWS


def test_list_entries_are_counted_for_the_columns_of_a_query() -> None:
    """If the search scans all points instead, no list entries are counted."""
    rng = np.random.default_rng(0)
    points = rng.random((2_000, 300)) * (rng.random((2_000, 300)) < 0.02)
    points[:, 0] += 1
    index = Index.build(sparse.csr_array(points.astype(np.float32)))
    queries = SparseRows.of(sparse.csr_array(points[:20].astype(np.float32)))
    # The first column has a byte for every point instead of lists.
    costs = np.append(FULL_COLUMN_SHARE * 2_000, (points[:, 1:] != 0).sum(axis=0))
    expected = [int(costs[row != 0].sum()) for row in points[:20]]
    searcher = index.engine._searcher
    assert searcher.exact_work(queries, 10)[1].tolist() == expected
    assert not searcher.exact_work(queries, 1_000)[1].any()
    assert not searcher.exact_work(points[:2].astype(np.float32), 10)[1].any()


def test_measured_counts_agree_with_the_statistics_of_queries() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((6_000, 32)).astype(np.float32)
    index = Index.build(points, n_bits=10)
    by_search = {cost.search: cost.pools for cost in index.info.search_costs}
    for place, candidates in enumerate(POOLS):
        for search in ("exact", "scan", "tables"):
            pool_cost = by_search[search][place]
            parameters = QueryParameters(
                search=search, candidates_limit=candidates, hash_limit=pool_cost.hash_limit, k=1
            )
            stats = index.engine.answer(points[:200], parameters).stats
            assert np.mean(stats.points_scored) == pytest.approx(pool_cost.points_scored, rel=0.1)
            assert np.mean(stats.buckets_probed) == pytest.approx(pool_cost.n_probes)


def test_an_older_index_uses_its_stored_search() -> None:
    points = np.random.default_rng(0).standard_normal((3_000, 16)).astype(np.float32)
    index = Index.build(points, hash_family="lsh_div")
    old = tuple(replace(cost, pools=()) for cost in index.info.search_costs)
    older = stating(index, search_costs=old, auto_search="tables", n_probes=17)
    parameters = older.query(points[:1]).parameters
    assert (parameters.search, parameters.n_probes, parameters.hash_limit) == ("tables", 17, 800)
    assert older.query(points[:1], search="tables").warnings == ()


@pytest.mark.parametrize("count", [60, 3_000])
def test_the_reason_of_a_search_states_the_figures_of_the_rule(count: int) -> None:
    """The rule applied to these figures makes the same choice."""
    points = np.random.default_rng(6).standard_normal((count, 16)).astype(np.float32)
    info = Index.build(points, hash_family="lsh_div").info
    reason = next(choice.reason for choice in info.choices if choice.parameter == "search")
    for cost in info.search_costs:
        figures = f"{cost.search} finds {cost.recall:.3f} at {cost.microseconds:.0f} us"
        # `auto` never chooses the scan by Hamming distance.
        assert (figures in reason) == (cost.search != "scan_hamming")
    cost_by_search = {cost.search: cost for cost in info.search_costs}
    best_search: Search = "exact"
    for search in ("scan", "tables"):
        cheaper = (
            cost_by_search[search].microseconds < 0.8 * cost_by_search[best_search].microseconds
        )
        best_search = search if cost_by_search[search].recall >= 0.9 and cheaper else best_search
    assert best_search == info.auto_search


def crowded(topics: int, copies: int, seed: int = 0) -> FloatArray:
    """Return unit points: twenty items of each topic, with near-copies of each item."""
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> FloatArray:
        rows = rng.standard_normal(shape)
        return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)

    stories = unit(topics, 1, 64) + 0.8 * unit(topics, 20, 64)
    points = stories[:, :, np.newaxis] + 0.14 * unit(topics, 20, copies, 64)
    points = points.reshape(-1, 64)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True), np.float32)


@given(fewest_probes=st.integers(1, 4_000))
def test_tuning_takes_about_the_fewest_probes_needed(fewest_probes: int) -> None:
    curve, probes = tuning._Curve(0.9), 1
    while not curve.choice:
        bound = 0.9 * np.log(probes) / np.log(fewest_probes) if fewest_probes > 1 else 1.0
        curve.add(probes, bound, bound)
        probes *= 2
    assert fewest_probes <= curve.choice + 1
    assert curve.choice <= fewest_probes + 1


def test_tuning_tries_hash_limits_far_above_the_default() -> None:
    """Without structure, the ten nearest of many dimensions are hard to find by code."""
    points = np.random.default_rng(0).standard_normal((3_000, 96)).astype(np.float32)
    info = Index.build(points, hash_family="lsh_div", target_recall=0.99).info
    pools = next(cost.pools for cost in info.search_costs if cost.search == "scan")
    assert all(pool.recall >= 0.99 for pool in pools)
    assert pools[0].hash_limit > 4 * 40


def test_tuning_stops_when_more_probes_find_less() -> None:
    curve = tuning._Curve(0.9)
    for probes in (16, 32, 64, 128):
        assert not curve.choice
        recall = 0.8 - abs(probes - 64) / 100
        curve.add(probes, recall, recall)
    assert curve.choice == 64


@given(st.lists(st.floats(0, 1), min_size=2, max_size=50))
def test_the_lower_bound_is_the_mean_less_1_645_standard_errors(shares: list[float]) -> None:
    """The lower bound of a mean recall is never below zero."""
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / (len(shares) - 1)
    expected = max(0.0, mean - 1.645 * (variance / len(shares)) ** 0.5)
    (bound,) = tuning.lower_bound(np.array(shares)[:, np.newaxis])
    assert bound == pytest.approx(expected, abs=1e-9)


def test_a_slow_clock_changes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    points = crowded(20, 10)
    whole = Index.build(points).engine.manifest.to_json()
    for seconds in (1, 1_000):
        clock = iter(range(0, 10**9, seconds))
        monkeypatch.setattr(time, "perf_counter", lambda clock=clock: float(next(clock)))
        assert Index.build(points).engine.manifest.to_json() == whole


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("copies", [1, 10, 30])
def test_auto_reaches_the_target_recall_of_crowded_points(copies: int, kind: str) -> None:
    points = crowded(1 + 240 // copies, copies)
    if kind == "sparse":
        points = np.where(np.abs(points) > 0.12, points, 0).astype(np.float32)
    index = Index.build(stored_as(points, kind), target_recall=0.95)  # type: ignore[arg-type]
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    rng = np.random.default_rng(1)
    sample = points[rng.choice(len(points), 60, replace=False)]
    stories = sample + 0.0175 * rng.standard_normal(sample.shape) * (sample != 0)
    for queries in (sample, stories.astype(np.float32)):
        products = queries @ (points / lengths).T
        for candidates in POOLS:
            parameters = QueryParameters(
                selector="nearest", k=candidates, candidates_limit=candidates
            )
            result = index.engine.answer(stored_as(queries, kind), parameters)  # type: ignore[arg-type]
            last = -np.partition(-products, candidates - 1, axis=1)[:, candidates - 1]
            near = (
                np.take_along_axis(products, result.ids.astype(np.int64), axis=1)
                >= last[:, np.newaxis] - 1e-5
            )
            # With 60 queries, the mean recall is known only to about 0.02.
            assert near.mean() >= 0.95 - 0.02
    assert index.info.warnings == ()
