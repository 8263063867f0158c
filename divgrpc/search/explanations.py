"""Explanations of the picks of a query and reports on them, computed after the selection.

A replay runs the rule of the selector again, but only among the picks and the candidates that are
nearer than some pick or, within quotas, that a quota may have refused.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import max_sum_dpp, pairwise, replay
from divgrpc.kernels.records import MMR_RULE, Candidates
from divgrpc.search.dials import METRICS, rule_of, weights_of
from divgrpc.search.refusals import WithinQuotas
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import SIMILARITY
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric
from divgrpc.types.explanations import Explanation

Rows = npt.NDArray[np.int32]
_NO_ROWS: Final[Rows] = np.empty(0, np.int32)
_NO_NUMBERS: Final = np.empty(0, np.int64)
_NO_FLAGS: Final = np.empty(0, np.bool_)
_NO_STANDING: Final = np.empty(0, np.int8)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The outcome of the selection for one query.

    candidates: the pool, nearest first, with their distances as costs.
    places: (n,) positions of the results among them, in the order of the results.
    n_different: number of picks. The results after the picks, in the order of picking, are
        near-copies that complete the answer.
    copy_limit: maximum distance between near-copies, below 0 if none are collapsed.
    owners: (m,) the number of the result that each candidate is a near-copy of, or -1. Empty if
        none are collapsed.
    parameters: with the dial that was used.
    shown: (s,) row numbers of the points that were shown earlier, if the answer is a page or takes
        account of them; otherwise None.
    quotas: the quotas within which the picks were made, if any.
    """

    candidates: CandidateSet
    places: IntArray
    n_different: int
    copy_limit: float
    owners: IntArray
    parameters: EffectiveParameters
    metric: Metric
    shown: Rows | None = None
    quotas: WithinQuotas | None = None

    @property
    def earlier(self) -> Rows:
        """The row numbers of the points that were shown earlier; empty if there are none."""
        return _NO_ROWS if self.shown is None else self.shown


@dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    """The rule of a selector for the candidates of one selection.

    fields: for the kernel.
    costs: (m,) as the rule uses them: (distance - offset) / width, or the square roots.
    k: number of results in the formulas of `marginal`, `max_sum` and `rerank`.
    """

    fields: replay.Rule
    costs: npt.NDArray[np.floating]
    k: int
    offset: float = 0.0
    width: float = 1.0


def explain(selection: Selection, ids: IntArray) -> Explanation:
    """Return the explanation of a selection by any selector but `qp_relax`.

    ids: the ids of all points, or an empty array if they are row numbers.
    """
    candidates, quotas = selection.candidates, selection.quotas
    if not len(selection.places):
        return Explanation.empty()
    rule = _rule_of(selection)
    results = selection.places if quotas is None else selection.places[quotas.order]
    n, room = len(results), len(results) + len(candidates)
    integers = np.empty((replay.INTEGER_ROWS, room), np.int64)
    numbers = np.empty((replay.NUMBER_ROWS, room), np.float32)
    n_displaced = replay.explain(
        candidates.points, Candidates(candidates.rows, candidates.costs), rule.costs, results,
        selection.n_different, selection.earlier, rule.fields, _limits_of(selection),
        candidates.scratch, ids, _NO_NUMBERS if quotas is None else quotas.ranks,
        METRICS[selection.metric], integers, numbers,
    )  # fmt: skip
    explanation = _explanation_of(rule, n, n + n_displaced, integers, numbers)
    if quotas is None:
        return explanation
    displaced = integers[:, n : n + n_displaced]
    refused = np.flatnonzero(displaced[replay.REFUSED])
    refusals = quotas.refusals(
        results[: selection.n_different], refused, displaced[replay.PLACES, refused],
        displaced[replay.STEPS, refused],
    )  # fmt: skip
    return _in_result_order(replace(explanation, refusals=refusals), quotas.order)


def _explanation_of(
    rule: _Rule,
    n: int,
    stop: int,
    integers: IntArray,
    numbers: FloatArray,
) -> Explanation:
    """Return what the kernel has written: n results, and displaced points up to `stop`."""
    return Explanation(
        integers[replay.RANKS, :n],
        np.arange(n),
        numbers[replay.RELEVANCE_TERMS, :n],
        numbers[replay.PENALTIES, :n],
        integers[replay.CAUSES, :n],
        numbers[replay.DISTANCES, :n],
        integers[replay.STEPS, :n],
        rule.offset,
        rule.width,
        rule.k,
        integers[replay.IDS, n:stop],
        numbers[replay.SCORES, n:stop],
        integers[replay.RANKS, n:stop],
        integers[replay.STEPS, n:stop],
        numbers[replay.RELEVANCE_TERMS, n:stop],
        numbers[replay.PENALTIES, n:stop],
        integers[replay.CAUSES, n:stop],
        numbers[replay.DISTANCES, n:stop],
    )


def _in_result_order(explanation: Explanation, order: IntArray) -> Explanation:
    """Return an explanation whose results are in the order of picking, in the order of results.

    order: (n,) the place of each result in the order of picking.
    """
    if (order == explanation.pick_numbers).all():
        return explanation
    numbers = np.empty_like(order)
    numbers[order] = explanation.pick_numbers
    names = ("plain_ranks", "relevance_terms", "penalties", "caused_by", "distances", "held_back")
    columns: Any = {name: getattr(explanation, name)[numbers] for name in names}
    displaced_by = order[explanation.displaced_by]
    return replace(explanation, pick_numbers=numbers, displaced_by=displaced_by, **columns)


def _limits_of(selection: Selection) -> replay.Limits:
    owners, quotas = selection.owners, selection.quotas
    if len(selection.earlier):
        is_shown = np.isin(selection.candidates.rows, selection.earlier)
        owners = np.where(is_shown, 0, owners if len(owners) else -1)
    limit = np.float32(selection.copy_limit)
    if quotas is None:
        return replay.Limits(owners, _NO_FLAGS, _NO_STANDING, limit, by_quotas=False)
    standing = np.zeros(len(selection.candidates) if limit >= 0 else 0, np.int8)
    return replay.Limits(owners, quotas.contenders, standing, limit, by_quotas=True)


def _rule_of(selection: Selection) -> _Rule:
    """Return the rule of the selector."""
    candidates, parameters, metric = selection.candidates, selection.parameters, selection.metric
    dial, selector, quotas = parameters.diversity, parameters.selector, selection.quotas
    n_shown, n_picks = len(selection.earlier), selection.n_different
    count = len(candidates) if quotas is None else quotas.n_candidates
    k = min(parameters.k, count) + n_shown
    costs, lambda_ = candidates.costs, np.float32(1 - dial)
    is_printed = selector == "greedy" and parameters.variant == "printed"
    if selector == "nearest" or (lambda_ == 1 and not is_printed):
        weights = np.zeros(n_picks, np.float32)
        return _Rule(_fields(replay.DISTANCE_SUM, np.float32(1), weights), costs, k)
    kept, offset, width = _kept(selection), 0.0, 1.0
    if metric == "inner_product":
        offset, width = float(kept[0]), float(kept[-1] - kept[0]) or math.inf
        costs = (costs - kept[0]) / np.float32(width)
    if selector in {"greedy", "mmr"}:
        rule = rule_of(parameters)
        kind = replay.LEAST_DISTANCE if rule == MMR_RULE else replay.DISTANCE_SUM
        weights = weights_of(rule, lambda_, n_shown, n_picks, k)
        return _Rule(_fields(kind, lambda_, weights), costs, k, offset, width)
    if selector == "dpp":
        prices = (1 - dial) * costs.astype(np.float64)
        if SIMILARITY[metric] == max_sum_dpp.RATIONAL_QUADRATIC:
            width = max_sum_dpp.mean_cost(kept, len(kept))
            prices = (1 - dial) * (costs.astype(np.float64) / width)
        weights = np.full(n_picks, 1.0 - (1 - dial))
        fields = replay.Rule(replay.VOLUME, 1.0, weights, width, SIMILARITY[metric])
        return _Rule(fields, prices, k, offset, width)
    relevance = 0.0 if selector == "rerank" else 1 - dial
    costs = costs if metric == "inner_product" else np.sqrt(costs)
    if selection.shown is None and quotas is None:
        k = min(k, n_picks)
    weights = np.full(n_picks, 2.0 * (1.0 - relevance) / (k - 1) if k > 1 else 0.0)
    return _Rule(_fields(replay.ROOT_SUM, 0.5 * relevance, weights), costs, k, offset, width)


def _fields(
    kind: int, relevance: float | np.float32, weights: npt.NDArray[np.floating]
) -> replay.Rule:
    """Return a rule that needs no similarity."""
    return replay.Rule(kind, relevance, weights, 1.0, 0)


def _kept(selection: Selection) -> FloatArray:
    """Return the distances of the candidates that are no near-copies, where a rule needs them.

    Within quotas, only the nearest candidates scale distances.
    """
    candidates, limit = selection.candidates, selection.copy_limit
    if selection.metric != "inner_product" and selection.parameters.selector != "dpp":
        return candidates.costs
    if selection.quotas is not None:
        candidates = candidates.take(selection.quotas.scale)
    if limit < 0:
        return candidates.costs
    places = np.empty(len(candidates), np.int64)
    count = pairwise.keep_different(
        candidates.points, candidates.rows, len(candidates), np.float32(limit),
        candidates.scratch, places,
    )  # fmt: skip
    return candidates.costs[places[:count]]
