"""One method beside another: means, their intervals, shares of a gain, the Pareto front."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics.judging import Values
from divgrpc.types import Interval

DRAWS: Final = 10_000
_QUANTILES: Final = (0.025, 0.975)
# Draws at a time times queries: some tens of megabytes.
_BLOCK: Final = 2**21


def mean(values: npt.ArrayLike) -> float:
    """Return the mean over the queries to which a metric applies, NaN where there are none."""
    array = np.asarray(values, np.float64)
    kept = array[~np.isnan(array)]
    return float(kept.mean()) if len(kept) else float("nan")


def mean_intervals(values: Values, seed: int = 0, draws: int = DRAWS) -> list[Interval]:
    """Return for each column of `values` (nq, m) its `mean` with a 95 % bootstrap interval.

    Queries are drawn with their whole rows, `draws` times, and percentiles taken: few queries give
    an interval that is too narrow, one query a point. NaN: see `mean`. Many columns in one call
    cost little more than one.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2:
        raise InvalidArgumentError("values", "values must be (queries, metrics)")
    applies = ~np.isnan(values)
    found = ratio_intervals(np.where(applies, values, 0.0), applies, seed, draws)
    # The plain mean, to the last digit.
    return [own._replace(value=mean(column)) for own, column in zip(found, values.T, strict=True)]


def ratio_intervals(
    gained: Values, possible: npt.ArrayLike, seed: int = 0, draws: int = DRAWS
) -> list[Interval]:
    """Return for each column the sum of `gained` over that of `possible`, both (nq, m).

    Each has a 95 % bootstrap interval as in `mean_intervals`, with the same draws of queries; NaN
    where nothing is possible.
    """
    columns = np.concatenate([gained, np.asarray(possible, np.float64)], axis=1)
    found = np.concatenate([*_sums_of_draws(columns, seed, draws), np.empty((0, columns.shape[1]))])
    sums, counts = np.split(found, 2, axis=1)
    whole = columns.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = sums / counts
        values = np.divide(*np.split(whole, 2))
    return [
        Interval(float(value), *_quantiles(means))
        for value, means in zip(values, drawn.T, strict=True)
    ]


def gain_share(values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike) -> float:
    """Return where the mean of `values` lies between that of `nearest` (0) and of `best` (1).

    Each is (nq,), of the same queries, or a number; those with a NaN in one are left out. It may be
    below 0 and above 1, and is NaN where there is nothing to gain.
    """
    gained, possible = _gains(values, nearest, best).mean(axis=1)
    return float(gained / possible) + 0.0 if possible else float("nan")


def gap_closed(values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike) -> float:
    """Return the gain share of the objective J: 1 for the exhaustive greedy's, 0 for nearest's."""
    return gain_share(values, nearest, best)


def gain_share_interval(
    values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike, seed: int = 0
) -> Interval:
    """Return the gain share with its 95 % bootstrap interval; a draw of a query is of all three.

    Where `best` gains hardly anything the interval is wide or infinite: say how much is to be
    gained before a share of it.
    """
    gains = _gains(values, nearest, best)
    found = np.concatenate([*_sums_of_draws(gains.T, seed, DRAWS), np.empty((0, 2))])
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = found[:, 0] / found[:, 1]
    return Interval(gain_share(values, nearest, best), *_quantiles(drawn))


def pareto_front(h: npt.ArrayLike, seconds: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which of m settings no other beats: with no less h and no more time, and one better.

    `h` and `seconds` are (m,); m bool is returned. Equals are on the front together; a setting with
    a NaN never is.
    """
    h, seconds = np.asarray(h, np.float64), np.asarray(seconds, np.float64)
    if h.shape != seconds.shape or h.ndim != 1:
        raise InvalidArgumentError("seconds", "h and seconds must be as many")
    front = np.zeros(len(h), np.bool_)
    best = (-np.inf, np.inf)
    for at in np.lexsort((-h, seconds)):
        # In order of time, and the greatest h first of equal times.
        if h[at] > best[0] or (h[at], seconds[at]) == best:
            front[at], best = True, (h[at], seconds[at])
    return np.asarray(front & ~np.isnan(h) & ~np.isnan(seconds))


def _gains(values: npt.ArrayLike, nearest: npt.ArrayLike, best: npt.ArrayLike) -> Values:
    """Return (2, nq): what each query gains, and what it could."""
    arrays = [np.asarray(each, np.float64) for each in (values, nearest, best)]
    own, low, high = np.atleast_2d(*np.broadcast_arrays(*arrays))
    gains = np.concatenate([own - low, high - low])
    kept = gains[:, ~np.isnan(gains).any(axis=0)]
    return kept if kept.shape[1] else np.zeros((2, 1))


def _sums_of_draws(columns: Values, seed: int, draws: int) -> Iterator[Values]:
    """Yield blocks of sums over as many queries as there are, drawn with replacement."""
    queries, rng = len(columns), np.random.default_rng(seed)
    size = max(1, _BLOCK // max(1, queries))
    for start in range(0, draws if queries else 0, size):
        block = min(size, draws - start)
        drawn = rng.integers(queries, size=(block, queries))
        drawn += queries * np.arange(block)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=block * queries)
        yield counts.reshape(block, queries) @ columns


def _quantiles(drawn: Values) -> tuple[float, float]:
    kept = drawn[~np.isnan(drawn)]
    if not len(kept):
        return float("nan"), float("nan")
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(kept, _QUANTILES)
    return float(low), float(high)
