"""What an evaluation says of each setting: figures with intervals, and times."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types.words import EffectiveLabelParameters, EffectiveParameters, IntArray, Search


class Interval(NamedTuple):
    """A figure with its 95 % interval; NaN where it is of no query."""

    value: float
    low: float
    high: float


class Microseconds(NamedTuple):
    """How long a query took, one at a time on one thread: the mean and three percentiles."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateRow:
    """One setting, or one choice by folds among several, and what it reached.

    `number` counts the rows from 0 up; `generation` answered every query. `search` is the one asked
    for, `parameters.search` what it came to. `metrics` are means over the queries to which they
    apply, by the names of `divgrpc.metrics.measure` and, from `divgrpc.metrics.list_distances`,
    `query_distance`, `ilad`, `ilmd` and `objective`. `queries` were asked; `empty` of them got
    nothing, `short` fewer than k. `on_front`: no other setting of this k has more h in less time
    (p50).

    A choice has `by_fold`, the number of the row at which each fold of the queries is reported: the
    one with the greatest mean h on the other folds. Its `parameters` are those best on all
    queries, for use on others; `is_default` says that they are the index's default for Query now.

    `values`, where asked for, are the numbers per query that `metrics` are the means of, (nq,)
    float64 each, NaN where a metric does not apply.
    """

    number: int
    generation: int
    search: Search
    parameters: EffectiveParameters
    metrics: dict[str, Interval]
    h_of_means: float
    microseconds: Microseconds
    queries: int
    empty: int
    short: int
    on_front: bool = False
    by_fold: tuple[int, ...] = ()
    is_default: bool = False
    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateLabelRow:
    """One setting, or one choice by folds among several, and the labels it predicted.

    `number`, `generation`, `search`, `on_front` and `by_fold` are as in `EvaluateRow`, with the
    `goal` in place of h: `h_score` where there is a hierarchy, else `f_score`. `metrics` are means
    over the documents of what `divgrpc.metrics.measure_labels` gives, of the sets that were
    predicted; `drank` and `h_score` are NaN without a hierarchy. `precision_at`, `recall_at` and
    `ndcg_at` are means over documents for k from 1 to top_k; `propensity_scored_at` is of sums, and
    empty where the index does not know how frequent labels are. `coverage_at` has no interval: a
    label that is drawn twice is found once. `documents` were asked; `empty` of them got no label,
    `short` fewer than top_k. `scored`: points scored exactly, labels or neighbours, the mean.
    `is_default`: the threshold of this choice is kept with the index now, for its mode.

    `values`, where asked for, are the numbers per document, (nq,) float64 each, and `labels` (nq,
    top_k) int64 those that it got, in the order in which they were picked, -1 for none.
    """

    number: int
    generation: int
    search: Search
    parameters: EffectiveLabelParameters
    goal: Literal["h_score", "f_score"]
    metrics: dict[str, Interval]
    precision_at: tuple[Interval, ...]
    recall_at: tuple[Interval, ...]
    ndcg_at: tuple[Interval, ...]
    propensity_scored_at: tuple[Interval, ...]
    coverage_at: tuple[float, ...]
    h_of_means: float
    microseconds: Microseconds
    documents: int
    empty: int
    short: int
    scored: float
    on_front: bool = False
    by_fold: tuple[int, ...] = ()
    is_default: bool = False
    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    labels: IntArray | None = None
