"""Exact distances of points from one query, and the relevances that follow from them.

For the metric inner_product, a distance is minus the dot product, so that nearer points have
smaller distances. For the other metrics, a distance is the squared Euclidean distance.
"""

import math

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.records import COSINE, EUCLIDEAN, Query
from divgrpc.kernels.sparse import distance_from_dot, marked_dot, sparse_distance
from divgrpc.kernels.top_k import kth_least
from divgrpc.kernels.vector_sums import prefetch_row, prefetch_run, row_distance, row_dot

# Number of points in a block that has one entry in `Index.length_bounds`.
BOUND_ROWS = 256
# To find the n nearest points, `reach` scores the LONG_ROWS_FACTOR * n longest points. Nearly all
# of the nearest are among them.
LONG_ROWS_FACTOR = 8
# `reach` is used only if it scores at most 1 / REACH_MIN_RATIO of all points.
REACH_MIN_RATIO = 32
# A point is prefetched when the point this many places earlier is scored, because hashed points are
# scattered in memory.
PREFETCH_ROWS = 8
# Value of `Hits.size` that means all points of the index.
ALL_POINTS = -1
# Upper bound of the absolute error of a float32 dot product whose terms underflow.
_UNDERFLOW = 1e-37
# Relative rounding error of one float32 operation, 2**-23 rounded up.
_FLOAT32_ERROR = 1.2e-7


@part
def relevance_of(distance, metric):
    """Return the cosine, the squared Euclidean distance or the dot product for a float32 distance.

    `metric`: COSINE, EUCLIDEAN or INNER_PRODUCT.
    """
    if metric == COSINE:
        return np.float32(1) - distance / np.float32(2)
    # Adding zero turns a product of -0.0 into 0.0.
    return distance if metric == EUCLIDEAN else np.float32(0) - distance


@part
def count_points(points):
    """Return the number of points of `Points`."""
    return max(points.vectors.shape[0], points.indptr.shape[0] - 1)


@kernel
def score_rows(points, query, rows, count, distances):
    """Write the distances of rows[:count] from a `Query` into `distances` (r,) float32.

    `points`: `Points`; `rows` (r,) int32.
    """
    vectors, product = points.vectors, query.product
    if points.indptr.shape[0]:
        for i in range(count):
            row, next_row = np.int64(rows[i]), np.int64(rows[min(i + PREFETCH_ROWS, count - 1)])
            distances[i] = sparse_distance(points, row, next_row, query)
        return
    # The two loops are separate because one loop with the test inside takes 1.5 times as long.
    if product:
        for i in range(count):
            _prefetch(vectors, rows, i, count)
            distances[i] = -row_dot(vectors, rows[i], query.dense, query.row)
    else:
        for i in range(count):
            _prefetch(vectors, rows, i, count)
            distances[i] = row_distance(vectors, rows[i], query.dense, query.row)


@kernel
def score_all(points, query, distances):
    """Write the distances of all points from a `Query` into `distances` (n,) float32."""
    vectors, product = points.vectors, query.product
    if points.indptr.shape[0]:
        for row in range(distances.shape[0]):
            distances[row] = sparse_distance(points, row, row, query)
    elif product:
        for row in range(distances.shape[0]):
            distances[row] = -row_dot(vectors, row, query.dense, query.row)
    else:
        for row in range(distances.shape[0]):
            distances[row] = row_distance(vectors, row, query.dense, query.row)


@allocating
def score_marked(points, query, marks, rows, count, distances):
    """Do what `score_rows` does, or `score_all` if `count` is ALL_POINTS, for a sparse query.

    Points must be sparse. `sparse.spread` has written the query into row 0 of `query.dense` and
    marked its columns in `marks`.
    """
    indptr, indices, values = points.indptr, points.indices, points.values
    sums = np.zeros(16, np.float64)
    for i in range(count if count >= 0 else distances.shape[0]):
        row = np.int64(rows[i]) if count >= 0 else i
        if i + PREFETCH_ROWS < count:
            start, stop = indptr[rows[i + PREFETCH_ROWS]], indptr[rows[i + PREFETCH_ROWS] + 1]
            prefetch_run(indices, start, stop)
            prefetch_run(values, start, stop)
        dot = marked_dot(indices, values, indptr[row], indptr[row + 1], query.dense, marks, sums)
        distances[i] = distance_from_dot(dot, points.squares[row], query.square, query.product)


@allocating
def score_longest(vectors, query, bounds, n_nearest, distances):
    """Score dense points, first to last, until no further point can be among the nearest.

    Distances are minus dot products. A dot product is at most the product of the two lengths
    (Cauchy and Schwarz). So the loop ends at the first block from which on all points are too short
    to be among the `n_nearest` nearest; `n_nearest` is 1 to n. `bounds`: `Index.length_bounds`.
    Returns the number of points scored. The scored points include the nearest points and all points
    that tie with them.
    """
    n = vectors.shape[0]
    length = query_length_bound(query.dense, query.row)
    nearest = np.empty(2 * n_nearest, np.float32)
    count, limit = 0, np.float32(np.inf)
    for start in range(0, n, BOUND_ROWS):
        if all_beyond(bounds[start // BOUND_ROWS], length, limit):
            return start
        stop = min(n, start + BOUND_ROWS)
        count, limit = _score_block(
            vectors, start, stop, query, n_nearest, nearest, count, limit, distances
        )
    return n


@kernel
def count_longest(
    vectors, first, queries, bounds, n_nearest, nearest, counts, limits, n_scored, distances
):  # fmt: skip
    """Count the points that `score_longest` scores for each of q queries, given some of the points.

    `vectors` (m, d) are the points from number `first` on, a multiple of BOUND_ROWS; `queries` are
    (q, d). `bounds` are those of all points, and `n_nearest` is 1 to their number.

    `nearest` (q, 2 * n_nearest) float32, `counts` (q,) int64, `limits` (q,) float32 and `n_scored`
    (q,) int64 hold what is known from the points before `first`, and are updated. At first,
    `limits` are inf, and `counts` and `n_scored` are 0. The search for a query has ended if its
    `n_scored` is less than the number of points so far. `distances` (m,) float32 is scratch memory.
    """
    for start in range(0, vectors.shape[0], BOUND_ROWS):
        stop, place = min(vectors.shape[0], start + BOUND_ROWS), first + start
        for q in range(queries.shape[0]):
            if n_scored[q] < place:
                continue
            length = query_length_bound(queries, q)
            if not all_beyond(bounds[place // BOUND_ROWS], length, limits[q]):
                query = Query(queries, q, 0.0, True)
                counts[q], limits[q] = _score_block(
                    vectors, start, stop, query, n_nearest, nearest[q], counts[q], limits[q],
                    distances,
                )  # fmt: skip
                n_scored[q] = first + stop


@kernel
def _score_block(vectors, start, stop, query, n_nearest, nearest, count, limit, distances):
    """Write the distances of points start to stop - 1; return the new `count` and `limit`.

    `nearest` (2 * n_nearest,) float32 holds the `count` smallest distances so far, at most
    `n_nearest`, and `limit` float32 is the greatest of them once more points have been scored.
    """
    for row in range(start, stop):
        distance = -row_dot(vectors, row, query.dense, query.row)
        distances[row] = distance
        if distance < limit:
            nearest[count] = distance
            count += 1
            if count == 2 * n_nearest:
                limit, count = _keep_least(nearest, count, n_nearest), n_nearest
    if count > n_nearest:
        limit, count = _keep_least(nearest, count, n_nearest), n_nearest
    return count, limit


@kernel
def _keep_least(nearest, count, n_nearest):
    """Move the `n_nearest` smallest of nearest[:count] to the front; return their greatest."""
    limit, end = kth_least(nearest[:count], n_nearest - 1), 0
    for i in range(count):
        nearest[end] = nearest[i]
        end += nearest[i] < limit
    # The distances that tie for the last places are all equal to `limit`.
    nearest[end:n_nearest] = limit
    return limit


@allocating
def reach(vectors, query, bounds, n_nearest, distances):
    """Return (stop, n_scored) such that the `n_nearest` nearest are among points 0 to stop - 1.

    Points are sorted by length, longest first. The distances of the first `n_scored` points, at
    least LONG_ROWS_FACTOR * n_nearest or all, are written into `distances`. Points from `stop` on
    are too short to be among the nearest or to tie with them. The arguments are as for
    `score_longest`.
    """
    n = vectors.shape[0]
    n_scored = min(n, (LONG_ROWS_FACTOR * n_nearest + BOUND_ROWS - 1) // BOUND_ROWS * BOUND_ROWS)
    for row in range(n_scored):
        distances[row] = -row_dot(vectors, row, query.dense, query.row)
    limit = kth_least(distances[:n_scored], n_nearest - 1)
    length = query_length_bound(query.dense, query.row)
    low, high = (n_scored + BOUND_ROWS - 1) // BOUND_ROWS, bounds.shape[0]
    while low < high:
        middle = (low + high) // 2
        if all_beyond(bounds[middle], length, limit):
            high = middle
        else:
            low = middle + 1
    return min(n, low * BOUND_ROWS), n_scored


@kernel
def reach_pays(bounds, n_nearest, n):
    """Return whether `reach` saves time: many points must be short, and `reach` must score few."""
    n_scored = max(LONG_ROWS_FACTOR * n_nearest, BOUND_ROWS)
    return ends_early(bounds) and REACH_MIN_RATIO * n_scored <= n


@kernel
def ends_early(bounds):
    """Return whether the last half of the points are less than half as long as the longest point.

    This holds only if points are sorted by length, at least roughly.
    """
    return bounds.shape[0] > 0 and 2 * bounds[bounds.shape[0] // 2] < bounds[0]


@kernel
def query_length_bound(dense, row):
    """Return the length of a query, increased by the rounding error of a dot product, float64.

    A float32 dot product of the query and a point is at most the returned length times the length
    of the point. The increase allows for the rounding errors of each term and of adding the lanes.
    """
    dims, square = dense.shape[1], 0.0
    for j in range(dims):
        square += np.float64(dense[row, j]) * np.float64(dense[row, j])
    return math.sqrt(square) * (1.0 + (dims / 32 + 64) * _FLOAT32_ERROR)


@kernel
def all_beyond(length_bound, query_length, limit):
    """Return whether every point of length up to `length_bound` is farther than `limit`.

    Distances are minus dot products. `query_length` is the result of `query_length_bound`.
    """
    return length_bound * query_length + _UNDERFLOW < -limit


@kernel
def _prefetch(vectors, rows, i, count):
    if i + PREFETCH_ROWS < count:
        prefetch_row(vectors, rows[i + PREFETCH_ROWS])
