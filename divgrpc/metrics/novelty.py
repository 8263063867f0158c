"""Diversity of results: sub-topics among the relevant results, and the h-score.

Each metric is (nq,) float64. It is NaN if the relevant points of the query have no sub-topic; D and
h are NaN if they have just one. Sub-topics of results that are not relevant do not count.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.metrics.comparing import mean
from divgrpc.metrics.judging import Judged, Values, earlier_and_total
from divgrpc.metrics.relevance import harmonic_mean, precision


def subtopic_recall(judged: Judged) -> Values:
    """Return the share of the query's sub-topics that its relevant results have, 0 to 1.

    Zhai, Cohen and Lafferty, "Beyond independent relevance" (SIGIR 2003). The paper's column SR;
    strec of ndeval.
    """
    earlier, _ = earlier_and_total(judged.subtopics)
    first = (judged.subtopics >= 0) & (earlier == 0)
    return _over(first.sum(axis=1), judged.depths[:, 0])


def normalised_entropy(judged: Judged) -> Values:
    """Return D, 0 to 1: the entropy of the relevant results' sub-topics, over log m.

    The query has m sub-topics. D is 0 without a relevant result. The definition follows the paper's
    section "Evaluation Criteria", with the minus sign added, and with shares of the relevant
    results instead of all k results: the latter cannot reach the values in the paper's tables.
    """
    _, total = earlier_and_total(judged.subtopics)
    real = judged.subtopics >= 0
    count = np.maximum(real.sum(axis=1), 1)
    # Each result contributes its part of s log s.
    parts = np.log(np.where(real, total, count[:, None]) / count[:, None])
    # 0.0 - x, because -x would be minus zero for a single sub-topic.
    entropy = 0.0 - parts.sum(axis=1) / count
    subtopic_counts = np.maximum(judged.depths[:, 0], 1)
    return np.minimum(1.0, _over(entropy, np.log(subtopic_counts)))


def h_score(judged: Judged) -> Values:
    """Return h, 0 to 1: the harmonic mean of `precision` and D = `normalised_entropy`.

    h is 0 if both are 0. Report its mean over queries: the formula in the paper's section
    "Combining Accuracy and Diversity" is a sum, but the paper's tables hold means.
    """
    return harmonic_mean(precision(judged), normalised_entropy(judged))


def h_of_means(judged: Judged) -> float:
    """Return the harmonic mean of mean precision and mean D, over the queries that have a D.

    This is not the h-score, and is never below the mean h. It serves readers who compute h from the
    two means of a table.
    """
    entropy = normalised_entropy(judged)
    applies = ~np.isnan(entropy)
    means = np.array([[mean(precision(judged)[applies])], [mean(entropy[applies])]])
    return float(harmonic_mean(*means)[0])


def alpha_ndcg(judged: Judged, alpha: float = 0.5) -> Values:
    """Return alpha-nDCG@k, 0 to 1: the gain of a sub-topic's j-th result is (1 - alpha)^(j - 1).

    Clarke et al., "Novelty and diversity in information retrieval evaluation" (SIGIR 2008), with
    the discount log2(1 + rank). The divisor, the best list at k, is exact, because a point has at
    most one sub-topic. `alpha` is from 0 to 1. Raises `InvalidArgumentError` with the field alpha.
    """
    discounts = 1 / np.log2(np.arange(2, judged.k + 2))
    gained = (_gains(judged, alpha) * discounts).sum(axis=1)
    # The best list has one result of every sub-topic first, then a second result of each, ...
    ends = np.minimum(judged.depths.cumsum(axis=1), judged.k)
    sums = np.concatenate([[0.0], discounts.cumsum()])[ends]
    rounds = np.diff(sums, axis=1, prepend=0.0)
    return _over(gained, (rounds * (1.0 - alpha) ** np.arange(judged.k)).sum(axis=1))


def err_ia(judged: Judged, alpha: float = 0.5) -> Values:
    """Return the intent-aware expected reciprocal rank at k, 0 to 1, with equal sub-topics.

    Chapelle et al., "Expected reciprocal rank for graded relevance" (CIKM 2009). As in ndeval of
    TREC, the divisor is the value of results that all have every sub-topic, so results with one
    sub-topic each stay far below 1. `alpha`, from 0 to 1, is the probability that a relevant result
    ends the search. Raises `InvalidArgumentError` with the field alpha.
    """
    places = np.arange(judged.k)
    gained = (_gains(judged, alpha) / (places + 1)).sum(axis=1)
    best = ((1.0 - alpha) ** places / (places + 1)).sum()
    return _over(gained / best, judged.depths[:, 0])


def _gains(judged: Judged, alpha: float) -> Values:
    """Return (nq, k): (1 - alpha)^j for a sub-topic that occurs j times before, 0 without one."""
    if not 0 <= alpha <= 1:
        raise invalid("alpha", f"must be between 0 and 1, got {alpha}")
    earlier, _ = earlier_and_total(judged.subtopics)
    return np.where(judged.subtopics >= 0, (1.0 - alpha) ** earlier.astype(np.float64), 0.0)


def _over(values: npt.NDArray[Any], divisors: npt.NDArray[Any]) -> Values:
    """Return values / divisors, NaN where a divisor is not above 0."""
    return np.where(divisors > 0, values / np.where(divisors > 0, divisors, 1), np.nan)
