"""Computes distances between candidates, and finds near-copies among the candidates.

Under inner_product, the distance between two points is 1 - cosine, and `Points` has inverse
lengths. Under the other metrics, it is the squared Euclidean distance.

Candidates are ordered by their distance from the query, nearest first. If the distance of a
candidate from an earlier kept candidate is at most a limit, the candidate is a near-copy of that
kept candidate. Otherwise it is kept. Selectors choose from the kept candidates only.
`keep_different` finds all kept candidates. A selector that picks candidates one by one calls
`is_kept` only for the candidates that it would pick, which takes far fewer distances.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.sparse import clear, distance_from_dot, marked_dot, spread
from divgrpc.kernels.vector_sums import (
    gathered_dot,
    row_distance,
    row_distance_within,
    row_distances,
    row_dot,
    row_dots,
)

# A sparse candidate is prefetched when the distance of the candidate this many places earlier is
# computed.
PREFETCH_ROWS = 4

# Values of `standing`, which say whether a candidate is kept, a near-copy or picked. The order of
# these numbers matters, because `kernels.greedy` compares them.
UNKNOWN = 0
ORIGINAL = 1
COPY = 2
# The candidate is a near-copy of a pick, and the number of near-copies already includes it.
COUNTED_COPY = 3
PICK = 4


@allocating
def far_from(points, rows, count, place, selection, far):
    """Write the distances of candidate `place` from rows[:count] into `far` (count,) float32.

    `place` is a position in `rows`; the distance of the candidate from itself is 0. `points`:
    `Points`; `selection`: `SelectionScratch`. Dense rows are read where they are stored, because
    copying them into one block takes longer than it saves.
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
        far_dense(points.vectors, points.inverse_lengths, rows, count, row, far)
    far[place] = np.float32(0)


@part
def far_dense(vectors, inverses, rows, count, row, far):
    """Write the distances of dense rows from `row`, four at a time to read `row` less often."""
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
    """Return the distance of sparse row `peer` from `row`, which `spread` wrote into `selection`.

    `next_row` is prefetched. `sums` (16,) float64 is the scratch memory of `sparse.marked_dot`.
    """
    indptr, indices, values, squares = points.indptr, points.indices, points.values, points.squares
    inverses, dense, marks = points.inverse_lengths, selection.dense, selection.marks
    start, stop = indptr[peer], indptr[peer + 1]
    if marks.shape[0]:
        dot = marked_dot(indices, values, start, stop, dense, marks, sums)
    else:
        dot = gathered_dot(indices, values, start, stop, indptr[next_row], dense, 0)
    if inverses.shape[0]:
        return np.float32(1) - np.float32(dot) * inverses[peer] * inverses[row]
    return distance_from_dot(dot, squares[peer], squares[row], False)


@kernel
def is_within(points, row, peer, limit):
    """Return whether the distance of two dense points is at most `limit` float32."""
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
    """Return the float64 dot product of two sparse rows, summed in ascending order of columns."""
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


@kernel
def is_near_any(points, row, peers, limit):
    """Return whether the distance of a point from one of `peers` is at most `limit` float32.

    `peers` (m,) int32 are row numbers. They are compared from the last to the first, because a
    candidate usually resembles points that were shown a short time ago.
    """
    sparse = points.indptr.shape[0] > 0
    for place in range(peers.shape[0] - 1, -1, -1):
        peer = peers[place]
        if sparse:
            near = how_far(points, row, peer) <= limit
        else:
            near = is_within(points, row, peer, limit)
        if near:
            return True
    return False


@allocating
def is_kept(points, rows, place, limit, standing, selection):
    """Return whether the candidate at `place` is kept; update `standing`.

    `limit` float32 is the maximum distance between near-copies; `standing` (count,) int8 is the
    standing of each candidate. Whether a candidate is kept depends on whether earlier candidates
    within the limit are kept. Candidates that wait for the standing of an earlier candidate are
    held on a stack. The other arguments are as for `far_from`.
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
    """Return the first of candidates start to place - 1 within `limit` of candidate `place`.

    Candidates known to be near-copies are skipped. If none is found, `place` is returned.
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
    """Write the positions of all kept candidates into `places` (count,) int64; return their number.

    The other arguments are as for `is_kept`.
    """
    standing, number = np.zeros(count, np.int8), 0
    for i in range(count):
        if is_kept(points, rows, i, limit, standing, selection):
            places[number] = i
            number += 1
    return number


@kernel
def assign_copies(points, rows, count, picks, n_picks, limit, owners):
    """Find the pick that each candidate is a near-copy of; return the number of near-copies.

    `owners` (count,) int64 is the output. If candidate i is itself a pick, or if no pick is within
    `limit` float32 of candidate i, owners[i] becomes -1. Otherwise it becomes the position of the
    first of picks[:n_picks] within `limit` of candidate i.
    """
    copies, sparse = 0, points.indptr.shape[0] > 0
    for i in range(count):
        owners[i] = -1
    for place in range(n_picks):
        owners[picks[place]] = -2
    for i in range(count):
        if owners[i] == -2:
            owners[i] = -1
            continue
        for place in range(n_picks):
            if sparse:
                near = how_far(points, rows[i], rows[picks[place]]) <= limit
            else:
                near = is_within(points, rows[i], rows[picks[place]], limit)
            if near:
                owners[i] = place
                copies += 1
                break
    return copies
