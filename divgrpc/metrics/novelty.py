"""Is it different: sub-topics among the relevant results, and the trade with precision.

Each is (nq,) float64, NaN where the query's relevant points have no sub-topics at all, or (D and h)
just one: diversity means nothing there. Sub-topics of results that are not relevant count for
nothing.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics.comparing import mean
from divgrpc.metrics.judging import Judged, Mask, Values, earlier_and_total
from divgrpc.metrics.relevance import harmonic_mean, precision


def subtopic_recall(judged: Judged) -> Values:
    """Return the share of the query's sub-topics among the relevant results (SR, strec), 0 to 1.

    Zhai, Cohen and Lafferty, "Beyond independent relevance" (SIGIR 2003). The paper's column SR.
    """
    seen, _ = _novelty(judged)
    return _over((seen == 0).sum(axis=1), judged.depths[:, 0])


def normalised_entropy(judged: Judged) -> Values:
    """Return D, the entropy of the relevant results' sub-topics over log m, m sub-topics; 0 to 1.

    0 without a relevant result. The paper's "Evaluation Criteria", with a minus sign, and with
    shares of the relevant results instead of all k: those could not reach what its tables print.
    """
    _, total = earlier_and_total(judged.subtopics)
    real = judged.subtopics >= 0
    count = np.maximum(real.sum(axis=1), 1)
    # Each result brings its part of s log s.
    parts = np.log(np.where(real, total, count[:, None]) / count[:, None])
    # Not minus zero where there is one sub-topic alone.
    entropy = 0.0 - parts.sum(axis=1) / count
    most = judged.depths[:, 0]
    return np.minimum(1.0, _over(entropy, np.log(np.maximum(most, 1))))


def h_score(judged: Judged) -> Values:
    """Return each query's h, the harmonic mean of precision and D, 0 where both are; 0 to 1.

    What is reported is their mean over queries: the paper ("Combining Accuracy and Diversity")
    prints a sum, but its tables hold means.
    """
    return harmonic_mean(precision(judged), normalised_entropy(judged))


def h_of_means(judged: Judged) -> float:
    """Return the harmonic mean of mean precision and mean D, over the queries that have a D.

    It is never below the mean h. Beside it because tables are read so; it is not the h-score.
    """
    entropy = normalised_entropy(judged)
    own = ~np.isnan(entropy)
    means = np.array([[mean(precision(judged)[own])], [mean(entropy[own])]])
    return float(harmonic_mean(*means)[0])


def alpha_ndcg(judged: Judged, alpha: float = 0.5) -> Values:
    """Return alpha-nDCG@k, 0 to 1: a sub-topic seen j times before gains (1 - alpha)^j.

    Clarke et al., "Novelty and diversity in information retrieval evaluation" (SIGIR 2008), with
    the discount log2(1 + rank). The best list at k, which it is divided by, is exact: a point has
    one sub-topic at most. `alpha` is from 0 to 1.
    """
    seen, real = _novelty(judged)
    keep = _keep(alpha)
    discounts = 1 / np.log2(np.arange(2, judged.k + 2))
    gained = (np.where(real, keep ** np.maximum(seen, 0), 0.0) * discounts).sum(axis=1)
    # The best list takes a point of every sub-topic, then a second of each that has one, ...
    ends = np.minimum(judged.depths.cumsum(axis=1), judged.k)
    upto = np.concatenate([[0.0], discounts.cumsum()])[ends]
    each = np.diff(upto, axis=1, prepend=0.0)
    return _over(gained, (each * keep ** np.arange(judged.k)).sum(axis=1))


def err_ia(judged: Judged, alpha: float = 0.5) -> Values:
    """Return the intent-aware expected reciprocal rank at k, 0 to 1; sub-topics weigh the same.

    Chapelle et al., "Expected reciprocal rank for graded relevance" (CIKM 2009). As TREC's ndeval
    has it: divided by what results would reach that each had *every* sub-topic, so points of one
    sub-topic stay far below 1. `alpha`, from 0 to 1, is the chance that a relevant result ends the
    search.
    """
    seen, real = _novelty(judged)
    keep, places = _keep(alpha), np.arange(judged.k)
    gained = (np.where(real, keep ** np.maximum(seen, 0), 0.0) / (places + 1)).sum(axis=1)
    best = (keep**places / (places + 1)).sum()
    return _over(gained / best, judged.depths[:, 0])


def _novelty(judged: Judged) -> tuple[Values, Mask]:
    """Return how often each result's sub-topic came before, -1 where it has none; and which do."""
    real = judged.subtopics >= 0
    earlier, _ = earlier_and_total(judged.subtopics)
    return np.where(real, earlier, -1).astype(np.float64), real


def _keep(alpha: float) -> float:
    if not 0 <= alpha <= 1:
        raise InvalidArgumentError("alpha", f"alpha must be between 0 and 1, got {alpha}")
    return 1.0 - alpha


def _over(values: npt.NDArray[Any], most: npt.NDArray[Any]) -> Values:
    """Divide by what is at most possible, NaN where that is nothing."""
    return np.where(most > 0, values / np.where(most > 0, most, 1), np.nan)
