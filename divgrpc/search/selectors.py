"""The selectors that run one query at a time: `rerank`, `max_sum`, `dpp` and `qp_relax`.

`nearest`, `greedy` and `mmr` are part of the kernel that searches. The selectors here get the
candidates that it leaves, nearest first. Everywhere lambda is 1 - diversity, c(r) is the cost of
candidate r (its squared distance from the query; under inner product its share of the range from
the best candidate to the worst) and d(r, s) is the distance between two candidates (squared; under
inner product 1 - cosine). At diversity 0 none of this runs: the k nearest are the answer, except
for `qp_relax` as printed in the paper.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from divgrpc.kernels import dials, max_sum_dpp, pairwise, records
from divgrpc.kernels.greedy import CROWDED_RATIO
from divgrpc.search.dials import METRICS, rule_of
from divgrpc.search.relaxation import CandidateSet, exchange, relax, round_up
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric, Selector

# The selectors that `select` knows.
ONE_BY_ONE: Final[tuple[Selector, ...]] = ("rerank", "max_sum", "dpp", "qp_relax")

_SIMILARITY: Final = {
    "cosine": max_sum_dpp.COSINE_OF_CHORD,
    "euclidean": max_sum_dpp.RATIONAL_QUADRATIC,
    "inner_product": max_sum_dpp.COSINE_OF_ANGLE,
}


@dataclass(frozen=True, slots=True, eq=False)
class Picks:
    """What a selector picks.

    places: (m,) int64 positions among the candidates, in the order of picking.
    values: (m,) float32 what the selector maximised.
    gap: duality gap of `qp_relax`; nan with other selectors.
    dial, reason: the dial that `lose_at_most` led to, and the number of the reason; both 0 if the
        caller named a dial.
    """

    places: IntArray
    values: FloatArray
    gap: float = float("nan")
    dial: float = 0.0
    reason: int = 0


def select(candidates: CandidateSet, parameters: EffectiveParameters, metric: Metric) -> Picks:
    """Pick k of the candidates, all if there are fewer; their `costs` are plain distances."""
    distances, count = candidates.costs, len(candidates)
    if not count:
        reason = records.NO_CHOICE if parameters.lose_at_most is not None else 0
        return Picks(np.empty(0, np.int64), np.empty(0, np.float32), 0.0, reason=reason)
    if parameters.lose_at_most is not None:
        return select_within(candidates, parameters, metric)
    if parameters.diversity == 0 and parameters.variant != "printed":
        # A dial chosen per query. If the caller names 0, no selector runs.
        nearest = np.arange(min(parameters.k, count))
        return Picks(nearest, -distances[nearest], 0.0)
    if metric == "inner_product":
        candidates = replace(candidates, costs=_shares(distances))
    if parameters.selector == "rerank":
        return rerank(candidates, parameters.k, parameters.diversity)
    if parameters.selector == "max_sum":
        return max_sum(candidates, parameters.k, parameters.diversity, metric)
    if parameters.selector == "dpp":
        return dpp(candidates, parameters.k, parameters.diversity, metric)
    return qp_relax(candidates, parameters)


def select_within(
    candidates: CandidateSet, parameters: EffectiveParameters, metric: Metric
) -> Picks:
    """Pick k at the greatest dial, in steps of 1/32, that loses at most `lose_at_most`.

    The loss of k picks is (R_nearest - R) / (R_nearest - R_all): R is their mean relevance, in the
    metric's own direction, R_nearest the mean of the k nearest candidates, R_all the mean of all.
    If the last two are equal, the loss is 0. At dial 0 the k nearest are picked, which lose
    nothing. `candidates.costs` are plain distances.
    """
    distances, k = candidates.costs, min(parameters.k, len(candidates))
    bound = parameters.lose_at_most
    assert bound is not None  # noqa: S101  # the caller checks
    nearest = Picks(np.arange(k), -distances[:k], 0.0, reason=records.NO_CHOICE)
    if len(candidates) <= parameters.k:
        return nearest
    if parameters.selector in ONE_BY_ONE:
        picks = _first_within(candidates, parameters, metric, bound) or nearest
    else:
        picks = _greedy_within(candidates, parameters, metric, bound)
    if distances[0] == distances[-1]:
        reason = records.EQUAL_RELEVANCE
    else:
        reason = records.WITHIN_BOUND if picks.dial == 1 else records.LOSS_BOUND
    return replace(picks, reason=reason)


def _greedy_within(
    candidates: CandidateSet, parameters: EffectiveParameters, metric: Metric, bound: float
) -> Picks:
    """Pick at the greatest dial that keeps the bound, with a rule of greedy selection."""
    distances, k = candidates.costs, parameters.k
    costs = _shares(distances) if metric == "inner_product" else distances
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    step = dials.pick_within(
        candidates.points, records.Candidates(candidates.rows, distances), costs, len(candidates),
        k, bound, rule_of(parameters), METRICS[metric], candidates.scratch, places, values,
    )  # fmt: skip
    return Picks(places, values, dial=step / dials.DIAL_STEPS)


def _first_within(
    candidates: CandidateSet, parameters: EffectiveParameters, metric: Metric, bound: float
) -> Picks | None:
    """Try all dials above 0, from the greatest down; None if none keeps the bound."""
    relevances = relevance(candidates.costs, metric)
    nearest = _mean(relevances[: parameters.k])
    width = nearest - _mean(relevances)
    for step in range(dials.DIAL_STEPS, 0, -1):
        dial = step / dials.DIAL_STEPS
        at_dial = replace(parameters, lose_at_most=None, diversity=dial)
        picks = select(candidates, at_dial, metric)
        loss = nearest - _mean(relevances[picks.places])
        if width == 0 or loss / width <= bound:
            return replace(picks, dial=dial)
    return None


def select_different(
    candidates: CandidateSet,
    pool: int,
    copy_limit: float,
    parameters: EffectiveParameters,
    metric: Metric,
) -> tuple[Picks, int, int, int]:
    """Pick k of the first `pool` candidates that differ, as `kernels.greedy.pick` does.

    Candidates within `copy_limit` of one another, as `kernels.pairwise` measures distances, are
    near-copies; below 0 none are. If they crowd the pool, it grows, up to all candidates. Returns
    the picks, the pool, the near-copies of picks in it, and the picks that are near-copies.
    """
    if copy_limit < 0:
        return select(candidates.take(np.arange(pool)), parameters, metric), pool, 0, 0
    limit, owners = np.float32(copy_limit), np.empty(len(candidates), np.int64)
    points, rows = candidates.points, candidates.rows
    while True:
        originals = np.empty(pool, np.int64)
        count = pairwise.keep_different(points, rows, pool, limit, candidates.scratch, originals)
        picks = select(candidates.take(originals[:count]), parameters, metric)
        places = originals[picks.places]
        copies = pairwise.assign_copies(points, rows, pool, places, len(places), limit, owners)
        if pool == len(candidates) or CROWDED_RATIO * copies < pool:
            break
        pool = min(2 * pool, len(candidates))
    fillers = np.setdiff1d(np.arange(pool), places)[: parameters.k - len(places)]
    # A candidate that only fills up has no share.
    values = (0 if parameters.selector == "qp_relax" else -1) * candidates.costs[fillers]
    places, values = np.concatenate((places, fillers)), np.concatenate((picks.values, values))
    return replace(picks, places=places, values=values), pool, copies, len(fillers)


def _mean(numbers: FloatArray) -> float:
    """Return the mean; it does not depend on the order of the numbers."""
    return math.fsum(numbers.tolist()) / len(numbers)


def _shares(distances: FloatArray) -> FloatArray:
    """Return distances as shares of their range, as `kernels.greedy.scale_costs` does."""
    width = distances[-1] - distances[0]
    if width > 0:
        shares: FloatArray = (distances - distances[0]) / width
        return shares
    return np.zeros(len(distances), np.float32)


def relevance(distances: FloatArray, metric: Metric) -> FloatArray:
    """Return relevances in the metric's own direction, as `kernels.exact.relevance_of` does."""
    if metric == "cosine":
        return np.float32(1) - distances / np.float32(2)
    # Adding zero turns a product of -0.0 into 0.0.
    return distances if metric == "euclidean" else np.float32(0) - distances


def rerank(candidates: CandidateSet, k: int, diversity: float) -> Picks:
    """Pick by distance alone from a shortlist of the nearest: the paper's backward selection.

    The dial sets the length of the shortlist: k + diversity * (candidates - k), rounded down, which
    is all candidates at 1. Relevance has no other influence. The first pick is the nearest; each
    other has the greatest sum of distances (roots of d) from those before it, and that sum times
    2 / (k - 1) is its value. As `max_sum` with lambda 0, it reaches at least half of the greatest
    sum over pairs that k of the shortlist have.
    """
    k = min(k, len(candidates))
    length = k + int(diversity * (len(candidates) - k))
    return _greatest_sum(candidates.take(np.arange(length)), k, 0.0)


def max_sum(candidates: CandidateSet, k: int, diversity: float, metric: Metric) -> Picks:
    """Pick the greatest lambda * relevance + 2 (1 - lambda) / (k - 1) * sum over pairs of sqrt(d).

    Relevance is minus the sum of sqrt(c), so both sides are lengths; under inner product, minus the
    sum of c. The greedy of Borodin, Lee and Ye (PODS 2012, max-sum diversification, after Gollapudi
    and Sharma 2009) counts relevance half in a step: picks maximise
    -lambda/2 sqrt(c(r)) + 2 (1 - lambda) / (k - 1) * sum over S of sqrt(d(r,s)), their value. That
    reaches at least half of the best selection of k candidates, with relevance counted from the
    farthest candidate on, so that it is not negative, because distances satisfy the triangle
    inequality, as squared ones would not. k in the formula is at most the number of candidates.
    """
    distances = candidates.costs
    costs = distances if metric == "inner_product" else np.sqrt(distances)
    return _greatest_sum(replace(candidates, costs=costs), k, 1 - diversity)


def dpp(candidates: CandidateSet, k: int, diversity: float, metric: Metric) -> Picks:
    """Pick the greatest (1 - lambda) * log det of similarities - lambda * sum of c, greedily.

    A determinantal point process whose qualities are exp(-lambda c / (2 (1 - lambda))), by the fast
    greedy MAP of Chen, Zhang and Zhou 2018. The similarity is the cosine; under `euclidean`, where
    lengths have no natural scale, 1 / (1 + d / s) with s the mean of c, and c is measured in s too.
    The value of a pick is its term of the sum. A candidate with a remainder below 1e-5, such as a
    copy, counts as if it had that much: if all have less, relevance picks the rest.

    The logarithm is submodular but may fall, so no constant share of the best sum is certain; at
    diversity 1 the volume, the root of the determinant, is at least 1/k! of the greatest (Civril
    and Magdon-Ismail 2009) as long as the remainder of every pick is above 1e-5.
    """
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    count = max_sum_dpp.determinant(
        candidates.points, candidates.rows, candidates.costs, len(candidates), k, 1 - diversity,
        _SIMILARITY[metric], places, values,
    )  # fmt: skip
    return Picks(places[:count], values[:count])


def qp_relax(candidates: CandidateSet, parameters: EffectiveParameters) -> Picks:
    """Solve the paper's Eq. 3 and round the shares; see `divgrpc.search.relaxation`.

    The objective is Eq. 1: lambda * sum of c - (1 - lambda) * sum over ordered pairs of d; lower is
    better. These are sums and not means, so a dial weighs distances about k - 1 times as much as in
    J. The variant `printed` leaves out the (1 - lambda), as the paper's Eq. 3 does. Rounding takes
    the k largest shares (`top_k`, the paper's), and then, unless the caller asks for `top_k`,
    trades one of them for another candidate with a share while that lowers the objective
    (`exchange`). Picks come by share, the largest first, and the share is their value. No selection
    of k has an objective below the shares' objective less the gap. Rounding itself has no
    guarantee. For k = 1 there are no pairs, and the nearest is the answer.
    """
    k, relevance = min(parameters.k, len(candidates)), 1 - parameters.diversity
    if k == 1:
        return Picks(np.zeros(1, np.int64), np.ones(1, np.float32), 0.0)
    beta = 1.0 if parameters.variant == "printed" else parameters.diversity
    candidates = candidates.compact()
    solution = relax(candidates, k, relevance, beta)
    shares = solution.shares
    places = round_up(shares, k)
    if parameters.rounding == "exchange":
        support = np.flatnonzero(shares)
        picks = np.searchsorted(support, places)
        picks = support[exchange(candidates.take(support), picks, relevance, beta)]
        places = picks[np.lexsort((picks, -shares[picks]))]
    return Picks(places, shares[places].astype(np.float32), solution.gap)


def _greatest_sum(candidates: CandidateSet, k: int, relevance: float) -> Picks:
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    count = max_sum_dpp.max_sum(
        candidates.points, candidates.rows, candidates.costs, len(candidates), k, relevance,
        candidates.scratch, places, values,
    )  # fmt: skip
    return Picks(places[:count], values[:count])
