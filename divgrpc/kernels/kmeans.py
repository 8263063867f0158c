"""Points to their nearest centres: the loops of k-means and of a two-level partition.

A point is nearest to the centre with the largest product less half the centre's squared length, its
gain. Products come from a library, a row of them for each centre and a column for each point: so a
loop over points beside one another has no branches and runs in vectors.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel

# Coarse cells that a point may find its cell in: more of them bring little and take time.
LOOKED = 3


@kernel
def take_nearest(products, halves, first, numbers, gains):
    """Take, for each point, the nearest of some centres where it is nearer than what it has.

    `products` (c, n) float32, `halves` (c,) float32 half the squared lengths of the centres, of
    which the first has the number `first`; `numbers` (n,) int32 and `gains` (n,) float32 are what
    the points have, -inf to begin with. Ties go to what comes first.
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
    """Take the LOOKED nearest centres of each point, in order, as `take_nearest` does the nearest.

    `numbers` (LOOKED, n) int32 stay as they are, and `gains` (LOOKED, n) -inf, where there are
    fewer centres.
    """
    for c in range(products.shape[0]):
        for point in range(products.shape[1]):
            number, gain, nearer = np.int32(c), products[c, point] - halves[c], False
            for place in range(LOOKED):
                other, least = numbers[place, point], gains[place, point]
                # Behind one that is nearer all others move on.
                nearer = nearer or gain > least
                numbers[place, point] = number if nearer else other
                gains[place, point] = gain if nearer else least
                number = other if nearer else number
                gain = least if nearer else gain


@allocating
def group(numbers, count):
    """Return which points have each of the `numbers` (l, n) int32, side by side, (p,) int32.

    Those with number t < `count` are at starts[t]:starts[t + 1] of them; `starts` (count + 1,)
    int64 is returned before them. Below zero is none.
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
    """Do what `take_nearest` does for some `points` (n,) int32 of those with `numbers` and `gains`.

    The columns of `products` (c, n) are theirs.
    """
    found = np.zeros(points.shape[0], np.int32)
    most = np.full(points.shape[0], np.float32(-np.inf))
    take_nearest(products, halves, first, found, most)
    for at in range(points.shape[0]):
        point = points[at]
        if most[at] > gains[point]:
            numbers[point], gains[point] = found[at], most[at]


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
