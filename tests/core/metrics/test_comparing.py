"""Gain shares, bootstrap intervals and the Pareto front agree with a slow reference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import (
    comparing,
    gain_share,
    gain_share_interval,
    gap_closed,
    mean,
    mean_intervals,
    pareto_front,
    ratio_intervals,
)
from reference import metrics as reference


def test_gain_share_and_its_interval() -> None:
    """The gain share is a ratio of two means over the queries whose values are not NaN.

    It is NaN if no gain is possible.
    """
    nothing, best = np.zeros(20), np.ones(20)
    half = np.full(20, 0.5)
    assert gain_share(half, nothing, best) == 0.5
    assert gain_share_interval(half, nothing, best) == (0.5, 0.5, 0.5)
    value, low, high = gain_share_interval(np.arange(20) / 19, nothing, best)
    assert value == pytest.approx(0.5)
    assert 0.3 < low < 0.5 < high < 0.7
    assert gain_share(np.array([1.0, 0.5]), np.zeros(2), np.array([1.0, 2.0])) == 0.5
    h, most = np.array([0.5, np.nan, 9.0]), np.array([1.0, 1.0, np.nan])
    assert gain_share(h, np.zeros(3), most) == 0.5
    assert gain_share_interval(h, np.zeros(3), most).low == 0.5
    assert math.isnan(gain_share(np.full(2, np.nan), np.zeros(2), np.ones(2)))
    assert math.isnan(gain_share_interval(best, nothing, nothing).value)
    assert np.isnan(gain_share_interval(nothing, nothing, nothing)).all()


def test_gap_closed_is_one_at_best_and_zero_at_nearest() -> None:
    shares = [gap_closed(value, nearest=0.4, best=0.2) for value in (0.2, 0.4)]
    assert shares == [1, 0]
    assert gap_closed(0.5, nearest=0.4, best=0.2) < 0
    assert math.isnan(gap_closed(0.4, nearest=0.4, best=0.4))


def test_intervals_agree_with_a_plain_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "DRAWS", 50)
    monkeypatch.setattr(comparing, "_BLOCK_NUMBERS", 7 * 12)
    values = np.random.default_rng(1).random((12, 3))
    draws = np.array(reference.bootstrap(values, 50, seed=4))
    for column, interval in enumerate(mean_intervals(values, seed=4, draws=50)):
        low, high = np.quantile(draws[:, column], (0.025, 0.975))
        assert interval == pytest.approx((values[:, column].mean(), low, high))
    best = values[:, 2] + 1
    share = (draws[:, 1] - draws[:, 0]) / (draws[:, 2] + 1 - draws[:, 0])
    interval = gain_share_interval(values[:, 1], values[:, 0], best, seed=4)
    assert interval[1:] == pytest.approx(tuple(np.quantile(share, (0.025, 0.975))))


def test_intervals_cover_the_true_mean() -> None:
    """About 95 % of the intervals from samples of 100 queries contain the true mean."""
    samples = np.random.default_rng(2).beta(2, 5, (100, 400))
    covers = [low <= 2 / 7 <= high for _, low, high in mean_intervals(samples)]
    assert 0.9 < np.mean(covers) < 0.99


def test_a_seed_fixes_the_intervals() -> None:
    """The interval of a column does not depend on the other columns."""
    values = np.random.default_rng(3).random((30, 4))
    whole = mean_intervals(values)
    assert mean_intervals(values) == whole
    assert mean_intervals(values[:, 2:3])[0] == pytest.approx(whole[2])
    assert mean_intervals(values, seed=1) != whole


def test_means_and_intervals_ignore_nan() -> None:
    """Means and intervals leave NaN out, and a column that is all NaN has no mean."""
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [1.0, np.nan]])
    one, none = mean_intervals(values)
    assert one == (1, 1, 1)
    assert np.isnan(none).all()
    assert mean(values[:, 0]) == 1
    assert np.isnan(mean_intervals(np.empty((0, 1)))[0]).all()
    with pytest.raises(InvalidArgumentError, match="values"):
        mean_intervals(np.ones(3))


NUMBERS = st.one_of(st.integers(0, 4).map(float), st.just(math.nan))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
def test_pareto_front_agrees_with_the_reference(pairs: list[tuple[float, float]]) -> None:
    h, seconds = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert pareto_front(h, seconds).tolist() == reference.pareto_front(h, seconds)


def test_pareto_front_by_hand() -> None:
    h, seconds = [0.5, 0.7, 0.6, 0.7, 0.9, 0.7], [1, 2, 3, 4, 5, 2]
    assert np.flatnonzero(pareto_front(h, seconds)).tolist() == [0, 1, 4, 5]
    with pytest.raises(InvalidArgumentError, match="same length"):
        pareto_front([1.0], [1.0, 2.0])


def test_ratios_are_ratios_of_sums() -> None:
    """The bootstrap draws whole queries, and a mean is a sum over queries divided by a count."""
    rng = np.random.default_rng(5)
    gained, possible = rng.random((30, 2)), 1 + rng.random((30, 2))
    interval = ratio_intervals(gained, possible)
    assert [each.value for each in interval] == pytest.approx(
        gained.sum(axis=0) / possible.sum(axis=0)
    )
    assert all(each.low < each.value < each.high for each in interval)
    # A ratio of equal sums is 1 in every draw; 0 / 0 is NaN.
    assert ratio_intervals(possible, possible)[0] == pytest.approx((1, 1, 1))
    assert np.isnan(ratio_intervals(np.zeros((3, 1)), np.zeros((3, 1)))[0]).all()
    values = np.where(rng.random((30, 2)) < 0.3, np.nan, gained)
    applies = ~np.isnan(values)
    means = ratio_intervals(np.where(applies, values, 0), applies)
    assert [tuple(each) for each in means] == [pytest.approx(e) for e in mean_intervals(values)]
