"""The result rows of evaluations."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types.parameters import EffectiveLabelParameters, EffectiveParameters, IntArray, Search


class Interval(NamedTuple):
    """The mean of a metric, and the ends of its 95 % interval over groups of queries.

    All three are NaN if the metric applies to no query. The ends are NaN if the metric applies to
    queries of one group only.
    """

    value: float
    low: float
    high: float


class Microseconds(NamedTuple):
    """Mean and percentiles of the times of single queries on one thread, in microseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateRow:
    """The results of one setting, or of a choice among settings by cross-validation.

    The h of a query is the harmonic mean of its precision and its normalised entropy of sub-topics.

    number: number of the row in the evaluation, from 0 up.
    generation: generation of the index that answered the queries.
    search: search of the setting. If it is `auto`, `parameters.search` is the search that was used.
    parameters: parameters of the setting. A choice has the parameters of the setting with the
        greatest mean h over all queries.
    metrics: means over the queries to which the metric applies. The names are those of
        `divgrpc.metrics.measure`, and `query_distance`, `ilad`, `ilmd` and `objective` from
        `divgrpc.metrics.list_distances`.
    h_of_means: harmonic mean of mean precision and mean normalised entropy, at least the mean h.
    microseconds: times of single queries.
    queries: number of queries.
    empty: number of queries without results.
    short: number of queries with fewer than k results.
    on_front: whether the setting is on the Pareto front of mean h and median time, among the
        settings with the same k.
    values: metrics of every query if the caller requested them, (nq,) float64 each. A value is NaN
        if the metric does not apply to the query.
    by_fold: for each fold of the queries, the number of the setting with the greatest mean h on the
        other folds. In `metrics`, the queries of the fold have their values at this setting. Empty
        unless the row is a choice.
    is_default: whether this choice is now the default of the index. Such a row comes after the rows
        of all choices. In its `metrics`, the queries of each fold have their values at the setting
        that would be the default if only the other folds existed.
    epsilon: epsilon of the setting, from which `parameters.hash_limit` is computed, or None.
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
    epsilon: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateLabelRow:
    """The label predictions of one setting, or of a choice among settings by cross-validation.

    number, generation, search, parameters, on_front, by_fold: as in `EvaluateRow`, with `goal`
        instead of h.
    goal: `h_score` if the index has a hierarchy, else `f_score`.
    metrics: means over the documents of the values of `divgrpc.metrics.measure_labels`. `drank` and
        `h_score` are NaN if the index has no hierarchy.
    precision_at, recall_at, ndcg_at: means over the documents for k from 1 to top_k.
    propensity_scored_at: ratios of sums over the documents for k from 1 to top_k. Empty if the
        points of the index have no labels.
    coverage_at: coverage for k from 1 to top_k, without intervals, because it is not a mean.
    h_of_means: harmonic mean of mean precision and mean drank.
    microseconds: times of single documents.
    documents: number of documents.
    empty: number of documents without predicted labels.
    short: number of documents with fewer than top_k labels.
    scored: mean number of labels or neighbours that were scored exactly.
    is_default: whether the threshold of this row is now the default of the index for the mode of
        the row. Such rows come last and have metrics as in `EvaluateRow`.
    values: metrics of every document if the caller requested them, (nq,) float64 each.
    labels: (nq, top_k) int64 if the caller requested them: the predicted labels of every document
        in the order of selection, padded with -1.
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
