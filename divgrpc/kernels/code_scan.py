"""Search over all codes: a score per point, then the points with the largest scores.

Codes lie word by word (W, n), so one word of many points is contiguous and the loop compiles to
vector population counts. Scores are integers, larger is nearer, and exact on every machine.
Estimates are float32 distances made from scores, smaller is nearer.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.projection import quantise, sign_code
from divgrpc.kernels.records import SCAN_HAMMING
from divgrpc.kernels.top_k import keep_nearest, keep_sample, kth_key, kth_least
from divgrpc.kernels.vector_sums import float_of, popcount

# Points whose scores are written together: they stay in the first-level cache.
BLOCK = 1024
# Points that share one maximum or minimum; a divisor of BLOCK.
GROUP = 16
# Groups of a block, and the distance between the points of a group: point i of a block is in group
# i % COLUMN, so the extremes of many groups are updated by one vector instruction.
COLUMN = BLOCK // GROUP
# The maximum of a group without points: the least int32.
_NO_SCORE = np.int32(-(2**31))

# Two terms share a uint32, each the upper 16 bits of a float32.
_TERM_BITS = np.uint32(16)
_UPPER_TERM = np.uint32(0xFFFF0000)


@allocating
def find_by_code(hashing, plan, ids, stop, n_scored, candidates, code, scan):
    """Take `plan.hash_limit` of the first `stop` points by code into `candidates.rows`.

    `candidates.distances` has the distances of the first `n_scored` points, which replace their
    estimates: long points are estimated worst, and those come first. The limit is 1 to `stop`; the
    query's margins, and for SCAN_HAMMING its code, are in `code`. Returns (settled, count): rows
    from `settled` on tie for the last places. Arguments are records.
    """
    hash_limit, rows, distances = plan.hash_limit, candidates.rows, candidates.distances
    codes, terms, planes = hashing.codes, hashing.terms, code.planes
    if plan.search == SCAN_HAMMING:
        sign_code(code.margins, code.signs.reshape(code.signs.shape[0]))
        scan_hamming(codes, code.signs.reshape(code.signs.shape[0]), stop, scan.scores, scan.maxima)
    else:
        unit, level_sum = quantise(code.margins, planes)
        if terms.shape[0]:
            known = distances[:n_scored].copy()
            scan_estimates(
                codes, planes, unit, level_sum, terms, stop, scan.block_scores, distances,
                scan.minima,
            )  # fmt: skip
            if n_scored:
                replace_estimates(known, stop, distances, scan.minima)
            count = take_least(distances, scan.minima, stop, hash_limit, rows)
            keep_nearest(rows, distances, count, hash_limit, ids)
            return hash_limit, hash_limit
        # Points without terms are never sorted by length, so `stop` is n.
        scan_asymmetric(codes, planes, scan.scores, scan.maxima)
    settled, count = take_largest(scan.scores[:stop], scan.maxima, hash_limit, rows)
    if plan.uniform:
        count = keep_sample(rows, settled, count, hash_limit - settled, ids, plan.seed)
    return settled, count


@kernel
def scan_asymmetric(codes, planes, scores, maxima):
    """Score all points: the weighted sum of the query's four-bit margins over their set bits.

    `codes` (W, n) uint64; `planes` (5, W) uint64 from `projection.quantise`. Writes `scores` (n,)
    int32 and `maxima` (ceil(n / BLOCK) * COLUMN,) int32, the largest score of each group; a group
    without points gets the least int32.
    """
    n = codes.shape[1]
    for start in range(0, n, BLOCK):
        block = scores[start : min(n, start + BLOCK)]
        score_block(codes, planes, start, block)
        _group_maxima(block, maxima, start)


@kernel
def estimate(scores, unit, level_sum, terms, start, base, estimates):
    """Write distances estimated from asymmetric scores, up to a constant per query.

    `scores` (m,) int32 are those of points `start` to start + m - 1. Twice a score less
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
        offset, factor = float_of(run[i] & _UPPER_TERM), float_of(run[i] << _TERM_BITS)
        value = (base + offset) - product * factor
        estimates[i] = value if value == value else np.float32(np.inf)  # noqa: PLR0124  # nan


@kernel
def estimate_block(codes, planes, unit, level_sum, terms, start, base, block_scores, estimates):
    """Write the estimates (m,) of points from `start` on; `block_scores` (BLOCK,) is scratch."""
    scores = block_scores[: estimates.shape[0]]
    score_block(codes, planes, start, scores)
    estimate(scores, unit, level_sum, terms, start, base, estimates)


@kernel
def keep_least(values, names, limit, count, rows, distances):
    """Append the `values` (m,) float32 of at most `limit`, and their names; return the new count.

    `names` (m,) int32. `rows` int32 and `distances` float32 hold `count` entries before; entries
    after the last are undefined.
    """
    for start in range(0, values.shape[0], COLUMN):
        stop = min(values.shape[0], start + COLUMN)
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
def scan_estimates(codes, planes, unit, level_sum, terms, stop, block_scores, estimates, minima):
    """Write the estimated distances of the first `stop` points, and the least of each group.

    `minima` (ceil(n / BLOCK) * COLUMN,) float32; a group without points gets inf. `block_scores`
    (BLOCK,) int32 is scratch; other arguments as for `scan_asymmetric` and `estimate`.
    """
    for start in range(0, stop, BLOCK):
        end = min(stop, start + BLOCK)
        block = estimates[start:end]
        estimate_block(
            codes, planes, unit, level_sum, terms, start, np.float32(0), block_scores, block
        )
        first = start // BLOCK * COLUMN
        _group_minima(block, minima[first : first + COLUMN])


@kernel
def replace_estimates(known, stop, estimates, minima):
    """Put the `known` (m,) float32 distances of the first points in place of their estimates."""
    # A loop: numba takes two seconds to compile the shape check of a slice assignment.
    for i in range(known.shape[0]):
        estimates[i] = known[i]
    for start in range(0, known.shape[0], BLOCK):
        first = start // BLOCK * COLUMN
        block = estimates[start : min(stop, start + BLOCK)]
        _group_minima(block, minima[first : first + COLUMN])


@kernel
def _group_minima(block, minima):
    minima[:] = np.float32(np.inf)
    for start in range(0, block.shape[0], COLUMN):
        run = block[start : min(block.shape[0], start + COLUMN)]
        for i in range(run.shape[0]):
            minima[i] = run[i] if run[i] < minima[i] else minima[i]


@allocating
def take_least(estimates, minima, stop, k, rows):
    """Write the numbers of the `k` least of estimates[:stop] into `rows`; return their number.

    The result is a superset: it holds all ties with the k-th and a few more. Its estimates move to
    the front. `minima` as `scan_estimates` writes them; `k` is 1 to `stop`.
    """
    groups = (stop + BLOCK - 1) // BLOCK * COLUMN
    limit = np.float32(np.inf)
    if k < groups:
        # k groups have a minimum of at most the limit, so at least k points are within it.
        limit = kth_least(minima[:groups], k - 1)
    count = 0
    for start in range(0, stop, BLOCK):
        first = start // BLOCK * COLUMN
        for column in range(COLUMN):
            if minima[first + column] <= limit:
                for i in range(start + column, min(stop, start + BLOCK), COLUMN):
                    if estimates[i] <= limit:
                        rows[count] = i
                        count += 1
    # Rows of one block are out of order: moved one by one, estimates would overwrite each other.
    moved = np.empty(count, np.float32)
    for i in range(count):
        moved[i] = estimates[rows[i]]
    for i in range(count):
        estimates[i] = moved[i]
    return count


@kernel
def _group_maxima(block, maxima, start):
    """Write the maxima of one block of scores, of the points from `start` on."""
    first = start // BLOCK * COLUMN
    largest = maxima[first : first + COLUMN]
    largest[:] = _NO_SCORE
    for at in range(0, block.shape[0], COLUMN):
        run = block[at : min(block.shape[0], at + COLUMN)]
        for i in range(run.shape[0]):
            largest[i] = max(largest[i], run[i])


@kernel
def score_block(codes, planes, start, block):
    """Write the scores of points from `start` on into `block` (m,) int32 (`scan_asymmetric`)."""
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
def scan_hamming(codes, code, stop, scores, maxima):
    """Score the first `stop` points by minus their Hamming distance to `code` (W,) uint64.

    Other arrays as in `scan_asymmetric`.
    """
    for start in range(0, stop, BLOCK):
        block = scores[start : min(stop, start + BLOCK)]
        hamming_block(codes, code, start, block)
        _group_maxima(block, maxima, start)


@kernel
def hamming_block(codes, code, start, block):
    """Write the scores of the points from `start` on into `block` (m,) int32 (`scan_hamming`)."""
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


@allocating
def take_largest(scores, maxima, k, rows):
    """Write the numbers of the `k` largest of `scores` (n,) int32; return (settled, count).

    rows[:settled] score above the k-th largest, rows[settled:count] are all that tie with it.
    `maxima` as a scan writes them; `k` is 1 to n.
    """
    n = scores.shape[0]
    # Groups without points come after all others.
    groups = n // BLOCK * COLUMN + min(n % BLOCK, COLUMN)
    if k <= groups:  # noqa: SIM108  # the comment belongs to one case
        # k groups have a maximum of at least the floor, so at least k points score as much.
        floor = kth_key(maxima[:groups], groups - k)
    else:
        floor = kth_key(scores, n - k)
    # Written unconditionally, here and below: branches would be mispredicted.
    chosen, n_chosen = np.empty(groups, np.int32), 0
    for group in range(groups):
        chosen[n_chosen] = group
        n_chosen += maxima[group] >= floor
    count = _at_least(scores, chosen[:n_chosen], floor, rows)
    row_scores = np.empty(count, np.int32)
    for i in range(count):
        row_scores[i] = scores[rows[i]]
    boundary = kth_key(row_scores, count - k)
    # numba widens the sum to int64, which would compile `_to_front` twice.
    settled = _to_front(row_scores, rows, 0, np.int32(boundary + 1))
    return settled, _to_front(row_scores, rows, settled, boundary)


@kernel
def _at_least(scores, groups, floor, rows):
    """Write the points of some groups that score `floor` or more; return their number."""
    count = 0
    for group in groups:
        first = group // COLUMN * BLOCK
        for i in range(first + group % COLUMN, min(scores.shape[0], first + BLOCK), COLUMN):
            rows[count] = i
            count += scores[i] >= floor
    return count


@kernel
def _to_front(row_scores, rows, start, floor):
    """Move the rows that score `floor` or more to `start`, in any order; return their end."""
    end = start
    for i in range(start, row_scores.shape[0]):
        row, score = rows[i], row_scores[i]
        rows[i], row_scores[i] = rows[end], row_scores[end]
        rows[end], row_scores[end] = row, score
        end += score >= floor
    return end
