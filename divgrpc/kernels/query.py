"""Answers one query from end to end in four stages: hash, find, score, select.

1. Hash: project the query onto the hyperplanes and write its margins into `QueryCode`. Exact search
   skips this stage.
2. Find: write up to `Plan.hash_limit` points (more if points tie in a scan) into
   `Scratch.candidates`, from hash tables, from cells or from a scan of all codes. Exact search, and
   a scan without a limit, find all points, and write none.
3. Score: compute the exact distances of the points found. If all points were found, only a superset
   of the nearest points is kept, and bounds on lengths or inverted lists may save most of the work.
4. Select: drop points farther than `Plan.max_distance`, sort, and pick k of the nearest
   `Plan.candidates_limit` points.

`Plan.step` may end a query earlier: HASH_ONLY after stage 2, CANDIDATES in stage 4 before the
picks. Queries that `kernels.batch` has searched together start after stage 2 (scans) or after stage
3 (exact search).

If `Scratch.passing` has points, a query has a filter, and only these points can be found. All
limits then count these points only. An exact search scores them by their rows.

If a search through cells needs more room than `Scratch` has, `answer` returns the number of points
that `Scratch` must be able to hold. The caller then enlarges `Scratch` and calls `answer` again.
"""

import numpy as np

from divgrpc.kernels import records
from divgrpc.kernels.buckets import find_in_tables
from divgrpc.kernels.cells import find_in_cells
from divgrpc.kernels.code_scan import find_by_code, find_passing_by_code
from divgrpc.kernels.dials import DIAL_STEPS, fall_off_step
from divgrpc.kernels.exact import (
    ALL_POINTS,
    count_points,
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
from divgrpc.kernels.records import Hits, Index, Pool, Query, Scratch
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.reports import report_on_nearest
from divgrpc.kernels.sparse import clear, dense_square, sparse_square, spread
from divgrpc.kernels.top_k import id_of, keep_within, sort_nearest, take_in_order, take_nearest


@kernel
def answer(index, scratch, plan, span, queries, results):
    """Answer queries; return 0, or how many points a `Scratch` that is too small must hold.

    `index` and `scratch` are registers of an `Index` and a `Scratch`. The other arguments are plain
    tuples of the fields of `Plan`, `Span`, `Queries` and `Results`.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, span = records.Plan(*plan), records.Span(*span)
    queries, results = records.Queries(*queries), records.Results(*results)
    n = count_open(index.points, scratch.passing)
    n_nearest = nearest_needed(plan, n, sorted_by_length(index))
    for number in range(span.first, span.stop):
        place = number - span.first if span.together else -1
        query = spread_query(index.points, queries, number, plan.product, scratch.selection)
        if place >= 0 and scratch.batch.counts[place] >= 0:
            hits = _take_from_batch(place, scratch)
        else:
            if plan.search != records.EXACT:
                code = scratch.code
                project_query(queries, number, index.hashing, code.sketch_sums, code.margins)
            hits = _find(index, plan, query, n_nearest, scratch)
        n_scored, count = hits.n_scored, hits.size
        if not (hits.room or plan.step == records.HASH_ONLY):
            n_scored, count = _score(
                index, plan, queries, number, query, place, hits, n_nearest, scratch
            )
        if queries.indptr.shape[0]:
            start, stop = queries.indptr[number], queries.indptr[number + 1]
            clear(queries.indices, start, stop, scratch.selection)
        if hits.room:
            return hits.room
        if plan.step == records.HASH_ONLY:
            _write_ids(index.result_ids, hits, number, scratch, results)
            continue
        all_points = hits.size == ALL_POINTS or (plan.search == records.EXACT and place >= 0)
        n_hashed, count = _limit_hashed(index, plan, n, hits, count, all_points, scratch)
        pool = limit_pool(plan, count, n_hashed, n_nearest, all_points, scratch.candidates)
        stats = results.stats
        stats[records.POINTS_HASHED, number] = n_hashed
        stats[records.BUCKETS_PROBED, number] = hits.n_probes
        stats[records.POINTS_SCORED, number] = n_scored
        stats[records.POOL_SIZE, number] = pool.size
        stats[records.COPIES_COLLAPSED, number] = 0
        stats[records.COPIES_RETURNED, number] = 0
        select_results(index, plan, number, pool, scratch, results)
    return 0


@part
def sorted_by_length(index):
    """Return whether later points are so short that bounds on lengths save work; False for cells.

    This is so if Build has sorted the points by length, and their lengths differ much. If a caller
    has sorted them, False is returned, because the result of a scan must not depend on the order in
    which points arrive.
    """
    by_length = index.longest_first.shape[0] > 0 and not index.cells.rows.shape[0]
    return by_length and ends_early(index.length_bounds)


@part
def nearest_needed(plan, n, by_length):
    """Return the number of nearest points that an answer depends on."""
    n_nearest = min(n, plan.hash_limit or n, plan.pool_limit or plan.candidates_limit or n)
    # If points are sorted by length, a search for fewer points ends earlier.
    return min(n_nearest, plan.k) if by_length and plan.step == records.NEAREST else n_nearest


@part
def count_open(points, passing):
    """Return the number of points that a query may return."""
    return passing.total[0] if passing.total.shape[0] else count_points(points)


@part
def spread_query(points, queries, number, product, selection):
    """Return a row of `Queries` as a `Query`; if it is sparse, write it into `selection.dense`."""
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


# Stage 2: find points.


@part
def _hits(tie_start, size, n_probes, n_scored, room):
    return Hits(
        np.int64(tie_start), np.int64(size), np.int64(n_probes), np.int64(n_scored), np.int64(room)
    )


@part
def _take_from_batch(place, scratch):
    """Copy the points that `kernels.batch` has found into `scratch.candidates`; return `Hits`."""
    batch, candidates = scratch.batch, scratch.candidates
    count = batch.counts[place]
    for i in range(count):
        candidates.rows[i] = batch.rows[place, i]
        candidates.distances[i] = batch.distances[place, i]
    return _hits(batch.tie_starts[place], count, 0, batch.n_scored[place], 0)


@part
def _find(index, plan, query, n_nearest, scratch):
    """Find points for a query, write them into `scratch.candidates`, and return `Hits`."""
    candidates, code, passing = scratch.candidates, scratch.code, scratch.passing
    is_filtered = passing.total.shape[0] > 0
    n = count_open(index.points, passing)
    if plan.search == records.EXACT:
        return _hits(n, ALL_POINTS, 0, 0, 0)
    stop, n_scored, count, n_probes = n, 0, 0, 0
    by_scan = plan.search in (records.SCAN, records.SCAN_HAMMING)
    by_length = sorted_by_length(index) and not is_filtered
    if by_scan and by_length and reach_pays(index.length_bounds, n_nearest, n):
        stop, n_scored = reach(
            index.points.vectors, query, index.length_bounds, n_nearest, candidates.distances
        )
    is_limit = 0 < plan.hash_limit < stop
    if index.cells.centres.shape[0] and (plan.search == records.TABLES or is_limit):
        count, n_probes, room = find_in_cells(
            index.hashing, index.cells, plan, index.ids, passing, candidates, code, scratch.scan,
            scratch.cells,
        )  # fmt: skip
        return _hits(count, count, n_probes, n_scored, room)
    if plan.search == records.TABLES:
        sign_code(code.margins, code.signs.reshape(code.signs.shape[0]))
        count, n_probes = find_in_tables(
            code.signs, code.margins, index.tables, plan, index.ids, passing, scratch.probes,
            candidates.rows,
        )  # fmt: skip
        if count >= plan.min_points:
            return _hits(count, count, n_probes, n_scored, 0)
    if not is_limit:
        return _hits(stop, ALL_POINTS, n_probes, n_scored, 0)
    if is_filtered:
        tie_start, count = find_passing_by_code(
            index.hashing, plan, index.ids, passing.flags, candidates, code, scratch.scan
        )
    else:
        tie_start, count = find_by_code(
            index.hashing, plan, index.ids, stop, n_scored, candidates, code, scratch.scan
        )
    return _hits(tie_start, count, n_probes, n_scored, 0)


@part
def _write_ids(ids, hits, number, scratch, results):
    """Write the ids of the hashed points as the results, at most as many as `results` can hold."""
    rows, every_row = scratch.candidates.rows, hits.size == ALL_POINTS
    if every_row and scratch.passing.rows.shape[0]:
        rows, every_row = scratch.passing.rows, False
    count = min(hits.tie_start if hits.size == ALL_POINTS else hits.size, results.ids.shape[1])
    for i in range(count):
        results.ids[number, i] = id_of(ids, i if every_row else rows[i])
    results.counts[number] = count


# Stage 3: score points.


@part
def _score(index, plan, queries, number, query, place, hits, n_nearest, scratch):
    """Write the distances of the hits; return the numbers of points scored and of points kept.

    If `hits.size` is ALL_POINTS, a superset of the nearest points is kept.
    """
    passing = scratch.passing.rows
    points, candidates, marks = index.points, scratch.candidates, scratch.selection.marks
    rows, distances, count = candidates.rows, candidates.distances, hits.size
    if place >= 0 and plan.search == records.EXACT:
        # `kernels.batch` has scored the points already.
        return hits.n_scored, count
    all_points, sparse_query = count == ALL_POINTS, queries.indptr.shape[0] > 0
    if all_points and sparse_query:
        start, stop = queries.indptr[number], queries.indptr[number + 1]
        columns, values = queries.indices[start:stop], queries.values[start:stop]
        n_candidates = min(n_nearest, plan.candidates_limit or n_nearest)
        if lists_pay(points, index.lists, columns, n_candidates, passing.shape[0], plan.n_points):
            count = score_listed(
                points, index.lists, columns, values, query, n_nearest, passing, scratch.selection,
                candidates, scratch.lists,
            )  # fmt: skip
            return count, count
    if all_points and passing.shape[0]:
        return _score_passing(points, query, passing, n_nearest, sparse_query, scratch)
    n_scored = count
    if all_points and index.length_bounds.shape[0]:
        n_scored = score_longest(points.vectors, query, index.length_bounds, n_nearest, distances)
    elif marks.shape[0] and sparse_query:
        score_marked(points, query, marks, rows, count, distances)
    elif all_points:
        score_all(points, query, distances)
    else:
        score_rows(points, query, rows, count, distances)
    if all_points:
        # In a search of all points, `distances` has exactly one entry per point.
        n_scored = distances.shape[0] if n_scored == ALL_POINTS else n_scored
        return n_scored, take_nearest(distances[:n_scored], n_nearest, rows)
    return n_scored + hits.n_scored, count


@part
def _score_passing(points, query, passing, n_nearest, sparse_query, scratch):
    """Score the rows `passing` (p,) int32; return p, and the size of a superset of the nearest."""
    rows, distances, marks = (
        scratch.candidates.rows,
        scratch.candidates.distances,
        scratch.selection.marks,
    )
    count = passing.shape[0]
    if marks.shape[0] and sparse_query:
        score_marked(points, query, marks, passing, count, distances)
    else:
        score_rows(points, query, passing, count, distances)
    kept = take_nearest(distances[:count], n_nearest, rows)
    for i in range(kept):
        rows[i] = passing[rows[i]]
    return count, kept


@part
def _limit_hashed(index, plan, n, hits, count, all_points, scratch):
    """Drop points beyond the hash limit; return the numbers of points hashed and of points kept."""
    if all_points:
        return min(n, plan.hash_limit or n), count
    n_hashed = min(count, plan.hash_limit or count)
    if n_hashed < count:
        # Only a scan that keeps all ties (`Plan.uniform` is False) finds more than the limit.
        rows, distances = scratch.candidates.rows, scratch.candidates.distances
        sort_nearest(rows, distances, hits.tie_start, count, n_hashed - hits.tie_start, index.ids)
    return n_hashed, n_hashed


@part
def limit_pool(plan, count, n_hashed, n_nearest, all_points, candidates):
    """Drop points farther than `max_distance`; return the `Pool` of the remaining points."""
    widest = n_nearest
    if not all_points:
        widest = min(n_hashed, plan.pool_limit or plan.candidates_limit or n_hashed)
    count = keep_within(candidates.rows, candidates.distances, count, plan.max_distance)
    widest = min(count, widest)
    return Pool(min(widest, plan.candidates_limit or widest), widest, count)


# Stage 4: select results.


@part
def select_results(index, plan, number, pool, scratch, results):
    """Sort as many candidates as the selector needs, pick, and write the results."""
    rows, distances, ids = scratch.candidates.rows, scratch.candidates.distances, index.ids
    size, widest, count = pool
    if plan.step == records.CANDIDATES:
        take_in_order(rows, distances, count, widest, ids)
    elif plan.step == records.GREEDY and widest > size:
        # Keep the candidates after the pool, because the pool may grow.
        sort_nearest(rows, distances, 0, count, size, ids)
    else:
        size = min(size, plan.k) if plan.step == records.NEAREST else size
        take_in_order(rows, distances, count, size, ids)
        widest, count = size, size
    relevance = plan.relevance
    if plan.dial_choice == records.BY_FALL_OFF:
        relevance = _choose_dial(index.points, plan, number, size, scratch, results)
    if plan.step == records.CANDIDATES:
        results.counts[number] = widest
        return
    if plan.step == records.GREEDY:
        objective = records.Objective(plan.k, relevance, plan.rule, plan.product, plan.copy_limit)
        n_picks, n_fillers, n_copies, size = pick(
            index.points, ids, scratch.candidates, scratch.costs, Pool(size, widest, count),
            objective, scratch.selection, scratch.picks, results.selection_scores[number],
        )  # fmt: skip
        results.stats[records.POOL_SIZE, number] = size
        results.stats[records.COPIES_COLLAPSED, number] = n_copies
        results.stats[records.COPIES_RETURNED, number] = n_fillers
    else:
        n_picks = min(plan.k, size)
        for i in range(n_picks):
            scratch.picks[i] = i
            results.selection_scores[number, i] = -distances[i]
    for i in range(n_picks):
        place = scratch.picks[i]
        results.ids[number, i] = id_of(index.result_ids, rows[place])
        results.scores[number, i] = relevance_of(distances[place], plan.metric)
    for i in range(n_picks, plan.k):
        results.ids[number, i] = -1
        results.scores[number, i] = np.float32(np.nan)
        results.selection_scores[number, i] = np.float32(np.nan)
    results.counts[number] = n_picks
    if results.reports.shape[1]:
        dial = results.dials[number] if results.dials.shape[0] else plan.dial
        report_on_nearest(
            index, scratch.candidates, size, scratch.picks, n_picks, plan.metric, dial, number,
            results.reports, results.plain_ids,
        )  # fmt: skip


@part
def _choose_dial(points, plan, number, count, scratch, results):
    """Choose the query's dial and write it into `results`; return 1 - dial as float32."""
    step, reason = 0, records.NO_CHOICE
    if count > plan.k:
        step = fall_off_step(
            points, scratch.candidates, count, plan.k, plan.copy_limit, scratch.selection,
            plan.dial_factor, plan.metric,
        )  # fmt: skip
        reason = records.FALL_OFF
    results.dials[number], results.reasons[number] = step / DIAL_STEPS, reason
    return np.float32(1) - np.float32(step) / np.float32(DIAL_STEPS)
