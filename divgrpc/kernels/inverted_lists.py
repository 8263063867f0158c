"""Searches sparse points exactly, but computes the exact distances of only some of them.

Each rare column, which few points store, has an inverted list of these points. If values are
weighted by rarity (tf-idf), rare columns have the greatest weights. For a sparse query, the
products over the rare columns are summed by reading the lists of the query's columns. By the
Cauchy-Schwarz inequality, the common columns add at most |q| |p|, where the norms of the query q
and the point p are taken over these columns only. The sum over the rare columns and this bound give
a lower bound of each distance. A point is skipped if its lower bound is too great for it to be
among the nearest. The exact distances of the other points are computed from their stored rows.
"""

import math

import numpy as np

from divgrpc.kernels.exact import score_marked, score_rows
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.top_k import kth_least, take_nearest

# Relative rounding error of one float32 operation, 2**-23 rounded up. The error of a sum of t
# products is at most t times this number times the product of the two lengths.
_FLOAT32_ERROR = 1.2e-7
# Absolute error of a float32 product that underflows: the smallest float32 above 0, rounded up.
_FLOAT32_LEAST = 1.5e-45
# Bound of the relative rounding error of a float64 sum of squares.
_SQUARES_ERROR = 1e-12
# A length is multiplied by this number, so that its float32 value is not below the true length.
_LENGTH_ROUND_UP = 1.000001
# Inverted lists are read only if the lists of a query hold less than 1 / LISTS_MIN_RATIO of all
# stored values, and if the query needs at most 1 / LISTS_MIN_RATIO of all points.
LISTS_MIN_RATIO = 4


@kernel
def fill_lists(indptr, indices, values, first, ends, list_rows, list_values, common_lengths):
    """Append m sparse rows to the inverted lists of their columns; the first has number `first`.

    `indptr` (m + 1,), `indices` and `values` are the sparse rows. `list_rows` int32 and
    `list_values` float32 hold all lists. `ends` (d,) int64 holds the position for the next entry of
    each list, or -1 for a common column, and is updated. The length of each row over the common
    columns, rounded up, is written into `common_lengths` (m,) float32.
    """
    for row in range(indptr.shape[0] - 1):
        square = 0.0
        for i in range(indptr[row], indptr[row + 1]):
            place = ends[indices[i]]
            if place < 0:
                square += np.float64(values[i]) * np.float64(values[i])
            else:
                list_rows[place], list_values[place] = first + row, values[i]
                ends[indices[i]] = place + 1
        common_lengths[row] = math.sqrt(square) * _LENGTH_ROUND_UP


@kernel
def lists_pay(points, lists, columns, n_nearest):
    """Return whether inverted lists find the `n_nearest` nearest points faster than a full pass.

    A full pass scores all points. `columns` (s,) int32 are those of the sparse query; see
    LISTS_MIN_RATIO.
    """
    starts = lists.starts
    if not starts.shape[0] or LISTS_MIN_RATIO * n_nearest > points.squares.shape[0]:
        return False
    products = 0
    for i in range(columns.shape[0]):
        products += starts[columns[i] + 1] - starts[columns[i]]
    return LISTS_MIN_RATIO * products < points.indices.shape[0]


@allocating
def score_listed(points, lists, columns, values, query, n_nearest, selection, candidates, sums):
    """Write a superset of the `n_nearest` nearest points and all ties; return its size.

    `lists`: `InvertedLists`; `columns` (s,) int32 and `values` (s,) float32: the sparse query;
    `query`: the same query as a `Query`, which `sparse.spread` wrote into `selection`;
    `candidates`: `Candidates` of n points, the output; `sums` (n,) float32 is scratch memory.
    `n_nearest` is 1 to n.
    """
    rows, distances, n = candidates.rows, candidates.distances, points.squares.shape[0]
    add_lists(points.squares, lists, columns, values, query, distances, sums)
    first = take_nearest(distances[:n], n_nearest, rows)
    # The first `first` rows are ascending, so the loop below can skip these rows in one pass.
    before, at = rows[:first].copy(), 0
    _score(points, query, selection, rows[:first], distances[:first])
    # At least `n_nearest` points are within the limit, so any other point matters only if its lower
    # bound is also within the limit.
    limit, count = kth_least(distances[:first], n_nearest - 1), first
    for row in range(n):
        if at < first and before[at] == row:
            at += 1
        elif sums[row] <= limit:
            rows[count] = row
            count += 1
    _score(points, query, selection, rows[first:count], distances[first:count])
    return count


@kernel
def add_lists(squares, lists, columns, values, query, distances, sums):
    """Estimate the distances of all points from the inverted lists, and bound them from below.

    distances[i] becomes the distance of point i computed without the products over common columns.
    sums[i] becomes a lower bound of the true distance of point i. Both arrays are (n,) float32.
    `squares`: `Points.squares`. The other arguments are as for `score_listed`.
    """
    starts, list_rows, list_values = lists.starts, lists.rows, lists.values
    for row in range(squares.shape[0]):
        sums[row] = np.float32(0)
    square, common_square = 0.0, 0.0
    for i in range(columns.shape[0]):
        value, start, stop = values[i], starts[columns[i]], starts[columns[i] + 1]
        square += np.float64(value) * np.float64(value)
        if start == stop:
            common_square += np.float64(value) * np.float64(value)
        for at in range(start, stop):
            sums[list_rows[at]] += value * list_values[at]
    terms = columns.shape[0] + 2
    common_length = math.sqrt(common_square) * _LENGTH_ROUND_UP
    error = math.sqrt(square) * terms * _FLOAT32_ERROR
    for row in range(squares.shape[0]):
        dot, square_sum = np.float64(sums[row]), query.square + squares[row]
        most = dot + common_length * np.float64(lists.common_lengths[row]) + terms * _FLOAT32_LEAST
        most += error * math.sqrt(squares[row])
        if query.product:
            distances[row], sums[row] = np.float32(-dot), np.float32(-most)
        else:
            distances[row] = np.float32(square_sum - 2.0 * dot)
            sums[row] = np.float32(square_sum * (1.0 - _SQUARES_ERROR) - 2.0 * most)


@part
def _score(points, query, selection, rows, distances):
    count = rows.shape[0]
    if selection.marks.shape[0]:
        score_marked(points, query, selection.marks, rows, count, distances)
    elif count:
        score_rows(points, query, rows, count, distances)
