"""Scans all codes: computes a distance for each point, then takes the points of least distance.

Codes are stored as (W, n), so the same word of consecutive points is contiguous and the loops
compile to vector population counts. The score of a point is an integer and is the same on every
machine. A larger score means a nearer point. Scores are added up in float32, which is exact because
scores stay far below 2**24. The distance of a point is estimated from the score and the terms of
the point. If the index has no terms, the distance is minus the score. If only signs are compared,
it is the Hamming distance.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.projection import quantise, sign_code
from divgrpc.kernels.records import SCAN_HAMMING, Levels
from divgrpc.kernels.top_k import keep_nearest, keep_sample, kth_least, move_to_front
from divgrpc.kernels.vector_sums import popcount

# Number of points in a block. A block is scored as a whole, and its distances fit into the
# first-level cache.
BLOCK_POINTS = 1024
# Number of points in a group. The minimum distance of each group is stored. This number must divide
# BLOCK_POINTS.
GROUP_POINTS = 16
# Number of groups in a block. Point i of a block is in group i % BLOCK_GROUPS, so one vector
# instruction updates the minima of several groups.
BLOCK_GROUPS = BLOCK_POINTS // GROUP_POINTS

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
    levels = levels_of(code.margins, plan.search == SCAN_HAMMING, code.planes)
    # `exact` is empty unless points have terms and are sorted by length.
    exact = distances[:n_scored].copy()
    scan_codes(hashing.codes, terms, levels, stop, distances, scan.minima)
    if n_scored and not levels.hamming:
        replace_estimates(exact, stop, distances, scan.minima)
    count = take_least(distances, scan.minima, stop, plan.hash_limit, rows)
    estimates = terms.shape[0] > 0 and not levels.hamming
    return settle_ties(rows, distances, count, estimates, plan, ids)


@part
def levels_of(margins, hamming, planes):
    """Round a query's `margins` (B,) float32 and return them as `Levels`, stored in `planes`.

    `planes` (5, W) uint64 is overwritten.
    """
    unit, level_sum = np.float32(0), 0
    if hamming:
        sign_code(margins, planes[0])
    else:
        unit, level_sum = quantise(margins, planes)
    return Levels(planes, unit, level_sum, hamming)


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
        block_distances(codes, terms, levels, start, np.float32(0), block)
        first = start // BLOCK_POINTS * BLOCK_GROUPS
        _group_minima(block, minima[first : first + BLOCK_GROUPS])


@kernel
def block_distances(codes, terms, levels, start, base, distances):
    """Write the distances of points start to start + m - 1, computed from their codes.

    `distances` (m,) float32 is the output; `codes` (W, n) uint64; `terms` (n,) uint32 or empty;
    `levels`: `Levels`; `base` float32 is added to estimates.
    """
    if levels.hamming:
        hamming_block(codes, levels.planes[0], start, distances)
        return
    score_block(codes, levels.planes, start, distances)
    if terms.shape[0]:
        estimate(levels.unit, levels.level_sum, terms, start, base, distances)


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


@kernel
def score_block(codes, planes, start, distances):
    """Write the negated scores of the m points from `start` on into `distances` (m,) float32.

    A score is a sum over the set bits of a code. Each set bit adds the query's four-bit level for
    this bit, times the weight of the word that contains the bit. `planes` (5, W) uint64 are those
    of `projection.quantise`.
    """
    distances[:] = np.float32(0)
    words, w = codes.shape[0], 0
    # Add four words at a time if all four have the same weight, or if each has twice the weight of
    # the word before. planes[4] contains the base 2 logarithms of the weights.
    while w + 4 <= words and planes[4, w + 3] - planes[4, w] in (0, 3):
        _subtract_four_words(codes, planes, w, start, distances)
        w += 4
    while w < words:
        _subtract_word(codes, planes, w, start, distances)
        w += 1


@kernel
def _subtract_four_words(codes, planes, w, start, distances):
    a0, a1, a2, a3 = planes[0, w], planes[1, w], planes[2, w], planes[3, w]
    b0, b1, b2, b3 = planes[0, w + 1], planes[1, w + 1], planes[2, w + 1], planes[3, w + 1]
    c0, c1, c2, c3 = planes[0, w + 2], planes[1, w + 2], planes[2, w + 2], planes[3, w + 2]
    d0, d1, d2, d3 = planes[0, w + 3], planes[1, w + 3], planes[2, w + 3], planes[3, w + 3]
    shift, stop = planes[4, w], start + distances.shape[0]
    a, b = codes[w, start:stop], codes[w + 1, start:stop]
    c, d = codes[w + 2, start:stop], codes[w + 3, start:stop]
    shift_1, shift_2, shift_3 = np.uint64(1), np.uint64(2), np.uint64(3)
    # Counts of equal weight are added first and shifted once.
    if planes[4, w + 3] == shift:
        for i in range(distances.shape[0]):
            e, f, g, h = a[i], b[i], c[i], d[i]
            gain = popcount(e & a0) + popcount(f & b0) + popcount(g & c0) + popcount(h & d0)
            twos = popcount(e & a1) + popcount(f & b1) + popcount(g & c1) + popcount(h & d1)
            fours = popcount(e & a2) + popcount(f & b2) + popcount(g & c2) + popcount(h & d2)
            eights = popcount(e & a3) + popcount(f & b3) + popcount(g & c3) + popcount(h & d3)
            gain += (twos << shift_1) + (fours << shift_2) - (eights << shift_3)
            distances[i] -= np.float32(np.int32(gain << shift))
        return
    for i in range(distances.shape[0]):
        e, f, g, h = a[i], b[i], c[i], d[i]
        gain = popcount(e & a0) + ((popcount(e & a1) + popcount(f & b0)) << shift_1)
        gain += (popcount(e & a2) + popcount(f & b1) + popcount(g & c0)) << shift_2
        eights = popcount(f & b2) + popcount(g & c1) + popcount(h & d0) - popcount(e & a3)
        sixteens = popcount(g & c2) + popcount(h & d1) - popcount(f & b3)
        sixteens += ((popcount(h & d2) - popcount(g & c3)) << shift_1) - (
            popcount(h & d3) << shift_2
        )
        gain += (eights << shift_3) + (sixteens << np.uint64(4))
        distances[i] -= np.float32(np.int32(gain << shift))


@kernel
def _subtract_word(codes, planes, w, start, distances):
    p0, p1, p2, p3 = planes[0, w], planes[1, w], planes[2, w], planes[3, w]
    shift = planes[4, w]
    word = codes[w, start : start + distances.shape[0]]
    shift_1, shift_2, shift_3 = np.uint64(1), np.uint64(2), np.uint64(3)
    for i in range(distances.shape[0]):
        e = word[i]
        gain = popcount(e & p0) + (popcount(e & p1) << shift_1) + (popcount(e & p2) << shift_2)
        gain -= popcount(e & p3) << shift_3
        distances[i] -= np.float32(np.int32(gain << shift))


@kernel
def hamming_block(codes, code, start, distances):
    """Write the Hamming distances of points start to start + m - 1 into `distances` (m,) float32.

    The Hamming distances are measured from `code` (W,) uint64.
    """
    distances[:] = np.float32(0)
    words, w = codes.shape[0], 0
    while w + 4 <= words:
        _add_differences(codes, code, w, start, distances)
        w += 4
    while w < words:
        query_word = code[w]
        word = codes[w, start : start + distances.shape[0]]
        for i in range(distances.shape[0]):
            distances[i] += np.float32(np.int32(popcount(word[i] ^ query_word)))
        w += 1


@kernel
def _add_differences(codes, code, w, start, distances):
    first, second, third, fourth = code[w], code[w + 1], code[w + 2], code[w + 3]
    end = start + distances.shape[0]
    a, b = codes[w, start:end], codes[w + 1, start:end]
    c, d = codes[w + 2, start:end], codes[w + 3, start:end]
    for i in range(distances.shape[0]):
        half = popcount(a[i] ^ first) + popcount(b[i] ^ second)
        count = half + popcount(c[i] ^ third) + popcount(d[i] ^ fourth)
        distances[i] += np.float32(np.int32(count))
