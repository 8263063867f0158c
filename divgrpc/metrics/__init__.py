"""Metrics of query results and of predicted labels, and statistics that compare methods.

    points = PointCategories.of(categories, subtopics)
    judged = judge(result.ids, query_categories, points)
    measure(judged)["h_score"]       # one value per query
    mean(h_score(judged))            # their mean

Most metrics take judged results and return one float64 per query. NaN means that the metric does
not apply to the query. Means and intervals skip queries with NaN.

All measures of quality belong in this package. The package may import numpy, `divgrpc.types` and
`divgrpc.errors`, but not scipy or numba, because clients use the package without these two.
"""

from divgrpc.metrics.attributes import value_entropy
from divgrpc.metrics.comparing import (
    gain_share,
    gain_share_interval,
    gap_closed,
    holm,
    mean,
    mean_intervals,
    paired_tests,
    pareto_front,
    ratio_intervals,
)
from divgrpc.metrics.distances import ListDistances, list_distances, objective, pair_distances
from divgrpc.metrics.hierarchy import LabelTree
from divgrpc.metrics.judging import (
    Judged,
    Labels,
    PointCategories,
    Topics,
    Values,
    judge,
    judge_relevant,
)
from divgrpc.metrics.labelling import (
    JudgedLabels,
    coverage_at,
    inverse_propensities,
    measure_labels,
    ndcg_at,
    precision_at,
    propensity_gains,
    propensity_scored_at,
    recall_at,
    set_f_score,
    set_precision,
    set_recall,
)
from divgrpc.metrics.measures import (
    alpha_ndcg,
    average_precision,
    err_ia,
    f_score,
    h_of_means,
    h_score,
    harmonic_mean,
    majority_accuracy,
    measure,
    n_call,
    normalised_entropy,
    precision,
    recall,
    reciprocal_rank,
    subtopic_recall,
)
from divgrpc.metrics.recomputing import Recomputed, recompute_picks
from divgrpc.types import Interval

__all__ = [
    "Interval",
    "Judged",
    "JudgedLabels",
    "LabelTree",
    "Labels",
    "ListDistances",
    "PointCategories",
    "Recomputed",
    "Topics",
    "Values",
    "alpha_ndcg",
    "average_precision",
    "coverage_at",
    "err_ia",
    "f_score",
    "gain_share",
    "gain_share_interval",
    "gap_closed",
    "h_of_means",
    "h_score",
    "harmonic_mean",
    "holm",
    "inverse_propensities",
    "judge",
    "judge_relevant",
    "list_distances",
    "majority_accuracy",
    "mean",
    "mean_intervals",
    "measure",
    "measure_labels",
    "n_call",
    "ndcg_at",
    "normalised_entropy",
    "objective",
    "pair_distances",
    "paired_tests",
    "pareto_front",
    "precision",
    "precision_at",
    "propensity_gains",
    "propensity_scored_at",
    "ratio_intervals",
    "recall",
    "recall_at",
    "reciprocal_rank",
    "recompute_picks",
    "set_f_score",
    "set_precision",
    "set_recall",
    "subtopic_recall",
    "value_entropy",
]
