"""How far one candidate is from every other: what selectors ask of the same ones over and over."""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.sparse import (
    clear,
    distance_from_dot,
    mark,
    marked_dot,
    sparse_dot,
    spread,
    unmark,
)
from divgrpc.kernels.vector_sums import (
    row_distance,
    row_distance_within,
    row_distances,
    row_dot,
    row_dots,
)

# Candidates asked for ahead: see `scoring`.
_AHEAD = 4


@allocating
def far_from(points, inverses, rows, count, pick, scratch, far):
    """Write how far candidate `pick` is from each of rows[:count] into `far` (count,) float32.

    Squared distances, or, where `inverses` (n,) float32 holds the points' inverse lengths,
    1 - cosine; from itself 0. `points` and `scratch` as for `selection.greedy`. Dense rows are read
    where they lie: copying them side by side takes longer than it saves.
    """
    row = rows[pick]
    if points[1].shape[0]:
        _far_sparse(points, inverses, rows, count, row, scratch, np.zeros(16, np.float64), far)
    else:
        _far_dense(points[0], inverses, rows, count, row, far)
    far[pick] = np.float32(0)


@part
def _far_dense(vectors, inverses, rows, count, row, far):
    """Go four rows at a time: the sums are the same, and the pick's row is read once for all."""
    angular = inverses.shape[0] > 0
    i = 0
    while i + 4 <= count:
        four = (rows[i], rows[i + 1], rows[i + 2], rows[i + 3])
        if angular:
            found = row_dots(vectors, four, vectors, row)
        else:
            found = row_distances(vectors, four, vectors, row)
        far[i], far[i + 1], far[i + 2], far[i + 3] = found
        i += 4
    while i < count:
        if angular:
            far[i] = row_dot(vectors, rows[i], vectors, row)
        else:
            far[i] = row_distance(vectors, rows[i], vectors, row)
        i += 1
    if angular:
        for i in range(count):
            far[i] = np.float32(1) - far[i] * inverses[rows[i]] * inverses[row]


@part
def _far_sparse(points, inverses, rows, count, row, scratch, sums, far):
    spread_row(points, row, scratch)
    for i in range(count):
        ahead = rows[min(i + _AHEAD, count - 1)]
        far[i] = far_from_spread(points, inverses, row, rows[i], ahead, scratch, sums)
    clear_row(points, row, scratch)


@part
def spread_row(points, row, scratch):
    """Spread sparse `row` over the columns of the scratch, for `far_from_spread`."""
    _, indptr, indices, values, _ = points
    target, marks = scratch[1], scratch[3]
    spread(indices, values, indptr[row], indptr[row + 1], target)
    if marks.shape[0]:
        mark(indices, indptr[row], indptr[row + 1], marks)


@part
def far_from_spread(points, inverses, row, other, ahead, scratch, sums):
    """Return how far sparse row `other` is from `row`, which is spread over the scratch.

    `ahead` is a row that will be asked for soon. `sums` as for `sparse.marked_dot`.
    """
    _, indptr, indices, values, squares = points
    target, marks = scratch[1], scratch[3]
    start, stop = indptr[other], indptr[other + 1]
    if marks.shape[0]:
        dot = marked_dot(indices, values, start, stop, target, marks, sums)
    else:
        dot = sparse_dot(indices, values, start, stop, indptr[ahead], target, 0)
    if inverses.shape[0]:
        return np.float32(1) - np.float32(dot) * inverses[other] * inverses[row]
    return distance_from_dot(dot, squares[other], squares[row], False)


@part
def clear_row(points, row, scratch):
    """Make zeros again of what `spread_row` wrote."""
    _, indptr, indices, _, _ = points
    target, marks = scratch[1], scratch[3]
    if marks.shape[0]:
        unmark(indices, indptr[row], indptr[row + 1], marks)
    clear(indices, indptr[row], indptr[row + 1], target)


@kernel
def is_within(points, inverses, row, other, limit):
    """Tell whether two dense rows are at most `limit` apart; arguments as for `how_far`."""
    if inverses.shape[0]:
        return how_far(points, inverses, row, other) <= limit
    return row_distance_within(points[0], row, points[0], other, limit) <= limit


@kernel
def how_far(points, inverses, row, other):
    """Return the same of two rows alone, float32."""
    if points[1].shape[0]:
        dot = _merged_dot(points, row, other)
        if inverses.shape[0]:
            return np.float32(1) - np.float32(dot) * inverses[row] * inverses[other]
        return distance_from_dot(dot, points[4][row], points[4][other], False)
    if inverses.shape[0]:
        dot = row_dot(points[0], row, points[0], other)
        return np.float32(1) - dot * inverses[row] * inverses[other]
    return row_distance(points[0], row, points[0], other)


@part
def _merged_dot(points, row, other):
    """Return the float64 dot product of two sparse rows, summed from the first column on."""
    _, indptr, indices, values, _ = points
    i, j, total = indptr[row], indptr[other], 0.0
    while i < indptr[row + 1] and j < indptr[other + 1]:
        if indices[i] == indices[j]:
            total += np.float64(values[i]) * np.float64(values[j])
            i += 1
            j += 1
        elif indices[i] < indices[j]:
            i += 1
        else:
            j += 1
    return total
