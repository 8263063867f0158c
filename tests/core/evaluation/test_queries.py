"""Evaluations in process agree with a slow reference that loops over `Index.query`."""

import math
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.errors import UnfitIndexError
from divgrpc.evaluation import COLUMNS, METRICS, Grid, deal_folds, evaluate
from divgrpc.evaluation.queries import Relevance, study_queries
from divgrpc.evaluation.study import TIME_TOLERANCE, Task
from divgrpc.metrics import judge, mean_intervals, measure, pareto_front
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.types import EvaluateRow, FloatArray, IntArray, Metric, Progress, QueryDefault
from reference import metrics as reference
from reference.metrics import List
from support.checks.refusals import refused, wrong
from support.data.served_index import random_points

N, DIMS, K = 400, 12, 5
GRID = Grid(
    selectors=("nearest", "greedy", "mmr"),
    searches=("scan", "exact"),
    limits=((None, None), (40, 20)),
    diversities=(0.2, 0.7),
    ks=(K,),
    seed=3,
)
METRIC_NAMES: list[Metric] = ["cosine", "euclidean", "inner_product"]


def labels(n: int = N) -> tuple[IntArray, IntArray]:
    """Return categories (-1: none) and sub-topics; category 2 has only one sub-topic."""
    categories = np.arange(n) % 4 - 1
    subtopics = np.where(categories == 2, 7, np.arange(n) // 4 % 3)
    return categories, subtopics


def built(points: object, **options: Any) -> Index:  # noqa: ANN401  # values of any type
    categories, subtopics = labels()
    return Index.build(
        points, categories=categories, subtopics=subtopics, ids=np.arange(N)[::-1] * 3, **options
    )


@pytest.fixture(scope="module")
def index() -> Index:
    return built(random_points(N, dims=DIMS))


@pytest.fixture(scope="module")
def queries() -> FloatArray:
    return random_points(14, dims=DIMS, seed=9)


QUERY_CATEGORIES = np.array([0, 1, 2, 1, 0, 0, 1, 2, 1, 0, 1, 0, 1, 0])


def twin(
    index: Index, points: FloatArray, query: FloatArray, category: int, setting: QueryParameters
) -> dict[str, float]:
    categories, subtopics = labels()
    result = index.query(query, **asdict(setting))
    ids = result.ids[0].tolist()
    topics = {3 * (N - 1 - row): (categories[row], subtopics[row]) for row in range(N)}
    hit_list = List(
        ids, topics, {i for i, (point_category, _) in topics.items() if point_category == category}
    )
    rows = [N - 1 - i // 3 if i >= 0 else -1 for i in ids]
    metric = str(index.info.parameters["metric"])
    near, apart, least = reference.list_distances(points, query, rows, metric)
    by_name = {
        name: float(getattr(reference, name)(hit_list))
        for name in METRICS
        if hasattr(reference, name) and name != "majority_accuracy"
    }
    dial = float(setting.diversity)
    return by_name | {
        "majority_accuracy": reference.majority_accuracy(hit_list, category),
        "query_distance": near,
        "ilad": apart,
        "ilmd": least,
        "objective": (1 - dial) * near - dial * apart if min(ids) >= 0 else math.nan,
        "found": float(result.counts[0]),
    }


@pytest.mark.parametrize("metric", METRIC_NAMES)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_agree_with_the_reference(metric: Metric, kind: str, queries: FloatArray) -> None:
    points = random_points(N, dims=DIMS)
    points[np.abs(points) < 0.4] = 0
    matrix = points if kind == "dense" else sparse.csr_array(points)
    index = built(matrix, metric=metric)
    rows = list(evaluate(index, queries, QUERY_CATEGORIES, grid=GRID, per_query=True))
    settings = GRID.settings()
    assert [row.number for row in rows] == list(range(len(rows)))
    for row, setting in zip(rows, settings, strict=False):
        assert (row.search, row.by_fold) == (setting.search, ())
        assert row.parameters == index.query(queries[:1], **asdict(setting)).parameters
        expected = [
            twin(index, points, query, int(category), setting)
            for query, category in zip(queries, QUERY_CATEGORIES, strict=True)
        ]
        assert list(row.values) == list(COLUMNS)
        for name in METRICS:
            values = [metrics[name] for metrics in expected]
            np.testing.assert_allclose(row.values[name], values, atol=1e-4, rtol=1e-4)
            numbers = [value for value in values if not math.isnan(value)]
            mean = statistics.fmean(numbers) if numbers else math.nan
            assert row.metrics[name].value == pytest.approx(mean, abs=1e-4, nan_ok=True)
        assert row.values["found"].tolist() == [metrics["found"] for metrics in expected]
        assert (row.values["microseconds"] > 0).all()


def test_figures_of_a_row_are_consistent(index: Index, queries: FloatArray) -> None:
    for row in evaluate(index, queries, QUERY_CATEGORIES, grid=GRID, per_query=True):
        for interval in row.metrics.values():
            assert interval.low - 1e-12 <= interval.value <= interval.high + 1e-12
        times = row.values["microseconds"]
        assert row.microseconds.mean == pytest.approx(times.mean())
        assert row.microseconds.p50 == pytest.approx(np.percentile(times, 50))
        assert row.microseconds.p50 <= row.microseconds.p90 <= row.microseconds.p99
        assert (row.queries, row.empty, row.short) == (len(queries), 0, 0)
        has_entropy = ~np.isnan(row.values["normalised_entropy"])
        p, d = (
            row.values[name][has_entropy].mean() for name in ("precision", "normalised_entropy")
        )
        assert row.h_of_means == pytest.approx(2 * p * d / (p + d))


def test_a_fold_is_reported_at_the_choice_of_the_other_folds(
    index: Index, queries: FloatArray
) -> None:
    groups = np.arange(len(QUERY_CATEGORIES)) % 7
    rows = list(
        evaluate(
            index, queries, QUERY_CATEGORIES, groups=groups, grid=GRID, folds=3, per_query=True
        )
    )
    settings = GRID.settings()
    choices = rows[len(settings) :]
    with_h = ~np.isnan(rows[0].values["h_score"])
    assert with_h.tolist() == (QUERY_CATEGORIES != 2).tolist()
    folds = deal_folds(groups, 3, with_h)
    assert len(choices) == 6
    for choice in choices:
        kind = (choice.parameters.selector, choice.search)
        members = [
            n for n, setting in enumerate(settings) if (setting.selector, setting.search) == kind
        ]
        h = {number: rows[number].values["h_score"] for number in members}
        for fold, row_number in enumerate(choice.by_fold):
            means = [np.nanmean(h[number][folds != fold]) for number in members]
            assert row_number == members[int(np.argmax(means))]
        best = members[int(np.argmax([np.nanmean(h[number]) for number in members]))]
        assert choice.parameters == rows[best].parameters
        for name in COLUMNS:
            values = [rows[choice.by_fold[fold]].values[name][q] for q, fold in enumerate(folds)]
            np.testing.assert_array_equal(choice.values[name], values)


def test_the_pareto_front_compares_settings_of_equal_k(index: Index, queries: FloatArray) -> None:
    grid = Grid(searches=("scan", "exact"), diversities=(0.3, 0.8), ks=(3, 8))
    rows = [row for row in evaluate(index, queries, QUERY_CATEGORIES, grid=grid) if not row.by_fold]
    for k in (3, 8):
        rows_of_k = [row for row in rows if row.parameters.k == k]
        h = [row.metrics["h_score"].value for row in rows_of_k]
        times = [row.microseconds.p50 for row in rows_of_k]
        assert [row.on_front for row in rows_of_k] == pareto_front(
            h, times, TIME_TOLERANCE
        ).tolist()


def test_one_group_has_neither_intervals_nor_choices(index: Index, queries: FloatArray) -> None:
    """Category 2 has no h, so the queries of categories 2 and 0 have one group with an h."""
    categories, grid = np.where(QUERY_CATEGORIES == 2, 2, 0), Grid(ks=(K,))
    for groups in (None, categories, np.full(len(categories), 7)):
        for row in evaluate(index, queries, categories, groups=groups, grid=grid):
            assert not row.by_fold
            value, *ends = row.metrics["h_score"]
            assert value >= 0
            assert np.isnan(ends).all()
    with refused("set_default", "two groups", error=UnfitIndexError):
        evaluate(index, queries, categories, grid=grid, set_default=True)


def test_groups_of_one_query_are_the_classical_interval(index: Index, queries: FloatArray) -> None:
    """Without `groups`, a group is a category, or a query if relevance is given by lists of ids."""
    grid = Grid(selectors=("nearest",), ks=(K,))
    alone = np.arange(len(QUERY_CATEGORIES))
    row, *_ = evaluate(index, queries, QUERY_CATEGORIES, groups=alone, grid=grid, per_query=True)
    default_row, *_ = evaluate(index, queries, QUERY_CATEGORIES, grid=grid)
    categories, _ = labels()
    relevant = [3 * np.arange(N)[::-1][categories == category] for category in QUERY_CATEGORIES]
    list_row, *_ = evaluate(index, queries, relevant=relevant, grid=grid, per_query=True)
    for name in METRICS:
        values = row.values[name][:, None]
        assert row.metrics[name] == pytest.approx(mean_intervals(values)[0], nan_ok=True)
        by_list = list_row.values[name][:, None]
        assert list_row.metrics[name] == pytest.approx(mean_intervals(by_list)[0], nan_ok=True)
        assert default_row.metrics[name] == pytest.approx(
            mean_intervals(values, QUERY_CATEGORIES)[0], nan_ok=True
        )


def test_lists_of_relevant_ids_replace_categories(index: Index, queries: FloatArray) -> None:
    """Lists of all ids of a category give the category's metrics, except majority accuracy."""
    categories, _ = labels()
    ids = np.arange(N)[::-1] * 3
    relevant = [ids[categories == category] for category in QUERY_CATEGORIES]
    grid = Grid(ks=(K,))
    category_rows = list(evaluate(index, queries, QUERY_CATEGORIES, grid=grid, folds=0))
    list_rows = list(
        evaluate(index, queries, relevant=relevant, groups=QUERY_CATEGORIES, grid=grid, folds=0)
    )
    for a, b in zip(category_rows, list_rows, strict=True):
        for name in set(METRICS) - {"majority_accuracy"}:
            np.testing.assert_array_equal(a.metrics[name], b.metrics[name])


def test_without_subtopics_nothing_is_chosen(queries: FloatArray) -> None:
    plain = Index.build(random_points(N, dims=DIMS), categories=labels()[0])
    rows = list(evaluate(plain, queries, QUERY_CATEGORIES))
    assert not any(row.by_fold or row.on_front for row in rows)
    assert all(math.isnan(row.metrics["h_score"].value) for row in rows)
    assert all(row.metrics["precision"].value > 0 for row in rows)


def test_short_and_empty_lists_are_counted(index: Index, queries: FloatArray) -> None:
    grid = Grid(selectors=("nearest",), ks=(N + 1,))
    row = next(iter(evaluate(index, queries, QUERY_CATEGORIES, grid=grid)))
    assert (row.short, row.empty) == (len(queries), 0)
    assert math.isnan(row.metrics["objective"].value)


def test_progress_reaches_the_total(index: Index) -> None:
    many, steps = random_points(70, dims=DIMS, seed=2), list[Progress]()
    list(evaluate(index, many, np.zeros(70, int), progress=steps.append))
    row_counts = [progress.rows_done for progress in steps]
    assert (row_counts[0], row_counts[-1]) == (0, 420)
    assert all(0 < after - before <= 70 for before, after in pairwise(row_counts))
    assert {progress.rows_total for progress in steps} == {420}
    assert steps[0].seconds_left is None
    assert all((progress.seconds_left or 0) > 0 for progress in steps[1:-1])
    assert steps[-1].seconds_left == 0


def test_two_threads_give_the_rows_of_one(index: Index, queries: FloatArray) -> None:
    task = Task(grid=GRID, rows=len(queries), folds=3, per_row=True)
    study = study_queries(
        index.engine, queries, Relevance.of(QUERY_CATEGORIES, None, len(queries)), task
    )
    with ThreadPoolExecutor(2) as threads:
        for work in [threads.submit(list, study.work()) for _ in range(2)]:
            work.result()
    assert study.progress.rows_done == len(GRID.settings()) * len(queries)
    alone = evaluate(index, queries, QUERY_CATEGORIES, grid=GRID, folds=3, per_query=True)
    for shared, row in zip(study.rows(), alone, strict=True):
        assert (shared.number, shared.by_fold) == (row.number, row.by_fold)
        assert shared.parameters == row.parameters
        for name in METRICS:
            np.testing.assert_array_equal(shared.values[name], row.values[name])
            np.testing.assert_array_equal(shared.metrics[name], row.metrics[name])


def test_the_best_choice_becomes_the_default(queries: FloatArray) -> None:
    fresh_index = built(random_points(N, dims=DIMS))
    rows = list(evaluate(fresh_index, queries, QUERY_CATEGORIES, grid=GRID, set_default=True))
    choices = [row for row in rows if row.by_fold]
    *kind_choices, best = choices
    assert [row.is_default for row in choices] == [False] * len(kind_choices) + [True]
    greatest = max(kind_choices, key=lambda row: row.metrics["h_score"].value)
    assert best.parameters == greatest.parameters
    assert [row.number for row in rows] == list(range(len(rows)))
    setting = GRID.settings()[[row.parameters for row in rows].index(best.parameters)]
    assert fresh_index.default == fresh_index.info.query_default
    assert fresh_index.default == QueryDefault(
        diversity=float(setting.diversity),
        selector=setting.selector,
        variant=setting.variant,
        search=setting.search,
        hash_limit=setting.hash_limit,
        candidates_limit=setting.candidates_limit,
    )
    parameters = fresh_index.query(queries[:1], k=K).parameters
    assert (parameters.selector, parameters.diversity) == (setting.selector, setting.diversity)


@wrong(
    categories=[[0], None, [0, 99], [0, -1], [0.5, 1]],
    relevant=[[[0]], [[0], []], [[0], [1]], {"relevant": [[0], [3]], "categories": [0, 1]}],
    folds=[3, 1, True, -2],
    queries=[
        {"queries": np.zeros((0, DIMS)), "categories": []},
        *(np.zeros((2, DIMS)), np.full((2, DIMS), np.nan), np.ones((2, DIMS + 1))),
    ],
    set_default=[{"folds": 0}, {"grid": Grid(ks=(3, 5))}],
    groups=[[0], [0.5, 1], [[0, 1]], {"groups": [4, 4], "set_default": True}],
)
def test_invalid_arguments_are_named_before_any_work(
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    value: Any,  # noqa: ANN401
) -> None:
    monkeypatch.setattr(index.engine, "answer_one_by_one", None)
    arguments: dict[str, Any] = {"queries": np.ones((2, DIMS)), "categories": [0, 1], "folds": 2}
    if field in ("relevant", "set_default"):
        arguments |= {"categories": None} if field == "relevant" else {"set_default": True}
    arguments |= value if isinstance(value, dict) else {field: value}
    with refused(field):
        evaluate(index, arguments.pop("queries"), **arguments)


def test_work_above_the_limits_is_refused(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "evaluate_queries_max", 11)
    with refused("grid", "at most 11"):
        evaluate(index, np.ones((2, DIMS)), [0, 1], folds=2)
    monkeypatch.setitem(LIMITS, "k_candidates_dims_max", 1000)
    with refused("ks"):
        evaluate(index, np.ones((2, DIMS)), [0, 1], folds=2, grid=Grid(selectors=("nearest",)))


def test_an_index_without_categories_or_subtopics_is_refused() -> None:
    plain = Index.build(random_points(50, dims=DIMS))
    with refused("categories", error=UnfitIndexError):
        evaluate(plain, np.ones((2, DIMS)), [0, 1], folds=2)
    with refused("set_default", error=UnfitIndexError):
        evaluate(plain, np.ones((2, DIMS)), relevant=[[1], [2]], folds=2, set_default=True)


def test_columns_begin_with_the_metrics_in_order() -> None:
    judgments = judge(
        np.array([[0]]),
        np.array([0]),
        Index.build(np.eye(3), categories=[0] * 3).engine.topics.labels,
    )
    assert tuple(measure(judgments)) == METRICS[: len(measure(judgments))]


def test_a_single_query_vector_is_evaluated(index: Index, queries: FloatArray) -> None:
    rows: list[EvaluateRow] = list(evaluate(index, queries[0], [1], folds=0))
    assert {row.queries for row in rows} == {1}
    assert not any(row.by_fold for row in rows)
