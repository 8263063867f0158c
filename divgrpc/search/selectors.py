"""The selectors that are called one query at a time: `rerank`, `max_sum`, `dpp` and `qp_relax`.

`nearest`, `greedy` and `mmr` are part of the kernel that searches. These get the candidates that it
leaves, nearest first. Everywhere lambda is 1 - diversity, c(r) what candidate r costs (its squared
distance from the query; of inner products the share between the best candidate's and the worst's)
and d(r,s) how far apart two are (their squared distance; of inner products 1 - cosine). At
diversity 0 none of this runs: the k nearest are the answer, but for `qp_relax` as printed.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from divgrpc.kernels import dials, max_sum_dpp, near_copies
from divgrpc.kernels.greedy import CROWDED_PART
from divgrpc.search.dials import METRICS, rule_of
from divgrpc.search.relaxation import Candidates, exchange, relax, round_up
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric, Selector

# The selectors that `select` knows.
ONE_BY_ONE: Final[tuple[Selector, ...]] = ("rerank", "max_sum", "dpp", "qp_relax")

_LIKENESS: Final = {
    "cosine": max_sum_dpp.CHORDS,
    "euclidean": max_sum_dpp.DISTANCES,
    "inner_product": max_sum_dpp.ANGLES,
}


@dataclass(frozen=True, slots=True, eq=False)
class Picks:
    """Places among the candidates (m,) int64 in the order of picking; their values (m,) float32.

    `gap` is the duality gap of `qp_relax`, NaN with other selectors. `dial` is the one that
    `lose_at_most` led to, and `reason` the number of why; both 0 with a dial that was named.
    """

    places: IntArray
    values: FloatArray
    gap: float = float("nan")
    dial: float = 0.0
    reason: int = 0


def select(among: Candidates, wanted: EffectiveParameters, metric: Metric) -> Picks:
    """Pick k of the candidates, all where there are fewer; their `costs` are plain distances."""
    distances, count = among.costs, len(among)
    if not count:
        nothing = dials.NO_CHOICE if wanted.lose_at_most is not None else 0
        return Picks(np.empty(0, np.int64), np.empty(0, np.float32), 0.0, reason=nothing)
    if wanted.lose_at_most is not None:
        return select_within(among, wanted, metric)
    if wanted.diversity == 0 and wanted.variant != "printed":
        # A dial that was chosen: where 0 was named nobody selects.
        nearest = np.arange(min(wanted.k, count))
        return Picks(nearest, -distances[nearest], 0.0)
    if metric == "inner_product":
        among = among.priced(_shares(distances))
    if wanted.selector == "rerank":
        return rerank(among, wanted.k, wanted.diversity)
    if wanted.selector == "max_sum":
        return max_sum(among, wanted.k, wanted.diversity, metric)
    if wanted.selector == "dpp":
        return dpp(among, wanted.k, wanted.diversity, metric)
    return qp_relax(among, wanted)


def select_within(among: Candidates, wanted: EffectiveParameters, metric: Metric) -> Picks:
    """Pick k at the greatest dial, of steps of 1/32, that loses at most `lose_at_most`.

    The loss of k picks is (R_nearest - R) / (R_nearest - R_all): R their mean relevance, in the
    metric's own direction, R_nearest that of the k nearest of these candidates, R_all that of all
    of them. Where the last two are equal it is 0. At dial 0 the k nearest are picked, which lose
    nothing. `among.costs` are plain distances.
    """
    count, k, bound = len(among), min(wanted.k, len(among)), wanted.lose_at_most
    assert bound is not None  # noqa: S101  # or nobody comes here
    plain = Picks(np.arange(k), -among.costs[:k], 0.0, reason=dials.NO_CHOICE)
    if count <= wanted.k:
        return plain
    if wanted.selector in ONE_BY_ONE:
        found = _first_within(among, wanted, metric, bound) or plain
    else:
        found = _greedy_within(among, wanted, metric, bound)
    if among.costs[0] == among.costs[-1]:
        reason = dials.EQUAL_RELEVANCE
    else:
        reason = dials.WITHIN_BOUND if found.dial == 1 else dials.LOSS_BOUND
    return replace(found, reason=reason)


def _greedy_within(
    among: Candidates, wanted: EffectiveParameters, metric: Metric, bound: float
) -> Picks:
    distances, count, k = among.costs, len(among), wanted.k
    costs = _shares(distances) if metric == "inner_product" else distances
    candidates = (among.points, among.inverses, among.rows, distances, costs)
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    told = (bound, rule_of(wanted), METRICS[metric])
    step = dials.pick_within(candidates, count, k, *told, among.scratch, places, values)
    return Picks(places, values, dial=step / dials.STEPS)


def _first_within(
    among: Candidates, wanted: EffectiveParameters, metric: Metric, bound: float
) -> Picks | None:
    """Try one dial after another, from the greatest down; None where none above 0 holds."""
    relevances = relevance(among.costs, metric)
    nearest = _mean(relevances[: wanted.k])
    width = nearest - _mean(relevances)
    for step in range(dials.STEPS, 0, -1):
        dial = step / dials.STEPS
        picks = select(among, replace(wanted, lose_at_most=None, diversity=dial), metric)
        lost = nearest - _mean(relevances[picks.places])
        if width == 0 or lost / width <= bound:
            return replace(picks, dial=dial)
    return None


def select_different(
    among: Candidates, pool: int, limit: float, wanted: EffectiveParameters, metric: Metric
) -> tuple[Picks, int, int, int]:
    """Pick k of the first `pool` candidates that differ; as `kernels.selection.pick` does.

    Candidates within `limit` of one another, in the unit of `kernels.pairs`, are near-copies; below
    0 none are. Where they crowd the pool it grows, up to all candidates. Returns the picks, the
    pool, how many of it are near-copies of picks, and how many picks are near-copies themselves.
    """
    if limit < 0:
        return select(among.of(np.arange(pool)), wanted, metric), pool, 0, 0
    near, owners = np.float32(limit), np.empty(len(among), np.int64)
    arrays = (among.points, among.inverses, among.rows)
    while True:
        kept = np.empty(pool, np.int64)
        kept = kept[: near_copies.keep_different(*arrays, pool, near, among.scratch, kept)]
        picks = select(among.of(kept), wanted, metric)
        places = kept[picks.places]
        copies = near_copies.assign_copies(*arrays, pool, places, len(places), near, owners)
        if pool == len(among) or CROWDED_PART * copies < pool:
            break
        pool = min(2 * pool, len(among))
    others = np.setdiff1d(np.arange(pool), places)[: wanted.k - len(places)]
    # A candidate that is only there to fill up has no share.
    values = 0 * among.costs[others] if wanted.selector == "qp_relax" else -among.costs[others]
    return (
        replace(
            picks,
            places=np.concatenate((places, others)),
            values=np.concatenate((picks.values, values)),
        ),
        pool,
        copies,
        len(others),
    )


def _mean(numbers: FloatArray) -> float:
    """Return the mean, which does not depend on the order of the numbers."""
    return math.fsum(numbers.tolist()) / len(numbers)


def _shares(distances: FloatArray) -> FloatArray:
    """Return distances as shares of their range, as `kernels.selection.scale_costs` has them."""
    width = distances[-1] - distances[0]
    if width > 0:
        shares: FloatArray = (distances - distances[0]) / width
        return shares
    return np.zeros(len(distances), np.float32)


def relevance(distances: FloatArray, metric: Metric) -> FloatArray:
    """Return the relevance in the metric's own direction, as `kernels.relevance` has it."""
    if metric == "cosine":
        return np.float32(1) - distances / np.float32(2)
    # Plus zero makes a product of minus zero a plain one.
    return distances if metric == "euclidean" else np.float32(0) - distances


def rerank(among: Candidates, k: int, diversity: float) -> Picks:
    """Pick by distance alone from a shortlist of the nearest: the paper's backward selection.

    The dial sets how long the shortlist is: k + diversity * (candidates - k), rounded down, so that
    at 1 it is all candidates. Relevance has no other say. The first pick is the nearest, each other
    one has the greatest sum of distances (roots of d) to those before it; its value is that sum
    times 2 / (k - 1). As `max_sum` with lambda 0: at least half of the greatest sum over pairs that
    k of the shortlist have.
    """
    k = min(k, len(among))
    length = k + int(diversity * (len(among) - k))
    return _greatest_sum(among.of(np.arange(length)), k, 0.0)


def max_sum(among: Candidates, k: int, diversity: float, metric: Metric) -> Picks:
    """Pick the greatest lambda * relevance + 2 (1 - lambda) / (k - 1) * sum over pairs of sqrt(d).

    Relevance is minus the sum of sqrt(c), so that both sides are lengths; of inner products, minus
    the sum of c. The greedy of Borodin, Lee and Ye (PODS 2012, max-sum diversification, after
    Gollapudi and Sharma 2009) counts relevance half in a step: picks maximise
    -lambda/2 sqrt(c(r)) + 2 (1 - lambda) / (k - 1) * sum over S of sqrt(d(r,s)), their value. That
    reaches at least half of the best selection of k candidates, with relevance counted from the
    farthest candidate on, so that it is not negative, and because distances keep the triangle
    inequality, which squared ones would not. k in the formula is at most the number of candidates.
    """
    costs = among.costs if metric == "inner_product" else np.sqrt(among.costs)
    return _greatest_sum(among.priced(costs), k, 1 - diversity)


def dpp(among: Candidates, k: int, diversity: float, metric: Metric) -> Picks:
    """Pick the greatest (1 - lambda) * log det of likenesses - lambda * sum of c, greedily.

    A determinantal point process whose qualities are exp(-lambda c / (2 (1 - lambda))), by the fast
    greedy MAP of Chen, Zhang and Zhou 2018. Likeness is the cosine; under `euclidean`, where
    lengths have no scale of their own, 1 / (1 + d / s) with s the mean of c, and c counts in s too.
    A pick's value is its step of the sum. A candidate of which the picked leave less than 1e-5,
    such as a copy, counts as if they left that much: where all do, relevance picks the rest.

    The logarithm is submodular but can fall, so that no constant share of the best sum is certain;
    at diversity 1 the volume, the root of the determinant, is at least 1/k! of the greatest (Civril
    and Magdon-Ismail 2009) as long as more than 1e-5 is left of every pick.
    """
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    count = max_sum_dpp.determinant(
        among.points,
        among.inverses,
        among.rows,
        among.costs,
        len(among),
        k,
        1 - diversity,
        _LIKENESS[metric],
        places,
        values,
    )
    return Picks(places[:count], values[:count])


def qp_relax(among: Candidates, wanted: EffectiveParameters) -> Picks:
    """Solve the paper's Eq. 3 and round the shares; see `divgrpc.search.relaxation`.

    The objective is Eq. 1: lambda * sum of c - (1 - lambda) * sum over ordered pairs of d, lower is
    better. These are sums and not means, so that a dial weighs distances about k - 1 times as much
    as in J. The variant `printed` leaves out the (1 - lambda), as the paper's Eq. 3 does. Rounding
    takes the k largest shares (`top_k`, the paper's), and then, unless told so, trades one of them
    for another that has a share while that lowers the objective (`exchange`). Picks come by their
    share, the largest first; it is their value. No selection of k has an objective below that of
    the shares less the gap; rounding itself has no guarantee. For k = 1 there are no pairs, and the
    nearest is the answer.
    """
    k, relevance = min(wanted.k, len(among)), 1 - wanted.diversity
    if k == 1:
        return Picks(np.zeros(1, np.int64), np.ones(1, np.float32), 0.0)
    beta = 1.0 if wanted.variant == "printed" else wanted.diversity
    among = among.compact()
    relaxed = relax(among, k, relevance, beta)
    places = round_up(relaxed.shares, k)
    if wanted.rounding == "exchange":
        support = np.flatnonzero(relaxed.shares)
        chosen = np.searchsorted(support, places)
        improved = support[exchange(among.of(support), chosen, relevance, beta)]
        places = improved[np.lexsort((improved, -relaxed.shares[improved]))]
    return Picks(places, relaxed.shares[places].astype(np.float32), relaxed.gap)


def _greatest_sum(among: Candidates, k: int, relevance: float) -> Picks:
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    count = max_sum_dpp.max_sum(
        among.points,
        among.inverses,
        among.rows,
        among.costs,
        len(among),
        k,
        relevance,
        among.scratch,
        places,
        values,
    )
    return Picks(places[:count], values[:count])
