"""Diversities that are chosen per query: the choice, its reason, and invalid requests."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from core.kernels.test_greedy import CODES, METRICS, RULES, Case, Metrics, Rule, cases, parameters
from core.search.test_selectors import candidates_of
from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid
from divgrpc.index import Index
from divgrpc.kernels import dials
from divgrpc.kernels.records import Candidates
from divgrpc.parameters import QueryParameters
from divgrpc.parameters.query import DIAL_STEPS
from divgrpc.search.dials import METRICS as METRIC_NUMBERS
from divgrpc.search.relaxation import CandidateSet
from divgrpc.types import FloatArray, QueryResult, Selector
from reference import definitions, objectives
from reference.index import kernel_points, row_of, same_bytes, selection_scratch
from support.checks.refusals import refused, wrong

examples = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
SELECTORS: list[Selector] = ["greedy", "mmr", "rerank", "qp_relax", "dpp", "max_sum"]
LEAVING_NOTHING: list[Rule] = [rule for rule in RULES if rule != "printed"]


@examples
@given(
    case=cases([1, 2, 5, 40], [1, 2, 17]),
    k=st.sampled_from([1, 2, 3, 10, 40]),
    bound=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]),
    rule=st.sampled_from(LEAVING_NOTHING),
)
def test_the_greatest_diversity_within_the_loss_bound_is_taken(
    case: Case, k: int, bound: float, rule: Rule
) -> None:
    count, metric = len(case.vectors), case.metric
    k = min(k, count)
    among = candidates_of(case)
    order, distances = among.rows, among.costs
    step, picks, values = _pick_within(case, among, k, bound, rule)
    relevances = _relevances(distances, metric)
    places = {row: place for place, row in enumerate(order.tolist())}
    for dial_step in range(step, dials.DIAL_STEPS + 1):
        if dial_step == 0:
            truth, gains = order[:k].tolist(), (-distances[:k]).tolist()
        else:
            truth, gains = case.select(
                parameters(k, dial_step / dials.DIAL_STEPS, rule), order.tolist()
            )
        loss = objectives.loss(relevances, [places[row] for row in truth])
        if dial_step == step:
            assert picks == truth
            assert values == gains
            assert loss <= bound + 1e-12
        else:
            assert loss > bound - 1e-12


def _relevances(distances: npt.NDArray[np.float32], metric: Metrics) -> list[float]:
    if metric == "cosine":
        relevances = np.float32(1) - distances / np.float32(2)
    else:
        relevances = distances if metric == "euclidean" else -distances
    return [float(relevance) for relevance in relevances]


def _pick_within(
    case: Case, among: CandidateSet, k: int, bound: float, rule: Rule
) -> tuple[int, list[int], list[float]]:
    points, rows = among.points, among.rows
    picks, gains = np.full(k, -1, np.int64), np.full(k, np.nan, np.float32)
    inputs = Candidates(rows, among.costs), case.costs(points, rows), len(rows), k, bound
    rest = CODES[rule], METRIC_NUMBERS[case.metric], among.scratch, picks, gains
    step = dials.pick_within(points, *inputs, *rest)
    return step, rows[picks].tolist(), gains.tolist()


def fall_off_step(
    distances: FloatArray,
    k: int,
    factor: float,
    metric: Metrics,
    *,
    vectors: FloatArray | None = None,
    limit: float = -1,
) -> int:
    """Return the step of diversity for these distances; with `vectors`, copies are collapsed."""
    count = len(distances)
    points = kernel_points(np.zeros((count, 1), np.float32) if vectors is None else vectors)
    candidates = Candidates(np.arange(count, dtype=np.int32), distances)
    rest = (selection_scratch(count, points), factor, METRIC_NUMBERS[metric])
    return int(dials.fall_off_step(points, candidates, count, k, np.float32(limit), *rest))


@examples
@given(
    seed=seeds,
    count=st.sampled_from([2, 5, 40]),
    k=st.sampled_from([1, 2, 5]),
    factor=st.sampled_from([0.01, 0.5, 3.0]),
    metric=st.sampled_from(METRICS),
)
def test_the_automatic_diversity_agrees_with_the_reference(
    seed: int, count: int, k: int, factor: float, metric: Metrics
) -> None:
    """The diversity depends on how far the nearest and the k nearest lead over the mean."""
    distances = np.sort(np.random.default_rng(seed).uniform(0, 4, count).astype(np.float32))
    k = min(k, count)
    step = fall_off_step(distances, k, factor, metric)
    truth = objectives.automatic_dial(_relevances(distances, metric), k, factor)
    assert abs(step / dials.DIAL_STEPS - truth) <= 0.5 / dials.DIAL_STEPS + 1e-9


def test_equal_candidates_get_the_greatest_automatic_diversity() -> None:
    step = fall_off_step(np.full(9, 0.5, np.float32), 3, 1.0, "cosine")
    assert step == dials.DIAL_STEPS // 2
    assert dials.DIAL_STEPS == DIAL_STEPS


@examples
@given(seed=seeds, k=st.integers(1, 12), factor=st.sampled_from([0.1, 0.5, 3.0]))
def test_near_copies_do_not_raise_the_automatic_diversity(seed: int, k: int, factor: float) -> None:
    """Near-copies count once in the mean of the k nearest, but all count in the overall mean."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((8, 4)).repeat(rng.integers(1, 5, 8), axis=0).astype(np.float32)
    far = np.square(vectors).sum(axis=1)
    order = np.argsort(far, kind="stable")
    vectors, distances = vectors[order], far[order].astype(np.float32)
    k = min(k, len(distances))
    step = fall_off_step(distances, k, factor, "euclidean", vectors=vectors, limit=1e-9)
    values = -distances.astype(np.float64)
    _, first = np.unique(vectors, axis=0, return_index=True)
    nearest = values[np.sort(first)][:k].mean()
    lead = values[0] - values.mean()
    odds = max(0.0, factor * (nearest - values.mean()) / lead) if lead else factor
    assert abs(step / dials.DIAL_STEPS - odds / (1 + odds)) <= 0.5 / dials.DIAL_STEPS + 1e-6


POINTS = np.random.default_rng(5).standard_normal((400, 12)).astype(np.float32)
QUERIES = np.random.default_rng(6).standard_normal((4, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def indexes() -> dict[tuple[str, bool], Index]:
    return {
        (metric, is_sparse): Index.build(
            sparse.csr_array(POINTS) if is_sparse else POINTS, metric=metric, hash_family="lsh_div"
        )
        for metric, is_sparse in itertools.product(METRICS, (False, True))
    }


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("stored_sparse", [False, True])
@pytest.mark.parametrize("dial_options", [{"diversity": "auto"}, {"lose_at_most": 0.1}])
def test_an_answer_equals_that_at_the_reported_diversity(
    indexes: dict[tuple[str, bool], Index],
    selector: Selector,
    metric: Metrics,
    stored_sparse: bool,
    dial_options: dict[str, Any],
) -> None:
    index = indexes[metric, stored_sparse]
    options: dict[str, Any] = {"selector": selector, "k": 5, "candidates_limit": 40}
    result = index.query(QUERIES, **options, **dial_options)
    assert not result.parameters.has_fixed_dial
    assert result.parameters.diversity == 0
    for row, dial in enumerate(result.diversities.tolist()):
        alone = index.query(QUERIES[row], **options, **dial_options)
        assert same_bytes(alone, row_of(result, row))
        assert alone.diversities.tolist() == [dial]
        if dial > 0:
            expected = index.query(QUERIES[row], **options, diversity=dial)
            assert expected.ids.tobytes() == alone.ids.tobytes()
            assert expected.selection_scores.tobytes() == alone.selection_scores.tobytes()
        if "lose_at_most" in dial_options:
            assert _loss(index, QUERIES[row], result, row) <= 0.1 + 1e-9
            assert result.dial_reasons[row] == "loss_bound"
        else:
            assert result.dial_reasons[row] == "fall_off"


def _loss(index: Index, query: npt.NDArray[np.float32], result: QueryResult, row: int) -> float:
    near = index.query(query, k=40, candidates_limit=40, selector="nearest")
    places = [near.ids[0].tolist().index(point_id) for point_id in result.ids[row].tolist()]
    return objectives.loss(near.scores[0].tolist(), places)


def test_extreme_bounds_and_too_few_candidates(indexes: dict[tuple[str, bool], Index]) -> None:
    """With exactly k candidates, the diversity is 0 because there is no choice."""
    index = indexes["cosine", False]
    no_loss = index.query(QUERIES, lose_at_most=0, k=5)
    nearest = index.query(QUERIES, diversity=0, k=5)
    assert [sorted(ids) for ids in no_loss.ids.tolist()] == [
        sorted(ids) for ids in nearest.ids.tolist()
    ]
    for dial_options in ({"diversity": "auto"}, {"lose_at_most": 1.0}):
        few = index.query(QUERIES, k=40, candidates_limit=40, keep_duplicates=True, **dial_options)
        assert few.diversities.tolist() == [0.0] * 4
        assert few.dial_reasons.tolist() == ["no_choice"] * 4
    alone = index.query(QUERIES, k=1, lose_at_most=0.0)
    assert alone.diversities.tolist() == [1.0] * 4
    assert alone.dial_reasons.tolist() == ["within_bound"] * 4


def test_equally_relevant_candidates_get_diversity_1() -> None:
    index = Index.build(np.eye(8, dtype=np.float32), hash_family="lsh_div", n_bits=2)
    result = index.query(np.ones(8, np.float32), k=3, lose_at_most=0.0, search="exact")
    assert result.diversities.tolist() == [1.0]
    assert result.dial_reasons.tolist() == ["equal_relevance"]


def test_near_copies_do_not_change_the_chosen_diversity() -> None:
    """With five copies of each point, an answer has one of each, at the same diversity."""
    rng = np.random.default_rng(3)
    points = np.asarray(definitions.unit(rng.standard_normal((30, 16))), np.float32)
    options: dict[str, Any] = {"k": 5, "lose_at_most": 0.2, "search": "exact"}
    copies = Index.build(np.repeat(points, 5, axis=0), hash_family="lsh_div")
    plain = Index.build(points, hash_family="lsh_div")
    query = points[0] + 0.3 * points[1]
    many = copies.query(query, **options, candidates_limit=150)
    few = plain.query(query, **options, candidates_limit=30)
    assert (many.ids[0] // 5).tolist() == few.ids[0].tolist()
    assert many.diversities.tolist() == few.diversities.tolist()


@wrong(
    lose_at_most=[
        *(-0.01, 1.01, float("nan"), "0.1", {"diversity": 0.3}, {"diversity": "auto"}),
        *({"selector": "nearest"}, {"variant": "printed"}),
    ],
    diversity=["high", {"diversity": "auto", "selector": "nearest"}],
)
def test_invalid_diversities_and_bounds_are_refused(
    indexes: dict[tuple[str, bool], Index],
    field: str,
    value: Any,  # noqa: ANN401
) -> None:
    options: dict[str, Any] = value if isinstance(value, dict) else {field: value}
    if field == "lose_at_most":
        options = {"lose_at_most": 0.1} | options
    with refused(field):
        indexes["cosine", False].query(QUERIES, **options)


def test_a_loss_bound_allows_fewer_candidates() -> None:
    """A query with a loss bound picks at 32 diversities, which may take 32 times as long."""
    options: dict[str, Any] = {"k": 1_000, "candidates_limit": 50_000}
    QueryParameters(**options).resolve(10**6, "scan")
    with pytest.raises(InvalidArgumentError, match="k times the candidates"):
        QueryParameters(**options, lose_at_most=0.1).resolve(10**6, "scan")


def test_evaluations_and_labels_refuse_automatic_diversity(
    indexes: dict[tuple[str, bool], Index],
) -> None:
    with refused("diversities"):
        Grid(diversities=("auto",))  # type: ignore[arg-type]  # what is refused
    with refused("diversity"):
        indexes["cosine", False].predict_labels(QUERIES, diversity="auto")  # type: ignore[arg-type]  # what is refused
