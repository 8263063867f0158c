"""One query from end to end: hash, find, score, select.

Theory of operation. `answer` runs four stages for each query.

1. Hash: project the query onto the hyperplanes; `QueryCode` has its margins. Exact search skips
   this.
2. Find: take up to `Plan.hash_limit` points by code, from bucket tables, from cells or from a scan
   of all codes, into `Scratch.candidates`. If no limit applies, that is all points, and nothing is
   written.
3. Score: compute the exact distances of those points. Of all points only a superset of the nearest
   stays; bounds on lengths or inverted lists may spare most of the products.
4. Select: drop what is farther than `Plan.max_distance`, sort, and pick k of the nearest
   `Plan.candidates_limit`.

`Plan.step` may end this earlier: HASHED after 2, CANDIDATES before 4. Queries that `kernels.batch`
has searched together enter after 2 (scans) or 3 (exact search).

No stage allocates memory for its points: they are written into `Scratch`. Cells may hold more
points than it has room for; `answer` then returns the number, and the caller calls it again.
"""

import numpy as np

from divgrpc.kernels.buckets import find_in_tables
from divgrpc.kernels.cells import find_in_cells
from divgrpc.kernels.code_scan import find_by_code
from divgrpc.kernels.dials import STEPS, fall_off_step
from divgrpc.kernels.exact import (
    ALL_POINTS,
    ends_early,
    reach,
    reach_pays,
    relevance_of,
    score_all,
    score_longest,
    score_marked,
    score_rows,
)
from divgrpc.kernels.greedy import pick
from divgrpc.kernels.inverted_lists import lists_pay, score_listed
from divgrpc.kernels.jit import kernel, part
from divgrpc.kernels.projection import project_query, sign_code
from divgrpc.kernels.records import (
    BUCKETS_PROBED,
    BY_FALL_OFF,
    CANDIDATES,
    COPIES_COLLAPSED,
    COPIES_RETURNED,
    EXACT,
    FALL_OFF,
    GREEDY,
    HASHED,
    NEAREST,
    NO_CHOICE,
    POINTS_HASHED,
    POINTS_SCORED,
    POOL_SIZE,
    SCAN,
    SCAN_HAMMING,
    TABLES,
    Hits,
    Index,
    Objective,
    Plan,
    Pool,
    Queries,
    Query,
    Results,
    Scratch,
    Span,
)
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.sparse import clear, dense_square, sparse_square, spread
from divgrpc.kernels.top_k import id_of, keep_within, sort_nearest, take_in_order, take_nearest


@kernel
def answer(index, scratch, plan, span, queries, results):
    """Answer queries; return 0, or the number of points for which `Scratch` is too small.

    `index`, `scratch`: registers of an `Index` and a `Scratch`; the others are plain tuples of the
    fields of `Plan`, `Span`, `Queries` and `Results`.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, span = Plan(*plan), Span(*span)
    queries, results = Queries(*queries), Results(*results)
    n = index.hashing.codes.shape[1]
    needed = nearest_needed(plan, n, sorted_by_length(index))
    for number in range(span.first, span.stop):
        place = number - span.first if span.together else -1
        query = _spread_query(index.points, queries, number, plan.product, scratch.selection)
        if place >= 0 and scratch.batch.counts[place] >= 0:
            hits = _take_batched(place, scratch)
        else:
            if plan.search != EXACT:
                _hash(index.hashing, queries, number, scratch.code)
            hits = _find(index, plan, query, needed, scratch)
        count, scored = hits.size, hits.scored
        if not (hits.room or plan.step == HASHED):
            scored, count = _score(
                index, plan, queries, number, query, place, count, scored, needed, scratch
            )
        _clear_query(queries, number, scratch.selection)
        if hits.room:
            return hits.room
        if plan.step == HASHED:
            _write_hashed(index.ids, hits, number, scratch.candidates.rows, results)
            continue
        all_points = hits.size == ALL_POINTS or (plan.search == EXACT and place >= 0)
        hashed, count = _limit_hashed(index, plan, n, hits.settled, count, all_points, scratch)
        pool = _limit_pool(plan, count, hashed, needed, all_points, scratch.candidates)
        stats = results.stats
        stats[POINTS_HASHED, number], stats[BUCKETS_PROBED, number] = hashed, hits.probes
        stats[POINTS_SCORED, number], stats[POOL_SIZE, number] = scored, pool.size
        stats[COPIES_COLLAPSED, number], stats[COPIES_RETURNED, number] = 0, 0
        _select(index, plan, number, pool, scratch, results)
    return 0


@part
def sorted_by_length(index):
    """Tell whether points come longest first, and short enough ones last for bounds to help."""
    return ends_early(index.length_bounds) and not index.cells.rows.shape[0]


@part
def nearest_needed(plan, n, by_length):
    """Return how many of the nearest points an answer depends on; only these need be exact."""
    needed = min(n, plan.hash_limit or n, plan.pool_limit or plan.candidates_limit or n)
    # If points are sorted by length, fewer are found sooner.
    return min(needed, plan.k) if by_length and plan.step == NEAREST else needed


@part
def _spread_query(points, queries, number, product, selection):
    """Return one of `Queries` as a `Query`; a sparse one is spread over `selection` and marked."""
    dense, row, square = queries.dense, number, 0.0
    if queries.indptr.shape[0]:
        start, stop = queries.indptr[number], queries.indptr[number + 1]
        spread(queries.indices, queries.values, start, stop, selection)
        if points.indptr.shape[0]:
            square = sparse_square(
                queries.indices, queries.values, start, stop, queries.dense.shape[1]
            )
        dense, row = selection.dense, 0
    elif points.indptr.shape[0]:
        square = dense_square(dense, row)
    return Query(dense, row, square, product)


@part
def _clear_query(queries, number, selection):
    if queries.indptr.shape[0]:
        clear(queries.indices, queries.indptr[number], queries.indptr[number + 1], selection)


# Hash.


@part
def _hash(hashing, queries, number, code):
    """Project the query onto the hyperplanes; its margins go to `code`."""
    project_query(queries, number, hashing, code.sketched, code.margins)


# Find.


@part
def _hits(settled, count, probes, scored, room):
    return Hits(
        np.int64(settled), np.int64(count), np.int64(probes), np.int64(scored), np.int64(room)
    )


@part
def _take_batched(place, scratch):
    """Return what `kernels.batch` found for the query in row `place` of `scratch.batch`."""
    batch, candidates = scratch.batch, scratch.candidates
    count = batch.counts[place]
    for i in range(count):
        candidates.rows[i] = batch.rows[place, i]
        candidates.distances[i] = batch.distances[place, i]
    return _hits(batch.settled[place], count, 0, batch.scored[place], 0)


@part
def _find(index, plan, query, needed, scratch):
    """Write the points of a hashed query into `scratch.candidates`, and return them as `Hits`."""
    n, candidates, code = index.hashing.codes.shape[1], scratch.candidates, scratch.code
    if plan.search == EXACT:
        return _hits(n, ALL_POINTS, 0, 0, 0)
    stop, scored, count, probes = n, 0, 0, 0
    by_scan = plan.search in (SCAN, SCAN_HAMMING)
    if by_scan and sorted_by_length(index) and reach_pays(index.length_bounds, needed, n):
        stop, scored = reach(
            index.points.vectors, query, index.length_bounds, needed, candidates.distances
        )
    limited = 0 < plan.hash_limit < stop
    if index.cells.centres.shape[0] and (plan.search == TABLES or limited):
        count, probes, room = find_in_cells(
            index.hashing, index.cells, plan, index.ids, candidates, code, scratch.scan,
            scratch.cells,
        )  # fmt: skip
        return _hits(count, count, probes, scored, room)
    if plan.search == TABLES:
        sign_code(code.margins, code.signs.reshape(code.signs.shape[0]))
        count, probes = find_in_tables(
            code.signs, code.margins, index.tables, plan, index.ids, scratch.probes, candidates.rows
        )
        if count >= plan.min_points:
            return _hits(count, count, probes, scored, 0)
    if not limited:
        return _hits(stop, ALL_POINTS, probes, scored, 0)
    settled, count = find_by_code(
        index.hashing, plan, index.ids, stop, scored, candidates, code, scratch.scan
    )
    return _hits(settled, count, probes, scored, 0)


@part
def _write_hashed(ids, hits, number, rows, results):
    """Write the ids of the hashed points as the results, as far as there is room."""
    unwritten = hits.size == ALL_POINTS
    written = min(hits.settled if unwritten else hits.size, results.ids.shape[1])
    for i in range(written):
        results.ids[number, i] = id_of(ids, i if unwritten else rows[i])
    results.counts[number] = written


# Score.


@part
def _score(index, plan, queries, number, query, place, count, scored, needed, scratch):
    """Write the distances of the points found; return (points scored, points left).

    A count of ALL_POINTS leaves a superset of the `needed` nearest.
    """
    points, candidates, marks = index.points, scratch.candidates, scratch.selection.marks
    rows, distances = candidates.rows, candidates.distances
    if place >= 0 and plan.search == EXACT:
        # Scored together with the other queries of the batch.
        return scored, count
    all_points, sparse_query = count == ALL_POINTS, queries.indptr.shape[0] > 0
    if all_points and sparse_query:
        start, stop = queries.indptr[number], queries.indptr[number + 1]
        columns, values = queries.indices[start:stop], queries.values[start:stop]
        n_candidates = min(needed, plan.candidates_limit or needed)
        if lists_pay(points, index.lists, columns, n_candidates):
            count = score_listed(
                points, index.lists, columns, values, query, needed, scratch.selection,
                candidates, scratch.sums,
            )  # fmt: skip
            return count, count
    n_scored = count
    if all_points and index.length_bounds.shape[0]:
        n_scored = score_longest(points.vectors, query, index.length_bounds, needed, distances)
    elif marks.shape[0] and sparse_query:
        score_marked(points, query, marks, rows, count, distances)
    elif all_points:
        score_all(points, query, distances)
    else:
        score_rows(points, query, rows, count, distances)
    if all_points:
        # The scratch memory of a search of all points has room for exactly these.
        n_scored = distances.shape[0] if n_scored == ALL_POINTS else n_scored
        return n_scored, take_nearest(distances[:n_scored], needed, rows)
    return n_scored + scored, count


@part
def _limit_hashed(index, plan, n, settled, count, all_points, scratch):
    """Cut points that tie for the last places of the hash limit; return (points hashed, left)."""
    hashed = min(n, plan.hash_limit or n)
    if not all_points:
        hashed = min(count, plan.hash_limit or count)
        if hashed < count:
            # Only a scan that does not sample ties uniformly leaves more.
            rows, distances = scratch.candidates.rows, scratch.candidates.distances
            sort_nearest(rows, distances, settled, count, hashed - settled, index.ids)
            count = hashed
    return hashed, count


@part
def _limit_pool(plan, count, hashed, needed, all_points, candidates):
    """Drop points beyond `max_distance`; return the `Pool` of the rest."""
    widest = needed
    if not all_points:
        widest = min(hashed, plan.pool_limit or plan.candidates_limit or hashed)
    count = keep_within(candidates.rows, candidates.distances, count, plan.max_distance)
    widest = min(count, widest)
    return Pool(min(widest, plan.candidates_limit or widest), widest, count)


# Select.


@part
def _select(index, plan, number, pool, scratch, results):
    """Sort the candidates as far as the selector needs, pick, and write the results."""
    rows, distances, ids = scratch.candidates.rows, scratch.candidates.distances, index.ids
    if plan.step == CANDIDATES:
        take_in_order(rows, distances, pool.total, pool.widest, ids)
        results.counts[number] = pool.widest
        return
    size, widest, count = pool
    if plan.step == GREEDY and widest > size:
        # The candidates after the pool stay, for a pool that grows.
        sort_nearest(rows, distances, 0, count, size, ids)
    else:
        size = min(size, plan.k) if plan.step == NEAREST else size
        take_in_order(rows, distances, count, size, ids)
        widest, count = size, size
    relevance = plan.relevance
    if plan.dial_choice == BY_FALL_OFF:
        relevance = _choose_dial(index.points, plan, number, size, scratch, results)
    if plan.step == GREEDY:
        objective = Objective(plan.k, relevance, plan.rule, plan.product, plan.copy_limit)
        n_picked, filled, copies, size = pick(
            index.points,
            ids,
            scratch.candidates,
            scratch.costs,
            Pool(size, widest, count),
            objective,
            scratch.selection,
            scratch.picked,
            results.selection_scores[number],
        )
        results.stats[POOL_SIZE, number] = size
        results.stats[COPIES_COLLAPSED, number] = copies
        results.stats[COPIES_RETURNED, number] = filled
    else:
        n_picked = min(plan.k, size)
        for i in range(n_picked):
            scratch.picked[i] = i
            results.selection_scores[number, i] = -distances[i]
    _write_results(ids, plan, number, n_picked, scratch, results)


@part
def _choose_dial(points, plan, number, count, scratch, results):
    """Choose and write the query's dial; return the relevance weight, float32."""
    step, reason = 0, NO_CHOICE
    if count > plan.k:
        step = fall_off_step(
            points, scratch.candidates, count, plan.k, plan.copy_limit, scratch.selection,
            plan.dial_factor, plan.metric,
        )  # fmt: skip
        reason = FALL_OFF
    results.dials[number], results.reasons[number] = step / STEPS, reason
    return np.float32(1) - np.float32(step) / np.float32(STEPS)


@part
def _write_results(ids, plan, number, n_picked, scratch, results):
    rows, distances, picked = scratch.candidates.rows, scratch.candidates.distances, scratch.picked
    for i in range(n_picked):
        results.ids[number, i] = id_of(ids, rows[picked[i]])
        results.scores[number, i] = relevance_of(distances[picked[i]], plan.metric)
    for i in range(n_picked, plan.k):
        results.ids[number, i] = -1
        results.scores[number, i] = np.float32(np.nan)
        results.selection_scores[number, i] = np.float32(np.nan)
    results.counts[number] = n_picked
