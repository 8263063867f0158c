"""Comparison of methods: means, bootstrap intervals, shares of a gain, and the Pareto front."""

from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.metrics.judging import Values
from divgrpc.types import Interval

DRAWS: Final = 10_000
_QUANTILES: Final = (0.025, 0.975)
# The bootstrap holds at most this many drawn query numbers in memory, which are 16 MiB of int64.
_BLOCK_NUMBERS: Final = 2**21


def mean(values: npt.ArrayLike) -> float:
    """Return the mean of `values` (nq,) without NaN, or NaN if all values are NaN."""
    array = np.asarray(values, np.float64)
    applicable = array[~np.isnan(array)]
    return float(applicable.mean()) if len(applicable) else float("nan")


def mean_intervals(values: Values, seed: int = 0, draws: int = DRAWS) -> list[Interval]:
    """Return the `mean` of each column of `values` (nq, m) with its 95 % bootstrap interval.

    The bootstrap draws nq rows with replacement, `draws` times. The interval reaches from the 2.5 %
    to the 97.5 % percentile of the means. For few queries the interval is too narrow, and for a
    single query its width is 0. NaN values are skipped, as in `mean`. A call with many columns
    takes little longer than a call with one column.

    Raises `InvalidArgumentError`, with the field values, unless `values` has two dimensions.

    Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2:
        raise invalid("values", "must be (queries, metrics)")
    intervals = ratio_intervals(*without_nan(values), seed, draws)
    # Replace the ratio by the value of `mean`, because the ratio sums in another order, so its last
    # digit may differ.
    return [
        interval._replace(value=mean(column))
        for interval, column in zip(intervals, values.T, strict=True)
    ]


def without_nan(values: Values) -> tuple[Values, Values]:
    """Return arguments for `ratio_intervals` whose ratios are the means of columns (n, m).

    The dividends (n, m) are `values` with 0 in place of NaN. The divisors (n, m) are 1 for a
    number and 0 for NaN.
    """
    applies = ~np.isnan(values)
    return np.where(applies, values, 0.0), applies.astype(np.float64)


def ratio_intervals(
    gained: Values, possible: npt.ArrayLike, seed: int = 0, draws: int = DRAWS
) -> list[Interval]:
    """Return sum(gained) / sum(possible) of each column with its 95 % interval.

    `gained` and `possible` are (nq, m). If `seed` and `draws` are equal, the bootstrap draws the
    same queries as in `mean_intervals`. A ratio is NaN if both sums are 0.
    """
    columns = np.concatenate([gained, np.asarray(possible, np.float64)], axis=1)
    sums = _draw_sums(columns, seed, draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.divide(*np.split(sums, 2, axis=1))
        values = np.divide(*np.split(columns.sum(axis=0), 2))
    return [
        Interval(float(value), *_quantiles(column))
        for value, column in zip(values, ratios.T, strict=True)
    ]


def gain_share(values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike) -> float:
    """Return (values - nearest) / (best - nearest), computed from the means of the arguments.

    The share is 0 if `values` and `nearest` have the same mean, and 1 if `values` and `best` have
    the same mean. It may be below 0 or above 1. It is NaN if the means of `best` and `nearest` are
    equal.

    Each argument is a number or an array (nq,) over the same queries. A query is skipped if any of
    the arrays has NaN for it.
    """
    gain, possible = _gains(values, nearest, best).mean(axis=1)
    return float(gain / possible) + 0.0 if possible else float("nan")


# `gap_closed` is the name of `gain_share` for arguments that are values of the objective J. Then
# `nearest` is J of the nearest points, and `best` is J of the exhaustive greedy selection.
gap_closed = gain_share


def gain_share_interval(
    values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike, seed: int = 0
) -> Interval:
    """Return the `gain_share` with its 95 % bootstrap interval.

    Each draw takes the same queries from all three arrays. If `best` gains almost nothing over
    `nearest`, the interval is wide or infinite, so report the possible gain before its share.
    """
    gains, possible = _gains(values, nearest, best)
    (interval,) = ratio_intervals(gains[:, None], possible[:, None], seed, DRAWS)
    return interval._replace(value=gain_share(values, nearest, best))


def pareto_front(h: npt.ArrayLike, seconds: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return a mask (m,) of the settings that no other setting beats.

    `h` and `seconds` are (m,). Setting a beats setting b if its h is not lower, its time is not
    longer, and at least one of the two is better. If several settings have equal h and equal time,
    either all of them are on the front or none is. A setting with NaN is never on the front.

    Raises `InvalidArgumentError`, with the field seconds, for other shapes.
    """
    h, seconds = np.asarray(h, np.float64), np.asarray(seconds, np.float64)
    if h.shape != seconds.shape or h.ndim != 1:
        raise InvalidArgumentError("seconds", "h and seconds must have the same length")
    front = np.zeros(len(h), np.bool_)
    best = (-np.inf, np.inf)
    # Visit settings in ascending order of time. Among equal times, the greatest h comes first.
    for place in np.lexsort((-h, seconds)):
        if h[place] > best[0] or (h[place], seconds[place]) == best:
            front[place], best = True, (h[place], seconds[place])
    return np.asarray(front & ~np.isnan(h) & ~np.isnan(seconds))


def _gains(values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike) -> Values:
    """Return the gain and the possible gain of each query as an array (2, n).

    Queries with NaN are left out. If no query remains, the result is zeros (2, 1).
    """
    arrays = [np.asarray(array, np.float64) for array in (values, nearest, best)]
    middle, low, high = np.atleast_2d(*np.broadcast_arrays(*arrays))
    gains = np.concatenate([middle - low, high - low])
    applicable = gains[:, ~np.isnan(gains).any(axis=0)]
    return applicable if applicable.shape[1] else np.zeros((2, 1))


def _draw_sums(columns: Values, seed: int, draws: int) -> Values:
    """Return the sums (draws, m) of `columns` (nq, m) over nq rows drawn with replacement.

    If nq is 0, the result has no rows.
    """
    queries, rng = len(columns), np.random.default_rng(seed)
    size = max(1, _BLOCK_NUMBERS // max(1, queries))
    blocks = [np.empty((0, columns.shape[1]))]
    for start in range(0, draws if queries else 0, size):
        block = min(size, draws - start)
        numbers = rng.integers(queries, size=(block, queries))
        numbers += queries * np.arange(block)[:, None]
        counts = np.bincount(numbers.ravel(), minlength=block * queries)
        blocks.append(counts.reshape(block, queries) @ columns)
    return np.concatenate(blocks)


def _quantiles(ratios: Values) -> tuple[float, float]:
    applicable = ratios[~np.isnan(ratios)]
    if not len(applicable):
        return float("nan"), float("nan")
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(applicable, _QUANTILES)
    return float(low), float(high)
