"""The dial (diversity) of one query, chosen from the relevance of its candidates.

`fall_off_step` goes by how relevance falls, `pick_within` by a bound on the loss. Every dial is a
whole number of steps of 1 / DIAL_STEPS, a fraction that float32 holds exactly. The loss is the
share of the candidates' relevance that an answer gives up: 0 for the k nearest, 1 for k candidates
of average relevance.

The loss need not grow with the dial, so `pick_within` tries every step, from the last one down, and
takes the first that keeps the bound. Three things make that cheap: a trial ends once its picks lose
too much whatever follows, most high dials after two picks; the distances from a pick are computed
once for all trials; and the trial that keeps the bound is the answer, so no selector runs after it.
"""

import math

import numpy as np

from divgrpc.kernels.exact import relevance_of
from divgrpc.kernels.greedy import add_pick, best_value, diversity_weight
from divgrpc.kernels.jit import allocating
from divgrpc.kernels.pairwise import far_from, is_kept
from divgrpc.kernels.records import MMR_RULE

# Dials are multiples of 1 / DIAL_STEPS.
DIAL_STEPS = 32
# Most distances that trials share, float32: 4 MiB.
_CACHE_DISTANCES = 1 << 20
# Slack of a loss, a share: far more than two orders of adding the same numbers may differ by.
_LOSS_SLACK = 1e-9


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
    standing, n_different, nearest = np.zeros(count, np.int8), 0, 0.0
    sums = relevance_sums(candidates.distances, count, metric)
    for i in range(count):
        if limit < 0 or is_kept(points, candidates.rows, i, limit, standing, selection):
            nearest += np.float64(relevance_of(candidates.distances[i], metric))
            n_different += 1
            if n_different == k:
                break
    mean = sums[count] / count
    lead = sums[1] - mean
    odds = factor * ((nearest / n_different - mean) / lead if lead != 0.0 else 1.0)
    # If fewer than k differ, their mean may be below the mean of all.
    return math.floor(DIAL_STEPS * (odds / (1.0 + odds)) + 0.5) if odds > 0.0 else 0


@allocating
def pick_within(points, candidates, costs, count, k, bound, rule, metric, selection, picks, gains):
    """Pick k candidates at the greatest step that loses at most `bound` float64; return the step.

    The picks are the same as from `greedy.greedy` at this dial; at step 0 they are the k nearest,
    whatever the rule.
    `candidates`: `Candidates`; `costs` (count,) float32 as selectors weigh the distances; `k` is at
    most `count`. Other arguments as for `greedy.greedy`.
    """
    sums, apart = relevance_sums(candidates.distances, count, metric), selection.apart
    nearest, width = sums[k] / k, sums[k] / k - sums[count] / count
    # A row of distances for each pick that fits, and a last row for the others.
    n_rows = max(1, min(count, _CACHE_DISTANCES // count)) + 1
    cache, row_of, n_full = np.empty((n_rows, count), np.float32), np.full(count, -1, np.int64), 0
    for step in range(DIAL_STEPS, 0, -1):
        relevance, total = np.float32(1) - np.float32(step) / np.float32(DIAL_STEPS), 0.0
        apart[:count] = np.float32(0)
        for place in range(k):
            weight = diversity_weight(rule, relevance, place, k)
            best, least = best_value(costs, apart, count, relevance, weight)
            picks[place], gains[place] = best, -least
            total += np.float64(relevance_of(candidates.distances[best], metric))
            rest = k - place - 1
            # If all candidates are equally relevant, there is nothing to lose.
            loss = (nearest - (total + sums[rest]) / k) / width if width != 0.0 else 0.0
            if rest == 0 and loss <= bound:
                return step
            # No trial goes on that loses too much even with the nearest candidates in the rest.
            if rest == 0 or loss > bound + _LOSS_SLACK:
                break
            row = row_of[best]
            if row < 0:
                row = n_full
                far_from(points, candidates.rows, count, best, selection, cache[row])
                if row + 1 < n_rows:
                    row_of[best] = row
                    n_full += 1
            add_pick(cache[row], count, rule == MMR_RULE and place > 0, apart)
            apart[best] = np.float32(-np.inf)
    for i in range(k):
        picks[i], gains[i] = i, -candidates.distances[i]
    return 0
