"""One query from end to end: hash, find, score, keep the candidates, select.

Arrays travel in plain tuples, in the order that each docstring gives, because numba takes a plain
tuple apart four times faster than a named one.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel
from divgrpc.kernels.hashing import project, quantise, sign_code
from divgrpc.kernels.probing import find_tables
from divgrpc.kernels.scanning import scan_asymmetric, scan_hamming, take_largest
from divgrpc.kernels.scoring import score_all, score_rows, sort_nearest, take_nearest, within
from divgrpc.kernels.selection import greedy

EXACT = 0
TABLES = 1
SCAN = 2
SCAN_HAMMING = 3

NEAREST = 0
GREEDY = 1

_EVERY = -1


@kernel
def answer(points, hashing, tables, plan, queries, scratch, results):
    """Answer every row of `queries` (nq, d) float32 unit vectors.

    `points`: vectors (n, d) float32, ids (n,) int64 or empty. `hashing`: hyperplanes (d, B) and
    thresholds (B,) float32, codes (B / 64, n) uint64. `tables`: see `find_tables`. `plan`: search,
    n_probes, at_least, k, hash_limit, candidates_limit (0: none), max_distance float32 (inf: none),
    selector, relevance float32, rule, uniform, seed uint64. `scratch`: rows (n,) int32,
    distances (n,) float32, projections (B,) float32, code (B / 64, 1) and planes (4, B / 64)
    uint64, scan scratch (scores, maxima, histogram int32), probing scratch, block (m, d) and apart
    float32, picked int64. `results`, written: ids (nq, k) int64, scores and selection scores
    (nq, k) float32, counts (nq,) uint32, stats (4, nq) uint32: hashed, probed, scored, candidates.
    """
    for query in range(queries.shape[0]):
        _answer_row(points, hashing, tables, plan, queries, query, scratch, results)


@kernel
def _answer_row(points, hashing, tables, plan, queries, query, scratch, results):
    vectors, ids = points
    hash_limit, candidates_limit, max_distance = plan[4], plan[5], plan[6]
    rows, distances = scratch[0], scratch[1]
    sure, count, probed = _find(points, hashing, tables, plan, queries, query, scratch)
    if count == _EVERY:
        scored = vectors.shape[0]
        hashed = min(scored, hash_limit) if hash_limit else scored
        score_all(vectors, queries, query, distances)
        count = take_nearest(distances, min(hashed, candidates_limit or hashed), rows)
    else:
        score_rows(vectors, queries, query, rows, count, distances)
        scored = count
        hashed = min(count, hash_limit) if hash_limit else count
        if hashed < count:
            # Only the ties of a scan with sampling "nearest" come to this.
            sort_nearest(rows, distances, sure, count, hashed - sure, ids)
            count = hashed
    count = within(rows, distances, count, max_distance)
    candidates = min(count, hashed, candidates_limit or hashed)
    wanted = min(candidates, plan[3]) if plan[7] == NEAREST else candidates
    sort_nearest(rows, distances, 0, count, wanted, ids)
    statistics = results[4]
    statistics[0, query], statistics[1, query] = hashed, probed
    statistics[2, query], statistics[3, query] = scored, candidates
    _select(vectors, ids, plan, query, wanted, scratch, results)


@kernel
def _find(points, hashing, tables, plan, queries, query, scratch):
    """Write the hashed points into the scratch's rows; returns (sure, count, probes).

    A count of _EVERY means all points, of which nothing is written.

    Points from `sure` on tie for the places that the hash limit leaves.
    """
    hyperplanes, thresholds, codes = hashing
    search, n_probes, at_least, hash_limit = plan[0], plan[1], plan[2], plan[4]
    uniform, seed = plan[10], plan[11]
    rows, projections, code, planes = scratch[0], scratch[2], scratch[3], scratch[4]
    ids, n = points[1], points[0].shape[0]
    count, probed = 0, 0
    if search != EXACT:
        project(queries, query, hyperplanes, thresholds, projections)
        sign_code(projections, code[:, 0])
    if search == TABLES:
        count, probed = find_tables(
            code,
            projections,
            tables,
            n_probes,
            at_least,
            hash_limit,
            uniform,
            ids,
            seed,
            scratch[6],
            rows,
        )
        if count >= at_least:
            return count, count, probed
    if search == EXACT or hash_limit == 0 or hash_limit >= n:
        return 0, _EVERY, probed
    scores, maxima, histogram = scratch[5]
    if search == SCAN_HAMMING:
        scan_hamming(codes, code[:, 0], scores, maxima)
        low = -64 * codes.shape[0]
    else:
        quantise(projections, planes)
        scan_asymmetric(codes, planes, scores, maxima)
        # Four-bit levels go from -7 to 7.
        low = -7 * 64 * codes.shape[0]
    sure, count = take_largest(scores, maxima, low, histogram, hash_limit, ids, seed, uniform, rows)
    return sure, count, probed


@kernel
def _select(vectors, ids, plan, query, count, scratch, results):
    rows, distances, block = scratch[0], scratch[1], scratch[7]
    apart, picked = scratch[8], scratch[9]
    k, selector, relevance, rule = plan[3], plan[7], plan[8], plan[9]
    found_ids, scores, values = results[0][query], results[1][query], results[2][query]
    if selector == GREEDY:
        chosen = greedy(
            vectors, rows, distances, count, k, relevance, rule, block, apart, picked, values
        )
    else:
        chosen = min(k, count)
        for i in range(chosen):
            picked[i] = i
            values[i] = -distances[i]
    for i in range(chosen):
        row = rows[picked[i]]
        found_ids[i] = ids[row] if ids.shape[0] else row
        # The cosine of unit vectors.
        scores[i] = np.float32(1) - distances[picked[i]] / np.float32(2)
    for i in range(chosen, k):
        found_ids[i] = -1
        scores[i] = np.float32(np.nan)
        values[i] = np.float32(np.nan)
    results[3][query] = chosen
