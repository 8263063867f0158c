"""The dial (diversity) of one query, chosen from the relevance of its candidates.

`fall_off_step` goes by how relevance falls, `pick_within` by a bound on the loss. Every dial is a
whole number of steps of 1 / STEPS, a fraction that float32 holds exactly. The loss is the share of
the candidates' relevance that an answer gives up: 0 for the k nearest, 1 for k candidates of
average relevance. The loss need not grow with the dial, so `pick_within` tries every step, from the
last one down, and takes the first that keeps the bound. Three things make that cheap: a trial ends
once its picks lose too much whatever follows, most high dials after two picks; the distances from a
pick are computed once for all trials; and the trial that keeps the bound is the answer, so no
selector runs after it.
"""

import math

import numpy as np

from divgrpc.kernels.exact import relevance_of
from divgrpc.kernels.greedy import add_pick, best_value, diversity_weight
from divgrpc.kernels.jit import allocating, part
from divgrpc.kernels.pairwise import far_from, is_kept
from divgrpc.kernels.records import MMR

# Dials are multiples of 1 / STEPS.
STEPS = 32
# Distances kept between trials, float32: 4 MiB.
_CACHED_DISTANCES = 1 << 20
# Slack for a loss, a share: far more than two orders of adding the same numbers may differ by.
_LOSS_SLACK = 1e-9


@part
def loss_of(total, k, nearest, mean):
    """Return the loss of k picks with relevance `total` in all; all numbers are float64.

    `nearest` and `mean` are the mean relevances of the k nearest candidates and of all. If they are
    equal there is nothing to lose, and the loss is 0.
    """
    width = nearest - mean
    return (nearest - total / k) / width if width != 0.0 else 0.0


@allocating
def relevance_sums(distances, count, metric):
    """Return the sums (count + 1,) float64 of the relevance of the first 0 to count candidates.

    `distances` (count,) float32 ascend.
    """
    sums = np.zeros(count + 1, np.float64)
    for i in range(count):
        sums[i + 1] = sums[i] + np.float64(relevance_of(distances[i], metric))
    return sums


@allocating
def fall_off_step(points, candidates, count, k, limit, selection, factor, metric):
    """Return the step of the dial that the fall of relevance among the candidates asks for.

    The odds of the dial, dial / (1 - dial), are `factor` float64 times a share: the best candidate
    leads the mean of all by some relevance, and the k nearest keep this share of the lead on
    average. The share is 1 if they are as good as the best, near 0 if the best stands out.
    Near-copies are not counted among the k; they would pass for a choice.

    `candidates`: `Candidates` whose first `count` distances ascend; `k` is at most `count`; `limit`
    float32 as `Objective.copy_limit`.
    """
    standing, different, nearest = np.zeros(count, np.int8), 0, 0.0
    sums = relevance_sums(candidates.distances, count, metric)
    for i in range(count):
        if limit < 0 or is_kept(points, candidates.rows, i, limit, standing, selection):
            nearest += np.float64(relevance_of(candidates.distances[i], metric))
            different += 1
            if different == k:
                break
    mean = sums[count] / count
    lead = sums[1] - mean
    odds = factor * ((nearest / different - mean) / lead if lead != 0.0 else 1.0)
    # If fewer than k differ, their mean may be below that of all.
    return math.floor(STEPS * (odds / (1.0 + odds)) + 0.5) if odds > 0.0 else 0


@allocating
def pick_within(points, candidates, costs, count, k, bound, rule, metric, selection, picked, gains):
    """Pick k candidates at the greatest step that loses at most `bound` float64; return the step.

    The picks are those of `greedy.greedy` at this dial; at step 0 the k nearest, whatever the rule.
    `candidates`: `Candidates`; `costs` (count,) float32 as selectors weigh the distances; `k` is at
    most `count`. Other arguments as for `greedy.greedy`.
    """
    sums = relevance_sums(candidates.distances, count, metric)
    slots = max(1, min(count, _CACHED_DISTANCES // count))
    # One row of distances for each cached pick, and a last row for what does not fit.
    cache, cached_at = np.empty((slots + 1, count), np.float32), np.full(count, -1, np.int64)
    used = 0
    for step in range(STEPS, 0, -1):
        keeps, used = _try_step(
            points, candidates, costs, count, k, bound, rule, metric, selection, picked, gains,
            step, sums, cache, cached_at, used,
        )  # fmt: skip
        if keeps:
            return step
    for i in range(k):
        picked[i] = i
        gains[i] = -candidates.distances[i]
    return 0


@allocating
def _try_step(
    points, candidates, costs, count, k, bound, rule, metric, selection, picked, gains,
    step, sums, cache, cached_at, used,
):  # fmt: skip
    """Pick at one dial as `greedy.greedy` does; return whether the loss is at most `bound`.

    Ends as soon as it cannot be. `sums`: of `relevance_sums`. `cache` (slots + 1, count) float32:
    distances of `used` picks from the candidates; `cached_at` (count,) int64: the row of each
    candidate, or -1. Returns also how many rows are used afterwards.
    """
    apart, nearest, mean = selection.apart, sums[k] / k, sums[count] / count
    relevance, total, keeps = np.float32(1) - np.float32(step) / np.float32(STEPS), 0.0, True
    apart[:count] = np.float32(0)
    for n_picked in range(k):
        weight = diversity_weight(rule, relevance, n_picked, k)
        best, least = best_value(costs, apart, count, relevance, weight)
        picked[n_picked] = best
        gains[n_picked] = -least
        total += np.float64(relevance_of(candidates.distances[best], metric))
        left = k - n_picked - 1
        loss = loss_of(total + sums[left], k, nearest, mean)
        keeps = loss <= (bound + _LOSS_SLACK if left else bound)
        if left == 0 or not keeps:
            break
        row = cached_at[best]
        if row < 0:
            row = used
            far_from(points, candidates.rows, count, best, selection, cache[row])
            if row + 1 < cache.shape[0]:
                cached_at[best] = row
                used += 1
        add_pick(cache[row], count, rule == MMR and n_picked > 0, apart)
        apart[best] = np.float32(-np.inf)
    return keeps, used
