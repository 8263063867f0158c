"""Greedy selection: Algorithm 1 of the paper in its three readings, and MMR.

At each step a candidate's value is lambda times its cost, minus a weight times its distance from
the picks; the least value is picked. The distance from the picks is the sum of the distances, or
for MMR the least of them. A sum takes one distance per candidate and step, so there is no matrix of
pairs. The least distance only shrinks, so MMR updates a candidate only when it would be picked
otherwise (Minoux 1978).
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.pairwise import COUNTED_COPY, PICK, far_from, how_far, is_kept
from divgrpc.kernels.records import MARGINAL_RULE, MMR_RULE, PRINTED_RULE
from divgrpc.kernels.top_k import sort_nearest

# Candidates that one vector loop compares with the best so far.
_BLOCK_ROWS = 64
# The pool grows while at least 1 / CROWDED_RATIO of it are near-copies of picks, twofold each time.
CROWDED_RATIO = 4


@kernel
def diversity_weight(rule, relevance, n_picks, k):
    """Return the float32 weight of a candidate's distance from `n_picks` picks.

    `relevance` float32 is the paper's lambda. MMR is Carbonell and Goldstein 1998: on unit vectors
    lambda sim(q, r) - (1 - lambda) max sim(r, s) is, up to a constant and a factor, minus lambda
    d(q, r) plus (1 - lambda) min d(r, s), a form that fits the distances of every metric.
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
    """Write ascending `distances` float32 as shares of their range into `costs` (count,) float32.

    The nearest costs 0, the one at `last` costs 1. If these two are equal, all cost 0.
    """
    low = distances[0]
    width = distances[last] - low
    for i in range(count):
        costs[i] = (distances[i] - low) / width if width > 0 else np.float32(0)


@allocating
def greedy(points, rows, costs, count, objective, selection, standing, picks, gains):
    """Pick up to k of rows[:count] one by one; return the number of picks, and of near-copies.

    `points`: `Points`; `objective`: `Objective`; `selection`: `SelectionScratch`. `rows` int32 and
    `costs` float32 (count,) are in the order of distance, then id: of equal values the first is
    picked. `picks` (k,) int64 gets positions among the candidates, `gains` (k,) float32 minus the
    value of each pick.

    If `objective.copy_limit` is 0 or more, near-copies are not picked; `standing` (count,) int8
    holds zeros and gets the standing of each candidate (`kernels.pairwise`), and the second number
    counts the candidates that are near-copies of a pick. Otherwise `standing` may be empty.
    """
    rule, relevance, limit = objective.rule, objective.relevance, objective.copy_limit
    far, apart, k = selection.far, selection.apart, min(objective.k, count)
    apart[:count] = np.float32(0)
    collapses, copies, step = limit >= 0, 0, 0
    # Near-copies of a pick are counted by its distances from all candidates, which saves nothing
    # to compute lazily.
    lazy, n_compared = rule == MMR_RULE and not collapses, np.zeros(count, np.int32)
    while step < k:
        weight = diversity_weight(rule, relevance, step, k)
        if lazy and step:
            best, least = _best_lazily(
                points, rows, costs, count, relevance, weight, apart, picks, step, n_compared
            )
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
            far_from(points, rows, count, best, selection, far)
            add_pick(far, count, rule == MMR_RULE and step > 0, apart)
            n_compared[:] = 1
        if collapses:
            standing[best] = PICK
            copies += _drop_copies(far, count, limit, standing, apart)
        apart[best] = np.float32(-np.inf)
        step += 1
    return step, copies


@kernel
def best_value(costs, apart, count, relevance, weight):
    """Return the first candidate with the least relevance * cost - weight * apart, and that value.

    `costs` and `apart` (count,) float32. Picks and near-copies have apart = -inf, which makes the
    value inf, or nan at weight 0. If all have, the candidate is -1.
    """
    best, least = -1, np.float32(np.inf)
    for start in range(0, count, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, count)
        # Few blocks have a better candidate; for the others a loop without a branch takes a tenth
        # of the time.
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
def _best_lazily(points, rows, costs, count, relevance, weight, apart, picks, step, n_compared):
    """Return what `best_value` does, for MMR.

    `apart` of a candidate counts the first `n_compared` (count,) int32 of the `step` picks.
    """
    best, least = -1, np.float32(np.inf)
    for i in range(count):
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
def add_pick(far, count, least_counts, apart):
    """Update `apart` (count,) with the distances `far` (count,) of a new pick: sum or minimum."""
    if least_counts:
        for i in range(count):
            apart[i] = far[i] if far[i] < apart[i] else apart[i]
    else:
        for i in range(count):
            apart[i] += far[i]


@kernel
def _drop_copies(far, count, limit, standing, apart):
    """Exclude the near-copies of a pick, whose distances are `far`; return how many are new."""
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
                # A nearer candidate cannot be kept, or the pick would not be; a farther one is a
                # near-copy of the pick.
                copies += standing[i] < COUNTED_COPY
                standing[i] = COUNTED_COPY
                apart[i] = np.float32(-np.inf)
    return copies


@allocating
def pick(points, ids, candidates, costs, pool, objective, selection, picks, gains):
    """Pick from a pool of the nearest that grows while near-copies crowd it; return four counts.

    The counts: picks, picks that are near-copies, near-copies of picks in the pool, and candidates
    in the pool. `candidates`: `Candidates` with `pool.total` entries, the pool first and in
    order. `costs` float32 is scratch memory. Other arguments as for `greedy`.

    If fewer than k candidates differ, near-copies fill up, nearest first: a limit never makes an
    answer shorter. Their gain is minus their distance.
    """
    rows, distances, k = candidates.rows, candidates.distances, objective.k
    size, widest, limit = pool.size, pool.widest, objective.copy_limit
    standing = np.zeros(widest if limit >= 0 else 0, np.int8)
    # At relevance 1 distances alone decide, and a selection score is minus the distance.
    shares = objective.product and (objective.relevance < 1 or objective.rule == PRINTED_RULE)
    prices = costs if shares else distances
    while True:
        if shares and size:
            # The range spans the candidates that a selector sees, without near-copies.
            last = size - 1
            while limit >= 0 and not is_kept(points, rows, last, limit, standing, selection):
                last -= 1
            scale_costs(distances, size, last, costs)
        n_picks, copies = greedy(
            points, rows, prices, size, objective, selection, standing, picks, gains
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
