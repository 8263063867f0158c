"""Chooses the dial (diversity) of one query from the relevance of its candidates.

Every dial is a multiple of 1 / DIAL_STEPS, which float32 represents exactly. The loss of k picks is
the share of relevance that they give up. It is 0 for the k nearest candidates, and 1 for k
candidates of average relevance.

The loss does not always grow with the dial, so `pick_within` tries every dial, from 1 downwards,
and takes the first dial whose loss is at most the bound. Three properties make these trials cheap:

- A trial ends as soon as its picks have lost so much that no further pick can bring the loss down
  to the bound. Most high dials end after two picks.
- The distances from a pick are computed once and reused by all trials.
- The picks of the successful trial are the answer, so no selector runs afterwards.
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
# Maximum number of float32 distances that are kept for all trials: 4 MiB.
_CACHE_DISTANCES = 1 << 20
# A trial ends early only if its loss exceeds the bound by this much. Adding the same numbers in
# another order changes a loss by far less.
_LOSS_SLACK = 1e-9


@allocating
def relevance_sums(distances, count, metric):
    """Return cumulative sums (count + 1,) float64 of the candidates' relevance, starting with 0.

    `distances` (count,) float32 are ascending.
    """
    sums = np.zeros(count + 1, np.float64)
    for i in range(count):
        sums[i + 1] = sums[i] + np.float64(relevance_of(distances[i], metric))
    return sums


@allocating
def fall_off_step(points, candidates, count, k, limit, selection, factor, metric):
    """Return the number of steps of 1 / DIAL_STEPS in the dial for `diversity="auto"`.

    The odds of the dial, dial / (1 - dial), are `factor` float64 times this share: (mean relevance
    of the k nearest - mean of all) / (relevance of the best - mean of all). If the k nearest are as
    relevant as the best candidate, the share is 1. If the best candidate is far more relevant than
    the others, the share is near 0. Near-copies are not counted among the k nearest, because they
    offer no choice.

    `candidates`: `Candidates` whose first `count` distances are ascending; `k` is at most `count`;
    `limit` float32 is `Objective.copy_limit`.
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
    # If fewer than k candidates remain without near-copies, the mean relevance of those that remain
    # may be below `mean`. The dial is then 0.
    return math.floor(DIAL_STEPS * (odds / (1.0 + odds)) + 0.5) if odds > 0.0 else 0


@allocating
def pick_within(points, candidates, costs, count, k, bound, rule, metric, selection, picks, gains):
    """Pick k candidates at the greatest dial with a loss of at most `bound`; return its step.

    The dial is the step divided by DIAL_STEPS; `bound` is float64. The picks are those of
    `greedy.greedy` at this dial. At step 0 the picks are the k nearest candidates, whatever the
    rule.

    `candidates`: `Candidates`; `costs` (count,) float32: the distances, scaled as the selector
    needs them; `k` is at most `count`. The other arguments are as for `greedy.greedy`.
    """
    sums, apart = relevance_sums(candidates.distances, count, metric), selection.apart
    nearest, width = sums[k] / k, sums[k] / k - sums[count] / count
    # The distances from a pick are a row of the cache. Each pick gets its own row until only the
    # last row is left. All further picks share the last row, which is computed again each time.
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
            # If all candidates are equally relevant, `width` is 0 and the loss is 0.
            loss = (nearest - (total + sums[rest]) / k) / width if width != 0.0 else 0.0
            if rest == 0 and loss <= bound:
                return step
            # `loss` assumes that the remaining picks are the nearest candidates. If even this loss
            # exceeds the bound, end the trial.
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
