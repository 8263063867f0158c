"""The hash stage of one query: its code, then the points that its search finds."""

from divgrpc.kernels.cells import choose_cells
from divgrpc.kernels.compiling import part
from divgrpc.kernels.hashing import quantise, sign_code
from divgrpc.kernels.probing import find_tables
from divgrpc.kernels.sampling import keep_sample
from divgrpc.kernels.scanning import (
    GROUP,
    estimate_run,
    group_maxima,
    name_rows,
    put_known,
    scan_asymmetric,
    scan_estimates,
    scan_hamming,
    score_run,
    take_largest,
    take_least,
)
from divgrpc.kernels.scoring import sort_nearest, take_nearest

EXACT = 0
TABLES = 1
SCAN = 2
SCAN_HAMMING = 3

EVERY = -1

# Four-bit levels go from -7 to 7.
_LEVEL = 7


@part
def find(hashing, tables, cells, plan, ids, stop, looked, scratch):
    """Write the hashed points into the scratch's rows; returns (sure, count, probes, lacking).

    A scan is of the first `stop` points; of `looked` of them the scratch has the distances. A count
    of EVERY means all points to stop, of which nothing is written. Points from `sure` on tie for
    the places that the hash limit leaves. `lacking` is 0, or how many points the scratch must have
    room for, and nothing is found. Arguments as in `answering.answer`; the margins are in the
    scratch.
    """
    search, n_probes, at_least, hash_limit = plan[0], plan[1], plan[2], plan[4]
    uniform, seed = plan[10], plan[11]
    rows, projections, code = scratch[0], scratch[2], scratch[3]
    count, probed = 0, 0
    if search != EXACT:
        sign_code(projections, code[:, 0])
    if search == TABLES:
        if cells[2].shape[0]:
            count, probed, lacking = _find_cells(hashing, cells, plan, ids, scratch)
            n, found = cells[5].shape[0], scratch[7][2]
            if not lacking and count < at_least and found.shape[0] < n:
                # Where estimates are no numbers all cells bring too few, and a scan comes next.
                lacking = n
            if lacking:
                return 0, 0, probed, lacking
        else:
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
    if search == EXACT or hash_limit == 0 or hash_limit >= stop:
        return 0, EVERY, probed, 0
    sure, count = _scan(hashing, cells[5], plan, ids, stop, looked, scratch)
    return sure, count, probed, 0


@part
def _find_cells(hashing, cells, plan, ids, scratch):
    """Take the nearest cells whole, or by code where they hold more than the hash limit.

    Returns (count, cells, lacking) as `find` does.
    """
    n_probes, at_least, hash_limit, product = plan[1], plan[2], plan[4], plan[12]
    rows, estimates, projections, planes = scratch[0], scratch[1], scratch[2], scratch[4]
    scores, maxima, histogram, _, block = scratch[5]
    numbers, distances, found = scratch[7]
    codes, terms = hashing[2], hashing[3]
    starts, places = cells[4], cells[5]
    probed, total = choose_cells(
        projections, cells, n_probes, at_least, product, numbers, distances
    )
    if total > found.shape[0]:
        return 0, probed, total
    by_code = 0 < hash_limit < total
    unit, levels = quantise(projections, planes)
    count = 0
    for i in range(probed):
        start, stop = starts[numbers[i]], starts[numbers[i] + 1]
        for place in range(start, stop):
            found[count + place - start] = places[place]
        if by_code and terms.shape[1]:
            run = estimates[count : count + stop - start]
            estimate_run(codes, planes, unit, levels, terms, start, stop, block, run)
        elif by_code:
            score_run(codes, planes, start, stop, scores[count : count + stop - start])
        count += stop - start
    if not by_code:
        for i in range(count):
            rows[i] = found[i]
        return count, probed, 0
    if terms.shape[1]:
        count = take_nearest(estimates[:count], hash_limit, rows)
        return _sort_estimates(estimates, count, hash_limit, found, ids, rows), probed, 0
    group_maxima(scores[:count], maxima)
    low = -_LEVEL * 64 * codes.shape[0]
    groups = maxima[: (count + GROUP - 1) // GROUP]
    sure, count = take_largest(scores[:count], groups, low, histogram, hash_limit, rows)
    name_rows(found, rows, count)
    return keep_sample(rows, sure, count, hash_limit - sure, ids, plan[11]), probed, 0


@part
def _scan(hashing, places, plan, ids, stop, looked, scratch):
    """Take `hash_limit` of the first points by code; returns (sure, count) as `take_largest`."""
    hash_limit, uniform, seed = plan[4], plan[10], plan[11]
    rows, estimates, projections, code, planes = scratch[:5]
    scores, maxima, histogram, minima, block = scratch[5]
    codes, terms = hashing[2], hashing[3]
    if plan[0] == SCAN_HAMMING:
        scan_hamming(codes, code[:, 0], stop, scores, maxima)
        low = -64 * codes.shape[0]
    else:
        unit, levels = quantise(projections, planes)
        if terms.shape[1]:
            known = estimates[:looked].copy()
            scan_estimates(codes, planes, unit, levels, terms, stop, block, estimates, minima)
            if looked:
                # Long rows are estimated worst, and these were first.
                put_known(known, stop, estimates, minima)
            count = take_least(estimates, minima, stop, hash_limit, rows)
            count = _sort_estimates(estimates, count, hash_limit, places, ids, rows)
            return count, count
        # Nothing but products, which have terms, ends before the last point.
        scan_asymmetric(codes, planes, scores, maxima)
        low = -_LEVEL * 64 * codes.shape[0]
    groups = maxima[: (stop + GROUP - 1) // GROUP]
    sure, count = take_largest(scores[:stop], groups, low, histogram, hash_limit, rows)
    name_rows(places, rows, count)
    if uniform:
        count = keep_sample(rows, sure, count, hash_limit - sure, ids, seed)
    return sure, count


@part
def _sort_estimates(estimates, count, wanted, places, ids, rows):
    """Sort the `wanted` least of the first `count` to the front, ties by id; returns how many."""
    name_rows(places, rows, count)
    sort_nearest(rows, estimates, 0, count, wanted, ids)
    # Were an estimate no number, fewer would be found.
    return min(count, wanted)
