"""The small kernels of shards, compared with slow twins."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.arrays import read_only
from divgrpc.kernels import shards
from divgrpc.sharding.searcher import nearest_places


@given(st.data())
def test_the_nearest_points_come_first_and_ties_by_id(data: st.DataObject) -> None:
    quarters = data.draw(st.lists(st.integers(0, 5), max_size=80))
    distances = np.array([quarter / 4 for quarter in quarters], np.float32)
    ids = np.array(data.draw(st.permutations(range(len(distances)))), np.int64) << 33
    count = data.draw(st.integers(0, len(ids)))
    places = nearest_places(ids, distances, count)
    expected = np.lexsort((ids, distances))[:count]
    if count == len(ids):
        places, expected = np.sort(places), np.sort(expected)
    assert places.tolist() == expected.tolist()


def fault(**changes: Any) -> int:  # noqa: ANN401  # arrays of any type
    columns: dict[str, Any] = {
        "margins": np.ones(8, np.float32),
        "cells": np.array([2, 0], np.int32),
        "bases": np.ones(2, np.float32),
        "dense": np.ones(3, np.float32),
        "values": np.ones(4, np.float32),
    }
    columns = {name: read_only(array) for name, array in (columns | changes).items()}
    return int(shards.find_fault(*columns.values(), 3))


def test_a_question_without_a_fault_has_none() -> None:
    assert fault() == shards.NO_FAULT
    none = {"cells": np.empty(0, np.int32), "bases": np.empty(0, np.float32)}
    assert fault(**none) == shards.NO_FAULT


@pytest.mark.parametrize("name", ["margins", "bases", "dense", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_of_a_question_are_finite(name: str, value: float) -> None:
    for place in (0, 1):
        numbers = np.ones(2, np.float32)
        numbers[place] = value
        assert fault(**{name: numbers}) == shards.NOT_FINITE


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([2, 3], shards.BAD_CELL),
        ([-1, 0], shards.BAD_CELL),
        ([1, 1], shards.CELL_TWICE),
        ([0, 1, 2], shards.BAD_BASES),
    ],
)
def test_cells_of_a_question_are_different_and_exist(cells: list[int], expected: int) -> None:
    assert fault(cells=np.array(cells, np.int32)) == expected
