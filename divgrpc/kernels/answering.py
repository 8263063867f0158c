"""One query from end to end: hash, find, score, keep the candidates, select.

Arrays travel in plain tuples, in the order that each docstring gives, because numba takes a plain
tuple apart four times faster than a named one; into the first kernel most come by their addresses.
"""

import numpy as np

from divgrpc.kernels.addresses import arrays_at
from divgrpc.kernels.compiling import kernel, part
from divgrpc.kernels.finding import EVERY, EXACT, SCAN, SCAN_HAMMING, find
from divgrpc.kernels.hashing import project, project_sparse, sketch_dense, sketch_sparse
from divgrpc.kernels.ordering import sort_nearest, take_in_order, take_nearest, within
from divgrpc.kernels.postings import score_listed, worth_listing
from divgrpc.kernels.sampling import id_of
from divgrpc.kernels.scoring import (
    ends_early,
    reach,
    score_all,
    score_longest,
    score_marked,
    score_rows,
    worth_looking,
)
from divgrpc.kernels.selection import greedy, scale_costs
from divgrpc.kernels.sparse import (
    clear,
    dense_square,
    mark,
    sparse_square,
    spread,
    unmark,
)

NEAREST = 0
GREEDY = 1
# Give the hashed points themselves, scored by nobody.
HASHED = 2
# Leave the candidates, nearest first, and their distances in the scratch; `counts` has how many.
CANDIDATES = 3

COSINE = 0
EUCLIDEAN = 1
INNER_PRODUCT = 2


@kernel
def answer(index, memory, plan, queries, results):
    """Answer every query row; returns 0, or for how many points there must be room, and is void.

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
    )
    return _answer(
        arrays_at(index, "points"),
        arrays_at(index, "postings"),
        arrays_at(index, "named"),
        arrays_at(index, "hashing"),
        arrays_at(index, "tables"),
        arrays_at(index, "cells"),
        plan,
        queries,
        scratch,
        results,
    )


@part
def _answer(points, postings, named, hashing, tables, cells, plan, queries, scratch, results):
    """Answer every query row, as `answer` does.

    `points`: see `scoring.score_rows`; `postings`: see `postings.score_listed`. `named`: ids (n,)
    int64 or empty; for the inner product inverse lengths (n,) float32 and bounds (see
    `scoring.score_longest`), else empty. `hashing`: hyperplanes (m, B), thresholds (B,) float32,
    codes (W, n) uint64, terms (n,) uint32 (see `scanning.estimate`) or empty, sketch (d,)
    int32 (see `hashing.sketch_dense`) or empty, where m is d. `tables`: see `find_tables`. `cells`:
    see `rank_cells`; with cells, codes and terms go by place.
    `plan`: search, n_probes, at_least, k, hash_limit, candidates_limit (0: none), max_distance
    float32 (inf: none), selector, relevance float32, rule, uniform, seed uint64, product, metric.
    `queries`: dense (nq, d) float32, or indptr (nq + 1,) int64, indices int32 and values float32;
    what is not used is empty. `scratch`: rows (r,) int32, distances (r,) float32, projections (B,)
    float32, code (W, 1) and planes (5, W) uint64, scan scratch (scores (r,) int32, of the
    distances' memory, maxima int32, minima float32, block (BLOCK,) int32, fresh (BLOCK,)
    float32), probing scratch, cells scratch (numbers int32, distances float32), selection scratch
    (see `greedy`), costs float32, picked int64, sketched (1, m) float32, sums float32. With cells,
    unless all points are scored, r may be less than n.
    `results`: ids (nq, k) int64, scores and selection scores (nq, k) float32, counts (nq,) uint32,
    stats (4, nq) uint32: hashed, probed, scored, candidates.
    """
    ids, bounds, product = named[0], named[2], plan[12]
    hash_limit, candidates_limit, max_distance = plan[4], plan[5], plan[6]
    rows, distances = scratch[0], scratch[1]
    n = hashing[2].shape[1]
    statistics, falling = results[4], ends_early(bounds) and not cells[5].shape[0]
    for query in range(results[3].shape[0]):
        target, at = _spread_query(queries, query, scratch[8])
        if plan[0] != EXACT:
            project_query(queries, query, hashing, scratch[11], scratch[2])
        stop, looked = n, 0
        scanned = plan[0] == SCAN or plan[0] == SCAN_HAMMING
        if falling and scanned and worth_looking(bounds, _needed(plan, n), n):
            stop, looked = reach(points[0], target, at, bounds, _needed(plan, n), distances)
        sure, count, probed, lacking = find(
            hashing, tables, cells, plan, ids, stop, looked, scratch
        )
        if lacking:
            _clear_query(queries, query, scratch[8])
            return lacking
        if plan[7] == HASHED:
            _clear_query(queries, query, scratch[8])
            every = count == EVERY
            count = min(stop if every else count, results[0].shape[1])
            for i in range(count):
                results[0][query, i] = id_of(ids, i if every else rows[i])
            results[3][query] = count
            continue
        if count == EVERY:
            hashed = min(n, hash_limit) if hash_limit else n
            count = _needed(plan, n) if falling else min(hashed, candidates_limit or hashed)
            scored, count = _score_every(
                points, postings, bounds, queries, query, target, at, product, n, count, scratch
            )
        else:
            _score_found(points, queries, query, target, at, product, count, scratch)
            scored = looked + count
            hashed = min(count, hash_limit) if hash_limit else count
            if hashed < count:
                # Only the ties of a scan with sampling "nearest" come to this.
                sort_nearest(rows, distances, sure, count, hashed - sure, ids)
                count = hashed
        _clear_query(queries, query, scratch[8])
        count = within(rows, distances, count, max_distance)
        candidates = min(count, hashed, candidates_limit or hashed)
        wanted = min(candidates, plan[3]) if plan[7] == NEAREST else candidates
        take_in_order(rows, distances, count, wanted, ids)
        statistics[0, query], statistics[1, query] = hashed, probed
        statistics[2, query], statistics[3, query] = scored, candidates
        if plan[7] == CANDIDATES:
            results[3][query] = wanted
        else:
            _select(points, named, plan, query, wanted, scratch, results)
    return 0


@part
def _needed(plan, n):
    """Return how many of the nearest must be found for nothing of an answer to be another."""
    k, hash_limit, candidates_limit = plan[3], plan[4] or n, plan[5] or n
    needed = min(n, hash_limit, candidates_limit)
    return min(needed, k) if plan[7] == NEAREST else needed


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
def _score_every(points, postings, bounds, queries, query, target, at, product, n, wanted, scratch):
    """Write what the `wanted` nearest of all are among; returns how many were scored and are left.

    Their rows and distances go into the scratch.
    """
    rows, distances = scratch[0], scratch[1]
    if worth_listing(points, postings, queries, query, wanted):
        square, room = _square(points, queries, query, target, at), (rows, distances, scratch[12])
        scored = score_listed(
            points, postings, queries, query, scratch[8], square, product, wanted, room
        )
        return scored, scored
    scored = n
    if bounds.shape[0]:
        scored = score_longest(points[0], target, at, bounds, wanted, distances)
    else:
        _score_found(points, queries, query, target, at, product, EVERY, scratch)
    return scored, take_nearest(distances[:scored], wanted, rows)


@part
def _score_found(points, queries, query, target, at, product, count, scratch):
    """Write how far the scratch's first `count` rows are, or EVERY row, into its distances."""
    rows, distances, marks = scratch[0], scratch[1], scratch[8][3]
    square = _square(points, queries, query, target, at)
    if marks.shape[0] and queries[1].shape[0]:
        score_marked(points, target, marks, square, product, rows, count, distances)
    elif count == EVERY:
        score_all(points, target, at, square, product, distances)
    else:
        score_rows(points, target, at, square, product, rows, count, distances)


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
def project_query(queries, query, hashing, sketched, projections):
    """Write the query's margin to every hyperplane; arguments as in `_answer`."""
    dense, indptr, indices, values = queries
    hyperplanes, thresholds, places = hashing[0], hashing[1], hashing[4]
    if places.shape[0]:
        if indptr.shape[0]:
            sketch_sparse(indices, values, indptr[query], indptr[query + 1], places, sketched)
        else:
            sketch_dense(dense, query, places, sketched)
        project(sketched, 0, hyperplanes, projections)
    elif indptr.shape[0]:
        start, stop = indptr[query], indptr[query + 1]
        project_sparse(indices, values, start, stop, hyperplanes, projections)
    else:
        project(dense, query, hyperplanes, projections)
    for b in range(thresholds.shape[0]):
        projections[b] -= thresholds[b]


@part
def _select(points, named, plan, query, count, scratch, results):
    ids, inverses, _ = named
    rows, distances = scratch[0], scratch[1]
    costs, picked = scratch[9], scratch[10]
    k, selector, relevance, rule = plan[3], plan[7], plan[8], plan[9]
    found_ids, scores, gains = results[0][query], results[1][query], results[2][query]
    if selector == GREEDY:
        if plan[12] and count:
            scale_costs(distances, count, costs)
        else:
            costs = distances
        chosen = greedy(
            points, inverses, rows, costs, count, k, relevance, rule, scratch[8], picked, gains
        )
    else:
        chosen = min(k, count)
        for i in range(chosen):
            picked[i] = i
            gains[i] = -distances[i]
    for i in range(chosen):
        row = rows[picked[i]]
        found_ids[i] = id_of(ids, row)
        scores[i] = _score(distances[picked[i]], plan[13])
    for i in range(chosen, k):
        found_ids[i] = -1
        scores[i] = np.float32(np.nan)
        gains[i] = np.float32(np.nan)
    results[3][query] = chosen


@part
def _score(distance, metric):
    """Return the relevance in the metric's own direction: cosine, squared distance or product."""
    if metric == COSINE:
        return np.float32(1) - distance / np.float32(2)
    # Plus zero makes a product of minus zero a plain one.
    return distance if metric == EUCLIDEAN else np.float32(0) - distance
