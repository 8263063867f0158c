"""Explanations of the picks of a query and reports on them, computed after the selection.

A replay runs the rule of the selector again, but only among the picks and the candidates that are
nearer than some pick. It needs at most as many distances as the selection itself.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import max_sum_dpp, pairwise, replay
from divgrpc.kernels.greedy import diversity_weight
from divgrpc.kernels.records import MMR_RULE
from divgrpc.search.dials import rule_of
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import SIMILARITY, relevance
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric
from divgrpc.types.explanations import Explanation

# More displaced candidates are dropped, the least relevant first.
_DISPLACED_MAX: Final = 1_000

Rows = npt.NDArray[np.int32]
_NO_ROWS: Final[Rows] = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The outcome of the selection for one query.

    candidates: the pool, nearest first, with their distances as costs.
    places: (n,) positions of the results among them, in the order of the results.
    n_different: number of picks. The results after the picks are near-copies that complete the
        answer.
    copy_limit: maximum distance between near-copies, below 0 if none are collapsed.
    owners: (m,) the number of the result that each candidate is a near-copy of, or -1. Empty if
        none are collapsed.
    parameters: with the dial that was used.
    shown: (s,) row numbers of the points that were shown earlier, if the answer is a page or takes
        account of them; otherwise None.
    """

    candidates: CandidateSet
    places: IntArray
    n_different: int
    copy_limit: float
    owners: IntArray
    parameters: EffectiveParameters
    metric: Metric
    shown: Rows | None = None

    @property
    def earlier(self) -> Rows:
        """The row numbers of the points that were shown earlier; empty if there are none."""
        return _NO_ROWS if self.shown is None else self.shown


@dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    """What the rule of a selector adds up, and the factors of its terms.

    costs: (r,) as the rule uses them: (distance - offset) / width, or the square roots.
    """

    kind: int
    costs: npt.NDArray[np.floating]
    relevance: float | np.float32
    weights: npt.NDArray[np.floating]
    offset: float = 0.0
    width: float = 1.0


def explain(selection: Selection, ids: IntArray) -> Explanation:
    """Return the explanation of a selection by any selector but `qp_relax`.

    ids: the ids of all points, or an empty array if they are row numbers.
    """
    candidates, places = selection.candidates, selection.places
    picks = places[: selection.n_different]
    subset = np.concatenate((picks, _displaced(selection)))
    rule = _rule_of(selection, subset)
    terms, steps, causes, distances = _replay(selection, subset, rule)
    n_picks = len(picks)
    # A near-copy of a candidate that was not picked could have a better value than a pick.
    lost = np.flatnonzero(steps[n_picks:] >= 0) + n_picks
    displaced, (relevance_terms, penalties) = subset[lost], terms
    causes[causes >= 0] = _keys(ids, causes[causes >= 0])
    columns = (
        relevance_terms[:n_picks],
        penalties[:n_picks],
        causes[:n_picks],
        distances[:n_picks],
    )
    if n_picks < len(places):
        columns = _with_fillers(columns, candidates.costs[places[n_picks:]])
    return Explanation(
        places + 1,
        *columns,
        rule.offset,
        rule.width,
        displaced_ids=_keys(ids, candidates.rows[displaced]),
        displaced_scores=relevance(candidates.costs[displaced], selection.metric),
        displaced_plain_ranks=displaced + 1,
        displaced_by=steps[lost].astype(np.int64),
        displaced_relevance_terms=relevance_terms[lost],
        displaced_penalties=penalties[lost],
        displaced_caused_by=causes[lost],
        displaced_distances=distances[lost],
    )


def _with_fillers(
    columns: tuple[FloatArray, FloatArray, IntArray, FloatArray], distances: FloatArray
) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
    """Append the near-copies that complete an answer, whose values are minus their distances."""
    relevance_terms, penalties, causes, far = columns
    count = len(distances)
    return (
        np.concatenate((relevance_terms, 0 - distances)),
        np.concatenate((penalties, np.zeros(count, np.float32))),
        np.concatenate((causes, np.full(count, -1))),
        np.concatenate((far, np.full(count, np.nan, np.float32))),
    )


def report(selection: Selection, ids: IntArray) -> tuple[npt.NDArray[np.float64], IntArray]:
    """Return the numbers (8,) of a `Report` in the order of its fields, and ids of plain results.

    ids: as for `explain`.
    """
    candidates, parameters, metric = selection.candidates, selection.parameters, selection.metric
    # What was shown on earlier pages is no choice any more.
    plain, dial = np.arange(len(candidates)), parameters.diversity
    if len(selection.earlier):
        plain = plain[~np.isin(candidates.rows, selection.earlier)]
    plain = plain[: parameters.k]
    values, numbers = np.empty(8), np.empty(3)
    for column, places in enumerate((selection.places, plain)):
        pairwise.list_numbers(candidates.points, candidates.rows, candidates.costs, places, numbers)
        mean, least, near = numbers.tolist()
        values[2 * column], values[2 * column + 1] = mean, least
        values[4 + column] = 1 - near / 2 if metric == "cosine" else near
        is_whole = len(places) == parameters.k and metric != "inner_product"
        spread = mean if parameters.k > 1 else 0.0
        values[6 + column] = (1 - dial) * near - dial * spread if is_whole else math.nan
    if metric == "inner_product":
        values[4:6] *= -1
    return values, _keys(ids, candidates.rows[plain])


def _keys(ids: IntArray, rows: npt.NDArray[np.integer]) -> IntArray:
    return ids[rows] if len(ids) else rows.astype(np.int64)


def _replay(
    selection: Selection, subset: IntArray, rule: _Rule
) -> tuple[tuple[FloatArray, FloatArray], Rows, IntArray, FloatArray]:
    """Run the kernel `replay` among the picks and the displaced candidates in `subset` (r,).

    Returns the relevance terms and the penalties, the steps, the row numbers of the causes, -1 if
    there is none, and the distances from them, NaN if there is none; all (r,).
    """
    candidates = selection.candidates
    picks, n_shown = subset[: selection.n_different], len(selection.earlier)
    rows = np.concatenate((selection.earlier, candidates.rows[subset]))
    terms = np.zeros((2, len(rows)), rule.weights.dtype)
    places, distances = np.full(len(rows), -1, np.int32), np.full(len(rows), np.nan, np.float32)
    losers = subset[len(picks) :]
    # The first pick that is farther than a loser was picked although it is less relevant.
    lost_to = np.searchsorted(np.maximum.accumulate(picks), losers)
    steps = np.concatenate((np.arange(-n_shown, len(picks)), lost_to)).astype(np.int32)
    order = np.concatenate((np.full(n_shown, -1), subset)).astype(np.int32)
    costs = np.concatenate((np.zeros(n_shown, rule.costs.dtype), rule.costs))
    replay.replay(
        candidates.points, rows, order, costs, n_shown, len(picks), steps, rule.relevance,
        rule.weights, rule.kind, rule.width, SIMILARITY[selection.metric], candidates.scratch,
        terms, places, distances,
    )  # fmt: skip
    has_cause = places >= 0
    causes = np.where(has_cause, rows[places], -1).astype(np.int64)
    distances = np.where(has_cause, distances, np.float32(np.nan))
    signed = (0 - terms[:, n_shown:]).astype(np.float32)
    return (signed[0], signed[1]), steps[n_shown:], causes[n_shown:], distances[n_shown:]


def _displaced(selection: Selection) -> IntArray:
    """Return the positions of the candidates nearer than some pick that are no copy of a result."""
    places = selection.places
    picks = places[: selection.n_different]
    count = int(picks.max()) + 1 if len(picks) else 0
    flags = np.ones(count, np.bool_)
    flags[places[places < count]] = False
    if len(selection.earlier):
        flags &= ~np.isin(selection.candidates.rows[:count], selection.earlier)
    if selection.copy_limit >= 0:
        flags &= selection.owners[:count] < 0
    return np.flatnonzero(flags)[:_DISPLACED_MAX]


def _rule_of(selection: Selection, subset: IntArray) -> _Rule:
    """Return the rule of the selector for the candidates at the positions `subset` (r,)."""
    candidates, parameters, metric = selection.candidates, selection.parameters, selection.metric
    dial, selector = parameters.diversity, parameters.selector
    n_shown, n_picks = len(selection.earlier), selection.n_different
    costs, lambda_ = candidates.costs[subset], np.float32(1 - dial)
    is_printed = selector == "greedy" and parameters.variant == "printed"
    if selector == "nearest" or (lambda_ == 1 and not is_printed):
        weights = np.zeros(n_picks, np.float32)
        return _Rule(replay.DISTANCE_SUM, costs, np.float32(1), weights)
    kept, offset, width = _kept(selection), 0.0, 1.0
    if metric == "inner_product":
        offset, width = float(kept[0]), float(kept[-1] - kept[0]) or math.inf
        costs = (costs - kept[0]) / np.float32(width)
    if selector in {"greedy", "mmr"}:
        rule, k = rule_of(parameters), min(parameters.k, len(candidates)) + n_shown
        weights = np.array(
            [diversity_weight(rule, lambda_, n_shown + step, k) for step in range(n_picks)],
            np.float32,
        )
        kind = replay.LEAST_DISTANCE if rule == MMR_RULE else replay.DISTANCE_SUM
        return _Rule(kind, costs, lambda_, weights, offset, width)
    if selector == "dpp":
        prices = (1 - dial) * costs.astype(np.float64)
        if SIMILARITY[metric] == max_sum_dpp.RATIONAL_QUADRATIC:
            width = max_sum_dpp.mean_cost(kept, len(kept))
            prices = (1 - dial) * (costs.astype(np.float64) / width)
        weights = np.full(n_picks, 1.0 - (1 - dial))
        return _Rule(replay.VOLUME, prices, 1.0, weights, offset, width)
    relevance = 0.0 if selector == "rerank" else 1 - dial
    costs = costs if metric == "inner_product" else np.sqrt(costs)
    is_page = selection.shown is not None
    k = min(parameters.k, len(candidates) if is_page else n_picks) + n_shown
    weights = np.full(n_picks, 2.0 * (1.0 - relevance) / (k - 1) if k > 1 else 0.0)
    return _Rule(replay.ROOT_SUM, costs, 0.5 * relevance, weights, offset, width)


def _kept(selection: Selection) -> FloatArray:
    """Return the distances of the candidates that are no near-copies, where a rule needs them."""
    candidates, limit = selection.candidates, selection.copy_limit
    is_scaled = selection.metric == "inner_product" or selection.parameters.selector == "dpp"
    if limit < 0 or not is_scaled:
        return candidates.costs
    places = np.empty(len(candidates), np.int64)
    count = pairwise.keep_different(
        candidates.points, candidates.rows, len(candidates), np.float32(limit),
        candidates.scratch, places,
    )  # fmt: skip
    return candidates.costs[places[:count]]
