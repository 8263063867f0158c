"""Sparse rows: products in a fixed order, lengths, unit rows, and what is malformed."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.kernels import exact, normalise, sparse
from divgrpc.kernels.records import Points, Query, SelectionScratch
from divgrpc.types import FloatArray
from reference import definitions, kernels

seeds = st.integers(0, 2**32 - 1)
Indptr = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Rows = tuple[Indptr, Indices, FloatArray]


def drawn(seed: int, rows: int, dims: int, share: float = 0.3) -> Rows:
    """Draw compressed sparse rows that hold about this share of the columns."""
    rng = np.random.default_rng(seed)
    held = [np.flatnonzero(rng.random(dims) < share) for _ in range(rows)]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in held])))
    indices = np.concatenate([np.empty(0, np.int64), *held])
    values = rng.standard_normal(len(indices)).astype(np.float32)
    return indptr.astype(np.int64), indices.astype(np.int32), values


def zeros(dims: int) -> SelectionScratch:
    """Return memory over which one row is spread, with a mark per column."""
    nothing = np.empty(0, np.float32)
    marks = np.zeros(-(-dims // 64), np.uint64)
    return SelectionScratch(nothing, nothing, np.zeros((1, dims), np.float32), marks)


def made_dense(rows: Rows, dims: int) -> FloatArray:
    """Return the rows as a matrix, entry by entry."""
    indptr, indices, values = rows
    matrix = np.zeros((len(indptr) - 1, dims), np.float32)
    for row in range(len(matrix)):
        for i in range(indptr[row], indptr[row + 1]):
            matrix[row, indices[i]] = values[i]
    return matrix


# Products.


@given(seed=seeds, dims=st.integers(1, 200), share=st.floats(0, 1))
def test_sparse_dot_is_summed_in_the_order_that_is_said(seed: int, dims: int, share: float) -> None:
    """Sixteen float64 sums in turn, folded in halves: to the last bit, for any row and target."""
    indptr, indices, values = drawn(seed, 3, dims, share)
    targets = np.random.default_rng(seed + 1).standard_normal((2, dims)).astype(np.float32)
    for row in range(3):
        start, stop = int(indptr[row]), int(indptr[row + 1])
        found = sparse.sparse_dot(indices, values, start, stop, start, targets, 1)
        part = slice(start, stop)
        assert found == kernels.sparse_dot(indices[part], values[part], targets[1])


@given(seed=seeds, dims=st.integers(1, 60))
def test_sparse_dot_is_the_product(seed: int, dims: int) -> None:
    """Products of float32 are exact in float64, so nothing is lost but the last digits of a sum."""
    rows = drawn(seed, 2, dims)
    targets = np.random.default_rng(seed + 1).standard_normal((1, dims)).astype(np.float32)
    truth = definitions.dot(made_dense(rows, dims)[1], targets[0])
    start, stop = int(rows[0][1]), int(rows[0][2])
    found = sparse.sparse_dot(rows[1], rows[2], start, stop, start, targets, 0)
    assert abs(found - truth) < 1e-13
    assert abs(sparse.dense_square(targets, 0) - definitions.dot(targets[0], targets[0])) < 1e-13


@given(seed=seeds, dims=st.integers(1, 200), share=st.floats(0, 1), asked=st.floats(0, 1))
def test_columns_that_are_not_marked_change_no_bit(
    seed: int, dims: int, share: float, asked: float
) -> None:
    """Products, distances of some rows and of all, and a query's square: as without marks."""
    indptr, indices, values = drawn(seed, 5, dims, share)
    query = drawn(seed + 1, 1, dims, asked)
    selection = zeros(dims)
    sparse.spread(query[1], query[2], 0, len(query[1]), selection)
    target, marks = selection.dense, selection.marks
    assert target.tolist() == made_dense(query, dims).tolist()
    sums = np.zeros(16)
    for row in range(5):
        part = slice(int(indptr[row]), int(indptr[row + 1]))
        found = sparse.marked_dot(indices, values, part.start, part.stop, target, marks, sums)
        assert not sums.any()
        assert found == kernels.sparse_dot(indices[part], values[part], target[0])
    square = sparse.sparse_square(query[1], query[2], 0, len(query[1]), dims)
    assert square == sparse.dense_square(target, 0)
    squares = np.empty(5)
    normalise.squares_sparse(indptr, values, squares)
    points = Points(target[:0], indptr, indices, values, squares, np.empty(0, np.float32))
    order = np.random.default_rng(seed).permutation(5)[:4].astype(np.int32)
    for product in (False, True):
        found, truth = np.full((2, 5), 9, np.float32)
        same = Query(target, 0, square, product)
        exact.score_marked(points, same, marks, order, 4, found)
        exact.score_rows(points, same, order, 4, truth)
        assert found.tobytes() == truth.tobytes()
        exact.score_marked(points, same, marks, order, exact.ALL_POINTS, found)
        exact.score_all(points, same, truth)
        assert found.tobytes() == truth.tobytes()
    sparse.clear(query[1], 0, len(query[1]), selection)
    assert not marks.any()
    assert not target.any()


@given(seed=seeds, dims=st.integers(1, 60), share=st.floats(0, 1))
def test_a_sparse_query_is_as_long_as_the_dense_one(seed: int, dims: int, share: float) -> None:
    rows = drawn(seed, 4, dims, share)
    indptr, indices, values = rows
    matrix = made_dense(rows, dims)
    for row in range(4):
        found = sparse.sparse_square(indices, values, indptr[row], indptr[row + 1], dims)
        assert found == sparse.dense_square(matrix, row)
        assert found == kernels.dense_square(matrix[row])


@given(seed=seeds, dims=st.integers(1, 60), share=st.floats(0, 1))
def test_what_is_spread_is_cleared(seed: int, dims: int, share: float) -> None:
    rows = drawn(seed, 4, dims, share)
    indptr, indices, values = rows
    matrix, selection = made_dense(rows, dims), zeros(dims)
    for row in (2, 0, 3, 1):
        sparse.spread(indices, values, indptr[row], indptr[row + 1], selection)
        assert selection.dense[0].tolist() == matrix[row].tolist()
        sparse.clear(indices, indptr[row], indptr[row + 1], selection)
        assert not selection.dense.any()
        assert not selection.marks.any()


# Lengths and unit rows.


@given(seed=seeds, dims=st.integers(1, 60), scale=st.integers(-37, 37))
def test_normalise_sparse_gives_unit_rows(seed: int, dims: int, scale: int) -> None:
    indptr, indices, values = drawn(seed, 5, dims, 0.6)
    values *= np.float32(10.0**scale)
    before = made_dense((indptr, indices, values), dims)
    bad, zero = normalise.normalise_sparse(indptr, values)
    empty = np.flatnonzero(~before.any(axis=1))
    assert (bad, zero) == (-1, empty[0] if len(empty) else -1)
    after, full = made_dense((indptr, indices, values), dims), before.any(axis=1)
    assert np.abs(after[full] - definitions.unit(before[full])).max(initial=0) < 3e-7
    assert not after[~full].any()


def test_normalise_sparse_gives_a_row_the_same_bytes_in_any_company() -> None:
    indptr, _, values = drawn(3, 9, 50)
    together = values.copy()
    normalise.normalise_sparse(indptr, together)
    for row in range(9):
        part = slice(int(indptr[row]), int(indptr[row + 1]))
        alone = values[part].copy()
        normalise.normalise_sparse(np.array([0, len(alone)]), alone)
        assert alone.tobytes() == together[part].tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_normalise_sparse_names_the_first_bad_row_and_the_first_of_zeros(bad: float) -> None:
    """Rows that store nothing, or only zeros, have no direction; they and bad ones stay as is."""
    indptr = np.array([0, 2, 2, 4, 6, 8, 9], np.int64)
    values = np.array([1, 2, 0, -0.0, 3, bad, bad, 1, 5], np.float32)
    assert normalise.normalise_sparse(indptr, values) == (3, 1)
    assert values[2:4].tobytes() == np.array([0, -0.0], np.float32).tobytes()
    assert (values[4], values[8]) == (3, 1)


@given(seed=seeds, dims=st.integers(1, 70), scale=st.integers(-15, 17))
def test_lengths_are_those_of_the_rows(seed: int, dims: int, scale: int) -> None:
    """Dense or sparse, float32; squared lengths of sparse rows in float64."""
    indptr, indices, values = drawn(seed, 4, dims)
    values *= np.float32(10.0**scale)
    matrix = made_dense((indptr, indices, values), dims)
    truth = np.array([definitions.dot(row, row) for row in matrix])
    of_dense, of_sparse = np.empty(4, np.float32), np.empty(4, np.float32)
    squares = np.empty(4, np.float64)
    normalise.lengths(matrix, of_dense)
    normalise.lengths_sparse(indptr, values, of_sparse)
    normalise.squares_sparse(indptr, values, squares)
    assert (np.abs(of_dense - np.sqrt(truth)) <= 1e-6 * np.sqrt(truth)).all()
    assert (np.abs(of_sparse - np.sqrt(truth)) <= 1e-6 * np.sqrt(truth)).all()
    assert (np.abs(squares - truth) <= 1e-14 * truth).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e19])
def test_a_length_whose_square_float32_cannot_hold_is_not_finite(value: float) -> None:
    """Dense and sparse alike: that is how rows too long, or not finite, are found."""
    rows = np.array([[1, 0], [value, 0]], np.float32)
    found = np.empty(2, np.float32)
    normalise.lengths(rows, found)
    assert np.isfinite(found).tolist() == [True, False]
    normalise.lengths_sparse(np.array([0, 2, 4]), rows.ravel(), found)
    assert np.isfinite(found).tolist() == [True, False]


# What is malformed.


def fault_of(indptr: Indptr, indices: Indices, dims: int) -> int:
    """Return the first fault in the order of reading."""
    if indptr[0] != 0:
        return normalise.BAD_INDPTR
    for start, stop in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        if not start <= stop <= len(indices):
            return normalise.BAD_INDPTR
        row = indices[start:stop].tolist()
        for at, index in enumerate(row):
            if not 0 <= index < dims:
                return normalise.BAD_RANGE
            if at and index <= row[at - 1]:
                return normalise.BAD_ORDER
    return normalise.NO_FAULT


@settings(max_examples=400)
@given(seed=seeds, dims=st.integers(1, 12), rows=st.integers(0, 6), spoiled=st.integers(0, 2))
def test_check_sparse_finds_what_its_twin_finds(
    seed: int, dims: int, rows: int, spoiled: int
) -> None:
    rng = np.random.default_rng(seed)
    indptr, indices, _ = drawn(seed, rows, dims, 0.5)
    assert normalise.check_sparse(indptr, indices, dims) == normalise.NO_FAULT
    for _ in range(spoiled):
        indptr[rng.integers(len(indptr))] += rng.integers(-2, 3)
        if len(indices):
            indices[rng.integers(len(indices))] += rng.integers(-3, 4)
    assert normalise.check_sparse(indptr, indices, dims) == fault_of(indptr, indices, dims)


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31), 12])
def test_check_sparse_reads_nothing_that_is_not_there(number: int) -> None:
    indices = np.array([0, number], np.int32)
    assert normalise.check_sparse(np.array([0, 2]), indices, 12) == normalise.BAD_RANGE
    for end in (number * 2**31, 3):
        indptr = np.array([0, end, 2])
        found = normalise.check_sparse(indptr, np.array([0, 1], np.int32), 12)
        assert found == normalise.BAD_INDPTR
