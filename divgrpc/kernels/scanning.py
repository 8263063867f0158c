"""Search over all codes: a score per point, then the largest scores.

Codes lie word by word (W, n), so that one word of many points is contiguous and the loop becomes
vector population counts. Scores are integers, larger is nearer, and exact on every machine.
"""

import numpy as np

from divgrpc.kernels.compiling import allocating, kernel
from divgrpc.kernels.counting import kth_least
from divgrpc.kernels.lanes import float_of, popcount

# Points whose scores are written while they are in the first-level cache.
BLOCK = 1024
# Points that share one maximum; a divisor of BLOCK.
GROUP = 16
# The same for minima: points so far apart within a block share one.
COLUMN = BLOCK // GROUP

# Two terms share a word: each is the upper half of a float32.
_HALF = np.uint32(16)
_UPPER = np.uint32(0xFFFF0000)


@kernel
def scan_asymmetric(codes, planes, scores, maxima):
    """Score every point by the query's four-bit margins times the point's bits, weighted.

    `codes` (W, n) uint64, `planes` (5, W) uint64 from `quantise`; `scores` (n,) int32 and `maxima`
    (ceil(n / GROUP),) int32 are written.
    """
    n = codes.shape[1]
    for start in range(0, n, BLOCK):
        block = scores[start : min(n, start + BLOCK)]
        _score_block(codes, planes, start, block)
        _group_maxima(block, maxima, start // GROUP)


@kernel
def estimate(scores, unit, total, terms, start, base, estimates):
    """Write distances estimated from asymmetric scores, up to a constant per query.

    `scores` (m,) int32 are those of the points from `start` on. Twice a score less `total`, the sum
    of all levels, times `unit` float32 is the query's product with the point's code as odd numbers
    around 0: +1 and -1 where every margin has one bit.
    `terms` (n,) uint32 hold, per point, what its distance begins with, beside `base` float32, and
    how many times that product is taken off; `divgrpc.coding.pack_terms` makes them. `estimates`
    (m,) float32: infinity where it would be no number.
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
    _score_block(codes, planes, start, scores)
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

    A group is every COLUMN-th point of a block, so that minima of many groups are one run of
    instructions; `minima` (ceil(n / BLOCK) * COLUMN,) float32 gets infinity where there is none.
    `block` (BLOCK,) int32 is scratch; other arguments as for `scan_asymmetric` and `estimate`.
    """
    for start in range(0, stop, BLOCK):
        end = min(stop, start + BLOCK)
        scores, found = block[: end - start], estimates[start:end]
        _score_block(codes, planes, start, scores)
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
def _score_block(codes, planes, start, block):
    block[:] = np.int32(0)
    words, w = codes.shape[0], 0
    while w + 4 <= words:
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
    r, s, t, u = planes[4, w], planes[4, w + 1], planes[4, w + 2], planes[4, w + 3]
    stop = start + block.shape[0]
    a, b = codes[w, start:stop], codes[w + 1, start:stop]
    c, d = codes[w + 2, start:stop], codes[w + 3, start:stop]
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for i in range(block.shape[0]):
        e, f, g, h = a[i], b[i], c[i], d[i]
        ones = (popcount(e & a0) << r) + (popcount(f & b0) << s)
        ones += (popcount(g & c0) << t) + (popcount(h & d0) << u)
        twos = (popcount(e & a1) << r) + (popcount(f & b1) << s)
        twos += (popcount(g & c1) << t) + (popcount(h & d1) << u)
        fours = (popcount(e & a2) << r) + (popcount(f & b2) << s)
        fours += (popcount(g & c2) << t) + (popcount(h & d2) << u)
        eights = (popcount(e & a3) << r) + (popcount(f & b3) << s)
        eights += (popcount(g & c3) << t) + (popcount(h & d3) << u)
        gain = ones + (twos << one) + (fours << two)
        block[i] += np.int32(gain) - np.int32(eights << three)


@kernel
def _add_word(codes, planes, w, start, block):
    p0, p1, p2, p3 = planes[0, w], planes[1, w], planes[2, w], planes[3, w]
    shift = planes[4, w]
    word = codes[w, start : start + block.shape[0]]
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for i in range(block.shape[0]):
        e = word[i]
        gain = popcount(e & p0) + (popcount(e & p1) << one) + (popcount(e & p2) << two)
        block[i] += np.int32(gain << shift) - np.int32(popcount(e & p3) << three << shift)


@kernel
def scan_hamming(codes, code, stop, scores, maxima):
    """Score the first `stop` points by minus the Hamming distance to `code` (W,) uint64.

    Arrays as in `scan_asymmetric`.
    """
    words = codes.shape[0]
    for start in range(0, stop, BLOCK):
        end = min(stop, start + BLOCK)
        block = scores[start:end]
        block[:] = np.int32(0)
        w = 0
        while w + 4 <= words:
            _differ_in_four_words(codes, code, w, start, block)
            w += 4
        while w < words:
            mine = code[w]
            word = codes[w, start:end]
            for i in range(block.shape[0]):
                block[i] -= np.int32(popcount(word[i] ^ mine))
            w += 1
        _group_maxima(block, maxima, start // GROUP)


@kernel
def _differ_in_four_words(codes, code, w, start, block):
    mine, second, third, fourth = code[w], code[w + 1], code[w + 2], code[w + 3]
    end = start + block.shape[0]
    a, b = codes[w, start:end], codes[w + 1, start:end]
    c, d = codes[w + 2, start:end], codes[w + 3, start:end]
    for i in range(block.shape[0]):
        half = popcount(a[i] ^ mine) + popcount(b[i] ^ second)
        block[i] -= np.int32(half + popcount(c[i] ^ third) + popcount(d[i] ^ fourth))


@kernel
def _group_maxima(block, maxima, first):
    for group in range((block.shape[0] + GROUP - 1) // GROUP):
        part = block[group * GROUP : min(block.shape[0], (group + 1) * GROUP)]
        largest = part[0]
        for i in range(part.shape[0]):
            largest = max(largest, part[i])
        maxima[first + group] = largest


@allocating
def take_largest(scores, maxima, low, histogram, wanted, rows):
    """Write the numbers of the `wanted` largest scores into `rows`; returns (sure, count).

    rows[:sure] score above the boundary, rows[sure:count] are all that tie at it. `low` is the
    least score that can be and `histogram` int32 has a place for each that can be; `wanted` is at
    most n.
    """
    # `wanted` groups have a maximum of at least this, hence as many points a score.
    floor = _boundary(maxima, maxima.shape[0], wanted, low, histogram)
    if floor == low:
        floor = _boundary(scores, scores.shape[0], wanted, low, histogram)
    # Written whether it counts or not, here and below: branches would be guessed wrong.
    groups, found = np.empty(maxima.shape[0], np.int32), 0
    for group in range(maxima.shape[0]):
        groups[found] = group
        found += maxima[group] >= floor
    taken, found = groups[:found], 0
    for group in taken:
        for i in range(group * GROUP, min(scores.shape[0], (group + 1) * GROUP)):
            rows[found] = i
            found += scores[i] >= floor
    boundary = _boundary_of(scores, rows, found, wanted, low, histogram)
    sure = 0
    for i in range(found):
        row = rows[i]
        # What is not above the boundary moves behind, in no order that matters.
        rows[i] = rows[sure]
        rows[sure] = row
        sure += scores[row] > boundary
    count = sure
    for i in range(sure, found):
        row = rows[i]
        rows[i] = rows[count]
        rows[count] = row
        count += scores[row] == boundary
    return sure, count


@kernel
def _boundary(values, count, wanted, low, histogram):
    """Return the largest t such that `wanted` of `values` are at least t, or `low`."""
    histogram[:] = 0
    for i in range(count):
        histogram[values[i] - low] += 1
    return _fall(histogram, wanted, low)


@kernel
def _boundary_of(scores, rows, count, wanted, low, histogram):
    """Return the same for the scores of rows[:count]."""
    histogram[:] = 0
    for i in range(count):
        histogram[scores[rows[i]] - low] += 1
    return _fall(histogram, wanted, low)


@kernel
def _fall(histogram, wanted, low):
    above = 0
    for level in range(histogram.shape[0] - 1, -1, -1):
        above += histogram[level]
        if above >= wanted:
            return level + low
    return low
