"""Greedy selection: Algorithm 1 of the paper in its three readings.

On unit vectors a step needs, per candidate, its distance to the query and the sum of its distances
to what was picked; the sum grows by one dot product per step, so there is no matrix of pairs.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel
from divgrpc.kernels.lanes import row_dot

CORRECTED = 0
PRINTED = 1
MARGINAL = 2


@kernel
def diversity_weight(variant, relevance, picked, k):
    """Return the weight of the summed distances to `picked` points, float32.

    `relevance` is the paper's lambda, float32.
    """
    one = np.float32(1)
    if variant == PRINTED:
        return one / np.float32(picked + 1)
    if picked == 0:
        return np.float32(0)
    if variant == MARGINAL:
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
def greedy(vectors, rows, distances, count, k, relevance, variant, block, sums, picked, values):
    """Pick up to `k` of the candidates one by one; returns how many.

    `rows` and `distances` (count,) are in the order of distance, then id, so that the first of
    equals wins. `block` (m, d) and `sums` float32 are scratch. `picked` int64 gets positions among
    the candidates, `values` float32 what was maximised: minus lambda times the distance to the
    query, plus the weighted sum of the distances to those picked before.
    """
    k = min(k, count)
    sums[:count] = np.float32(0)
    gathered = k > 1 and gather(vectors, rows, count, block)
    for step in range(k):
        weight = diversity_weight(variant, relevance, step, k)
        best, least = -1, np.float32(np.inf)
        for i in range(count):
            # A picked candidate's sum is minus infinity, so its value is never below `least`.
            value = relevance * distances[i] - weight * sums[i]
            if value < least:
                best, least = i, value
        picked[step] = best
        values[step] = -least
        sums[best] = np.float32(-np.inf)
        if step + 1 < k:
            if gathered:
                _add_distances(block, best, count, sums)
            else:
                _add_row_distances(vectors, rows, best, count, sums)
    return k


@kernel
def _add_distances(block, best, count, sums):
    for i in range(count):
        sums[i] += np.float32(2) - np.float32(2) * row_dot(block, i, block, best)


@kernel
def _add_row_distances(vectors, rows, best, count, sums):
    for i in range(count):
        dot = row_dot(vectors, rows[i], vectors, rows[best])
        sums[i] += np.float32(2) - np.float32(2) * dot
