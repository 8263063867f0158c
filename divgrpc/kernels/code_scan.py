"""Search over all codes: a score per point, then the largest scores.

Codes lie word by word (W, n), so that one word of many points is contiguous and the loop becomes
vector population counts. Scores are integers, larger is nearer, and exact on every machine.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.kth_smallest import kth_key, kth_least
from divgrpc.kernels.vector_sums import float_of, popcount

# Points whose scores are written while they are in the first-level cache.
BLOCK = 1024
# Points that share one maximum or minimum; a divisor of BLOCK. They are so far apart within a block
# that those of many groups are one run of instructions.
GROUP = 16
COLUMN = BLOCK // GROUP
# What stands for the maximum of no points.
_NONE = np.int32(-(2**31))

# Two terms share a word: each is the upper half of a float32.
_HALF = np.uint32(16)
_UPPER = np.uint32(0xFFFF0000)


@kernel
def scan_asymmetric(codes, planes, scores, maxima):
    """Score every point by the query's four-bit margins times the point's bits, weighted.

    `codes` (W, n) uint64, `planes` (5, W) uint64 from `quantise`; `scores` (n,) int32 and `maxima`
    (ceil(n / BLOCK) * COLUMN,) int32 are written, the latter with the least int32 where there is
    no point.
    """
    n = codes.shape[1]
    for start in range(0, n, BLOCK):
        block = scores[start : min(n, start + BLOCK)]
        score_block(codes, planes, start, block)
        _column_maxima(block, maxima, start)


@kernel
def estimate(scores, unit, total, terms, start, base, estimates):
    """Write distances estimated from asymmetric scores, up to a constant per query.

    `scores` (m,) int32 are those of the points from `start` on. Twice a score less `total`, the sum
    of all levels, times `unit` float32 is the query's product with the point's code as odd numbers
    around 0: +1 and -1 where every margin has one bit.
    `terms` (n,) uint32 hold, per point, what its distance begins with, beside `base` float32, and
    how many times that product is taken off; `divgrpc.hashing.codes.pack_terms` makes them.
    `estimates` (m,) float32: infinity where it would be no number.
    """
    # A run of its own, counted from 0: otherwise the loop is not made of vectors.
    run = terms[start : start + scores.shape[0]]
    levels = np.int32(total)
    for i in range(scores.shape[0]):
        product = np.float32(np.int32(2) * scores[i] - levels) * unit
        offset, factor = float_of(run[i] & _UPPER), float_of(run[i] << _HALF)
        found = (base + offset) - product * factor
        estimates[i] = found if found == found else np.float32(np.inf)  # noqa: PLR0124  # nan


@kernel
def estimate_block(codes, planes, unit, total, terms, start, base, block, estimates):
    """Write the estimates (m,) of points from `start` on; `block` (BLOCK,) int32 is scratch."""
    scores = block[: estimates.shape[0]]
    score_block(codes, planes, start, scores)
    estimate(scores, unit, total, terms, start, base, estimates)


@kernel
def keep_least(fresh, names, limit, count, rows, estimates):
    """Append what of `fresh` (m,) float32 is at most `limit`, and its name; returns how many.

    `names` (m,) int32. `count` is how many `rows` int32 and `estimates` float32 hold already; what
    is behind the last is void.
    """
    for start in range(0, fresh.shape[0], COLUMN):
        stop = min(fresh.shape[0], start + COLUMN)
        # Counted first: most groups hold none, and a count is made of vectors.
        group, inside = fresh[start:stop], 0
        for i in range(group.shape[0]):
            inside += group[i] <= limit
        if inside:
            for i in range(start, stop):
                # Written whether it counts or not: a branch would be guessed wrong.
                rows[count], estimates[count] = names[i], fresh[i]
                count += fresh[i] <= limit
    return count


@kernel
def scan_estimates(codes, planes, unit, total, terms, stop, block, estimates, minima):
    """Write the estimated distances of the first `stop` points, and the least of every group.

    `minima` (ceil(n / BLOCK) * COLUMN,) float32 gets infinity where there is no point. `block`
    (BLOCK,) int32 is scratch; other arguments as for `scan_asymmetric` and `estimate`.
    """
    for start in range(0, stop, BLOCK):
        end = min(stop, start + BLOCK)
        scores, found = block[: end - start], estimates[start:end]
        score_block(codes, planes, start, scores)
        estimate(scores, unit, total, terms, start, np.float32(0), found)
        first = start // BLOCK * COLUMN
        _column_minima(found, minima[first : first + COLUMN])


@kernel
def put_known(known, stop, estimates, minima):
    """Put distances that are known in place of the first estimates; arguments as above."""
    # An assignment of arrays would bring numba's message of shapes that differ, which takes two
    # seconds to compile.
    for i in range(known.shape[0]):
        estimates[i] = known[i]
    for start in range(0, known.shape[0], BLOCK):
        first = start // BLOCK * COLUMN
        block = estimates[start : min(stop, start + BLOCK)]
        _column_minima(block, minima[first : first + COLUMN])


@kernel
def _column_minima(block, minima):
    minima[:] = np.float32(np.inf)
    for start in range(0, block.shape[0], COLUMN):
        run = block[start : min(block.shape[0], start + COLUMN)]
        for i in range(run.shape[0]):
            minima[i] = run[i] if run[i] < minima[i] else minima[i]


@allocating
def take_least(estimates, minima, stop, wanted, rows):
    """Write the numbers of the `wanted` least of estimates[:stop], and of what ties or comes near.

    Their estimates move to the front with them. `minima` as `scan_estimates` leaves them. Returns
    how many there are: few more than `wanted`, which is 1 to `stop`.
    """
    groups = (stop + BLOCK - 1) // BLOCK * COLUMN
    limit = np.float32(np.inf)
    if wanted < groups:
        # So many groups hold an estimate of at most the limit, hence so many points do.
        limit = kth_least(minima[:groups], wanted - 1)
    found = 0
    for start in range(0, stop, BLOCK):
        first = start // BLOCK * COLUMN
        for column in range(COLUMN):
            if minima[first + column] <= limit:
                for i in range(start + column, min(stop, start + BLOCK), COLUMN):
                    if estimates[i] <= limit:
                        rows[found] = i
                        found += 1
    # Within a block they are not in order: moved one by one they would be written over.
    moved = np.empty(found, np.float32)
    for i in range(found):
        moved[i] = estimates[rows[i]]
    for i in range(found):
        estimates[i] = moved[i]
    return found


@kernel
def _column_maxima(block, maxima, start):
    """Write the maxima of the points from `start` on, a block of scores or what is left of one."""
    first = start // BLOCK * COLUMN
    largest = maxima[first : first + COLUMN]
    largest[:] = _NONE
    for at in range(0, block.shape[0], COLUMN):
        run = block[at : min(block.shape[0], at + COLUMN)]
        for i in range(run.shape[0]):
            largest[i] = max(largest[i], run[i])


@kernel
def score_block(codes, planes, start, block):
    """Write the scores of the points from `start` on into `block`; see `scan_asymmetric`."""
    block[:] = np.int32(0)
    words, w = codes.shape[0], 0
    # Words of one weight, or each of twice that of the one before: others go one by one.
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
    # Counts of one weight are added up before they are shifted.
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
    """Score the first `stop` points by minus the Hamming distance to `code` (W,) uint64.

    Arrays as in `scan_asymmetric`.
    """
    for start in range(0, stop, BLOCK):
        block = scores[start : min(stop, start + BLOCK)]
        differ_block(codes, code, start, block)
        _column_maxima(block, maxima, start)


@kernel
def differ_block(codes, code, start, block):
    """Write the scores of the points from `start` on into `block`; see `scan_hamming`."""
    block[:] = np.int32(0)
    words, w = codes.shape[0], 0
    while w + 4 <= words:
        _differ_in_four_words(codes, code, w, start, block)
        w += 4
    while w < words:
        mine = code[w]
        word = codes[w, start : start + block.shape[0]]
        for i in range(block.shape[0]):
            block[i] -= np.int32(popcount(word[i] ^ mine))
        w += 1


@kernel
def _differ_in_four_words(codes, code, w, start, block):
    mine, second, third, fourth = code[w], code[w + 1], code[w + 2], code[w + 3]
    end = start + block.shape[0]
    a, b = codes[w, start:end], codes[w + 1, start:end]
    c, d = codes[w + 2, start:end], codes[w + 3, start:end]
    for i in range(block.shape[0]):
        half = popcount(a[i] ^ mine) + popcount(b[i] ^ second)
        block[i] -= np.int32(half + popcount(c[i] ^ third) + popcount(d[i] ^ fourth))


@allocating
def take_largest(scores, maxima, wanted, rows):
    """Write the numbers of the `wanted` largest of `scores` (n,); returns (sure, count).

    rows[:sure] score above the boundary, rows[sure:count] are all that tie at it. `maxima` as a
    scan leaves them; `wanted` is 1 to n.
    """
    n = scores.shape[0]
    # Groups without a point are behind all others.
    groups = n // BLOCK * COLUMN + min(n % BLOCK, COLUMN)
    if wanted <= groups:
        # `wanted` groups have a maximum of at least this, hence as many points a score.
        floor = kth_key(maxima[:groups], groups - wanted)
    else:
        floor = kth_key(scores, n - wanted)
    # Written whether it counts or not, here and below: branches would be guessed wrong.
    taken, found = np.empty(groups, np.int32), 0
    for group in range(groups):
        taken[found] = group
        found += maxima[group] >= floor
    found = _at_least(scores, taken[:found], floor, rows)
    among = np.empty(found, np.int32)
    for i in range(found):
        among[i] = scores[rows[i]]
    boundary = kth_key(among, found - wanted)
    # A sum of integers is a longer one to numba, and would be another function's argument.
    sure = _to_front(among, rows, 0, np.int32(boundary + 1))
    return sure, _to_front(among, rows, sure, boundary)


@kernel
def _at_least(scores, groups, floor, rows):
    """Write the numbers of what scores `floor` or more in some groups; returns how many."""
    found = 0
    for group in groups:
        first = group // COLUMN * BLOCK
        for i in range(first + group % COLUMN, min(scores.shape[0], first + BLOCK), COLUMN):
            rows[found] = i
            found += scores[i] >= floor
    return found


@kernel
def _to_front(among, rows, start, floor):
    """Move what scores `floor` or more to `start`, in no order that matters; returns its end."""
    end = start
    for i in range(start, among.shape[0]):
        row, score = rows[i], among[i]
        rows[i], among[i] = rows[end], among[end]
        rows[end], among[end] = row, score
        end += score >= floor
    return end
