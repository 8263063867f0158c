"""Computes the picks of a query anew from its explanation, without an index."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types import FloatArray, Metric, QueryResult

_Values = npt.NDArray[np.float64]
# Remainders of a DPP below this count as this (`divgrpc.kernels.max_sum_dpp`).
_REMAINDER_MIN = 1e-5


class Recomputed(NamedTuple):
    """The picks of a query, computed anew.

    values: (n,) float64 selection score of each pick, computed from the vectors.
    rival_values: (n,) float64 greatest selection score that a later pick or a displaced point had
        at that step, -inf if there is none. If it is above the value of the pick by more than
        rounding errors, the rule of the selector does not explain the pick.
    """

    values: _Values
    rival_values: _Values


class _Rule(NamedTuple):
    """The selector and what its formula needs."""

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
) -> Recomputed:
    """Compute the selection scores of the picks in one row of a result that has explanations.

    row: number of the query in the result.
    metric: metric of the index.
    query: (d,) the query.
    vectors: (n, d) vectors of the results of the row, in their order.
    displaced_vectors: (u, d) vectors of the displaced points, in their order.

    Near-copies that complete an answer are no picks, and are left out. The formulas are those of
    `divgrpc.search.selectors` and `divgrpc.kernels.greedy`, in float64.
    """
    explanation, parameters = result.explanations[row], result.parameters
    n_picks = int(result.counts[row]) - int(result.stats.duplicates[row])
    dial = parameters.diversity if parameters.has_fixed_dial else float(result.diversities[row])
    points = np.concatenate((vectors[:n_picks], displaced_vectors)).astype(np.float64)
    costs, pairs = _distances(np.asarray(query, np.float64), points, n_picks, metric)
    costs = (costs - explanation.cost_offset) / explanation.cost_width
    rule = _Rule(
        parameters.selector,
        parameters.variant,
        dial,
        parameters.k,
        metric,
        explanation.cost_width,
    )
    values, rivals = np.empty(n_picks), np.empty(n_picks)
    for step in range(n_picks):
        scores = _scores(costs, pairs[:, :step], rule)
        values[step] = scores[step]
        rivals[step] = max([*scores[step + 1 :].tolist(), -math.inf])
    return Recomputed(values, rivals)


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
