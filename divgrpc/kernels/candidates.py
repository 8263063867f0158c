"""The hash stage of one query: its code, then the points that its search finds."""

import numpy as np

from divgrpc.kernels.buckets import find_tables
from divgrpc.kernels.cells import choose_cells
from divgrpc.kernels.code_scan import (
    BLOCK,
    estimate_block,
    keep_least,
    put_known,
    scan_asymmetric,
    scan_estimates,
    scan_hamming,
    take_largest,
    take_least,
)
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.projection import quantise, quantise_signs, sign_code
from divgrpc.kernels.sampling import keep_sample
from divgrpc.kernels.top_k import keep_nearest

EXACT = 0
TABLES = 1
SCAN = 2
SCAN_HAMMING = 3

EVERY = -1


@part
def find(hashing, tables, cells, plan, ids, stop, looked, scratch):
    """Write the hashed points into the scratch's rows; returns (sure, count, probes, lacking).

    A scan is of the first `stop` points; of `looked` of them the scratch has the distances. A count
    of EVERY means all points to stop, of which nothing is written. Points from `sure` on tie for
    the places that the hash limit leaves. `lacking` is 0, or how many points the scratch must have
    room for, and nothing is found. Arguments as in `answering._answer`; the margins are in the
    scratch.
    """
    search, n_probes, at_least, hash_limit = plan[0], plan[1], plan[2], plan[4]
    uniform, seed = plan[10], plan[11]
    rows, projections, code = scratch[0], scratch[2], scratch[3]
    count, probed = 0, 0
    every = search == EXACT or (search != TABLES and (hash_limit == 0 or hash_limit >= stop))
    if cells[2].shape[0] and not every:
        count, probed, lacking = find_cells(hashing, cells, plan, ids, scratch)
        return count, count, probed, lacking
    if search == TABLES or not every:
        sign_code(projections, code.reshape(code.shape[0]))
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
            return count, count, probed, 0
    if every or hash_limit == 0 or hash_limit >= stop:
        return 0, EVERY, probed, 0
    sure, count = find_by_code(hashing, plan, ids, stop, looked, scratch)
    return sure, count, probed, 0


@kernel
def find_cells(hashing, cells, plan, ids, scratch):
    """Take the nearest cells whole, or by code where they hold more than the hash limit.

    A scan is of all cells; that by Hamming distances keeps the signs alone of the query's margins.
    Returns (count, cells, lacking) as `find` does.
    """
    search, n_probes, at_least, hash_limit, product = plan[0], plan[1], plan[2], plan[4], plan[12]
    rows, estimates, projections, planes = scratch[0], scratch[1], scratch[2], scratch[4]
    (numbers, distances), block, fresh = scratch[7], scratch[5][3], scratch[5][4]
    codes, terms = hashing[2], hashing[3]
    starts, places = cells[4], cells[5]
    wanted = n_probes if search == TABLES else cells[2].shape[0]
    taken, total = choose_cells(
        projections, cells, wanted, at_least, product, planes, scratch[5], numbers, distances
    )
    probed = taken if search == TABLES else 0
    by_code = 0 < hash_limit < total
    lacking = min(total, 2 * hash_limit + BLOCK) if by_code else total
    if lacking > rows.shape[0]:
        return 0, probed, lacking
    count = 0
    if not by_code:
        for i in range(taken):
            for place in range(starts[numbers[i]], starts[numbers[i] + 1]):
                rows[count] = places[place]
                count += 1
        return count, probed, 0
    signs = search == SCAN_HAMMING
    unit, levels = quantise_signs(projections, planes) if signs else quantise(projections, planes)
    limit = np.float32(np.inf)
    for i in range(taken):
        stop = starts[numbers[i] + 1]
        for at in range(starts[numbers[i]], stop, BLOCK):
            end = min(stop, at + BLOCK)
            found, base = fresh[: end - at], distances[i]
            estimate_block(codes, planes, unit, levels, terms, at, base, block, found)
            count = keep_least(found, places[at:end], limit, count, rows, estimates)
            if count > 2 * hash_limit:
                limit = keep_nearest(rows, estimates, count, hash_limit, ids)
                count = hash_limit
    if count > hash_limit:
        keep_nearest(rows, estimates, count, hash_limit, ids)
    return min(count, hash_limit), probed, 0


@allocating
def find_by_code(hashing, plan, ids, stop, looked, scratch):
    """Take `hash_limit` of the first points by code; returns (sure, count) as `take_largest`."""
    hash_limit, uniform, seed = plan[4], plan[10], plan[11]
    rows, estimates, projections, code, planes = scratch[:5]
    scores, maxima, minima, block, _ = scratch[5]
    codes, terms = hashing[2], hashing[3]
    if plan[0] == SCAN_HAMMING:
        scan_hamming(codes, code.reshape(code.shape[0]), stop, scores, maxima)
    else:
        unit, levels = quantise(projections, planes)
        if terms.shape[0]:
            known = estimates[:looked].copy()
            scan_estimates(codes, planes, unit, levels, terms, stop, block, estimates, minima)
            if looked:
                # Long rows are estimated worst, and these were first.
                put_known(known, stop, estimates, minima)
            count = take_least(estimates, minima, stop, hash_limit, rows)
            keep_nearest(rows, estimates, count, hash_limit, ids)
            return hash_limit, hash_limit
        # Nothing but products, which have terms, ends before the last point.
        scan_asymmetric(codes, planes, scores, maxima)
    sure, count = take_largest(scores[:stop], maxima, hash_limit, rows)
    if uniform:
        count = keep_sample(rows, sure, count, hash_limit - sure, ids, seed)
    return sure, count
