"""Intervals and tests of a mean over queries and over several draws of the hash functions.

The mean varies with the queries and with the hash functions. Its variance is estimated as the
variance over queries plus the variance over draws. This is two-way clustering (Cameron, Gelbach and
Miller, "Robust inference with multiway clustering", Journal of Business & Economic Statistics 29,
2011) without the term that they subtract, so intervals are more likely too wide than too narrow.
`divgrpc.metrics` computes both variances and their degrees of freedom (CR2 for groups of queries).

An interval has the half width sqrt(t_q^2 v_q + t_d^2 v_d), where v is the variance and t the
critical value for the queries (q) and the draws (d) (Banerjee, "Approximate confidence interval for
linear functions of means of k populations when the population variances are not equal", Sankhya 22,
1960). It covers the mean at least as often as it states. Satterthwaite's method would give the sum
of both variances too many degrees of freedom for the small p values that Holm's correction needs,
because the variance over a few draws has few degrees of freedom.
"""

from math import log
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import t as student

from divgrpc.metrics import Values, mean_intervals, paired_tests
from divgrpc.metrics.comparing import ratios_of_sums, without_nan
from divgrpc.types import Interval

# The least p value that is computed; smaller ones are returned as 0.
_P_MIN: Final = 1e-30


class Mean(NamedTuple):
    """A mean with its 95 % interval, and the p value of the hypothesis that it is zero."""

    size: Interval
    p: float


def mean_over_draws(values: Values, groups: npt.ArrayLike | None = None) -> Mean:
    """Return the mean of `values` (draws, nq) float64.

    groups: (nq,) whole numbers, the group of each query; by default each query is its own group.

    With one draw, only queries vary. Queries with a NaN are skipped. With fewer than two groups the
    interval and p are NaN.
    """
    applies = ~np.isnan(values).any(axis=0)
    values = values[:, applies]
    numbers = np.arange(applies.sum()) if groups is None else np.asarray(groups)[applies]
    by_query = values.mean(axis=0)[:, None]
    [size] = mean_intervals(by_query, numbers)
    if len(values) == 1 or np.isnan(size.low):
        return Mean(size, float(paired_tests(by_query, numbers)[0]))
    by_draw = values.mean(axis=1)[:, None]
    parts = [ratios_of_sums(*without_nan(by_query), numbers), ratios_of_sums(*without_nan(by_draw))]
    variances = np.array([float(part.errors[0]) ** 2 for part in parts])
    degrees = np.array([float(part.degrees[0]) for part in parts])

    def width(p: float) -> float:
        return float((student.isf(p / 2, degrees) ** 2 * variances).sum() ** 0.5)

    size = Interval(size.value, size.value - width(0.05), size.value + width(0.05))
    distance = abs(size.value)
    if distance >= width(_P_MIN):
        return Mean(size, 1.0 if distance == 0 else 0.0)
    return Mean(size, float(np.exp(brentq(lambda x: width(np.exp(x)) - distance, log(_P_MIN), 0))))
