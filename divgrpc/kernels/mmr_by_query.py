"""Picks by MMR from dense candidates and a query under cosine, without normalising all candidates.

An index stores normalised rows, and the costs and distances of MMR are computed from them. Here a
candidate is normalised only if it may be the next pick. Until then, its cost and its distance from
the first pick are known but for rounding errors: two dot products of the rows as they are, divided
by their lengths, give bounds. So picks and values are the same bytes as with normalised rows.
"""

import numpy as np

from divgrpc.kernels.exact import relevance_of
from divgrpc.kernels.greedy import diversity_weight, largest
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.normalise import normalise_row
from divgrpc.kernels.records import COSINE, MMR_RULE
from divgrpc.kernels.top_k import order_of
from divgrpc.kernels.vector_sums import prefetch_row, row_distance, row_dot

# A row is prefetched when the row this many places earlier is measured.
_PREFETCH_ROWS = 2
# Rows with other squared lengths are left to `normalise`, which scales them first.
_SQUARE_MIN = np.float32(1e-20)
_SQUARE_MAX = np.float32(1e30)


@allocating
def pick_by_query(vectors, query, relevance, places, scores, values):
    """Pick k of n candidates by MMR; return whether all rows have lengths near enough to 1.

    `vectors` (n, d) float32; `query` (1, d) float32 of unit length; 1 <= k <= n; `relevance`
    float32 is the paper's lambda. The rows of the picks are written into `places` (k,) int64, their
    cosines with the query into `scores` (k,) float64, and the values that MMR maximised into
    `values` (k,) float32. If some squared length is not from 1e-20 to 1e30, nothing is picked.
    """
    (count, dims), k = vectors.shape, places.shape[0]
    inverses, costs = np.empty(count, np.float32), np.empty(count, np.float32)
    apart = np.empty(count, np.float32)
    guess, known_from = _measure(vectors, query, inverses, costs, apart)
    if guess < 0:
        return False
    # Upper bound of the rounding errors of a squared distance, both of bounds and of exact ones.
    error = np.float32((dims / 64 + 64) * 2.0**-19)
    rows, lows = np.empty(count, np.int32), np.empty(count, np.float32)
    order_of(costs, rows)
    for i in range(count):
        lows[i] = costs[rows[i]] - error
        costs[rows[i]] = lows[i]
    slots, n_compared = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    normal, n_normal, farthest = np.empty((count, dims), np.float32), 0, np.float32(0)
    for step in range(k):
        weight = diversity_weight(MMR_RULE, relevance, step, k)
        best, least = -1, np.float32(np.inf)
        # The first pick is the nearest candidate, whatever lambda is.
        share = relevance if step else np.float32(1)
        for i in range(count):
            # Costs are ascending and rounding is monotone, so no later value is smaller.
            if share * lows[i] - weight * farthest > least:
                break
            row = rows[i]
            far = apart[row] if step else np.float32(0)
            if not share * costs[row] - weight * far <= least:
                continue
            if slots[row] < 0:
                slots[row] = n_normal
                _add_normal(vectors, row, normal, n_normal)
                costs[row] = row_distance(normal, n_normal, query, 0)
                n_normal += 1
            far = _far_from_picks(normal, slots, row, places, step, n_compared, apart)
            value = share * costs[row] - weight * far
            if value < least or (value == least and _is_before(costs, row, best)):
                best, least = row, value
        places[step], values[step] = best, -(least if step else relevance * least)
        scores[step] = relevance_of(costs[best], COSINE)
        if step == 0:
            _bound_far(vectors, best, inverses, error, best == guess, known_from, apart)
            farthest = largest(apart, count)
        apart[best], n_compared[best] = np.float32(-np.inf), k
    return True


@part
def _is_before(costs, row, best):
    """Return whether `row` is nearer than `best`, or as near and before it; `best` may be -1."""
    return best >= 0 and (costs[row] < costs[best] or (costs[row] == costs[best] and row < best))


@kernel
def _measure(vectors, query, inverses, costs, dots):
    """Measure all rows; return the row of least cost, and the first row with its dot product.

    1 / length of each row is written into `inverses` (n,) float32, and its squared distance from
    the query, but for rounding errors, into `costs` (n,) float32. The row of least cost so far is
    multiplied with each row; the products are written into `dots` (n,) float32. Returns (-1, 0) if
    a length is out of range.
    """
    best, since, last = 0, 0, vectors.shape[0] - 1
    for row in range(vectors.shape[0]):
        prefetch_row(vectors, min(row + _PREFETCH_ROWS, last))
        square = row_dot(vectors, row, vectors, row)
        if not _SQUARE_MIN <= square <= _SQUARE_MAX:
            return -1, 0
        inverses[row] = np.float32(1) / np.sqrt(square)
        cosine = row_dot(vectors, row, query, 0) * inverses[row]
        costs[row] = np.float32(2) - np.float32(2) * cosine
        if costs[row] < costs[best]:
            best, since = row, row
        dots[row] = row_dot(vectors, row, vectors, best)
    return best, since


@kernel
def _bound_far(vectors, pick, inverses, error, knows_dots, known_from, apart):
    """Write upper bounds of the squared distances of all rows from row `pick` into `apart` (n,).

    If `knows_dots`, `apart` has the products of `pick` with the rows from `known_from` on.
    """
    count = vectors.shape[0]
    for row in range(known_from if knows_dots else count):
        prefetch_row(vectors, min(row + _PREFETCH_ROWS, count - 1))
        apart[row] = row_dot(vectors, row, vectors, pick)
    for row in range(count):
        cosine = apart[row] * inverses[row] * inverses[pick]
        apart[row] = np.float32(2) - np.float32(2) * cosine + error


@kernel
def _add_normal(vectors, row, normal, slot):
    """Write row `row`, scaled to unit length, into row `slot` of `normal`."""
    for j in range(vectors.shape[1]):
        normal[slot, j] = vectors[row, j]
    normalise_row(normal, slot)


@kernel
def _far_from_picks(normal, slots, row, places, step, n_compared, apart):
    """Return the distance of `row` from the nearest of the `step` picks, 0 if there are none.

    apart[row] is exact if n_compared[row] is above 0, and has counted so many picks.
    """
    if step == 0:
        return np.float32(0)
    far = apart[row] if n_compared[row] else np.float32(np.inf)
    for earlier in range(n_compared[row], step):
        far = min(far, row_distance(normal, slots[row], normal, slots[places[earlier]]))
    apart[row], n_compared[row] = far, step
    return far
