"""Explanations within quotas and groups: which better point was refused, by which rule, and when.

The slow twin of the kernels `replay.explain` and `quota_picks.explain_refusals` is `Twin`. It finds
by enumeration which points a selection within the quotas may still pick.
"""

from collections import Counter
from dataclasses import fields
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from divgrpc import GroupBy, Index, Quota
from divgrpc.arrays import read_only
from divgrpc.columns.quotas import rules_of
from divgrpc.kernels.records import Points
from divgrpc.kernels.registers import record_of
from divgrpc.metrics import recompute_picks
from divgrpc.search.quota_search import may_drop_forbidden
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.stepwise import StepwiseSelection
from divgrpc.types import Explanation, FloatArray, Metric, QueryResult, Refusal, Selector
from divgrpc.types.quotas import QuotaRule, Quotas
from divgrpc.types.records import IdArray, Scalar
from reference.index import selection_scratch
from reference.quotas import Instance

SELECTORS: list[Selector] = ["nearest", "greedy", "mmr", "max_sum", "dpp"]
SELECTORS_AND_RERANK: list[Selector] = [*SELECTORS, "rerank"]
METRICS: list[Metric] = ["cosine", "euclidean", "inner_product"]


def check_picks(
    result: QueryResult, metric: Metric, queries: FloatArray, points: FloatArray
) -> int:
    """Compute every pick anew, and return the number of picks."""
    count = 0
    for row, explanation in enumerate(result.explanations):
        ids = result.ids[row, : result.counts[row]]
        values, rivals = recompute_picks(
            result, row, metric, queries[row], vectors=points[ids.astype(int)],
            displaced_vectors=points[explanation.displaced_ids],
        )  # fmt: skip
        in_order = np.argsort(explanation.pick_numbers)
        scores = result.selection_scores[row, in_order[: len(values)]]
        room = 1e-4 * np.maximum(1, np.abs(scores))
        assert (np.abs(values - scores) <= room).all()
        assert (rivals <= values + room).all()
        count += len(values)
        check_held_back(result, row)
    return count


def check_held_back(result: QueryResult, row: int) -> None:
    """Check that each point held back has a refusal, and a better score than the result."""
    explanation = result.explanations[row]
    refused = {refusal.place for refusal in explanation.refusals}
    for place, best in enumerate(explanation.held_back.tolist()):
        if best < 0:
            continue
        assert best in refused
        first = int(explanation.displaced_by[best])
        assert explanation.pick_numbers[first] <= explanation.pick_numbers[place]
        if first == place:
            terms, penalties = (
                explanation.displaced_relevance_terms, explanation.displaced_penalties,
            )  # fmt: skip
            score = result.selection_scores[row, place]
            assert terms[best] - penalties[best] >= score - 1e-4 * max(1, abs(score))


class Twin:
    """The picks of a small instance, and what quotas refused, by enumeration."""

    def __init__(self, instance: Instance, picks: list[int]) -> None:
        self.instance, self.picks, self.least = instance, picks, instance.least_shortfall()

    def is_open(self, step: int, point: int) -> bool:
        """Whether some best selection has the picks before a step, and the point."""
        picks, k = [*self.picks[:step], point], self.instance.k
        remaining = [i for i in range(self.instance.points) if i not in picks]
        return any(
            self.instance.shortfall([*picks, *further]) == self.least
            for size in range(k - len(picks) + 1)
            for further in combinations(remaining, size)
        )

    def is_forbidden(self, point: int) -> bool:
        """Whether a point has a value that may have no results, and is no candidate."""
        if not may_drop_forbidden(Quotas(self.instance.quotas)):
            return False
        return any(
            self.bounds_of(quota, value).max == 0
            for quota, values in enumerate(self.instance.values)
            for value in values[point]
        )

    def bounds_of(self, quota: int, value: Scalar | None) -> QuotaRule:
        """Return the bounds on one value."""
        one = self.instance.quotas[quota]
        rules = [rule for rule in one.rules if isinstance(rule, QuotaRule) and rule.value == value]
        return rules[0] if rules else QuotaRule(value, one.min_each, one.max_each)

    def holds(self, step: int, point: int, refusal: Refusal) -> bool:
        """Whether a refusal says what is so before a step."""
        if refusal.rule == "quotas":
            return refusal.attribute == "" and refusal.value is None
        names = [quota.attribute for quota in self.instance.quotas]
        quota = names.index(refusal.attribute)
        values = self.instance.values[quota]
        counts: Counter[Any] = Counter(v for pick in self.picks[:step] for v in values[pick])
        bounds = self.bounds_of(quota, refusal.value)
        if refusal.rule == "max":
            return refusal.value in values[point] and counts[refusal.value] == bounds.max
        # The value needs results, and the point does not have it.
        missing = refusal.value not in values[point]
        return refusal.rule == "min" and missing and (bounds.min or 0) > counts[refusal.value]


def stepwise(
    points: FloatArray, query: FloatArray, result: QueryResult
) -> tuple[StepwiseSelection, list[int]]:
    """Return the slow selection over all points, nearest first, and their order."""
    distances = ((points - query) ** 2).sum(axis=1, dtype=np.float32)
    order = np.argsort(distances, kind="stable")
    record = record_of(Points, {"vectors": read_only(points)}, {"d": points.shape[1]})
    scratch = selection_scratch(len(points), record)
    candidates = CandidateSet(record, order.astype(np.int32), distances[order], scratch)
    return StepwiseSelection(candidates, result.parameters, "euclidean"), order.tolist()


@pytest.mark.parametrize("selector", SELECTORS)
def test_refusals_are_those_of_enumeration(selector: Selector) -> None:
    rng = np.random.default_rng(SELECTORS.index(selector))
    rules: Counter[str] = Counter()
    for _ in range(100):
        instance = draw(rng)
        points = rng.standard_normal((instance.points, 2)).astype(np.float32)
        query = np.full(2, 0.3, np.float32)
        result = query_of(instance, points, query, selector, float(rng.choice([0, 0.3, 1])))
        (explanation,) = result.explanations
        count = int(result.counts[0])
        assert check_picks(result, "euclidean", query[np.newaxis], points) == count
        twin = Twin(instance, result.ids[0, :count].tolist())
        slow, order = stepwise(points, query, result)
        for step in range(count):
            best, value = best_refused(twin, step, slow, order)
            of_pick = value_at(slow, order, twin.picks[step])
            place = int(explanation.held_back[step])
            if value > of_pick + 1e-5:
                assert place >= 0, instance
                assert explanation.displaced_ids[place] == best, instance
            elif value < of_pick - 1e-5:
                assert place < 0, instance
            if place >= 0:
                refusal = explanation.refusal(place)
                assert refusal is not None
                first, point = explanation.displaced_by[place], explanation.displaced_ids[place]
                assert twin.holds(int(first), int(point), refusal), instance
                rules[refusal.rule] += 1
            slow.pick(order.index(twin.picks[step]))
    assert min(rules["max"], rules["min"]) > 10


def draw(rng: np.random.Generator) -> Instance:
    """Draw an instance whose quotas a query takes and can meet, with a value of each attribute."""
    while True:
        instance = Instance.draw(rng)
        bounds = [rule for quota in instance.quotas for rule in rules_of(quota)]
        has_values = all(any(v != (None,) for v in values) for values in instance.values)
        has_bounds = all(rule.min is not None or rule.max is not None for rule in bounds)
        is_asked = all(len(rules_of(q)) or q.max_each or q.min_each for q in instance.quotas)
        lows = [sum(rule.min or 0 for rule in rules_of(quota)) for quota in instance.quotas]
        if not (has_values and has_bounds and is_asked and max(lows) <= instance.k):
            continue
        # Of quotas that cannot be met, several selections miss as little as possible.
        if instance.points > 3 and not instance.least_shortfall():
            return instance


def query_of(
    instance: Instance, points: FloatArray, query: FloatArray, selector: Selector, dial: float
) -> QueryResult:
    """Query the points of an instance within its quotas."""
    columns = dict(
        zip(
            [quota.attribute for quota in instance.quotas],
            instance.columns(range(instance.points)),
            strict=True,
        )
    )
    index = Index.build(points, metric="euclidean", attributes=columns)
    return index.query(
        query, k=instance.k, diversity=dial, selector=selector, quotas=instance.quotas,
        on_infeasible="relax", explain=True, keep_duplicates=True,
    )  # fmt: skip


def value_at(slow: StepwiseSelection, order: list[int], point: int) -> float:
    """Return the value of one point at the step of a slow selection."""
    allowed = np.zeros(len(order), np.bool_)
    allowed[order.index(point)] = True
    return slow.best(allowed)[1]


def best_refused(
    twin: Twin,
    step: int,
    slow: StepwiseSelection,
    order: list[int],
) -> tuple[int, float]:
    """Return the best point that no best selection can have after the picks, and its value."""
    refused = [
        point
        for point in range(twin.instance.points)
        if point not in twin.picks and not (twin.is_forbidden(point) or twin.is_open(step, point))
    ]
    values = {point: value_at(slow, order, point) for point in refused}
    best = max(values, key=lambda point: values[point], default=-1)
    return best, values.get(best, -np.inf)


ROWS = 1_500


def brand_data() -> tuple[FloatArray, dict[str, list[Any]]]:
    """Return points around the centres of their brands, with near-copies, and attributes."""
    rng = np.random.default_rng(3)
    brands = rng.integers(0, 25, ROWS)
    points = rng.standard_normal((25, 12))[brands] + 0.4 * rng.standard_normal((ROWS, 12))
    points[-200:] = points[:200] + 1e-3 * rng.standard_normal((200, 12))
    sources = rng.choice(["own", "web", "ads"], ROWS, p=[0.01, 0.5, 0.49])
    tags = [sorted({f"t{tag}" for tag in rng.integers(0, 6, row % 4)}) for row in range(ROWS)]
    return points.astype(np.float32), {
        "brand": [f"b{brand}" for brand in brands],
        "source": sources.tolist(),
        "tags": tags,
    }


def as_lists(column: list[Any]) -> list[list[Any]]:
    return [value or [None] if isinstance(value, list) else [value] for value in column]


POINTS, ATTRIBUTES = brand_data()
VALUES = {name: as_lists(column) for name, column in ATTRIBUTES.items()}
QUOTAS: dict[str, dict[str, Any]] = {
    "one attribute": {"quotas": [Quota("brand", max_each=2)]},
    "a rare value": {"quotas": [Quota("source", max_each=6, rules={"own": (3, 4)})]},
    "three attributes": {
        "quotas": [
            Quota("brand", max_each=2),
            Quota("source", rules={"own": (2, 3)}),
            Quota("tags", max_each=4, rules={"t1": (3, None)}),
        ]
    },
    "groups": {"group_by": GroupBy("brand", groups=4, per_group=2)},
    "large groups": {"group_by": GroupBy("source", groups=2, per_group=4)},
}


@pytest.fixture(scope="module", params=METRICS)
def index(request: pytest.FixtureRequest) -> Index:
    return Index.build(POINTS, metric=request.param, attributes=ATTRIBUTES)


@pytest.mark.parametrize("limits", QUOTAS)
@pytest.mark.parametrize("selector", SELECTORS_AND_RERANK)
def test_every_pick_can_be_computed_anew(selector: Selector, limits: str, index: Index) -> None:
    metric: Metric = index.engine.manifest.parameters.metric
    dials: list[dict[str, Any]] = [{"diversity": 0.4}, {"diversity": "auto"}, {"lose_at_most": 0.2}]
    # One of the dials for each combination, so that each selector and limit gets all.
    number = SELECTORS_AND_RERANK.index(selector) + [*QUOTAS].index(limits) + METRICS.index(metric)
    dial = dials[0] if selector == "nearest" else dials[number % 3]
    options = {"selector": selector, "k": 8, **QUOTAS[limits], **dial}
    queries = POINTS[:ROWS:400]
    result = index.query(queries, explain=True, **options)
    same = index.query(queries, list_collapsed=True, **options)
    for column in ("ids", "scores", "selection_scores", "collapsed_ids", "collapsed_offsets"):
        assert np.array_equal(getattr(result, column), getattr(same, column), equal_nan=True)
    picks = (result.counts - result.stats.duplicates).sum()
    assert check_picks(result, metric, queries, POINTS) == picks
    for row, explanation in enumerate(result.explanations):
        check_refusals(explanation, result.ids[row, : result.counts[row]], QUOTAS[limits])
        terms = explanation.relevance_terms - explanation.penalties
        assert np.allclose(terms, result.selection_scores[row, : result.counts[row]], atol=1e-5)


def check_refusals(explanation: Explanation, ids: IdArray, limits: dict[str, Any]) -> None:
    """Compare each refusal with the values of the picks before it."""
    results = [int(ids[place]) for place in np.argsort(explanation.pick_numbers)]
    quotas = {quota.attribute: quota for quota in limits.get("quotas", ())}
    for refusal in explanation.refusals:
        point = int(explanation.displaced_ids[refusal.place])
        assert point not in results
        step = explanation.pick_numbers[explanation.displaced_by[refusal.place]]
        before = results[:step]
        if refusal.rule == "quotas":
            assert len(quotas) > 1
            continue
        values = VALUES[refusal.attribute]
        counts = Counter(value for pick in before for value in values[pick])
        if refusal.rule == "groups":
            assert values[point] == [refusal.value]
            assert refusal.value not in {value for pick in results for value in values[pick]}
        elif refusal.rule == "max":
            assert refusal.value in values[point]
            most = limits["group_by"].per_group if "group_by" in limits else 0
            if refusal.attribute in quotas:
                quota = quotas[refusal.attribute]
                bounds = {rule.value: rule.max for rule in rules_of(quota)}
                most = bounds.get(refusal.value, quota.max_each)
            assert counts[refusal.value] == most
        else:
            rules = {rule.value: rule.min or 0 for rule in rules_of(quotas[refusal.attribute])}
            assert refusal.value not in values[point]
            assert counts[refusal.value] < rules[refusal.value]


def test_a_result_says_which_value_held_a_better_point_back() -> None:
    points = np.array([[1, 0], [1, 0.1], [1, 0.2], [1, 0.9], [0, 1]], np.float32)
    index = Index.build(points, attributes={"brand": ["a", "a", "a", "b", "c"]})
    options: dict[str, Any] = {"k": 3, "diversity": 0, "keep_duplicates": True, "explain": True}
    (explanation,) = index.query(
        points[0], quotas=[Quota("brand", max_each=1)], **options
    ).explanations
    assert explanation.plain_ranks.tolist() == [1, 4, 5]
    assert explanation.displaced_ids.tolist() == [1, 2]
    assert explanation.held_back.tolist() == [-1, 0, 0]
    assert explanation.refusal(0) == Refusal(0, "max", "brand", "a")
    assert explanation.displaced_by.tolist() == [1, 1]
    (explanation,) = index.query(
        points[0], quotas=[Quota("brand", rules={"c": (1, None), "b": (1, None)})], **options
    ).explanations
    assert explanation.plain_ranks.tolist() == [1, 4, 5]
    rules = [(refusal.rule, refusal.value) for refusal in explanation.refusals]
    assert rules == [("min", "b"), ("min", "b")]


def test_quotas_together_refuse_a_point_that_each_alone_allows() -> None:
    points = np.array([[1, 0], [1, 0.2], [1, 0.9]], np.float32)
    index = Index.build(points, attributes={"a": list("xxy"), "b": list("uvu")})
    quotas = [Quota("a", max_each=1), Quota("b", max_each=1)]
    result = index.query(
        points[0], k=2, quotas=quotas, diversity=0, keep_duplicates=True, explain=True
    )
    (explanation,) = result.explanations
    assert result.ids[0].tolist() == [1, 2]
    assert explanation.displaced_ids.tolist() == [0]
    assert explanation.held_back.tolist() == [0, 0]
    assert explanation.refusals == (Refusal(0, "quotas", "", None),)


def test_results_in_groups_have_their_numbers_of_picking() -> None:
    index = Index.build(POINTS, attributes=ATTRIBUTES)
    group_by = GroupBy("brand", groups=4, per_group=3)
    result = index.query(POINTS[5], group_by=group_by, explain=True, diversity=0.6)
    (explanation,) = result.explanations
    assert sorted(explanation.pick_numbers.tolist()) == list(range(12))
    numbers = dict(zip(result.ids[0].tolist(), explanation.pick_numbers.tolist(), strict=True))
    for point, cause in zip(result.ids[0].tolist(), explanation.caused_by.tolist(), strict=True):
        assert cause == -1 or numbers[cause] < numbers[point]
    assert {refusal.rule for refusal in explanation.refusals} == {"max", "groups"}


def test_a_result_that_only_a_search_for_a_value_finds_has_no_plain_rank() -> None:
    index = Index.build(POINTS, attributes=ATTRIBUTES)
    quotas = [Quota("source", rules={"own": (8, None)})]
    result = index.query(POINTS[0], k=8, quotas=quotas, explain=True, candidates_limit=20)
    (explanation,) = result.explanations
    assert 0 in explanation.plain_ranks
    plain = index.query(POINTS[0], k=8, candidates_limit=20)
    assert explanation.plain_ranks.max() <= int(plain.stats.candidates[0])
    assert int(plain.stats.candidates[0]) < int(result.stats.candidates[0])


def test_near_copies_in_other_groups_are_listed() -> None:
    """A result stands for a near-copy in a group that was not opened."""
    angles = np.arange(60)
    crowd = np.stack(
        [np.ones(60), 0.05 + 0.02 * angles, 0.3 * np.sin(angles), 0.3 * np.cos(angles)], axis=1
    )
    first = np.array([[1, 0.01, 0, 0], [1, 0.01, 0.0001, 0]])
    points = np.concatenate((first, crowd, [[-1, 1, 0, 0]])).astype(np.float32)
    index = Index.build(points, attributes={"brand": ["A", "B", *["B"] * 60, "A"]})
    for per_group in (1, 2):
        result = index.query(
            [1, 0, 0, 0], group_by=GroupBy("brand", groups=1, per_group=per_group), diversity=0,
            candidates_limit=10, duplicate_threshold=0.999, explain=True,
        )  # fmt: skip
        assert result.collapsed(0, 0).tolist() == [1]


def test_quotas_that_bind_nothing_explain_as_none() -> None:
    index = Index.build(POINTS, attributes=ATTRIBUTES)
    for selector in SELECTORS:
        options: dict[str, Any] = {"selector": selector, "explain": True, "diversity": 0.3}
        plain = index.query(POINTS[:3], **options)
        within = index.query(POINTS[:3], quotas=[Quota("brand", max_each=10)], **options)
        for one, other in zip(plain.explanations, within.explanations, strict=True):
            assert one.refusals == other.refusals == ()
            for field in fields(Explanation):
                column, same = getattr(one, field.name), getattr(other, field.name)
                assert np.array_equal(column, same, equal_nan=field.name.endswith("distances"))
