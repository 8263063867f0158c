"""Recall by family and metric, of points whose lengths differ by a factor of 100."""

from functools import cache
from typing import get_args

import numpy as np
import pytest
from scipy import sparse

from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, IntArray, Metric, Points, Search
from support.data.mixed_indexes import stored_as

ROWS, DIMS, QUERIES, K = 6_000, 48, 100, 10
KINDS: tuple[Points, ...] = get_args(Points)
# Tolerance in recall, because a build measures recall on a sample of its own points.
SLACK = 0.05


@cache
def drawn(rows: int, seed: int, kind: Points) -> FloatArray | sparse.csr_array:
    """Draw points around thirty centres, which are the same for every seed."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((30, DIMS))
    points = centres[rng.integers(0, 30, rows)] + 0.6 * rng.standard_normal((rows, DIMS))
    points *= 10 ** rng.uniform(0, 2, (rows, 1))
    if kind == "sparse":
        points[rng.random(points.shape) < 0.7] = 0
    return stored_as(points.astype(np.float32), kind)


@cache
def an_index(family: HashFamily, metric: Metric, kind: Points) -> Index:
    return Index.build(drawn(ROWS, 1, kind), hash_family=family, metric=metric)


@cache
def truth(metric: Metric, kind: Points) -> IntArray:
    """Return the nearest points, computed by matrix products without any code of the index."""
    points, query_rows = (drawn(rows, seed, kind) for rows, seed in ((ROWS, 1), (QUERIES, 2)))
    wide, queries = (sparse.csr_array(m).toarray().astype(np.float64) for m in (points, query_rows))
    products = queries @ wide.T
    squares = (wide**2).sum(axis=1)
    if metric == "cosine":
        products /= np.sqrt(squares)
    if metric == "euclidean":
        products -= squares / 2
    nearest: IntArray = np.argsort(-products, axis=1)[:, :K]
    return nearest


def recall(index: Index, search: Search, metric: Metric, kind: Points) -> float:
    result = index.query(drawn(QUERIES, 2, kind), k=K, search=search, selector="nearest")
    pairs = zip(truth(metric, kind), result.ids, strict=True)
    return float(np.mean([np.isin(expected, ids).mean() for expected, ids in pairs]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("family", get_args(HashFamily))
def test_default_limits_reach_the_target_recall(
    family: HashFamily, metric: Metric, kind: Points
) -> None:
    """Exact search misses only points at nearly equal distance, whose order rounding decides."""
    index = an_index(family, metric, kind)
    assert recall(index, "exact", metric, kind) > 0.999
    assert recall(index, "scan", metric, kind) >= 0.97
    assert recall(index, "auto", metric, kind) >= 0.9 - SLACK
    costs = {cost.search: cost.recall for cost in index.info.search_costs}
    assert costs[index.info.auto_search] >= 0.9
    # A sample of 64 points measures the recall of tables or cells only within a few hundredths.
    assert recall(index, "tables", metric, kind) >= costs["tables"] - 3 * SLACK


@pytest.mark.parametrize("metric", get_args(Metric))
def test_a_higher_target_probes_more_cells_and_finds_more(metric: Metric) -> None:
    points = drawn(ROWS, 1, "dense")
    low, high = (
        Index.build(points, hash_family="cells", metric=metric, target_recall=target)
        for target in (0.5, 0.99)
    )
    assert low.info.n_probes < high.info.n_probes
    # A few cells contain nearly all of the ten nearest points, but not nearly all 200 candidates.
    queries = drawn(QUERIES, 2, "dense")
    recalls = []
    for index in (low, high):
        near, exact = (
            index.query(queries, k=200, candidates_limit=200, search=search, selector="nearest").ids
            for search in ("tables", "exact")
        )
        pairs = zip(exact, near, strict=True)
        recalls.append(np.mean([np.isin(expected, ids).mean() for expected, ids in pairs]))
    assert recalls[0] < recalls[1]
    assert recalls[1] >= 0.99 - SLACK
    assert recall(high, "tables", metric, "dense") >= 0.99 - SLACK


@pytest.mark.parametrize(("offset", "spread"), [(1_000, 0.1), (10_000, 1)])
def test_recall_is_measured_accurately_far_from_the_origin(offset: float, spread: float) -> None:
    """Far from the origin, neighbours differ by less than rounding errors of float32 products."""
    rng = np.random.default_rng(5)
    points = (offset + spread * rng.standard_normal((3_000, 32))).astype(np.float32)
    index = Index.build(points, metric="euclidean", hash_family="lsh_div", centred=True)
    recalls = {cost.search: cost.recall for cost in index.info.search_costs}
    assert recalls["scan"] > 0.95
