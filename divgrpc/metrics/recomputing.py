"""Computes the picks of a query anew from its explanation, without an index."""

import math
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.types import Explanation, FloatArray, Metric, QueryResult

_Values = npt.NDArray[np.float64]
# Remainders of a DPP below this count as this (`divgrpc.kernels.max_sum_dpp`).
_REMAINDER_MIN = 1e-5


class Recomputed(NamedTuple):
    """The picks of a query, computed anew.

    values: (n,) float64 selection score of each pick, computed from the vectors.
    rival_values: (n,) float64 greatest selection score that a later pick or a displaced point had
        at that step, -inf if there is none. Points that quotas had refused by then do not count.
        If it is above the value of the pick by more than rounding errors, the rule of the selector
        does not explain the pick.
    """

    values: _Values
    rival_values: _Values


class _Rule(NamedTuple):
    """The selector and what its formula needs.

    k: the number of results, with points shown before, in the formulas of `marginal` and `max_sum`.
    """

    selector: str
    variant: str
    dial: float
    k: int
    metric: Metric
    unit: float


def recompute_picks(
    result: QueryResult,
    row: int,
    metric: Metric,
    query: FloatArray,
    *,
    vectors: FloatArray,
    displaced_vectors: FloatArray,
    shown_vectors: FloatArray | None = None,
) -> Recomputed:
    """Compute the selection scores of the picks in one row of a result that has explanations.

    row: number of the query in the result.
    metric: metric of the index.
    query: (d,) the query.
    vectors: (n, d) dense vectors of the results of the row, in their order.
    displaced_vectors: (u, d) vectors of the displaced points, in their order.
    shown_vectors: (s, d) vectors of the points that were shown before, for a later page or a query
        with `already_shown`, in the order in which they were shown.

    Picks are in the order of picking, `explanation.pick_numbers`. Near-copies that complete an
    answer are no picks, and are left out. `rerank` picks from a shortlist as long as it can, so its
    rivals may be better outside of it. The formulas are in `divgrpc.search.selectors` and
    `divgrpc.kernels.greedy`; here they are computed in float64.
    Raises `InvalidArgumentError` with the name of the argument as the field.
    """
    explanation = _explanation_of(result, row)
    if metric not in get_args(Metric):
        raise invalid("metric", f"must be {', '.join(get_args(Metric))}, got {metric!r}")
    asked = np.asarray(query, np.float64)
    if asked.ndim != 1:
        raise invalid("query", f"must be one vector, got {asked.ndim} axes")
    counts = (len(explanation.plain_ranks), len(explanation.displaced_ids))
    results = _matrix("vectors", vectors, counts[0], len(asked))
    displaced = _matrix("displaced_vectors", displaced_vectors, counts[1], len(asked))
    n_picks = counts[0] - int(result.stats.duplicates[row])
    shown = _matrix("shown_vectors", shown_vectors, None, len(asked))
    picks = results[np.argsort(explanation.pick_numbers)[:n_picks]]
    points = np.concatenate((shown, picks, displaced))
    costs, pairs = _distances(asked, points, len(shown) + n_picks, metric)
    costs = (costs - explanation.cost_offset) / explanation.cost_width
    rule, stops = _rule_of(result, row, metric), _stops_of(explanation, n_picks)
    values, rivals = np.empty(n_picks), np.empty(n_picks)
    for step in range(n_picks):
        place = len(shown) + step
        scores = _scores(costs, pairs[:, :place], rule)
        values[step] = scores[place]
        is_rival = np.concatenate((np.arange(n_picks) > step, stops > step))
        rivals[step] = max([*scores[len(shown) :][is_rival].tolist(), -math.inf])
    return Recomputed(values, rivals)


def _stops_of(explanation: Explanation, n_picks: int) -> npt.NDArray[np.int64]:
    """Return the number of the pick before which quotas refused each displaced point."""
    stops = np.full(len(explanation.displaced_ids), n_picks)
    for refusal in explanation.refusals:
        stops[refusal.place] = explanation.pick_numbers[explanation.displaced_by[refusal.place]]
    return stops


def _explanation_of(result: QueryResult, row: int) -> Explanation:
    if not result.explanations:
        raise invalid("result", "must have explanations: query with explain=True")
    if not 0 <= row < len(result.explanations):
        raise invalid("row", f"must be from 0 to {len(result.explanations) - 1}, got {row}")
    return result.explanations[row]


def _matrix(field: str, vectors: object, count: int | None, dims: int) -> _Values:
    """Return vectors as (count, dims) float64; None and an empty list have no rows."""
    try:
        matrix = np.asarray([] if vectors is None else vectors, np.float64)
    except (TypeError, ValueError):
        raise invalid(field, "must be a dense matrix of numbers") from None
    matrix = matrix if matrix.size else np.empty((0, dims))
    count = len(matrix) if count is None else count
    if matrix.ndim != 2 or matrix.shape != (count, dims):
        shape = " x ".join(map(str, matrix.shape))
        raise invalid(field, f"must be {count} x {dims}, got {shape}")
    return matrix


def _rule_of(result: QueryResult, row: int, metric: Metric) -> _Rule:
    """Return the rule of a row."""
    parameters, explanation = result.parameters, result.explanations[row]
    dial = parameters.diversity if parameters.has_fixed_dial else float(result.diversities[row])
    return _Rule(
        parameters.selector, parameters.variant, dial, explanation.list_size, metric,
        explanation.cost_width,
    )  # fmt: skip


def _distances(
    query: _Values, points: _Values, n_picks: int, metric: Metric
) -> tuple[_Values, _Values]:
    """Return the distances (r,) of points from the query, and (r, n_picks) from the picks."""
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    if metric == "inner_product":
        unit = np.divide(points, lengths, out=np.zeros_like(points), where=lengths > 0)
        return -(points @ query), 1 - unit @ unit[:n_picks].T
    if metric == "cosine":
        points, query = points / lengths, query / np.linalg.norm(query)
    pairs = ((points[:, None] - points[None, :n_picks]) ** 2).sum(axis=2)
    return ((points - query) ** 2).sum(axis=1), pairs


def _scores(costs: _Values, pairs: _Values, rule: _Rule) -> _Values:
    """Return the selection score of each point (r,) after the picks of `pairs` (r, picks)."""
    dial, picks = rule.dial, pairs.shape[1]
    near, spread, lambda_ = costs, np.zeros(len(costs)), 1 - dial
    is_printed = rule.selector == "greedy" and rule.variant == "printed"
    if rule.selector == "nearest" or (dial == 0 and not is_printed):
        lambda_ = 1.0
    elif rule.selector == "dpp":
        spread = dial * np.log(_remainders(pairs, rule))
    elif rule.selector in {"max_sum", "rerank"}:
        share = 1.0 if rule.selector == "rerank" else dial
        near = costs if rule.metric == "inner_product" else np.sqrt(np.maximum(costs, 0))
        lambda_ = (1 - share) / 2
        spread = 2 * share / max(1, rule.k - 1) * np.sqrt(np.maximum(pairs, 0)).sum(axis=1)
    elif picks and rule.selector == "mmr":
        spread = dial * pairs.min(axis=1)
    elif picks:
        weights = {"corrected": dial / picks, "printed": 1 / (picks + 1)}
        marginal = 2 * dial / max(1, rule.k - 1)
        spread = weights.get(rule.variant, marginal) * pairs.sum(axis=1)
    return spread - lambda_ * near


def _remainders(pairs: _Values, rule: _Rule) -> _Values:
    """Return the remainder of each point (r,): the factor by which it changes the determinant."""
    if rule.metric == "euclidean":
        likeness = 1 / (1 + pairs / rule.unit)
    else:
        likeness = 1 - pairs / 2 if rule.metric == "cosine" else 1 - pairs
    remainders, factor = np.ones(len(pairs)), np.empty((len(pairs), 0))
    for pick in range(pairs.shape[1]):
        if remainders[pick] > _REMAINDER_MIN:
            share = likeness[:, pick] - factor @ factor[pick]
            share /= math.sqrt(remainders[pick])
            remainders -= share**2
            factor = np.column_stack((factor, share))
    return np.maximum(remainders, _REMAINDER_MIN)
