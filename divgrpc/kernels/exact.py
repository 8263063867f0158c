"""Exact scores of the hashed points."""

import math

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.kth_smallest import kth_least
from divgrpc.kernels.sparse import distance_from_dot, marked_dot, sparse_distance
from divgrpc.kernels.vector_sums import prefetch_row, prefetch_run, row_distance, row_dot

# Rows that share one bound on the lengths of what follows.
BOUND_ROWS = 256
# Of so many times as many long rows as are wanted the best are wanted nearly all.
_LOOKED_AT = 8
# To look at more than one row in so many first would be slower than to scan all codes.
_FEW = 32
# Rows asked for ahead: hashed points lie anywhere in memory, and waiting for them one by one takes
# most of the time.
_AHEAD = 8


@kernel
def score_rows(points, target, at, square, product, rows, count, distances):
    """Write how far rows[:count] are from row `at` of `target` (m, d) float32 into `distances`.

    `points`: vectors (n, d) float32, or, where they are sparse, indptr (n + 1,) int64, indices
    int32, values float32 and squared lengths (n,) float64; what is not used is empty. Distances are
    float32: squared Euclidean ones, or minus the dot product with `product`. `square` is the
    target's squared length, float64, which sparse points need.
    """
    vectors, indptr = points[0], points[1]
    if indptr.shape[0]:
        for i in range(count):
            row, following = np.int64(rows[i]), np.int64(rows[min(i + _AHEAD, count - 1)])
            distances[i] = sparse_distance(points, row, following, target, at, square, product)
        return
    # One loop each: with the choice inside, the loops take half as long again.
    if product:
        for i in range(count):
            _prefetch_ahead(vectors, rows, i, count)
            distances[i] = -row_dot(vectors, rows[i], target, at)
    else:
        for i in range(count):
            _prefetch_ahead(vectors, rows, i, count)
            distances[i] = row_distance(vectors, rows[i], target, at)


@kernel
def score_all(points, target, at, square, product, distances):
    """Write the same for every row, in the order of the rows, into `distances` (n,)."""
    vectors, indptr = points[0], points[1]
    if indptr.shape[0]:
        for row in range(distances.shape[0]):
            distances[row] = sparse_distance(points, row, row, target, at, square, product)
    elif product:
        for row in range(distances.shape[0]):
            distances[row] = -row_dot(vectors, row, target, at)
    else:
        for row in range(distances.shape[0]):
            distances[row] = row_distance(vectors, row, target, at)


@allocating
def score_marked(points, target, marks, square, product, rows, count, distances):
    """Do for sparse points what `score_rows` does, or `score_all` where `count` is below 0.

    The query is row 0 of `target`, its columns the `marks`: see `sparse.marked_dot`.
    """
    _, indptr, indices, values, squares = points
    sums = np.zeros(16, np.float64)
    for i in range(count if count >= 0 else distances.shape[0]):
        row = np.int64(rows[i]) if count >= 0 else i
        if i + _AHEAD < count:
            start, stop = indptr[rows[i + _AHEAD]], indptr[rows[i + _AHEAD] + 1]
            prefetch_run(indices, start, stop)
            prefetch_run(values, start, stop)
        dot = marked_dot(indices, values, indptr[row], indptr[row + 1], target, marks, sums)
        distances[i] = distance_from_dot(dot, squares[row], square, product)


@allocating
def score_longest(vectors, target, at, bounds, wanted, distances):
    """Write minus the products of the first rows, until none after can be among the `wanted` best.

    `bounds` (ceil(n / BOUND_ROWS),) float32: no row from BOUND_ROWS * b on is longer than
    bounds[b]. A product is at most the product of the lengths (Cauchy-Schwarz), so that where long
    rows come first few are looked at. Returns how many distances were written; the `wanted` least
    of all, ties included, are among them. `wanted` is 1 to n; other arguments as for `score_all`.
    """
    n = vectors.shape[0]
    length = bounding_length(target, at)
    best = np.empty(2 * wanted, np.float32)
    count, limit = 0, np.float32(np.inf)
    for start in range(0, n, BOUND_ROWS):
        if all_below(bounds[start // BOUND_ROWS], length, limit):
            return start
        for row in range(start, min(n, start + BOUND_ROWS)):
            distance = -row_dot(vectors, row, target, at)
            distances[row] = distance
            if distance < limit:
                best[count] = distance
                count += 1
                if count == 2 * wanted:
                    limit, count = _keep_least(best, count, wanted)
        if count > wanted:
            limit, count = _keep_least(best, count, wanted)
    return n


@kernel
def _keep_least(best, count, wanted):
    """Move the least of best[:count] to the front; returns (the last wanted one, how many)."""
    limit, kept = kth_least(best[:count], wanted - 1), 0
    for i in range(count):
        best[kept] = best[i]
        kept += best[i] < limit
    # Those that tie at the limit change no limit to come, but as many as are wanted must be there.
    best[kept:wanted] = limit
    return limit, wanted


@allocating
def reach(vectors, target, at, bounds, wanted, distances):
    """Return how many first rows the `wanted` greatest products are among, and how many it scored.

    The longest rows are scored, some times as many as are wanted, into `distances`; rows too short
    to do better than the last wanted of them are left out. Ties stay. Arguments as for
    `score_longest`.
    """
    n = vectors.shape[0]
    scored = min(n, (_LOOKED_AT * wanted + BOUND_ROWS - 1) // BOUND_ROWS * BOUND_ROWS)
    for row in range(scored):
        distances[row] = -row_dot(vectors, row, target, at)
    limit = kth_least(distances[:scored], wanted - 1)
    length = bounding_length(target, at)
    low, high = (scored + BOUND_ROWS - 1) // BOUND_ROWS, bounds.shape[0]
    while low < high:
        middle = (low + high) // 2
        if all_below(bounds[middle], length, limit):
            high = middle
        else:
            low = middle + 1
    return min(n, low * BOUND_ROWS), scored


@kernel
def worth_looking(bounds, wanted, n):
    """Tell whether `reach` pays: rows fall early, and it looks at a small part of them."""
    return ends_early(bounds) and _FEW * max(_LOOKED_AT * wanted, BOUND_ROWS) <= n


@kernel
def ends_early(bounds):
    """Tell whether the latter half of the rows is half as long as the longest, or shorter."""
    return bounds.shape[0] > 0 and 2 * bounds[bounds.shape[0] // 2] < bounds[0]


@kernel
def bounding_length(target, at):
    """Return a query's length, and what a float32 sum may be off by: in its lanes, and folded."""
    dims, square = target.shape[1], 0.0
    for j in range(dims):
        square += np.float64(target[at, j]) * np.float64(target[at, j])
    return math.sqrt(square) * (1.0 + (dims / 32 + 64) * 1.2e-7)


@kernel
def all_below(bound, length, limit):
    """Tell whether minus the product of no row as long as `bound` is as little as `limit`."""
    # What float32 cannot hold any more counts too.
    return bound * length + 1e-37 < -limit


@kernel
def _prefetch_ahead(vectors, rows, i, count):
    if i + _AHEAD < count:
        prefetch_row(vectors, rows[i + _AHEAD])
