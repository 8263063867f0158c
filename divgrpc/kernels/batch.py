"""Queries searched together: what they read of the points is read once for all of them.

A pass over all points, or over more codes than caches hold, waits for memory. Here points come
block by block, and each query keeps its nearest: the same points, to the bit, as when alone.
`BatchScratch` has a row for each query, with room for twice as many points as it keeps and a block.
`query.answer` continues from there, with `Span.together`.

The kernels take the registers of an `Index` and a `Scratch`, plain tuples of the fields of `Plan`
and `Queries`, and which queries to search: `count` of them from row `first` on, at most
BATCH_QUERIES.
"""

import numpy as np

from divgrpc.kernels.code_scan import BLOCK, estimate_block, hamming_block, keep_least, score_block
from divgrpc.kernels.exact import BOUND_ROWS, all_beyond, query_length_bound
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.projection import project_query, quantise, sign_code
from divgrpc.kernels.query import nearest_needed, sorted_by_length
from divgrpc.kernels.records import SCAN_HAMMING, Index, Plan, Queries, Scratch
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.top_k import keep_nearest, keep_sample, keep_ties
from divgrpc.kernels.vector_sums import row_distance, row_distances, row_dot, row_dots

# Most queries that are searched together.
BATCH_QUERIES = 16
# Queries whose sums stay in registers while a point is read; BLOCK holds their distances.
_LANE_QUERIES = BLOCK // BOUND_ROWS


@kernel
def score_batch(index, scratch, plan, queries, first, count):
    """Keep, for each of some dense queries, a superset of the nearest of all points, scored.

    Points are dense. With bounds on lengths a query ends where `exact.score_longest` ends.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, dense = Plan(*plan), Queries(*queries).dense
    vectors, bounds, batch = index.points.vectors, index.length_bounds, scratch.batch
    names, fresh = scratch.candidates.rows, scratch.scan.block_distances
    n = vectors.shape[0]
    needed = nearest_needed(plan, n, sorted_by_length(index))
    for q in range(count):
        batch.counts[q], batch.scored[q], batch.limits[q] = 0, n, np.float32(np.inf)
    for start in range(0, n, BOUND_ROWS):
        m, unfinished = min(BOUND_ROWS, n - start), 0
        for i in range(m):
            names[i] = start + i
        for low in range(0, count, _LANE_QUERIES):
            lanes, searching = min(_LANE_QUERIES, count - low), 0
            for q in range(low, low + lanes):
                if bounds.shape[0] and batch.scored[q] == n:
                    length = query_length_bound(dense, first + q)
                    if all_beyond(bounds[start // BOUND_ROWS], length, batch.limits[q]):
                        batch.scored[q] = start
                searching += batch.scored[q] == n
            unfinished += searching
            if searching == 0:
                continue
            _score_lanes(vectors, start, m, dense, first + low, lanes, plan.product, fresh)
            for q in range(low, low + lanes):
                if batch.scored[q] < n:
                    continue
                lane = (q - low) * BOUND_ROWS
                kept = keep_least(
                    fresh[lane : lane + m], names, batch.limits[q], batch.counts[q], batch.rows[q],
                    batch.distances[q],
                )  # fmt: skip
                # Bounds are compared with the limit after each block, so it must be up to date.
                if kept > (needed if bounds.shape[0] else 2 * needed):
                    batch.limits[q] = keep_nearest(
                        batch.rows[q], batch.distances[q], kept, needed, index.ids
                    )
                    kept = needed
                batch.counts[q] = kept
        if unfinished == 0:
            return


@kernel
def _score_lanes(vectors, start, m, dense, first, lanes, product, fresh):
    """Write the distances of m points from `start` on for each lane; idle lanes repeat the last."""
    last = first + lanes - 1
    four = (first, min(first + 1, last), min(first + 2, last), last)
    a, b = fresh[:m], fresh[BOUND_ROWS : BOUND_ROWS + m]
    c, d = fresh[2 * BOUND_ROWS : 2 * BOUND_ROWS + m], fresh[3 * BOUND_ROWS : 3 * BOUND_ROWS + m]
    if lanes == 1 and product:
        for i in range(m):
            a[i] = -row_dot(dense, first, vectors, start + i)
    elif lanes == 1:
        for i in range(m):
            a[i] = row_distance(dense, first, vectors, start + i)
    elif product:
        for i in range(m):
            w, x, y, z = row_dots(dense, four, vectors, start + i)
            a[i], b[i], c[i], d[i] = -w, -x, -y, -z
    else:
        for i in range(m):
            a[i], b[i], c[i], d[i] = row_distances(dense, four, vectors, start + i)


@kernel
def scan_batch(index, scratch, plan, queries, first, count):
    """Keep, for each of some queries, its `hash_limit` points by code, in no order.

    The plan is a scan of all points with a hash limit below n, and no bounds on lengths end it. The
    count of a query is -1 if more points tie than there is room for.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, queries = Plan(*plan), Queries(*queries)
    hashing, batch = index.hashing, scratch.batch
    names, scores = scratch.candidates.rows, scratch.scan.block_scores
    codes, terms, hash_limit = hashing.codes, hashing.terms, plan.hash_limit
    signs, n = plan.search == SCAN_HAMMING, hashing.codes.shape[1]
    estimated = terms.shape[0] > 0 and not signs
    for q in range(count):
        planes = batch.planes[5 * q : 5 * q + 5]
        project_query(queries, first + q, hashing, scratch.code.sketched, batch.margins[q])
        if signs:
            sign_code(batch.margins[q], planes[0])
        else:
            batch.units[q], batch.level_sums[q] = quantise(batch.margins[q], planes)
        batch.counts[q], batch.scored[q], batch.limits[q] = 0, 0, np.float32(np.inf)
    for start in range(0, n, BLOCK):
        m = min(BLOCK, n - start)
        block, fresh = scores[:m], scratch.scan.block_distances[:m]
        for i in range(m):
            names[i] = start + i
        for q in range(count):
            kept, planes = batch.counts[q], batch.planes[5 * q : 5 * q + 5]
            rows, distances = batch.rows[q], batch.distances[q]
            if kept < 0:
                continue
            if estimated:
                unit, level_sum, base = batch.units[q], batch.level_sums[q], np.float32(0)
                estimate_block(codes, planes, unit, level_sum, terms, start, base, scores, fresh)
            else:
                if signs:
                    hamming_block(codes, planes[0], start, block)
                else:
                    score_block(codes, planes, start, block)
                # Far below 2**24, from which on float32 rounds integers.
                for i in range(m):
                    fresh[i] = -block[i]
            kept = keep_least(fresh, names, batch.limits[q], kept, rows, distances)
            if kept > 2 * hash_limit and estimated:
                batch.limits[q] = keep_nearest(rows, distances, kept, hash_limit, index.ids)
                kept = hash_limit
            elif kept > 2 * hash_limit:
                batch.limits[q], kept = keep_ties(rows, distances, kept, hash_limit)
                # The next block may bring as many again as there is room for beside them.
                kept = -1 if kept > 2 * hash_limit else kept
            batch.counts[q] = kept
    for q in range(count):
        _settle(batch, q, estimated, plan, index.ids)


@kernel
def _settle(batch, q, estimated, plan, ids):
    """Cut what a query keeps to its `hash_limit` points, and ties unless they are sampled."""
    rows, distances = batch.rows[q], batch.distances[q]
    kept, hash_limit = batch.counts[q], plan.hash_limit
    if estimated:
        if kept > hash_limit:
            keep_nearest(rows, distances, kept, hash_limit, ids)
        batch.counts[q], batch.settled[q] = hash_limit, hash_limit
    elif kept > 0:
        _, kept = keep_ties(rows, distances, kept, hash_limit)
        settled = _put_ties_last(rows, distances, kept)
        if plan.uniform:
            kept = keep_sample(rows, settled, kept, hash_limit - settled, ids, plan.seed)
        batch.counts[q], batch.settled[q] = kept, settled


@kernel
def _put_ties_last(rows, distances, count):
    """Move what is less than the greatest distance to the front; return how many that are."""
    greatest, settled = distances[0], 0
    for i in range(count):
        greatest = max(greatest, distances[i])
    for i in range(count):
        row, distance = rows[i], distances[i]
        rows[i], distances[i] = rows[settled], distances[settled]
        rows[settled], distances[settled] = row, distance
        settled += distance < greatest
    return settled
