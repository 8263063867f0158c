"""Selects greedily by max-sum diversification, and by a determinantal point process (DPP).

Max-sum picks by the gain of Borodin, Lee and Ye (PODS 2012), which halves the weight of relevance.
If distances satisfy the triangle inequality, the greedy selection reaches at least half of the best
sum.

The DPP uses the greedy MAP algorithm of Chen, Zhang and Zhou (2018). The similarity matrix of the
candidates has ones on its diagonal. The remainder of a candidate is 1 minus the squared length of
its projection onto the picks. Picking the candidate multiplies the determinant by its remainder. An
incremental Cholesky factorisation keeps the remainders up to date. A remainder can only decrease,
so a candidate is updated only if its outdated value is the best so far (lazy greedy, Minoux 1978).
Costs are ascending, so a step can end before it reaches most candidates.
"""

import math

import numpy as np

from divgrpc.kernels.byte_copies import copies_pay, far_at_most, make_copies
from divgrpc.kernels.greedy import best_of_bounds, best_value
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.pairwise import far_from, how_far
from divgrpc.kernels.records import NO_COPIES

# Kinds of similarity of two points whose distance is d. COSINE_OF_CHORD is 1 - d / 2, the cosine of
# unit vectors if d is their squared Euclidean distance. COSINE_OF_ANGLE is 1 - d, the cosine if d
# is 1 - cosine. RATIONAL_QUADRATIC is 1 / (1 + d / s), where s is the mean of the costs.
COSINE_OF_CHORD = 1
COSINE_OF_ANGLE = 2
RATIONAL_QUADRATIC = 3

# Smaller remainders are replaced by this, because float32 distances do not distinguish them.
REMAINDER_MIN = 1e-5
# A bound of remainders is multiplied by this, so that rounding errors do not make the bound too
# great.
_BELOW_ONE = 1.0 - 1e-9
_LN_2 = 0.6931471805599453


@allocating
def max_sum(points, rows, costs, count, k, relevance, selection, picks, gains):
    """Pick up to `k` candidates one by one by max-sum diversification; return their number.

    `costs` (count,) float32 are ascending; `relevance` float64 is the paper's lambda. Each step
    picks the candidate of greatest -lambda / 2 * cost + 2 (1 - lambda) / (k - 1) * sum of the
    square roots of its distances from the earlier picks. This value is written into `gains` (k,)
    float32. If values are equal, the first candidate is picked. The other arguments are as for
    `greedy.greedy`.
    """
    k = min(k, count)
    far, sums = selection.far, np.zeros(count, np.float64)
    bounded = copies_pay(points, count, k)
    n_bounded = count if bounded else 0
    copies, exact = make_copies(points, n_bounded), np.empty(n_bounded, np.float64)
    n_compared = np.ones(n_bounded, np.int32)
    half, weight = 0.5 * relevance, 2.0 * (1.0 - relevance) / (k - 1) if k > 1 else 0.0
    for step in range(k):
        if bounded and step:
            best, least = best_of_bounds(
                points.vectors, rows, costs, count, half, weight, True, picks, step, sums, exact,
                n_compared,
            )  # fmt: skip
        else:
            best, least = best_value(costs, sums, count, half, weight)
        picks[step], gains[step] = best, 0.0 - least
        if step + 1 < k:
            if bounded:
                bounded = far_at_most(
                    points.vectors, rows, count, picks, step, NO_COPIES, copies, far
                )
            if not bounded:
                far_from(points, rows, count, best, selection, far)
            for i in range(count):
                sums[i] += math.sqrt(max(0.0, np.float64(far[i])))
            if step == 0:
                for i in range(n_bounded):
                    exact[i] = sums[i]
        sums[best] = -np.inf
    return k


@allocating
def determinant(points, rows, costs, count, k, relevance, similarity, far, picks, gains):
    """Pick up to `k` candidates one by one by a DPP; return their number.

    Each step picks the candidate of greatest -lambda * cost + (1 - lambda) * log(remainder). This
    value is written into `gains`. `similarity`: COSINE_OF_CHORD, COSINE_OF_ANGLE or
    RATIONAL_QUADRATIC; for RATIONAL_QUADRATIC, costs are divided by their mean. Remainders below
    REMAINDER_MIN are replaced by REMAINDER_MIN, so candidates with such remainders differ only in
    cost. `far` (count,) float32 has the distances from the first candidate, which is the first
    pick, or is empty if they are not known. The other arguments are as for `max_sum`.
    """
    k = min(k, count)
    unit = mean_cost(costs, count) if similarity == RATIONAL_QUADRATIC else 1.0
    remainders, logs = np.ones(count, np.float64), np.zeros(count, np.float64)
    factor, pivots, roots = np.empty((count, k)), np.empty(k, np.int64), np.empty(k, np.float64)
    n_projected, is_pick = np.zeros(count, np.int32), np.zeros(count, np.bool_)
    n_pivots = 0
    for step in range(k):
        best, least, best_remainder, best_price = -1, np.inf, 0.0, 0.0
        for i in range(count):
            if is_pick[i]:
                continue
            price = relevance * (np.float64(costs[i]) / unit)
            # Logarithms are at most 0 and prices are ascending, so no later value is smaller.
            if price >= least:
                break
            if price - (1.0 - relevance) * logs[i] >= least:
                continue
            # A candidate whose remainder is below `volume_min` cannot be better than the best so
            # far. The exact bound has exp(x); 1 + x replaces it, being cheaper and never greater.
            rise = 1.0 + (price - best_price) / (1.0 - relevance)
            volume_min = _BELOW_ONE * best_remainder * rise
            while n_projected[i] < n_pivots and max(remainders[i], REMAINDER_MIN) > volume_min:
                pivot = pivots[n_projected[i]]
                if n_projected[i] == 0 and far.shape[0]:
                    distance = far[i]
                else:
                    distance = how_far(points, rows[i], rows[pivot])
                share = _similarity(np.float64(distance), unit, similarity)
                for j in range(n_projected[i]):
                    share -= factor[i, j] * factor[pivot, j]
                share /= roots[n_projected[i]]
                factor[i, n_projected[i]] = share
                remainders[i] -= share * share
                n_projected[i] += 1
            if max(remainders[i], REMAINDER_MIN) <= volume_min:
                continue
            logs[i] = logarithm(max(remainders[i], REMAINDER_MIN))
            value = price - (1.0 - relevance) * logs[i]
            if value < least:
                best, least = i, value
                best_remainder, best_price = max(remainders[i], REMAINDER_MIN), price
        picks[step], gains[step], is_pick[best] = best, 0.0 - least, True
        if remainders[best] > REMAINDER_MIN:
            pivots[n_pivots], roots[n_pivots] = best, math.sqrt(remainders[best])
            n_pivots += 1
    return k


@kernel
def mean_cost(costs, count):
    """Return the float64 mean of `costs` (count,), or 1 if their sum is not above 0."""
    total = 0.0
    for i in range(count):
        total += np.float64(costs[i])
    return total / count if total > 0 else 1.0


@part
def _similarity(far, unit, similarity):
    if similarity == RATIONAL_QUADRATIC:
        return unit / (unit + far)
    return 1.0 - 0.5 * far if similarity == COSINE_OF_CHORD else 1.0 - far


@kernel
def logarithm(number):
    """Return the natural logarithm of a float64 above 0, the same bits on every processor.

    A library's logarithm may round differently on another processor. Here the number is written as
    a power of two times m, 1 <= m < 2. Then log m = 2 atanh z with z = (m - 1) / (m + 1), which is
    summed as a power series.
    """
    half, exponent = math.frexp(number)
    z = (half - 0.5) / (half + 0.5)
    s = z * z
    series = 1 / 23 + s * (1 / 25 + s * (1 / 27 + s * (1 / 29 + s * (1 / 31 + s / 33))))
    series = 1 / 13 + s * (1 / 15 + s * (1 / 17 + s * (1 / 19 + s * (1 / 21 + s * series))))
    series = 1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * series)))
    return (exponent - 1) * _LN_2 + 2 * z * (1 + s * (1 / 3 + s * series))
