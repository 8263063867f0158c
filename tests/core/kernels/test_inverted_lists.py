"""Inverted lists, which hold the points with a value in a column, and exact searches with them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.builder import encoder
from divgrpc.builder.encoder import COMMON_COLUMN_SHARE
from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.kernels import exact, inverted_lists, normalise
from divgrpc.kernels.records import Candidates, InvertedLists, Points, Query, SelectionScratch
from divgrpc.kernels.registers import slots_of
from divgrpc.kernels.sparse import sparse_square
from divgrpc.kernels.sparse import spread as spread_out
from divgrpc.storage.generations import Generation
from divgrpc.types import FloatArray, Metric
from reference import kernels

# Thresholds by metric for which some of the nearest points are near-copies and most are not.
NEAR: dict[Metric, float] = {"cosine": 0.3, "euclidean": 12.0, "inner_product": 0.2}
seeds = st.integers(0, 2**32 - 1)
counts = st.sampled_from([1, 2, 5, 40, 300])


def drawn(seed: int, count: int, dims: int, spread: float) -> FloatArray:
    """Draw bags of words, the first word in nearly all rows, with a zero row and a repeated row."""
    rng = np.random.default_rng(seed)
    words = rng.random((count, dims)) < 1 / (1 + 0.3 * np.arange(dims))
    rows = words * rng.standard_normal((count, dims)) * 10 ** (spread * rng.random((count, 1)))
    rows[count // 2] = 0
    rows[-1] = rows[0]
    return rows.astype(np.float32)


def parts(rows: FloatArray) -> tuple[Any, ...]:
    matrix = sparse.csr_array(rows)
    arrays = (
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.float32),
    )
    for array in arrays:
        array.setflags(write=False)
    return arrays


def listed(rows: FloatArray, share: float = COMMON_COLUMN_SHARE) -> InvertedLists:
    indptr, indices, values = parts(rows)
    holders = np.bincount(indices, minlength=rows.shape[1])
    common = holders > share * len(rows)
    starts = np.concatenate(([0], np.cumsum(np.where(common, 0, holders))))
    ends = np.where(common, -1, starts[:-1])
    list_rows, list_values = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    lengths = np.empty(len(rows), np.float32)
    for row in range(len(rows)):
        first, last = indptr[row], indptr[row + 1]
        alone = (np.array([0, last - first]), indices[first:last], values[first:last])
        inverted_lists.fill_lists(*alone, row, ends, list_rows, list_values, lengths[row : row + 1])
    return InvertedLists(starts, list_rows, list_values, lengths)


@given(seed=seeds, count=counts, dims=st.integers(1, 30), share=st.sampled_from([0.0, 0.2, 1.0]))
def test_lists_hold_the_rows_and_values_of_rare_columns(
    seed: int, count: int, dims: int, share: float
) -> None:
    rows = drawn(seed, count, dims, 2)
    starts, list_rows, list_values, lengths = listed(rows, share)
    expected, least = kernels.rare_lists(rows, share)
    for column, entries in enumerate(expected):
        span = slice(starts[column], starts[column + 1])
        pairs = zip(list_rows[span].tolist(), list_values[span].tolist(), strict=True)
        assert list(pairs) == entries
    assert (lengths >= least).all()
    assert lengths == pytest.approx(least, rel=1e-5)


@given(
    seed=seeds,
    count=counts,
    dims=st.integers(1, 30),
    spread=st.sampled_from([0.0, 2.0, -30.0]),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    n_nearest=st.integers(1, 300),
    product=st.booleans(),
    has_marks=st.booleans(),
)
def test_lists_exclude_none_of_the_nearest(  # noqa: PLR0917  # one for each property that varies
    seed: int,
    count: int,
    dims: int,
    spread: float,
    share: float,
    n_nearest: int,
    product: bool,
    has_marks: bool,
) -> None:
    rows, n_nearest = drawn(seed, count, dims, spread), min(n_nearest, count)
    target = drawn(seed + 1, 4, dims, 0)[:1]
    squares = np.empty(count)
    normalise.squares_sparse(*(parts(rows)[i] for i in (0, 2)), squares)
    arrays = (target[:0], *parts(rows), squares, np.empty(0, np.float32))
    points = Points(*arrays)
    _, columns, values = parts(target)
    marks = np.zeros(-(-dims // 64) if has_marks else 0, np.uint64)
    selection = SelectionScratch(target[0], target[0], np.zeros((1, dims), np.float32), marks)
    spread_out(columns, values, 0, len(columns), selection)
    square = sparse_square(columns, values, 0, len(columns), dims)
    query = Query(selection.dense, 0, square, product)
    lists = listed(rows, share)
    guesses, sums = np.empty((2, count), np.float32)
    inverted_lists.add_lists(squares, lists, columns, values, query, guesses, sums)
    truth = np.empty(count, np.float32)
    exact.score_all(points, query, truth)
    assert (sums <= truth).all()
    twin = np.array(kernels.least_distances(rows, target[0], share, product=product))
    long = float(np.abs(rows).sum(axis=1).max() + np.abs(target).sum()) ** 2
    assert np.abs(sums - twin).max() <= 1e-4 * long + 1e-40
    near_rows, far = np.full(count, -1, np.int32), np.full(count, np.nan, np.float32)
    n_scored = inverted_lists.score_listed(
        points,
        lists,
        columns,
        values,
        query,
        n_nearest,
        selection,
        Candidates(near_rows, far),
        sums,
    )
    assert n_nearest <= n_scored <= count
    assert len(set(near_rows[:n_scored].tolist())) == n_scored
    assert far[:n_scored].tobytes() == truth[near_rows[:n_scored]].tobytes()
    near = np.flatnonzero(truth <= np.sort(truth)[n_nearest - 1])
    assert set(near.tolist()) <= set(near_rows[:n_scored].tolist())


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
@pytest.mark.parametrize("selector", ["nearest", "greedy"])
@pytest.mark.parametrize("collapse", [False, True])
def test_exact_search_by_lists_equals_search_over_all_rows(
    metric: Metric, selector: str, collapse: bool
) -> None:
    rows = drawn(3, 2_000, 400, 0.5)[: 2_000 // 2]
    index = Index.build(sparse.csr_array(rows), metric=metric)
    queries = sparse.csr_array(drawn(4, 8, 400, 0)[:3] * (np.arange(400) > 20))
    options: dict[str, Any] = {"search": "exact", "selector": selector, "k": 5}
    if collapse:
        # The pool may grow to four times candidates_limit, the largest number that lists serve.
        options |= {"duplicate_threshold": NEAR[metric], "candidates_limit": 8}
    else:
        options |= {"keep_duplicates": True, "candidates_limit": 30}
    by_lists = index.query(queries, **options)
    lists = {slot.name for slot in slots_of(InvertedLists)}
    arrays = {name: array for name, array in index.engine._arrays.items() if name not in lists}
    by_rows = Index(Engine(Generation(index.engine.manifest, arrays))).query(queries, **options)
    assert by_lists.ids.tobytes() == by_rows.ids.tobytes()
    assert by_lists.scores.tobytes() == by_rows.scores.tobytes()
    assert by_lists.selection_scores.tobytes() == by_rows.selection_scores.tobytes()
    assert (by_rows.stats.points_scored == 1_000).all()
    assert (by_lists.stats.points_scored < 1_000).all()
    for column in ("candidates", "collapsed", "duplicates"):
        list_counts, row_counts = getattr(by_lists.stats, column), getattr(by_rows.stats, column)
        assert list_counts.tolist() == row_counts.tolist()
    assert by_lists.stats.collapsed.any() == collapse


def test_queries_with_common_columns_scan_all_rows() -> None:
    rows = drawn(5, 1_000, 50, 0)
    index = Index.build(sparse.csr_array(rows[:500]))
    result = index.query(sparse.csr_array(np.ones((1, 50))), search="exact", candidates_limit=30)
    assert result.stats.points_scored.tolist() == [500]


def test_no_lists_are_stored_above_the_maximum_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sparse.csr_array(drawn(6, 300, 60, 0)[:100])
    assert "posting_rows" in Index.build(rows).engine._arrays
    monkeypatch.setattr(encoder, "LISTED_ROWS_MAX", 99)
    index = Index.build(rows)
    assert not {"posting_starts", "posting_rows", "posting_values"} & index.engine._arrays.keys()
    result = index.query(rows[:2], search="exact", candidates_limit=10)
    assert result.ids[:, 0].tolist() == [0, 1]
    assert result.stats.points_scored.tolist() == [100, 100]
