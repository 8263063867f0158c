"""Near-copies among the candidates: which are collapsed into a better one.

Candidates lie nearest first. One is kept unless it is within `limit` of a nearer one that is kept
itself; then it is a near-copy of that one. A selector sees the kept ones alone. To decide this for
every candidate takes a distance for each pair. A selector that picks one by one needs it only for
what it would pick, so it asks `is_kept` there and then: the picks are the same.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.pairwise import clear_row, far_from_spread, how_far, is_within, spread_row

# A limit that no distance is within: nothing is collapsed.
OFF = np.float32(-1)

# What is known of a candidate. The order counts: see `selection.greedy`.
UNKNOWN = 0
KEPT = 1
COPY = 2
# A near-copy of a pick, which has counted it.
COUNTED = 3
PICKED = 4


@allocating
def is_kept(points, inverses, rows, place, limit, standing, scratch):
    """Tell whether the candidate at `place` is kept, and note in `standing` what that took.

    `points`, `inverses`, `rows` and `scratch` as for `selection.greedy`; `limit` float32, in the
    unit of `pairs.far_from`; `standing` (count,) int8. Only nearer candidates that lie within the
    limit need an answer of their own first, and those wait on a stack.
    """
    if standing[place] != UNKNOWN:
        return standing[place] == KEPT or standing[place] == PICKED
    sums = np.zeros(16, np.float64)
    waiting, following = np.empty(place + 1, np.int32), np.empty(place + 1, np.int32)
    waiting[0], following[0], depth = place, 0, 1
    while depth:
        i = waiting[depth - 1]
        j = _first_near(
            points, inverses, rows, following[depth - 1], i, limit, standing, scratch, sums
        )
        if j == i:
            standing[i] = KEPT
            depth -= 1
        elif standing[j] == UNKNOWN:
            following[depth - 1] = j
            waiting[depth], following[depth] = j, 0
            depth += 1
        else:
            standing[i] = COPY
            depth -= 1
    return standing[place] == KEPT


@part
def _first_near(points, inverses, rows, start, place, limit, standing, scratch, sums):
    """Return the first of candidates start to `place` within the limit of that one, else `place`.

    Near-copies are passed over. `sums` as for `sparse.marked_dot`.
    """
    row, j, sparse = rows[place], start, points[1].shape[0] > 0
    if sparse:
        spread_row(points, row, scratch)
    while j < place:
        if standing[j] != COPY and standing[j] != COUNTED:
            if sparse:
                ahead = rows[j + 1]
                far = far_from_spread(points, inverses, row, rows[j], ahead, scratch, sums)
                near = far <= limit
            else:
                near = is_within(points, inverses, row, rows[j], limit)
            if near:
                break
        j += 1
    if sparse:
        clear_row(points, row, scratch)
    return j


@allocating
def keep_different(points, inverses, rows, count, limit, scratch, kept):
    """Write the places of all kept candidates into `kept` (count,) int64; returns how many.

    For selectors that need every candidate at once. Other arguments as for `is_kept`.
    """
    standing, number = np.zeros(count, np.int8), 0
    for i in range(count):
        if is_kept(points, inverses, rows, i, limit, standing, scratch):
            kept[number] = i
            number += 1
    return number


@kernel
def assign_copies(points, inverses, rows, count, picked, chosen, limit, owners):
    """Write which pick each candidate is a near-copy of into `owners` (count,) int64; -1 for none.

    That is the first of picked[:chosen] within the limit; a pick is nobody's copy. Returns how many
    are near-copies.
    """
    copies = 0
    for i in range(count):
        owners[i] = -1
    for place in range(chosen):
        owners[picked[place]] = -2
    for i in range(count):
        if owners[i] == -2:
            owners[i] = -1
            continue
        for place in range(chosen):
            if how_far(points, inverses, rows[i], rows[picked[place]]) <= limit:
                owners[i] = place
                copies += 1
                break
    return copies
