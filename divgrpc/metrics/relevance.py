"""Is it what was asked for: precision, recall, ranks, and what most results say.

All are of the first k places, all of them; (nq,) float64 in 0 to 1. As `ir_measures` has them:
P@k, R@k, SetF, AP@k, RR and Success@k.
"""

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics.judging import Judged, Values, earlier_and_total


def precision(judged: Judged) -> Values:
    """Return the share of the k places with a relevant result; places not filled count as wrong."""
    return np.asarray(judged.relevant.mean(axis=1))


def recall(judged: Judged) -> Values:
    """Return the share of all relevant points that was found; 1 is out of reach above k of them."""
    return np.asarray(judged.relevant.sum(axis=1) / judged.relevant_total)


def f_score(judged: Judged) -> Values:
    """Return the harmonic mean of precision (over k) and recall, 0 without a relevant result."""
    return harmonic_mean(precision(judged), recall(judged))


def average_precision(judged: Judged) -> Values:
    """Return the mean over *all* relevant points of the precision where each was found, else 0.

    It reaches 1 only where there are at most k relevant points, as trec_eval's map_cut has it.
    """
    at_rank = judged.relevant.cumsum(axis=1) / _ranks(judged)
    return np.asarray((at_rank * judged.relevant).sum(axis=1) / judged.relevant_total)


def reciprocal_rank(judged: Judged) -> Values:
    """Return one over the rank of the first relevant result, 0 without one."""
    return np.asarray(np.where(judged.relevant, 1 / _ranks(judged), 0.0).max(axis=1))


def n_call(judged: Judged, n: int) -> Values:
    """Return 1 where at least `n` results are relevant, else 0; n from 1 to k.

    Chen and Karger, "Less is more" (SIGIR 2006), where it is called k-call at n.
    """
    if not 1 <= n <= judged.k:
        raise InvalidArgumentError("n", f"n must be between 1 and k = {judged.k}, got {n}")
    return np.asarray(judged.relevant.sum(axis=1) >= n, np.float64)


def majority_accuracy(judged: Judged) -> Values:
    """Return 1 where the category that most results have is the one asked for, else 0.

    Goal (a) of the paper's section 3. Of equally frequent categories the one whose first result
    comes first is taken; a result without a category has no say, and where none has a say that is
    wrong. Judged by relevant ids, the two categories are relevant and not.
    """
    _, total = earlier_and_total(judged.categories)
    said = np.take_along_axis(judged.categories, total.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.asarray(said == judged.asked, np.float64)


def harmonic_mean(a: Values, b: Values) -> Values:
    """Return 2ab / (a + b) for numbers from 0 up, 0 where both are 0, NaN where one is."""
    total = a + b
    return np.asarray(2 * a * b / np.where(total == 0, 1.0, total), np.float64)


def _ranks(judged: Judged) -> Values:
    return np.arange(1, judged.k + 1, dtype=np.float64)
