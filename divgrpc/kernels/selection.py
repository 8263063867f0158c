"""Greedy selection: Algorithm 1 of the paper in its three readings, and MMR.

A step needs, per candidate, what its distance from the query costs and how far apart it is from
what was picked: the sum of those distances, or for MMR the least. Either grows by one distance per
candidate and step, so there is no matrix of pairs.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel, part
from divgrpc.kernels.lanes import row_distance, row_dot
from divgrpc.kernels.sparse import (
    clear,
    distance_from_dot,
    link,
    linked_dots,
    sparse_dot,
    spread,
    unlink,
)

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
def scale_costs(distances, count, costs):
    """Write what the distances cost between 0, the nearest, and 1, the farthest of them.

    `distances` float32 ascend. Equal ones all cost 0.
    """
    low = distances[0]
    width = distances[count - 1] - low
    for i in range(count):
        costs[i] = (distances[i] - low) / width if width > 0 else np.float32(0)


@kernel
def greedy(points, inverses, rows, costs, count, k, relevance, rule, scratch, picked, gains):
    """Pick up to `k` of the candidates one by one; returns how many.

    `points` as for `score_rows`. `rows` and `costs` (count,) are in the order of distance, then
    id, so that the first of equals wins. How far apart two points are is their squared distance,
    or, where `inverses` (n,) float32 holds their inverse lengths, 1 - cosine. `scratch`: block
    (m, d), target (1, d) of zeros, apart (count,), all float32; links, see `sparse.link`; dots
    (count,) float64. `picked` int64 gets positions among
    the candidates, `gains` float32 what was maximised: minus lambda times the cost, plus the
    weighted distances from those picked before.
    """
    block, target, apart, links, dots = scratch
    k = min(k, count)
    apart[:count] = np.float32(0)
    sparse = points[1].shape[0] > 0
    linked = k > 1 and sparse and link(points, rows, count, links)
    gathered = k > 1 and not sparse and gather(points[0], rows, count, block)
    for step in range(k):
        weight = diversity_weight(rule, relevance, step, k)
        best, least = -1, np.float32(np.inf)
        for i in range(count):
            # A picked candidate is minus infinity apart, so its value is never below `least`; all
            # others are finite, and one of them is.
            value = relevance * costs[i] - weight * apart[i]
            if value < least:
                best, least = i, value
        picked[step] = best
        gains[step] = -least
        if step + 1 < k:
            least_counts = rule == MMR and step > 0
            if gathered:
                _move_block(block, inverses, rows, best, count, least_counts, apart)
            elif linked:
                linked_dots(points, rows[best], count, links, dots)
                _move_linked(points[4], inverses, rows, best, count, least_counts, dots, apart)
            elif sparse:
                _move_sparse(points, inverses, rows, best, count, least_counts, target, apart)
            else:
                _move_rows(points[0], inverses, rows, best, count, least_counts, apart)
        apart[best] = np.float32(-np.inf)
    if linked:
        unlink(points, rows, count, links[0])
    return k


@kernel
def _move(apart, i, distance, least_counts):
    apart[i] = min(apart[i], distance) if least_counts else apart[i] + distance


@kernel
def _angular(dot, inverse, other):
    return np.float32(1) - dot * inverse * other


@part
def _move_block(block, inverses, rows, best, count, least_counts, apart):
    if inverses.shape[0]:
        mine = inverses[rows[best]]
        for i in range(count):
            angle = _angular(row_dot(block, i, block, best), inverses[rows[i]], mine)
            _move(apart, i, angle, least_counts)
    else:
        for i in range(count):
            _move(apart, i, row_distance(block, i, block, best), least_counts)


@part
def _move_rows(vectors, inverses, rows, best, count, least_counts, apart):
    if inverses.shape[0]:
        mine = inverses[rows[best]]
        for i in range(count):
            angle = _angular(
                row_dot(vectors, rows[i], vectors, rows[best]), inverses[rows[i]], mine
            )
            _move(apart, i, angle, least_counts)
    else:
        for i in range(count):
            _move(apart, i, row_distance(vectors, rows[i], vectors, rows[best]), least_counts)


@kernel
def _sparse_distance(dot, row, other, squares, inverses):
    """Return how far apart two sparse points are whose dot product is `dot`, float64."""
    if inverses.shape[0]:
        return _angular(np.float32(dot), inverses[row], inverses[other])
    return distance_from_dot(dot, squares[row], squares[other], False)


@part
def _move_linked(squares, inverses, rows, best, count, least_counts, dots, apart):
    for i in range(count):
        far = _sparse_distance(dots[i], rows[i], rows[best], squares, inverses)
        _move(apart, i, far, least_counts)


@part
def _move_sparse(points, inverses, rows, best, count, least_counts, target, apart):
    _, indptr, indices, values, squares = points
    start, stop = indptr[rows[best]], indptr[rows[best] + 1]
    spread(indices, values, start, stop, target)
    for i in range(count):
        dot = sparse_dot(indices, values, indptr[rows[i]], indptr[rows[i] + 1], target, 0)
        _move(apart, i, _sparse_distance(dot, rows[i], rows[best], squares, inverses), least_counts)
    clear(indices, start, stop, target)
