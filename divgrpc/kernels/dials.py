"""The dial of one query, chosen from its candidates: by a bound on the loss, or by their relevance.

Every dial chosen is a whole number of steps of 1 / STEPS, a fraction that float32 holds exactly.
Loss is the share of the candidates' relevance that an answer gives up: 0 for the k nearest, 1 for k
candidates of average relevance. It need not grow with the dial, so the search for the greatest dial
within a bound tries every step, from the last one down. Three things make that cheap. A trial ends
once the picks so far lose too much whatever follows, most high dials after two picks. How far a
pick lies from the candidates is computed once for all trials. And the trial that holds the bound is
the answer: no selector runs after it.
"""

import math

import numpy as np

from divgrpc.kernels.greedy import MMR, add_pick, best_value, diversity_weight
from divgrpc.kernels.jit import allocating, part
from divgrpc.kernels.near_copies import is_kept
from divgrpc.kernels.pairwise import far_from
from divgrpc.kernels.relevance import relevance_of

STEPS = 32

# How a query gets its dial.
FIXED = 0
BY_FALL_OFF = 1
BY_LOSS = 2

# Why a query got its dial; the .proto's DialReason has the same numbers.
LOSS_BOUND = 1
WITHIN_BOUND = 2
FALL_OFF = 3
NO_CHOICE = 4
EQUAL_RELEVANCE = 5

# Distances that are kept between trials: 4 MiB.
_KEPT = 1 << 20
# A loss: far more than two orders of adding the same numbers may differ by.
_SLACK = 1e-9


@part
def loss_of(total, k, nearest, every):
    """Return the loss of k picks whose relevance adds up to `total`; all float64.

    `nearest` and `every` are mean relevances: of the k nearest candidates, and of all. Where they
    are equal there is nothing to lose, and the loss is 0.
    """
    width = nearest - every
    return (nearest - total / k) / width if width != 0.0 else 0.0


@part
def means_of(distances, count, k, metric):
    """Return two mean relevances, float64: of the k nearest candidates, and of all.

    `distances` (count,) float32 ascend; `k` is at most `count`.
    """
    nearest, every = 0.0, 0.0
    for i in range(count):
        relevance = np.float64(relevance_of(distances[i], metric))
        every += relevance
        if i < k:
            nearest += relevance
    return nearest / k, every / count


@allocating
def fall_off_step(candidates, count, k, limit, scratch, factor, metric):
    """Return the step of the dial that the fall of relevance among the candidates asks for.

    The odds of the dial, dial / (1 - dial), are `factor` float64 times the share of the best
    candidate's lead in relevance over all candidates that the k nearest keep on average: 1 where
    they are as good as the best, near 0 where the best stands out. Near-copies are not among the k,
    else they would pass for a choice.

    `candidates`: points, inverses and rows as for `selection.greedy`, and distances (count,)
    float32 that ascend; `limit` and `scratch` as there. `k` is at most `count`.
    """
    points, inverses, rows, distances = candidates
    standing, different, nearest = np.zeros(count, np.int8), 0, 0.0
    for i in range(count):
        if limit < 0 or is_kept(points, inverses, rows, i, limit, standing, scratch):
            nearest += np.float64(relevance_of(distances[i], metric))
            different += 1
            if different == k:
                break
    _, every = means_of(distances, count, k, metric)
    lead = np.float64(relevance_of(distances[0], metric)) - every
    odds = factor * ((nearest / different - every) / lead if lead != 0.0 else 1.0)
    # Where fewer than k differ, their mean may be below that of all.
    return math.floor(STEPS * (odds / (1.0 + odds)) + 0.5) if odds > 0.0 else 0


@allocating
def pick_within(candidates, count, k, bound, rule, metric, scratch, picked, gains):
    """Pick k candidates at the greatest step whose loss is at most `bound`; return the step.

    `candidates`: points, inverses and rows as for `selection.greedy`, distances and costs (count,)
    float32; `rule`, `scratch`, `picked` and `gains` as there, and the picks are those of that
    kernel at this dial. At step 0 they are the k nearest, whatever the rule. `k` is at most
    `count`, `bound` float64.
    """
    distances = candidates[3]
    ahead = np.zeros(k + 1, np.float64)
    for i in range(k):
        ahead[i + 1] = ahead[i] + np.float64(relevance_of(distances[i], metric))
    means = means_of(distances, count, k, metric)
    room = max(1, min(count, _KEPT // count))
    kept = (np.empty((room + 1, count), np.float32), np.full(count, -1, np.int64))
    choice = (candidates, count, k, bound, rule, metric, ahead, means)
    memory, used = (scratch, kept, picked, gains), 0
    for step in range(STEPS, 0, -1):
        holds, used = _try(step, used, choice, memory)
        if holds:
            return step
    for i in range(k):
        picked[i] = i
        gains[i] = -distances[i]
    return 0


@allocating
def _try(step, used, choice, memory):
    """Pick at one dial as `selection.greedy` does; return whether the loss is at most `bound`.

    Stops where it cannot be. `choice` and `memory` are of `pick_within`. `ahead` (k + 1,) float64:
    the sums of relevance of the nearest, none to k of them; `means` as for `loss_of`. `kept`:
    distances (room + 1, count) float32 of `used` picks from the candidates, the last row for what
    there is no room to keep, and the row of each candidate (count,) int64, -1 for none. Returns
    also how many are used then.
    """
    candidates, count, k, bound, rule, metric, ahead, means = choice
    scratch, kept, picked, gains = memory
    distances, costs, apart = candidates[3], candidates[4], scratch[2]
    relevance, total, holds = np.float32(1) - np.float32(step) / np.float32(STEPS), 0.0, True
    apart[:count] = np.float32(0)
    for turn in range(k):
        weight = diversity_weight(rule, relevance, turn, k)
        best, least = best_value(costs, apart, count, relevance, weight)
        picked[turn] = best
        gains[turn] = -least
        total += np.float64(relevance_of(distances[best], metric))
        left = k - turn - 1
        loss = loss_of(total + ahead[left], k, means[0], means[1])
        holds = loss <= (bound + _SLACK if left else bound)
        if left == 0 or not holds:
            break
        row = kept[1][best]
        if row < 0:
            row = used
            far_from(
                candidates[0], candidates[1], candidates[2], count, best, scratch, kept[0][row]
            )
            if row + 1 < kept[0].shape[0]:
                kept[1][best] = row
                used += 1
        add_pick(kept[0][row], count, rule == MMR and turn > 0, apart)
        apart[best] = np.float32(-np.inf)
    return holds, used
