"""Scans all codes: computes a distance for each point, then takes the points of least distance.

Codes are stored in tiles of 32 points (`kernels.tiles`), and scored by looking up tables of the
query (`kernels.look_ups`). The score of a point is an integer and is the same on every machine. A
larger score means a nearer point. As float32, scores are exact, because they stay far below 2**24.
The distance of a point is estimated from the score and the terms of the point. If the index has no
terms, the distance is minus the score. If only signs are compared, it is the Hamming distance.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.look_ups import TILE_POINTS, tile_distances
from divgrpc.kernels.projection import ENTRY_ZERO, quantise, quantise_signs
from divgrpc.kernels.records import SCAN_HAMMING, Levels
from divgrpc.kernels.top_k import keep_nearest, keep_sample, kth_least, move_to_front

# Number of points in a block. A block is scored as a whole, and its distances fit into the
# first-level cache.
BLOCK_POINTS = 1024
# Number of points in a group. The minimum distance of each group is stored. This number must divide
# BLOCK_POINTS.
GROUP_POINTS = 16
# Number of groups in a block. Point i of a block is in group i % BLOCK_GROUPS, so one vector
# instruction updates the minima of several groups.
BLOCK_GROUPS = BLOCK_POINTS // GROUP_POINTS

# Number of distances that the scratch memory of a scan holds: those of a block, which may start and
# end within a tile.
SCRATCH_POINTS = BLOCK_POINTS + TILE_POINTS

# The two terms of a point share a uint32. Each is the upper 16 bits of a float32.
_TERM_BITS = np.uint32(16)
_UPPER_TERM = np.uint32(0xFFFF0000)


@allocating
def find_by_code(hashing, plan, ids, stop, n_scored, candidates, code, scan):
    """Write the `plan.hash_limit` points nearest by code into `candidates.rows`.

    Only the first `stop` points are scanned; the hash limit is 1 to `stop`. On entry,
    `candidates.distances` holds the exact distances of the first `n_scored` points, the longest.
    These distances replace estimates, which are worst for long points. `code` is a `QueryCode` with
    the query's margins; `hashing`, `plan`, `candidates` and `scan` are records too. Returns
    (tie_start, count): `count` rows are written, and the rows from `tie_start` on tie for the last
    places.
    """
    rows, distances, terms = candidates.rows, candidates.distances, hashing.terms
    hamming = plan.search == SCAN_HAMMING
    levels = levels_of(code.margins, hamming, hamming, hashing.codes, code.tables)
    # `exact` is empty unless points have terms and are sorted by length.
    exact = distances[:n_scored].copy()
    scan_codes(hashing.codes, terms, levels, stop, distances, scan.minima)
    if n_scored and not levels.hamming:
        replace_estimates(exact, stop, distances, scan.minima)
    count = take_least(distances, scan.minima, stop, plan.hash_limit, rows)
    estimates = terms.shape[0] > 0 and not levels.hamming
    return settle_ties(rows, distances, count, estimates, plan, ids)


@kernel
def find_passing_by_code(hashing, plan, ids, flags, candidates, code, scan):
    """Do what `find_by_code` does, for the points that pass a filter only.

    `flags` (n,) uint8 says which points pass; more than `plan.hash_limit` points do.
    """
    rows, distances, n = candidates.rows, candidates.distances, flags.shape[0]
    hamming = plan.search == SCAN_HAMMING
    levels = levels_of(code.margins, hamming, hamming, hashing.codes, code.tables)
    scan_passing(hashing.codes, hashing.terms, levels, flags, distances, scan.minima)
    estimates = hashing.terms.shape[0] > 0 and not levels.hamming
    n_groups = 0
    for group in range((n + BLOCK_POINTS - 1) // BLOCK_POINTS * BLOCK_GROUPS):
        n_groups += scan.minima[group] < np.inf
    if n_groups >= plan.hash_limit:
        count = take_least(distances, scan.minima, n, plan.hash_limit, rows)
    else:
        # `take_least` would take points that do not pass.
        count = 0
        for i in range(n):
            if flags[i]:
                rows[count], distances[count] = i, distances[i]
                count += 1
    return settle_ties(rows, distances, count, estimates, plan, ids)


@kernel
def scan_passing(codes, terms, levels, flags, distances, minima):
    """Do what `scan_codes` does; points that do not pass a filter get the distance inf.

    `flags` (n,) uint8 says which points pass. Blocks without such a point are not scored.
    """
    for start in range(0, flags.shape[0], BLOCK_POINTS):
        stop = min(flags.shape[0], start + BLOCK_POINTS)
        block = distances[start:stop]
        if passes_any(flags[start:stop]):
            block_distances(codes, terms, levels, start, stop, np.float32(0), block)
        replace_others(flags[start:stop], np.float32(np.inf), block)
        first = start // BLOCK_POINTS * BLOCK_GROUPS
        _group_minima(block, minima[first : first + BLOCK_GROUPS])


@kernel
def passes_any(flags):
    """Return whether any of `flags` (m,) uint8 is set."""
    n_set = np.int32(0)
    for i in range(flags.shape[0]):
        n_set = np.int32(n_set + flags[i])
    return n_set > 0


@kernel
def replace_others(flags, value, distances):
    """Replace the distances (m,) float32 of points whose flag is not set by `value` float32.

    `keep_least` keeps no point whose distance is nan, because no comparison with nan is true.
    """
    for i in range(distances.shape[0]):
        distances[i] = distances[i] if flags[i] else value


@part
def levels_of(margins, signs, hamming, codes, tables):
    """Round a query's `margins` (B,) float32 and return them as `Levels` for a scan of `codes`.

    If `signs` is set, only the signs of the margins are used. `tables` (B / 4, 16) uint8 is
    overwritten. Hamming distances need `signs`, and codes of one bit per margin.
    """
    if signs:
        unit, level_sum = quantise_signs(margins, tables)
    else:
        unit, level_sum = quantise(margins, tables)
    # A tile has GROUP_BYTES bytes, the size of a table, for each group of a code.
    depth = codes.shape[1] // (tables.shape[0] * tables.shape[1])
    weights = (1 << depth) - 1
    bias = ENTRY_ZERO * weights * tables.shape[0]
    if hamming:
        # A bit differs if it is 0 and the level is 1, or if it is 1 and the level is -1. So the
        # Hamming distance is the number of positive levels minus the score.
        bias += (margins.shape[0] + level_sum) // 2
    return Levels(tables, depth, bias, unit, level_sum * weights, hamming)


@kernel
def settle_ties(rows, distances, count, estimates, plan, ids):
    """Reduce rows[:count] to the `plan.hash_limit` nearest; return (tie_start, count).

    `count` must be at least `plan.hash_limit`. If `estimates` is true and estimates tie for the
    last places, the rows with the smaller ids are kept. If `estimates` is false, distances are
    integers. If these tie, a seeded sample of the tied rows is kept if `plan.uniform` is set.
    Otherwise all tied rows are kept, even if that exceeds the limit. The returned `count` is the
    number of rows kept; rows[tie_start:count] are the tied rows.
    """
    hash_limit = plan.hash_limit
    if estimates:
        if count > hash_limit:
            keep_nearest(rows, distances, count, hash_limit, ids)
        return hash_limit, hash_limit
    limit = kth_least(distances[:count], hash_limit - 1)
    # The distances are integers, so the rows at distances up to limit - 1 are exactly the rows
    # nearer than the limit.
    tie_start = move_to_front(rows, distances, 0, count, limit - np.float32(1))
    count = move_to_front(rows, distances, tie_start, count, limit)
    if plan.uniform:
        count = keep_sample(rows, tie_start, count, hash_limit - tie_start, ids, plan.seed)
    return tie_start, count


@kernel
def scan_codes(codes, terms, levels, stop, distances, minima):
    """Write the distances of the first `stop` points, and the minimum distance of each group.

    `minima` (ceil(n / BLOCK_POINTS) * BLOCK_GROUPS,) float32 gets inf for groups without points.
    The other arguments are as for `block_distances`.
    """
    for start in range(0, stop, BLOCK_POINTS):
        block = distances[start : min(stop, start + BLOCK_POINTS)]
        block_distances(codes, terms, levels, start, start + block.shape[0], np.float32(0), block)
        first = start // BLOCK_POINTS * BLOCK_GROUPS
        _group_minima(block, minima[first : first + BLOCK_GROUPS])


@kernel
def block_distances(codes, terms, levels, start, stop, base, distances):
    """Write the distances of points start to stop - 1, computed from their codes.

    `start` is a multiple of TILE_POINTS. `distances` float32 is the output, with at least
    stop - start entries; entries up to the end of the last tile are overwritten too. `codes`
    (tiles, 4 * bits) uint8; `terms` (n,) uint32 or empty; `levels`: `Levels`; `base` float32 is
    added to estimates.
    """
    score_tiles(codes, levels, start, stop, distances)
    if terms.shape[0] and not levels.hamming:
        block = distances[: stop - start]
        estimate(levels.unit, levels.level_sum, terms, start, base, block)


@kernel
def score_tiles(codes, levels, start, stop, distances):
    """Write the negated scores, or Hamming distances, of points start to stop - 1.

    The arguments are as for `block_distances`.
    """
    for place in range(0, stop - start, TILE_POINTS):
        count = min(TILE_POINTS, distances.shape[0] - place)
        tile = (start + place) // TILE_POINTS
        tile_distances(
            codes, tile, levels.tables, levels.depth, levels.bias, count, distances, place
        )


@kernel
def estimate(unit, level_sum, terms, start, base, distances):
    """Replace the negated scores in `distances` by estimated distances.

    The estimates lack a constant that is the same for all points of a query. `distances` (m,)
    float32 belong to points start to start + m - 1. A code stands for odd integers
    around 0, for example +1 and -1 if a margin has one bit. The dot product of the query's margins
    with these integers is about (2 * score - level_sum) * unit, `unit` float32. `terms` (n,) uint32
    hold an offset and a factor for each point (`divgrpc.hashing.codes.pack_terms`), and the
    estimate is base + offset - factor * product, `base` float32. An estimate that is nan is
    replaced by inf.
    """
    # The slice is indexed from 0, because otherwise the loop does not compile to vector
    # instructions.
    run = terms[start : start + distances.shape[0]]
    levels, zero = np.float32(level_sum), np.float32(0)
    for i in range(distances.shape[0]):
        # Subtract from 0 instead of negating, so that a product of 0 is 0 and never -0.
        product = (zero - (levels + np.float32(2) * distances[i])) * unit
        offset, factor = _as_float(run[i] & _UPPER_TERM), _as_float(run[i] << _TERM_BITS)
        value = (base + offset) - product * factor
        distances[i] = value if value == value else np.float32(np.inf)  # noqa: PLR0124  # nan


@kernel
def keep_least(values, names, limit, count, rows, distances):
    """Append the points whose distances are at most `limit`; return the new count.

    Point names[i] has distance values[i]; `names` is (m,) int32, and `values` is (m,) float32. The
    points and their distances are appended to `rows` int32 and `distances` float32, which hold
    `count` entries before the call. Entries after the new count are undefined.
    """
    for start in range(0, values.shape[0], BLOCK_GROUPS):
        stop = min(values.shape[0], start + BLOCK_GROUPS)
        # Count first, because most runs have no value within the limit, and counting compiles to
        # vector instructions.
        run, inside = values[start:stop], 0
        for i in range(run.shape[0]):
            inside += run[i] <= limit
        if inside:
            for i in range(start, stop):
                # Write unconditionally, because a branch would often be mispredicted.
                rows[count], distances[count] = names[i], values[i]
                count += values[i] <= limit
    return count


@kernel
def _as_float(bits):
    return np.uint32(bits).view(np.float32)


@kernel
def replace_estimates(exact, stop, estimates, minima):
    """Replace the estimates of the first m points by their `exact` (m,) float32 distances.

    `minima` of their groups are updated.
    """
    # Use a loop, because numba takes two seconds to compile the shape check of a slice assignment.
    for i in range(exact.shape[0]):
        estimates[i] = exact[i]
    for start in range(0, exact.shape[0], BLOCK_POINTS):
        first = start // BLOCK_POINTS * BLOCK_GROUPS
        block = estimates[start : min(stop, start + BLOCK_POINTS)]
        _group_minima(block, minima[first : first + BLOCK_GROUPS])


@kernel
def update_minima(distances, stop, minima):
    """Write the minimum of each group of the first `stop` distances, as `scan_codes` does."""
    for start in range(0, stop, BLOCK_POINTS):
        first = start // BLOCK_POINTS * BLOCK_GROUPS
        block = distances[start : min(stop, start + BLOCK_POINTS)]
        _group_minima(block, minima[first : first + BLOCK_GROUPS])


@kernel
def _group_minima(block, minima):
    minima[:] = np.float32(np.inf)
    end_a, end_b, end_c, end_d = BLOCK_GROUPS, 2 * BLOCK_GROUPS, 3 * BLOCK_GROUPS, 4 * BLOCK_GROUPS
    rest = block.shape[0] // end_d * end_d
    # Four runs at a time: each minimum is read and written once for all of them.
    for start in range(0, rest, end_d):
        runs = block[start : start + end_d]
        a, b, c, d = runs[:end_a], runs[end_a:end_b], runs[end_b:end_c], runs[end_c:]
        for i in range(end_a):
            least_ab = a[i] if a[i] < b[i] else b[i]
            least_cd = c[i] if c[i] < d[i] else d[i]
            least = least_ab if least_ab < least_cd else least_cd
            minima[i] = least if least < minima[i] else minima[i]
    for start in range(rest, block.shape[0], BLOCK_GROUPS):
        run = block[start : min(block.shape[0], start + BLOCK_GROUPS)]
        for i in range(run.shape[0]):
            minima[i] = run[i] if run[i] < minima[i] else minima[i]


@allocating
def take_least(distances, minima, stop, k, rows):
    """Write the positions of the `k` smallest of distances[:stop] into `rows`; return how many.

    More than `k` positions may be written, because all distances that tie with the k-th smallest
    are included, and sometimes a few more. The distances at these positions are moved to the front
    of `distances`. `minima` are the minima that `scan_codes` writes. `k` is 1 to `stop`.
    """
    # Leave out the groups without points, which are the last groups of the last block.
    groups = stop // BLOCK_POINTS * BLOCK_GROUPS + min(stop % BLOCK_POINTS, BLOCK_GROUPS)
    # If the minima of k groups are within the limit, at least k points are within the limit.
    limit = kth_least(minima[:groups] if k <= groups else distances[:stop], k - 1)
    # Write unconditionally, here and below, because branches would often be mispredicted.
    near_groups, n_near = np.empty(groups, np.int32), 0
    for group in range(groups):
        near_groups[n_near] = group
        n_near += minima[group] <= limit
    # The indices are unsigned, because numba checks whether a signed index is negative.
    count, step = np.uint64(0), np.uint64(BLOCK_GROUPS)
    for group in near_groups[:n_near]:
        first = group // BLOCK_GROUPS * BLOCK_POINTS
        start, end = first + group % BLOCK_GROUPS, min(stop, first + BLOCK_POINTS)
        for i in range(np.uint64(start), np.uint64(end), step):
            rows[count] = i
            count += np.uint64(distances[i] <= limit)
    # Copy the distances first, because the rows of a block are not in ascending order. Moving the
    # distances one by one would overwrite distances that are still needed.
    copy = np.empty(np.int64(count), np.float32)
    for i in range(copy.shape[0]):
        copy[i] = distances[rows[i]]
    for i in range(copy.shape[0]):
        distances[i] = copy[i]
    return copy.shape[0]
