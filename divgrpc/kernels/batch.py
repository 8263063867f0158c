"""Searches several queries together, and reads the points or codes once for all of them.

The speed of a pass over all points, or over more codes than fit into the caches, is limited by
memory. The kernels of this module therefore read the points or codes block by block, and keep for
each query the nearest points read so far. The answers are bit-identical to those of searching each
query alone. A query's row of `BatchScratch` has room for twice as many points as the query keeps,
plus one block. If `Span.together` is set, `query.answer` continues from these rows.

The kernels take the registers of an `Index` and a `Scratch`, and plain tuples of the fields of
`Plan` and `Queries`. They search `count` query rows, at most BATCH_QUERIES, from row `first` on.
"""

import numpy as np

from divgrpc.kernels.code_scan import (
    BLOCK_POINTS,
    block_distances,
    keep_least,
    levels_of,
    settle_ties,
)
from divgrpc.kernels.exact import BOUND_ROWS, all_beyond, count_points, query_length_bound
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.projection import project_query
from divgrpc.kernels.query import nearest_needed, sorted_by_length
from divgrpc.kernels.records import SCAN_HAMMING, Index, Levels, Plan, Queries, Scratch
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.top_k import keep_nearest, keep_ties
from divgrpc.kernels.vector_sums import row_distance, row_distances, row_dot, row_dots

# Maximum number of queries that are searched together.
BATCH_QUERIES = 16
# Number of queries (lanes) whose distances from a point are computed at once, with all sums in
# registers. Their distances from BOUND_ROWS points fit into BLOCK_POINTS entries.
_LANE_QUERIES = BLOCK_POINTS // BOUND_ROWS


@kernel
def score_batch(index, scratch, plan, queries, first, count):
    """Score all points for several queries; keep a superset of the nearest points of each.

    Points and queries are dense. If the index has bounds on lengths, the search for a query ends at
    the same block as in `exact.score_longest`.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, dense = Plan(*plan), Queries(*queries).dense
    vectors, bounds, batch = index.points.vectors, index.length_bounds, scratch.batch
    names, distances = scratch.candidates.rows, scratch.scan.distances
    n = vectors.shape[0]
    n_nearest = nearest_needed(plan, n, sorted_by_length(index))
    # If the index has bounds on lengths, keep only the nearest points after each block. This
    # updates the limit that the bound of the next block is compared with.
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
    """Write the distances of points `start` to start + m - 1 from up to four queries (lanes).

    The distances of lane i are written into `distances`, starting at entry i * BOUND_ROWS. If there
    are fewer than four queries, the last query is repeated.
    """
    last = first + lanes - 1
    lane_queries = (first, min(first + 1, last), min(first + 2, last), last)
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
            w, x, y, z = row_dots(dense, lane_queries, vectors, start + i)
            a[i], b[i], c[i], d[i] = -w, -x, -y, -z
    else:
        for i in range(m):
            a[i], b[i], c[i], d[i] = row_distances(dense, lane_queries, vectors, start + i)


@kernel
def scan_batch(index, scratch, plan, queries, first, count):
    """Scan all codes for several queries; keep the `hash_limit` points nearest to each, unsorted.

    More points are kept if `code_scan.settle_ties` keeps ties. The plan must be a scan of all n
    points with a hash limit below n. If too many points tie for a query, the entry of this query in
    `BatchScratch.counts` is set to -1.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, queries = Plan(*plan), Queries(*queries)
    hashing, batch, ids = index.hashing, scratch.batch, index.ids
    names, hash_limit = scratch.candidates.rows, plan.hash_limit
    hamming, n = plan.search == SCAN_HAMMING, count_points(index.points)
    estimates = hashing.terms.shape[0] > 0 and not hamming
    groups = scratch.code.tables.shape[0]
    for q in range(count):
        project_query(queries, first + q, hashing, scratch.code.sketch_sums, batch.margins[q])
        tables = batch.tables[q * groups : (q + 1) * groups]
        levels = levels_of(batch.margins[q], hamming, hamming, hashing.codes, tables)
        batch.depths[q], batch.biases[q] = levels.depth, levels.bias
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
            levels = Levels(
                batch.tables[q * groups : (q + 1) * groups], batch.depths[q], batch.biases[q],
                batch.units[q], batch.level_sums[q], hamming,
            )  # fmt: skip
            block_distances(
                hashing.codes, hashing.terms, levels, start, start + block.shape[0], np.float32(0),
                scratch.scan.distances,
            )  # fmt: skip
            size = keep_least(block, names, batch.limits[q], batch.counts[q], rows, distances)
            if size > 2 * hash_limit and estimates:
                batch.limits[q] = keep_nearest(rows, distances, size, hash_limit, ids)
                size = hash_limit
            elif size > 2 * hash_limit:
                batch.limits[q], size = keep_ties(rows, distances, size, hash_limit)
                # If ties leave more than 2 * hash_limit points, the points of the next block may
                # not fit.
                size = -1 if size > 2 * hash_limit else size
            batch.counts[q] = size
    for q in range(count):
        if batch.counts[q] > 0:
            batch.tie_starts[q], batch.counts[q] = settle_ties(
                batch.rows[q], batch.distances[q], batch.counts[q], estimates, plan, ids
            )
