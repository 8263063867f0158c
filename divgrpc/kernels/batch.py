"""Queries searched together: what is read of the points is read once for all of them.

A pass over all points, or over more codes than caches hold, waits for memory. Here points come
block by block, and every query keeps what it wants of a block: to the bit what it finds alone.
`answering.answer` takes it from there.

The room has a row for each of the queries: rows (m, r) int32 and distances (m, r) float32 hold what
it keeps, at most twice as many as it wants and a block; tallies (m, 3) int64 say how many they are,
then what each function says; limits (m, 2) and margins (m, B) float32; planes (5 m, W) uint64.
"""

import numpy as np

from divgrpc.kernels.candidates import SCAN_HAMMING
from divgrpc.kernels.code_scan import BLOCK, differ_block, estimate_block, keep_least, score_block
from divgrpc.kernels.exact import BOUND_ROWS, all_below, bounding_length, ends_early
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.projection import quantise, sign_code
from divgrpc.kernels.query import COUNT, SCORED, SURE, needed
from divgrpc.kernels.registers import arrays_at
from divgrpc.kernels.sampling import keep_sample
from divgrpc.kernels.top_k import keep_nearest, keep_ties
from divgrpc.kernels.vector_sums import row_distance, row_distances, row_dot, row_dots

# Queries that are searched together, at most.
TOGETHER = 16
# Of these so many keep their sums in registers while a point is read; BLOCK holds their distances.
_LANES = BLOCK // BOUND_ROWS

# Further columns: of the tallies, and of the limits.
_LEVELS = 2
_LIMIT = 0
_UNIT = 1


@kernel
def nearest_together(index, memory, plan, queries, first, asking):
    """Find what the nearest of all are among for each of so many queries from row `first` on.

    Points and queries are dense, and `asking` is 1 to m; other arguments as for `answering.answer`.
    The second tally is how many points were scored: with bounds a query ends where
    `scoring.score_longest` ends.
    """
    vectors, (ids, _, bounds) = arrays_at(index, "points")[0], arrays_at(index, "named")
    rows, distances, tallies, limits, _, _ = arrays_at(memory, "together")
    names, fresh = arrays_at(memory, "found")[0], arrays_at(memory, "scanning")[4]
    n, target, product = vectors.shape[0], queries[0], plan[12]
    falling = ends_early(bounds) and not arrays_at(index, "cells")[5].shape[0]
    wanted = needed(plan, n, falling)
    for q in range(asking):
        tallies[q, COUNT], tallies[q, SCORED], limits[q, _LIMIT] = 0, n, np.float32(np.inf)
    for start in range(0, n, BOUND_ROWS):
        m, unended = min(BOUND_ROWS, n - start), 0
        for i in range(m):
            names[i] = start + i
        for q in range(0, asking, _LANES):
            lanes, searching = min(_LANES, asking - q), 0
            for at in range(q, q + lanes):
                if bounds.shape[0] and tallies[at, SCORED] == n:
                    length = bounding_length(target, first + at)
                    if all_below(bounds[start // BOUND_ROWS], length, limits[at, _LIMIT]):
                        tallies[at, SCORED] = start
                searching += tallies[at, SCORED] == n
            unended += searching
            if searching == 0:
                continue
            _score_lanes(vectors, start, m, target, first + q, lanes, product, fresh)
            for at in range(q, q + lanes):
                if tallies[at, SCORED] < n:
                    continue
                found = fresh[(at - q) * BOUND_ROWS : (at - q) * BOUND_ROWS + m]
                limit, count = limits[at, _LIMIT], tallies[at, COUNT]
                count = keep_least(found, names, limit, count, rows[at], distances[at])
                # A bound is compared with the limit after each block, which must be known then.
                if count > (wanted if bounds.shape[0] else 2 * wanted):
                    limits[at, _LIMIT] = keep_nearest(rows[at], distances[at], count, wanted, ids)
                    count = wanted
                tallies[at, COUNT] = count
        if unended == 0:
            return


@kernel
def _score_lanes(vectors, start, m, target, first, lanes, product, fresh):
    """Write how far m rows from `start` on are from each query, a repeated one in idle lanes."""
    last = first + lanes - 1
    taken = (first, min(first + 1, last), min(first + 2, last), last)
    a, b = fresh[:m], fresh[BOUND_ROWS : BOUND_ROWS + m]
    c, d = fresh[2 * BOUND_ROWS : 2 * BOUND_ROWS + m], fresh[3 * BOUND_ROWS : 3 * BOUND_ROWS + m]
    if lanes == 1 and product:
        for i in range(m):
            a[i] = -row_dot(target, first, vectors, start + i)
    elif lanes == 1:
        for i in range(m):
            a[i] = row_distance(target, first, vectors, start + i)
    elif product:
        for i in range(m):
            dots = row_dots(target, taken, vectors, start + i)
            a[i], b[i], c[i], d[i] = -dots[0], -dots[1], -dots[2], -dots[3]
    else:
        for i in range(m):
            a[i], b[i], c[i], d[i] = row_distances(target, taken, vectors, start + i)


@kernel
def scan_together(index, memory, plan, asking):
    """Find points by code for each of so many queries, in no order; the room has their margins.

    The plan is a scan of all points with a hash limit, and no bounds end it; arguments as for
    `answering.answer`. The second tally is how many come before those that tie for the last places:
    of the least estimates, where a scan has them, none do. The first is -1 where more tie than
    there is room for.
    """
    codes, terms = arrays_at(index, "hashing")[2:4]
    ids, names = arrays_at(index, "named")[0], arrays_at(memory, "found")[0]
    rows, values, tallies, limits, margins, planes = arrays_at(memory, "together")
    _, _, _, block, fresh = arrays_at(memory, "scanning")
    signs, wanted = plan[0] == SCAN_HAMMING, plan[4]
    n, estimated = codes.shape[1], terms.shape[0] > 0 and not signs
    for q in range(asking):
        mine = planes[5 * q : 5 * q + 5]
        if signs:
            sign_code(margins[q], mine[0])
        else:
            limits[q, _UNIT], tallies[q, _LEVELS] = quantise(margins[q], mine)
        tallies[q, COUNT], limits[q, _LIMIT] = 0, np.float32(np.inf)
    for start in range(0, n, BLOCK):
        m = min(BLOCK, n - start)
        scores, found = block[:m], fresh[:m]
        for i in range(m):
            names[i] = start + i
        for q in range(asking):
            count, limit, mine = tallies[q, COUNT], limits[q, _LIMIT], planes[5 * q : 5 * q + 5]
            if count < 0:
                continue
            if estimated:
                unit, levels, none = limits[q, _UNIT], tallies[q, _LEVELS], np.float32(0)
                estimate_block(codes, mine, unit, levels, terms, start, none, block, found)
            else:
                if signs:
                    differ_block(codes, mine[0], start, scores)
                else:
                    score_block(codes, mine, start, scores)
                # Far from 2**24, from where on float32 rounds.
                for i in range(m):
                    found[i] = -scores[i]
            count = keep_least(found, names, limit, count, rows[q], values[q])
            if count > 2 * wanted and estimated:
                limits[q, _LIMIT] = keep_nearest(rows[q], values[q], count, wanted, ids)
                count = wanted
            elif count > 2 * wanted:
                limits[q, _LIMIT], count = keep_ties(rows[q], values[q], count, wanted)
                # The next block may bring as many again as there is room for beside them.
                count = -1 if count > 2 * wanted else count
            tallies[q, COUNT] = count
    for q in range(asking):
        count = tallies[q, COUNT]
        if estimated:
            if count > wanted:
                keep_nearest(rows[q], values[q], count, wanted, ids)
            tallies[q, COUNT], tallies[q, SURE] = wanted, wanted
        elif count > 0:
            _, count = keep_ties(rows[q], values[q], count, wanted)
            sure = _put_ties_last(rows[q], values[q], count)
            if plan[10]:
                count = keep_sample(rows[q], sure, count, wanted - sure, ids, plan[11])
            tallies[q, COUNT], tallies[q, SURE] = count, sure


@kernel
def _put_ties_last(rows, values, count):
    """Move what is less than the greatest value to the front; returns how many that are."""
    greatest, sure = values[0], 0
    for i in range(count):
        greatest = max(greatest, values[i])
    for i in range(count):
        row, value = rows[i], values[i]
        rows[i], values[i] = rows[sure], values[sure]
        rows[sure], values[sure] = row, value
        sure += value < greatest
    return sure
