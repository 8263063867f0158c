"""Intervals and tests by groups agree with a slow reference and with scipy."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from divgrpc.metrics import gain_share_interval, mean, mean_intervals, paired_tests, ratio_intervals
from divgrpc.metrics.student import critical_t, two_sided_p
from reference import metrics as reference
from support.checks.refusals import refused


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(-2, 3)), min_size=1),
)
def test_ratios_and_their_intervals_agree_with_the_reference(
    rows: list[tuple[int, int, int]],
) -> None:
    gains, possible, groups = (np.array(column) for column in zip(*rows, strict=True))
    (interval,) = ratio_intervals(gains[:, None], possible[:, None], groups)
    value, error, degrees = reference.cluster_t(
        *(column.tolist() for column in (gains, possible, groups))
    )
    half = error * stats.t.ppf(0.975, degrees)
    expected = (value, value - half, value + half)
    assert interval == pytest.approx(expected, nan_ok=True, abs=1e-6)


def test_each_query_is_a_group_by_default() -> None:
    """Without groups the interval is the classical t interval of a mean."""
    values = np.random.default_rng(1).random((12, 2))
    values[3, 1] = np.nan
    intervals = mean_intervals(values)
    assert intervals == mean_intervals(values, np.arange(12))
    for interval, column in zip(intervals, values.T, strict=True):
        test = stats.ttest_1samp(column, 0.4, nan_policy="omit")
        assert interval[1:] == pytest.approx(tuple(test.confidence_interval()))
        assert interval.value == mean(column)
    p = stats.ttest_1samp(values, 0.4, nan_policy="omit").pvalue
    np.testing.assert_allclose(paired_tests(values - 0.4), p)


def test_a_test_agrees_with_the_interval() -> None:
    """P is 0.05 if an end of the interval is 0."""
    values, groups = np.random.default_rng(3).random((20, 1)), np.arange(20) // 4
    (interval,) = mean_intervals(values, groups)
    for end in interval[1:]:
        assert paired_tests(values - end, groups) == pytest.approx([0.05])


def test_fewer_than_two_groups_have_no_interval() -> None:
    """A group without a value does not count, so a single other group has no interval."""
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [0.5, np.nan]])
    for groups in (np.zeros(3, int), np.array([4, 5, 4])):
        interval, empty_interval = mean_intervals(values, groups)
        assert interval == pytest.approx((0.75, math.nan, math.nan), nan_ok=True)
        assert np.isnan(empty_interval).all()
        assert np.isnan(paired_tests(values, groups)).all()
    assert np.isnan(mean_intervals(np.empty((0, 1)), np.empty(0))[0]).all()
    assert np.isnan(gain_share_interval([0.5, 1], [0, 0], [1, 1], [3, 3])[1:]).all()
    assert np.isnan(ratio_intervals(np.zeros((3, 1)), np.zeros((3, 1)))[0]).all()


def test_equal_values_are_exact() -> None:
    """If no query differs, the interval has no width, and equal methods have p = 1."""
    assert mean_intervals(np.ones((6, 1)), np.arange(6) // 2)[0] == (1, 1, 1)
    assert paired_tests(np.zeros((6, 2))).tolist() == [1, 1]
    assert paired_tests(np.ones((6, 1))).tolist() == [0]


@pytest.mark.parametrize("groups", [[0, 1], [[0, 1, 2]], [0.5, 1, 2], ["a", "b", "c"], 3])
def test_other_groups_are_refused(groups: npt.ArrayLike) -> None:
    for function in (mean_intervals, paired_tests):
        with refused("groups", "must be 3 whole numbers"):
            function(np.ones((3, 1)), groups)


def test_other_shapes_are_refused() -> None:
    with refused("values"):
        mean_intervals(np.ones(3))
    with refused("differences"):
        paired_tests(np.ones(3))


@pytest.mark.parametrize("degrees", [1, 1.5, 2, 3, 4.2, 9, 59, 299, 10_000])
def test_student_t_agrees_with_scipy(degrees: float) -> None:
    assert critical_t(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-8)
    for t in (0.0, 1e-6, 0.3, 1.0, 2.0, 5.0, 30.0, -2.0):
        assert two_sided_p(t, degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), rel=1e-8)
    assert two_sided_p(math.inf, degrees) == 0
    assert math.isnan(two_sided_p(math.nan, degrees))
