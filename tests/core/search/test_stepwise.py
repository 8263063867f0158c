"""Selection one pick at a time equals the kernels that make all picks, and obeys flags."""

from dataclasses import replace
from typing import Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kernels.test_greedy import METRICS, Case, Metrics, Rule, cases
from core.kernels.test_greedy import parameters as greedy_parameters
from core.search.test_selectors import candidates_of, picked, value_of
from core.search.test_selectors import parameters as other_parameters
from divgrpc.parameters import QueryParameters
from divgrpc.search.stepwise import Flags, StepwiseSelection
from divgrpc.types import EffectiveParameters, IntArray, Selector
from reference import definitions

examples = settings(max_examples=40)
dials = st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
numbers = st.sampled_from([1, 2, 3, 8, 40])
Name = Rule | Literal["rerank", "max_sum", "dpp", "nearest"]
GREEDY: list[Rule] = ["corrected", "printed", "marginal", "mmr"]
NAMES: list[Name] = [*GREEDY, "rerank", "max_sum", "dpp"]
# The selectors whose next pick does not depend on the number of results.
JOINABLE = ["corrected", "printed", "mmr", "dpp"]


def parameters(name: Name, k: int, dial: float) -> EffectiveParameters:
    """Return the parameters of a selector or of a variant of `greedy`."""
    if name == "nearest":
        return QueryParameters(k=k, selector="nearest").resolve(10**6, "scan")
    if name in GREEDY:
        return greedy_parameters(k, dial, name)
    return other_parameters(k, dial, cast("Selector", name))


def all_at_once(case: Case, query_parameters: EffectiveParameters) -> tuple[list[int], list[float]]:
    """Return the rows and the values that the kernels pick."""
    if query_parameters.selector in {"greedy", "mmr"} and query_parameters.diversity:
        return case.select(query_parameters, list(range(len(case.vectors))))
    rows, picks = picked(case, query_parameters)
    return rows, picks.values.tolist()


def one_by_one(
    case: Case,
    query_parameters: EffectiveParameters,
    shown: list[int] | None = None,
    allowed: Flags | None = None,
) -> tuple[list[int], list[float]]:
    """Return the rows and the values of a stepwise selection; `allowed` has a flag for each row."""
    among = candidates_of(case)
    earlier: IntArray | None = None if shown is None else np.array(shown, np.int64)
    selection = StepwiseSelection(among, query_parameters, case.metric, earlier)
    rows: list[int] = []
    values: list[float] = []
    while len(rows) < query_parameters.k:
        place, value = selection.best(None if allowed is None else allowed[among.rows])
        if place < 0:
            break
        assert selection.selectable[place]
        selection.pick(place)
        assert not selection.selectable[place]
        rows.append(int(among.rows[place]))
        values.append(value)
    assert not among.scratch.dense.any()
    return rows, values


@pytest.mark.parametrize("name", NAMES)
@examples
@given(case=cases([1, 2, 5, 25], [1, 2, 15, 16, 33]), k=numbers, dial=dials)
def test_steps_equal_the_kernels(name: Name, case: Case, k: int, dial: float) -> None:
    """Both have the same picks and values, to the bit."""
    query_parameters = parameters(name, min(k, len(case.vectors)), dial)
    if dial == 0 and name == "printed":
        return
    rows, values = one_by_one(case, query_parameters)
    their_rows, their_values = all_at_once(case, query_parameters)
    assert rows == their_rows[: len(rows)]
    assert len(rows) == min(k, len(case.vectors))
    assert np.array(values, np.float32).tolist() == their_values[: len(rows)]


@pytest.mark.parametrize("name", JOINABLE)
@examples
@given(
    case=cases([2, 5, 25], [1, 2, 15, 16, 33]),
    dial=dials,
    first=st.sampled_from([1, 2, 7]),
    second=st.sampled_from([1, 3, 9]),
)
def test_pages_join_to_the_long_list(
    name: Name, case: Case, dial: float, first: int, second: int
) -> None:
    long = one_by_one(case, parameters(name, first + second, dial))
    page = one_by_one(case, parameters(name, first, dial))
    assert page[0] == long[0][:first]
    following = one_by_one(case, parameters(name, second, dial), shown=page[0])
    assert (page[0] + following[0], page[1] + following[1]) == long


@pytest.mark.parametrize("name", [*NAMES, "nearest"])
@examples
@given(
    case=cases([5, 25], [2, 15, 16], [0.0]),
    dial=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_allowed_candidates_are_picked_as_if_no_others_existed(
    name: Name, case: Case, dial: float, seed: int
) -> None:
    """A shortlist and scaled costs depend on all candidates, so their rules are tested below."""
    count = len(case.vectors)
    allowed = np.random.default_rng(seed).random(count) < 0.6
    rows, values = one_by_one(case, parameters(name, 4, dial), allowed=allowed)
    assert len(rows) == min(4, allowed.sum())
    assert allowed[rows].all()
    unit = name == "dpp" and case.metric == "euclidean"
    if name in {"rerank", "max_sum", "marginal"} or case.metric == "inner_product" or unit:
        return
    few = replace(case, vectors=case.vectors[allowed])
    fewer_rows, fewer_values = one_by_one(few, parameters(name, 4, dial))
    assert np.flatnonzero(allowed)[fewer_rows].tolist() == rows
    assert fewer_values == values


def truth(
    case: Case, query_parameters: EffectiveParameters, before: list[int], row: int, shown: int
) -> float:
    """Return the value of picking a row after others, which include `shown` points of before."""
    points, k = case.points(), query_parameters.k + shown
    longer = replace(query_parameters, k=k)
    if query_parameters.selector in {"greedy", "mmr"}:
        near = definitions.costs(points, case.query, range(len(case.vectors)))
        return definitions.step_value(points, near[row], row, before, longer, k=k)
    return value_of(points, case.query, longer, before, row)


@pytest.mark.parametrize("name", [*GREEDY, "max_sum", "dpp"])
@examples
@given(
    case=cases([12, 25], [15, 16, 33], [0.0]),
    dial=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_every_step_minimises_the_formula(name: Name, case: Case, dial: float, seed: int) -> None:
    """After points that were shown, and among the allowed candidates."""
    rng = np.random.default_rng(seed)
    count = len(case.vectors)
    shown = rng.permutation(count)[:3].tolist()
    allowed = rng.random(count) < 0.7
    query_parameters = parameters(name, 4, dial)
    rows, values = one_by_one(case, query_parameters, shown, allowed)
    for step, (row, value) in enumerate(zip(rows, values, strict=True)):
        before = shown + rows[:step]
        rows_left = [r for r in np.flatnonzero(allowed).tolist() if r not in before]
        values_of = {r: truth(case, query_parameters, before, r, 3) for r in rows_left}
        room = case.room * (4 + step) + 1e-3 * case.room**0.5 + (0.02 if name == "dpp" else 0)
        assert values_of[row] <= min(values_of.values()) + room
        assert abs(-value - values_of[row]) <= room


def test_a_shortlist_without_an_allowed_candidate_is_left() -> None:
    case = Case.draw(3, 30, 8)
    query_parameters = parameters("rerank", 2, 0.1)
    among = candidates_of(case)
    allowed = np.zeros(30, np.bool_)
    allowed[among.rows[[1, 20]]] = True
    rows, _ = one_by_one(case, query_parameters, allowed=allowed)
    assert rows == among.rows[[1, 20]].tolist()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", [*NAMES, "nearest"])
def test_more_picks_than_were_planned(name: Name, metric: Metrics) -> None:
    case = Case.draw(5, 40, 12, 0.2, metric)
    selection = StepwiseSelection(candidates_of(case), parameters(name, 2, 0.5), metric)
    places = []
    while (place := selection.best()[0]) >= 0:
        selection.pick(place)
        places.append(place)
    assert sorted(places) == list(range(40))


def test_sparse_points_get_the_same_picks() -> None:
    for name in NAMES:
        case = Case.draw(7, 30, 20)
        query_parameters = parameters(name, 6, 0.4)
        sparse = replace(case, stored_sparse=True)
        steps: list[tuple[list[int], list[float]]] = [
            one_by_one(sparse, query_parameters), all_at_once(sparse, query_parameters)
        ]  # fmt: skip
        assert steps[0][0] == steps[1][0]
        assert np.array(steps[0][1], np.float32).tolist() == steps[1][1]
