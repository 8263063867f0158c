"""Lengths and normalisation of rows, dense and sparse, and checks of sparse rows."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.kernels import normalise
from divgrpc.types import FloatArray, Points
from reference import definitions
from support.data.mixed_indexes import KINDS, every_kind

DIMS = [1, 2, 15, 16, 17, 31, 33, 256]
every_width = pytest.mark.parametrize("dims", DIMS)
seeds = st.integers(0, 2**32 - 1)


def normal(rows: int, dims: int, seed: int, share: float = 1.0) -> FloatArray:
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((rows, dims)) * (rng.random((rows, dims)) < share)
    return drawn.astype(np.float32)


def normalised(rows: FloatArray, kind: Points) -> tuple[tuple[int, int], FloatArray]:
    """Run the kernel; return the first row that is not finite, the first zero row, and all rows."""
    if kind == "dense":
        after = rows.copy()
        return normalise.normalise(after), after
    matrix = sparse.csr_array(rows)
    told = normalise.normalise_sparse(matrix.indptr.astype(np.int64), matrix.data)
    return told, matrix.toarray()


@given(
    seed=seeds,
    dims=st.sampled_from(DIMS),
    scale=st.integers(-37, 37),
    share=st.sampled_from([0.6, 1.0]),
    kind=st.sampled_from(KINDS),
)
def test_rows_are_scaled_to_unit_length(
    seed: int, dims: int, scale: int, share: float, kind: Points
) -> None:
    rows = normal(5, dims, seed, share) * np.float32(10.0**scale)
    full = rows.any(axis=1)
    told, after = normalised(rows, kind)
    assert told == (-1, -1 if full.all() else int(np.argmin(full)))
    # Below 1e-38, float32 has fewer digits, so the input rows themselves are less accurate.
    assert np.abs(after[full] - definitions.unit(rows[full])).max(initial=0) < 3e-7
    assert not after[~full].any()


@every_kind
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@every_width
def test_the_first_row_that_is_not_finite_and_the_first_zero_row_are_returned(
    dims: int, bad: float, kind: Points
) -> None:
    for at in {0, dims // 2, dims - 1}:
        rows = normal(8, dims, 4)
        rows[[2, 5]] = 0
        rows[[3, 7], at] = bad
        told, after = normalised(rows, kind)
        assert told == (3, 2)
        assert (after[[2, 5]] == 0).all()


def test_zero_rows_and_rows_that_are_not_finite_stay_unchanged() -> None:
    """Rows that store nothing, or only zeros, count as zero rows."""
    indptr = np.array([0, 2, 2, 4, 6, 8, 9], np.int64)
    values = np.array([1, 2, 0, -0.0, 3, np.nan, np.inf, 1, 5], np.float32)
    assert normalise.normalise_sparse(indptr, values) == (3, 1)
    assert values[2:4].tobytes() == np.array([0, -0.0], np.float32).tobytes()
    assert (values[4], values[8]) == (3, 1)


@every_kind
@pytest.mark.parametrize("value", [1e-45, 1e-38, 3.4e38])
@every_width
def test_the_smallest_and_largest_float32_values_are_normalised(
    dims: int, value: float, kind: Points
) -> None:
    told, after = normalised(np.full((1, dims), value, np.float32), kind)
    assert told == (-1, -1)
    assert np.abs(after * np.sqrt(dims) - 1).max() < 1e-6


@given(seed=seeds, dims=st.integers(1, 70), scale=st.integers(-15, 17))
def test_lengths_agree_with_the_definition(seed: int, dims: int, scale: int) -> None:
    rows = normal(4, dims, seed, 0.3) * np.float32(10.0**scale)
    matrix = sparse.csr_array(rows)
    indptr = matrix.indptr.astype(np.int64)
    truth = np.array([definitions.dot(row, row) for row in rows])
    lengths, squares = np.empty((2, 4), np.float32), np.empty(4, np.float64)
    normalise.lengths(rows, lengths[0])
    normalise.lengths_sparse(indptr, matrix.data, lengths[1])
    normalise.squares_sparse(indptr, matrix.data, squares)
    assert (np.abs(lengths - np.sqrt(truth)) <= 1e-6 * np.sqrt(truth)).all()
    assert (np.abs(squares - truth) <= 1e-14 * truth).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e19])
def test_lengths_that_overflow_when_squared_are_not_finite(value: float) -> None:
    rows, lengths = np.array([[1, 0], [value, 0]], np.float32), np.empty(2, np.float32)
    normalise.lengths(rows, lengths)
    assert np.isfinite(lengths).tolist() == [True, False]
    normalise.lengths_sparse(np.array([0, 2, 4]), rows.ravel(), lengths)
    assert np.isfinite(lengths).tolist() == [True, False]


def fault_of(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32], dims: int) -> int:
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
def test_check_sparse_agrees_with_the_reference(
    seed: int, dims: int, rows: int, spoiled: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = sparse.csr_array(normal(rows, dims, seed, 0.5))
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    assert normalise.check_sparse(indptr, indices, dims) == normalise.NO_FAULT
    for _ in range(spoiled):
        indptr[rng.integers(len(indptr))] += rng.integers(-2, 3)
        if len(indices):
            indices[rng.integers(len(indices))] += rng.integers(-3, 4)
    assert normalise.check_sparse(indptr, indices, dims) == fault_of(indptr, indices, dims)


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31), 12])
def test_check_sparse_reads_nothing_out_of_bounds(number: int) -> None:
    indices = np.array([0, number], np.int32)
    assert normalise.check_sparse(np.array([0, 2]), indices, 12) == normalise.BAD_RANGE
    for end in (number * 2**31, 3):
        indptr = np.array([0, end, 2])
        found = normalise.check_sparse(indptr, np.array([0, 1], np.int32), 12)
        assert found == normalise.BAD_INDPTR
