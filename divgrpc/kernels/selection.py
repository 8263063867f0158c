"""Greedy selection: Algorithm 1 of the paper in its three readings, and MMR.

On unit vectors a step needs, per candidate, its distance to the query and how far apart it is from
what was picked: the sum of those distances, or for MMR the least. Either grows by one dot product
per step, so there is no matrix of pairs.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel
from divgrpc.kernels.lanes import row_distance

CORRECTED = 0
PRINTED = 1
MARGINAL = 2
# Carbonell & Goldstein 1998. On unit vectors lambda sim(q,r) - (1-lambda) max sim(r,s) is, up to a
# constant and a half, minus lambda d(q,r) plus (1-lambda) min d(r,s).
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
def gather(vectors, rows, count, block):
    """Copy rows[:count] of `vectors` (n, d) side by side into `block`; returns whether they fit.

    Steps of the greedy pass go over the candidates again and again: side by side they cost half
    the time that scattered rows do. `block` is (m, d) float32.
    """
    if count > block.shape[0]:
        return False
    for i in range(count):
        for j in range(block.shape[1]):
            block[i, j] = vectors[rows[i], j]
    return True


@kernel
def greedy(vectors, rows, distances, count, k, relevance, rule, block, apart, picked, values):
    """Pick up to `k` of the candidates one by one; returns how many.

    `rows` and `distances` (count,) are in the order of distance, then id, so that the first of
    equals wins. `block` (m, d) and `apart` float32 are scratch. `picked` int64 gets positions among
    the candidates, `values` float32 what was maximised: minus lambda times the distance to the
    query, plus the weighted distances to those picked before.
    """
    k = min(k, count)
    apart[:count] = np.float32(0)
    gathered = k > 1 and gather(vectors, rows, count, block)
    for step in range(k):
        weight = diversity_weight(rule, relevance, step, k)
        best, least = -1, np.float32(np.inf)
        for i in range(count):
            # A picked candidate is minus infinity apart, so its value is never below `least`.
            value = relevance * distances[i] - weight * apart[i]
            if value < least:
                best, least = i, value
        picked[step] = best
        values[step] = -least
        if step + 1 < k:
            least_counts = rule == MMR and step > 0
            if gathered:
                _move_apart(block, best, count, least_counts, apart)
            else:
                _move_rows_apart(vectors, rows, best, count, least_counts, apart)
        apart[best] = np.float32(-np.inf)
    return k


@kernel
def _move_apart(block, best, count, least_counts, apart):
    for i in range(count):
        distance = row_distance(block, i, block, best)
        apart[i] = min(apart[i], distance) if least_counts else apart[i] + distance


@kernel
def _move_rows_apart(vectors, rows, best, count, least_counts, apart):
    for i in range(count):
        distance = row_distance(vectors, rows[i], vectors, rows[best])
        apart[i] = min(apart[i], distance) if least_counts else apart[i] + distance
