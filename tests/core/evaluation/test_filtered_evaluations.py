"""An evaluation with a filter is one of the points that pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from divgrpc import Field, Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.types import EvaluateRow
from support.data.served_index import random_points

N, DIMS = 400, 12
POINTS = random_points(N, dims=DIMS)
QUERIES = random_points(14, dims=DIMS, seed=9)
CATEGORIES, SUBTOPICS = np.arange(N) % 4 - 1, np.arange(N) // 4 % 3
OF_QUERIES = np.arange(14) % 3
# Build measures the similarity of near-copies for each index, so none are collapsed here.
GRID = Grid(
    selectors=("nearest", "greedy"),
    searches=("exact",),
    diversities=(0.2, 0.7),
    ks=(5,),
    keep_duplicates=True,
)
CHEAP = Field("price") < 150


def index_of(rows: slice, name: Callable[[int], Any]) -> Index:
    numbers = np.arange(N)[rows]
    return Index.build(
        POINTS[rows],
        ids=[name(number) for number in numbers.tolist()],
        categories=CATEGORIES[rows],
        subtopics=SUBTOPICS[rows],
        attributes={"price": numbers},
    )


def figures(rows: list[EvaluateRow]) -> list[tuple[Any, ...]]:
    """Return what does not depend on time."""
    return [
        (repr(r.metrics), r.h_of_means, r.parameters, r.by_fold, r.empty, r.short) for r in rows
    ]


@pytest.mark.parametrize("name", [lambda n: 3 * n, lambda n: f"n{n}"], ids=["int64", "string"])
@pytest.mark.parametrize("by_category", [True, False])
def test_a_filtered_evaluation_is_one_of_the_points_that_pass(
    name: Callable[[int], Any], by_category: bool
) -> None:
    index, cheap = index_of(slice(None), name), index_of(slice(150), name)
    truth: dict[str, Any] = {"categories": OF_QUERIES}
    of_cheap = truth
    if not by_category:
        relevant = [[*range(q, 150, 20), *range(200 + q, 400, 50)] for q in range(14)]
        truth = {"relevant": [[name(n) for n in numbers] for numbers in relevant]}
        of_cheap = {"relevant": [[name(n) for n in range(q, 150, 20)] for q in range(14)]}
    filtered = list(evaluate(index, QUERIES, grid=GRID, filter=CHEAP, **truth))
    assert figures(filtered) == figures(list(evaluate(cheap, QUERIES, grid=GRID, **of_cheap)))
    assert figures(filtered) != figures(list(evaluate(index, QUERIES, grid=GRID, **truth)))


@pytest.mark.parametrize(
    ("options", "field", "rule"),
    [
        ({"categories": OF_QUERIES, "set_default": True}, "set_default", "not go with a filter"),
        ({"relevant": [[1]] * 13 + [[399]]}, "relevant", "no point for query 13 that passes"),
        ({"categories": np.full(14, 2), "filter": Field("price") < 2}, "categories", "category 2"),
        ({"categories": OF_QUERIES, "filter": 3}, "filter", "must be conditions"),
        ({"categories": OF_QUERIES, "filter": Field("a") == 1}, "filter", "declares price"),
    ],
)
def test_a_wrong_call_names_the_field(options: dict[str, Any], field: str, rule: str) -> None:
    index = index_of(slice(None), int)
    with pytest.raises(InvalidArgumentError, match=rule) as raised:
        list(evaluate(index, QUERIES, grid=GRID, **({"filter": CHEAP} | options)))
    assert raised.value.field == field
