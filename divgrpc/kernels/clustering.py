"""Points to their nearest centres: the loops of k-means and of a two-level partition.

A point is nearest to the centre with the largest product less half the centre's squared length;
ties go to the lower number. Library products would do for large matrices; these are many small
ones, for which a library starts and stops its threads.
"""

import numpy as np

from divgrpc.kernels.compiling import allocating, kernel
from divgrpc.kernels.lanes import row_dot, row_dots

# Coarse cells that a point may find its cell in: more of them bring little and take time.
_LOOKED = 3


@kernel
def assign(points, centres, halves, numbers):
    """Write the nearest of `centres` (c, m) for each of `points` (n, m) into `numbers` (n,) int32.

    All float32; `halves` (c,) are half the squared lengths of the centres.
    """
    for row in range(points.shape[0]):
        numbers[row] = _nearest(points, row, centres, halves, 0, centres.shape[0])[0]


@allocating
def assign_to_cells(points, coarse, starts, centres, halves, numbers):
    """Write each point's cell: the nearest of the centres of its _LOOKED nearest coarse cells.

    Cells starts[t]:starts[t + 1] belong to coarse cell t; `halves` are those of `coarse` (T, m),
    then of `centres` (C, m). Ties go to the cell of the nearer coarse one.
    """
    n_coarse = coarse.shape[0]
    tops = np.empty(_LOOKED, np.int64)
    for row in range(points.shape[0]):
        looked = _several_nearest(points, row, coarse, halves, tops)
        best, most = starts[tops[0]], np.float32(-np.inf)
        for top in tops[:looked]:
            first, last = starts[top], starts[top + 1]
            cell, gain = _nearest(points, row, centres, halves[n_coarse:], first, last)
            if gain > most:
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


@allocating
def _several_nearest(points, row, centres, halves, numbers):
    """Write the nearest centres into `numbers` int64, in order, as many as it takes or there are.

    Returns how many.
    """
    wanted = min(numbers.shape[0], centres.shape[0])
    gains = np.full(wanted, np.float32(-np.inf))
    numbers[:] = 0
    for c in range(centres.shape[0]):
        gain = row_dot(centres, c, points, row) - halves[c]
        if gain > gains[wanted - 1]:
            at = wanted - 1
            while at > 0 and gain > gains[at - 1]:
                numbers[at], gains[at] = numbers[at - 1], gains[at - 1]
                at -= 1
            numbers[at], gains[at] = c, gain
    return wanted


@kernel
def _nearest(points, row, centres, halves, first, last):
    best, most = first, np.float32(-np.inf)
    c = first
    while c + 4 <= last:
        dots = row_dots(centres, (c, c + 1, c + 2, c + 3), points, row)
        for i in range(4):
            gain = dots[i] - halves[c + i]
            if gain > most:
                best, most = c + i, gain
        c += 4
    while c < last:
        gain = row_dot(centres, c, points, row) - halves[c]
        if gain > most:
            best, most = c, gain
        c += 1
    return best, most
