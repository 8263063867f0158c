"""Search over all codes: a distance per point, then the points with the least distances.

Codes lie word by word (W, n), so one word of many points is contiguous and the loop compiles to
vector population counts. Scores are integers, larger is nearer, and exact on every machine. The
distance of a point is an estimate made from its score, or minus the score if an index has no terms
or signs alone are compared.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.projection import quantise, sign_code
from divgrpc.kernels.records import SCAN_HAMMING, Levels
from divgrpc.kernels.top_k import keep_nearest, keep_sample, kth_least, move_to_front
from divgrpc.kernels.vector_sums import popcount

# Points of a block, which are scored together: their scores stay in the first-level cache.
BLOCK_POINTS = 1024
# Points of a group, which share one minimum; a divisor of BLOCK_POINTS.
GROUP_POINTS = 16
# Groups of a block. Point i of a block is in group i % BLOCK_GROUPS, so one vector instruction
# updates the minima of many groups.
BLOCK_GROUPS = BLOCK_POINTS // GROUP_POINTS

# Two terms share a uint32, each the upper 16 bits of a float32.
_TERM_BITS = np.uint32(16)
_UPPER_TERM = np.uint32(0xFFFF0000)


@allocating
def find_by_code(hashing, plan, ids, stop, n_scored, candidates, code, scan):
    """Take `plan.hash_limit` of the first `stop` points by code into `candidates.rows`.

    `candidates.distances` has the distances of the first `n_scored` points, which replace their
    estimates: long points are estimated worst, and those come first. The limit is 1 to `stop`; the
    query's margins are in `code`. Returns (tie_start, count): rows from `tie_start` on tie for the
    last places. Arguments are records.
    """
    rows, distances, terms = candidates.rows, candidates.distances, hashing.terms
    levels = levels_of(code.margins, plan.search == SCAN_HAMMING, code.planes)
    # Only points with terms are sorted by length and scored before.
    exact = distances[:n_scored].copy()
    scan_codes(hashing.codes, terms, levels, stop, scan.scores, distances, scan.minima)
    if n_scored and not levels.hamming:
        replace_estimates(exact, stop, distances, scan.minima)
    count = take_least(distances, scan.minima, stop, plan.hash_limit, rows)
    estimates = terms.shape[0] > 0 and not levels.hamming
    return settle_ties(rows, distances, count, estimates, plan, ids)


@kernel
def levels_of(margins, hamming, planes):
    """Write a query's `margins` (B,) into `planes` (5, W) as `Levels`, and return these."""
    unit, level_sum = np.float32(0), 0
    if hamming:
        sign_code(margins, planes[0])
    else:
        unit, level_sum = quantise(margins, planes)
    return Levels(planes, unit, level_sum, hamming)


@kernel
def settle_ties(rows, distances, count, estimates, plan, ids):
    """Cut rows[:count], at least `plan.hash_limit`, to that number; return (tie_start, count).

    Of `estimates` that tie, smaller ids stay. Of scores that tie, a seeded sample stays if
    `plan.uniform`, otherwise all do: they are rows[tie_start:count].
    """
    hash_limit = plan.hash_limit
    if estimates:
        if count > hash_limit:
            keep_nearest(rows, distances, count, hash_limit, ids)
        return hash_limit, hash_limit
    limit = kth_least(distances[:count], hash_limit - 1)
    # Scores are whole numbers.
    tie_start = move_to_front(rows, distances, 0, count, limit - np.float32(1))
    count = move_to_front(rows, distances, tie_start, count, limit)
    if plan.uniform:
        count = keep_sample(rows, tie_start, count, hash_limit - tie_start, ids, plan.seed)
    return tie_start, count


@kernel
def scan_codes(codes, terms, levels, stop, scores, distances, minima):
    """Write the distances of the first `stop` points, and the least of each group.

    `minima` (ceil(n / BLOCK_POINTS) * BLOCK_GROUPS,) float32; a group without points gets inf.
    Other arguments as for `block_distances`.
    """
    for start in range(0, stop, BLOCK_POINTS):
        block = distances[start : min(stop, start + BLOCK_POINTS)]
        block_distances(codes, terms, levels, start, np.float32(0), scores, block)
        first = start // BLOCK_POINTS * BLOCK_GROUPS
        _group_minima(block, minima[first : first + BLOCK_GROUPS])


@kernel
def block_distances(codes, terms, levels, start, base, scores, distances):
    """Write the distances (m,) float32 by code of points `start` to start + m - 1.

    `codes` (W, n) uint64; `terms` (n,) uint32, or empty; `levels`: `Levels`; `base` float32 is
    added to estimates; `scores` (BLOCK_POINTS,) int32 is scratch memory.
    """
    block = scores[: distances.shape[0]]
    if levels.hamming:
        hamming_block(codes, levels.planes[0], start, block)
    else:
        score_block(codes, levels.planes, start, block)
        if terms.shape[0]:
            estimate(block, levels.unit, levels.level_sum, terms, start, base, distances)
            return
    # Scores are far below 2**24, from which on float32 rounds integers.
    for i in range(block.shape[0]):
        distances[i] = np.float32(0) - np.float32(block[i])


@kernel
def estimate(scores, unit, level_sum, terms, start, base, estimates):
    """Write distances estimated from asymmetric scores, up to a constant per query.

    `scores` (m,) int32 belong to points `start` to start + m - 1. Twice a score less
    `level_sum`, times `unit` float32, is the product of the query with the point's code as odd
    numbers around 0 (+1 and -1 if every margin has one bit). `terms` (n,) uint32 hold an offset and
    a factor per point (`divgrpc.hashing.codes.pack_terms`): an estimate is `base` float32 plus the
    offset, minus the factor times the product. `estimates` (m,) float32; inf in place of nan.
    """
    # A slice indexed from 0: otherwise the loop does not compile to vector instructions.
    run = terms[start : start + scores.shape[0]]
    levels = np.int32(level_sum)
    for i in range(scores.shape[0]):
        product = np.float32(np.int32(2) * scores[i] - levels) * unit
        offset, factor = _as_float(run[i] & _UPPER_TERM), _as_float(run[i] << _TERM_BITS)
        value = (base + offset) - product * factor
        estimates[i] = value if value == value else np.float32(np.inf)  # noqa: PLR0124  # nan


@kernel
def keep_least(values, names, limit, count, rows, distances):
    """Append the `values` (m,) float32 of at most `limit`, and their names; return the new count.

    `names` (m,) int32. `rows` int32 and `distances` float32 hold `count` entries before; entries
    after the last are undefined.
    """
    for start in range(0, values.shape[0], BLOCK_GROUPS):
        stop = min(values.shape[0], start + BLOCK_GROUPS)
        # Counted first: most runs hold none, and counting compiles to vector instructions.
        run, inside = values[start:stop], 0
        for i in range(run.shape[0]):
            inside += run[i] <= limit
        if inside:
            for i in range(start, stop):
                # Written unconditionally: a branch would be mispredicted.
                rows[count], distances[count] = names[i], values[i]
                count += values[i] <= limit
    return count


@kernel
def _as_float(bits):
    return np.uint32(bits).view(np.float32)


@kernel
def replace_estimates(exact, stop, estimates, minima):
    """Put the `exact` (m,) float32 distances of the first points in place of their estimates."""
    # A loop: numba takes two seconds to compile the shape check of a slice assignment.
    for i in range(exact.shape[0]):
        estimates[i] = exact[i]
    for start in range(0, exact.shape[0], BLOCK_POINTS):
        first = start // BLOCK_POINTS * BLOCK_GROUPS
        block = estimates[start : min(stop, start + BLOCK_POINTS)]
        _group_minima(block, minima[first : first + BLOCK_GROUPS])


@kernel
def _group_minima(block, minima):
    minima[:] = np.float32(np.inf)
    for start in range(0, block.shape[0], BLOCK_GROUPS):
        run = block[start : min(block.shape[0], start + BLOCK_GROUPS)]
        for i in range(run.shape[0]):
            minima[i] = run[i] if run[i] < minima[i] else minima[i]


@allocating
def take_least(distances, minima, stop, k, rows):
    """Write the numbers of the `k` least of distances[:stop] into `rows`; return their number.

    The result is a superset: it holds all ties with the k-th and a few more. Its distances move to
    the front. `minima` as `scan_codes` writes them; `k` is 1 to `stop`.
    """
    # Groups without points come after all others.
    groups = stop // BLOCK_POINTS * BLOCK_GROUPS + min(stop % BLOCK_POINTS, BLOCK_GROUPS)
    # If k groups have a minimum of at most the limit, at least k points are within it.
    limit = kth_least(minima[:groups] if k <= groups else distances[:stop], k - 1)
    # Written unconditionally, here and below: branches would be mispredicted.
    near_groups, n_near = np.empty(groups, np.int32), 0
    for group in range(groups):
        near_groups[n_near] = group
        n_near += minima[group] <= limit
    count = 0
    for group in near_groups[:n_near]:
        first = group // BLOCK_GROUPS * BLOCK_POINTS
        for i in range(first + group % BLOCK_GROUPS, min(stop, first + BLOCK_POINTS), BLOCK_GROUPS):
            rows[count] = i
            count += distances[i] <= limit
    # Rows of one block are out of order: moved one by one, distances would overwrite each other.
    copy = np.empty(count, np.float32)
    for i in range(count):
        copy[i] = distances[rows[i]]
    for i in range(count):
        distances[i] = copy[i]
    return count


@kernel
def score_block(codes, planes, start, block):
    """Write the scores of points from `start` on into `block` (m,) int32.

    A score is the weighted sum of the query's four-bit margins over the set bits of a code.
    `planes` (5, W) uint64 from `projection.quantise`.
    """
    block[:] = np.int32(0)
    words, w = codes.shape[0], 0
    # Four words at a time if they share one weight or each has twice the weight before it.
    while w + 4 <= words and planes[4, w + 3] - planes[4, w] in (0, 3):
        _add_four_words(codes, planes, w, start, block)
        w += 4
    while w < words:
        _add_word(codes, planes, w, start, block)
        w += 1


@kernel
def _add_four_words(codes, planes, w, start, block):
    a0, a1, a2, a3 = planes[0, w], planes[1, w], planes[2, w], planes[3, w]
    b0, b1, b2, b3 = planes[0, w + 1], planes[1, w + 1], planes[2, w + 1], planes[3, w + 1]
    c0, c1, c2, c3 = planes[0, w + 2], planes[1, w + 2], planes[2, w + 2], planes[3, w + 2]
    d0, d1, d2, d3 = planes[0, w + 3], planes[1, w + 3], planes[2, w + 3], planes[3, w + 3]
    shift, stop = planes[4, w], start + block.shape[0]
    a, b = codes[w, start:stop], codes[w + 1, start:stop]
    c, d = codes[w + 2, start:stop], codes[w + 3, start:stop]
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    # Counts of equal weight are added before they are shifted.
    if planes[4, w + 3] == shift:
        for i in range(block.shape[0]):
            e, f, g, h = a[i], b[i], c[i], d[i]
            gain = popcount(e & a0) + popcount(f & b0) + popcount(g & c0) + popcount(h & d0)
            twos = popcount(e & a1) + popcount(f & b1) + popcount(g & c1) + popcount(h & d1)
            fours = popcount(e & a2) + popcount(f & b2) + popcount(g & c2) + popcount(h & d2)
            eights = popcount(e & a3) + popcount(f & b3) + popcount(g & c3) + popcount(h & d3)
            gain += (twos << one) + (fours << two) - (eights << three)
            block[i] += np.int32(gain << shift)
        return
    for i in range(block.shape[0]):
        e, f, g, h = a[i], b[i], c[i], d[i]
        gain = popcount(e & a0) + ((popcount(e & a1) + popcount(f & b0)) << one)
        gain += (popcount(e & a2) + popcount(f & b1) + popcount(g & c0)) << two
        eights = popcount(f & b2) + popcount(g & c1) + popcount(h & d0) - popcount(e & a3)
        more = popcount(g & c2) + popcount(h & d1) - popcount(f & b3)
        more += ((popcount(h & d2) - popcount(g & c3)) << one) - (popcount(h & d3) << two)
        block[i] += np.int32((gain + (eights << three) + (more << np.uint64(4))) << shift)


@kernel
def _add_word(codes, planes, w, start, block):
    p0, p1, p2, p3 = planes[0, w], planes[1, w], planes[2, w], planes[3, w]
    shift = planes[4, w]
    word = codes[w, start : start + block.shape[0]]
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for i in range(block.shape[0]):
        e = word[i]
        gain = popcount(e & p0) + (popcount(e & p1) << one) + (popcount(e & p2) << two)
        block[i] += np.int32((gain - (popcount(e & p3) << three)) << shift)


@kernel
def hamming_block(codes, code, start, block):
    """Write minus the Hamming distances to `code` (W,) uint64 of points from `start` on."""
    block[:] = np.int32(0)
    words, w = codes.shape[0], 0
    while w + 4 <= words:
        _subtract_four_words(codes, code, w, start, block)
        w += 4
    while w < words:
        query_word = code[w]
        word = codes[w, start : start + block.shape[0]]
        for i in range(block.shape[0]):
            block[i] -= np.int32(popcount(word[i] ^ query_word))
        w += 1


@kernel
def _subtract_four_words(codes, code, w, start, block):
    first, second, third, fourth = code[w], code[w + 1], code[w + 2], code[w + 3]
    end = start + block.shape[0]
    a, b = codes[w, start:end], codes[w + 1, start:end]
    c, d = codes[w + 2, start:end], codes[w + 3, start:end]
    for i in range(block.shape[0]):
        half = popcount(a[i] ^ first) + popcount(b[i] ^ second)
        block[i] -= np.int32(half + popcount(c[i] ^ third) + popcount(d[i] ^ fourth))
