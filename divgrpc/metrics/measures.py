"""Metrics of judged results: relevance, diversity of sub-topics, and combinations of both.

Each metric is computed over all k ranks and returns (nq,) float64, 0 to 1. In the package
`ir_measures`, the relevance metrics are called P@k, R@k, SetF, AP@k, RR and (`n_call` with n = 1)
Success@k.

The diversity metrics count the sub-topics of relevant results. They are NaN if the relevant
points of the query have no sub-topic. D (`normalised_entropy`) and h (`h_score`) are also NaN if
these points have only one sub-topic.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.metrics.comparing import mean
from divgrpc.metrics.judging import Judged, Values, earlier_and_total


def precision(judged: Judged) -> Values:
    """Return the share of the k places that hold a relevant result."""
    return np.asarray(judged.relevant.mean(axis=1))


def recall(judged: Judged) -> Values:
    """Return the share of all relevant points that are results.

    Recall cannot reach 1 if the query has more than k relevant points.
    """
    return np.asarray(judged.relevant.sum(axis=1) / judged.relevant_total)


def f_score(judged: Judged) -> Values:
    """Return the harmonic mean of `precision` and `recall`, 0 if no result is relevant."""
    return harmonic_mean(precision(judged), recall(judged))


def average_precision(judged: Judged) -> Values:
    """Return the mean, over all relevant points of the query, of the precision at their ranks.

    A relevant point that is not a result contributes 0, as in map_cut of trec_eval. The mean cannot
    reach 1 if the query has more than k relevant points.
    """
    at_rank = judged.relevant.cumsum(axis=1) / _ranks(judged)
    return np.asarray((at_rank * judged.relevant).sum(axis=1) / judged.relevant_total)


def reciprocal_rank(judged: Judged) -> Values:
    """Return 1 / rank of the first relevant result, 0 if no result is relevant."""
    return np.asarray(np.where(judged.relevant, 1 / _ranks(judged), 0.0).max(axis=1))


def n_call(judged: Judged, n: int) -> Values:
    """Return 1 if at least `n` results are relevant, else 0.

    Chen and Karger, "Less is more" (SIGIR 2006), call this metric k-call at n. Raises
    `InvalidArgumentError`, with the field n, unless `n` is from 1 to k.
    """
    if not 1 <= n <= judged.k:
        raise invalid("n", f"must be between 1 and k = {judged.k}, got {n}")
    return np.asarray(judged.relevant.sum(axis=1) >= n, np.float64)


def majority_accuracy(judged: Judged) -> Values:
    """Return 1 if the most frequent category among the results is the query's category, else 0.

    This is goal (a) of section 3 of the paper. Among equally frequent categories, the category that
    occurs first in the list wins. Results without a category are ignored. The value is 0 if no
    result has a category. If relevance is given by lists of ids, relevant results form one category
    and all other results form another.
    """
    _, total = earlier_and_total(judged.categories)
    majority = np.take_along_axis(judged.categories, total.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.asarray(majority == judged.asked, np.float64)


def subtopic_recall(judged: Judged) -> Values:
    """Return the share of the query's sub-topics that occur among its relevant results, 0 to 1.

    Zhai, Cohen and Lafferty, "Beyond independent relevance" (SIGIR 2003). The paper's tables have
    this metric in the column SR, and ndeval calls it strec.
    """
    earlier, _ = earlier_and_total(judged.subtopics)
    first = (judged.subtopics >= 0) & (earlier == 0)
    return _over(first.sum(axis=1), judged.depths[:, 0])


def normalised_entropy(judged: Judged) -> Values:
    """Return D, 0 to 1: the normalised entropy of the sub-topics of the relevant results.

    The entropy is divided by log m, where m is the number of the query's sub-topics. D is 0 if no
    result is relevant.

    The definition follows the paper's section "Evaluation Criteria" with two changes. It adds the
    missing minus sign. It also uses the shares of sub-topics among the relevant results, because
    the shares among all k results cannot reach the values in the paper's tables.
    """
    _, total = earlier_and_total(judged.subtopics)
    real = judged.subtopics >= 0
    count = np.maximum(real.sum(axis=1), 1)
    # The `parts` of a sub-topic add up to count * s * log(s), where s is its share of the relevant
    # results.
    parts = np.log(np.where(real, total, count[:, None]) / count[:, None])
    # `0.0 - x` because `-x` would be minus zero for a single sub-topic.
    entropy = 0.0 - parts.sum(axis=1) / count
    subtopic_counts = np.maximum(judged.depths[:, 0], 1)
    return np.minimum(1.0, _over(entropy, np.log(subtopic_counts)))


def h_score(judged: Judged) -> Values:
    """Return h, 0 to 1: the harmonic mean of `precision` and D, the `normalised_entropy`.

    h is 0 if both are 0. Report the mean of h over queries. The formula in the paper's section
    "Combining Accuracy and Diversity" is a sum over queries, but the paper's tables hold means.
    """
    return harmonic_mean(precision(judged), normalised_entropy(judged))


def h_of_means(judged: Judged) -> float:
    """Return the harmonic mean of the mean precision and the mean D.

    The means are over the queries whose D is not NaN. The result is an upper bound on the mean
    `h_score`. Readers get this value if they compute h from the means in a table.
    """
    entropy = normalised_entropy(judged)
    applies = ~np.isnan(entropy)
    return harmonic_mean_of_means(precision(judged)[applies], entropy[applies])


def alpha_ndcg(judged: Judged, alpha: float = 0.5) -> Values:
    """Return alpha-nDCG@k, 0 to 1.

    The j-th result of a sub-topic has a gain of (1 - alpha)^(j - 1), divided by log2(1 + rank). The
    sum of these gains is divided by the sum for the best list of k points. This divisor is exact,
    because a point has at most one sub-topic.

    Clarke et al., "Novelty and diversity in information retrieval evaluation" (SIGIR 2008).

    Raises `InvalidArgumentError`, with the field alpha, unless `alpha` is from 0 to 1.
    """
    discounts = 1 / np.log2(np.arange(2, judged.k + 2))
    gains = (_gains(judged, alpha) * discounts).sum(axis=1)
    # The best list has one result of every sub-topic, then a second result of each, and so on.
    ends = np.minimum(judged.depths.cumsum(axis=1), judged.k)
    sums = np.concatenate([[0.0], discounts.cumsum()])[ends]
    rounds = np.diff(sums, axis=1, prepend=0.0)
    return _over(gains, (rounds * (1.0 - alpha) ** np.arange(judged.k)).sum(axis=1))


def err_ia(judged: Judged, alpha: float = 0.5) -> Values:
    """Return the intent-aware expected reciprocal rank at k, 0 to 1.

    All sub-topics have equal weight. `alpha` is the probability that a relevant result satisfies
    the user, who then stops reading. As in TREC's ndeval, the value is divided by the value of a
    list in which every result has every sub-topic. Here a result has at most one sub-topic, so the
    value stays below 1 if the query has several sub-topics.

    Chapelle et al., "Expected reciprocal rank for graded relevance" (CIKM 2009).

    Raises `InvalidArgumentError`, with the field alpha, unless `alpha` is from 0 to 1.
    """
    places = np.arange(judged.k)
    gains = (_gains(judged, alpha) / (places + 1)).sum(axis=1)
    best = ((1.0 - alpha) ** places / (places + 1)).sum()
    return _over(gains / best, judged.depths[:, 0])


def _gains(judgments: Judged, alpha: float) -> Values:
    """Return the gain of each place, (nq, k).

    The gain is (1 - alpha)^j if the result's sub-topic occurs at j earlier places, and 0 if the
    result has no sub-topic.
    """
    if not 0 <= alpha <= 1:
        raise invalid("alpha", f"must be between 0 and 1, got {alpha}")
    earlier, _ = earlier_and_total(judgments.subtopics)
    return np.where(judgments.subtopics >= 0, (1.0 - alpha) ** earlier.astype(np.float64), 0.0)


def _over(values: npt.NDArray[Any], divisors: npt.NDArray[Any]) -> Values:
    """Return values / divisors, with NaN for divisors that are not positive."""
    return np.where(divisors > 0, values / np.where(divisors > 0, divisors, 1), np.nan)


def harmonic_mean_of_means(a: Values, b: Values) -> float:
    """Return the harmonic mean of the means of two columns (nq,)."""
    return float(harmonic_mean(np.array([mean(a)]), np.array([mean(b)]))[0])


def harmonic_mean(a: Values, b: Values) -> Values:
    """Return 2ab / (a + b) for numbers from 0 up; 0 if both are 0, NaN if either is NaN."""
    total = a + b
    return np.asarray(2 * a * b / np.where(total == 0, 1.0, total), np.float64)


def _ranks(judgments: Judged) -> Values:
    return np.arange(1, judgments.k + 1, dtype=np.float64)


# The metrics by name. `one_call` is 1 if any result is relevant, and `n_call` if all k are.
MEASURES: Final[dict[str, Callable[[Judged], Values]]] = {
    "precision": precision,
    "recall": recall,
    "f_score": f_score,
    "average_precision": average_precision,
    "reciprocal_rank": reciprocal_rank,
    "one_call": lambda judged: n_call(judged, 1),
    "n_call": lambda judged: n_call(judged, judged.k),
    "majority_accuracy": majority_accuracy,
    "subtopic_recall": subtopic_recall,
    "normalised_entropy": normalised_entropy,
    "h_score": h_score,
    "alpha_ndcg": alpha_ndcg,
    "err_ia": err_ia,
}


def measure(judged: Judged) -> dict[str, Values]:
    """Return all metrics in `MEASURES` by name, (nq,) float64 each."""
    return {name: metric(judged) for name, metric in MEASURES.items()}
