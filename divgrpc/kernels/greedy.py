"""Greedy selection: Algorithm 1 of the paper in its three readings, and MMR.

For each candidate a step needs the cost of its distance from the query and its distances from the
picks: their sum, or for MMR the least of them. The sum takes one distance per candidate and step,
so there is no matrix of pairs. The least distance only shrinks. So MMR brings a candidate up to
date only when the candidate would be picked otherwise (Minoux 1978).
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.near_copies import COUNTED, PICKED, is_kept
from divgrpc.kernels.pairwise import far_from, how_far
from divgrpc.kernels.top_k import sort_nearest

CORRECTED = 0
PRINTED = 1
MARGINAL = 2
# Carbonell & Goldstein 1998. On unit vectors lambda sim(q,r) - (1-lambda) max sim(r,s) is, up to a
# constant and a half, minus lambda d(q,r) plus (1-lambda) min d(r,s): the form taken here, which
# every metric's costs and distances fit.
MMR = 3

# Candidates that are looked through together.
_BLOCK = 64


@kernel
def diversity_weight(rule, relevance, picked, k):
    """Return the weight of how far apart a candidate is from `picked` points, float32.

    `relevance` is the paper's lambda, float32.
    """
    one = np.float32(1)
    if rule == PRINTED:
        return one / np.float32(picked + 1)
    if picked == 0:
        return np.float32(0)
    if rule == MMR:
        return one - relevance
    if rule == MARGINAL:
        return np.float32(2) * (one - relevance) / np.float32(k - 1)
    return (one - relevance) / np.float32(picked)


@kernel
def scale_costs(distances, count, last, costs):
    """Write what the distances cost between 0, the nearest, and 1, the one at place `last`.

    `distances` float32 ascend. Equal ones all cost 0.
    """
    low = distances[0]
    width = distances[last] - low
    for i in range(count):
        costs[i] = (distances[i] - low) / width if width > 0 else np.float32(0)


@allocating
def greedy(
    points,
    inverses,
    rows,
    costs,
    count,
    k,
    relevance,
    rule,
    limit,
    scratch,
    standing,
    picked,
    gains,
):
    """Pick up to `k` of the candidates one by one; returns how many, and how many are near-copies.

    `points` as for `score_rows`. `rows` and `costs` (count,) are in the order of distance, then
    id, so that the first of equals wins. `inverses` (n,) float32 or empty: `pairs.far_from` needs
    them for the distance between two points. `scratch`: far (count,) float32, target (1, d)
    float32 of zeros, apart (count,) float32, marks uint64 of zeros, or empty: see
    `sparse.marked_dot`.
    `picked` int64 gets positions among the candidates, `gains` float32 what was maximised: minus
    lambda times the cost, plus the weighted distances from those picked before.

    With a `limit` of 0 or more (float32) near-copies are not picked: see `collapse`. `standing`
    (count,) int8 of zeros gets what is known of each candidate; without a limit it may be empty.
    The second number counts the candidates that are near-copies of a pick.
    """
    far, apart = scratch[0], scratch[2]
    k = min(k, count)
    apart[:count] = np.float32(0)
    collapses, copies, step = limit >= 0, 0, 0
    # A least distance only shrinks: it is brought up to date where the candidate would be picked.
    # Near-copies of a pick are counted by its distances to all, so then there is nothing to save.
    lazy, known = rule == MMR and not collapses, np.zeros(count, np.int32)
    while step < k:
        weight = diversity_weight(rule, relevance, step, k)
        if lazy and step:
            best, least = _best_lazily(
                points, inverses, rows, costs, count, relevance, weight, apart, picked, step, known
            )
        else:
            best, least = best_value(costs, apart, count, relevance, weight)
        if best < 0:
            break
        if collapses and not is_kept(points, inverses, rows, best, limit, standing, scratch):
            apart[best] = np.float32(-np.inf)
            continue
        picked[step] = best
        gains[step] = -least
        if collapses or (step + 1 < k and (step == 0 or not lazy)):
            far_from(points, inverses, rows, count, best, scratch, far)
            add_pick(far, count, rule == MMR and step > 0, apart)
            known[:] = 1
        if collapses:
            standing[best] = PICKED
            copies += _drop_copies(far, count, limit, standing, apart)
        apart[best] = np.float32(-np.inf)
        step += 1
    return step, copies


@kernel
def best_value(costs, apart, count, relevance, weight):
    """Return the first candidate with the least relevance * cost - weight * apart, and that value.

    `costs` and `apart` (count,) float32. What is picked or a near-copy is minus infinity apart, so
    that its value is infinite or, at a weight of 0, no number; where all are, the candidate is -1.
    """
    best, least = -1, np.float32(np.inf)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        # Few blocks have a better candidate, and without a branch the others take a tenth.
        better = 0
        for i in range(start, stop):
            better += relevance * costs[i] - weight * apart[i] < least
        if better:
            for i in range(start, stop):
                value = relevance * costs[i] - weight * apart[i]
                if value < least:
                    best, least = i, value
    return best, least


@part
def _best_lazily(
    points, inverses, rows, costs, count, relevance, weight, apart, picked, step, known
):
    """Return the same for MMR; least distances count `known` (count,) int32 of `step` picks."""
    best, least = -1, np.float32(np.inf)
    for i in range(count):
        value = relevance * costs[i] - weight * apart[i]
        if value < least and known[i] < step:
            for earlier in range(known[i], step):
                other = rows[picked[earlier]]
                apart[i] = min(apart[i], how_far(points, inverses, rows[i], other))
            known[i] = step
            value = relevance * costs[i] - weight * apart[i]
        if value < least:
            best, least = i, value
    return best, least


@kernel
def add_pick(far, count, least_counts, apart):
    """Bring `apart` (count,) up to date with how far a new pick is: the sum, or the least."""
    if least_counts:
        for i in range(count):
            apart[i] = far[i] if far[i] < apart[i] else apart[i]
    else:
        for i in range(count):
            apart[i] += far[i]


@kernel
def _drop_copies(far, count, limit, standing, apart):
    """Take the near-copies of the pick that `far` is measured from out of the choice.

    Returns how many they are, those left out of the count that an earlier pick had.
    """
    copies = 0
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        near = 0
        for i in range(start, stop):
            near += far[i] <= limit
        if not near:
            continue
        for i in range(start, stop):
            if far[i] <= limit and standing[i] < PICKED:
                # A nearer one cannot be kept, or the pick would not be; a farther one is its copy.
                copies += standing[i] < COUNTED
                standing[i] = COUNTED
                apart[i] = np.float32(-np.inf)
    return copies


# The pool grows while at least this part of it are near-copies of results, twofold each time.
CROWDED_PART = 4


@allocating
def pick(
    points, named, rows, distances, costs, counts, k, relevance, rule, product, limit, scratch, room
):
    """Pick from a pool of the nearest that grows where near-copies crowd it; returns four counts.

    The counts are the picks, the picks that only fill up, the near-copies of picks in the pool, and
    the pool. `counts`: the pool, the widest pool, and the number of `rows` (count,) int32 and of
    `distances` float32; the rows of the pool come first and in order. `room`: picked int64 and
    gains float32 (k,). Other arguments as for `greedy`, `named` as for `answering._answer`;
    `product` says that costs are shares of the range of distances.

    Where fewer than k candidates differ, near-copies fill up, nearest first: no answer is shorter
    because of a `limit`. Their gain is minus their distance.
    """
    ids, inverses, _ = named
    picked, gains = room
    pool, widest, count = counts
    standing = np.zeros(widest if limit >= 0 else 0, np.int8)
    # At relevance 1 distances alone decide, and a selection score is minus the distance.
    scaled = product and (relevance < 1 or rule == PRINTED)
    prices = costs if scaled else distances
    while True:
        if scaled and pool:
            # The range is that of the candidates a selector sees, which near-copies are not.
            last = pool - 1
            while limit >= 0 and not is_kept(
                points, inverses, rows, last, limit, standing, scratch
            ):
                last -= 1
            scale_costs(distances, pool, last, costs)
        chosen, copies = greedy(
            points,
            inverses,
            rows,
            prices,
            pool,
            k,
            relevance,
            rule,
            limit,
            scratch,
            standing,
            picked,
            gains,
        )
        if pool == widest or CROWDED_PART * copies < pool:
            break
        wider = min(2 * pool, widest)
        sort_nearest(rows, distances, pool, count, wider - pool, ids)
        pool = wider
        standing[:] = 0
    different = chosen
    for i in range(pool if limit >= 0 else 0):
        if chosen < k and standing[i] != PICKED:
            picked[chosen], gains[chosen] = i, -distances[i]
            chosen += 1
    return chosen, chosen - different, copies, pool
