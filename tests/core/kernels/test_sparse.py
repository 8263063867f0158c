"""Sparse rows: products in a fixed order, lengths, and rows scattered into dense memory."""

import numba
import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.kernels import exact, normalise, sparse, vector_sums
from divgrpc.kernels.records import Points, Query, SelectionScratch
from divgrpc.types import FloatArray
from reference import definitions, kernels

seeds = st.integers(0, 2**32 - 1)
Indptr = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Rows = tuple[Indptr, Indices, FloatArray]


@numba.njit
def gathered_dot(*arguments):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN201
    """Call the numba intrinsic, which only compiled functions can call."""
    return vector_sums.gathered_dot(*arguments)


def drawn(seed: int, rows: int, dims: int, share: float = 0.3) -> Rows:
    """Draw compressed sparse rows; `share` is the share of columns with a value."""
    rng = np.random.default_rng(seed)
    columns = [np.flatnonzero(rng.random(dims) < share) for _ in range(rows)]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in columns])))
    indices = np.concatenate([np.empty(0, np.int64), *columns])
    values = rng.standard_normal(len(indices)).astype(np.float32)
    return indptr.astype(np.int64), indices.astype(np.int32), values


def zeros(dims: int) -> SelectionScratch:
    no_values = np.empty(0, np.float32)
    marks = np.zeros(-(-dims // 64), np.uint64)
    return SelectionScratch(no_values, no_values, np.zeros((1, dims), np.float32), marks)


def made_dense(rows: Rows, dims: int) -> FloatArray:
    indptr, indices, values = rows
    matrix = np.zeros((len(indptr) - 1, dims), np.float32)
    for row in range(len(matrix)):
        for i in range(indptr[row], indptr[row + 1]):
            matrix[row, indices[i]] = values[i]
    return matrix


@given(seed=seeds, dims=st.integers(1, 200), share=st.floats(0, 1))
def test_gathered_dot_sums_in_the_documented_order(seed: int, dims: int, share: float) -> None:
    """Sixteen float64 sums take the values in turn, and are then folded in halves.

    The result is bitwise equal to the reference for any row and target.
    """
    indptr, indices, values = drawn(seed, 3, dims, share)
    targets = np.random.default_rng(seed + 1).standard_normal((2, dims)).astype(np.float32)
    for row in range(3):
        start, stop = int(indptr[row]), int(indptr[row + 1])
        dot = gathered_dot(indices, values, start, stop, start, targets, 1)
        part = slice(start, stop)
        assert dot == kernels.sparse_dot(indices[part], values[part], targets[1])


@given(seed=seeds, dims=st.integers(1, 60))
def test_gathered_dot_is_the_inner_product(seed: int, dims: int) -> None:
    """Products of float32 numbers are exact in float64, so only the sum is rounded."""
    rows = drawn(seed, 2, dims)
    targets = np.random.default_rng(seed + 1).standard_normal((1, dims)).astype(np.float32)
    truth = definitions.dot(made_dense(rows, dims)[1], targets[0])
    start, stop = int(rows[0][1]), int(rows[0][2])
    dot = gathered_dot(rows[1], rows[2], start, stop, start, targets, 0)
    assert abs(dot - truth) < 1e-13
    assert abs(sparse.dense_square(targets, 0) - definitions.dot(targets[0], targets[0])) < 1e-13


@given(seed=seeds, dims=st.integers(1, 200), share=st.floats(0, 1), query_share=st.floats(0, 1))
def test_skipping_unmarked_columns_changes_no_bit(
    seed: int, dims: int, share: float, query_share: float
) -> None:
    indptr, indices, values = drawn(seed, 5, dims, share)
    query = drawn(seed + 1, 1, dims, query_share)
    selection = zeros(dims)
    sparse.spread(query[1], query[2], 0, len(query[1]), selection)
    target, marks = selection.dense, selection.marks
    assert target.tolist() == made_dense(query, dims).tolist()
    sums = np.zeros(16)
    for row in range(5):
        part = slice(int(indptr[row]), int(indptr[row + 1]))
        dot = sparse.marked_dot(indices, values, part.start, part.stop, target, marks, sums)
        assert not sums.any()
        assert dot == kernels.sparse_dot(indices[part], values[part], target[0])
    square = sparse.sparse_square(query[1], query[2], 0, len(query[1]), dims)
    assert square == sparse.dense_square(target, 0) == kernels.dense_square(target[0])
    squares = np.empty(5)
    normalise.squares_sparse(indptr, values, squares)
    points = Points(target[:0], indptr, indices, values, squares, np.empty(0, np.float32))
    order = np.random.default_rng(seed).permutation(5)[:4].astype(np.int32)
    for product in (False, True):
        distances, truth = np.full((2, 5), 9, np.float32)
        same = Query(target, 0, square, product)
        exact.score_marked(points, same, marks, order, 4, distances)
        exact.score_rows(points, same, order, 4, truth)
        assert distances.tobytes() == truth.tobytes()
        exact.score_marked(points, same, marks, order, exact.ALL_POINTS, distances)
        exact.score_all(points, same, truth)
        assert distances.tobytes() == truth.tobytes()
    sparse.clear(query[1], 0, len(query[1]), selection)
    assert not marks.any()
    assert not target.any()
