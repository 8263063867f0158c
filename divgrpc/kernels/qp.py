"""The loops behind `divgrpc.search.relaxation`: means, least gradients, and trades of shares."""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.kth_smallest import kth_least
from divgrpc.kernels.pairwise import far_from


@allocating
def mean_of(points, inverses, rows, count, shares, k):
    """Return the mean (1, d) float32 of rows[:count], by `shares` (count,) float64 of sum k.

    `points` as for `scoring.score_rows`; with `inverses` (n,) float32, inverse lengths, it is that
    of their directions. Summed in the order of the candidates, in float64.
    """
    vectors, indptr, indices, values, _ = points
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
def take_least(values, k, pool, chosen):
    """Mark the k least of `values` (n,) float64, of equals the first; returns their sum.

    They are compared as float32. `pool` (n,) float32 is written over; `chosen` (n,) float64 gets
    1 and 0. `k` is 1 to n.
    """
    for i in range(values.shape[0]):
        pool[i] = values[i]
    limit = kth_least(pool, k - 1)
    total, left = 0.0, k
    for i in range(values.shape[0]):
        below = np.float32(values[i]) < limit
        chosen[i] = 1.0 if below else 0.0
        if below:
            total += values[i]
            left -= 1
    for i in range(values.shape[0]):
        if left and np.float32(values[i]) == limit:
            chosen[i] = 1.0
            total += values[i]
            left -= 1
    return total


@kernel
def sum_of_products(a, b):
    """Return the sum of a[i] b[i], float64 both, from first to last."""
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@allocating
def settle(points, inverses, rows, count, beta, allowed, most, scratch, kept, slopes, shares):
    """Let candidates trade shares until no two of their slopes differ by more than `allowed`.

    `points`, `inverses`, `rows` and `scratch` as for `selection.greedy`; `slopes` (count,) float64
    is the gradient of `divgrpc.search.relaxation`'s objective at `shares` (count,) float64. Both
    are brought up to date. A trade takes from the steepest that has some and gives to the least
    steep that has not all, as far as the objective falls; `beta` float64 weighs distances in it. It
    stops early once more distances than `most` float64 were computed; as many as fit into `kept`
    float32, at least two per candidate, are not computed again. Returns by how much the objective
    fell, and the work in distances.
    """
    slots, room = np.empty(count, np.int32), min(count, kept.shape[0] // count)
    table, owners = kept[: room * count].reshape(room, count), np.empty(room, np.int32)
    slots[:], owners[:] = -1, -1
    fall, work, turn = 0.0, 0.0, 0
    while work < most:
        low, high, give, take = np.inf, -np.inf, 0, 0
        for i in range(count):
            if shares[i] < 1.0 and slopes[i] < low:
                low, take = slopes[i], i
            if shares[i] > 0.0 and slopes[i] > high:
                high, give = slopes[i], i
        if high - low <= allowed:
            break
        member = take
        for _ in range(2):
            if slots[member] < 0:
                if owners[turn] >= 0:
                    slots[owners[turn]] = -1
                owners[turn], slots[member] = member, turn
                far_from(points, inverses, rows, count, member, scratch, table[turn])
                turn = (turn + 1) % room
                work += count
            member = give
        # Looking through all slopes costs about an eighth of computing as many distances.
        work += 0.125 * count
        to_taker, to_giver = table[slots[take]], table[slots[give]]
        bend = 4.0 * beta * np.float64(to_taker[give])
        step = min(1.0 - shares[take], shares[give])
        if bend * step > high - low:
            step = (high - low) / bend
        # Rounding must not leave a share just below one or above none.
        shares[take] = shares[take] + step if step < 1.0 - shares[take] else 1.0
        shares[give] = shares[give] - step if step < shares[give] else 0.0
        fall += step * (high - low) - 0.5 * bend * step * step
        for i in range(count):
            slopes[i] -= 2.0 * beta * step * (np.float64(to_taker[i]) - np.float64(to_giver[i]))
    return fall, work
