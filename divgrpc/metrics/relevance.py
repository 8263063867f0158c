"""Relevance of results: precision, recall, ranks, and the majority's category.

Each metric covers all k places and is (nq,) float64, 0 to 1. `ir_measures` calls them P@k, R@k,
SetF, AP@k, RR and Success@k.
"""

import numpy as np

from divgrpc.errors import invalid
from divgrpc.metrics.judging import Judged, Values, earlier_and_total


def precision(judged: Judged) -> Values:
    """Return the share of the k places with a relevant result; an empty place counts as wrong."""
    return np.asarray(judged.relevant.mean(axis=1))


def recall(judged: Judged) -> Values:
    """Return the share of all relevant points that are results; below 1 if more than k exist."""
    return np.asarray(judged.relevant.sum(axis=1) / judged.relevant_total)


def f_score(judged: Judged) -> Values:
    """Return the harmonic mean of `precision` and `recall`, 0 without a relevant result."""
    return harmonic_mean(precision(judged), recall(judged))


def average_precision(judged: Judged) -> Values:
    """Return the mean, over all relevant points, of the precision at the rank of each.

    A relevant point that is not a result contributes 0, as in map_cut of trec_eval. The mean
    reaches 1 only if at most k points are relevant.
    """
    at_rank = judged.relevant.cumsum(axis=1) / _ranks(judged)
    return np.asarray((at_rank * judged.relevant).sum(axis=1) / judged.relevant_total)


def reciprocal_rank(judged: Judged) -> Values:
    """Return 1 / rank of the first relevant result, 0 without one."""
    return np.asarray(np.where(judged.relevant, 1 / _ranks(judged), 0.0).max(axis=1))


def n_call(judged: Judged, n: int) -> Values:
    """Return 1 if at least `n` results are relevant, else 0; `n` is from 1 to k.

    Chen and Karger, "Less is more" (SIGIR 2006), call it k-call at n. Raises `InvalidArgumentError`
    with the field n.
    """
    if not 1 <= n <= judged.k:
        raise invalid("n", f"must be between 1 and k = {judged.k}, got {n}")
    return np.asarray(judged.relevant.sum(axis=1) >= n, np.float64)


def majority_accuracy(judged: Judged) -> Values:
    """Return 1 if the most frequent category of the results is that of the query, else 0.

    This is goal (a) of section 3 of the paper. Of equally frequent categories the one that occurs
    first counts. A result without a category does not count; without any category the value is 0.
    With lists of relevant ids the two categories are relevant and not relevant.
    """
    _, total = earlier_and_total(judged.categories)
    majority = np.take_along_axis(judged.categories, total.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.asarray(majority == judged.asked, np.float64)


def harmonic_mean(a: Values, b: Values) -> Values:
    """Return 2ab / (a + b) for numbers from 0 up: 0 if both are 0, NaN if one is NaN."""
    total = a + b
    return np.asarray(2 * a * b / np.where(total == 0, 1.0, total), np.float64)


def _ranks(judged: Judged) -> Values:
    return np.arange(1, judged.k + 1, dtype=np.float64)
