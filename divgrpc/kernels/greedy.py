"""Selects candidates greedily by three interpretations of the paper's Algorithm 1, and by MMR.

At each step, a candidate's value is lambda times its cost, minus a weight times its distance from
the earlier picks. The candidate with the smallest value is picked. For MMR, the distance from the
picks is the minimum of the distances from each pick. For Algorithm 1, it is the sum of these
distances. The sum is updated with one new distance per candidate and step, so no matrix of all
pairs is stored.

Lazy greedy selection (Minoux 1978) computes the distances of a candidate only if an upper bound of
its distance from the picks makes its value the smallest so far. For MMR, an outdated minimum is
such a bound, because the minimum can only decrease. For Algorithm 1, `kernels.byte_copies` bounds
squared distances, and `pick_by_angles` bounds sums of 1 - cosine: the sum of a candidate's cosines
with all picks is one dot product, of the candidate and the sum of the picks' directions.
"""

import math

import numpy as np

from divgrpc.kernels.byte_copies import copies_pay, far_at_most, make_copies
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.pairwise import COUNTED_COPY, PICK, far_from, how_far, is_kept
from divgrpc.kernels.records import CORRECTED_RULE, MARGINAL_RULE, MMR_RULE, PRINTED_RULE
from divgrpc.kernels.top_k import sort_nearest
from divgrpc.kernels.vector_sums import row_distance, row_dot, row_dots

# Number of candidates in a block. A block without a better candidate is skipped as a whole.
_BLOCK_ROWS = 64
# The pool is the set of the nearest candidates from which points are picked. While at least
# 1 / CROWDED_RATIO of the pool are near-copies of picks, the pool is doubled.
CROWDED_RATIO = 4
# Sums of cosines are bounded for at least this many picks, candidates for each pick, and
# dimensions. Otherwise the bounds cost as much time as they save.
_ANGLE_PICKS_MIN = 3
_ANGLE_CANDIDATES_PER_PICK_MIN = 5
_ANGLE_DIMS_MIN = 128
# At a lower relevance, most candidates may be the next pick until their exact sums are known.
_ANGLE_RELEVANCE_MIN = np.float32(0.5)
# The squares of longer inverse lengths are too small for float32.
_INVERSE_MAX = np.float32(1e15)
# The least square of a sum of directions that is normalised.
_SQUARE_MIN = np.float32(1e-20)


@kernel
def diversity_weight(rule, relevance, n_picks, k):
    """Return the float32 weight of a candidate's distance from `n_picks` picks.

    `relevance` float32 is the paper's lambda. MMR (Carbonell and Goldstein 1998) maximises lambda
    sim(q, r) - (1 - lambda) max sim(r, s). On unit vectors this equals, up to a constant and a
    factor, -lambda d(q, r) + (1 - lambda) min d(r, s). The second form is used for all metrics.
    """
    one = np.float32(1)
    if rule == PRINTED_RULE:
        return one / np.float32(n_picks + 1)
    if n_picks == 0:
        return np.float32(0)
    if rule == MMR_RULE:
        return one - relevance
    if rule == MARGINAL_RULE:
        return np.float32(2) * (one - relevance) / np.float32(k - 1)
    return (one - relevance) / np.float32(n_picks)


@kernel
def scale_costs(distances, count, last, costs):
    """Scale ascending `distances` float32 linearly and write them into `costs` (count,) float32.

    The first candidate gets cost 0, and the candidate at position `last` gets cost 1. If the
    distances of these two candidates are equal, all costs are 0.
    """
    low = distances[0]
    width = distances[last] - low
    for i in range(count):
        costs[i] = (distances[i] - low) / width if width > 0 else np.float32(0)


@allocating
def greedy(
    points, rows, costs, count, objective, selection, knows_far, standing, picks, gains
):  # fmt: skip
    """Pick up to k of rows[:count] one by one; return the numbers of picks and of near-copies.

    `points`: `Points`; `objective`: `Objective`; `selection`: `SelectionScratch`. `rows` int32 and
    `costs` float32 (count,) are sorted by distance, then by id. If several candidates have the same
    value, the first of them is picked. The positions of the picks among the candidates are written
    into `picks` (k,) int64, and minus the value of each pick into `gains` (k,) float32.

    The first pick is always the first candidate. If `knows_far`, the caller has written its
    distances from all candidates into `selection.far`, as `pairwise.far_from` does.

    If `objective.copy_limit` is 0 or more, near-copies are not picked. The second number returned
    is then the number of candidates that are near-copies of a pick. `standing` (count,) int8 must
    then hold zeros; the standing of each candidate (`kernels.pairwise`) is written into it.
    Otherwise `standing` may be empty.
    """
    rule, relevance, limit = objective.rule, objective.relevance, objective.copy_limit
    far, apart, k = selection.far, selection.apart, min(objective.k, count)
    apart[:count] = np.float32(0)
    collapses, n_copies, step = limit >= 0, 0, 0
    if angles_pay(points, count, objective) and angles_fit(points, rows, count):
        centre = np.empty((1, points.vectors.shape[1]), np.float32)
        find_centre(points.vectors, rows, k, centre)
        cosines_from(points, rows, count, centre, far)
        pick_by_angles(points, rows, costs, count, objective, selection, centre, picks, gains)
        return k, 0
    # To count the near-copies of a pick, its distances from all candidates are needed. MMR is
    # therefore lazy only if near-copies are kept.
    lazy, n_compared = rule == MMR_RULE and not collapses, np.zeros(count, np.int32)
    bounded = rule != MMR_RULE and copies_pay(points, count, k)
    n_bounded = count if bounded else 0
    copies, sums = make_copies(points, n_bounded), np.empty(n_bounded, np.float32)
    farthest = np.float32(0)
    while step < k:
        weight = diversity_weight(rule, relevance, step, k)
        if lazy and step:
            best, least = _best_lazily(
                points, rows, costs, count, relevance, weight, farthest, apart, picks, step,
                n_compared,
            )  # fmt: skip
        elif bounded and step:
            best, least = best_of_bounds(
                points.vectors, rows, costs, count, relevance, weight, False, picks, step, apart,
                sums, n_compared,
            )  # fmt: skip
        else:
            best, least = best_value(costs, apart, count, relevance, weight)
        if best < 0:
            break
        if collapses and not is_kept(points, rows, best, limit, standing, selection):
            apart[best] = np.float32(-np.inf)
            continue
        picks[step] = best
        gains[step] = -least
        if collapses or (step + 1 < k and (step == 0 or not lazy)):
            if bounded:
                bounded = far_at_most(points.vectors, rows, count, picks, step, limit, copies, far)
            if not bounded and (step or not knows_far):
                far_from(points, rows, count, best, selection, far)
            add_pick(far, count, rule == MMR_RULE and step > 0, apart)
            if step == 0:
                n_compared[:] = 1
                farthest = largest(far, count)
                for i in range(n_bounded):
                    sums[i] = far[i]
        if collapses:
            standing[best] = PICK
            n_copies += _drop_copies(far, count, limit, standing, apart)
        apart[best] = np.float32(-np.inf)
        step += 1
    return step, n_copies


@kernel
def angles_pay(points, count, objective):
    """Return whether `pick_by_angles` is the faster way to pick from `count` candidates."""
    if points.indptr.shape[0] or not points.inverse_lengths.shape[0]:
        return False
    if objective.rule not in (MARGINAL_RULE, CORRECTED_RULE) or objective.copy_limit >= 0:
        return False
    enough = objective.k >= _ANGLE_PICKS_MIN
    enough &= count >= _ANGLE_CANDIDATES_PER_PICK_MIN * objective.k
    enough &= points.vectors.shape[1] >= _ANGLE_DIMS_MIN
    return enough and objective.relevance >= _ANGLE_RELEVANCE_MIN


@kernel
def angles_fit(points, rows, count):
    """Return whether the squares of all inverse lengths of rows[:count] fit into float32."""
    n_fit = 0
    for i in range(count):
        n_fit += points.inverse_lengths[rows[i]] <= _INVERSE_MAX
    return n_fit == count


@kernel
def find_centre(vectors, rows, count, centre):
    """Write the mean direction of rows[:count] into row 0 of `centre` (1, d) float32.

    It has unit length, or is all zeros if the directions nearly cancel out.
    """
    for j in range(centre.shape[1]):
        centre[0, j] = 0
    for i in range(count):
        _add_direction(vectors, rows[i], _inverse(vectors, rows[i]), centre)
    square = row_dot(centre, 0, centre, 0)
    # The root of a smaller square has too few digits for a unit length.
    factor = np.float32(1) / np.sqrt(square) if square > _SQUARE_MIN else np.float32(0)
    for j in range(centre.shape[1]):
        centre[0, j] *= factor


@part
def _inverse(vectors, row):
    """Return 1 / length of a row, 0 for a row of zeros."""
    length = np.sqrt(row_dot(vectors, row, vectors, row))
    return np.float32(1) / length if length > 0 else np.float32(0)


@part
def _add_direction(vectors, row, inverse, total):
    for j in range(total.shape[1]):
        total[0, j] += vectors[row, j] * inverse


@allocating
def cosines_from(points, rows, count, centre, cosines):
    """Write the cosines of dense rows[:count] and `centre` (1, d) into `cosines` (count,) float32.

    `centre` has unit length, or is all zeros.
    """
    vectors, inverses = points.vectors, points.inverse_lengths
    for first in range(0, count, 4):
        last = count - 1
        places = (first, min(first + 1, last), min(first + 2, last), min(first + 3, last))
        four = (rows[places[0]], rows[places[1]], rows[places[2]], rows[places[3]])
        dots = row_dots(vectors, four, centre, 0)
        for j in range(4):
            cosines[places[j]] = dots[j] * inverses[four[j]]


@allocating
def pick_by_angles(points, rows, costs, count, objective, selection, centre, picks, gains):
    """Do what `greedy` does for Algorithm 1 with dense points and distances 1 - cosine.

    `centre` (1, d) float32 is any direction of unit length, or zeros. `selection.far` has the
    cosines of the candidates with it, as `cosines_from` writes them. Before each pick,
    `selection.apart` gets upper bounds of the sums of distances: the sum of the directions of the
    picks has a part along the centre, whose product with a candidate follows from the cosine, and
    a part across it, whose product is at least minus its length times the sine. The bounds are
    tight if the centre is near the picks. A candidate that may be the next pick gets a bound that
    is tight but for rounding errors, and its exact sum only if it still may be.
    """
    vectors, inverses, dims = points.vectors, points.inverse_lengths, points.vectors.shape[1]
    relevance, k = objective.relevance, min(objective.k, count)
    cosines, apart = selection.far, selection.apart
    sums, n_compared = np.zeros(count, np.float32), np.zeros(count, np.int32)
    sines, due = np.empty(count, np.float32), np.empty(_BLOCK_ROWS, np.int64)
    total = np.zeros((1, dims), np.float32)
    # Upper bound of the rounding errors of a cosine: of dims / 64 + 25 additions in a row.
    error = np.float32((dims / 64 + 64) * 2.0**-22)
    for i in range(count):
        low = max(np.float32(0), abs(cosines[i]) - error)
        sines[i] = np.sqrt(max(np.float32(0), np.float32(1) - low * low))
    for step in range(k):
        weight = diversity_weight(objective.rule, relevance, step, k)
        best, least = 0, relevance * costs[0]
        if step:
            slack = step * (2.0 * np.float64(error) + step * 2.0**-21)
            along = row_dot(total, 0, centre, 0)
            across = _length_across(row_dot(total, 0, total, 0), along, step, error)
            # The errors of `along`, of the cosines and of the sines are at most `error` for each
            # pick, and so are those of these three products.
            base = np.float32(step + slack + 6.0 * step * np.float64(error))
            for i in range(count):
                apart[i] = base - along * cosines[i] + across * sines[i]
            for i in range(step):
                apart[picks[i]] = np.float32(-np.inf)
            best, least = _best_by_angles(
                points, rows, costs, count, relevance, weight, apart, picks, step, sums,
                n_compared, total, slack, due,
            )  # fmt: skip
        picks[step], gains[step] = best, -least
        _add_direction(vectors, rows[best], inverses[rows[best]], total)


@part
def _length_across(square, along, step, error):
    """Return an upper bound of the length of the part of the sum of `step` directions.

    The part is across the centre. `square` is the squared length of the sum, and `along` its
    product with the centre.
    """
    rounding = 4.0 * step * step * np.float64(error)
    rest = np.float64(square) - np.float64(along) * np.float64(along) + rounding
    return np.float32(math.sqrt(max(0.0, rest)))


@kernel
def _best_by_angles(
    points, rows, costs, count, relevance, weight, apart, picks, step, sums, n_compared, total,
    slack, due,
):  # fmt: skip
    """Return what `best_value` returns for exact sums, given upper bounds of the sums in `apart`.

    sums[i] is the sum of the distances of candidate i from the first n_compared[i] of the `step`
    picks. `total` (1, d) is the sum of the directions of the picks. A bound computed from it
    exceeds the exact sum by at most twice `slack`. `due` (_BLOCK_ROWS,) int64 is scratch memory.
    """
    best, least = -1, np.float32(np.inf)
    # The candidate that seems best gets its exact sum before all others. So few others need theirs.
    guess = best_value(costs, apart, count, relevance, weight)[0]
    for block in range(-1, (count + _BLOCK_ROWS - 1) // _BLOCK_ROWS):
        start, stop = block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, count)
        if block < 0:
            start, stop = max(guess, 0), guess + 1
        if not _any_within(costs, apart, start, stop, relevance, weight, least):
            continue
        n_due = 0
        for i in range(start, stop if block >= 0 else start):
            due[n_due] = i
            may_be_best = relevance * costs[i] - weight * apart[i] <= least
            n_due += may_be_best and step > n_compared[i]
        _bound_sums(points, rows, due, n_due, step, total, slack, apart)
        for i in range(start, stop):
            value = relevance * costs[i] - weight * apart[i]
            # If values are equal, the first candidate is picked.
            if not (value < least or (value == least and i < best)):
                continue
            for earlier in range(n_compared[i], step):
                sums[i] += how_far(points, rows[i], rows[picks[earlier]])
            apart[i], n_compared[i] = sums[i], step
            value = relevance * costs[i] - weight * apart[i]
            if value < least or (value == least and i < best):
                best, least = i, value
    return best, least


@kernel
def _bound_sums(points, rows, due, n_due, step, total, slack, apart):
    """Bound the sums of the candidates due[:n_due] by dot products with `total`, four at a time."""
    vectors, inverses = points.vectors, points.inverse_lengths
    for first in range(0, n_due, 4):
        places = (
            due[first], due[min(first + 1, n_due - 1)], due[min(first + 2, n_due - 1)],
            due[min(first + 3, n_due - 1)],
        )  # fmt: skip
        four = (rows[places[0]], rows[places[1]], rows[places[2]], rows[places[3]])
        dots = row_dots(vectors, four, total, 0)
        for j in range(4):
            cosine = np.float64(dots[j]) * np.float64(inverses[four[j]])
            apart[places[j]] = min(apart[places[j]], np.float32(step - cosine + slack))


@kernel
def best_value(costs, apart, count, relevance, weight):
    """Return the first candidate of smallest relevance * cost - weight * apart, and this value.

    `costs` and `apart` (count,) float32. Picks and near-copies have -inf in `apart`. Their value is
    therefore inf, or nan if `weight` is 0, so they are never returned. If no candidate is left, -1
    is returned instead of a candidate.
    """
    best, least = -1, np.float32(np.inf)
    below = np.nextafter(least, -least)
    for start in range(0, count, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, count)
        # Few blocks have a better candidate.
        if not _any_within(costs, apart, start, stop, relevance, weight, below):
            continue
        for i in range(start, stop):
            value = relevance * costs[i] - weight * apart[i]
            if value < least:
                best, least = i, value
        below = np.nextafter(least, -np.float32(np.inf))
    return best, least


@kernel
def _any_within(costs, apart, start, stop, relevance, weight, bound):
    """Return whether a candidate from `start` to `stop` - 1 has a value of at most `bound`.

    The compiler makes vector instructions of a loop over slices, and better ones if the number of
    turns is a constant.
    """
    block_costs, block_apart, n_within = costs[start:stop], apart[start:stop], np.int32(0)
    if stop - start == _BLOCK_ROWS:
        for i in range(_BLOCK_ROWS):
            value = relevance * block_costs[i] - weight * block_apart[i]
            n_within = np.int32(n_within + (value <= bound))
    else:
        for i in range(stop - start):
            value = relevance * block_costs[i] - weight * block_apart[i]
            n_within = np.int32(n_within + (value <= bound))
    return n_within > 0


@kernel
def _best_lazily(
    points, rows, costs, count, relevance, weight, farthest, apart, picks, step, n_compared
):  # fmt: skip
    """Return what `best_value` returns, for MMR, updating `apart` only if needed.

    apart[i] is the minimum of the distances of candidate i from the first n_compared[i] of the
    `step` picks, and at most `farthest`. `n_compared` is (count,) int32.
    """
    best, least = -1, np.float32(np.inf)
    for i in range(count):
        # Costs are ascending and rounding is monotone, so no later value is smaller.
        if relevance * costs[i] - weight * farthest >= least:
            break
        value = relevance * costs[i] - weight * apart[i]
        if value < least and n_compared[i] < step:
            for earlier in range(n_compared[i], step):
                apart[i] = min(apart[i], how_far(points, rows[i], rows[picks[earlier]]))
            n_compared[i] = step
            value = relevance * costs[i] - weight * apart[i]
        if value < least:
            best, least = i, value
    return best, least


@kernel
def best_of_bounds(
    vectors, rows, costs, count, relevance, weight, of_roots, picks, step, apart, sums, n_compared
):
    """Return what `best_value` returns for exact sums, given upper bounds of the sums in `apart`.

    sums[i] is the sum of the distances of candidate i from the first n_compared[i] of the `step`
    picks, or of their square roots if `of_roots`. If the value of a candidate may be the smallest
    one, its whole sum is written into `sums` and `apart`. Both are (count,) arrays of the same
    float type; `n_compared` is (count,) int32; `weight` is not negative. Rounding is monotone, so
    the value of an upper bound is never above the exact value.
    """
    best, least = -1, np.float32(np.inf)
    # The candidate that seems best is compared before all others. So few others are compared.
    guess = best_value(costs, apart, count, relevance, weight)[0]
    for block in range(-1, (count + _BLOCK_ROWS - 1) // _BLOCK_ROWS):
        start, stop = block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, count)
        if block < 0:
            start, stop = max(guess, 0), guess + 1
        if not _any_within(costs, apart, start, stop, relevance, weight, least):
            continue
        for i in range(start, stop):
            value = relevance * costs[i] - weight * apart[i]
            # If values are equal, the first candidate is picked.
            if not (value < least or (value == least and i < best)):
                continue
            for earlier in range(n_compared[i], step):
                far = row_distance(vectors, rows[i], vectors, rows[picks[earlier]])
                if of_roots:
                    sums[i] += math.sqrt(max(0.0, np.float64(far)))
                else:
                    sums[i] += far
            apart[i], n_compared[i] = sums[i], step
            value = relevance * costs[i] - weight * apart[i]
            if value < least or (value == least and i < best):
                best, least = i, value
    return best, least


@part
def largest(numbers, count):
    """Return the largest of numbers[:count] float32, or 0 if all are below 0; none may be nan.

    Floats from 0 on, read as integers, sort as the floats do, and all floats below 0 are integers
    below 0. The maximum of integers compiles to vector instructions.
    """
    most = np.int32(0)
    for i in range(count):
        most = max(most, np.float32(numbers[i]).view(np.int32))
    return np.int32(most).view(np.float32)


@kernel
def add_pick(far, count, least_counts, apart):
    """Update `apart` (count,) with the distances `far` (count,) of the candidates from a new pick.

    If `least_counts`, `apart` becomes the minimum of itself and `far`. Otherwise `far` is added to
    `apart`.
    """
    if least_counts:
        for i in range(count):
            apart[i] = far[i] if far[i] < apart[i] else apart[i]
    else:
        for i in range(count):
            apart[i] += far[i]


@kernel
def _drop_copies(far, count, limit, standing, apart):
    """Exclude the near-copies of a pick; return how many of them were not yet counted.

    `far` (count,) float32: distances of the candidates from the pick.
    """
    copies = 0
    for start in range(0, count, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, count)
        near = 0
        for i in range(start, stop):
            near += far[i] <= limit
        if not near:
            continue
        for i in range(start, stop):
            if far[i] <= limit and standing[i] < PICK:
                # This candidate is within the limit of the pick. If it comes before the pick, it is
                # not kept, because otherwise the pick would not be kept. If it comes after the
                # pick, it is a near-copy of the pick. In both cases it is excluded.
                copies += standing[i] < COUNTED_COPY
                standing[i] = COUNTED_COPY
                apart[i] = np.float32(-np.inf)
    return copies


@allocating
def pick(points, ids, candidates, costs, pool, objective, selection, picks, gains):
    """Pick from a pool of nearest candidates; double the pool while near-copies crowd it.

    Returns four counts: the picks, the near-copies among the picks, the near-copies of picks in the
    pool, and the candidates in the pool. `candidates`: `Candidates` with `pool.total` entries; the
    first `pool.size` are sorted. `costs` float32 is scratch memory. The other arguments are as for
    `greedy`.

    If fewer than k candidates remain without near-copies, the nearest near-copies complete the
    answer, so a copy limit never makes an answer shorter. The gain of a near-copy is minus its
    distance from the query.
    """
    rows, distances, k = candidates.rows, candidates.distances, objective.k
    size, widest, limit = pool.size, pool.widest, objective.copy_limit
    standing = np.zeros(widest if limit >= 0 else 0, np.int8)
    # At relevance 1 only distances matter, and a selection score is minus the distance, unscaled.
    shares = objective.product and (objective.relevance < 1 or objective.rule == PRINTED_RULE)
    prices = costs if shares else distances
    while True:
        if shares and size:
            # Costs are scaled to 1 at the farthest candidate that is not a near-copy.
            last = size - 1
            while limit >= 0 and not is_kept(points, rows, last, limit, standing, selection):
                last -= 1
            scale_costs(distances, size, last, costs)
        n_picks, copies = greedy(
            points, rows, prices, size, objective, selection, False, standing, picks, gains
        )
        if size == widest or CROWDED_RATIO * copies < size:
            break
        wider = min(2 * size, widest)
        sort_nearest(rows, distances, size, pool.total, wider - size, ids)
        size = wider
        standing[:] = 0
    n_different = n_picks
    for i in range(size if limit >= 0 else 0):
        if n_picks < k and standing[i] != PICK:
            picks[n_picks], gains[n_picks] = i, -distances[i]
            n_picks += 1
    return n_picks, n_picks - n_different, copies, size
