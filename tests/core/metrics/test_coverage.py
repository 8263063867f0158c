"""Simulations of 95 % intervals and of tests, for queries alone and in groups.

An interval must contain the true value in 93 to 97 % of samples. Tests corrected by Holm must
reject a true hypothesis in at most 5 % of the families.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from divgrpc.metrics import Values, holm, mean_intervals, paired_tests, ratio_intervals
from divgrpc.types import IntArray, Interval

_RANKS = np.linspace(0.0005, 0.9995, 1_000)
# Values by their ranks from 0 to 1. Like h, `bounded` is 0 for one query in ten and at most 1.
VALUES = {
    "normal": stats.norm.ppf(_RANKS),
    "skewed": stats.beta(5, 2).ppf(_RANKS),
    "bounded": np.where(_RANKS < 0.1, 0, stats.beta(4, 2).ppf(np.clip(_RANKS - 0.1, 0, 1) / 0.9)),
}
SIZES: dict[str, Callable[[int], IntArray]] = {
    "equal": lambda groups: np.full(groups, 12),
    "unequal": lambda groups: np.linspace(4, 20, groups).round().astype(int),
    "half in one": lambda groups: np.append(np.full(groups - 1, 6), 6 * (groups - 1)),
}


def samples(
    rng: np.random.Generator, groups: IntArray, alike: float, values: Values, count: int
) -> Values:
    """Return samples (nq, count) whose quantiles at `_RANKS` are `values`.

    The samples are transformed normal numbers. `alike` is the correlation of these normal numbers
    within a group.
    """
    group_noise = rng.standard_normal((groups.max() + 1, count))[groups]
    normal = np.sqrt(alike) * group_noise + np.sqrt(1 - alike) * rng.standard_normal(
        (len(groups), count)
    )
    return np.asarray(np.interp(stats.norm.cdf(normal), _RANKS, values))


def coverage(intervals: list[Interval], truth: float) -> float:
    ends = np.array(intervals)
    return float(((ends[:, 1] <= truth) & (truth <= ends[:, 2])).mean())


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", [5, 7, 20])
def test_intervals_by_groups_cover_the_mean(count: int, sizes: str, kind: str) -> None:
    groups = np.repeat(np.arange(count), SIZES[sizes](count))
    values = VALUES[kind]
    draws = samples(np.random.default_rng(2), groups, 0.2, values, 2_000)
    assert 0.93 <= coverage(mean_intervals(draws, groups), float(values.mean())) <= 0.97


@pytest.mark.parametrize(
    ("queries", "kinds"),
    [(10, ("normal", "skewed")), (60, tuple(VALUES)), (300, tuple(VALUES))],
)
def test_intervals_without_groups_cover_the_mean(queries: int, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        values = VALUES[kind]
        draws = samples(np.random.default_rng(3), np.arange(queries), 0, values, 2_000)
        assert 0.93 <= coverage(mean_intervals(draws), float(values.mean())) <= 0.97


@pytest.mark.parametrize("count", [7, 20])
def test_intervals_of_ratios_and_with_nan_cover_the_truth(count: int) -> None:
    """Queries differ in what can be gained, and a fifth of the values are NaN."""
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(count), SIZES["unequal"](count))
    possible = 0.2 + 0.3 * samples(rng, groups, 0.2, _RANKS, 2_000)
    gains = 0.8 * possible + 0.3 * (samples(rng, groups, 0.2, _RANKS, 2_000) - 0.5)
    assert 0.93 <= coverage(ratio_intervals(gains, possible, groups), 0.8) <= 0.97
    gains[rng.random(gains.shape) < 0.2] = np.nan
    assert 0.93 <= coverage(mean_intervals(gains, groups), 0.8 * 0.35) <= 0.97


def test_intervals_by_query_are_too_narrow_for_groups() -> None:
    """If groups of 50 queries are similar, an interval that ignores them often misses the mean."""
    groups = np.repeat(np.arange(10), 50)
    values = VALUES["bounded"]
    draws = samples(np.random.default_rng(5), groups, 0.3, values, 1_000)
    assert coverage(mean_intervals(draws), float(values.mean())) < 0.45
    assert coverage(mean_intervals(draws, groups), float(values.mean())) > 0.93


def families(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Return p values (count, 18) of six equal methods against a seventh on 5, 7 and 20 groups."""
    p_values = []
    for number in (5, 7, 20):
        groups = np.repeat(np.arange(number), SIZES["unequal"](number))
        methods = samples(rng, groups, 0.2, VALUES["bounded"], 7 * count).reshape(-1, count, 7)
        differences = (methods[:, :, 1:] - methods[:, :, :1]).reshape(len(groups), -1)
        p_values.append(paired_tests(differences, groups).reshape(count, 6))
    return np.concatenate(p_values, axis=1)


def test_tests_of_equal_methods_rarely_reject() -> None:
    """Holm's correction keeps the error of a family below 5 %; without it, most families err."""
    p_values = families(np.random.default_rng(6), 1_000)
    assert (p_values < 0.05).mean() < 0.06
    assert (p_values.min(axis=1) < 0.05).mean() > 0.4
    adjusted_p = np.array([holm(family) for family in p_values])
    assert (adjusted_p.min(axis=1) < 0.05).mean() <= 0.05
