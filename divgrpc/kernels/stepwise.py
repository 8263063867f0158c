"""Single steps of selection, for `divgrpc.search.stepwise`.

The kernels in `kernels.greedy` and `kernels.max_sum_dpp` make all picks of a query in one call, and
skip distances that cannot change a pick. The kernels here make one step, and compute the distances
of a new pick from all candidates. Both sum the same numbers in the same order, so both give the
same picks and values.
"""

import math

import numpy as np

from divgrpc.kernels.greedy import add_pick
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.max_sum_dpp import (
    COSINE_OF_CHORD,
    RATIONAL_QUADRATIC,
    REMAINDER_MIN,
    logarithm,
)
from divgrpc.kernels.pairwise import far_dense, far_from, how_far

# Dense candidates that are compared with all points shown before the next ones are read.
TILE_ROWS = 32


@kernel
def least_value(costs, apart, count, relevance, weight, selectable, allowed):
    """Return the first candidate of smallest relevance * cost - weight * apart, and this value.

    Only candidates whose flags in `selectable` and `allowed`, both (count,) uint8, are not 0 are
    considered. If there is none, -1 is returned instead of a candidate. `costs` and `apart`
    (count,) have the same float type, or `apart` is float64.
    """
    best, least = -1, np.float32(np.inf)
    for i in range(count):
        if selectable[i] and allowed[i]:
            value = relevance * costs[i] - weight * apart[i]
            if best < 0 or value < least:
                best, least = i, value
    return best, least


@allocating
def add_distances(points, rows, count, place, selection, least_counts, far, apart):
    """Update `apart` (count,) float32 with the distances of candidates from `rows[place]`.

    `far` is float32 scratch memory with as many entries as `rows`. With `least_counts`, `apart`
    becomes the minimum of itself and the distances. Otherwise the distances are added.
    """
    far_from(points, rows, count, place, selection, far)
    add_pick(far, count, least_counts, apart)


@allocating
def add_roots(points, rows, count, place, selection, far, sums):
    """Add the square roots of the distances from `rows[place]` to `sums` (count,) float64."""
    far_from(points, rows, count, place, selection, far)
    add_roots_of(far, count, sums)


@part
def add_roots_of(far, count, sums):
    """Add the square roots of distances `far` (count,) to `sums` (count,) float64."""
    for i in range(count):
        sums[i] += math.sqrt(max(0.0, np.float64(far[i])))


@allocating
def add_shown(points, rows, count, first, selection, of_roots, least_counts, is_empty, far, apart):
    """Do a step for each of the points shown rows[first:], in their order.

    The step is `add_roots` if `of_roots`, and otherwise `add_distances`. `is_empty`: whether no
    step was done before, so that the first distance is added even if `least_counts`. Dense
    candidates are taken in tiles, which stay in the cache while they are compared with all points.
    """
    tile = count if points.indptr.shape[0] else TILE_ROWS
    for start in range(0, count, max(1, tile)):
        size = min(tile, count - start)
        peers, numbers = rows[start : start + size], apart[start : start + size]
        for place in range(first, rows.shape[0]):
            if points.indptr.shape[0]:
                far_from(points, rows, count, place, selection, far)
            else:
                far_dense(points.vectors, points.inverse_lengths, peers, size, rows[place], far)
            if of_roots:
                add_roots_of(far, size, numbers)
            else:
                add_pick(far, size, least_counts and not (is_empty and place == first), numbers)


@kernel
def add_pivot(points, rows, place, unit, similarity, factor, n_pivots, remainders, logs):
    """Project all rows onto the pick `rows[place]`, for a DPP; return the new number of pivots.

    `factor` (rows, picks) float64 is the Cholesky factor, whose first `n_pivots` columns are set.
    `remainders` and `logs` (rows,) float64 are the remainders and their logarithms. `unit` and
    `similarity` are as in `max_sum_dpp.determinant`. A pick whose remainder is at most
    REMAINDER_MIN changes nothing.
    """
    if remainders[place] <= REMAINDER_MIN:
        return n_pivots
    root = math.sqrt(remainders[place])
    for i in range(rows.shape[0]):
        far = np.float64(how_far(points, rows[i], rows[place]))
        if similarity == RATIONAL_QUADRATIC:
            share = unit / (unit + far)
        else:
            share = 1.0 - 0.5 * far if similarity == COSINE_OF_CHORD else 1.0 - far
        for j in range(n_pivots):
            share -= factor[i, j] * factor[place, j]
        # The row of the pick itself is changed last, because the other rows need it.
        if i != place:
            share /= root
            factor[i, n_pivots] = share
            remainders[i] -= share * share
            logs[i] = logarithm(max(remainders[i], REMAINDER_MIN))
    factor[place, n_pivots] = root
    remainders[place] = 0.0
    logs[place] = logarithm(REMAINDER_MIN)
    return n_pivots + 1
