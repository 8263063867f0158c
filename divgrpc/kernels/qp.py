"""The loops of `divgrpc.search.relaxation` for means, smallest gradients and trades of shares.

A share is the fraction, 0 to 1, to which the relaxed problem picks a candidate.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.pairwise import far_from
from divgrpc.kernels.top_k import kth_least

# Time to compare one slope (entry of the gradient), in units of the time to compute one distance.
_SLOPE_WORK = 0.125


@allocating
def mean_of(points, rows, count, shares, k):
    """Return the weighted mean (1, d) float32 of rows[:count].

    `shares` (count,) float64 are the weights; their sum is `k`. Under the inner product, each row
    is first scaled to unit length. Sums are float64, in the order of the candidates.
    """
    vectors, indptr, indices, values = points.vectors, points.indptr, points.indices, points.values
    inverses = points.inverse_lengths
    total = np.zeros(vectors.shape[1], np.float64)
    for i in range(count):
        if shares[i] == 0.0:
            continue
        row = rows[i]
        weight = shares[i] / k
        if inverses.shape[0]:
            weight *= np.float64(inverses[row])
        if indptr.shape[0]:
            for at in range(indptr[row], indptr[row + 1]):
                total[indices[at]] += weight * np.float64(values[at])
        else:
            for j in range(total.shape[0]):
                total[j] += weight * np.float64(vectors[row, j])
    mean = np.empty((1, total.shape[0]), np.float32)
    for j in range(total.shape[0]):
        mean[0, j] = total[j]
    return mean


@allocating
def mark_least(values, k, scratch, marks):
    """Mark the `k` smallest of `values` (n,) float64; return their sum.

    `marks` (n,) float64 is set to 1 for these values and to 0 for others. Values are compared as
    float32. If values are equal, the first of them are marked. `scratch` (n,) float32 is scratch
    memory. `k` is 1 to n.
    """
    for i in range(values.shape[0]):
        scratch[i] = values[i]
    limit = kth_least(scratch, k - 1)
    total, n_left = 0.0, k
    for i in range(values.shape[0]):
        below = np.float32(values[i]) < limit
        marks[i] = 1.0 if below else 0.0
        if below:
            total += values[i]
            n_left -= 1
    for i in range(values.shape[0]):
        if n_left and np.float32(values[i]) == limit:
            marks[i] = 1.0
            total += values[i]
            n_left -= 1
    return total


@kernel
def sum_of_products(a, b):
    """Return the float64 sum of a[i] * b[i], added from first to last."""
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@allocating
def trade_shares(points, rows, count, beta, tolerance, work_max, selection, cache, slopes, shares):
    """Trade shares between pairs of candidates until their slopes differ by at most `tolerance`.

    `slopes` (count,) float64 is the gradient, at `shares` (count,) float64, of the objective that
    `divgrpc.search.relaxation` minimises; both are updated. Each trade moves share from one
    candidate to another. The giver is the candidate of greatest slope whose share is above 0. The
    taker is the candidate of smallest slope whose share is below 1. The amount is the one that
    lowers the objective most. Trading ends when these two slopes differ by at most `tolerance`, or
    when the work reaches `work_max` float64. Work is the number of distances computed, plus
    _SLOPE_WORK for each slope compared. `beta` float64 weighs distances in the objective. `cache`
    float32, at least two entries per candidate, stores rows of distances. Returns the decrease of
    the objective and the work.
    """
    slots, room = np.empty(count, np.int32), min(count, cache.shape[0] // count)
    table, owners = cache[: room * count].reshape(room, count), np.empty(room, np.int32)
    slots[:], owners[:] = -1, -1
    fall, work, turn = 0.0, 0.0, 0
    while work < work_max:
        low, high, giver, taker = np.inf, -np.inf, 0, 0
        for i in range(count):
            if shares[i] < 1.0 and slopes[i] < low:
                low, taker = slopes[i], i
            if shares[i] > 0.0 and slopes[i] > high:
                high, giver = slopes[i], i
        if high - low <= tolerance:
            break
        member = taker
        for _ in range(2):
            if slots[member] < 0:
                if owners[turn] >= 0:
                    slots[owners[turn]] = -1
                owners[turn], slots[member] = member, turn
                far_from(points, rows, count, member, selection, table[turn])
                turn = (turn + 1) % room
                work += count
            member = giver
        work += _SLOPE_WORK * count
        to_taker, to_giver = table[slots[taker]], table[slots[giver]]
        bend = 4.0 * beta * np.float64(to_taker[giver])
        step = min(1.0 - shares[taker], shares[giver])
        if bend * step > high - low:
            step = (high - low) / bend
        # If a share reaches 0 or 1, set it to exactly that number, because the computed sum may
        # differ from it by a rounding error.
        shares[taker] = shares[taker] + step if step < 1.0 - shares[taker] else 1.0
        shares[giver] = shares[giver] - step if step < shares[giver] else 0.0
        fall += step * (high - low) - 0.5 * bend * step * step
        for i in range(count):
            slopes[i] -= 2.0 * beta * step * (np.float64(to_taker[i]) - np.float64(to_giver[i]))
    return fall, work
