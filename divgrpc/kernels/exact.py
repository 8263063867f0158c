"""Exact distances of points from one query, and relevances from distances.

A distance is smaller for a nearer point: the squared Euclidean distance, or minus the dot product.
"""

import math

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.records import COSINE, EUCLIDEAN
from divgrpc.kernels.sparse import distance_from_dot, marked_dot, sparse_distance
from divgrpc.kernels.top_k import kth_least
from divgrpc.kernels.vector_sums import prefetch_row, prefetch_run, row_distance, row_dot

# Points that share one entry of `Index.length_bounds`.
BOUND_ROWS = 256
# `reach` scores this many times as many of the longest points as it must find: nearly all of the
# nearest are among them.
LONG_ROWS_FACTOR = 8
# `reach` pays if it scores at most 1 / REACH_MIN_RATIO of all points.
REACH_MIN_RATIO = 32
# Points to prefetch before they are scored. Hashed points lie anywhere in memory, and waiting for
# each in turn takes most of the time.
PREFETCH_ROWS = 8
# Count of candidates that stands for all points of the index.
ALL_POINTS = -1
# Slack for products that underflow float32.
_UNDERFLOW = 1e-37
# Relative rounding error of one float32 operation, 2**-23 rounded up.
_FLOAT32_ERROR = 1.2e-7


@part
def relevance_of(distance, metric):
    """Return the relevance, float32: the cosine, the squared Euclidean distance or the product."""
    if metric == COSINE:
        return np.float32(1) - distance / np.float32(2)
    # Adding zero turns a product of -0.0 into 0.0.
    return distance if metric == EUCLIDEAN else np.float32(0) - distance


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
    # One loop for each: with the test inside, the loop takes half as long again.
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
    """Write the distances of all points from a `Query`, in the order of rows; (n,) float32."""
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
    """Do what `score_rows` does for sparse points and a sparse query.

    The query is spread over row 0 of `query.dense`, and `marks` has the bits of its columns
    (`sparse.marked_dot`). With count ALL_POINTS it does what `score_all` does.
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
    """Score dense points by minus the product, longest first, until the rest cannot matter.

    `bounds`: `Index.length_bounds`. A product is at most the product of the lengths (Cauchy and
    Schwarz), so the loop ends at the first block of rows that are too short to be among the
    `n_nearest` nearest (1 to n). Returns the number of `distances` written, a superset of the
    nearest with all that tie with them.
    """
    n = vectors.shape[0]
    length = query_length_bound(query.dense, query.row)
    nearest = np.empty(2 * n_nearest, np.float32)
    count, limit = 0, np.float32(np.inf)
    for start in range(0, n, BOUND_ROWS):
        if all_beyond(bounds[start // BOUND_ROWS], length, limit):
            return start
        for row in range(start, min(n, start + BOUND_ROWS)):
            distance = -row_dot(vectors, row, query.dense, query.row)
            distances[row] = distance
            if distance < limit:
                nearest[count] = distance
                count += 1
                if count == 2 * n_nearest:
                    limit, count = _keep_least(nearest, count, n_nearest)
        if count > n_nearest:
            limit, count = _keep_least(nearest, count, n_nearest)
    return n


@kernel
def _keep_least(nearest, count, n_nearest):
    """Move the least of nearest[:count] to the front; return the greatest of them, and how many."""
    limit, end = kth_least(nearest[:count], n_nearest - 1), 0
    for i in range(count):
        nearest[end] = nearest[i]
        end += nearest[i] < limit
    # Distances that tie with the limit are equal, so it does not matter which of them stay.
    nearest[end:n_nearest] = limit
    return limit, n_nearest


@allocating
def reach(vectors, query, bounds, n_nearest, distances):
    """Return how many of the first points hold the `n_nearest` nearest, and how many are scored.

    Points are sorted by length. The longest LONG_ROWS_FACTOR * n_nearest are scored into
    `distances`; points after them that are too short to beat the worst of the nearest are left out.
    Ties stay in. Arguments as for `score_longest`.
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
    """Tell whether `reach` pays: lengths fall early, and it scores a small part of the points."""
    n_scored = max(LONG_ROWS_FACTOR * n_nearest, BOUND_ROWS)
    return ends_early(bounds) and REACH_MIN_RATIO * n_scored <= n


@kernel
def ends_early(bounds):
    """Tell whether the shorter half of the points is at most half as long as the longest."""
    return bounds.shape[0] > 0 and 2 * bounds[bounds.shape[0] // 2] < bounds[0]


@kernel
def query_length_bound(dense, row):
    """Return the length of a query plus the rounding error of a float32 product with it, float64.

    The error is relative: one rounding per term in a lane, and the roundings of folding the lanes.
    """
    dims, square = dense.shape[1], 0.0
    for j in range(dims):
        square += np.float64(dense[row, j]) * np.float64(dense[row, j])
    return math.sqrt(square) * (1.0 + (dims / 32 + 64) * _FLOAT32_ERROR)


@kernel
def all_beyond(length_bound, query_length, limit):
    """Tell whether no point of at most `length_bound` has a distance (minus product) <= limit."""
    return length_bound * query_length + _UNDERFLOW < -limit


@kernel
def _prefetch(vectors, rows, i, count):
    if i + PREFETCH_ROWS < count:
        prefetch_row(vectors, rows[i + PREFETCH_ROWS])
