"""Two greedy selectors beside Algorithm 1: the sum of distances, and the determinant.

`MAX_SUM` maximises relevance plus the sum of distances over pairs with the gain of Borodin, Lee and
Ye 2012, which counts relevance half: with true distances the greedy reaches half of the best.

The determinantal point process goes by the greedy of Chen, Zhang and Zhou 2018. S is a matrix of
likenesses with ones on its diagonal; the volume that a candidate adds to the picked is what is left
of its own one after projecting on them, kept by an incremental Cholesky factorisation: one row of
likenesses and one row of the factor per step, no matrix of pairs.
"""

import math

import numpy as np

from divgrpc.kernels.compiling import kernel, part
from divgrpc.kernels.pairs import far_from, hold, let_go

MAX_SUM = 0
# Likeness 1 - half of the squared distance: the cosine of unit vectors.
DPP_CHORDS = 1
# Likeness 1 - what lies between: the cosine where that is how far apart points are.
DPP_ANGLES = 2
# Likeness 1 / (1 + d / s), a rational quadratic kernel, s the mean of the costs.
DPP_DISTANCES = 3

# What counts as nothing left of a candidate's one: float32 distances know no better.
LEAST = 1e-5

_MANTISSA = np.int64(0x000FFFFFFFFFFFFF)
_ONE = np.int64(0x3FF0000000000000)
_LN_2 = 0.6931471805599453


@kernel
def diversify(points, inverses, rows, costs, count, k, relevance, method, scratch, picked, gains):
    """Pick up to `k` of the candidates one by one; returns how many.

    `points`, `inverses`, `rows`, `scratch` and `picked` as for `selection.greedy`; `costs` (count,)
    float32 ascend, `relevance` is the paper's lambda, float64. `gains` float32 is what each step
    maximised: with `MAX_SUM` minus half of lambda times the cost, plus 2 (1 - lambda) / (k - 1)
    times the sum of the roots of `far_from`; else minus lambda times the cost (over s with
    `DPP_DISTANCES`), plus (1 - lambda) times the logarithm of what is left, at least of `LEAST`.
    What has less left adds no volume, so that all of it is picked by relevance.
    """
    k = min(k, count)
    sums = method == MAX_SUM
    unit = _unit(costs, count, method)
    prices, far = np.empty(count, np.float64), np.empty(count, np.float32)
    # How far apart from the picked, or what is left of each one's own.
    state, logs = np.empty(count, np.float64), np.empty(0 if sums else count, np.float64)
    values = state if sums else logs
    factor = np.empty((0 if sums else k, count), np.float64)
    for i in range(count):
        prices[i] = (0.5 if sums else 1.0) * relevance * (np.float64(costs[i]) / unit)
        state[i] = 0.0 if sums else 1.0
    weight = 2.0 * (1.0 - relevance) / (k - 1) if sums and k > 1 else 1.0 - relevance
    linked = hold(points, rows, count, scratch)
    used = 0
    for step in range(k):
        if not sums:
            logarithms(state, logs)
        best = _least(prices, values, weight)
        picked[step] = best
        gains[step] = np.float32(weight * values[best] - prices[best])
        # Never again: all others stay finite.
        prices[best] = np.inf
        if step + 1 == k:
            break
        if sums:
            far_from(points, inverses, rows, count, best, linked, scratch, far)
            for i in range(count):
                state[i] += math.sqrt(np.float64(far[i]) if far[i] > 0 else 0.0)
        elif state[best] > LEAST:
            far_from(points, inverses, rows, count, best, linked, scratch, far)
            _condition(far, best, unit, method, factor, used, state)
            used += 1
    let_go(points, rows, count, linked, scratch)
    return k


@part
def _unit(costs, count, method):
    """Return what costs are measured by: their mean where lengths have no scale of their own."""
    if method != DPP_DISTANCES:
        return 1.0
    total = 0.0
    for i in range(count):
        total += np.float64(costs[i])
    return total / count if total > 0 else 1.0


@part
def _least(prices, values, weight):
    """Return the first place of the least price less weighted value."""
    best, least = 0, np.inf
    for i in range(prices.shape[0]):
        value = prices[i] - weight * values[i]
        if value < least:
            best, least = i, value
    return best


@part
def _condition(far, best, unit, method, factor, used, state):
    """Take from everyone's own what the pick explains; adds row `used` to the factor."""
    fresh, root = factor[used], math.sqrt(state[best])
    for i in range(fresh.shape[0]):
        apart = np.float64(far[i])
        if method == DPP_DISTANCES:
            fresh[i] = unit / (unit + apart)
        else:
            fresh[i] = 1.0 - (0.5 if method == DPP_CHORDS else 1.0) * apart
    for row in range(used):
        weight = factor[row, best]
        for i in range(fresh.shape[0]):
            fresh[i] -= weight * factor[row, i]
    for i in range(fresh.shape[0]):
        fresh[i] /= root
        state[i] -= fresh[i] * fresh[i]


@kernel
def logarithms(values, result):
    """Write the natural logarithm of each of `values` (n,) float64 into `result`, of `LEAST` below.

    A number is a power of two times m from 1 up to 2, and log m = 2 atanh z, z = (m - 1) / (m + 1),
    is summed up as a series. A library's own may end otherwise on another processor.
    """
    raised = np.empty(values.shape[0], np.float64)
    for i in range(values.shape[0]):
        raised[i] = max(values[i], LEAST)
    bits, mantissas = raised.view(np.int64), result.view(np.int64)
    for i in range(values.shape[0]):
        mantissas[i] = (bits[i] & _MANTISSA) | _ONE
    for i in range(values.shape[0]):
        exponent = np.float64((bits[i] >> np.int64(52)) - np.int64(1023))
        z = (result[i] - 1.0) / (result[i] + 1.0)
        s = z * z
        series = 1 / 23 + s * (1 / 25 + s * (1 / 27 + s * (1 / 29 + s * (1 / 31 + s / 33))))
        series = 1 / 13 + s * (1 / 15 + s * (1 / 17 + s * (1 / 19 + s * (1 / 21 + s * series))))
        series = 1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * series)))
        result[i] = exponent * _LN_2 + 2 * z * (1 + s * (1 / 3 + s * series))
