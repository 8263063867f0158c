"""Vectors to unit vectors, the same bytes for a row alone and in a batch."""

import numpy as np

from divgrpc.kernels.compiling import kernel
from divgrpc.kernels.lanes import row_dot


@kernel
def normalise(matrix):
    """Scale each row of `matrix` (n, d) float32 to unit length, in place.

    Returns (first row that is not finite, first row of zeros), -1 where there is none; those rows
    are left as they are. A row is divided by its largest entry first, so that the squares of
    neither 1e30 nor 1e-30 leave the range of float32.
    """
    first_bad, first_zero = -1, -1
    for row in range(matrix.shape[0]):
        values = matrix[row]
        largest, finite = np.float32(0), True
        for j in range(values.shape[0]):
            size = abs(values[j])
            finite &= size < np.float32(np.inf)
            largest = max(largest, size)
        if not finite:
            first_bad = row if first_bad < 0 else first_bad
        elif largest == 0:
            first_zero = row if first_zero < 0 else first_zero
        else:
            for j in range(values.shape[0]):
                values[j] /= largest
            length = np.sqrt(row_dot(matrix, row, matrix, row))
            for j in range(values.shape[0]):
                values[j] /= length
    return first_bad, first_zero
