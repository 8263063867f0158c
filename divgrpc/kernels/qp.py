"""The loops of `divgrpc.search.relaxation`: means, least gradients, and trades of shares."""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.pairwise import far_from
from divgrpc.kernels.top_k import kth_least

# Time of looking through one slope, in units of computing one distance.
_SLOPE_WORK = 0.125


@allocating
def mean_of(points, rows, count, shares, k):
    """Return the weighted mean (1, d) float32 of rows[:count], of directions under inner product.

    `shares` (count,) float64 are the weights, of sum `k`. Sums are float64, in the order of the
    candidates.
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
    """Mark the `k` least of `values` (n,) float64 in `marks` (n,) float64; return their sum.

    Values are compared as float32, in `scratch` (n,) float32; of equal values the first are taken.
    Marks are 1 and 0. `k` is 1 to n.
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
    """Return the sum of a[i] * b[i], float64, from first to last."""
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@allocating
def trade_shares(points, rows, count, beta, tolerance, work_max, selection, cache, slopes, shares):
    """Trade shares between candidates until no two of their slopes differ by more than `tolerance`.

    `slopes` (count,) float64 is the gradient of `divgrpc.search.relaxation`'s objective at `shares`
    (count,) float64; both are updated. A trade takes from the steepest candidate that has a share
    and gives to the least steep below 1, as far as the objective falls. `beta` float64 weighs
    distances in the objective. Work counts computed distances; trading stops early once it exceeds
    `work_max` float64. `cache` float32, at least two entries per candidate, keeps rows of
    distances. Returns the fall of the objective, and the work.
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
        # Rounding must not leave a share just below 1 or above 0.
        shares[taker] = shares[taker] + step if step < 1.0 - shares[taker] else 1.0
        shares[giver] = shares[giver] - step if step < shares[giver] else 0.0
        fall += step * (high - low) - 0.5 * bend * step * step
        for i in range(count):
            slopes[i] -= 2.0 * beta * step * (np.float64(to_taker[i]) - np.float64(to_giver[i]))
    return fall, work
