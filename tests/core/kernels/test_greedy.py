"""Greedy selection in its three variants, and MMR, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.kernels import exact, greedy, records
from divgrpc.kernels.records import Objective, Points, Query
from divgrpc.parameters import QueryParameters
from divgrpc.types import EffectiveParameters
from reference import definitions, objectives
from reference.index import kernel_points, selection_scratch

examples = settings(max_examples=60)
seeds = st.integers(0, 2**32 - 1)
Rule = Literal["corrected", "printed", "marginal", "mmr"]
RULES: list[Rule] = ["corrected", "printed", "marginal", "mmr"]
CODES = {
    "corrected": records.CORRECTED_RULE,
    "printed": records.PRINTED_RULE,
    "marginal": records.MARGINAL_RULE,
    "mmr": records.MMR_RULE,
}
Metrics = Literal["cosine", "euclidean", "inner_product"]
METRICS: list[Metrics] = ["cosine", "euclidean", "inner_product"]
Vectors = npt.NDArray[np.float32]
# The allowed float32 error by metric. Under cosine, lengths are 1. Under the Euclidean metric, they
# are up to 100. Under the inner product, costs are scaled.
ROOM = {"cosine": 1e-6, "euclidean": 1e-2, "inner_product": 1e-5}


@dataclass
class Case:
    """Points and a query, unit vectors under cosine; row numbers are ids."""

    vectors: Vectors
    query: Vectors
    metric: Metrics = "cosine"
    stored_sparse: bool = False

    @classmethod
    def draw(
        cls,
        seed: int,
        count: int,
        dims: int,
        duplicates: float = 0.0,
        metric: Metrics = "cosine",
        *,
        stored_sparse: bool = False,
    ) -> "Case":
        """Draw points; a share `duplicates` of them are copies of other points.

        Lengths range from 1 to 100, except under cosine.
        """
        rng = np.random.default_rng(seed)
        vectors = definitions.unit(rng.standard_normal((count, dims)))
        again = rng.random(count) < duplicates
        vectors[again] = vectors[rng.integers(0, max(1, count), again.sum())]
        query = definitions.unit(rng.standard_normal((1, dims)))[0]
        if metric != "cosine":
            vectors *= 10 ** rng.uniform(0, 2, (count, 1))
            query *= 10
        return cls(vectors.astype(np.float32), query.astype(np.float32), metric, stored_sparse)

    @property
    def room(self) -> float:
        """The allowed difference between a value and the reference's."""
        return ROOM[self.metric]

    def points(self) -> definitions.Points:
        """Return the points in the form of the reference implementation, without hash codes."""
        return definitions.Points(
            vectors=self.vectors,
            ids=np.arange(len(self.vectors)),
            hyperplanes=np.empty((self.vectors.shape[1], 0)),
            thresholds=np.empty(0),
            bits=np.empty((len(self.vectors), 0), np.bool_),
            n_tables=0,
            n_bits=0,
            metric=self.metric,
        )

    def inverses(self) -> Vectors:
        """Return the inverse lengths of points, 0 for zero vectors.

        The array is empty except under the inner product.
        """
        long = np.linalg.norm(self.vectors.astype(np.float64), axis=1)
        lengths = long[: len(long) if self.metric == "inner_product" else 0]
        inverses = np.zeros(len(lengths), np.float32)
        np.divide(1, lengths, out=inverses, where=lengths > 0, casting="same_kind")
        inverses.setflags(write=False)
        return inverses

    def stored(self) -> Points:
        """Return the points in the form that kernels take."""
        return kernel_points(
            self.vectors, stored_sparse=self.stored_sparse, inverses=self.inverses()
        )

    def kernel_query(self) -> Query:
        """Return the query in the form that kernels take."""
        square = definitions.dot(self.query, self.query)
        return Query(self.query[np.newaxis], 0, square, self.metric == "inner_product")

    def costs(self, points: Points, order: npt.NDArray[np.int32]) -> Vectors:
        """Return the candidates' costs as an index computes them."""
        costs, query = np.empty(len(order), np.float32), self.kernel_query()
        exact.score_rows(points, query, order, len(order), costs)
        if query.product and len(order):
            greedy.scale_costs(costs.copy(), len(order), len(order) - 1, costs)
        return costs

    def select(
        self, query_parameters: EffectiveParameters, rows: list[int], *, has_marks: bool = False
    ) -> tuple[list[int], list[float]]:
        """Run the kernel over these candidate rows, nearest first, as an index does."""
        order = np.array(definitions.nearest_rows(self.points(), self.query, rows), np.int32)
        count, k = len(order), query_parameters.k
        points = self.stored()
        picks, values = np.full(k, -1, np.int64), np.full(k, np.nan, np.float32)
        selection = selection_scratch(count, points, has_marks=has_marks)
        objective = Objective(
            k,
            np.float32(1 - query_parameters.diversity),
            CODES["mmr" if query_parameters.selector == "mmr" else query_parameters.variant],
            product=self.metric == "inner_product",
            copy_limit=records.NO_COPIES,
        )
        pick_count, copies = greedy.greedy(
            points,
            order,
            self.costs(points, order),
            count,
            objective,
            selection,
            False,
            np.zeros(0, np.int8),
            picks,
            values,
        )
        assert (pick_count, copies) == (min(k, count), 0)
        assert (picks[pick_count:] == -1).all()
        assert not selection.dense.any()
        assert not selection.marks.any()
        return order[picks[:pick_count]].tolist(), values[:pick_count].tolist()


def cases(
    counts: Sequence[int], dims: Sequence[int], duplicates: Sequence[float] = (0.0, 0.5)
) -> st.SearchStrategy[Case]:
    sizes = map(st.sampled_from, (counts, dims, duplicates, METRICS))
    return st.builds(Case.draw, seeds, *sizes, stored_sparse=st.booleans())


def parameters(k: int, diversity: float, rule: Rule) -> EffectiveParameters:
    if rule == "mmr":
        query_parameters = QueryParameters(k=k, diversity=diversity, selector="mmr")
    else:
        query_parameters = QueryParameters(k=k, diversity=diversity, variant=rule)
    return query_parameters.resolve(10**6, "scan")


def check_steps(case: Case, query_parameters: EffectiveParameters, rows: list[int]) -> None:
    picks, values = case.select(query_parameters, rows)
    assert len(set(picks)) == len(picks)
    points, k = case.points(), min(query_parameters.k, len(rows))
    costs = definitions.costs(points, case.query, rows)
    for step, (pick, value) in enumerate(zip(picks, values, strict=True)):
        rest = [row for row in rows if row not in picks[:step]]
        truth = {
            row: definitions.step_value(
                points, costs[row], row, picks[:step], query_parameters, k=k
            )
            for row in rest
        }
        # Float32 sums of `step` distances.
        room = case.room * (1 + step)
        assert truth[pick] <= min(truth.values()) + room
        assert abs(-value - truth[pick]) <= room


@examples
@given(
    case=cases([1, 2, 5, 40], [1, 2, 15, 16, 17, 33]),
    k=st.sampled_from([1, 2, 3, 10, 50]),
    diversity=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]),
    rule=st.sampled_from(RULES),
)
def test_every_pick_minimises_the_formula(case: Case, k: int, diversity: float, rule: Rule) -> None:
    """The value that the kernel reports for the pick is the value of the formula."""
    check_steps(case, parameters(k, diversity, rule), list(range(len(case.vectors))))


@settings(examples, max_examples=100)
@given(
    case=cases([60], [24], [0.0]),
    rule=st.sampled_from(RULES),
    diversity=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_greedy_agrees_with_the_reference(case: Case, rule: Rule, diversity: float) -> None:
    """Points are in general position, so there are no ties."""
    query_parameters = parameters(12, diversity, rule)
    picks, values = case.select(query_parameters, list(range(60)))
    assert picks == [
        row for row, _ in definitions.greedy(case.points(), case.query, range(60), query_parameters)
    ]
    assert case.select(query_parameters, list(range(60)), has_marks=True) == (picks, values)


@pytest.mark.parametrize("rule", RULES)
def test_ties_go_by_distance_and_then_by_id(rule: Rule) -> None:
    """Points lie on a lattice, so all sums are exact and ties are frequent."""
    corners = np.array(list(product((-0.5, 0.5), repeat=4)) * 2, np.float32)
    case = Case(corners, corners[5])
    for diversity, k in product((0.0, 0.5, 1.0), (1, 2, 3)):
        query_parameters = parameters(k, diversity, rule)
        if rule == "printed" and k == 3:
            continue  # a third of a sum is not exact
        picks, _ = case.select(query_parameters, list(range(32)))
        twin = definitions.greedy(case.points(), case.query, range(32), query_parameters)
        assert picks == [row for row, _ in twin]


@examples
@given(seed=seeds, diversity=st.floats(0.01, 0.99), k=st.integers(2, 8))
def test_marginal_takes_the_greatest_decrease_of_the_objective(
    seed: int, diversity: float, k: int
) -> None:
    case = Case.draw(seed, 30, 12)
    picks, values = case.select(parameters(k, diversity, "marginal"), list(range(30)))

    # With k rows this is k J, whose decrease by a pick is the pick's value.
    def scaled_objective(rows: list[int]) -> float:
        near = sum(definitions.distance(case.query, row) for row in case.vectors[rows])
        pairs = sum(definitions.distance(*pair) for pair in combinations(case.vectors[rows], 2))
        return (1 - diversity) * near - 2 * diversity / (k - 1) * pairs

    for step in range(k):
        before, after = picks[:step], picks[: step + 1]
        decrease = scaled_objective(before) - scaled_objective(after)
        assert abs(values[step] - decrease) < 1e-5
        lowest = min(scaled_objective([*before, row]) for row in range(30) if row not in before)
        assert scaled_objective(after) <= lowest + 1e-5
    whole = objectives.objective(case.query, case.vectors[picks], diversity)
    assert abs(scaled_objective(picks) / k - whole) < 1e-9


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rows", [[], [7], [3, 9]])
def test_few_candidates_are_all_picked(rule: Rule, rows: list[int]) -> None:
    case = Case.draw(5, 12, 16)
    picks, _ = case.select(parameters(5, 0.4, rule), rows)
    assert sorted(picks) == rows
    check_steps(case, parameters(5, 0.4, rule), rows)


@examples
@given(values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1), equal=st.booleans())
def test_scale_costs_maps_distances_linearly_to_0_and_1(values: list[float], equal: bool) -> None:
    """The nearest candidate costs 0 and the farthest 1; if all distances are equal, all cost 0."""
    distances = np.sort(np.array(values[:1] * len(values) if equal else values, np.float32))
    costs = np.full(len(values) + 1, 9, np.float32)
    greedy.scale_costs(distances, len(values), len(values) - 1, costs)
    low, width = float(distances[0]), float(distances[-1]) - float(distances[0])
    truth = [(float(d) - low) / width if width else 0.0 for d in distances]
    assert np.abs(costs[:-1] - truth).max() < 1e-6
    assert (costs[0], costs[-1]) == (0, 9)
    if width:
        assert costs[-2] == 1


def test_zero_vectors_differ_by_1_under_the_inner_product() -> None:
    """The cosine between a zero vector and any vector, itself included, counts as 0."""
    for stored_sparse in (False, True):
        case = Case.draw(8, 12, 9, 0, "inner_product", stored_sparse=stored_sparse)
        case.vectors[[2, 5]] = 0
        for rule in RULES:
            check_steps(case, parameters(12, 0.6, rule), list(range(12)))
