"""How far one candidate is from every other: what selectors ask of the same ones over and over."""

import numpy as np

from divgrpc.kernels.compiling import allocating, kernel, part
from divgrpc.kernels.lanes import row_distance, row_distances, row_dot, row_dots
from divgrpc.kernels.sparse import (
    clear,
    distance_from_dot,
    mark,
    marked_dot,
    sparse_dot,
    spread,
    unmark,
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
    _, indptr, indices, values, squares = points
    target, marks = scratch[1], scratch[3]
    spread(indices, values, indptr[row], indptr[row + 1], target)
    if marks.shape[0]:
        mark(indices, indptr[row], indptr[row + 1], marks)
    for i in range(count):
        other, ahead = rows[i], indptr[rows[min(i + _AHEAD, count - 1)]]
        start, stop = indptr[other], indptr[other + 1]
        if marks.shape[0]:
            dot = marked_dot(indices, values, start, stop, target, marks, sums)
        else:
            dot = sparse_dot(indices, values, start, stop, ahead, target, 0)
        if inverses.shape[0]:
            far[i] = np.float32(1) - np.float32(dot) * inverses[other] * inverses[row]
        else:
            far[i] = distance_from_dot(dot, squares[other], squares[row], False)
    if marks.shape[0]:
        unmark(indices, indptr[row], indptr[row + 1], marks)
    clear(indices, indptr[row], indptr[row + 1], target)


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
