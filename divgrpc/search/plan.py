"""Conversion of query parameters to a plan for kernels, once for all queries that share them."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from divgrpc.kernels import records
from divgrpc.kernels.records import Plan
from divgrpc.parameters.query import POOL_GROWTH, POOL_WORK
from divgrpc.search.dials import METRICS, choice_of, factor_of, rule_of
from divgrpc.search.selectors import ONE_BY_ONE, returns_nearest
from divgrpc.types import EffectiveParameters, Metric, WarningInfo
from divgrpc.vectors import within_float32

# Added to `max_distance`, because rounding may make the distance between two equal directions
# greater than 0, and a `max_distance` of 0 must not exclude points that differ from the query in
# length only.
_DISTANCE_ERROR: Final = 1e-12

# Added to the distance limit for near-copies, because the computed float32 distance between two
# equal directions can be this large.
_SAME_DIRECTION: Final = 1e-6

_SEARCHES: Final = {
    "exact": records.EXACT,
    "tables": records.TABLES,
    "scan": records.SCAN,
    "scan_hamming": records.SCAN_HAMMING,
}


@dataclass(frozen=True, slots=True, eq=False)
class QueryPlan:
    """Describes how to answer queries that have the same parameters.

    The pool of a query is the set of the nearest candidates among which the selector picks.

    parameters: the parameters in effect.
    kernel: the plan for kernels.
    fields: `kernel` as a plain tuple, which takes a third of the time to pass to a kernel.
    candidates_max: maximum number of candidates that the kernel finds for the selector.
    one_by_one: whether query rows are answered one by one. This is necessary if the kernel does not
        run the selector, if `lose_at_most` bounds the loss, or if near-copies are listed.
    copy_limit: maximum distance between near-copies. If `copy_limit` is below 0, all are kept.
    pool_max: maximum number of candidates in a pool that grows because of near-copies.
    roomier: the plan for searching a query row again if near-copies still crowd its pool, or None.
    wider: the plan for searching a query row again if fewer than k of its candidates remain without
        near-copies, or None.
    warnings: warnings that every answer with these parameters has.
    """

    parameters: EffectiveParameters
    kernel: Plan
    fields: tuple[Any, ...]
    candidates_max: int
    one_by_one: bool
    copy_limit: float = float(records.NO_COPIES)
    pool_max: int = 0
    roomier: "QueryPlan | None" = None
    wider: "QueryPlan | None" = None
    warnings: tuple[WarningInfo, ...] = ()

    @classmethod
    def of(
        cls,
        parameters: EffectiveParameters,
        metric: Metric,
        points: int,
        *,
        min_points: int = 0,
        pool_limit: int | None = None,
        grow: bool = True,
        stored: int | None = None,
        picks: bool = True,
    ) -> "QueryPlan":
        """Return the plan for queries of `points` points.

        `min_points`: minimum number of points to find in buckets or cells. `pool_limit`: maximum
        number of candidates that a pool grows to. `grow`: whether a pool may grow within the search
        (`candidates_max` is then up to `pool_max`). `stored`: number of points of the index;
        default `points`. `picks`: whether results are picked; otherwise only candidates are found.
        """
        copy_limit = copy_limit_of(parameters.duplicate_threshold, metric)
        candidates_max, pool_max = _candidate_limits(
            parameters, points, pool_limit if copy_limit >= 0 else 0, grow=grow
        )
        nearest = returns_nearest(parameters)
        # The loss that `lose_at_most` bounds depends on which candidates remain without
        # near-copies. The kernel does not know these candidates.
        separate = parameters.selector in ONE_BY_ONE or parameters.lose_at_most is not None
        one_by_one = separate and not nearest
        step = records.CANDIDATES if one_by_one else records.GREEDY
        effective = parameters
        if not picks:
            one_by_one, step = True, records.CANDIDATES
        elif nearest and copy_limit < 0:
            # More candidates than results would change no answer.
            step, candidates_max = records.NEAREST, min(candidates_max, parameters.k)
        elif nearest:
            # Greedy selection at diversity 0 picks the nearest candidates that are not near-copies.
            step = records.GREEDY
            effective = replace(parameters, selector="greedy", variant="corrected", diversity=0.0)
        kernel = _kernel_plan(
            effective, metric, step, min_points, np.float32(copy_limit), candidates_max
        )._replace(n_points=points if stored is None else stored, dial=float(parameters.diversity))
        has_comments = parameters.list_collapsed or parameters.explain
        one_by_one = one_by_one or has_comments
        sizes = (copy_limit, pool_max)
        return cls(parameters, kernel, tuple(kernel), candidates_max, one_by_one, *sizes)

    @classmethod
    def of_hashed(cls, parameters: EffectiveParameters, metric: Metric) -> "QueryPlan":
        """Return the plan for a query that returns its hashed points."""
        kernel = _kernel_plan(parameters, metric, records.HASH_ONLY, 0, records.NO_COPIES, 0)
        return cls(parameters, kernel, tuple(kernel), 0, one_by_one=False)


def _candidate_limits(
    parameters: EffectiveParameters, points: int, pool_limit: int | None, *, grow: bool
) -> tuple[int, int]:
    """Return the maximum numbers of candidates of one search and of a pool that has grown.

    `pool_limit` is 0 if the pool must not grow, and None if it sets no limit.
    """
    hash_limit = parameters.hash_limit or points
    candidates_max = min(parameters.candidates_limit or points, hash_limit, points)
    if pool_limit == 0:
        return candidates_max, candidates_max
    room = min(POOL_WORK // parameters.k, points if pool_limit is None else pool_limit)
    pool_max = min(POOL_GROWTH * candidates_max, points, max(candidates_max, room))
    return (min(pool_max, hash_limit) if grow else candidates_max), pool_max


def _kernel_plan(  # noqa: PLR0917  # one argument per thing that a plan adds to parameters
    parameters: EffectiveParameters,
    metric: Metric,
    step: int,
    min_points: int,
    copy_limit: np.float32,
    pool_limit: int,
) -> Plan:
    distance, limit = parameters.max_distance, parameters.candidates_limit
    if step == records.NEAREST:
        limit = pool_limit = parameters.k
    return Plan(
        search=_SEARCHES[parameters.search],
        n_probes=parameters.n_probes,
        min_points=min_points,
        k=parameters.k,
        hash_limit=parameters.hash_limit,
        candidates_limit=limit,
        max_distance=np.float32(
            np.inf if distance is None else within_float32(distance + _DISTANCE_ERROR)
        ),
        step=step,
        relevance=np.float32(1 - parameters.diversity),
        rule=rule_of(parameters),
        uniform=parameters.sampling == "uniform",
        seed=np.uint64(parameters.seed),
        product=metric == "inner_product",
        metric=METRICS[metric],
        copy_limit=copy_limit,
        pool_limit=pool_limit,
        dial_choice=choice_of(parameters),
        dial_factor=factor_of(parameters),
        n_points=0,
        dial=0.0,
    )


def copy_limit_of(threshold: float | None, metric: Metric) -> float:
    """Return the maximum distance between near-copies, as `kernels.pairwise` measures distances."""
    if threshold is None:
        return float(records.NO_COPIES)
    if metric == "euclidean":
        return float(within_float32(threshold))
    return max(0.0, (1 - threshold) * (2 if metric == "cosine" else 1)) + _SAME_DIRECTION
