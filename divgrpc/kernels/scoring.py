"""Exact scores of the hashed points, and the nearest of them."""

import math

import numpy as np

from divgrpc.kernels.compiling import allocating, kernel
from divgrpc.kernels.lanes import prefetch_row, prefetch_run, row_distance, row_dot
from divgrpc.kernels.sampling import id_of, kth_smallest, mix
from divgrpc.kernels.sparse import distance_from_dot, marked_dot, sparse_distance

# Ranges up to this many are sorted by insertion.
_SHORT = 16
# Rows that share one minimum when the nearest of all are taken.
_GROUP = 16
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
    length = _bounding_length(target, at)
    best = np.empty(2 * wanted, np.float32)
    count, limit = 0, np.float32(np.inf)
    for start in range(0, n, BOUND_ROWS):
        if _all_below(bounds[start // BOUND_ROWS], length, limit):
            return start
        for row in range(start, min(n, start + BOUND_ROWS)):
            distance = -row_dot(vectors, row, target, at)
            distances[row] = distance
            if distance < limit:
                best[count] = distance
                count += 1
                if count == 2 * wanted:
                    limit, count = kth_smallest(best, wanted - 1), wanted
        if count > wanted:
            limit, count = kth_smallest(best[:count], wanted - 1), wanted
    return n


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
    limit = kth_smallest(distances[:scored].copy(), wanted - 1)
    length = _bounding_length(target, at)
    low, high = (scored + BOUND_ROWS - 1) // BOUND_ROWS, bounds.shape[0]
    while low < high:
        middle = (low + high) // 2
        if _all_below(bounds[middle], length, limit):
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
def _bounding_length(target, at):
    """Return a query's length, and what a float32 sum may be off by: in its lanes, and folded."""
    dims, square = target.shape[1], 0.0
    for j in range(dims):
        square += np.float64(target[at, j]) * np.float64(target[at, j])
    return math.sqrt(square) * (1.0 + (dims / 32 + 64) * 1.2e-7)


@kernel
def _all_below(bound, length, limit):
    # What float32 cannot hold any more counts too.
    return bound * length + 1e-37 < -limit


@kernel
def _prefetch_ahead(vectors, rows, i, count):
    if i + _AHEAD < count:
        prefetch_row(vectors, rows[i + _AHEAD])


@allocating
def take_nearest(distances, wanted, rows):
    """Write the places of the `wanted` least of `distances` (n,), and of what ties or comes near.

    Their distances move to the front with them. Returns how many there are: few more than
    `wanted`, which is 1 to n.
    """
    n = distances.shape[0]
    groups = (n + _GROUP - 1) // _GROUP
    limit = np.float32(np.inf)
    if wanted < groups:
        # So many groups hold a distance of at most the limit, hence so many rows do.
        least = np.empty(groups, np.float32)
        for group in range(groups):
            smallest = distances[group * _GROUP]
            for row in range(group * _GROUP, min(n, (group + 1) * _GROUP)):
                smallest = min(smallest, distances[row])
            least[group] = smallest
        limit = kth_smallest(least, wanted - 1)
    found = 0
    for row in range(n):
        if distances[row] <= limit:
            rows[found] = row
            distances[found] = distances[row]
            found += 1
    return found


@kernel
def within(rows, distances, count, max_distance):
    """Keep what is not farther than `max_distance`, in its order; returns how many."""
    kept = 0
    for i in range(count):
        if distances[i] <= max_distance:
            rows[kept] = rows[i]
            distances[kept] = distances[i]
            kept += 1
    return kept


@kernel
def _nearer(distance, row, other_distance, other_row, ids):
    if distance != other_distance:
        return distance < other_distance
    return id_of(ids, row) < id_of(ids, other_row)


@allocating
def sort_nearest(rows, distances, start, stop, wanted, ids):
    """Reorder rows[start:stop] so that its first `wanted` are the nearest, in order.

    The order is total: smaller distance, then smaller id. A quicksort that leaves alone the parts
    which hold none of the first `wanted`.
    """
    stack = np.empty((64, 2), np.int64)
    stack[0, 0], stack[0, 1] = start, stop
    depth = 1
    while depth > 0:
        depth -= 1
        low, high = stack[depth, 0], stack[depth, 1]
        while high - low > _SHORT:
            middle = _partition(rows, distances, low, high, ids)
            if middle - low < high - middle - 1:
                # The longer part waits, so that the stack stays as short as a logarithm.
                if middle + 1 < start + wanted:
                    stack[depth, 0], stack[depth, 1] = middle + 1, high
                    depth += 1
                high = middle
            else:
                if low < start + wanted:
                    if middle + 1 >= start + wanted:
                        high = middle
                        continue
                    stack[depth, 0], stack[depth, 1] = low, middle
                    depth += 1
                low = middle + 1
        _sort_short(rows, distances, low, high, ids)


@allocating
def keep_nearest(rows, distances, count, wanted, ids):
    """Move the `wanted` nearest of rows[:count] to the front, in no order; ties go by id.

    Returns the distance of the last of them; `wanted` is 1 to count.
    """
    limit = kth_smallest(distances[:count].copy(), wanted - 1)
    inside = 0
    for i in range(count):
        if distances[i] < limit:
            _exchange(rows, distances, i, inside)
            inside += 1
    stop = inside
    for i in range(inside, count):
        if distances[i] == limit:
            _exchange(rows, distances, i, stop)
            stop += 1
    if stop > wanted:
        sort_nearest(rows, distances, inside, stop, wanted - inside, ids)
    return limit


@kernel
def _partition(rows, distances, low, high, ids):
    """Split around the median of three points; returns where that one ends up.

    They come from places that look random: in the order of points that lie by angle or by time
    the first, the middle and the last are all extremes, part after part.
    """
    middle, last = (low + high) // 2, high - 1
    for to in (low, middle, last):
        place = np.int64(mix(np.uint64(low ^ (high << 24) ^ to)) >> np.uint64(32)) % (high - low)
        _exchange(rows, distances, to, low + place)
    for i, j in ((low, middle), (middle, last), (low, middle)):
        if _nearer(distances[j], rows[j], distances[i], rows[i], ids):
            _exchange(rows, distances, i, j)
    _exchange(rows, distances, middle, last)
    pivot_distance, pivot_row = distances[last], rows[last]
    store = low
    for i in range(low, last):
        if _nearer(distances[i], rows[i], pivot_distance, pivot_row, ids):
            _exchange(rows, distances, i, store)
            store += 1
    _exchange(rows, distances, store, last)
    return store


@kernel
def _exchange(rows, distances, i, j):
    rows[i], rows[j] = rows[j], rows[i]
    distances[i], distances[j] = distances[j], distances[i]


@kernel
def _sort_short(rows, distances, low, high, ids):
    for i in range(low + 1, high):
        row, distance = rows[i], distances[i]
        at = i
        while at > low and _nearer(distance, row, distances[at - 1], rows[at - 1], ids):
            rows[at] = rows[at - 1]
            distances[at] = distances[at - 1]
            at -= 1
        rows[at] = row
        distances[at] = distance
