"""Loops that assign points to their nearest centres, for k-means and two-level partitions.

The gain of a centre is its dot product with a point minus half the squared length of the centre.
The centre of greatest gain is the nearest. The caller computes the matrix of products with a
library, with a row for each centre and a column for each point, so that the loops over points need
no branches and compile to vector instructions.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel

# The cell of a point is searched for in its COARSE_CELLS nearest coarse cells. A greater number
# would take longer and change few assignments.
COARSE_CELLS = 3


@kernel
def take_nearest(products, halves, first, numbers, gains):
    """Update the nearest centre of each point with c more centres, numbered from `first`.

    `products` (c, n) float32; `halves` (c,) float32: half the squared lengths of the centres;
    `numbers` (n,) int32 and `gains` (n,) float32: number and gain of the nearest centre so far. The
    caller initialises `gains` to -inf. Ties go to the earlier centre.
    """
    for c in range(products.shape[0]):
        half, number = halves[c], np.int32(first + c)
        for point in range(products.shape[1]):
            gain = products[c, point] - half
            nearer = gain > gains[point]
            numbers[point] = number if nearer else numbers[point]
            gains[point] = gain if nearer else gains[point]


@kernel
def take_several(products, halves, numbers, gains):
    """Find the COARSE_CELLS nearest centres of each point, nearest first.

    The numbers and gains of these centres are written into `numbers` int32 and `gains` float32,
    both (COARSE_CELLS, n). The caller initialises `numbers` to -1 and `gains` to -inf. If there are
    fewer centres, the last rows of both stay unchanged. The other arguments are as for
    `take_nearest`.
    """
    for c in range(products.shape[0]):
        for point in range(products.shape[1]):
            number, gain, nearer = np.int32(c), products[c, point] - halves[c], False
            for place in range(COARSE_CELLS):
                centre, least = numbers[place, point], gains[place, point]
                # A centre that is less near than the new centre moves down by one place.
                nearer = nearer or gain > least
                numbers[place, point] = number if nearer else centre
                gains[place, point] = gain if nearer else least
                number = centre if nearer else number
                gain = least if nearer else gain


@allocating
def group(numbers, count):
    """Group points by cell, or by bucket of a hash table; return (starts, points).

    Column i of `numbers` (l, n) int32 holds the cells of point i; numbers below 0 are ignored. For
    t from 0 to count - 1, the points of cell t are points[starts[t] : starts[t + 1]], ascending if
    l is 1. `starts` is (count + 1,) int64, `points` int32.
    """
    starts = np.zeros(count + 1, np.int64)
    for number in numbers.flat:
        if number >= 0:
            starts[number + 1] += 1
    for number in range(count):
        starts[number + 1] += starts[number]
    points, places = np.empty(starts[count], np.int32), starts[:count].copy()
    for place in range(numbers.shape[0]):
        for point in range(numbers.shape[1]):
            number = numbers[place, point]
            if number >= 0:
                points[places[number]] = point
                places[number] += 1
    return starts, points


@allocating
def take_nearest_of(products, halves, first, points, numbers, gains):
    """Do what `take_nearest` does, for some points only.

    `points` (n,) int32 are the positions of these points in `numbers` and `gains`. Column i of
    `products` (c, n) belongs to points[i].
    """
    nearest = np.zeros(points.shape[0], np.int32)
    most = np.full(points.shape[0], np.float32(-np.inf))
    take_nearest(products, halves, first, nearest, most)
    for at in range(points.shape[0]):
        point = points[at]
        if most[at] > gains[point]:
            numbers[point], gains[point] = nearest[at], most[at]


@kernel
def add_up(points, numbers, sums, sizes):
    """Write the sum and the number of the points of each cell.

    `points` (n, m) float32; `numbers` (n,) int32: the cell of each point; `sums` (c, m) float32 and
    `sizes` (c,) int64 are the output.
    """
    sums[:] = np.float32(0)
    sizes[:] = 0
    for row in range(points.shape[0]):
        total = sums[numbers[row]]
        for j in range(total.shape[0]):
            total[j] += points[row, j]
        sizes[numbers[row]] += 1
