"""Rows of evaluations: one per setting, with metrics, intervals and times."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types.words import EffectiveLabelParameters, EffectiveParameters, IntArray, Search


class Interval(NamedTuple):
    """A mean and its 95 % interval, NaN if the metric applies to no query."""

    value: float
    low: float
    high: float


class Microseconds(NamedTuple):
    """Times of single queries on one thread: the mean and three percentiles, in microseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateRow:
    """The results of one setting, or of a choice among settings by cross-validation.

    `number` counts the rows of an evaluation from 0 up. `generation` is the one that answered.
    `search` is the requested search, and `parameters.search` the one that `auto` resolved to.
    `queries` is the number of queries; `empty` of them got no results, and `short` fewer than k.

    `metrics` are means over the queries to which they apply. Their names are those of
    `divgrpc.metrics.measure` and, from `divgrpc.metrics.list_distances`, `query_distance`, `ilad`,
    `ilmd` and `objective`. `h_of_means` is the harmonic mean of mean precision and mean
    normalised entropy, which is at least the mean h. `on_front` is true if no other setting with
    this k has a greater h in a shorter median time.

    A choice has `by_fold`: for each fold of the queries, the number of the row with the greatest
    mean h on the other folds, which is used for this fold. Its `parameters` are the best on all
    queries. `is_default` is true if they are now the default of the index.

    `values` are the metrics of every query, on request: (nq,) float64 each, NaN where a metric does
    not apply.
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
    """The label predictions of one setting, or of a choice among settings by cross-validation.

    `number`, `generation`, `search`, `on_front` and `by_fold` are as in `EvaluateRow`, with `goal`
    in place of h: `h_score` if the index has a hierarchy, else `f_score`. `documents` is the number
    of documents; `empty` of them got no label, and `short` fewer than top_k. `scored` is the mean
    number of labels or neighbours that were scored exactly.

    `metrics` are means over the documents of the values of `divgrpc.metrics.measure_labels`;
    `drank` and `h_score` are NaN without a hierarchy. `precision_at`, `recall_at` and `ndcg_at` are
    means over the documents for k from 1 to top_k. `propensity_scored_at` is a ratio of sums, empty
    if the index does not store labels of points. `coverage_at` has no interval, because a document
    drawn twice covers no further label.

    `is_default` is true if the threshold of this choice is now the default of the index for its
    mode. On request `values` are the metrics of every document, (nq,) float64 each, and `labels`
    (nq, top_k) int64 its predictions in the order of selection, -1 for none.
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
