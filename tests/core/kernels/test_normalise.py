"""Lengths and normalisation of rows, dense and sparse, and checks of sparse rows."""

from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc.kernels import normalise
from divgrpc.types import FloatArray, Points
from divgrpc.vectors import SparseRows, as_rows, lengths
from reference import definitions
from support.data.mixed_indexes import KINDS, every_kind

DIMS = [1, 2, 15, 16, 17, 31, 33, 256]
every_width = pytest.mark.parametrize("dims", DIMS)
seeds = st.integers(0, 2**32 - 1)


def normal(rows: int, dims: int, seed: int, share: float = 1.0) -> FloatArray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, dims)) * (rng.random((rows, dims)) < share)
    return values.astype(np.float32)


def normalised(rows: FloatArray, kind: Points) -> tuple[tuple[int, int], FloatArray]:
    """Run the kernel; return the first row that is not finite, the first zero row, and all rows."""
    if kind == "dense":
        after = rows.copy()
        return normalise.normalise(after), after
    matrix = sparse.csr_array(rows)
    first_rows = normalise.normalise_sparse(matrix.indptr.astype(np.int64), matrix.data)
    return first_rows, matrix.toarray()


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
    first_rows, after = normalised(rows, kind)
    assert first_rows == (-1, -1 if full.all() else int(np.argmin(full)))
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
        first_rows, after = normalised(rows, kind)
        assert first_rows == (3, 2)
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
    first_rows, after = normalised(np.full((1, dims), value, np.float32), kind)
    assert first_rows == (-1, -1)
    assert np.abs(after * np.sqrt(dims) - 1).max() < 1e-6


@given(seed=seeds, dims=st.integers(1, 70), scale=st.integers(-15, 17))
def test_lengths_agree_with_the_definition(seed: int, dims: int, scale: int) -> None:
    rows = normal(4, dims, seed, 0.3) * np.float32(10.0**scale)
    matrix = sparse.csr_array(rows)
    indptr = matrix.indptr.astype(np.int64)
    truth = np.array([definitions.dot(row, row) for row in rows])
    squares = np.empty(4, np.float64)
    normalise.squares_sparse(indptr, matrix.data, squares)
    for kind in (rows, SparseRows.of(matrix)):
        assert (np.abs(lengths(kind) - np.sqrt(truth)) <= 1e-6 * np.sqrt(truth)).all()
    assert (np.abs(squares - truth) <= 1e-14 * truth).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e19])
def test_lengths_that_overflow_when_squared_are_not_finite(value: float) -> None:
    """Rows that are too long or not finite are detected by their lengths, dense and sparse."""
    rows = np.array([[1, 0], [value, 0]], np.float32)
    for kind in (rows, SparseRows.of(sparse.csr_array(rows))):
        assert np.isfinite(lengths(kind)).tolist() == [True, False]


# Malformed sparse rows.


def rule_broken(indptr: list[int], indices: list[int], dims: int) -> str:
    """Return the first words of the rule that a matrix breaks, or "" if it is well formed."""
    starts, stops = [0, *indptr[1:]], [*indptr[1:], len(indices)]
    if indptr[0] != 0 or any(a > b for a, b in zip(starts, stops, strict=True)):
        return "must begin at 0"
    if indptr[-1] != len(indices):
        return "must begin at 0"
    if any(not 0 <= index < dims for index in indices):
        return "must be from 0"
    rows = [indices[start:stop] for start, stop in pairwise(indptr)]
    return "" if all(row == sorted(set(row)) for row in rows) else "must be strictly increasing"


def assert_checked(indptr: list[int], indices: list[int], dims: int) -> None:
    """Check that `as_rows` accepts well-formed rows only, and names the broken rule."""
    values = np.ones(len(indices), np.float32)
    rows = SparseRows(np.array(indptr, np.int64), np.array(indices, np.int64), values, dims)
    rule = rule_broken(indptr, indices, dims)
    with pytest.raises(InvalidArgumentError, match=rule) if rule else nullcontext():
        as_rows("rows", rows, dims)


@settings(max_examples=400)
@given(seed=seeds, dims=st.integers(1, 12), rows=st.integers(0, 6), n_changes=st.integers(0, 2))
def test_malformed_sparse_rows_are_refused(seed: int, dims: int, rows: int, n_changes: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = sparse.csr_array(normal(rows, dims, seed, 0.5))
    indptr, indices = matrix.indptr.tolist(), matrix.indices.tolist()
    assert_checked(indptr, indices, dims)
    for _ in range(n_changes):
        indptr[rng.integers(len(indptr))] += int(rng.integers(-2, 3))
        if len(indices):
            indices[rng.integers(len(indices))] += int(rng.integers(-3, 4))
    assert_checked(indptr, indices, dims)


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31), 2**32, 12])
def test_huge_numbers_in_sparse_rows_are_refused(number: int) -> None:
    assert_checked([0, 2], [0, number], 12)
    assert_checked([0, number * 2**30, 2], [0, 1], 12)
