"""Comparison of methods: means, intervals, tests, shares of a gain, and the Pareto front.

Intervals and tests treat groups of queries as independent, not single queries, because queries of
one group, such as a category, are alike. The functions for intervals and tests take `groups`, (nq,)
whole numbers. By default each query is its own group. All these functions use the standard error
called CR2, which corrects for the share of each group in all queries, and Student's t with
Satterthwaite's degrees of freedom. If all groups have the same size, the test is the t test of the
group means.

Bell and McCaffrey, "Bias reduction in standard errors for linear regression with multi-stage
samples", Survey Methodology 28 (2002); Imbens and Kolesar, "Robust standard errors in small
samples", Review of Economics and Statistics 98 (2016).
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.metrics.judging import Values
from divgrpc.metrics.student import critical_t, two_sided_p
from divgrpc.types import Interval

# An interval and a test need at least this many groups.
GROUPS_MIN: Final = 2


def mean(values: npt.ArrayLike) -> float:
    """Return the mean of `values` (nq,) without NaN, or NaN if all values are NaN."""
    array = np.asarray(values, np.float64)
    applicable = array[~np.isnan(array)]
    return float(applicable.mean()) if len(applicable) else float("nan")


def mean_intervals(values: Values, groups: npt.ArrayLike | None = None) -> list[Interval]:
    """Return the `mean` of each column of `values` (nq, m) with its 95 % interval.

    groups: (nq,) whole numbers, the group of each query; by default each query is its own group.

    NaN values are skipped, as in `mean`. With fewer than two groups the ends are NaN. With few
    groups an interval may reach beyond the range of the metric.

    Raises `InvalidArgumentError`, with the field values, unless `values` has two dimensions, and
    with the field groups unless `groups` are nq whole numbers.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2:
        raise invalid("values", "must be (queries, metrics)")
    intervals = ratio_intervals(*without_nan(values), groups)
    # Replace the ratio by `mean`, because the last digit of the ratio may differ from that of
    # `mean`.
    return [
        interval._replace(value=mean(column))
        for interval, column in zip(intervals, values.T, strict=True)
    ]


def without_nan(values: Values) -> tuple[Values, Values]:
    """Return dividends and divisors for `ratio_intervals`.

    Their ratios are the means of the columns of `values` (n, m), without NaN. The dividends (n, m)
    are `values` with 0 instead of NaN. The divisors (n, m) are 0 for NaN, else 1.
    """
    applies = ~np.isnan(values)
    return np.where(applies, values, 0.0), applies.astype(np.float64)


class Ratios(NamedTuple):
    """Ratios, their standard errors, and the degrees of freedom of these errors, (m,) each."""

    values: Values
    errors: Values
    degrees: Values


def ratios_of_sums(
    gained: npt.ArrayLike, possible: npt.ArrayLike, groups: npt.ArrayLike | None = None
) -> Ratios:
    """Return sum(gained) / sum(possible) of each column with its standard error.

    gained, possible: (nq, m).
    groups: (nq,) whole numbers, the group of each query; by default each query is its own group.

    A query counts in a column unless both of its values are 0. The errors and the degrees are NaN
    if fewer than two groups have a query that counts. Raises `InvalidArgumentError` with the field
    groups.
    """
    pair = np.stack([np.asarray(side, np.float64) for side in (gained, possible)])
    columns = np.concatenate([pair, (pair != 0).any(axis=0)[None]])
    if groups is not None:
        columns = _group_sums(columns, groups)
    gains, divisors, sizes = columns
    total = divisors.sum(axis=0)
    lacks_groups = np.count_nonzero(sizes, axis=0) < GROUPS_MIN
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = gains.sum(axis=0) / total
        shares = np.where(lacks_groups, np.nan, sizes / sizes.sum(axis=0))
        squares = (gains - ratios * divisors) ** 2 / (1 - shares)
        errors = np.sqrt(squares.sum(axis=0)) / abs(total)
        # Satterthwaite's degrees for queries that are independent and vary alike.
        parts = shares**2 / (1 - shares)
        degrees = 1 / ((shares**2 - parts**2).sum(axis=0) + parts.sum(axis=0) ** 2)
    return Ratios(ratios, errors, degrees)


def ratio_intervals(
    gained: Values, possible: npt.ArrayLike, groups: npt.ArrayLike | None = None
) -> list[Interval]:
    """Return sum(gained) / sum(possible) of each column with its 95 % interval.

    gained, possible: (nq, m).
    groups: (nq,) whole numbers, the group of each query; by default each query is its own group.

    A ratio is NaN if both sums are 0. A query counts in a column unless both of its values are 0.
    With fewer than two groups the ends are NaN. Raises `InvalidArgumentError` with the field
    groups.
    """
    ratios, errors, degrees = ratios_of_sums(gained, possible, groups)
    widths = errors * np.array([critical_t(value) for value in degrees.tolist()])
    return [
        Interval(*map(float, ends))
        for ends in zip(ratios, ratios - widths, ratios + widths, strict=True)
    ]


def paired_tests(differences: Values, groups: npt.ArrayLike | None = None) -> Values:
    """Return p values (m,) of the hypotheses that the columns of `differences` have the mean 0.

    differences: (nq, m), the value of one method minus the value of another for each query.
    groups: (nq,) whole numbers, the group of each query; by default each query is its own group.

    The tests are two-sided t tests of the means, and agree with `mean_intervals`: p is below 0.05
    if the interval does not contain 0. p is 1 if all differences are 0, and NaN for fewer than two
    groups. If several methods are compared, correct the p values by `holm`.

    Raises `InvalidArgumentError` with the field differences or groups.
    """
    differences = np.asarray(differences, np.float64)
    if differences.ndim != 2:
        raise invalid("differences", "must be (queries, comparisons)")
    means, errors, degrees = ratios_of_sums(*without_nan(differences), groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        ts = np.where(means == 0, 0.0 * errors, means / errors)
    return np.array([two_sided_p(t, d) for t, d in zip(ts, degrees, strict=True)])


def holm(p_values: npt.ArrayLike) -> Values:
    """Return `p_values` (m,) adjusted for m tests, (m,).

    If each hypothesis with an adjusted p below 0.05 is rejected, then the probability that any true
    hypothesis is rejected is below 5 %, however the tests depend on each other. NaN stays NaN and
    is not counted as a test.

    Raises `InvalidArgumentError`, with the field p_values, unless `p_values` has one dimension and
    all values are NaN or from 0 to 1.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979).
    """
    p = np.asarray(p_values, np.float64)
    if p.ndim != 1 or ((p < 0) | (p > 1)).any():
        raise invalid("p_values", "must be numbers between 0 and 1, in one dimension")
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]
    factors = np.arange(len(order), 0, -1)
    adjusted_p = np.full(len(p), np.nan)
    adjusted_p[order] = np.minimum(np.maximum.accumulate(factors * p[order]), 1.0)
    return adjusted_p


def gain_share(values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike) -> float:
    """Return (values - nearest) / (best - nearest), computed from the means of the arguments.

    The share is 0 if `values` and `nearest` have the same mean, and 1 if `values` and `best` have
    the same mean. It may be below 0 or above 1. It is NaN if `best` and `nearest` have the same
    mean.

    Each argument is a number or an array (nq,) over the same queries. A query with NaN
    in any of the arrays is skipped.
    """
    gains = _gains(values, nearest, best)
    gain, possible = gains[:, ~np.isnan(gains).any(axis=0)].sum(axis=1)
    return float(gain / possible) + 0.0 if possible else float("nan")


# `gap_closed` is the name of `gain_share` for arguments that are values of the objective J. Then
# `nearest` is J of the nearest points, and `best` is J of the exhaustive greedy selection.
gap_closed = gain_share


def gain_share_interval(
    values: npt.ArrayLike,
    nearest: npt.ArrayLike,
    best: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
) -> Interval:
    """Return the `gain_share` with its 95 % interval.

    groups: (nq,) whole numbers, the group of each query; by default each query is its own group.

    If `best` gains almost nothing over `nearest`, the interval means little. So report this
    possible gain, `best` - `nearest`, before its share. With fewer than two groups the ends are
    NaN.
    """
    gain, possible = _gains(values, nearest, best)
    applies = ~np.isnan(gain + possible)
    gains, divisors = np.where(applies, [gain, possible], 0.0)[:, :, None]
    (interval,) = ratio_intervals(gains, divisors, groups)
    return interval._replace(value=gain_share(values, nearest, best))


def pareto_front(
    h: npt.ArrayLike, seconds: npt.ArrayLike, tolerance: float = 0.0
) -> npt.NDArray[np.bool_]:
    """Return a mask (m,) of the settings that no other setting beats.

    h, seconds: (m,) float64.
    tolerance: a share of a time, 0 or more. Two times count as equal if the longer one is at most
        1 + `tolerance` times the shorter one, because measured times vary by chance.

    Settings are taken in descending order of h. A setting is on the front if it is faster than all
    settings on the front with a higher h. Of such settings with equal h, only those that count as
    fast as the fastest of them are on the front. A setting with NaN is never on the front. For any
    other setting X that is not on the front, a setting on the front has at least the h of X, and
    its time does not count as longer.

    Raises `InvalidArgumentError`, with the field seconds, if `h` or `seconds` has another shape.

    Papadimitriou and Yannakakis, "On the approximability of trade-offs", FOCS (2000).
    """
    h, seconds = np.asarray(h, np.float64), np.asarray(seconds, np.float64)
    if h.shape != seconds.shape or h.ndim != 1:
        raise InvalidArgumentError("seconds", "h and seconds must have the same length")
    front = np.zeros(len(h), np.bool_)
    fastest, slack = np.inf, 1 + tolerance
    for greatest in np.unique(h[~np.isnan(h + seconds)])[::-1]:
        faster = (h == greatest) & (slack * seconds < fastest)
        if faster.any():
            least = seconds[faster].min()
            front |= faster & (seconds <= slack * least)
            fastest = least
    return front


def _gains(values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike) -> Values:
    """Return values - nearest and best - nearest for each query, as an array (2, nq)."""
    arrays = [np.asarray(array, np.float64) for array in (values, nearest, best)]
    middle, low, high = np.atleast_2d(*np.broadcast_arrays(*arrays))
    return np.concatenate([middle - low, high - low])


def _group_sums(columns: Values, groups: npt.ArrayLike) -> Values:
    """Return the sums (c, g, m) of `columns` (c, nq, m) over each of g groups."""
    numbers = np.asarray(groups)
    check_groups(numbers, columns.shape[1])
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=numbers[order[:1]] - 1))
    return np.add.reduceat(columns[:, order], starts, axis=1) if len(starts) else columns


def check_groups(groups: npt.NDArray[Any], queries: int) -> None:
    """Raise `InvalidArgumentError` (groups) unless `groups` are integers of shape (queries,)."""
    if groups.shape != (queries,) or (groups.dtype.kind not in "iu" and groups.size):
        raise invalid("groups", f"must be {queries} whole numbers, one for each query")
