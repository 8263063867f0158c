"""Points to their nearest centres: the loops of k-means and of a two-level partition.

A point is nearest to the centre with the largest product less half the centre's squared length;
ties go to the lower number. Library products would do for large matrices; these are many small
ones, for which a library starts and stops its threads.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel
from divgrpc.kernels.lanes import row_dot

# Coarse cells that a point may find its cell in: its nearest centre is seldom in a fifth.
_LOOKED = 4


@kernel
def assign(points, centres, halves, numbers):
    """Write the nearest of `centres` (c, m) for each of `points` (n, m) into `numbers` (n,) int32.

    All float32; `halves` (c,) are half the squared lengths of the centres.
    """
    for row in range(points.shape[0]):
        numbers[row] = _nearest(points, row, centres, halves, 0, centres.shape[0])[0]


@kernel
def assign_to_cells(points, coarse, starts, centres, halves, numbers):
    """Write each point's cell: the nearest of the centres of its _LOOKED nearest coarse cells.

    Cells starts[t]:starts[t + 1] belong to coarse cell t; `halves` are those of `coarse` (T, m),
    then of `centres` (C, m).
    """
    n_coarse = coarse.shape[0]
    gains = np.empty(n_coarse, np.float32)
    for row in range(points.shape[0]):
        for t in range(n_coarse):
            gains[t] = row_dot(coarse, t, points, row) - halves[t]
        best, most = -1, np.float32(-np.inf)
        for _ in range(min(_LOOKED, n_coarse)):
            top = np.argmax(gains)
            gains[top] = -np.inf
            first, last = starts[top], starts[top + 1]
            cell, gain = _nearest(points, row, centres, halves[n_coarse:], first, last)
            if best < 0 or gain > most:
                best, most = cell, gain
        numbers[row] = best


@kernel
def add_up(points, numbers, sums, sizes):
    """Add each point to the sum of its number: `sums` (c, m) float32 and `sizes` (c,) int64."""
    sums[:] = np.float32(0)
    sizes[:] = 0
    for row in range(points.shape[0]):
        total = sums[numbers[row]]
        for j in range(total.shape[0]):
            total[j] += points[row, j]
        sizes[numbers[row]] += 1


@kernel
def _nearest(points, row, centres, halves, first, last):
    best, most = first, np.float32(-np.inf)
    for c in range(first, last):
        gain = row_dot(centres, c, points, row) - halves[c]
        if gain > most:
            best, most = c, gain
    return best, most
