"""The paper's lemma: its bound holds for one point but not for all, and Eq. 5 counts retrievals."""

import pytest

from divgrpc_lab import lemma


def test_the_bound_is_for_one_point() -> None:
    """One point is within the bound; all are within the bound with log(2m / delta) only."""
    for item in lemma.deviations():
        assert item.of_one <= item.bound_of_one < item.bound_of_all
        assert item.of_all <= item.bound_of_all
        assert item.within < 1 - lemma.DELTA


def test_home_buckets_hold_what_eq_5_predicts() -> None:
    """Longer keys retrieve fewer near points and far fewer far points."""
    items = lemma.retrieved()
    for item in items:
        assert item.near == pytest.approx(item.near_expected, abs=0.1 * lemma.NEAR)
        assert item.far == pytest.approx(item.far_expected, abs=0.05 * lemma.FAR)
        assert item.near + item.far <= item.points
    assert [item.near for item in items] == sorted((item.near for item in items), reverse=True)
    assert items[-1].far < 1 < items[-1].near
