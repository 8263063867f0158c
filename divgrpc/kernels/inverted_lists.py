"""Searches sparse points exactly, but computes the exact distances of only some of them.

Values are rounded to one byte: each column has a step, and a value becomes the nearest multiple of
it. A rare column has an inverted list of the points that store it; a column that many points store
has one byte for every point. For a sparse query, integer products over the query's columns are
summed for all points. The sum is exact, and its distance from the true dot product is bounded: by
the Cauchy-Schwarz inequality, rounding the values of a point p changes the product by at most
|q| |e|, where e holds the rounding errors of p. So the sum gives a lower bound of each distance.

A point is skipped if its lower bound is too great for it to be among the nearest. The exact
distances of the other points are computed from their stored rows.

The full columns, those with a byte for every point, are common, and so usually have small values.
Their products change the sum by at most the length of the query's values in these columns times the
length of the point's. The lists alone therefore often exclude nearly all points. Then the full
columns are added only for the points that are left.
"""

import math

import numpy as np

from divgrpc.kernels.exact import score_marked, score_rows
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.later_lists import TILE_ROWS, add_later_lists, first_in_lists
from divgrpc.kernels.rounding import LENGTH_ROUND_UP, STEPS_MAX, steps_of
from divgrpc.kernels.sparse import is_marked
from divgrpc.kernels.top_k import kth_least, take_nearest
from divgrpc.kernels.vector_sums import prefetch_run

# Number of points in a run. Each column has a list for each run, because the position of a point in
# its run fits into 16 bits.
RUN_POINTS = 1 << 16
# Number of columns that are added together, so that each sum is read and written once for all.
_COLUMNS_TOGETHER = 4
# Lists are prefetched this many columns ahead, because short lists are scattered in memory.
_PREFETCH_COLUMNS = 8
# The weights of a query's columns are scaled so that no sum exceeds this number.
_SUM_MAX = float(1 << 30)
# Bound of the relative rounding error of a float64 sum.
_SUM_ERROR = 1e-12
# Lists are read only if this takes less than 1 / LISTS_MIN_RATIO of the work of a pass over all
# stored values, and if the query needs at most 1 / LISTS_MIN_RATIO of all points.
LISTS_MIN_RATIO = 4
# A column with a value in more than this share of the points gets one byte for every point instead
# of lists. Adding these bytes takes as long as adding lists of this share of the points.
FULL_COLUMN_SHARE = 0.15
# The full columns are added for some points only if these are at most 1 / FEW_RATIO of all points.
FEW_RATIO = 8
# Rows that pass a filter are compared in groups of this many with rows that follow each other.
_ROWS_TOGETHER = 32
# Only so many points have lists. An entry of a list takes three bytes, where a stored value takes
# eight. A full column takes a byte for each point. The start positions take a further number for
# each column and run.
LISTED_POINTS_MAX = 1 << 18


@kernel
def count_values(indptr, indices, values, first, holders, largest):
    """Count the values of m sparse rows by run and column, and find the largest of each column.

    `indptr` (m + 1,), `indices` and `values` are the sparse rows; the first of them is point
    `first`. `holders` (runs, d) int64 and `largest` (d,) float32 are updated.
    """
    for row in range(indptr.shape[0] - 1):
        run = (first + row) // RUN_POINTS
        for i in range(indptr[row], indptr[row + 1]):
            holders[run, indices[i]] += 1
            largest[indices[i]] = max(largest[indices[i]], abs(values[i]))


@kernel
def fill_lists(indptr, indices, values, first, steps, full_columns, ends, lists):
    """Append m sparse rows to the lists of their columns; the first of them is point `first`.

    `ends` (runs, d) int64 holds the position for the next entry of each list, and is updated.
    `steps` (d,) float32 and `full_columns` (d,) int32 are as in `InvertedLists`; `lists` are its
    arrays (rows, values, full_values) to be written. `full_values` must hold zeros.
    """
    rows, list_values, full_values = lists
    for row in range(indptr.shape[0] - 1):
        point = first + row
        run = point // RUN_POINTS
        for i in range(indptr[row], indptr[row + 1]):
            column = indices[i]
            count = steps_of(values[i], steps[column])
            if full_columns[column] >= 0:
                full_values[full_columns[column], point] = count
            else:
                place = ends[run, column]
                rows[place], list_values[place] = point - run * RUN_POINTS, count
                ends[run, column] = place + 1


@kernel
def lists_pay(points, lists, columns, n_nearest, n_passing, n_points):
    """Return whether inverted lists find the `n_nearest` nearest points faster than a full pass.

    A full pass scores all `n_points` points or, if `n_passing` is above 0, so many points that pass
    a filter. `columns` (s,) int32 are those of the sparse query; see LISTS_MIN_RATIO.
    """
    starts, n_scored = lists.starts, n_passing or n_points
    if not starts.shape[0] or LISTS_MIN_RATIO * n_nearest > n_scored:
        return False
    if lists.work.shape[0]:
        # Points without lists take as long as in a full pass.
        share = max(0.0, 1.0 - LISTED_POINTS_MAX / n_points)
        for i in range(columns.shape[0]):
            share += lists.work[columns[i]]
        return LISTS_MIN_RATIO * share < n_scored / n_points
    dims, work = lists.steps.shape[0], 0.0
    for i in range(columns.shape[0]):
        if lists.full_columns[columns[i]] >= 0:
            work += FULL_COLUMN_SHARE * n_points
        for place in range(columns[i], starts.shape[0] - 1, dims):
            work += starts[place + 1] - starts[place]
    return LISTS_MIN_RATIO * work < points.indices.shape[0] * (n_scored / n_points)


@allocating
def score_listed(
    points, lists, columns, values, query, n_nearest, passing, selection, candidates, scratch
):
    """Write a superset of the `n_nearest` nearest points and all ties; return its size.

    `lists`: `InvertedLists`; `columns` (s,) int32 and `values` (s,) float32: the sparse query;
    `query`: the same query as a `Query`, which `sparse.spread` wrote into `selection`;
    `candidates`: `Candidates` of n points, the output; `scratch`: `ListScratch` for n points.
    `passing` (p,) int32 are the rows that pass a filter, ascending; if it is empty, all rows pass.
    `n_nearest` is 1 to the number of rows that pass.
    """
    rows, distances, bounds = candidates.rows, candidates.distances, scratch.bounds
    count = bound_distances(
        points, lists, columns, values, query, n_nearest, passing, selection.marks, candidates,
        scratch,
    )  # fmt: skip
    first = take_nearest(distances[:count], n_nearest, rows)
    for i in range(first):
        # No comparison below is true for NaN, so the point is not taken twice.
        place = rows[i]
        rows[i], bounds[place] = scratch.rows[place], np.float32(np.nan)
    _score(points, query, selection, rows[:first], distances[:first])
    # At least `n_nearest` points are within the limit, so any other point matters only if its lower
    # bound is also within the limit.
    limit, end = kth_least(distances[:first], n_nearest - 1), first
    for place in range(count):
        if bounds[place] <= limit:
            rows[end] = scratch.rows[place]
            end += 1
    _score(points, query, selection, rows[first:end], distances[first:end])
    return end


@allocating
def bound_distances(
    points, lists, columns, values, query, n_nearest, passing, marks, candidates, scratch
):
    """Find points that include the `n_nearest` nearest and all ties; return their number m.

    Writes the rows of these points into `scratch.rows` (n,) int32, ascending, lower bounds of their
    distances into `scratch.bounds` (n,) float32, and estimates into `candidates.distances` (n,)
    float32. `marks`: `SelectionScratch.marks`. The other arguments are as for `score_listed`.

    The result depends on the points that pass and on their order, and not on other rows, nor on
    which of the points have lists.
    """
    dims, squares, n_listed = lists.steps.shape[0], points.squares, lists.full_values.shape[1]
    n = squares.shape[0]
    if passing.shape[0]:
        n = max(n_listed, np.int64(passing[passing.shape[0] - 1]) + 1)
    n_open = passing.shape[0] or n
    weights = np.empty(columns.shape[0], np.int32)
    scale = _weigh(lists.steps, columns, values, weights)
    sums, distances = scratch.sums[:n], candidates.distances
    for row in range(n):
        sums[row] = 0
    for start in range(0, n_listed, RUN_POINTS):
        _add_lists(lists, start // RUN_POINTS * dims, columns, weights, sums[start:][:RUN_POINTS])
    add_later_lists(lists, columns, weights, sums)
    _add_later(points, lists, query, scale[0], marks, passing, False, sums)
    # The last columns are completed to a whole number of groups by columns of weight 0.
    full, full_weights = np.zeros((2, columns.shape[0] + _COLUMNS_TOGETHER), np.int32)
    n_full, square = 0, 0.0
    for i in range(columns.shape[0]):
        number = lists.full_columns[columns[i]]
        if number >= 0:
            full[n_full], full_weights[n_full] = number, weights[i]
            square += np.float64(values[i]) * np.float64(values[i])
            n_full += 1
    if n_full and FEW_RATIO * n_nearest <= n_open:
        full_length = math.sqrt(square) * LENGTH_ROUND_UP
        _bound_all(squares, lists, query, scale, full_length, sums, distances, scratch.bounds)
        n_kept = _keep_or_void(passing, n, distances, scratch)
        count = _bound_few(
            points, lists, query, scale, full[:n_full], full_weights, n_nearest, n_kept, n_open,
            marks, candidates, scratch,
        )  # fmt: skip
        if count:
            return count
    for start in range(0, n_listed, RUN_POINTS):
        for i in range(0, n_full, _COLUMNS_TOGETHER):
            _add_full(
                lists.full_values, full[i:], full_weights[i:], start,
                sums[:n_listed][start:][:RUN_POINTS],
            )  # fmt: skip
    if n_full:
        _add_later_full(lists, n_full, full, full_weights, sums)
        _add_later(points, lists, query, scale[0], marks, passing, True, sums)
    _bound_all(squares, lists, query, scale, 0.0, sums, distances, scratch.bounds)
    _keep_passing(passing, n, distances, scratch)
    return n_open


@part
def _keep_passing(passing, n, distances, scratch):
    """Write the rows that pass into `scratch.rows`, and move their distances and bounds forward.

    If `passing` is empty, these are rows 0 to n - 1.
    """
    rows, bounds = scratch.rows, scratch.bounds
    for i in range(passing.shape[0]):
        # The rows ascend, so no value is overwritten before it is read.
        row = passing[i]
        rows[i], distances[i], bounds[i] = row, distances[row], bounds[row]
    if not passing.shape[0]:
        for row in range(n):
            rows[row] = row


@part
def _keep_or_void(passing, n, distances, scratch):
    """Do what `_keep_passing` does, or exclude the other rows where they are if they are few.

    Excluded rows have the distance infinity and the bound NaN. Returns the number of rows kept,
    excluded ones included.
    """
    n_passing, bounds = passing.shape[0], scratch.bounds
    if n_passing and FEW_RATIO * (n - n_passing) > n:
        _keep_passing(passing, n, distances, scratch)
        return n_passing
    _keep_passing(passing[:0], n, distances, scratch)
    # All rows before `row` are done.
    row = n if not n_passing else np.int64(0)
    for i in range(0, n_passing, _ROWS_TOGETHER):
        stop = min(i + _ROWS_TOGETHER, n_passing)
        # Nearly always, the rows follow each other, which is seen at once.
        for place in range(stop if passing[stop - 1] - row == stop - 1 - i else i, stop):
            while row < passing[place]:
                distances[row], bounds[row] = np.float32(np.inf), np.float32(np.nan)
                row += 1
            row += 1
        row = np.int64(passing[stop - 1]) + 1
    while row < n:
        distances[row], bounds[row] = np.float32(np.inf), np.float32(np.nan)
        row += 1
    return n


@kernel
def _add_later(points, lists, query, unit, marks, passing, is_full, sums):
    """Add products to the `sums` (n,) of the rows that pass and have no lists, nor later lists.

    These are the products in full columns or, unless `is_full`, in the other columns.
    """
    n_listed, is_filtered = lists.full_values.shape[1], passing.shape[0] > 0
    stop = first_in_lists(lists.later, sums.shape[0])
    place = (passing.shape[0] if is_filtered else stop) - 1
    while place >= 0:
        row = np.int64(passing[place]) if is_filtered else place
        if row < n_listed:
            break
        if row < stop:
            sums[row] += _sum_of(points, lists, query, unit, marks, row, is_full)
        place -= 1


@kernel
def _sum_of(points, lists, query, unit, marks, row, is_full):
    """Return the sum of the products of a row without lists, for `_add_later`."""
    indices, values, total = points.indices, points.values, 0
    for i in range(points.indptr[row], points.indptr[row + 1]):
        column = indices[i]
        # Marks are read first, because they fit into the processor's cache.
        if not marks.shape[0] or is_marked(column, marks):
            value = query.dense[query.row, column]
            if value != 0 and (lists.full_columns[column] >= 0) == is_full:
                step = lists.steps[column]
                total += weight_of(value, step, unit) * np.int64(steps_of(values[i], step))
    return np.int32(total)


@allocating
def _bound_few(
    points, lists, query, scale, full, weights, n_nearest, n_kept, n_open, marks, candidates,
    scratch,
):  # fmt: skip
    """Do what `bound_distances` does if few points can be among the nearest; otherwise return 0.

    `full` and `weights` are the numbers and weights of the query's full columns. `scratch.sums`
    lacks these columns, and `scratch.bounds` allows for them. They are added for the points that
    seem nearest, which limits the distances of the nearest points. Then they are added for all
    points whose bounds are within the limit. `n_kept` is what `_keep_or_void` returned.
    """
    rows, bounds, most = scratch.rows, scratch.bounds, n_open // FEW_RATIO
    near_rows, distances = candidates.rows, candidates.distances
    squares, (unit, length, slack) = points.squares, scale
    n_near, count = take_nearest(distances[:n_kept], n_nearest, near_rows), 0
    for i in range(n_near):
        place = near_rows[i]
        near_rows[count] = rows[place]
        count += not np.isnan(bounds[place])
    totals = np.empty(max(count, most), np.int32)
    _total_sums(
        points, lists, query, unit, full, weights, near_rows[:count], marks, scratch.sums, totals
    )
    for i in range(count):
        row = near_rows[i]
        width = slack + length * np.float64(lists.errors[row])
        distances[i] = _farthest(query, squares[row], unit * totals[i], width)
    limit, count = kth_least(distances[:count], n_nearest - 1), 0
    for i in range(n_kept):
        rows[count] = rows[i]
        # The bound of an excluded row is not within any limit.
        count += bounds[i] <= limit
    if count > most:
        return 0
    _total_sums(
        points, lists, query, unit, full, weights, rows[:count], marks, scratch.sums, totals
    )
    for i in range(count):
        row = rows[i]
        width = slack + length * np.float64(lists.errors[row])
        bounds[i] = _least(query, squares[row], unit * totals[i], width)
        distances[i] = _least(query, squares[row], unit * totals[i], 0.0)
    return count


@part
def _add_later_full(lists, n_full, numbers, weights, sums):
    """Add `n_full` full columns to the `sums` (n,) of later rows, as `_add_full` does."""
    first, all_full = first_in_lists(lists.later, sums.shape[0]), lists.full_values.shape[0]
    for start in range(first, sums.shape[0], TILE_ROWS):
        tile = lists.later.full_values[(start - first) // TILE_ROWS * all_full :]
        for i in range(0, n_full, _COLUMNS_TOGETHER):
            _add_full(tile, numbers[i:], weights[i:], 0, sums[start:][:TILE_ROWS])


@kernel
def _total_sums(points, lists, query, unit, full, weights, rows, marks, sums, totals):
    """Write the sums of `rows` (m,), with the full columns added, into `totals` (m,) int32."""
    full_values, later, n_listed = lists.full_values, lists.later, lists.full_values.shape[1]
    first = first_in_lists(later, np.int64(sums.shape[0]))
    # Rows ascend: those with lists, those without any, and those in later lists.
    n_first, n_second = 0, 0
    for i in range(rows.shape[0]):
        totals[i] = sums[rows[i]]
        n_first += rows[i] < n_listed
        n_second += rows[i] < first
        if n_listed <= rows[i] < first:
            totals[i] += _sum_of(points, lists, query, unit, marks, np.int64(rows[i]), True)
    # Each column is read from its first to its last row, which is faster than reading row by row.
    for number in range(full.shape[0]):
        column, weight = full_values[full[number]], weights[number]
        for i in range(n_first):
            totals[i] += weight * np.int32(column[np.uint64(rows[i])])
    for i in range(max(n_first, n_second), rows.shape[0]):
        tile, place = divmod(np.int64(rows[i]) - first, TILE_ROWS)
        for number in range(full.shape[0]):
            count = later.full_values[tile * full_values.shape[0] + full[number], place]
            totals[i] += weights[number] * np.int32(count)


@kernel
def _bound_all(squares, lists, query, scale, full_length, sums, distances, bounds):
    """Write estimates and lower bounds of all distances into `distances` and `bounds` (n,) float32.

    `scale` is what `_weigh` returned, and `sums` (n,) int32 holds the sum of each point. The bounds
    allow for products of the query's values in full columns, whose length is `full_length`.
    """
    unit, length, slack = scale
    for row in range(sums.shape[0]):
        dot = unit * sums[row]
        width = slack + length * np.float64(lists.errors[row])
        width += full_length * np.float64(lists.full_lengths[row])
        distances[row] = _least(query, squares[row], dot, 0.0)
        bounds[row] = _least(query, squares[row], dot, width)


@part
def _least(query, square, dot, width):
    """Return a lower bound, float32, of a distance if the dot product is at most dot + width."""
    least = -(dot + width)
    if not query.product:
        least = (query.square + square) * (1.0 - _SUM_ERROR) + 2.0 * least
    return np.float32(least)


@part
def _farthest(query, square, dot, width):
    """Return an upper bound, float32, of a distance if the dot product is at least dot - width."""
    farthest = width - dot
    if not query.product:
        farthest = max((query.square + square) * (1.0 + _SUM_ERROR) + 2.0 * farthest, 0.0)
    return np.float32(farthest)


@part
def _weigh(steps, columns, values, weights):
    """Round a query's values times the steps of their columns to whole `weights` (s,) int32.

    Returns (unit, length, slack), all float64: the sum of weights times numbers of steps, times
    `unit`, differs from the dot product of the query and the rounded point by at most `slack`.
    `length` is the length of the query, rounded up.
    """
    square, total = 0.0, 0.0
    for i in range(columns.shape[0]):
        square += np.float64(values[i]) * np.float64(values[i])
        total += abs(np.float64(values[i]) * np.float64(steps[columns[i]]))
    unit = total * STEPS_MAX / _SUM_MAX
    for i in range(columns.shape[0]):
        weights[i] = weight_of(values[i], steps[columns[i]], unit)
    # Each weight is rounded by at most half a unit.
    slack = unit * STEPS_MAX * columns.shape[0] + total * STEPS_MAX * _SUM_ERROR
    return unit, math.sqrt(square) * LENGTH_ROUND_UP, slack


@kernel
def weight_of(value, step, unit):
    """Return the int32 weight of a column whose value in the query is `value`, for `_weigh`."""
    product = np.float64(value) * np.float64(step)
    return np.int32(np.rint(product / unit)) if unit > 0 else np.int32(0)


@kernel
def _add_full(full_values, numbers, weights, start, sums):
    """Add four columns with one byte for every point to the `sums` of the points from `start` on.

    The columns are rows numbers[:4] of `full_values`, with the weights weights[:4].
    """
    stop = start + sums.shape[0]
    # Two slices each, because numba does not know that one slice of both axes is contiguous, and
    # then the loop does not compile to vector instructions.
    a, b = full_values[numbers[0]][start:stop], full_values[numbers[1]][start:stop]
    c, e = full_values[numbers[2]][start:stop], full_values[numbers[3]][start:stop]
    weight_a, weight_b, weight_c, weight_e = weights[0], weights[1], weights[2], weights[3]
    for row in range(sums.shape[0]):
        sums[row] += (weight_a * np.int32(a[row]) + weight_b * np.int32(b[row])) + (
            weight_c * np.int32(c[row]) + weight_e * np.int32(e[row])
        )


@kernel
def _add_lists(lists, first, columns, weights, sums):
    """Add the lists of a run, which start at starts[first + column], to the run's `sums`."""
    starts, rows, values, last = lists.starts, lists.rows, lists.values, columns.shape[0] - 1
    for i in range(columns.shape[0]):
        ahead = first + columns[min(i + _PREFETCH_COLUMNS, last)]
        prefetch_run(rows, starts[ahead], starts[ahead + 1])
        prefetch_run(values, starts[ahead], starts[ahead + 1])
        place, weight = first + columns[i], weights[i]
        # Unsigned indices, because numba checks whether a signed index is negative.
        for at in range(np.uint64(starts[place]), np.uint64(starts[place + 1])):
            sums[np.uint64(rows[at])] += weight * np.int32(values[at])


@part
def _score(points, query, selection, rows, distances):
    count = rows.shape[0]
    if selection.marks.shape[0]:
        score_marked(points, query, selection.marks, rows, count, distances)
    elif count:
        score_rows(points, query, rows, count, distances)
