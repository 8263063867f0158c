"""One query from end to end: hash, find, score, keep the candidates, select.

Arrays travel in plain tuples, in the order that each docstring gives, because numba takes a plain
tuple apart four times faster than a named one; into the first kernel most come by their addresses.
"""

import numpy as np

from divgrpc.kernels.candidates import EVERY, EXACT, SCAN, SCAN_HAMMING, find
from divgrpc.kernels.dials import BY_FALL_OFF, FALL_OFF, NO_CHOICE, STEPS, fall_off_step
from divgrpc.kernels.exact import (
    ends_early,
    reach,
    score_all,
    score_longest,
    score_marked,
    score_rows,
    worth_looking,
)
from divgrpc.kernels.greedy import pick
from divgrpc.kernels.inverted_lists import score_listed, worth_listing
from divgrpc.kernels.jit import kernel, part
from divgrpc.kernels.projection import project_query
from divgrpc.kernels.registers import arrays_at
from divgrpc.kernels.relevance import relevance_of
from divgrpc.kernels.sampling import id_of
from divgrpc.kernels.sparse import (
    clear,
    dense_square,
    mark,
    sparse_square,
    spread,
    unmark,
)
from divgrpc.kernels.top_k import sort_nearest, take_in_order, take_nearest, within

NEAREST = 0
GREEDY = 1
# Give the hashed points themselves, scored by nobody.
HASHED = 2
# Leave the candidates, nearest first, and their distances in the scratch; `counts` has how many.
CANDIDATES = 3

# Columns of the tallies in the room of `kernels.together`; the second has two uses.
COUNT = 0
SCORED = 1
SURE = 1


@kernel
def answer(index, memory, plan, span, queries, results):
    """Answer query rows; returns 0, or for how many points there must be room, and is void.

    `index` and `memory`: registers of `addresses.INDEX` and of `addresses.SCRATCH`; the others, and
    what comes of these two: see `_answer`.
    """
    heap, seen = arrays_at(memory, "heap"), arrays_at(memory, "seen")
    scratch = (
        *arrays_at(memory, "found"),
        arrays_at(memory, "scanning"),
        (*arrays_at(memory, "probing"), heap, *seen),
        arrays_at(memory, "ranking"),
        arrays_at(memory, "selection"),
        *arrays_at(memory, "picking"),
        arrays_at(memory, "together"),
    )
    return _answer(
        arrays_at(index, "points"),
        arrays_at(index, "postings"),
        arrays_at(index, "named"),
        arrays_at(index, "hashing"),
        arrays_at(index, "tables"),
        arrays_at(index, "cells"),
        plan,
        span,
        queries,
        scratch,
        results,
    )


@part
def _answer(points, postings, named, hashing, tables, cells, plan, span, queries, scratch, results):
    """Answer query rows as `answer` does.

    `points`: see `scoring.score_rows`; `postings`: see `postings.score_listed`. `named`: ids (n,)
    int64 or empty; for the inner product inverse lengths (n,) float32 and bounds (see
    `scoring.score_longest`), else empty. `hashing`: hyperplanes (m, B), thresholds (B,) float32,
    codes (W, n) uint64, terms (n,) uint32 (see `scanning.estimate`) or empty, sketch (d,)
    int32 (see `hashing.sketch_dense`) or empty, where m is d. `tables`: see `find_tables`. `cells`:
    see `rank_cells`; with cells, codes and terms go by place.
    `plan`: search, n_probes, at_least, k, hash_limit, candidates_limit (0: none), max_distance
    float32 (inf: none), selector, relevance float32, rule, uniform, seed uint64, product, metric,
    limit float32 within which points are near-copies (`collapse.OFF`: none are), and as many
    candidates as the selector's pool may grow to (0: candidates_limit), how the dial is chosen (see
    `dials`; by the loss only where candidates are left in the scratch), and its factor float64.
    `span`: first row and the end; whether the room of `kernels.together` has what was found for it.
    `queries`: dense (nq, d) float32, or indptr (nq + 1,) int64, indices int32 and values float32;
    what is not used is empty. `scratch`: rows (r,) int32, distances (r,) float32, projections (B,)
    float32, code (W, 1) and planes (5, W) uint64, scan scratch (scores (r,) int32, of the
    distances' memory, maxima int32, minima float32, block (BLOCK,) int32, fresh (BLOCK,)
    float32), probing scratch, cells scratch (numbers int32, distances float32), selection scratch
    (see `greedy`), costs float32, picked int64, sketched (1, m) float32, sums float32, and the
    room of `kernels.together`. With cells, unless all points are scored, r may be less than n.
    `results`: ids (nq, k) int64, scores and selection scores (nq, k) float32, counts (nq,) uint32,
    stats (6, nq) uint32: hashed, probed, scored, candidates, near-copies of results among those,
    results that are near-copies themselves; where dials are chosen those (nq,) float64, and why
    (nq,) uint8, else empty.
    """
    ids, bounds, product = named[0], named[2], plan[12]
    hash_limit, candidates_limit, max_distance = plan[4], plan[5], plan[6]
    rows, distances = scratch[0], scratch[1]
    n, (first, stop, together) = hashing[2].shape[1], span
    statistics, falling = results[4], ends_early(bounds) and not cells[5].shape[0]
    enough = needed(plan, n, falling)
    for query in range(first, stop):
        given = scratch[13][2][query - first, COUNT] if together else -1
        target, at = _spread_query(queries, query, scratch[8])
        end, looked, probed, lacking = n, 0, 0, 0
        if given >= 0:
            sure, count = _hand_out(query - first, scratch)
        else:
            if plan[0] != EXACT:
                project_query(queries, query, hashing, scratch[11], scratch[2])
            scanned = plan[0] == SCAN or plan[0] == SCAN_HAMMING
            if falling and scanned and worth_looking(bounds, enough, n):
                end, looked = reach(points[0], target, at, bounds, enough, distances)
            sure, count, probed, lacking = find(
                hashing, tables, cells, plan, ids, end, looked, scratch
            )
        every, known = count == EVERY, plan[0] == EXACT and given >= 0
        scored = scratch[13][2][query - first, SCORED] if known else 0
        if not (lacking or known or plan[7] == HASHED):
            asked = (target, at, product, min(enough, candidates_limit or enough))
            scored, count = _score(
                points, postings, bounds, queries, query, asked, count, enough, scratch
            )
        _clear_query(queries, query, scratch[8])
        if lacking:
            return lacking
        if plan[7] == HASHED:
            count = min(end if every else count, results[0].shape[1])
            for i in range(count):
                results[0][query, i] = id_of(ids, i if every else rows[i])
            results[3][query] = count
            continue
        hashed, widest = min(n, hash_limit or n), enough
        if not (every or known):
            scored += looked
            hashed = min(count, hash_limit or count)
            widest = min(hashed, plan[15] or candidates_limit or hashed)
            if hashed < count:
                # Only the ties of a scan with sampling "nearest" come to this.
                sort_nearest(rows, distances, sure, count, hashed - sure, ids)
                count = hashed
        count = within(rows, distances, count, max_distance)
        widest = min(count, widest)
        pool = min(widest, candidates_limit or widest)
        statistics[0, query], statistics[1, query] = hashed, probed
        statistics[2, query], statistics[3, query] = scored, pool
        statistics[4, query], statistics[5, query] = 0, 0
        _order_and_select(points, named, plan, query, (pool, widest, count), scratch, results)
    return 0


@part
def _order_and_select(points, named, plan, query, counts, scratch, results):
    """Put candidates in order as far as the selector needs it, and pick, or hand them out.

    `counts`: the pool, as many as it may grow to, and all that were found.
    """
    rows, distances, ids = scratch[0], scratch[1], named[0]
    pool, widest, count = counts
    if plan[7] == CANDIDATES:
        take_in_order(rows, distances, count, widest, ids)
        results[3][query] = widest
        return
    if plan[7] == GREEDY and widest > pool:
        # The others stay, for a pool that grows.
        sort_nearest(rows, distances, 0, count, pool, ids)
    else:
        wanted = min(pool, plan[3]) if plan[7] == NEAREST else pool
        take_in_order(rows, distances, count, wanted, ids)
        pool, widest, count = wanted, wanted, wanted
    _select(points, named, plan, query, (pool, widest, count), scratch, results)


@part
def needed(plan, n, falling):
    """Return how many of the nearest must be found, of all, for nothing of an answer to change."""
    found = min(n, plan[4] or n, plan[15] or plan[5] or n)
    # Where rows fall in length fewer are found sooner.
    return min(found, plan[3]) if falling and plan[7] == NEAREST else found


@part
def _hand_out(place, scratch):
    """Copy what was found for a query to where it would be alone; returns (sure, count)."""
    rows, distances, tallies = scratch[13][0], scratch[13][1], scratch[13][2]
    count = tallies[place, COUNT]
    for i in range(count):
        scratch[0][i], scratch[1][i] = rows[place, i], distances[place, i]
    return tallies[place, SURE], count


@part
def _spread_query(queries, query, room):
    """Return (matrix, row) where the query stands as a dense row; `room` is of selections."""
    dense, indptr, indices, values = queries
    target, marks = room[1], room[3]
    if not indptr.shape[0]:
        return dense, query
    spread(indices, values, indptr[query], indptr[query + 1], target)
    if marks.shape[0]:
        mark(indices, indptr[query], indptr[query + 1], marks)
    return target, 0


@part
def _clear_query(queries, query, room):
    indptr, indices, marks = queries[1], queries[2], room[3]
    if indptr.shape[0]:
        clear(indices, indptr[query], indptr[query + 1], room[1])
        if marks.shape[0]:
            unmark(indices, indptr[query], indptr[query + 1], marks)


@part
def _score(points, postings, bounds, queries, query, asked, count, enough, scratch):
    """Write how far the scratch's first `count` rows are; returns (scored, left).

    `asked`: the query's row of `target`, whether distances are products, and how many candidates
    there are to be, which a pool that near-copies crowd may exceed.
    A count of EVERY means all points: then those are written that the nearest are among, `enough`
    of them.
    """
    (target, at, product, candidates), every = asked, count == EVERY
    rows, distances, marks = scratch[0], scratch[1], scratch[8][3]
    square, scored = _square(points, queries, query, target, at), count
    if every and worth_listing(points, postings, queries, query, candidates):
        room = (rows, distances, scratch[12])
        scored = score_listed(
            points, postings, queries, query, scratch[8], square, product, enough, room
        )
        return scored, scored
    if every and bounds.shape[0]:
        scored = score_longest(points[0], target, at, bounds, enough, distances)
    elif marks.shape[0] and queries[1].shape[0]:
        score_marked(points, target, marks, square, product, rows, count, distances)
    elif every:
        score_all(points, target, at, square, product, distances)
    else:
        score_rows(points, target, at, square, product, rows, count, distances)
    if every:
        # There is room for just all points.
        scored = distances.shape[0] if scored == EVERY else scored
        count = take_nearest(distances[:scored], enough, rows)
    return scored, count


@part
def _square(points, queries, query, target, at):
    """Return the query's squared length, where points are sparse."""
    dense, indptr, indices, values = queries
    if not points[1].shape[0]:
        return 0.0
    if indptr.shape[0]:
        return sparse_square(indices, values, indptr[query], indptr[query + 1], dense.shape[1])
    return dense_square(target, at)


@part
def _select(points, named, plan, query, counts, scratch, results):
    """Pick, and write the results; `counts` as for `selection.pick`."""
    ids = named[0]
    rows, distances = scratch[0], scratch[1]
    costs, picked, statistics = scratch[9], scratch[10], results[4]
    k, selector, relevance, rule = plan[3], plan[7], plan[8], plan[9]
    found_ids, scores, gains = results[0][query], results[1][query], results[2][query]
    if plan[16] == BY_FALL_OFF:
        step, reason = 0, NO_CHOICE
        if counts[0] > k:
            candidates = (points, named[1], rows, distances)
            step, reason = (
                fall_off_step(candidates, counts[0], k, plan[14], scratch[8], plan[17], plan[13]),
                FALL_OFF,
            )
        results[5][query], results[6][query] = step / STEPS, reason
        relevance = np.float32(1) - np.float32(step) / np.float32(STEPS)
    if selector == GREEDY:
        room = (picked, gains)
        chosen, filled, copies, pool = pick(
            points,
            named,
            rows,
            distances,
            costs,
            counts,
            k,
            relevance,
            rule,
            plan[12],
            plan[14],
            scratch[8],
            room,
        )
        statistics[3, query], statistics[4, query] = pool, copies
        statistics[5, query] = filled
    else:
        chosen = min(k, counts[0])
        for i in range(chosen):
            picked[i] = i
            gains[i] = -distances[i]
    for i in range(chosen):
        row = rows[picked[i]]
        found_ids[i] = id_of(ids, row)
        scores[i] = relevance_of(distances[picked[i]], plan[13])
    for i in range(chosen, k):
        found_ids[i] = -1
        scores[i] = np.float32(np.nan)
        gains[i] = np.float32(np.nan)
    results[3][query] = chosen
