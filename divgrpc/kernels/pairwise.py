"""Distances between candidates, and near-copies: candidates collapsed into a better one.

The distance between two points is squared Euclidean, or 1 - cosine under the inner product, where
`Points` has inverse lengths.

Candidates lie nearest to the query first. A candidate is kept unless it is within a limit of a
nearer one that is itself kept; then it is a near-copy of that one. Selectors see the kept ones
alone. Deciding this for every candidate takes a distance for each pair. A selector that picks one
by one needs the answer only for the candidates it would pick, and asks `is_kept` for those.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.sparse import clear, distance_from_dot, marked_dot, sparse_dot, spread
from divgrpc.kernels.vector_sums import (
    row_distance,
    row_distance_within,
    row_distances,
    row_dot,
    row_dots,
)

# Sparse candidates to prefetch before their distance is computed.
PREFETCH_ROWS = 4

# Standing of a candidate. The order matters: `greedy.greedy` compares.
UNKNOWN = 0
ORIGINAL = 1
COPY = 2
# A near-copy of a pick, which has counted it.
COUNTED_COPY = 3
PICK = 4


@allocating
def far_from(points, rows, count, place, selection, far):
    """Write the distances of candidate `place` from rows[:count] into `far` (count,) float32.

    The distance from itself is 0. `points`: `Points`; `selection`: `SelectionScratch`. Dense rows
    are read in place: gathering them side by side takes longer than it saves.
    """
    row, indptr = rows[place], points.indptr
    if indptr.shape[0]:
        sums = np.zeros(16, np.float64)
        spread(points.indices, points.values, indptr[row], indptr[row + 1], selection)
        for i in range(count):
            next_row = rows[min(i + PREFETCH_ROWS, count - 1)]
            far[i] = _far_from_spread(points, row, rows[i], next_row, selection, sums)
        clear(points.indices, indptr[row], indptr[row + 1], selection)
    else:
        _far_dense(points.vectors, points.inverse_lengths, rows, count, row, far)
    far[place] = np.float32(0)


@part
def _far_dense(vectors, inverses, rows, count, row, far):
    """Write the distances of dense rows, four at a time: `row` is read once for all four."""
    angular = inverses.shape[0] > 0
    i = 0
    while i + 4 <= count:
        four = (rows[i], rows[i + 1], rows[i + 2], rows[i + 3])
        if angular:
            values = row_dots(vectors, four, vectors, row)
        else:
            values = row_distances(vectors, four, vectors, row)
        far[i], far[i + 1], far[i + 2], far[i + 3] = values
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
def _far_from_spread(points, row, peer, next_row, selection, sums):
    """Return the distance of sparse row `peer` from `row`, which is spread over `selection`.

    `next_row` is prefetched; `sums` (16,) float64 are zeros (`sparse.marked_dot`).
    """
    indptr, indices, values, squares = points.indptr, points.indices, points.values, points.squares
    inverses, dense, marks = points.inverse_lengths, selection.dense, selection.marks
    start, stop = indptr[peer], indptr[peer + 1]
    if marks.shape[0]:
        dot = marked_dot(indices, values, start, stop, dense, marks, sums)
    else:
        dot = sparse_dot(indices, values, start, stop, indptr[next_row], dense, 0)
    if inverses.shape[0]:
        return np.float32(1) - np.float32(dot) * inverses[peer] * inverses[row]
    return distance_from_dot(dot, squares[peer], squares[row], False)


@kernel
def is_within(points, row, peer, limit):
    """Tell whether two dense points are at most `limit` float32 apart."""
    if points.inverse_lengths.shape[0]:
        return how_far(points, row, peer) <= limit
    return row_distance_within(points.vectors, row, points.vectors, peer, limit) <= limit


@kernel
def how_far(points, row, peer):
    """Return the distance between two points, float32."""
    vectors, inverses, squares = points.vectors, points.inverse_lengths, points.squares
    if points.indptr.shape[0]:
        dot = _merged_dot(points.indptr, points.indices, points.values, row, peer)
        if inverses.shape[0]:
            return np.float32(1) - np.float32(dot) * inverses[row] * inverses[peer]
        return distance_from_dot(dot, squares[row], squares[peer], False)
    if inverses.shape[0]:
        dot = row_dot(vectors, row, vectors, peer)
        return np.float32(1) - dot * inverses[row] * inverses[peer]
    return row_distance(vectors, row, vectors, peer)


@part
def _merged_dot(indptr, indices, values, row, peer):
    """Return the float64 dot product of two sparse rows, summed from the first column on."""
    i, j, total = indptr[row], indptr[peer], 0.0
    while i < indptr[row + 1] and j < indptr[peer + 1]:
        if indices[i] == indices[j]:
            total += np.float64(values[i]) * np.float64(values[j])
            i += 1
            j += 1
        elif indices[i] < indices[j]:
            i += 1
        else:
            j += 1
    return total


@allocating
def is_kept(points, rows, place, limit, standing, selection):
    """Tell whether the candidate at `place` is kept, and record what was learned in `standing`.

    `limit` float32 is the greatest distance between near-copies; `standing` (count,) int8. Only
    nearer candidates within the limit must be decided first; those wait on a stack. Other arguments
    as for `far_from`.
    """
    if standing[place] != UNKNOWN:
        return standing[place] == ORIGINAL or standing[place] == PICK
    sums = np.zeros(16, np.float64)
    waiting, resume = np.empty(place + 1, np.int32), np.empty(place + 1, np.int32)
    waiting[0], resume[0], depth = place, 0, 1
    while depth:
        i = waiting[depth - 1]
        j = _first_near(points, rows, resume[depth - 1], i, limit, standing, selection, sums)
        if j == i:
            standing[i] = ORIGINAL
            depth -= 1
        elif standing[j] == UNKNOWN:
            resume[depth - 1] = j
            waiting[depth], resume[depth] = j, 0
            depth += 1
        else:
            standing[i] = COPY
            depth -= 1
    return standing[place] == ORIGINAL


@part
def _first_near(points, rows, start, place, limit, standing, selection, sums):
    """Return the first of candidates start to place - 1 within `limit` of `place`, else `place`.

    Near-copies are skipped.
    """
    row, j, indptr = rows[place], start, points.indptr
    sparse = indptr.shape[0] > 0
    if sparse:
        spread(points.indices, points.values, indptr[row], indptr[row + 1], selection)
    while j < place:
        if standing[j] != COPY and standing[j] != COUNTED_COPY:
            if sparse:
                far = _far_from_spread(points, row, rows[j], rows[j + 1], selection, sums)
                near = far <= limit
            else:
                near = is_within(points, row, rows[j], limit)
            if near:
                break
        j += 1
    if sparse:
        clear(points.indices, indptr[row], indptr[row + 1], selection)
    return j


@allocating
def keep_different(points, rows, count, limit, selection, places):
    """Write the positions of all kept candidates into `places` (count,) int64; return how many.

    For selectors that need all candidates at once. Arguments as for `is_kept`.
    """
    standing, number = np.zeros(count, np.int8), 0
    for i in range(count):
        if is_kept(points, rows, i, limit, standing, selection):
            places[number] = i
            number += 1
    return number


@kernel
def assign_copies(points, rows, count, picks, n_picks, limit, owners):
    """Write the pick that each candidate is a near-copy of into `owners` (count,) int64, or -1.

    That is the first of picks[:n_picks] within `limit`; a pick is no copy. Returns the number of
    near-copies.
    """
    copies = 0
    for i in range(count):
        owners[i] = -1
    for place in range(n_picks):
        owners[picks[place]] = -2
    for i in range(count):
        if owners[i] == -2:
            owners[i] = -1
            continue
        for place in range(n_picks):
            if how_far(points, rows[i], rows[picks[place]]) <= limit:
                owners[i] = place
                copies += 1
                break
    return copies
