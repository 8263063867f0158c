"""The choices of a build, on recalls and times that are made up: no clock and no index."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc import tuning
from divgrpc.types import Search, SearchCost

Recall = Callable[[int], float]


def sample(recall: Recall, most: int, least: int = 1) -> tuple[Any, list[int]]:
    """Return a sample whose tables find so much with so many probes, and what was asked for."""
    asked: list[int] = []

    def of(search: Search, probes: int) -> float:
        assert search == "tables"
        asked.append(probes)
        return recall(probes)

    searcher = SimpleNamespace(max_probes=most, least_probes=least)
    return SimpleNamespace(searcher=searcher, recall=of), asked


@given(most=st.integers(1, 5_000), needed=st.integers(1, 5_000), least=st.integers(1, 20))
def test_the_fewest_probes_are_found_to_a_32nd(most: int, needed: int, least: int) -> None:
    """Enough are taken, at most a 32nd more than that, in few steps; else all that there are."""
    most = max(most, least)
    made, asked = sample(lambda probes: min(1.0, probes / needed), most, least)
    found = tuning._tune_probes(made, 1.0)
    if needed > most:
        assert found == most
        return
    fewest = max(needed, least)
    assert fewest <= found <= fewest + fewest // 31
    assert len(set(asked)) <= 2 + (most // least).bit_length() + 6
    if fewest < 32:
        assert found == fewest


def test_probes_that_find_less_are_given_up() -> None:
    """Past the hash limit more probes find less: those that found most are taken."""
    made, asked = sample(lambda probes: 0.8 - abs(probes - 64) / 100, 10**6)
    assert tuning._tune_probes(made, 0.9) == 64
    assert max(asked) <= 256


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({"exact": (1.0, 100), "scan": (0.95, 90), "tables": (0.95, 85)}, "exact"),
        ({"exact": (1.0, 100), "scan": (0.95, 70), "tables": (0.95, 60)}, "scan"),
        ({"exact": (1.0, 100), "scan": (0.95, 70), "tables": (0.95, 50)}, "tables"),
        ({"exact": (1.0, 100), "scan": (0.85, 10), "tables": (0.95, 50)}, "tables"),
        ({"exact": (1.0, 100), "scan": (0.85, 10), "tables": (0.89, 1)}, "exact"),
    ],
)
def test_what_depends_on_the_points_must_be_clearly_faster(
    found: dict[Search, tuple[float, float]], chosen: Search
) -> None:
    """By a fifth, and only where it finds enough."""
    costs = tuple(SearchCost(search, *cost) for search, cost in found.items())
    assert tuning._choose(costs, 0.9) == chosen
