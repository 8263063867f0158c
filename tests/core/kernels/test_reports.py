"""The numbers of a report, compared with distances of pairs that are computed one by one."""

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.index import Index
from divgrpc.kernels import pairwise, reports
from divgrpc.search.dials import METRICS
from divgrpc.types import FloatArray, Metric, QueryResult
from reference.index import clustered

COUNT = 400
seeds = st.integers(0, 2**32 - 1)


@cache
def built(metric: Metric, *, is_sparse: bool) -> Index:
    vectors = clustered(COUNT, 24, 0, 0.1)
    vectors[COUNT // 2 :: 5] = vectors[:40]
    points = sparse.csr_array(np.where(np.abs(vectors) < 0.1, 0, vectors)) if is_sparse else vectors
    return Index.build(points, ids=np.arange(COUNT) * 3, metric=metric)


def numbers_of(
    index: Index, rows: list[int], distances: FloatArray, k: int, dial: float
) -> list[float]:
    """Return mean distance, least distance, mean score and objective of points in `rows`."""
    points, metric = index.engine.searcher._index.points, index.engine.metric
    far = [
        float(pairwise.how_far(points, row, peer))
        for place, row in enumerate(rows)
        for peer in rows[:place]
    ]
    near = sum(distances[rows].astype(np.float64).tolist()) / len(rows) if rows else math.nan
    total = 0.0
    for apart in far:
        total += apart
    mean = total / len(far) if far else math.nan
    score = {"cosine": 1 - near / 2, "euclidean": near, "inner_product": -near}[metric]
    is_full = len(rows) == k and metric != "inner_product"
    value = (1 - dial) * near - dial * (mean if k > 1 else 0.0) if is_full else math.nan
    return [mean, min(far, default=math.nan), score, value]


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds,
    metric=st.sampled_from(["cosine", "euclidean", "inner_product"]),
    is_sparse=st.booleans(),
    n=st.sampled_from([0, 1, 2, 5, 10, 256, 257, 300]),
    lack=st.integers(0, 3),
    dial=st.floats(0, 1),
)
def test_a_report_has_the_numbers_of_all_pairs(
    *, seed: int, metric: Metric, is_sparse: bool, n: int, lack: int, dial: float
) -> None:
    """Whether distances of the results are kept for the plain results or not, bits are equal."""
    index, rng = built(metric, is_sparse=is_sparse), np.random.default_rng(seed)
    rows, distances = np.arange(COUNT, dtype=np.int32), rng.random(COUNT).astype(np.float32)
    places = rng.permutation(COUNT)[:n]
    plain = np.sort(rng.permutation(np.concatenate((places, rng.permutation(COUNT)[:3])))[:n])
    plain = np.unique(plain)[: max(0, n - lack)]
    k, values = max(1, n), np.empty((8, 1))
    ids = np.empty((1, k), np.int64)
    reports.report(
        index.engine.searcher._register, rows, distances, places, plain, METRICS[metric], dial,
        values, ids,
    )  # fmt: skip
    lists = [numbers_of(index, part.tolist(), distances, k, dial) for part in (places, plain)]
    (mean, least, score, value), (plain_mean, plain_least, plain_score, plain_value) = lists
    expected = [mean, least, plain_mean, plain_least, score, plain_score, value, plain_value]
    np.testing.assert_array_equal(values[:, 0], expected)
    assert ids[0].tolist() == [3 * row for row in plain.tolist()] + [-1] * (k - len(plain))


def reported(result: QueryResult) -> list[list[float]]:
    assert result.report is not None
    return [getattr(result.report, name).tolist() for name in result.report.__slots__[:8]]


@pytest.mark.parametrize(
    ("selector", "dial"),
    [("nearest", 0.15), *itertools.product(["greedy", "mmr", "max_sum", "dpp"], [0, 0.4, "auto"])],
)
def test_a_report_is_the_same_beside_other_comments_and_in_batches(
    selector: str, dial: float | str
) -> None:
    """Kernels of queries write most reports; of others, one by one, a kernel of its own does."""
    index = built("cosine", is_sparse=False)
    queries = clustered(20, 24, 1, 0.1)
    options: dict[str, Any] = {"k": 7, "selector": selector, "diversity": dial, "with_report": True}
    whole = index.query(queries, **options)
    parts = [index.query(query, **options) for query in queries]
    assert reported(whole) == [
        [value for part in column for value in part]
        for column in zip(*map(reported, parts), strict=True)
    ]
    assert reported(whole) == reported(index.query(queries, explain=True, **options))
