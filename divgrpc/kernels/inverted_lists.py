"""The nearest of all sparse points, without a product with each of them.

Few points hold a rare column, and rare columns weigh most where rows are weighed by rarity. So
rare columns keep lists of the points that hold them, and a sparse query adds up its products over
those lists alone. What the common columns can add is at most the product of the lengths over them
(Cauchy-Schwarz): points that cannot be among the nearest even so are passed over, all others get
their exact distance, from their row, as in any other search.
"""

import math

import numpy as np

from divgrpc.kernels.exact import score_marked, score_rows
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.kth_smallest import kth_least
from divgrpc.kernels.top_k import take_nearest

# What a float32 sum of so many products is off by at most, as a share of the lengths' product:
# one rounding for each product and for each addition.
_ROUNDING = 1.2e-7
# Of a product too small for float32.
_SMALLEST = 1.5e-45
# Of float64 sums of squares.
_ROUNDING_OF_SQUARES = 1e-12
# Lists are gone through where they are one in so many of all numbers.
FEW = 4


@kernel
def count_holders(indices, holders):
    """Add to `holders` (d,) int64 how often each column comes in `indices` int32."""
    for i in range(indices.shape[0]):
        holders[indices[i]] += 1


@kernel
def fill_lists(indptr, indices, values, first, ends, rows, held, common):
    """Write rows of `indptr` (m + 1,), numbered from `first` on, into the lists of their columns.

    `ends` (d,) int64 says where the next point of a column goes, and moves on; -1 of a common
    column. `rows` int32 and `held` float32 are the lists; `common` (m,) float32 gets how long rows
    are over common columns, or a little more.
    """
    for row in range(indptr.shape[0] - 1):
        square = 0.0
        for i in range(indptr[row], indptr[row + 1]):
            place = ends[indices[i]]
            if place < 0:
                square += np.float64(values[i]) * np.float64(values[i])
            else:
                rows[place], held[place] = first + row, values[i]
                ends[indices[i]] = place + 1
        # More than float32 and the sum can be off by.
        common[row] = math.sqrt(square) * 1.000001


@kernel
def worth_listing(points, postings, queries, query, wanted):
    """Tell whether a query goes by the lists: it is sparse, and they hold a small part of all."""
    starts, indptr, indices = postings[0], queries[1], queries[2]
    if not starts.shape[0] or not indptr.shape[0] or FEW * wanted > points[4].shape[0]:
        return False
    products = 0
    for i in range(indptr[query], indptr[query + 1]):
        products += starts[indices[i] + 1] - starts[indices[i]]
    return FEW * products < points[2].shape[0]


@allocating
def score_listed(points, postings, queries, query, room, square, product, wanted, scratch):
    """Write rows and distances that the `wanted` nearest are among, ties included; how many.

    `postings`: starts (d + 1,) int64, rows int32 and values float32 of the lists, those of common
    columns empty, and the points' lengths over common columns (n,) float32. `room` is that of
    selections, where the query is spread out and marked. `scratch`: rows (n,) int32, distances
    (n,) and sums (n,) float32. `wanted` is 1 to n; other arguments as for `scoring.score_rows`.
    """
    rows, distances, sums = scratch
    n = points[4].shape[0]
    add_lists(points[4], postings, queries, query, square, product, distances, sums)
    first = take_nearest(distances[:n], wanted, rows)
    # In the order of the rows, which the next ones are compared with.
    before, at = rows[:first].copy(), 0
    _score(points, room, square, product, rows[:first], distances[:first])
    # So many are this near, and nothing else matters that cannot be as near.
    reached, found = kth_least(distances[:first], wanted - 1), first
    for row in range(n):
        if at < first and before[at] == row:
            at += 1
        elif sums[row] <= reached:
            rows[found] = row
            found += 1
    _score(points, room, square, product, rows[first:found], distances[first:found])
    return found


@kernel
def add_lists(squares, postings, queries, query, square, product, distances, sums):
    """Write how far points are by the lists alone, and what their distance is at least.

    Into `distances` and `sums` (n,) float32; other arguments as above.
    """
    starts, holders, held, common = postings
    _, indptr, indices, values = queries
    for row in range(squares.shape[0]):
        sums[row] = np.float32(0)
    whole, missed = 0.0, 0.0
    for i in range(indptr[query], indptr[query + 1]):
        value, start, stop = values[i], starts[indices[i]], starts[indices[i] + 1]
        whole += np.float64(value) * np.float64(value)
        if start == stop:
            missed += np.float64(value) * np.float64(value)
        for at in range(start, stop):
            sums[holders[at]] += value * held[at]
    terms = indptr[query + 1] - indptr[query] + 2
    missed, off = math.sqrt(missed) * 1.000001, math.sqrt(whole) * terms * _ROUNDING
    for row in range(squares.shape[0]):
        dot, both = np.float64(sums[row]), square + squares[row]
        most = dot + missed * np.float64(common[row]) + terms * _SMALLEST
        most += off * math.sqrt(squares[row])
        if product:
            distances[row], sums[row] = np.float32(-dot), np.float32(-most)
        else:
            distances[row] = np.float32(both - 2.0 * dot)
            sums[row] = np.float32(both * (1.0 - _ROUNDING_OF_SQUARES) - 2.0 * most)


@part
def _score(points, room, square, product, rows, distances):
    target, marks, count = room[1], room[3], rows.shape[0]
    if marks.shape[0]:
        score_marked(points, target, marks, square, product, rows, count, distances)
    elif count:
        score_rows(points, target, 0, square, product, rows, count, distances)
