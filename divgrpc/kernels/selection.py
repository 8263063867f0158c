"""Greedy selection: Algorithm 1 of the paper in its three readings, and MMR.

A step needs, per candidate, what its distance from the query costs and how far apart it is from
what was picked: the sum of those distances, or for MMR the least. The sum takes one distance per
candidate and step, so there is no matrix of pairs. The least only shrinks, so that a candidate is
brought up to date where as it stands it would be picked (Minoux 1978).
"""

import numpy as np

from divgrpc.kernels.compiling import allocating, kernel
from divgrpc.kernels.pairs import far_from, how_far

CORRECTED = 0
PRINTED = 1
MARGINAL = 2
# Carbonell & Goldstein 1998. On unit vectors lambda sim(q,r) - (1-lambda) max sim(r,s) is, up to a
# constant and a half, minus lambda d(q,r) plus (1-lambda) min d(r,s): the form taken here, which
# every metric's costs and distances fit.
MMR = 3


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
def scale_costs(distances, count, costs):
    """Write what the distances cost between 0, the nearest, and 1, the farthest of them.

    `distances` float32 ascend. Equal ones all cost 0.
    """
    low = distances[0]
    width = distances[count - 1] - low
    for i in range(count):
        costs[i] = (distances[i] - low) / width if width > 0 else np.float32(0)


@allocating
def greedy(points, inverses, rows, costs, count, k, relevance, rule, scratch, picked, gains):
    """Pick up to `k` of the candidates one by one; returns how many.

    `points` as for `score_rows`. `rows` and `costs` (count,) are in the order of distance, then
    id, so that the first of equals wins. How far apart two points are says `pairs.far_from`, with
    `inverses` (n,) float32 or empty. `scratch`: far (count,) float32, target (1, d) float32 of
    zeros, apart (count,) float32, marks uint64 of zeros, or empty: see `sparse.marked_dot`.
    `picked` int64 gets positions among the candidates, `gains` float32 what was maximised: minus
    lambda times the cost, plus the weighted distances from those picked before.
    """
    far, apart = scratch[0], scratch[2]
    k = min(k, count)
    apart[:count] = np.float32(0)
    # A least distance only shrinks: it is brought up to date where the candidate would be picked.
    lazy, known = rule == MMR, np.zeros(count, np.int32)
    for step in range(k):
        weight = diversity_weight(rule, relevance, step, k)
        best, least = -1, np.float32(np.inf)
        for i in range(count):
            # A picked candidate is minus infinity apart, so its value is never below `least`; all
            # others are finite, and one of them is.
            value = relevance * costs[i] - weight * apart[i]
            if value < least and known[i] < step and lazy:
                for earlier in range(known[i], step):
                    other = rows[picked[earlier]]
                    apart[i] = min(apart[i], how_far(points, inverses, rows[i], other))
                known[i] = step
                value = relevance * costs[i] - weight * apart[i]
            if value < least:
                best, least = i, value
        picked[step] = best
        gains[step] = -least
        if step + 1 < k and (step == 0 or not lazy):
            far_from(points, inverses, rows, count, best, scratch, far)
            least_counts = rule == MMR and step > 0
            for i in range(count):
                apart[i] = min(apart[i], far[i]) if least_counts else apart[i] + far[i]
                known[i] = 1
        apart[best] = np.float32(-np.inf)
    return k
