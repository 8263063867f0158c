"""Two greedy selectors beside Algorithm 1: the sum of distances, and the determinant.

The sum goes by the gain of Borodin, Lee and Ye 2012, which counts relevance half: with true
distances the greedy reaches half of the best.

The determinantal point process goes by the greedy of Chen, Zhang and Zhou 2018. S is a matrix of
likenesses with ones on its diagonal; the volume that a candidate adds to the picked is what is left
of its own one after projecting on them, kept by an incremental Cholesky factorisation. What is left
only shrinks, so a candidate is brought up to date only when as it stands it would be picked (Minoux
1978), and as prices ascend most are never looked at.
"""

import math

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.pairwise import far_from, how_far

# Likeness 1 - half of the squared distance: the cosine of unit vectors.
CHORDS = 1
# Likeness 1 - what lies between: the cosine where that is how far apart points are.
ANGLES = 2
# Likeness 1 / (1 + d / s), a rational quadratic kernel, s the mean of the costs.
DISTANCES = 3

# What counts as nothing left of a candidate's one: float32 distances know no better.
LEAST = 1e-5

# Less than one by what rounding could make of a sum of logarithms.
_SURE = 1.0 - 1e-9

_LN_2 = 0.6931471805599453


@allocating
def max_sum(points, inverses, rows, costs, count, k, relevance, scratch, picked, gains):
    """Pick up to `k` of the candidates one by one; returns how many.

    `points`, `inverses`, `rows`, `scratch` and `picked` as for `selection.greedy`; `costs` (count,)
    float32 ascend, `relevance` is the paper's lambda, float64. `gains` float32 is what each step
    maximised: minus half of lambda times the cost, plus 2 (1 - lambda) / (k - 1) times the sum of
    the roots of `pairs.far_from` to those picked before. Of equals the first is picked.
    """
    k = min(k, count)
    far, sums, taken = scratch[0], np.zeros(count, np.float64), np.zeros(count, np.bool_)
    weight = 2.0 * (1.0 - relevance) / (k - 1) if k > 1 else 0.0
    for step in range(k):
        best, least = -1, np.inf
        for i in range(count):
            value = 0.5 * relevance * np.float64(costs[i]) - weight * sums[i]
            if value < least and not taken[i]:
                best, least = i, value
        picked[step], gains[step], taken[best] = best, 0.0 - least, True
        if step + 1 < k:
            far_from(points, inverses, rows, count, best, scratch, far)
            for i in range(count):
                sums[i] += math.sqrt(max(0.0, np.float64(far[i])))
    return k


@allocating
def determinant(points, inverses, rows, costs, count, k, relevance, likeness, picked, gains):
    """Do the same; gains: minus lambda times the cost, plus 1 - lambda times log of what is left.

    With `DISTANCES` costs are measured by their mean. The logarithm is at least that of `LEAST`:
    what has less left adds no volume, and all of it is picked by relevance.
    """
    k = min(k, count)
    unit = _mean(costs, count) if likeness == DISTANCES else 1.0
    left, logs = np.ones(count, np.float64), np.zeros(count, np.float64)
    factor, pivots, roots = np.empty((count, k)), np.empty(k, np.int64), np.empty(k, np.float64)
    done, taken, used = np.zeros(count, np.int32), np.zeros(count, np.bool_), 0
    for step in range(k):
        best, least, held, paid = -1, np.inf, 0.0, 0.0
        for i in range(count):
            if taken[i]:
                continue
            price = relevance * (np.float64(costs[i]) / unit)
            # No logarithm is above 0, and no price after this one is lower.
            if price >= least:
                break
            if price - (1.0 - relevance) * logs[i] >= least:
                continue
            # As exp(x) >= 1 + x: with no more left than this it is not better than the best so far.
            little = _SURE * held * (1.0 + (price - paid) / (1.0 - relevance))
            while done[i] < used and max(left[i], LEAST) > little:
                pivot = pivots[done[i]]
                far = np.float64(how_far(points, inverses, rows[i], rows[pivot]))
                share = _likeness(far, unit, likeness)
                for j in range(done[i]):
                    share -= factor[i, j] * factor[pivot, j]
                share /= roots[done[i]]
                factor[i, done[i]] = share
                left[i] -= share * share
                done[i] += 1
            if max(left[i], LEAST) <= little:
                continue
            logs[i] = logarithm(max(left[i], LEAST))
            value = price - (1.0 - relevance) * logs[i]
            if value < least:
                best, least, held, paid = i, value, max(left[i], LEAST), price
        picked[step], gains[step], taken[best] = best, 0.0 - least, True
        if left[best] > LEAST:
            pivots[used], roots[used] = best, math.sqrt(left[best])
            used += 1
    return k


@part
def _mean(costs, count):
    total = 0.0
    for i in range(count):
        total += np.float64(costs[i])
    return total / count if total > 0 else 1.0


@part
def _likeness(far, unit, likeness):
    if likeness == DISTANCES:
        return unit / (unit + far)
    return 1.0 - 0.5 * far if likeness == CHORDS else 1.0 - far


@kernel
def logarithm(number):
    """Return the natural logarithm of a float64 above 0.

    A number is a power of two times m from 1 up to 2, and log m = 2 atanh z, z = (m - 1) / (m + 1),
    is summed up as a series. A library's own may end otherwise on another processor.
    """
    half, exponent = math.frexp(number)
    z = (half - 0.5) / (half + 0.5)
    s = z * z
    series = 1 / 23 + s * (1 / 25 + s * (1 / 27 + s * (1 / 29 + s * (1 / 31 + s / 33))))
    series = 1 / 13 + s * (1 / 15 + s * (1 / 17 + s * (1 / 19 + s * (1 / 21 + s * series))))
    series = 1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * series)))
    return (exponent - 1) * _LN_2 + 2 * z * (1 + s * (1 / 3 + s * series))
