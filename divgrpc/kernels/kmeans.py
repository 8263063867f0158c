"""Points to their nearest centres: the loops of k-means and of a two-level partition.

A point is nearest to the centre of largest gain: the product less half the centre's squared length.
Products come from a library, with a row for each centre and a column for each point, so a loop over
neighbouring points has no branches and compiles to vector instructions.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel

# Coarse cells in which a point looks for its cell. More of them change few cells and take time.
COARSE_CELLS = 3


@kernel
def take_nearest(products, halves, first, numbers, gains):
    """Update each point's nearest centre with some more centres, numbered from `first` on.

    `products` (c, n) float32; `halves` (c,) float32: half the squared lengths of the centres;
    `numbers` (n,) int32 and `gains` (n,) float32: the nearest so far, gains -inf at first. Ties go
    to the earlier centre.
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
    """Take the COARSE_CELLS nearest centres of each point, in order, as `take_nearest` does one.

    If there are fewer centres, the last `numbers` (COARSE_CELLS, n) int32 and `gains`
    (COARSE_CELLS, n) float32 stay as they are.
    """
    for c in range(products.shape[0]):
        for point in range(products.shape[1]):
            number, gain, nearer = np.int32(c), products[c, point] - halves[c], False
            for place in range(COARSE_CELLS):
                centre, least = numbers[place, point], gains[place, point]
                # Centres after a nearer one move down by one place.
                nearer = nearer or gain > least
                numbers[place, point] = number if nearer else centre
                gains[place, point] = gain if nearer else least
                number = centre if nearer else number
                gain = least if nearer else gain


@allocating
def group(numbers, count):
    """Group points by their `numbers` (l, n) int32; return (starts, points).

    The points with number t, 0 to `count` - 1, are points[starts[t]:starts[t + 1]]; `starts` (count
    + 1,) int64, `points` (p,) int32. Numbers below 0 stand for none.
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
    """Do what `take_nearest` does for the `points` (n,) int32, the columns of `products` (c, n)."""
    nearest = np.zeros(points.shape[0], np.int32)
    most = np.full(points.shape[0], np.float32(-np.inf))
    take_nearest(products, halves, first, nearest, most)
    for at in range(points.shape[0]):
        point = points[at]
        if most[at] > gains[point]:
            numbers[point], gains[point] = nearest[at], most[at]


@kernel
def add_up(points, numbers, sums, sizes):
    """Write the sum (c, m) float32 and the number (c,) int64 of each cell's points."""
    sums[:] = np.float32(0)
    sizes[:] = 0
    for row in range(points.shape[0]):
        total = sums[numbers[row]]
        for j in range(total.shape[0]):
            total[j] += points[row, j]
        sizes[numbers[row]] += 1
