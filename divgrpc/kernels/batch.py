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

from divgrpc.kernels.code_scan import (
    BLOCK_POINTS,
    block_distances,
    keep_least,
    levels_of,
    settle_ties,
)
from divgrpc.kernels.exact import BOUND_ROWS, all_beyond, query_length_bound
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.projection import project_query
from divgrpc.kernels.query import nearest_needed, sorted_by_length
from divgrpc.kernels.records import SCAN_HAMMING, Index, Levels, Plan, Queries, Scratch
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.top_k import keep_nearest, keep_ties
from divgrpc.kernels.vector_sums import row_distance, row_distances, row_dot, row_dots

# Most queries that are searched together.
BATCH_QUERIES = 16
# Queries whose sums stay in registers while a point is read; BLOCK_POINTS holds their distances.
_LANE_QUERIES = BLOCK_POINTS // BOUND_ROWS


@kernel
def score_batch(index, scratch, plan, queries, first, count):
    """Keep, for each of some dense queries, a superset of the nearest of all points, scored.

    Points are dense. With bounds on lengths a query ends where `exact.score_longest` ends.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, dense = Plan(*plan), Queries(*queries).dense
    vectors, bounds, batch = index.points.vectors, index.length_bounds, scratch.batch
    names, distances = scratch.candidates.rows, scratch.scan.distances
    n = vectors.shape[0]
    n_nearest = nearest_needed(plan, n, sorted_by_length(index))
    # Bounds are compared with the limit after each block, so it must be up to date.
    count_max = n_nearest if bounds.shape[0] else 2 * n_nearest
    for q in range(count):
        batch.counts[q], batch.n_scored[q], batch.limits[q] = 0, n, np.float32(np.inf)
    for start in range(0, n, BOUND_ROWS):
        m, n_open = min(BOUND_ROWS, n - start), 0
        for i in range(m):
            names[i] = start + i
        for low in range(0, count, _LANE_QUERIES):
            lanes, n_open_lanes = min(_LANE_QUERIES, count - low), 0
            for q in range(low, low + lanes):
                if bounds.shape[0] and batch.n_scored[q] == n:
                    length = query_length_bound(dense, first + q)
                    if all_beyond(bounds[start // BOUND_ROWS], length, batch.limits[q]):
                        batch.n_scored[q] = start
                n_open_lanes += batch.n_scored[q] == n
            n_open += n_open_lanes
            if n_open_lanes == 0:
                continue
            _score_lanes(vectors, start, m, dense, first + low, lanes, plan.product, distances)
            for q in range(low, low + lanes):
                if batch.n_scored[q] < n:
                    continue
                lane = (q - low) * BOUND_ROWS
                size = keep_least(
                    distances[lane : lane + m], names, batch.limits[q], batch.counts[q],
                    batch.rows[q], batch.distances[q],
                )  # fmt: skip
                if size > count_max:
                    batch.limits[q] = keep_nearest(
                        batch.rows[q], batch.distances[q], size, n_nearest, index.ids
                    )
                    size = n_nearest
                batch.counts[q] = size
        if n_open == 0:
            return


@kernel
def _score_lanes(vectors, start, m, dense, first, lanes, product, distances):
    """Write the distances of m points from `start` on for each lane; idle lanes repeat the last."""
    last = first + lanes - 1
    four = (first, min(first + 1, last), min(first + 2, last), last)
    a, b = distances[:m], distances[BOUND_ROWS : BOUND_ROWS + m]
    c = distances[2 * BOUND_ROWS : 2 * BOUND_ROWS + m]
    d = distances[3 * BOUND_ROWS : 3 * BOUND_ROWS + m]
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
    hashing, batch, ids = index.hashing, scratch.batch, index.ids
    names, scores, hash_limit = scratch.candidates.rows, scratch.scan.scores, plan.hash_limit
    hamming, n = plan.search == SCAN_HAMMING, hashing.codes.shape[1]
    estimates = hashing.terms.shape[0] > 0 and not hamming
    for q in range(count):
        project_query(queries, first + q, hashing, scratch.code.sketch_sums, batch.margins[q])
        levels = levels_of(batch.margins[q], hamming, batch.planes[5 * q : 5 * q + 5])
        batch.units[q], batch.level_sums[q] = levels.unit, levels.level_sum
        batch.counts[q], batch.n_scored[q], batch.limits[q] = 0, 0, np.float32(np.inf)
    for start in range(0, n, BLOCK_POINTS):
        block = scratch.scan.distances[: min(BLOCK_POINTS, n - start)]
        for i in range(block.shape[0]):
            names[i] = start + i
        for q in range(count):
            rows, distances = batch.rows[q], batch.distances[q]
            if batch.counts[q] < 0:
                continue
            planes = batch.planes[5 * q : 5 * q + 5]
            levels = Levels(planes, batch.units[q], batch.level_sums[q], hamming)
            block_distances(
                hashing.codes, hashing.terms, levels, start, np.float32(0), scores, block
            )
            size = keep_least(block, names, batch.limits[q], batch.counts[q], rows, distances)
            if size > 2 * hash_limit and estimates:
                batch.limits[q] = keep_nearest(rows, distances, size, hash_limit, ids)
                size = hash_limit
            elif size > 2 * hash_limit:
                batch.limits[q], size = keep_ties(rows, distances, size, hash_limit)
                # The next block may bring as many again as there is room for beside them.
                size = -1 if size > 2 * hash_limit else size
            batch.counts[q] = size
    for q in range(count):
        if batch.counts[q] > 0:
            batch.tie_starts[q], batch.counts[q] = settle_ties(
                batch.rows[q], batch.distances[q], batch.counts[q], estimates, plan, ids
            )
