"""Gain shares, Holm's correction and the Pareto front agree with a slow reference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import (
    gain_share,
    gain_share_interval,
    gap_closed,
    holm,
    pareto_front,
)
from reference import metrics as reference
from support.checks.refusals import refused


def test_gain_share_and_its_interval() -> None:
    """The gain share is a ratio of two means; it is NaN if no gain is possible."""
    baseline, best = np.zeros(20), np.ones(20)
    half = np.full(20, 0.5)
    assert gain_share(half, baseline, best) == 0.5
    assert gain_share_interval(half, baseline, best) == pytest.approx((0.5, 0.5, 0.5))
    value, low, high = gain_share_interval(np.arange(20) / 19, baseline, best)
    assert value == pytest.approx(0.5)
    assert 0.3 < low < 0.5 < high < 0.7
    assert gain_share(np.array([1.0, 0.5]), np.zeros(2), np.array([1.0, 2.0])) == 0.5
    h, most = np.array([0.5, np.nan, 9.0]), np.array([1.0, 1.0, np.nan])
    assert gain_share(h, np.zeros(3), most) == 0.5
    assert gain_share_interval(h, np.zeros(3), most) == pytest.approx(
        (0.5, *[math.nan] * 2), nan_ok=True
    )
    assert math.isnan(gain_share(np.full(2, np.nan), np.zeros(2), np.ones(2)))
    assert math.isnan(gain_share_interval(best, baseline, baseline).value)
    assert np.isnan(gain_share_interval(baseline, baseline, baseline)).all()


def test_gap_closed_is_one_at_best_and_zero_at_nearest() -> None:
    shares = [gap_closed(value, nearest=0.4, best=0.2) for value in (0.2, 0.4)]
    assert shares == [1, 0]
    assert gap_closed(0.5, nearest=0.4, best=0.2) < 0
    assert math.isnan(gap_closed(0.4, nearest=0.4, best=0.4))


NUMBERS = st.one_of(st.integers(0, 4).map(float), st.just(math.nan))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
def test_pareto_front_agrees_with_the_reference(pairs: list[tuple[float, float]]) -> None:
    h, seconds = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert pareto_front(h, seconds).tolist() == reference.pareto_front(h, seconds)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_each_setting_has_one_on_the_front(pairs: list[tuple[int, int]], tolerance: float) -> None:
    """It is no worse, within the tolerance. No setting on the front makes another one needless."""
    settings = list(enumerate(pairs))
    mask = pareto_front([h for h, _ in pairs], [t for _, t in pairs], tolerance)
    front = [setting for setting in settings if mask[setting[0]]]
    slack = 1 + tolerance
    for number, (h, seconds) in settings:
        assert any(h1 >= h and t1 <= slack * seconds for _, (h1, t1) in front)
        if mask[number]:
            assert not any(h1 > h and t1 <= slack * seconds for _, (h1, t1) in front)
            assert not any(h1 == h and slack * t1 < seconds for _, (h1, t1) in settings)


def test_noise_of_times_does_not_decide() -> None:
    """Two settings with equal results are both on the front, and so is the better of two dials."""
    h, seconds = [0.5, 0.5, 0.5, 0.4, 0.6], [1.00, 1.03, 1.2, 0.97, 1.5]
    assert pareto_front(h, seconds, 0.1).tolist() == [True, True, False, False, True]


def test_pareto_front_by_hand() -> None:
    h, seconds = [0.5, 0.7, 0.6, 0.7, 0.9, 0.7], [1, 2, 3, 4, 5, 2]
    assert np.flatnonzero(pareto_front(h, seconds)).tolist() == [0, 1, 4, 5]
    with pytest.raises(InvalidArgumentError, match="same length"):
        pareto_front([1.0], [1.0, 2.0])


P_VALUES = st.lists(st.integers(0, 20).map(lambda n: n / 20), max_size=6)


@given(P_VALUES)
def test_holm_agrees_with_the_reference(p_values: list[float]) -> None:
    assert holm(p_values).tolist() == pytest.approx(reference.holm(p_values))


def test_holm_by_hand() -> None:
    adjusted_p = holm([0.01, 0.04, math.nan, 0.03])
    assert adjusted_p.tolist() == pytest.approx([0.03, 0.06, math.nan, 0.06], nan_ok=True)
    for value in ([[0.5]], [1.5], [-0.1]):
        with refused("p_values"):
            holm(value)
