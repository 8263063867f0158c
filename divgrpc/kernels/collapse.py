"""Near-copies among the candidates: which are collapsed into a better one.

Candidates lie nearest first. One is kept unless it is within `limit` of a nearer one that is kept
itself; then it is a near-copy of that one. A selector sees the kept ones alone. To decide this for
every candidate takes a distance for each pair. A selector that picks one by one needs it only for
what it would pick, so it asks `is_kept` there and then: the picks are the same.
"""

import numpy as np

from divgrpc.kernels.compiling import allocating, kernel
from divgrpc.kernels.pairs import how_far

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
def is_kept(points, inverses, rows, place, limit, standing):
    """Tell whether the candidate at `place` is kept, and note in `standing` what that took.

    `points`, `inverses` and `rows` as for `selection.greedy`; `limit` float32, in the unit of
    `pairs.far_from`; `standing` (count,) int8. Only nearer candidates that lie within the limit
    need an answer of their own first, and those wait on a stack.
    """
    if standing[place] != UNKNOWN:
        return standing[place] == KEPT or standing[place] == PICKED
    waiting, following = np.empty(place + 1, np.int32), np.empty(place + 1, np.int32)
    waiting[0], following[0], depth = place, 0, 1
    while depth:
        i, j = waiting[depth - 1], following[depth - 1]
        while j < i and not (
            standing[j] != COPY
            and standing[j] != COUNTED
            and how_far(points, inverses, rows[i], rows[j]) <= limit
        ):
            j += 1
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


@allocating
def keep_different(points, inverses, rows, count, limit, kept):
    """Write the places of all kept candidates into `kept` (count,) int64; returns how many.

    For selectors that need every candidate at once. Other arguments as for `is_kept`.
    """
    standing, found = np.zeros(count, np.int8), 0
    for i in range(count):
        standing[i] = KEPT
        for j in range(found):
            if how_far(points, inverses, rows[i], rows[kept[j]]) <= limit:
                standing[i] = COPY
                break
        if standing[i] == KEPT:
            kept[found] = i
            found += 1
    return found


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
