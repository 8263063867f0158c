"""Rounds the values of sparse points to whole numbers of steps; each column has a step."""

import math

import numpy as np

from divgrpc.kernels.jit import kernel

# A value is stored as a number of steps from -STEPS_MAX to STEPS_MAX.
STEPS_MAX = 127
# A length is multiplied by this number, so that its float32 value is not below the true length.
LENGTH_ROUND_UP = 1.000001
# The smallest float32 above 0, rounded up. It is added to lengths that could underflow.
_FLOAT32_LEAST = 1.5e-45


@kernel
def steps_of(value, step):
    """Return the float64 number of steps nearest to a value: a whole number up to STEPS_MAX."""
    if not step:
        return 0.0
    count = np.rint(np.float64(value) / np.float64(step))
    return min(max(count, -float(STEPS_MAX)), float(STEPS_MAX))


@kernel
def measure_rounding(indptr, indices, values, columns, full_lengths, errors):
    """Write the lengths of the rounding errors and of the values in full columns of m sparse rows.

    `full_lengths` and `errors` (m,) float32 are to be written, rounded up. `columns`: the steps
    (d,) float32 and the full columns (d,) int32, as in `InvertedLists`.
    """
    steps, full_columns = columns
    for row in range(indptr.shape[0] - 1):
        square, full_square = 0.0, 0.0
        for i in range(indptr[row], indptr[row + 1]):
            step = steps[indices[i]]
            error = np.float64(values[i]) - np.float64(step) * steps_of(values[i], step)
            square += error * error
            if full_columns[indices[i]] >= 0:
                full_square += np.float64(values[i]) * np.float64(values[i])
        errors[row] = math.sqrt(square) * LENGTH_ROUND_UP + _FLOAT32_LEAST
        full_lengths[row] = math.sqrt(full_square) * LENGTH_ROUND_UP + _FLOAT32_LEAST
