"""Metrics of results agree with hand calculations, a slow reference and other libraries."""

import math
from collections.abc import Callable

import ir_measures
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, ERR_IA, RR, P, R, SetF, StRecall, Success, alpha_nDCG
from scipy import stats
from sklearn import metrics as sklearn_metrics

from divgrpc import metrics
from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import (
    Judged,
    PointCategories,
    judge,
    judge_relevant,
    measure,
    normalised_entropy,
)
from reference import metrics as reference
from reference.metrics import List
from support.checks.refusals import refused

examples = settings(max_examples=200)
Twin = Callable[[List], float]
NAMES = (
    *("precision", "recall", "f_score", "average_precision", "reciprocal_rank", "one_call"),
    *("n_call", "subtopic_recall", "normalised_entropy", "h_score", "alpha_ndcg", "err_ia"),
)
TWINS: dict[str, Twin] = {name: getattr(reference, name) for name in NAMES}

# Category 0 has ten points with five sub-topics; category 1 has ten points with two.
LABELS = PointCategories.of(np.repeat([0, 1], 10), [*np.arange(10) % 5, *(10 + np.arange(10) % 2)])


ALL = [*TWINS, "majority_accuracy"]


def judged(ids: list[int], category: int = 0, labels: PointCategories = LABELS) -> Judged:
    return judge(np.array([ids]), np.array([category]), labels)


def measured(
    ids: list[int], category: int = 0, labels: PointCategories = LABELS
) -> dict[str, float]:
    return {
        name: float(values[0]) for name, values in measure(judged(ids, category, labels)).items()
    }


def test_every_metric_by_hand() -> None:
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(5)
    discounts = [1 / math.log2(rank + 1) for rank in (1, 2, 3, 4)]
    expected = {
        "precision": 3 / 4,
        "recall": 3 / 10,
        "f_score": 2 * 0.75 * 0.3 / 1.05,
        "average_precision": (1 + 1 + 3 / 4) / 10,
        "reciprocal_rank": 1,
        "one_call": 1,
        "n_call": 0,
        "majority_accuracy": 1,
        "subtopic_recall": 2 / 5,
        "normalised_entropy": entropy,
        "h_score": 2 * 0.75 * entropy / (0.75 + entropy),
        "alpha_ndcg": (discounts[0] + discounts[1] / 2 + discounts[3]) / sum(discounts),
        "err_ia": (1 + 0.5 / 2 + 1 / 4) / 5 / (1 + 0.5 / 2 + 0.25 / 3 + 0.125 / 4),
    }
    assert measured([0, 5, 12, 1]) == pytest.approx(expected)


NAN = math.nan
ONE_TOPIC = PointCategories.of([0, 0, 1], [4, 4, 5])
NO_SUBTOPICS = PointCategories.of([0, 0, 1])
SOME_SUBTOPICS = PointCategories.of([0, 0, 0, 0], [1, -1, 2, -1])
SOME_CATEGORIES = PointCategories.of([0, -1, -1, 1], [0, 0, 0, 1])
NO_NOVELTY = dict.fromkeys(
    ("subtopic_recall", "normalised_entropy", "h_score", "alpha_ndcg", "err_ia"), NAN
)
FULL = {"precision": 0.4, "recall": 1, "subtopic_recall": 1, "n_call": 0, "alpha_ndcg": 1}


@pytest.mark.parametrize(
    ("ids", "labels", "expected"),
    [
        *[(ids, LABELS, dict.fromkeys(ALL, 0)) for ids in ([10, 11], [-1, -1], [10, -1])],
        # These lists have more places than there are points, or repeat a result. Repetitions count
        # as wrong.
        ([*range(20), *[-1] * 5], LABELS, FULL),
        ([0, 0, 0, 0], LABELS, {"precision": 0.25}),
        ([0, 0, 0, 10, 11], LABELS, {"majority_accuracy": 0}),
        # These categories have at most one sub-topic, or some points have no sub-topic.
        ([0, 1, 2], ONE_TOPIC, {"normalised_entropy": NAN, "h_score": NAN}),
        ([0, 1, 2], ONE_TOPIC, {"subtopic_recall": 1, "alpha_ndcg": 1, "precision": 2 / 3}),
        ([0, 1], NO_SUBTOPICS, NO_NOVELTY | {"precision": 1, "recall": 1, "one_call": 1}),
        (
            [0, 1, 2],
            SOME_SUBTOPICS,
            {"precision": 1, "subtopic_recall": 1, "normalised_entropy": 1},
        ),
        ([0, 10, 11], LABELS, {"subtopic_recall": 0.2, "normalised_entropy": 0}),
        # Of equally frequent categories, the first in the list is the majority. Points without a
        # category do not count.
        ([0, 10, 11, 1], LABELS, {"majority_accuracy": 1}),
        ([10, 0, 1, 11], LABELS, {"majority_accuracy": 0}),
        ([1, 2, 0], SOME_CATEGORIES, {"majority_accuracy": 1}),
        ([1, 2], SOME_CATEGORIES, {"majority_accuracy": 0}),
    ],
)
def test_corner_cases_by_hand(
    ids: list[int], labels: PointCategories, expected: dict[str, float]
) -> None:
    result = measured(ids, 0, labels)
    assert {name: result[name] for name in expected} == pytest.approx(expected, nan_ok=True)
    nan_names = {name for name, value in result.items() if math.isnan(value)}
    assert nan_names <= {"normalised_entropy", "h_score"} or labels is NO_SUBTOPICS


def test_normalised_entropy_stays_between_zero_and_one() -> None:
    """The entropy of one sub-topic is 0, not -0."""
    assert not np.signbit(measured([0, 5])["normalised_entropy"])
    for many in range(2, 40):
        labels = PointCategories.of(np.zeros(many, int), np.arange(many))
        result = measured(list(range(many)), 0, labels)["normalised_entropy"]
        assert 1 - 1e-12 < result <= 1


def test_found_counts_distinct_results() -> None:
    result = judge(np.array([[0, 0, 10], [-1, 3, -1], [-1, -1, -1]]), np.zeros(3, int), LABELS)
    assert result.found.tolist() == [2, 1, 0]


def test_n_call_needs_n_hits() -> None:
    result = judged([0, 10, 1])
    assert [metrics.n_call(result, n)[0] for n in (1, 2, 3)] == [1, 1, 0]
    for n in (0, 4):
        with pytest.raises(InvalidArgumentError, match="between 1 and k = 3"):
            metrics.n_call(result, n)


def test_h_of_means_ignores_queries_without_entropy() -> None:
    """The mean of h is below the h of the means of precision and entropy."""
    result = judge(np.array([[0, 5], [10, 11]]), np.array([0, 1]), LABELS)
    assert metrics.mean(metrics.h_score(result)) == pytest.approx(0.5)
    assert metrics.h_of_means(result) == pytest.approx(2 / 3)
    labels = PointCategories.of([0, 0, 1], [0, 1, 5])
    result = judge(np.array([[0, 1], [0, 1]]), np.array([0, 1]), labels)
    assert metrics.h_of_means(result) == pytest.approx(1)
    assert math.isnan(metrics.h_of_means(judged([0], 1, labels)))


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_is_a_probability(alpha: float) -> None:
    for metric in (metrics.alpha_ndcg, metrics.err_ia):
        with pytest.raises(InvalidArgumentError, match="alpha"):
            metric(judged([0]), alpha)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("asked", lambda: judged([0], 7)),
        ("asked", lambda: judged([0], -1, PointCategories.of([-1, 0]))),
        ("asked", lambda: judge(np.array([[0]]), np.array([0, 1]), LABELS)),
        ("ids", lambda: judged([20])),
        ("ids", lambda: judged([-2])),
        ("ids", lambda: judged([])),
        ("ids", lambda: judge(np.array([0]), np.array([0]), LABELS)),
        ("ids", lambda: PointCategories.of([0, 0], ids=[3, 3])),
        ("ids", lambda: PointCategories.of([0, 0], ids=[-1, 3])),
        ("ids", PointCategories.of),
        ("ids", lambda: judge(np.array([[0.5]]), np.array([0]), LABELS)),
        ("asked", lambda: judged([0], -5, PointCategories.of([-5, 0]))),
        ("asked", lambda: judge(np.array([[0]]), np.array(["0"]), LABELS)),
        ("categories", lambda: PointCategories.of([2**31])),
        ("subtopics", lambda: PointCategories.of([0], [0.5])),
        ("subtopics", lambda: PointCategories.of([0, 0], [1])),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[]], LABELS)),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[99]], LABELS)),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[-1, 2]], LABELS)),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[1], [2]], LABELS)),
    ],
)
def test_wrong_judgements_are_refused(field: str, call: Callable[[], object]) -> None:
    with refused(field):
        call()


def test_no_queries_have_no_metrics() -> None:
    result = judge(np.empty((0, 3), np.int64), np.empty(0, np.int64), LABELS)
    assert all(values.shape == (0,) for values in measure(result).values())
    assert math.isnan(metrics.mean(metrics.precision(result)))
    assert measure(judge_relevant(np.empty((0, 3), np.int64), [], LABELS))["recall"].shape == (0,)


Numbers = npt.NDArray[np.int64]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Numbers, PointCategories, Numbers]:
    """Draw lists with empty places and repeated ids, points with categories, and queries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, k, queries = draw(st.integers(1, 12)), draw(st.integers(1, 15)), draw(st.integers(1, 4))
    ids = rng.choice(30, n, replace=False)
    categories = rng.integers(-1, draw(st.integers(1, 3)), n)
    categories[0] = 0
    labels = PointCategories.of(categories, rng.integers(-1, draw(st.integers(1, 5)), n), ids)
    result = rng.choice([-1, *ids], (queries, k))
    return result, labels, rng.choice(categories[categories >= 0], queries)


def lists_of(result: Numbers, labels: PointCategories, categories: Numbers) -> list[List]:
    pairs = zip(labels.categories.tolist(), labels.subtopics.tolist(), strict=True)
    points = dict(zip(labels.ids.tolist(), pairs, strict=True))
    return [
        List(
            ids,
            points,
            {i for i, (point_category, _) in points.items() if point_category == category},
        )
        for ids, category in zip(result.tolist(), categories, strict=True)
    ]


@examples
@given(cases())
def test_metrics_agree_with_the_reference(case: tuple[Numbers, PointCategories, Numbers]) -> None:
    """Results are judged by categories and by lists of relevant ids."""
    result, labels, categories = case
    lists = lists_of(*case)
    by_category = measure(judge(result, categories, labels))
    by_ids = measure(
        judge_relevant(result, [sorted(hit_list.relevant) for hit_list in lists], labels)
    )
    for name, twin in TWINS.items():
        expected = [twin(hit_list) for hit_list in lists]
        np.testing.assert_allclose(by_category[name], expected, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(by_ids[name], expected, atol=1e-12, err_msg=name)
    majority = [reference.majority_accuracy(*pair) for pair in zip(lists, categories, strict=True)]
    assert by_category["majority_accuracy"].tolist() == majority
    for hit_list in lists:
        hit_list.points = {
            i: (int(i in hit_list.relevant), s) for i, (_, s) in hit_list.points.items()
        }
    majority = [reference.majority_accuracy(hit_list, 1) for hit_list in lists]
    assert by_ids["majority_accuracy"].tolist() == majority
    for values in by_category.values():
        assert np.all(np.isnan(values) | ((values >= 0) & (values <= 1 + 1e-12)))


@examples
@given(cases(), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_metrics_with_alpha_agree_with_the_reference(
    case: tuple[Numbers, PointCategories, Numbers], alpha: float
) -> None:
    judgements = judge(case[0], case[2], case[1])
    for number, hit_list in enumerate(lists_of(*case)):
        for name in ("alpha_ndcg", "err_ia"):
            value = getattr(metrics, name)(judgements, alpha)[number]
            expected = getattr(reference, name)(hit_list, alpha)
            assert value == pytest.approx(expected, abs=1e-12, nan_ok=True), name


K = 10
# Each metric of divgrpc with the measure of ir_measures that it must equal. ERR-IA has alpha 0.5,
# as in ndeval.
PAIRS = {
    "precision": P @ K,
    "recall": R @ K,
    "f_score": SetF,
    "average_precision": AP @ K,
    "reciprocal_rank": RR,
    "one_call": Success @ K,
    "subtopic_recall": StRecall @ K,
    "alpha_ndcg": alpha_nDCG(alpha=0.5) @ K,
    "err_ia": ERR_IA @ K,
}


def draw_lists(
    seed: int, n: int = 60, queries: int = 25
) -> tuple[Numbers, Numbers, PointCategories]:
    """Draw full lists, from mostly relevant to mostly wrong. Some contain no relevant result."""
    rng = np.random.default_rng(seed)
    labels = PointCategories.of(rng.integers(0, 3, n), rng.integers(0, 4, n))
    query_categories = rng.integers(0, 3, queries)
    lists = []
    for number, category in enumerate(query_categories):
        liking = np.where(labels.categories == category, 1.0, 0.02 + number / queries)
        liking[labels.categories == category] *= number > 2
        lists.append(rng.choice(n, K, replace=False, p=liking / liking.sum()))
    return np.array(lists), query_categories, labels


def ir_measures_of(
    ids: Numbers, query_categories: Numbers, labels: PointCategories
) -> dict[str, list[float]]:
    judgements = [
        ir_measures.Qrel(f"{q}", f"{i}", 1, f"{labels.subtopics[i]}")
        for q, category in enumerate(query_categories)
        for i in np.flatnonzero(labels.categories == category)
    ]
    run = [
        ir_measures.ScoredDoc(f"{q}", f"{i}", float(-rank))
        for q, hits in enumerate(ids)
        for rank, i in enumerate(hits)
        if i >= 0
    ]
    values_by_name = {name: [np.nan] * len(query_categories) for name in PAIRS}
    names = {measure: name for name, measure in PAIRS.items()}
    for value in ir_measures.iter_calc(names, judgements, run):
        values_by_name[names[value.measure]][int(value.query_id)] = value.value
    return values_by_name


@pytest.mark.parametrize("count", [K, 6])
@pytest.mark.parametrize("seed", range(4))
def test_ir_measures_agrees(seed: int, count: int) -> None:
    """SetF divides by the number of results, so short lists are not compared with it."""
    ids, query_categories, labels = draw_lists(seed)
    ids[:, count:] = -1
    values_by_name = measure(judge(ids, query_categories, labels))
    assert 0 in values_by_name["precision"]
    for name, values in ir_measures_of(ids, query_categories, labels).items():
        if count == K or name != "f_score":
            np.testing.assert_allclose(values_by_name[name], values, atol=1e-6, err_msg=name)


def test_scikit_learn_agrees() -> None:
    """A list serves as a classifier that accepts k points, or as a ranking of all points."""
    ids, query_categories, labels = draw_lists(5)
    values_by_name = measure(judge(ids, query_categories, labels))
    ranking = np.argsort(np.random.default_rng(6).random((len(query_categories), 60)), axis=1)
    average_precisions = measure(judge(ranking, query_categories, labels))["average_precision"]
    for number, category in enumerate(query_categories):
        truth = labels.categories == category
        prediction = np.isin(np.arange(len(truth)), ids[number])
        p, r, f, _ = sklearn_metrics.precision_recall_fscore_support(
            truth, prediction, average="binary", zero_division=0
        )
        values = [values_by_name[name][number] for name in ("precision", "recall", "f_score")]
        assert values == pytest.approx([p, r, f])
        scores = -np.argsort(ranking[number]).astype(np.float64)
        expected = sklearn_metrics.average_precision_score(truth, scores)
        assert average_precisions[number] == pytest.approx(expected)


def test_scipy_agrees_on_entropy() -> None:
    ids, query_categories, labels = draw_lists(7)
    values_by_name = normalised_entropy(judge(ids, query_categories, labels))
    for number, category in enumerate(query_categories):
        hits = ids[number][labels.categories[ids[number]] == category]
        counts = np.bincount(labels.subtopics[hits], minlength=4)
        expected = stats.entropy(counts, base=4) if len(hits) else 0.0
        assert values_by_name[number] == pytest.approx(expected, abs=1e-12)
