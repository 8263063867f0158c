"""Queries that are searched together give the same bytes as queries searched one by one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from divgrpc.index import Index
from divgrpc.kernels import batch
from divgrpc.kernels.code_scan import BLOCK_POINTS
from divgrpc.kernels.exact import BOUND_ROWS
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.parameters import QueryParameters
from divgrpc.search import searcher as searching
from divgrpc.types import FloatArray, HashFamily, Metric, QueryResult, Search
from divgrpc.vectors import SparseRows
from reference.index import row_of, same_bytes
from support.data.mixed_indexes import METRICS, SAMPLINGS, SELECTIONS, check, drawn, taking

# ROWS leaves the last block of points partly empty.
ROWS, DIMS = 3 * BLOCK_POINTS + 77, 12
# Codes of 256 bits are stored in whole tiles.
_CODE_BYTES = -(-ROWS // TILE_POINTS) * TILE_POINTS * 256 // 8
# Most of these counts leave the last group of queries, and the last group of sums, partly empty.
COUNTS = [3, 4, 5, 16, 17, 39]
LSH: list[HashFamily] = ["lsh_div", "lsh_sdiv", "pca_hash"]
SCANS: list[Search] = ["scan", "scan_hamming"]

Options = dict[str, Any]


@cache
def built(family: HashFamily, metric: Metric, *, is_falling: bool = False) -> Index:
    """Build an index with shuffled ids; half of all points are equal, and a tenth occurs twice."""
    points = drawn(ROWS, DIMS, 4, metric)
    points[1::2] = points[1]
    if is_falling:
        points = points[np.argsort(-np.linalg.norm(points, axis=1))]
    ids = np.random.default_rng(6).permutation(10**6)[:ROWS]
    tables = None if family == "cells" else 2
    return Index.build(points, ids=ids, metric=metric, hash_family=family, n_tables=tables)


def drawn_queries(count: int, metric: Metric) -> FloatArray:
    rng = np.random.default_rng(count)
    points = drawn(ROWS, DIMS, 4, metric)
    queries = points[1 : 1 + count] + 0.1 * rng.standard_normal((count, DIMS))
    queries[1::2] = rng.standard_normal(queries[1::2].shape)
    queries[count // 2] = points[1]
    return queries.astype(np.float32)


@contextmanager
def searched_together() -> Iterator[dict[str, Mock]]:
    names = ("score_batch", "scan_batch")
    limits: Options = {
        "_BATCH_DIMS_MIN": 0,
        "_BATCH_VECTOR_BYTES_MIN": 0,
        "_BATCH_CODE_BYTES_MIN": 0,
        "_BATCH_POINTS_RATIO": 2,
    }
    kernels = {name: Mock(wraps=getattr(batch, name)) for name in names}
    with patch.multiple(searching, **(limits | kernels)):
        yield kernels


def compare(
    index: Index,
    queries: FloatArray | SparseRows,
    options: Options,
    *,
    rows: Iterable[int] | None = None,
) -> tuple[QueryResult, list[int]]:
    """Compare a batch with single queries; return its result and the calls of the kernels."""
    with searched_together() as kernels:
        whole = index.query(queries, **options)
    for row in range(len(queries)) if rows is None else rows:
        assert same_bytes(row_of(whole, row), index.query(queries[row : row + 1], **options)), row
    return whole, [kernel.call_count for kernel in kernels.values()]


def borders(count: int) -> set[int]:
    near = (0, 1, count // 2, batch.BATCH_QUERIES - 1, batch.BATCH_QUERIES, count - 1)
    return {row for row in near if row < count}


@given(
    # A family matters even to an exact search, because cells store the points in another order.
    index=st.builds(
        built,
        st.sampled_from(["lsh_sdiv", "cells"]),
        st.sampled_from(METRICS),
        is_falling=st.booleans(),
    ),
    count=st.sampled_from(COUNTS),
    options=st.fixed_dictionaries(
        {
            "search": st.just("exact"),
            "selector": st.sampled_from(["nearest", "greedy"]),
            "max_distance": st.sampled_from([None, 0.3, 5.0]),
            "keep_duplicates": st.booleans(),
        }
    ),
    limits=st.sampled_from(
        [(10, None, None), (6, 30, 20), (10, 10, 10), (200, 270, 0), (150, 0, 256)]
    ),
)
def test_exact_searches_agree_with_single_queries(
    index: Index, count: int, options: Options, limits: tuple[int, int | None, int | None]
) -> None:
    if index.engine._searcher.metric == "inner_product":
        options["max_distance"] = None
    options |= dict(zip(("k", "hash_limit", "candidates_limit"), limits, strict=True))
    queries = drawn_queries(count, index.engine._searcher.metric)
    _, calls = compare(index, queries, options, rows=borders(count))
    # A pool that may grow fourfold would keep too many of these few points, so rows run one by one.
    grows = options["selector"] == "greedy" and not options["keep_duplicates"] and not limits[1]
    assert calls == [0 if grows else -(-count // batch.BATCH_QUERIES), 0]


@given(
    index=st.builds(built, st.sampled_from(LSH), st.sampled_from(METRICS)),
    count=st.sampled_from(COUNTS),
    options=st.fixed_dictionaries(
        {
            "search": st.sampled_from(SCANS),
            "selector": st.sampled_from(["nearest", "greedy"]),
            "sampling": st.sampled_from(SAMPLINGS),
            "hash_limit": st.sampled_from([10, 11, 60, 270]),
            "seed": st.integers(0, 3),
        }
    ),
    sparse=st.booleans(),
)
def test_scans_agree_with_single_queries(
    index: Index, count: int, options: Options, *, sparse: bool
) -> None:
    queries = drawn_queries(count, index.engine._searcher.metric)
    rows = SparseRows.of(csr_array(queries)) if sparse else queries
    _, calls = compare(index, rows, options, rows=borders(count))
    assert calls == [0, -(-count // batch.BATCH_QUERIES)]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("metric", METRICS)
def test_searches_together_agree_with_the_reference(metric: Metric, place: int) -> None:
    selector, variant = SELECTIONS[place]
    search = ["exact", *SCANS][(place + METRICS.index(metric)) % 3]
    queries = drawn_queries(3, metric)
    options: Options = {"search": search, "selector": selector, "variant": variant}
    options |= {"k": 6, "hash_limit": 40, "candidates_limit": 25}
    result, calls = compare(built("lsh_sdiv", metric), queries, options)
    assert sum(calls) == 1
    check(built("lsh_sdiv", metric), queries, result)


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (2, {"search": "exact"}),
        (3, {"search": "exact", "hash_limit": 0, "candidates_limit": 0}),
        (3, {"search": "scan", "hash_limit": 0, "candidates_limit": 50}),
        (3, {"search": "scan", "hash_limit": 3000}),
        (3, {"search": "tables"}),
        (3, {"search": "exact", "selector": "max_sum"}),
    ],
)
def test_other_queries_are_searched_one_by_one(count: int, options: Options) -> None:
    """Pairs of queries, and queries that keep most or read few points, run one by one."""
    _, calls = compare(built("lsh_sdiv", "cosine"), drawn_queries(count, "cosine"), options)
    assert calls == [0, 0]


def test_hashed_points_of_an_exact_search_are_the_first_points() -> None:
    """An exact search hashes the first `hash_limit` points of every query in a batch."""
    searcher, queries = built("lsh_sdiv", "cosine").engine._searcher, drawn_queries(5, "cosine")
    effective = QueryParameters(search="exact", hash_limit=50).resolve(ROWS, "exact")
    with searched_together():
        ids_by_query = searcher.hashed(queries, effective)
    assert [ids.tolist() for ids in ids_by_query] == [searcher.ids[:50].tolist()] * 5


@pytest.mark.parametrize("search", SCANS)
def test_scans_of_cells_run_one_by_one(search: Search) -> None:
    """Cells order codes by cell, so no block of codes serves several queries."""
    options: Options = {"search": search, "hash_limit": 50}
    _, calls = compare(built("cells", "cosine"), drawn_queries(5, "cosine"), options)
    assert calls == [0, 0]


@pytest.mark.parametrize("search", SCANS)
def test_scans_of_falling_lengths_run_together(search: Search) -> None:
    """Points may come in any order, so points of falling length are searched as all others are."""
    index = built("lsh_div", "inner_product", is_falling=True)
    options: Options = {"search": search, "hash_limit": 50}
    _, calls = compare(index, drawn_queries(5, "inner_product"), options)
    assert calls == [0, 1]


@pytest.mark.parametrize(
    ("name", "search", "single_value", "batch_value"),
    [
        ("_BATCH_ROWS_MIN", "exact", 6, 5),
        ("_BATCH_DIMS_MIN", "exact", DIMS + 1, DIMS),
        ("_BATCH_POINTS_RATIO", "exact", ROWS, 2),
        ("_BATCH_VECTOR_BYTES_MIN", "exact", 4 * ROWS * DIMS, 4 * ROWS * DIMS - 1),
        ("_BATCH_CODE_BYTES_MIN", "scan", _CODE_BYTES, _CODE_BYTES - 1),
    ],
)
def test_queries_run_one_by_one_if_that_is_faster(
    name: str, search: Search, single_value: int, batch_value: int
) -> None:
    index = built("lsh_sdiv", "cosine")
    for value, expected in ((single_value, 0), (batch_value, 1)):
        with searched_together() as kernels, patch.object(searching, name, value):
            index.query(drawn_queries(5, "cosine"), search=search, hash_limit=50)
        assert sum(kernel.call_count for kernel in kernels.values()) == expected


@pytest.mark.parametrize(("search", "block"), [("exact", BOUND_ROWS), ("scan", BLOCK_POINTS)])
def test_scratch_memory_has_a_limit(search: Search, block: int) -> None:
    index = taking(built("lsh_sdiv", "cosine"), "scan")
    size = batch.BATCH_QUERIES * (2 * 60 + block) * 8
    for limit, expected in ((size - 1, 0), (size, 1)):
        with searched_together() as kernels, patch.object(searching, "_BATCH_BYTES_MAX", limit):
            index.query(drawn_queries(39, "cosine"), search=search, hash_limit=60)
        assert any(kernel.called for kernel in kernels.values()) == expected
    scratch = index.engine._searcher._local.memory.scratch.batch
    assert scratch.rows.nbytes + scratch.distances.nbytes == size


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"search": "exact", "keep_duplicates": True}, batch.BATCH_QUERIES),
        # A pool that may grow would keep too many of these few points.
        ({"search": "exact"}, 1),
        ({"search": "exact", "selector": "max_sum"}, 1),
        ({"search": "exact", "selector": "qp_relax"}, 1),
        ({"search": "scan", "hash_limit": 60}, 1),
        ({"search": "tables"}, 1),
    ],
)
def test_an_index_gives_the_size_of_its_exact_batches(options: Options, expected: int) -> None:
    """The size tells a server not to split a batch of this size into smaller slices."""
    index, queries = built("lsh_sdiv", "cosine"), drawn_queries(5, "cosine")
    parameters = QueryParameters(**options)
    with searched_together():
        assert index.engine.exact_together(queries, parameters) == expected
        assert index.engine.exact_together(SparseRows.of(csr_array(queries)), parameters) == 1
    assert index.engine.exact_together(queries, parameters) == 1


@pytest.mark.parametrize(("seed", "limit"), [(3, 100), (4, 270)])
def test_no_point_is_kept_twice(seed: int, limit: int) -> None:
    """Memory after the kept points is not initialised, so it may contain a kept point again."""
    rng = np.random.default_rng(seed)
    points, queries = (rng.standard_normal((n, DIMS)).astype(np.float32) for n in (ROWS, 64))
    index = Index.build(points, hash_family="lsh_div", metric="euclidean", n_tables=2)
    options: Options = {"search": "exact", "selector": "nearest", "hash_limit": limit}
    compare(index, queries, options | {"k": min(limit, 200), "candidates_limit": 0})
