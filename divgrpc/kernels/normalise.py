"""Checks of rows, their lengths, and unit rows: a row gives the same bytes alone and in a batch."""

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.vector_sums import row_dot

# Faults of compressed sparse rows.
NO_FAULT = 0
BAD_INDPTR = 1
BAD_ORDER = 2
BAD_RANGE = 3


@kernel
def normalise(matrix):
    """Scale each row of `matrix` (n, d) float32 to unit length, in place.

    Returns the first row that is not finite and the first row of zeros, -1 for none; those rows
    stay as they are. A row is divided by its largest entry first, so that the squares of neither
    1e30 nor 1e-30 leave the range of float32.
    """
    first_bad, first_zero = -1, -1
    for row in range(matrix.shape[0]):
        largest, finite = _largest(matrix[row])
        if not finite:
            first_bad = row if first_bad < 0 else first_bad
        elif largest == 0:
            first_zero = row if first_zero < 0 else first_zero
        else:
            _divide(matrix[row], largest)
            _divide(matrix[row], np.sqrt(row_dot(matrix, row, matrix, row)))
    return first_bad, first_zero


@kernel
def normalise_sparse(indptr, values):
    """Do what `normalise` does, to sparse rows: `indptr` (n + 1,) int64, `values` float32.

    The squares of a row are added in float64, first to last.
    """
    first_bad, first_zero = -1, -1
    for row in range(indptr.shape[0] - 1):
        part = values[indptr[row] : indptr[row + 1]]
        largest, finite = _largest(part)
        if not finite:
            first_bad = row if first_bad < 0 else first_bad
        elif largest == 0:
            first_zero = row if first_zero < 0 else first_zero
        else:
            _divide(part, largest)
            _divide(part, np.float32(np.sqrt(_square(part))))
    return first_bad, first_zero


@kernel
def lengths(matrix, result):
    """Write the length of each row of `matrix` (n, d) float32 into `result` (n,) float32."""
    for row in range(matrix.shape[0]):
        result[row] = np.sqrt(row_dot(matrix, row, matrix, row))


@kernel
def lengths_sparse(indptr, values, result):
    """Write the length of each sparse row into `result` (n,) float32; inf or nan if not finite."""
    for row in range(result.shape[0]):
        square = np.float32(_square(values[indptr[row] : indptr[row + 1]]))
        result[row] = np.sqrt(square)


@kernel
def squares_sparse(indptr, values, result):
    """Write the squared length of each sparse row into `result` (n,) float64."""
    for row in range(result.shape[0]):
        result[row] = _square(values[indptr[row] : indptr[row + 1]])


@kernel
def check_sparse(indptr, indices, dims):
    """Return the fault of compressed sparse rows of `dims` columns, or NO_FAULT.

    `indptr` (n + 1,) int64 ends at the length of `indices` int32; the caller has checked that.
    """
    if indptr[0] != 0:
        return BAD_INDPTR
    for row in range(indptr.shape[0] - 1):
        if indptr[row + 1] < indptr[row] or indptr[row + 1] > indices.shape[0]:
            return BAD_INDPTR
        before = -1
        for i in range(indptr[row], indptr[row + 1]):
            if indices[i] < 0 or indices[i] >= dims:
                return BAD_RANGE
            if indices[i] <= before:
                return BAD_ORDER
            before = indices[i]
    return NO_FAULT


@kernel
def _largest(values):
    """Return the largest absolute value, and whether all are finite.

    The bits of floats without their signs, read as integers, are in the order of the floats; inf
    and nan are above all others. A maximum of integers compiles to vector instructions.
    """
    largest = np.int32(0)
    for j in range(values.shape[0]):
        largest = max(largest, np.float32(values[j]).view(np.int32) & np.int32(0x7FFFFFFF))
    return np.int32(largest).view(np.float32), largest < np.int32(0x7F800000)


@kernel
def _divide(values, divisor):
    for j in range(values.shape[0]):
        values[j] /= divisor


@kernel
def _square(values):
    total = 0.0
    for j in range(values.shape[0]):
        total += np.float64(values[j]) * np.float64(values[j])
    return total
