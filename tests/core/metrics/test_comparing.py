"""Gain shares, intervals and the Pareto front, beside their slow twins."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
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

examples = settings(deadline=None, derandomize=True, max_examples=100)


def test_gap_closed_is_one_at_the_baseline_and_zero_at_nearest() -> None:
    """The scale runs from nearest neighbours to the exhaustive greedy, and past both."""
    assert gap_closed(0.2, nearest=0.4, best=0.2) == 1
    assert gap_closed(0.4, nearest=0.4, best=0.2) == 0
    assert gap_closed(0.5, nearest=0.4, best=0.2) < 0
    assert math.isnan(gap_closed(0.4, nearest=0.4, best=0.4))


def test_gain_share_and_its_interval() -> None:
    """Half the gain is a half; where every query agrees the interval is a point."""
    nearest, best = np.zeros(20), np.ones(20)
    half = np.full(20, 0.5)
    assert gain_share(half, nearest, best) == 0.5
    assert gain_share_interval(half, nearest, best) == (0.5, 0.5, 0.5)
    uneven = np.arange(20) / 19
    value, low, high = gain_share_interval(uneven, nearest, best)
    assert value == pytest.approx(0.5)
    assert 0.3 < low < 0.5 < high < 0.7


def test_gain_share_is_a_ratio_of_means() -> None:
    """It is not the mean of the queries' own shares, of which some divide by nothing."""
    assert gain_share(np.array([1.0, 0.5]), np.zeros(2), np.array([1.0, 2.0])) == 0.5


def test_queries_that_lack_a_value_are_in_no_share() -> None:
    """A NaN in one of the three leaves the query out of all."""
    h = np.array([0.5, np.nan, 9.0])
    assert gain_share(h, np.zeros(3), np.array([1.0, 1.0, np.nan])) == 0.5
    assert gain_share_interval(h, np.zeros(3), np.array([1.0, 1.0, np.nan])).low == 0.5
    assert math.isnan(gain_share(np.full(2, np.nan), np.zeros(2), np.ones(2)))


def test_nothing_to_gain_has_no_share() -> None:
    """Where best is nearest the share and its interval are NaN."""
    assert np.isnan(gain_share_interval(np.ones(5), np.zeros(5), np.zeros(5))).tolist()[0]
    assert np.isnan(gain_share_interval(np.zeros(5), np.zeros(5), np.zeros(5))).all()


def test_intervals_are_the_percentiles_of_a_plain_bootstrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drawing queries one set at a time gives the same means, and the interval between them."""
    monkeypatch.setattr(comparing, "DRAWS", 50)
    monkeypatch.setattr(comparing, "_BLOCK_NUMBERS", 7 * 12)
    values = np.random.default_rng(1).random((12, 3))
    drawn = np.array(reference.bootstrap(values, 50, seed=4))
    for column, found in enumerate(mean_intervals(values, seed=4, draws=50)):
        low, high = np.quantile(drawn[:, column], (0.025, 0.975))
        assert found == pytest.approx((values[:, column].mean(), low, high))
    best = values[:, 2] + 1
    share = (drawn[:, 1] - drawn[:, 0]) / (drawn[:, 2] + 1 - drawn[:, 0])
    found = gain_share_interval(values[:, 1], values[:, 0], best, seed=4)
    assert found[1:] == pytest.approx(tuple(np.quantile(share, (0.025, 0.975))))


def test_an_interval_covers_what_it_says() -> None:
    """Of many samples of 100 queries some 95 in 100 intervals hold the true mean."""
    samples = np.random.default_rng(2).beta(2, 5, (100, 400))
    held = [low <= 2 / 7 <= high for _, low, high in mean_intervals(samples)]
    assert 0.9 < np.mean(held) < 0.99


def test_an_interval_is_the_same_again() -> None:
    """A seed gives its interval, whatever columns stand beside; another seed another."""
    values = np.random.default_rng(3).random((30, 4))
    whole = mean_intervals(values)
    assert mean_intervals(values) == whole
    assert mean_intervals(values[:, 2:3])[0] == pytest.approx(whole[2])
    assert mean_intervals(values, seed=1) != whole


def test_means_are_over_queries_that_a_metric_applies_to() -> None:
    """NaN is left out of the mean and of every draw; NaN alone has neither."""
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [1.0, np.nan]])
    one, none = mean_intervals(values)
    assert one == (1, 1, 1)
    assert np.isnan(none).all()
    assert mean(values[:, 0]) == 1
    assert np.isnan(mean_intervals(np.empty((0, 1)))[0]).all()
    with pytest.raises(InvalidArgumentError, match="values"):
        mean_intervals(np.ones(3))


NUMBERS = st.one_of(st.integers(0, 4).map(float), st.just(math.nan))


@examples
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
def test_pareto_front_is_its_twin(both: list[tuple[float, float]]) -> None:
    """Setting by setting, with equals and with figures that are missing."""
    h, seconds = [each[0] for each in both], [each[1] for each in both]
    assert pareto_front(h, seconds).tolist() == reference.pareto_front(h, seconds)


def test_pareto_front_by_hand() -> None:
    """Slower and no better is beaten; equals stay together; lengths must agree."""
    h, seconds = [0.5, 0.7, 0.6, 0.7, 0.9, 0.7], [1, 2, 3, 4, 5, 2]
    assert np.flatnonzero(pareto_front(h, seconds)).tolist() == [0, 1, 4, 5]
    with pytest.raises(InvalidArgumentError, match="as many"):
        pareto_front([1.0], [1.0, 2.0])


def test_ratios_are_of_sums() -> None:
    """A ratio's interval is of draws of whole queries; means are ratios by how many apply."""
    rng = np.random.default_rng(5)
    gained, possible = rng.random((30, 2)), 1 + rng.random((30, 2))
    found = ratio_intervals(gained, possible)
    assert [each.value for each in found] == pytest.approx(
        gained.sum(axis=0) / possible.sum(axis=0)
    )
    assert all(each.low < each.value < each.high for each in found)
    # One to one, whatever is drawn; nothing over nothing.
    assert ratio_intervals(possible, possible)[0] == pytest.approx((1, 1, 1))
    assert np.isnan(ratio_intervals(np.zeros((3, 1)), np.zeros((3, 1)))[0]).all()
    values = np.where(rng.random((30, 2)) < 0.3, np.nan, gained)
    there = ~np.isnan(values)
    means = ratio_intervals(np.where(there, values, 0), there)
    assert [tuple(each) for each in means] == [pytest.approx(e) for e in mean_intervals(values)]
