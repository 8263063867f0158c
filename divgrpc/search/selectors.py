"""Selectors of the candidates of one query, nearest first.

The kernel `query.answer` runs the selectors `nearest`, `greedy` and `mmr` itself. For a query with
another selector, this kernel finds the candidates, and `select_different` picks from them. If there
is no index, `select_different` runs every selector, with the same results. In all formulas:

- lambda is 1 - diversity.
- c(r) is the cost of candidate r: its squared distance from the query. Under inner product, it is
  the distance scaled from 0 for the best candidate to 1 for the worst.
- d(r, s) is the squared Euclidean distance between two candidates, or 1 - cosine under inner
  product.

At diversity 0 no selector runs, and the k nearest are the answer. The exception is `qp_relax` in
the variant `printed`.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from divgrpc.arrays import read_only
from divgrpc.kernels import dials, greedy, max_sum_dpp, pairwise, records
from divgrpc.kernels.greedy import CROWDED_RATIO
from divgrpc.search.dials import METRICS, factor_of, rule_of
from divgrpc.search.relaxation import CandidateSet, exchange, relax, round_up
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric, Selector

# The selectors that `select` runs for one query at a time.
ONE_BY_ONE: Final[tuple[Selector, ...]] = ("rerank", "max_sum", "dpp", "qp_relax")

_NO_IDS: Final = read_only(np.empty(0, np.int64))
_NOT_KNOWN: Final = np.empty(0, np.float32)
# The similarity of two points that `dpp` uses under a metric.
SIMILARITY: Final = {
    "cosine": max_sum_dpp.COSINE_OF_CHORD,
    "euclidean": max_sum_dpp.RATIONAL_QUADRATIC,
    "inner_product": max_sum_dpp.COSINE_OF_ANGLE,
}


@dataclass(frozen=True, slots=True, eq=False)
class Picks:
    """The picks of a selector.

    places: (m,) int64 positions of the picks among the candidates, in the order of picking.
    values: (m,) float32 value that the selector maximised at each pick.
    gap: duality gap of `qp_relax`; meaningless for other selectors.
    dial, reason: the dial (a value of `diversity`) that `lose_at_most` chose, and a number as in
        `Results.reasons`; both 0 without `lose_at_most`.
    """

    places: IntArray
    values: FloatArray
    gap: float = float("nan")
    dial: float = 0.0
    reason: int = 0


def returns_nearest(parameters: EffectiveParameters) -> bool:
    """Whether every query gets its nearest candidates, whatever the selector.

    At diversity 0 every selector picks them, except in the variant `printed`.
    """
    as_printed = parameters.variant == "printed" and parameters.selector in {"greedy", "qp_relax"}
    at_zero = parameters.has_fixed_dial and np.float32(1 - parameters.diversity) == 1
    return parameters.selector == "nearest" or (bool(at_zero) and not as_printed)


def fall_off_dial(
    candidates: CandidateSet,
    pool: int,
    copy_limit: float,
    parameters: EffectiveParameters,
    metric: Metric,
) -> tuple[float, int]:
    """Choose the dial for `diversity="auto"` from the first `pool` candidates.

    Returns the dial and a number as in `Results.reasons`. The kernel `query.answer` chooses the
    same. The arguments are as for `select_different`.
    """
    if pool <= parameters.k:
        return 0.0, records.NO_CHOICE
    step = dials.fall_off_step(
        candidates.points, records.Candidates(candidates.rows, candidates.costs), pool,
        parameters.k, np.float32(copy_limit), candidates.scratch, factor_of(parameters),
        METRICS[metric],
    )  # fmt: skip
    return step / dials.DIAL_STEPS, records.FALL_OFF


def select(candidates: CandidateSet, parameters: EffectiveParameters, metric: Metric) -> Picks:
    """Pick k of the candidates, or all candidates if there are fewer than k.

    `candidates.costs` are the distances from the query. The selector is in `ONE_BY_ONE`, or
    `lose_at_most` is set.
    """
    distances, count = candidates.costs, len(candidates)
    if not count:
        reason = records.NO_CHOICE if parameters.lose_at_most is not None else 0
        return Picks(np.empty(0, np.int64), np.empty(0, np.float32), 0.0, reason=reason)
    if parameters.lose_at_most is not None:
        return select_within(candidates, parameters, metric)
    if parameters.diversity == 0 and parameters.variant != "printed":
        # Dial 0 was chosen for the query. If the caller gives dial 0, `select` is not called.
        nearest = np.arange(min(parameters.k, count))
        return Picks(nearest, -distances[nearest], 0.0)
    if metric == "inner_product":
        candidates = replace(candidates, costs=distance_shares(distances))
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
    """Pick k at the greatest dial, in steps of 1/32, whose loss is at most `lose_at_most`.

    The loss of k picks is (R_nearest - R) / (R_nearest - R_all), or 0 if R_nearest equals R_all.
    Here R is the mean of `relevance` over the picks, R_nearest over the k nearest candidates (the
    picks at dial 0), and R_all over all candidates. `candidates.costs` are the distances from the
    query.
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
    """Do what `select_within` does for `greedy` and `mmr`."""
    distances, k = candidates.costs, parameters.k
    costs = distance_shares(distances) if metric == "inner_product" else distances
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    step = dials.pick_within(
        candidates.points, records.Candidates(candidates.rows, distances), costs, len(candidates),
        k, bound, rule_of(parameters), METRICS[metric], candidates.scratch, places, values,
    )  # fmt: skip
    return Picks(places, values, dial=step / dials.DIAL_STEPS)


def _first_within(
    candidates: CandidateSet, parameters: EffectiveParameters, metric: Metric, bound: float
) -> Picks | None:
    """Pick at the greatest dial above 0 with a loss of at most `bound`; None if no dial has one."""
    relevances = relevance(candidates.costs, metric)
    nearest = mean_of(relevances[: parameters.k])
    width = nearest - mean_of(relevances)
    for step in range(dials.DIAL_STEPS, 0, -1):
        dial = step / dials.DIAL_STEPS
        at_dial = replace(parameters, lose_at_most=None, diversity=dial)
        picks = select(candidates, at_dial, metric)
        loss = nearest - mean_of(relevances[picks.places])
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
    """Pick k of the first `pool` candidates without near-copies, with any selector.

    `candidates.costs` are the distances from the query, ascending. `copy_limit` is the maximum
    distance between near-copies (`kernels.pairwise`); below 0, all candidates are kept. While
    near-copies crowd the pool, `pool` is doubled, up to all candidates. Returns the picks, the size
    of the pool, the number of near-copies of picks in the pool, and the number of near-copies among
    the picks.
    """
    is_plain = returns_nearest(parameters)
    if is_plain and copy_limit < 0:
        nearest = -candidates.costs[: min(parameters.k, pool)]
        return Picks(np.arange(len(nearest)), nearest, 0.0), pool, 0, 0
    if is_plain or (parameters.selector not in ONE_BY_ONE and parameters.lose_at_most is None):
        return _pick_greedily(candidates, pool, copy_limit, parameters, metric)
    if copy_limit < 0:
        if pool < len(candidates):
            candidates = candidates.take(np.arange(pool))
        return select(candidates, parameters, metric), pool, 0, 0
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
    # Near-copies complete the answer. The value of a near-copy is minus its distance from the
    # query. With `qp_relax`, the value is 0, because a near-copy has no share.
    values = -candidates.costs[fillers]
    if parameters.selector == "qp_relax":
        values = np.zeros_like(values)
    places, values = np.concatenate((places, fillers)), np.concatenate((picks.values, values))
    return replace(picks, places=places, values=values), pool, copies, len(fillers)


def _pick_greedily(
    candidates: CandidateSet,
    pool: int,
    copy_limit: float,
    parameters: EffectiveParameters,
    metric: Metric,
) -> tuple[Picks, int, int, int]:
    """Do what `select_different` does for `nearest`, `greedy` and `mmr`."""
    rule, relevance, k = rule_of(parameters), np.float32(1 - parameters.diversity), parameters.k
    if returns_nearest(parameters):
        rule, relevance = records.CORRECTED_RULE, np.float32(1)
    objective = records.Objective(
        k, relevance, rule, metric == "inner_product", np.float32(copy_limit)
    )
    among = records.Candidates(candidates.rows, candidates.costs)
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    costs = np.empty(len(candidates), np.float32)
    while True:
        # The candidates are in order, so the kernel need not sort any, and needs no ids.
        count, fillers, copies, _ = greedy.pick(
            candidates.points, _NO_IDS, among, costs, records.Pool(pool, pool, pool), objective,
            candidates.scratch, places, values,
        )  # fmt: skip
        if pool == len(candidates) or CROWDED_RATIO * copies < pool:
            return Picks(places[:count], values[:count], 0.0), pool, copies, fillers
        pool = min(2 * pool, len(candidates))


def mean_of(numbers: FloatArray) -> float:
    """Return the mean of `numbers`, computed so that it does not depend on their order."""
    return math.fsum(numbers.tolist()) / len(numbers)


def distance_shares(distances: FloatArray, last: int = -1) -> FloatArray:
    """Scale distances linearly to 1 at the place `last`, as `kernels.greedy.scale_costs` does."""
    width = distances[last] - distances[0]
    if width > 0:
        shares: FloatArray = (distances - distances[0]) / width
        return shares
    return np.zeros(len(distances), np.float32)


def relevance(distances: FloatArray, metric: Metric) -> FloatArray:
    """Convert distances to the cosines, squared Euclidean distances or dot products of the metric.

    `kernels.exact.relevance_of` does the same for one distance.
    """
    if metric == "cosine":
        return np.float32(1) - distances / np.float32(2)
    # Adding zero turns a product of -0.0 into 0.0.
    return distances if metric == "euclidean" else np.float32(0) - distances


def rerank(candidates: CandidateSet, k: int, diversity: float) -> Picks:
    """Pick far-apart candidates from a shortlist of the nearest: the paper's backward selection.

    The dial sets the length of the shortlist: k + diversity * (candidates - k), rounded down. The
    first pick is the nearest candidate. Each further pick has the greatest sum of distances sqrt(d)
    from the earlier picks, and its value is this sum times 2 / (k - 1). The selector equals
    `max_sum` with lambda 0 on the shortlist. So the sum of distances over all pairs of picks is at
    least half of the greatest sum that any k points of the shortlist reach.
    """
    k = min(k, len(candidates))
    length = k + int(diversity * (len(candidates) - k))
    return _greatest_sum(candidates.take(np.arange(length)), k, 0.0)


def max_sum(candidates: CandidateSet, k: int, diversity: float, metric: Metric) -> Picks:
    """Pick k candidates by greedy max-sum diversification.

    The objective to maximise is lambda * relevance + 2 (1 - lambda) / (k - 1) * sum over pairs of
    sqrt(d). Relevance is minus the sum of sqrt(c), or minus the sum of c under inner product. If
    there are fewer than k candidates, k is their number.

    The greedy algorithm of Borodin, Lee and Ye (PODS 2012, after Gollapudi and Sharma 2009) gives
    relevance half its weight. If S is the set of earlier picks, each pick r maximises (with c(r)
    instead of sqrt(c(r)) under inner product)

        -lambda / 2 * sqrt(c(r)) + 2 (1 - lambda) / (k - 1) * sum over s in S of sqrt(d(r, s))

    and the maximum is the value of the pick. The selection reaches at least half of the greatest
    objective of k candidates, if relevance is counted from the farthest candidate so that it is not
    negative. The proof needs the triangle inequality, which sqrt(d) satisfies and d does not.
    """
    distances = candidates.costs
    costs = distances if metric == "inner_product" else np.sqrt(distances)
    return _greatest_sum(replace(candidates, costs=costs), k, 1 - diversity)


def dpp(candidates: CandidateSet, k: int, diversity: float, metric: Metric) -> Picks:
    """Pick k candidates greedily by a determinantal point process (DPP).

    The objective to maximise is (1 - lambda) * log det S - lambda * sum of c, where S is the matrix
    of the similarities of the picks. This is a DPP with qualities exp(-lambda c / (2 (1 -
    lambda))), solved by the fast greedy MAP algorithm of Chen, Zhang and Zhou (2018). Under
    `euclidean`, lengths have no natural scale. The similarity is then 1 / (1 + d / s), where s is
    the mean of c, and c is divided by s as well. Under the other metrics, the similarity is the
    cosine. The value of a pick is its contribution to the objective.

    The remainder of a candidate is the factor by which det S changes if the candidate is picked. A
    remainder below 1e-5, such as that of a copy, is replaced by 1e-5. If all remaining candidates
    have remainders below 1e-5, the next picks are the candidates of smallest cost.

    The logarithm of a determinant is submodular but not monotone, so no share of the greatest
    objective is guaranteed. At diversity 1, the volume sqrt(det S) is at least 1/k! of the greatest
    (Civril and Magdon-Ismail 2009) if the remainder of every pick is above 1e-5.
    """
    places, values = np.empty(k, np.int64), np.empty(k, np.float32)
    count = max_sum_dpp.determinant(
        candidates.points, candidates.rows, candidates.costs, len(candidates), k, 1 - diversity,
        SIMILARITY[metric], _NOT_KNOWN, places, values,
    )  # fmt: skip
    return Picks(places[:count], values[:count])


def qp_relax(candidates: CandidateSet, parameters: EffectiveParameters) -> Picks:
    """Solve the paper's Eq. 3 and round the shares; see `divgrpc.search.relaxation`.

    The objective to minimise is Eq. 1: lambda * sum of c - (1 - lambda) * sum over ordered pairs of
    d. The variant `printed` omits the factor 1 - lambda, as Eq. 3 in the paper does. The objective
    J of greedy selection has means instead of these sums. So at the same dial, distances have
    about k - 1 times as much weight in Eq. 1 as in J.

    Rounding takes the k largest shares (`top_k`, as in the paper). With `exchange`, it then
    replaces single picks by other candidates with a share above 0 while that lowers the objective.
    Picks are sorted by share, largest first, and the value of a pick is its share.

    The objective of any k candidates is at least the objective of the shares minus the duality gap.
    How much rounding increases the objective is not bounded. If k is 1, the nearest candidate is
    the answer.
    """
    k, relevance = min(parameters.k, len(candidates)), 1 - parameters.diversity
    if k == 1:
        return Picks(np.zeros(1, np.int64), np.ones(1, np.float32), 0.0)
    beta = 1.0 if parameters.variant == "printed" else parameters.diversity
    candidates = candidates.compact()
    solution = relax(candidates, k, relevance, beta)
    shares, places = solution.shares, round_up(solution.shares, k)
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
