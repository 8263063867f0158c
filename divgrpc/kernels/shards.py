"""Answers one query whose points are divided among shards (`divgrpc.sharding`).

The stages of `kernels.query` run in two places. The router hashes the query and chooses cells
(`hash_query`). Each shard finds points and scores them (`find_by_cells`, `find_by_tables`,
`find_by_scan`, `score_found`). The router merges the replies (`kernels.replies`), and selects from
the points of all shards (`select_gathered`). All take the registers of an `Index` and a `Scratch`,
and plain tuples of the fields of `Plan`, `Queries` and `Results`.

A shard has the distances by code of the points that it finds in `Scratch.candidates.distances`.
"""

import numpy as np

from divgrpc.kernels.buckets import look_up_buckets
from divgrpc.kernels.cells import choose_cells, take_all, take_by_code
from divgrpc.kernels.code_scan import find_by_code, find_passing_by_code
from divgrpc.kernels.exact import score_marked, score_rows
from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.projection import project_query, sign_code
from divgrpc.kernels.query import limit_pool, select_results, spread_query
from divgrpc.kernels.records import (
    BUCKETS_PROBED,
    COPIES_COLLAPSED,
    COPIES_RETURNED,
    POINTS_HASHED,
    POINTS_SCORED,
    POOL_SIZE,
    SCAN_HAMMING,
    TABLES,
    Index,
    Plan,
    Queries,
    Results,
    Scratch,
)
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.sparse import clear
from divgrpc.kernels.top_k import keep_sample, sort_nearest

# What may be wrong with the arrays of a question to a shard.
NO_FAULT = 0
NOT_FINITE = 1
BAD_BASES = 2
BAD_CELL = 3
CELL_TWICE = 4

_INFINITY_BITS = np.int32(0x7F800000)


@kernel
def hash_query(index, scratch, plan, queries, number, counts, has_cells):
    """Write the margins of query row `number`, and choose cells if `has_cells` is set.

    counts: (C,) int32 number of points of each cell that pass a filter; empty without a filter.

    Returns the number of cells and the number of points in them; the cells are in `Scratch.cells`.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, queries = Plan(*plan), Queries(*queries)
    code, cells = scratch.code, index.cells
    project_query(queries, number, index.hashing, code.sketch_sums, code.margins)
    if not has_cells:
        return 0, 0
    n_probes = plan.n_probes if plan.search == TABLES else cells.centres.shape[0]
    n_cells, total = choose_cells(
        code, cells, counts, n_probes, plan.min_points, plan.product, scratch.scan, scratch.cells
    )
    return n_cells, np.int64(total)


@kernel
def find_by_cells(index, scratch, plan, margins, numbers, bases, is_limited):
    """Write the points of some cells into `Scratch.candidates`.

    Returns the number of points that are written, and of those in the cells.

    margins: (B,) float32 margins of the query.
    numbers, bases: (m,) int32 and float32, cells and the distances of their centres.
    is_limited: whether only the `plan.hash_limit` points nearest by code are written. Otherwise all
        points are, without distances.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, scratch_cells, code = Plan(*plan), scratch.cells, scratch.code
    starts, counts, total = index.cells.starts, scratch.passing.cells, 0
    for i in range(numbers.shape[0]):
        cell = numbers[i]
        scratch_cells.numbers[i], scratch_cells.distances[i] = cell, bases[i]
        total += counts[cell] if counts.shape[0] else starts[cell + 1] - starts[cell]
    if not total:
        # The kernels need a point.
        return 0, 0
    if not is_limited:
        take_all(
            index.hashing, index.cells, scratch.passing, scratch_cells.numbers, numbers.shape[0],
            scratch.candidates.rows,
        )  # fmt: skip
        return total, total
    for b in range(margins.shape[0]):
        code.margins[b] = margins[b]
    count = take_by_code(
        index.hashing, index.cells, plan.search == SCAN_HAMMING, min(plan.hash_limit, total),
        index.ids, scratch.passing, scratch.candidates, code, scratch.scan, scratch_cells,
        numbers.shape[0],
    )  # fmt: skip
    return count, total


@kernel
def find_by_tables(index, scratch, plan, margins, enough):
    """Write the points of the probed buckets into `Scratch.candidates`, in the order of the probes.

    enough: as for `buckets.look_up_buckets`, which also writes `Scratch.probes.tags`.

    If `plan.hash_limit` is above 0, only a sample of so many points is kept, unless more buckets
    than `plan.n_probes` were probed. Returns the number of points that are kept, the number of all
    points in these buckets, and the number of probes.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, code = Plan(*plan), scratch.code
    for b in range(margins.shape[0]):
        code.margins[b] = margins[b]
    sign_code(code.margins, code.signs.reshape(code.signs.shape[0]))
    _, count, n_probes = look_up_buckets(
        code.signs, code.margins, index.tables, plan, scratch.passing, scratch.probes,
        scratch.candidates.rows, enough,
    )  # fmt: skip
    kept = count
    if plan.hash_limit > 0 and n_probes <= max(1, plan.n_probes):
        kept = keep_sample(scratch.candidates.rows, 0, count, plan.hash_limit, index.ids, plan.seed)
    return kept, count, n_probes


@kernel
def find_by_scan(index, scratch, plan, margins):
    """Write the `plan.hash_limit` points nearest by code; return the start of ties and the number.

    The hash limit is at most the number of points that pass. If all ties are kept (see
    `code_scan.settle_ties`), more points than the limit are written.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, code, flags = Plan(*plan), scratch.code, scratch.passing.flags
    for b in range(margins.shape[0]):
        code.margins[b] = margins[b]
    if flags.shape[0]:
        return find_passing_by_code(
            index.hashing, plan, index.ids, flags, scratch.candidates, code, scratch.scan
        )
    return find_by_code(
        index.hashing, plan, index.ids, plan.n_points, 0, scratch.candidates, code, scratch.scan
    )


@kernel
def score_found(index, scratch, plan, queries, tie_start, count, limit, distances):
    """Write the distances of the first `count` found points from the first query row.

    distances: (r,) float32, to be written.

    If more than `limit` points were found, the points from `tie_start` on tie for the last places:
    the nearest of them come first.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, queries = Plan(*plan), Queries(*queries)
    points, selection, rows = index.points, scratch.selection, scratch.candidates.rows
    query = spread_query(points, queries, 0, plan.product, selection)
    is_sparse = queries.indptr.shape[0] > 0
    if selection.marks.shape[0] and is_sparse:
        score_marked(points, query, selection.marks, rows, count, distances)
    else:
        score_rows(points, query, rows, count, distances)
    if is_sparse:
        clear(queries.indices, queries.indptr[0], queries.indptr[1], selection)
    if limit < count:
        sort_nearest(rows, distances, tie_start, count, limit - tie_start, index.ids)


@kernel
def find_fault(margins, cells, bases, dense, values, n_cells):
    """Return what is wrong with the arrays of a question to a shard, or NO_FAULT.

    margins, bases, dense, values: float32, which must be finite. cells: (m,) int32, different
    numbers below `n_cells`, with a base (m,) for each.
    """
    for numbers in (margins, bases, dense, values):
        if not _are_finite(numbers):
            return NOT_FINITE
    return _find_fault_of_cells(cells, bases, n_cells)


@kernel
def _are_finite(numbers):
    largest = np.int32(0)
    for i in range(numbers.shape[0]):
        largest = max(largest, np.float32(numbers[i]).view(np.int32) & _INFINITY_BITS)
    return largest < _INFINITY_BITS


@allocating
def _find_fault_of_cells(cells, bases, n_cells):
    if cells.shape[0] != bases.shape[0]:
        return BAD_BASES
    is_read = np.zeros(n_cells if cells.shape[0] else 0, np.bool_)
    for i in range(cells.shape[0]):
        if not 0 <= cells[i] < n_cells:
            return BAD_CELL
        # The points of a cell that is read twice would not fit into memory.
        if is_read[cells[i]]:
            return CELL_TWICE
        is_read[cells[i]] = True
    return NO_FAULT


@allocating
def find_nearest(ids, distances, places):
    """Write the places of the nearest points, nearest first; ties go to the smaller id.

    ids, distances: (m,) int64 and float32. places: (v,) int32, to be written; v is at most m.
    """
    count = distances.shape[0]
    order, keys = np.empty(count, np.int32), np.empty(count, np.float32)
    for i in range(count):
        order[i], keys[i] = i, distances[i]
    sort_nearest(order, keys, 0, count, places.shape[0], ids)
    for i in range(places.shape[0]):
        places[i] = order[i]


@kernel
def select_gathered(index, scratch, plan, number, distances, n_hashed, results):
    """Select from the first points of the index, and write the results of a query.

    distances: (m,) float32 distances of these points from the query.

    The points include the nearest of `n_hashed` hashed points, as many as the plan looks at.
    """
    index, scratch = record_at(index, Index), record_at(scratch, Scratch)
    plan, results = Plan(*plan), Results(*results)
    count = distances.shape[0]
    for i in range(count):
        scratch.candidates.rows[i], scratch.candidates.distances[i] = i, distances[i]
    pool = limit_pool(plan, count, n_hashed, n_hashed, False, scratch.candidates)
    stats = results.stats
    stats[POINTS_HASHED, number] = n_hashed
    stats[BUCKETS_PROBED, number] = 0
    stats[POINTS_SCORED, number] = 0
    stats[POOL_SIZE, number] = pool.size
    stats[COPIES_COLLAPSED, number] = 0
    stats[COPIES_RETURNED, number] = 0
    select_results(index, plan, number, pool, scratch, results)
