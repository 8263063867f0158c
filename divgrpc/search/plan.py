"""A query's parameters as kernels take them, made once for all queries that come with the same."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from divgrpc.kernels import candidates, near_copies, query
from divgrpc.parameters import POOL_GROWTH, POOL_WORK
from divgrpc.search.dials import METRICS, choice_of, factor_of, rule_of
from divgrpc.search.selectors import ONE_BY_ONE
from divgrpc.types import EffectiveParameters, Metric, WarningInfo
from divgrpc.vectors import within_float32

# How far from its true distance a point may seem to be: rounding of two unit vectors. Without it a
# limit of 0 would lose points that equal the query but for their length.
_ROUNDING: Final = 1e-12

# Equal directions may seem to be this far apart, in float32.
_SAME: Final = 1e-6

_SEARCHES: Final = {
    "exact": candidates.EXACT,
    "tables": candidates.TABLES,
    "scan": candidates.SCAN,
    "scan_hamming": candidates.SCAN_HAMMING,
}


@dataclass(frozen=True, slots=True, eq=False)
class QueryPlan:
    """How queries are answered.

    `wanted` are the parameters and `of_kernel` is the plan of `answering._answer`; `seen` points at
    most come before the selector, which is called `one_by_one` where the kernel does not know it,
    or where near-copies are listed. `limit` is how far near-copies are apart, below 0 for none.
    `widest` is how many candidates there may be where near-copies crowd them. `roomier` is how to
    answer where they do and `seen` is less, `wider` where fewer than k candidates differ; None: the
    answer stands.
    """

    wanted: EffectiveParameters
    of_kernel: tuple[Any, ...]
    seen: int
    one_by_one: bool
    limit: float = float(near_copies.OFF)
    widest: int = 0
    roomier: "QueryPlan | None" = None
    wider: "QueryPlan | None" = None
    # What every answer to these parameters says.
    warnings: tuple[WarningInfo, ...] = ()

    @classmethod
    def of(
        cls,
        wanted: EffectiveParameters,
        metric: Metric,
        points: int,
        *,
        at_least: int = 0,
        most: int | None = None,
        grow: bool = True,
    ) -> "QueryPlan":
        """Return the plan that answers; `at_least` of the `points` hashed are found.

        `most`: candidates that a pool may grow to; `grow`: whether it may.
        """
        seen = min(wanted.candidates_limit or points, wanted.hash_limit or points, points)
        limit, widest = _limit(wanted.duplicate_threshold, metric), seen
        if limit >= 0:
            room = min(POOL_WORK // wanted.k, points if most is None else most)
            widest = min(POOL_GROWTH * seen, points, max(seen, room))
            seen = min(widest, wanted.hash_limit or points) if grow else seen
        # All selectors are plain nearest neighbours at 0, but those that the paper prints.
        printed = wanted.selector in {"greedy", "qp_relax"} and wanted.variant == "printed"
        relevance_alone = np.float32(1 - wanted.diversity) == 1
        at_zero = wanted.has_fixed_dial and relevance_alone
        nearest = wanted.selector == "nearest" or (at_zero and not printed)
        # A bound on the loss needs to know which candidates near-copies leave.
        apart = wanted.selector in ONE_BY_ONE or wanted.lose_at_most is not None
        one_by_one = apart and not nearest
        step = query.CANDIDATES if one_by_one else query.GREEDY
        effective = wanted
        if nearest:
            step = query.NEAREST
        if nearest and limit >= 0:
            # The nearest of those that differ are what greedy picks by relevance alone.
            step = query.GREEDY
            effective = replace(wanted, selector="greedy", variant="corrected", diversity=0.0)
        of_kernel = _of_kernel(effective, metric, step, at_least, (np.float32(limit), seen))
        return cls(wanted, of_kernel, seen, one_by_one or wanted.list_collapsed, limit, widest)

    @classmethod
    def of_hashed(cls, wanted: EffectiveParameters, metric: Metric) -> "QueryPlan":
        """Return the plan that gives the hashed points themselves."""
        of_kernel = _of_kernel(wanted, metric, query.HASHED, 0, (near_copies.OFF, 0))
        return cls(wanted, of_kernel, 0, one_by_one=False)


def _of_kernel(
    wanted: EffectiveParameters,
    metric: Metric,
    step: int,
    at_least: int,
    collapsing: tuple[np.float32, int],
) -> tuple[Any, ...]:
    limit = wanted.max_distance
    return (
        _SEARCHES[wanted.search],
        wanted.n_probes,
        at_least,
        wanted.k,
        wanted.hash_limit,
        wanted.candidates_limit,
        np.float32(np.inf if limit is None else within_float32(limit + _ROUNDING)),
        step,
        np.float32(1 - wanted.diversity),
        rule_of(wanted),
        wanted.sampling == "uniform",
        np.uint64(wanted.seed),
        metric == "inner_product",
        METRICS[metric],
        *collapsing,
        choice_of(wanted),
        factor_of(wanted),
    )


def _limit(threshold: float | None, metric: Metric) -> float:
    """Return how far apart near-copies are at most, in the unit of `kernels.pairs`."""
    if threshold is None:
        return float(near_copies.OFF)
    if metric == "euclidean":
        return float(within_float32(threshold))
    return max(0.0, (1 - threshold) * (2 if metric == "cosine" else 1)) + _SAME
