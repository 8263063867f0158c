"""Metrics of results agree with paper and pencil and with slow twins."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc import metrics
from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import Judged, PointCategories, judge, judge_relevant, measure
from reference import metrics as reference
from reference.metrics import List

examples = settings(deadline=None, derandomize=True, max_examples=200)
Twin = Callable[[List], float]
TWINS: dict[str, Twin] = {
    name: getattr(reference, name)
    for name in (
        "precision",
        "recall",
        "f_score",
        "average_precision",
        "reciprocal_rank",
        "one_call",
        "n_call",
        "subtopic_recall",
        "normalised_entropy",
        "h_score",
        "alpha_ndcg",
        "err_ia",
    )
}

# Ten points of category 0 with five sub-topics, ten of category 1 with two.
LABELS = PointCategories.of(np.repeat([0, 1], 10), [*np.arange(10) % 5, *(10 + np.arange(10) % 2)])


def judged(ids: list[int], category: int = 0, labels: PointCategories = LABELS) -> Judged:
    """Judge one list."""
    return judge(np.array([ids]), np.array([category]), labels)


def measured(
    ids: list[int], category: int = 0, labels: PointCategories = LABELS
) -> dict[str, float]:
    """Measure one list."""
    return {
        name: float(values[0]) for name, values in measure(judged(ids, category, labels)).items()
    }


def test_every_metric_by_hand() -> None:
    """Four results, one wrong, two sub-topics twice and once: every metric as on paper."""
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


def test_the_best_list_scores_one() -> None:
    """All points of a category, sub-topics in turn: every metric but ERR-IA is 1."""
    result = measured(list(range(10)))
    # ERR-IA would be 1 for results that each have every sub-topic.
    first, second = sum(1 / r for r in range(1, 6)), sum(0.5 / r for r in range(6, 11))
    most = sum(0.5 ** (r - 1) / r for r in range(1, 11))
    assert result.pop("err_ia") == pytest.approx((first + second) / 5 / most)
    assert result == pytest.approx(dict.fromkeys(result, 1.0))


@pytest.mark.parametrize("ids", [[10, 11, 12], [-1, -1, -1], [10, -1, -1]])
def test_no_relevant_result_is_zero(ids: list[int]) -> None:
    """Without a relevant result, or without results, every metric is 0."""
    assert measured(ids) == dict.fromkeys(measured(ids), 0.0)


def test_empty_places_count_as_wrong() -> None:
    """A short list has the metrics of a list with wrong results in the empty places."""
    short, whole = measured([0, 1, -1, -1]), measured([0, 1, 10, 11])
    assert short["precision"] == 0.5
    assert short.pop("majority_accuracy") == whole.pop("majority_accuracy") == 1
    assert short == whole


def test_more_places_than_points() -> None:
    """With k above the number of points recall reaches 1, n-call does not."""
    result = measured([*range(20), *[-1] * 5])
    assert result["precision"] == 10 / 25
    assert result["recall"] == result["subtopic_recall"] == 1
    assert result["n_call"] == 0
    assert result["alpha_ndcg"] == pytest.approx(1)


def test_an_id_counts_once() -> None:
    """A repeated result is wrong, and does not count for the majority."""
    assert measured([0, 0, 0, 0])["precision"] == 0.25
    assert measured([0, 0, 0, 10, 11])["majority_accuracy"] == 0


def test_one_subtopic_has_no_diversity() -> None:
    """D and h are NaN for a category with one sub-topic; the others are numbers."""
    labels = PointCategories.of([0, 0, 1], [4, 4, 5])
    result = measured([0, 1, 2], 0, labels)
    assert math.isnan(result.pop("normalised_entropy"))
    assert math.isnan(result.pop("h_score"))
    assert result["subtopic_recall"] == result["alpha_ndcg"] == 1
    assert not any(math.isnan(value) for value in result.values())


def test_points_without_subtopics_have_no_novelty() -> None:
    """The metrics of sub-topics are NaN, those of relevance are numbers."""
    result = measured([0, 1], 0, PointCategories.of([0, 0, 1]))
    open_ones = {name for name, value in result.items() if math.isnan(value)}
    novelty = {"subtopic_recall", "normalised_entropy", "h_score", "alpha_ndcg", "err_ia"}
    assert open_ones == novelty


def test_a_point_without_a_subtopic_can_be_relevant() -> None:
    """It counts for precision, and not for sub-topics."""
    result = measured([0, 1, 2], 0, PointCategories.of([0, 0, 0, 0], [1, -1, 2, -1]))
    assert result["precision"] == result["subtopic_recall"] == 1
    assert result["normalised_entropy"] == pytest.approx(1)


def test_subtopics_of_wrong_results_do_not_count() -> None:
    """Only relevant results contribute sub-topics."""
    result = measured([0, 10, 11])
    assert result["subtopic_recall"] == pytest.approx(0.2)
    assert result["normalised_entropy"] == 0


def test_rounding_stays_within_the_scale() -> None:
    """D of one sub-topic is 0, not -0, and D of equally frequent ones is at most 1."""
    assert not np.signbit(measured([0, 5])["normalised_entropy"])
    for many in range(2, 40):
        labels = PointCategories.of(np.zeros(many, int), np.arange(many))
        result = measured(list(range(many)), 0, labels)["normalised_entropy"]
        assert 1 - 1e-12 < result <= 1


def test_results_are_counted() -> None:
    """Without empty places and repeated ids."""
    result = judge(np.array([[0, 0, 10], [-1, 3, -1], [-1, -1, -1]]), np.zeros(3, int), LABELS)
    assert result.found.tolist() == [2, 1, 0]


def test_majority_takes_the_first_of_equals() -> None:
    """Of equally frequent categories the first counts; results without one do not."""
    assert measured([0, 10, 11, 1])["majority_accuracy"] == 1
    assert measured([10, 0, 1, 11])["majority_accuracy"] == 0
    labels = PointCategories.of([0, -1, -1, 1], [0, 0, 0, 1])
    assert measured([1, 2, 0], 0, labels)["majority_accuracy"] == 1
    assert measured([1, 2], 0, labels)["majority_accuracy"] == 0


def test_n_call_counts() -> None:
    """n-call is 1 for at least n relevant results, and n is from 1 to k."""
    result = judged([0, 10, 1])
    assert [metrics.n_call(result, n)[0] for n in (1, 2, 3)] == [1, 1, 0]
    for n in (0, 4):
        with pytest.raises(InvalidArgumentError, match="between 1 and k = 3"):
            metrics.n_call(result, n)


def test_mean_h_is_below_h_of_means() -> None:
    """The h-score is a mean over queries, not the h of two means."""
    result = judge(np.array([[0, 5], [10, 11]]), np.array([0, 1]), LABELS)
    assert metrics.mean(metrics.h_score(result)) == pytest.approx(0.5)
    assert metrics.h_of_means(result) == pytest.approx(2 / 3)


def test_h_of_means_leaves_queries_without_d_out() -> None:
    """A query of a category with one sub-topic counts in neither mean."""
    labels = PointCategories.of([0, 0, 1], [0, 1, 5])
    result = judge(np.array([[0, 1], [0, 1]]), np.array([0, 1]), labels)
    assert metrics.h_of_means(result) == pytest.approx(1)
    assert math.isnan(metrics.h_of_means(judged([0], 1, labels)))


def test_ids_are_looked_up() -> None:
    """Points may have any ids, in any order."""
    labels = PointCategories.of([0, 1, 0], [1, 1, 2], ids=[2**40, 7, 3])
    result = judged([3, 2**40, 7], 0, labels)
    assert result.relevant.tolist() == [[True, True, False]]
    assert result.subtopics.tolist() == [[2, 1, -1]]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_is_a_probability(alpha: float) -> None:
    """An alpha outside 0 to 1 is refused."""
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
    """Errors for unknown ids and categories, and for queries without relevant points."""
    with pytest.raises(InvalidArgumentError) as refused:
        call()
    assert refused.value.field == field


def test_no_queries_have_no_metrics() -> None:
    """Every metric is an empty array, and its mean is NaN."""
    result = judge(np.empty((0, 3), np.int64), np.empty(0, np.int64), LABELS)
    assert all(values.shape == (0,) for values in measure(result).values())
    assert math.isnan(metrics.mean(metrics.precision(result)))
    assert measure(judge_relevant(np.empty((0, 3), np.int64), [], LABELS))["recall"].shape == (0,)


Numbers = npt.NDArray[np.int64]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Numbers, PointCategories, Numbers]:
    """Draw lists with empty places and repeated ids, points, and a category for each query."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, k, queries = draw(st.integers(1, 12)), draw(st.integers(1, 15)), draw(st.integers(1, 4))
    ids = rng.choice(30, n, replace=False)
    categories = rng.integers(-1, draw(st.integers(1, 3)), n)
    categories[0] = 0
    labels = PointCategories.of(categories, rng.integers(-1, draw(st.integers(1, 5)), n), ids)
    result = rng.choice([-1, *ids], (queries, k))
    return result, labels, rng.choice(categories[categories >= 0], queries)


@examples
@given(cases())
def test_metrics_agree_with_their_twins(case: tuple[Numbers, PointCategories, Numbers]) -> None:
    """Judged by categories and by lists of relevant ids."""
    result, labels, query_categories = case
    both = zip(labels.categories.tolist(), labels.subtopics.tolist(), strict=True)
    points = dict(zip(labels.ids.tolist(), both, strict=True))
    relevant = [
        {i for i, (category, _) in points.items() if category == query_category}
        for query_category in query_categories
    ]
    by_category = measure(judge(result, query_categories, labels))
    by_ids = measure(judge_relevant(result, [sorted(each) for each in relevant], labels))
    lists = [List(ids, points, each) for ids, each in zip(result.tolist(), relevant, strict=True)]
    for name, twin in TWINS.items():
        expected = [twin(one) for one in lists]
        np.testing.assert_allclose(by_category[name], expected, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(by_ids[name], expected, atol=1e-12, err_msg=name)
    majority = [
        reference.majority_accuracy(*pair) for pair in zip(lists, query_categories, strict=True)
    ]
    assert by_category["majority_accuracy"].tolist() == majority
    for one, given_ids in zip(lists, relevant, strict=True):
        one.points = {i: (int(i in given_ids), s) for i, (_, s) in points.items()}
    majority = [reference.majority_accuracy(one, 1) for one in lists]
    assert by_ids["majority_accuracy"].tolist() == majority


@examples
@given(cases(), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_alpha_agrees_with_the_twins(
    case: tuple[Numbers, PointCategories, Numbers], alpha: float
) -> None:
    """At both ends of alpha, and between."""
    result, labels, query_categories = case
    both = zip(labels.categories.tolist(), labels.subtopics.tolist(), strict=True)
    points = dict(zip(labels.ids.tolist(), both, strict=True))
    seen = judge(result, query_categories, labels)
    for number, (ids, query_category) in enumerate(
        zip(result.tolist(), query_categories, strict=True)
    ):
        relevant = {i for i, (category, _) in points.items() if category == query_category}
        one = List(ids, points, relevant)
        for name in ("alpha_ndcg", "err_ia"):
            value = getattr(metrics, name)(seen, alpha)[number]
            expected = getattr(reference, name)(one, alpha)
            assert value == pytest.approx(expected, abs=1e-12, nan_ok=True), name


@examples
@given(cases())
def test_metrics_lie_between_zero_and_one(case: tuple[Numbers, PointCategories, Numbers]) -> None:
    """For any list every metric is from 0 to 1, or NaN."""
    result, labels, query_categories = case
    for values in measure(judge(result, query_categories, labels)).values():
        assert np.all(np.isnan(values) | ((values >= 0) & (values <= 1 + 1e-12)))
