"""The nearest of all sparse points without a product with each of them.

Few points store a rare column, and rare columns weigh most if rows are weighted by rarity (tf-idf).
So each rare column has a list of the points that store it, and a sparse query sums its products
over those lists alone. Common columns can add at most the product of the lengths over them (Cauchy
and Schwarz). Points that cannot be among the nearest even so are skipped; the others get their
exact distance from their row, as in any other search.
"""

import math

import numpy as np

from divgrpc.kernels.exact import score_marked, score_rows
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.top_k import kth_least, take_nearest

# Relative rounding error of a float32 product or addition, 2**-23 rounded up. A sum of t products
# is off by at most t times this share of the product of the lengths.
_FLOAT32_ERROR = 1.2e-7
# The least float32 above 0: error of a product that underflows.
_FLOAT32_LEAST = 1.5e-45
# Relative rounding error of a float64 sum of squares.
_SQUARES_ERROR = 1e-12
# Rounds a length up past its rounding errors as float32.
_LENGTH_ROUND_UP = 1.000001
# Inverted lists are read only if a query's lists hold at most 1 / LISTS_MIN_RATIO of all stored
# values, and an answer depends on at most 1 / LISTS_MIN_RATIO of all points.
LISTS_MIN_RATIO = 4


@kernel
def count_holders(indices, holders):
    """Add the number of times each column occurs in `indices` int32 to `holders` (d,) int64."""
    for i in range(indices.shape[0]):
        holders[indices[i]] += 1


@kernel
def fill_lists(indptr, indices, values, first, ends, list_rows, list_values, common_lengths):
    """Append sparse rows, numbered from `first` on, to the lists of their columns.

    `indptr` (m + 1,). `ends` (d,) int64 is where the next point of each column goes, -1 for a
    common column, and moves on. `list_rows` int32 and `list_values` float32 are the lists;
    `common_lengths` (m,) float32 gets the length of each row over the common columns, rounded up.
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
    """Tell whether inverted lists find the `n_nearest` nearest points of a sparse query faster.

    They do if the lists of its `columns` (s,) int32 hold at most one in LISTS_MIN_RATIO of all
    stored values, and `n_nearest` is at most one in LISTS_MIN_RATIO of all points.
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
    """Write a superset of the `n_nearest` nearest points, ties included; return its size.

    `lists`: `InvertedLists`; `columns` (s,) int32 and `values` (s,) float32: the sparse query;
    `query`: the same as a `Query`, spread over `selection` and marked there; `candidates`:
    `Candidates` with room for n points; `sums` (n,) float32 is scratch memory. `n_nearest` is 1 to
    n.
    """
    rows, distances, n = candidates.rows, candidates.distances, points.squares.shape[0]
    add_lists(points.squares, lists, columns, values, query, distances, sums)
    first = take_nearest(distances[:n], n_nearest, rows)
    # In ascending order, for the comparison with the rows below.
    before, at = rows[:first].copy(), 0
    _score(points, query, selection, rows[:first], distances[:first])
    # `n_nearest` points are this near; only points that may be as near still matter.
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
    """Write the distances by the lists alone, and lower bounds of the true distances.

    They go into `distances` and `sums` (n,) float32. `squares`: `Points.squares`; other arguments
    as for `score_listed`.
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
        dot, both = np.float64(sums[row]), query.square + squares[row]
        most = dot + common_length * np.float64(lists.common_lengths[row]) + terms * _FLOAT32_LEAST
        most += error * math.sqrt(squares[row])
        if query.product:
            distances[row], sums[row] = np.float32(-dot), np.float32(-most)
        else:
            distances[row] = np.float32(both - 2.0 * dot)
            sums[row] = np.float32(both * (1.0 - _SQUARES_ERROR) - 2.0 * most)


@part
def _score(points, query, selection, rows, distances):
    count = rows.shape[0]
    if selection.marks.shape[0]:
        score_marked(points, query, selection.marks, rows, count, distances)
    elif count:
        score_rows(points, query, rows, count, distances)
