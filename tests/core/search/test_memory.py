"""The working memory of queries is only as large as needed, and its size changes no answer."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.kernels.registers import arrays_of
from divgrpc.search import searcher
from divgrpc.search.memory import Memory
from divgrpc.storage.generations import Generation
from divgrpc.types import FloatArray, Metric, Search
from divgrpc.vectors import SparseRows
from reference.index import same_bytes

ROWS, DIMS = 20_000, 8
METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]


@cache
def built(metric: Metric, *, sparse_points: bool = False) -> Index:
    """Build cells of clustered points; the last hundred points are equal."""
    rng = np.random.default_rng(1)
    points = rng.standard_normal((9, DIMS))[rng.integers(0, 9, ROWS)]
    points += 0.5 * rng.standard_normal((ROWS, DIMS))
    points[-100:] = points[0]
    rows = sparse.csr_array(points) if sparse_points else points.astype(np.float32)
    return Index.build(rows, hash_family="cells", metric=metric)


def fresh(index: Index, **replacements: FloatArray) -> Index:
    """Return the same index without allocated working memory and with some arrays replaced."""
    # If the cells taken hold more points than the hash limit, codes decide which are kept.
    manifest = replace(index.engine.manifest, n_probes=6, auto_search="tables")
    return Index(Engine(Generation(manifest, {**index.engine._arrays, **replacements})))


def lengths(index: Index) -> Iterator[int]:
    scratch = index.engine._searcher._local.memory.scratch
    return (array.size for array in arrays_of(scratch))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("search", ["tables", "auto"])
def test_a_search_through_cells_allocates_less_than_all_points(
    metric: Metric, search: Search
) -> None:
    index = fresh(built(metric))
    index.query(np.ones((5, DIMS)), search=search)
    index.query(np.ones((5, DIMS)), search="tables", hash_limit=0, candidates_limit=0)
    assert max(lengths(index)) < ROWS // 2


def test_an_exact_search_enlarges_only_the_candidates() -> None:
    index = fresh(built("euclidean"))
    index.query(np.ones(DIMS), search="exact")
    index.query(np.ones(DIMS), search="tables")
    assert sum(size >= ROWS for size in lengths(index)) == 2


@pytest.mark.parametrize("room", [1, 300, ROWS])
@pytest.mark.parametrize("sparse_points", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_answers_do_not_depend_on_the_size_of_memory(
    metric: Metric, room: int, *, sparse_points: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_index = built(metric, sparse_points=sparse_points)
    whole, index = fresh(shared_index), fresh(shared_index)
    queries = np.random.default_rng(2).standard_normal((4, DIMS))
    for search in ("tables", "auto", "scan", "exact", "tables"):
        for limits in ({}, {"hash_limit": 60}, {"hash_limit": 0}, {"hash_limit": ROWS - 1}):
            for rows in (queries, SparseRows.of(sparse.csr_array(queries))):
                options: dict[str, Any] = {"search": search, "candidates_limit": 50, **limits}
                monkeypatch.setattr(searcher, "_CELL_ROOM_POINTS", ROWS)
                expected = whole.query(rows, **options)
                monkeypatch.setattr(searcher, "_CELL_ROOM_POINTS", room)
                assert same_bytes(index.query(rows, **options), expected)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_points_whose_estimates_are_nan_come_last(share: float) -> None:
    """Only a limit above the number of other points lets such points become candidates."""
    shared_index, nan_count = built("euclidean"), round(share * ROWS)
    arrays = shared_index.engine._arrays
    terms, nan_rows = np.array(arrays["scan_terms"]), arrays["cell_rows"][:nan_count]
    terms[:nan_count] = 0x7FC07FC0
    terms.setflags(write=False)
    index = fresh(shared_index, scan_terms=terms)
    for hash_limit in (ROWS // 2, ROWS - 1):
        result = index.query(
            np.ones((2, DIMS)), k=500, search="scan", hash_limit=hash_limit, selector="nearest"
        )
        assert (result.stats.points_hashed == hash_limit).all()
        if nan_count == hash_limit:
            assert not np.isin(result.ids, nan_rows).any()


@pytest.mark.parametrize("allocations", range(5))
def test_a_memory_error_leaves_arrays_of_equal_length(
    allocations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(4, (4, 256))
    memory.fit_points(4)
    memory.fit_selection(4, 2)
    makers = iter([np.zeros] * allocations)

    def zeros(shape: int | list[int], kind: type) -> object:
        if make := next(makers, None):
            return make(shape, kind)
        raise MemoryError

    monkeypatch.setattr(np, "zeros", zeros)
    with contextlib.suppress(MemoryError):
        memory.fit_points(9)
    with contextlib.suppress(MemoryError):
        memory.fit_selection(9, 2)
    scratch = memory.scratch
    rows, distances = scratch.candidates
    assert len(rows) == len(distances)
    assert len(scratch.selection.far) == len(scratch.selection.apart) == len(scratch.costs)
