"""The paper's Eq. 3: every candidate taken by a share from 0 to 1, k shares in all.

Of shares a with sum k it minimises lambda * sum of a_i c_i - beta * sum over i, j of a_i a_j d_ij,
which is convex, because the distances d are squared Euclidean ones (of unit vectors, halved, for
1 - cosine). beta is 1 - lambda; the paper prints 1.

The gradient at all candidates is one pass over them: the sum of a_j d_ij is k times the squared
distance of i from the mean of the shares, and something that all have alike. So there is no matrix
of pairs, and memory grows with the candidates alone. The linear step of Frank and Wolfe over these
shares is to take the k of least gradient, and what it could gain is the duality gap: no solution
is better than this one by more.

Steps are taken among few working candidates: Frank and Wolfe's fully corrective form (Jaggi 2013).
Between two passes the worst pair of them trades shares, with an exact line search, until they
violate less than they may; after a pass those outside that violate most join. Only the rows of
distances that the trades ask for are computed, and few are kept.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel, part
from divgrpc.kernels.pairs import far_from, hold, let_go
from divgrpc.kernels.sampling import kth_smallest
from divgrpc.kernels.scoring import score_rows
from divgrpc.kernels.sparse import dense_square

# Working candidates to begin with, and how many may join after a pass; at least k of each.
START = 256
JOINING = 64

# Distances among working candidates that are kept: 4 MiB.
_KEPT = 1 << 20
# Rounds of exchanges at most.
_ROUNDS = 8
# Of gradients, what float32 distances leave unsure.
_ROUNDING = 1e-7


@kernel
def relax(points, inverses, rows, costs, count, k, relevance, beta, tolerance, scratch, shares):
    """Write the solution into `shares` (count,) float64; returns its duality gap.

    `points`, `inverses`, `rows` and `scratch` as for `selection.greedy`, `costs` (count,) float32
    ascend, `k` is 1 to `count`; `relevance` (lambda) and `beta` are float64. The gap is a share of
    the objective's range, from the solution to the worst selection of k that was met; it is at most
    `tolerance` unless the work ran out (two million distances and 128 a candidate), or the whole
    range is lost in rounding, in which case it is 0.
    """
    gradient, pool = np.empty(count, np.float64), np.empty(count, np.float32)
    members, chosen = np.empty(count, np.int32), np.empty(count, np.bool_)
    size = min(count, max(2 * k, START))
    for i in range(count):
        shares[i] = 1.0 if i < k else 0.0
        members[i] = i
    kept = np.empty(max(_KEPT, 2 * count), np.float32)
    spent, most = 0.0, 128.0 * count + 2.0e6
    rise, fall, moved = 0.0, 0.0, 1.0
    while True:
        middle = _middle(points, inverses, rows, count, shares, k)
        _reach(points, inverses, rows, count, k, middle, shares, pool)
        largest = 0.0
        for i in range(count):
            gradient[i] = relevance * np.float64(costs[i]) - 2.0 * beta * np.float64(pool[i])
            largest = max(largest, abs(gradient[i]))
        if spent == 0.0:
            rise = _rise(points, inverses, rows, count, k, middle, beta, shares, gradient, pool)
        spent += count
        span, unsure = rise + fall, _ROUNDING * k * largest
        gap = -take_least(gradient, count, k, pool, chosen)
        for i in range(count):
            gap += shares[i] * gradient[i]
        if gap <= max(tolerance * span, unsure) or spent > most or moved == 0.0:
            return max(gap, 0.0) / span if span > unsure else 0.0
        before = size
        size = _join(gradient, count, shares, members, size, max(k, JOINING), pool, chosen)
        allowed = 0.5 * max(tolerance * span, unsure) / k
        lower, work = _settle(
            points,
            inverses,
            rows,
            members,
            size,
            beta,
            allowed,
            most,
            scratch,
            kept,
            gradient,
            shares,
        )
        fall, spent = fall + lower, spent + work
        moved = work + size - before


@kernel
def _middle(points, inverses, rows, count, shares, k):
    """Return the mean (1, d) float32 of the points, or of their directions, by their shares."""
    vectors, indptr, indices, values, _ = points
    total = np.zeros(vectors.shape[1], np.float64)
    for i in range(count):
        if shares[i] == 0.0:
            continue
        row = rows[i]
        weight = shares[i] / k * (np.float64(inverses[row]) if inverses.shape[0] else 1.0)
        if indptr.shape[0]:
            for at in range(indptr[row], indptr[row + 1]):
                total[indices[at]] += weight * np.float64(values[at])
        else:
            for j in range(total.shape[0]):
                total[j] += weight * np.float64(vectors[row, j])
    middle = np.empty((1, total.shape[0]), np.float32)
    for j in range(total.shape[0]):
        middle[0, j] = total[j]
    return middle


@part
def _reach(points, inverses, rows, count, k, middle, shares, reach):
    """Write the sum of shares times distances from each candidate, but for what all have alike."""
    square = dense_square(middle, 0) if points[1].shape[0] else 0.0
    angular = inverses.shape[0] > 0
    score_rows(points, middle, 0, square, angular, rows, count, reach)
    for i in range(count):
        factor = np.float32(k)
        if angular:
            factor *= inverses[rows[i]]
            if factor == 0:
                # What has no direction is at a right angle to all but itself.
                reach[i] = -shares[i]
                continue
        reach[i] *= factor


@part
def _rise(points, inverses, rows, count, k, middle, beta, shares, gradient, pool):
    """Return how much worse the selection is that the gradient warns of most; at least 0."""
    upside, chosen = np.empty(count, np.float64), np.empty(count, np.bool_)
    corner = np.empty(count, np.float64)
    for i in range(count):
        upside[i] = -gradient[i]
    rise = -take_least(upside, count, k, pool, chosen)
    for i in range(count):
        rise -= shares[i] * gradient[i]
        corner[i] = 1.0 if chosen[i] else 0.0
    other = _middle(points, inverses, rows, count, corner, k)
    square = 0.0
    for j in range(other.shape[1]):
        way = np.float64(other[0, j]) - np.float64(middle[0, j])
        square += way * way
    half = 0.5 if inverses.shape[0] else 1.0
    return max(0.0, rise + 2.0 * beta * half * k * k * square)


@kernel
def take_least(values, count, k, pool, chosen):
    """Mark the k least of values[:count] float64, of equals the first; returns their sum.

    They are compared as float32. `pool` float32 is written over; `chosen` bool.
    """
    for i in range(count):
        pool[i] = values[i]
    limit = kth_smallest(pool[:count], k - 1)
    total, left = 0.0, k
    for i in range(count):
        chosen[i] = np.float32(values[i]) < limit
        if chosen[i]:
            total += values[i]
            left -= 1
    for i in range(count):
        if left and np.float32(values[i]) == limit:
            chosen[i] = True
            total += values[i]
            left -= 1
    return total


@part
def _join(gradient, count, shares, members, size, wanted, pool, chosen):
    """Let those join that would gain most by taking a share; returns how many work then."""
    highest, outside = -np.inf, gradient.copy()
    for i in range(count):
        if shares[i] > 0.0:
            highest = max(highest, gradient[i])
    for i in range(size):
        outside[members[i]] = np.inf
    wanted = min(wanted, count - size)
    if wanted:
        take_least(outside, count, wanted, pool, chosen)
        for i in range(count):
            if chosen[i] and outside[i] < highest:
                members[size] = i
                size += 1
    return size


@part
def _settle(
    points, inverses, rows, members, size, beta, allowed, most, scratch, kept, gradient, shares
):
    """Let working candidates trade shares until no two gradients tempt by more than `allowed`.

    Returns how much lower the objective is, and how many distances that took.
    """
    near, slots = np.empty(size, np.int32), np.full(size, -1, np.int32)
    own, steep = np.empty(size, np.float64), np.empty(size, np.float64)
    for i in range(size):
        near[i], own[i] = rows[members[i]], shares[members[i]]
        steep[i] = gradient[members[i]]
    room = min(size, kept.shape[0] // size)
    table, owners, turn = kept[: room * size].reshape(room, size), np.full(room, -1, np.int32), 0
    held = hold(points, near, size, scratch)
    fall, work = 0.0, 0.0
    while work < most:
        low, high, give, take = np.inf, -np.inf, 0, 0
        for i in range(size):
            if own[i] < 1.0 and steep[i] < low:
                low, take = steep[i], i
            if own[i] > 0.0 and steep[i] > high:
                high, give = steep[i], i
        if high - low <= allowed:
            break
        for member in (take, give):
            if slots[member] < 0:
                if owners[turn] >= 0:
                    slots[owners[turn]] = -1
                owners[turn], slots[member] = member, turn
                far_from(points, inverses, near, size, member, held, scratch, table[turn])
                turn = (turn + 1) % room
                work += size
        work += 0.125 * size
        to_taker, to_giver = table[slots[take]], table[slots[give]]
        bend = 4.0 * beta * np.float64(to_taker[give])
        step = min(1.0 - own[take], own[give])
        if bend * step > high - low:
            step = (high - low) / bend
        # Rounding must not leave a share just below one or above none.
        own[take] = own[take] + step if step < 1.0 - own[take] else 1.0
        own[give] = own[give] - step if step < own[give] else 0.0
        fall += step * (high - low) - 0.5 * bend * step * step
        for i in range(size):
            steep[i] -= 2.0 * beta * step * (np.float64(to_taker[i]) - np.float64(to_giver[i]))
    let_go(points, near, size, held, scratch)
    for i in range(size):
        shares[members[i]] = own[i]
    return fall, work


@kernel
def exchange(points, inverses, rows, costs, count, k, relevance, beta, scratch, chosen):
    """Improve a selection while changing one of its k for another helps; returns how often it did.

    `chosen` (k,) int64 are places among the candidates rows[:count] and are written over, the other
    arguments as for `relax`. The objective is that of `relax` with shares of 0 and 1. It ends where
    no exchange helps, or after eight rounds, or the work that `relax` may do.
    """
    out, near, other = (
        np.ones(count, np.bool_),
        np.empty(count, np.float32),
        np.empty(count, np.float32),
    )
    total = np.zeros(count, np.float64)
    held = hold(points, rows, count, scratch)
    for i in range(k):
        out[chosen[i]] = False
        far_from(points, inverses, rows, count, chosen[i], held, scratch, near)
        for j in range(count):
            total[j] += np.float64(near[j])
    changes, before, spent = 0, -1, 0.0
    for _ in range(_ROUNDS):
        if changes == before or spent > 128.0 * count + 2.0e6:
            break
        before = changes
        for i in range(k):
            leaving = chosen[i]
            far_from(points, inverses, rows, count, leaving, held, scratch, near)
            spent += count
            worth = relevance * np.float64(costs[leaving]) - 2.0 * beta * total[leaving]
            least, best = worth - _ROUNDING * abs(worth), -1
            for j in range(count):
                apart = total[j] - np.float64(near[j])
                value = relevance * np.float64(costs[j]) - 2.0 * beta * apart
                if out[j] and value < least:
                    least, best = value, j
            if best >= 0:
                far_from(points, inverses, rows, count, best, held, scratch, other)
                for j in range(count):
                    total[j] += np.float64(other[j]) - np.float64(near[j])
                out[leaving], out[best] = True, False
                chosen[i] = best
                changes += 1
    let_go(points, rows, count, held, scratch)
    return changes
