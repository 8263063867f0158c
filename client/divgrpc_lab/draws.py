"""Intervals and tests of a mean over queries and over several draws of the hash functions.

The mean varies with the queries and with the hash functions. Its variance is estimated as the
variance over queries plus the variance over draws. This is two-way clustering (Cameron, Gelbach and
Miller, "Robust inference with multiway clustering", Journal of Business & Economic Statistics 29,
2011) without the term that they subtract, so intervals are more likely too wide than too narrow.
`divgrpc.metrics` computes both variances and their degrees of freedom (CR2 for groups of queries).
Satterthwaite's formula gives the degrees of freedom of the sum (Biometrics Bulletin 2, 1946).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.metrics import Values, mean_intervals, paired_tests
from divgrpc.metrics.comparing import ratios_of_sums, without_nan
from divgrpc.metrics.student import critical_t, two_sided_p
from divgrpc.types import Interval


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
    variance = float(variances.sum())
    if not variance:
        return Mean(size, 1.0 if size.value == 0 else 0.0)
    freedom = variance**2 / float((variances**2 / degrees).sum())
    error = variance**0.5
    width = critical_t(freedom) * error
    size = Interval(size.value, size.value - width, size.value + width)
    return Mean(size, two_sided_p(size.value / error, freedom))
