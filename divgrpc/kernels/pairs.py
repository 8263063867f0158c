"""How far one candidate is from every other: what selectors ask of the same ones over and over."""

import numpy as np

from divgrpc.kernels.compiling import kernel, part
from divgrpc.kernels.lanes import row_distance, row_distances, row_dot, row_dots
from divgrpc.kernels.sparse import (
    clear,
    distance_from_dot,
    link,
    linked_dots,
    mark,
    marked_dot,
    sparse_dot,
    spread,
    unlink,
    unmark,
)


@kernel
def hold(points, rows, count, scratch):
    """Link sparse candidates rows[:count] by column for `far_from`, where they fit; returns so.

    `points` and `scratch` as for `selection.greedy`. `let_go` must follow. Dense rows are read
    where they lie: copying them side by side takes longer than it saves.
    """
    return points[1].shape[0] > 0 and count > 1 and link(points, rows, count, scratch[3])


@kernel
def let_go(points, rows, count, linked, scratch):
    """Leave the scratch as it was before `hold`."""
    if linked:
        unlink(points, rows, count, scratch[3][0])


@kernel
def far_from(points, inverses, rows, count, pick, linked, scratch, far):
    """Write how far candidate `pick` is from each of rows[:count] into `far` (count,) float32.

    Squared distances, or, where `inverses` (n,) float32 holds the points' inverse lengths,
    1 - cosine; from itself 0. `linked` is what `hold` returned, the other arguments were its own.
    """
    row = rows[pick]
    if points[1].shape[0]:
        _far_sparse(points, inverses, rows, count, row, linked, scratch, far)
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
def _far_sparse(points, inverses, rows, count, row, linked, scratch, far):
    _, indptr, indices, values, squares = points
    _, target, _, links, dots, marks = scratch
    start, stop = indptr[row], indptr[row + 1]
    if linked:
        linked_dots(points, row, count, links, dots)
    elif marks.shape[0]:
        spread(indices, values, start, stop, target)
        mark(indices, start, stop, marks)
        for i in range(count):
            first, end = indptr[rows[i]], indptr[rows[i] + 1]
            dots[i] = marked_dot(indices, values, first, end, target, marks)
        unmark(indices, start, stop, marks)
        clear(indices, start, stop, target)
    else:
        spread(indices, values, start, stop, target)
        for i in range(count):
            dots[i] = sparse_dot(indices, values, indptr[rows[i]], indptr[rows[i] + 1], target, 0)
        clear(indices, start, stop, target)
    for i in range(count):
        if inverses.shape[0]:
            far[i] = np.float32(1) - np.float32(dots[i]) * inverses[rows[i]] * inverses[row]
        else:
            far[i] = distance_from_dot(dots[i], squares[rows[i]], squares[row], False)


@kernel
def how_far(points, inverses, row, other):
    """Return the same of two rows alone, float32, to the bit as of linked candidates."""
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
