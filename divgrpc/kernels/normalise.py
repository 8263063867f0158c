"""Measures and normalises rows; the result of a row does not depend on other rows."""

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.vector_sums import row_dot


@kernel
def normalise(matrix):
    """Scale each row of `matrix` (n, d) float32 to unit length, in place.

    Returns two row numbers: the first row that is not finite, and the first row of zeros. If no
    such row exists, -1 is returned in its place. Rows that are not finite and rows of zeros are not
    changed. A row is first divided by its largest absolute value, so that squares of numbers such
    as 1e30 or 1e-30 neither overflow nor underflow float32.
    """
    first_bad, first_zero = -1, -1
    for row in range(matrix.shape[0]):
        largest, finite = normalise_row(matrix, row)
        if not finite:
            first_bad = row if first_bad < 0 else first_bad
        elif largest == 0:
            first_zero = row if first_zero < 0 else first_zero
    return first_bad, first_zero


@kernel
def normalise_row(matrix, row):
    """Do what `normalise` does for one row.

    Returns the largest absolute value of the row, and whether all its values are finite.
    """
    largest, finite = _largest(matrix[row])
    if finite and largest > 0:
        _divide(matrix[row], largest)
        _divide(matrix[row], np.sqrt(row_dot(matrix, row, matrix, row)))
    return largest, finite


@kernel
def normalise_sparse(indptr, values):
    """Scale sparse rows (`indptr` int64, `values` float32) to unit length as `normalise` does.

    The squares of a row are added in float64, from first to last.
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
def squares_sparse(indptr, values, result):
    """Write the squared length of each sparse row into `result` (n,) float64."""
    for row in range(result.shape[0]):
        result[row] = _square(values[indptr[row] : indptr[row + 1]])


@kernel
def _largest(values):
    """Return the largest absolute value, and whether all values are finite.

    Without their sign bits, floats read as integers sort as the absolute values do, with inf and
    nan last. The maximum of integers compiles to vector instructions.
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
