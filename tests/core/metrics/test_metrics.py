"""Metrics by hand, at their ends, and beside their slow twins."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc import metrics
from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import Judged, Labels, judge, judge_relevant, measure
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
LABELS = Labels.of(np.repeat([0, 1], 10), [*np.arange(10) % 5, *(10 + np.arange(10) % 2)])


def judged(ids: list[int], category: int = 0, labels: Labels = LABELS) -> Judged:
    """Judge one list."""
    return judge(np.array([ids]), np.array([category]), labels)


def measured(ids: list[int], category: int = 0, labels: Labels = LABELS) -> dict[str, float]:
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


def test_the_best_list_gets_all_there_is() -> None:
    """All points of a category, sub-topics in turn: everything that can be 1 is 1."""
    found = measured(list(range(10)))
    # ERR-IA is 1 for results that have every sub-topic each; these have one.
    first, second = sum(1 / r for r in range(1, 6)), sum(0.5 / r for r in range(6, 11))
    most = sum(0.5 ** (r - 1) / r for r in range(1, 11))
    assert found.pop("err_ia") == pytest.approx((first + second) / 5 / most)
    assert found == pytest.approx(dict.fromkeys(found, 1.0))


@pytest.mark.parametrize("ids", [[10, 11, 12], [-1, -1, -1], [10, -1, -1]])
def test_no_relevant_result_is_zero(ids: list[int]) -> None:
    """With nothing relevant, or nothing at all, every metric is 0 and none is missing."""
    assert measured(ids) == dict.fromkeys(measured(ids), 0.0)


def test_places_not_filled_are_wrong() -> None:
    """Precision is over k, so a short list has less of it; its other places count as they are."""
    short, whole = measured([0, 1, -1, -1]), measured([0, 1, 10, 11])
    assert short["precision"] == 0.5
    assert short.pop("majority_accuracy") == whole.pop("majority_accuracy") == 1
    assert short == whole


def test_more_places_than_points() -> None:
    """With k above the number of points n-call is out of reach, and recall is not."""
    found = measured([*range(20), *[-1] * 5])
    assert found["precision"] == 10 / 25
    assert found["recall"] == found["subtopic_recall"] == 1
    assert found["n_call"] == 0
    assert found["alpha_ndcg"] == pytest.approx(1)


def test_an_id_counts_once() -> None:
    """The same result again is a wrong result, and has no say in the majority."""
    assert measured([0, 0, 0, 0])["precision"] == 0.25
    assert measured([0, 0, 0, 10, 11])["majority_accuracy"] == 0


def test_one_subtopic_leaves_diversity_open() -> None:
    """D and h do not apply where a category has one sub-topic; the rest does."""
    labels = Labels.of([0, 0, 1], [4, 4, 5])
    found = measured([0, 1, 2], 0, labels)
    assert math.isnan(found.pop("normalised_entropy"))
    assert math.isnan(found.pop("h_score"))
    assert found["subtopic_recall"] == found["alpha_ndcg"] == 1
    assert not any(math.isnan(value) for value in found.values())


def test_without_subtopics_no_novelty_applies() -> None:
    """Points without sub-topics have relevance alone."""
    found = measured([0, 1], 0, Labels.of([0, 0, 1]))
    open_ones = {name for name, value in found.items() if math.isnan(value)}
    novelty = {"subtopic_recall", "normalised_entropy", "h_score", "alpha_ndcg", "err_ia"}
    assert open_ones == novelty


def test_a_point_without_subtopic_is_relevant_all_the_same() -> None:
    """It counts for precision, and sub-topics are those of the others."""
    found = measured([0, 1, 2], 0, Labels.of([0, 0, 0, 0], [1, -1, 2, -1]))
    assert found["precision"] == found["subtopic_recall"] == 1
    assert found["normalised_entropy"] == pytest.approx(1)


def test_wrong_results_have_no_subtopics_to_give() -> None:
    """Sub-topics of results that are not relevant count for nothing."""
    found = measured([0, 10, 11])
    assert found["subtopic_recall"] == pytest.approx(0.2)
    assert found["normalised_entropy"] == 0


def test_rounding_stays_within_the_scale() -> None:
    """D of one sub-topic is 0, not minus 0, and of evenly many at most 1."""
    assert not np.signbit(measured([0, 5])["normalised_entropy"])
    for many in range(2, 40):
        labels = Labels.of(np.zeros(many, int), np.arange(many))
        found = measured(list(range(many)), 0, labels)["normalised_entropy"]
        assert 1 - 1e-12 < found <= 1


def test_places_filled_are_counted() -> None:
    """What was found is counted without gaps and repeats, so that empty lists can be told."""
    found = judge(np.array([[0, 0, 10], [-1, 3, -1], [-1, -1, -1]]), np.zeros(3, int), LABELS)
    assert found.found.tolist() == [2, 1, 0]


def test_majority_takes_the_first_of_equals() -> None:
    """Two categories as often: the one that came first; who has none has no say."""
    assert measured([0, 10, 11, 1])["majority_accuracy"] == 1
    assert measured([10, 0, 1, 11])["majority_accuracy"] == 0
    labels = Labels.of([0, -1, -1, 1], [0, 0, 0, 1])
    assert measured([1, 2, 0], 0, labels)["majority_accuracy"] == 1
    assert measured([1, 2], 0, labels)["majority_accuracy"] == 0


def test_n_call_counts() -> None:
    """n-call is 1 from n relevant results on, and n is from 1 to k."""
    found = judged([0, 10, 1])
    assert [metrics.n_call(found, n)[0] for n in (1, 2, 3)] == [1, 1, 0]
    for n in (0, 4):
        with pytest.raises(InvalidArgumentError, match="between 1 and k = 3"):
            metrics.n_call(found, n)


def test_h_is_the_mean_of_the_queries_own() -> None:
    """The mean h of two queries is below the h of their mean precision and diversity."""
    found = judge(np.array([[0, 5], [10, 11]]), np.array([0, 1]), LABELS)
    assert metrics.mean(metrics.h_score(found)) == pytest.approx(0.5)
    assert metrics.h_of_means(found) == pytest.approx(2 / 3)


def test_h_of_means_is_over_queries_that_have_a_diversity() -> None:
    """A query of a category with one sub-topic is in neither mean."""
    labels = Labels.of([0, 0, 1], [0, 1, 5])
    found = judge(np.array([[0, 1], [0, 1]]), np.array([0, 1]), labels)
    assert metrics.h_of_means(found) == pytest.approx(1)
    assert math.isnan(metrics.h_of_means(judged([0], 1, labels)))


def test_ids_are_looked_up() -> None:
    """Labels may have ids of their own, in any order."""
    labels = Labels.of([0, 1, 0], [1, 1, 2], ids=[2**40, 7, 3])
    found = judged([3, 2**40, 7], 0, labels)
    assert found.relevant.tolist() == [[True, True, False]]
    assert found.subtopics.tolist() == [[2, 1, -1]]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_is_a_chance(alpha: float) -> None:
    """An alpha outside 0 to 1 is refused."""
    for metric in (metrics.alpha_ndcg, metrics.err_ia):
        with pytest.raises(InvalidArgumentError, match="alpha"):
            metric(judged([0]), alpha)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("asked", lambda: judged([0], 7)),
        ("asked", lambda: judged([0], -1, Labels.of([-1, 0]))),
        ("asked", lambda: judge(np.array([[0]]), np.array([0, 1]), LABELS)),
        ("ids", lambda: judged([20])),
        ("ids", lambda: judged([-2])),
        ("ids", lambda: judged([])),
        ("ids", lambda: judge(np.array([0]), np.array([0]), LABELS)),
        ("ids", lambda: Labels.of([0, 0], ids=[3, 3])),
        ("ids", lambda: Labels.of([0, 0], ids=[-1, 3])),
        ("ids", Labels.of),
        ("ids", lambda: judge(np.array([[0.5]]), np.array([0]), LABELS)),
        ("asked", lambda: judged([0], -5, Labels.of([-5, 0]))),
        ("asked", lambda: judge(np.array([[0]]), np.array(["0"]), LABELS)),
        ("categories", lambda: Labels.of([2**31])),
        ("subtopics", lambda: Labels.of([0], [0.5])),
        ("subtopics", lambda: Labels.of([0, 0], [1])),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[]], LABELS)),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[99]], LABELS)),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[-1, 2]], LABELS)),
        ("relevant", lambda: judge_relevant(np.array([[0]]), [[1], [2]], LABELS)),
    ],
)
def test_what_cannot_be_judged_is_refused(field: str, call: Callable[[], object]) -> None:
    """Unknown ids and categories, queries with nothing relevant: an error that names the field."""
    with pytest.raises(InvalidArgumentError) as refused:
        call()
    assert refused.value.field == field


def test_no_query_is_no_figure() -> None:
    """Of no queries every metric is an empty array, and their mean is NaN."""
    found = judge(np.empty((0, 3), np.int64), np.empty(0, np.int64), LABELS)
    assert all(values.shape == (0,) for values in measure(found).values())
    assert math.isnan(metrics.mean(metrics.precision(found)))
    assert measure(judge_relevant(np.empty((0, 3), np.int64), [], LABELS))["recall"].shape == (0,)


Numbers = npt.NDArray[np.int64]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Numbers, Labels, Numbers]:
    """Draw lists with gaps and repeats, labels, and the category that each query asks for."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, k, queries = draw(st.integers(1, 12)), draw(st.integers(1, 15)), draw(st.integers(1, 4))
    ids = rng.choice(30, n, replace=False)
    categories = rng.integers(-1, draw(st.integers(1, 3)), n)
    categories[0] = 0
    labels = Labels.of(categories, rng.integers(-1, draw(st.integers(1, 5)), n), ids)
    found = rng.choice([-1, *ids], (queries, k))
    return found, labels, rng.choice(categories[categories >= 0], queries)


@examples
@given(cases())
def test_metrics_are_their_twins(case: tuple[Numbers, Labels, Numbers]) -> None:
    """All at once gives what the definitions give one by one, by categories and by relevant ids."""
    found, labels, asked = case
    both = zip(labels.categories.tolist(), labels.subtopics.tolist(), strict=True)
    points = dict(zip(labels.ids.tolist(), both, strict=True))
    relevant = [{i for i, (category, _) in points.items() if category == own} for own in asked]
    by_category = measure(judge(found, asked, labels))
    by_ids = measure(judge_relevant(found, [sorted(each) for each in relevant], labels))
    lists = [List(ids, points, each) for ids, each in zip(found.tolist(), relevant, strict=True)]
    for name, twin in TWINS.items():
        expected = [twin(one) for one in lists]
        np.testing.assert_allclose(by_category[name], expected, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(by_ids[name], expected, atol=1e-12, err_msg=name)
    majority = [
        reference.majority_accuracy(one, own) for one, own in zip(lists, asked, strict=True)
    ]
    assert by_category["majority_accuracy"].tolist() == majority
    for one, given_ids in zip(lists, relevant, strict=True):
        one.points = {i: (int(i in given_ids), s) for i, (_, s) in points.items()}
    majority = [reference.majority_accuracy(one, 1) for one in lists]
    assert by_ids["majority_accuracy"].tolist() == majority


@examples
@given(cases(), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_alpha_changes_both_as_in_their_twins(
    case: tuple[Numbers, Labels, Numbers], alpha: float
) -> None:
    """At every alpha, its ends with them, the two metrics that have one are their twins."""
    found, labels, asked = case
    both = zip(labels.categories.tolist(), labels.subtopics.tolist(), strict=True)
    points = dict(zip(labels.ids.tolist(), both, strict=True))
    seen = judge(found, asked, labels)
    for number, (ids, own) in enumerate(zip(found.tolist(), asked, strict=True)):
        one = List(ids, points, {i for i, (category, _) in points.items() if category == own})
        for name in ("alpha_ndcg", "err_ia"):
            value = getattr(metrics, name)(seen, alpha)[number]
            expected = getattr(reference, name)(one, alpha)
            assert value == pytest.approx(expected, abs=1e-12, nan_ok=True), name


@examples
@given(cases())
def test_metrics_lie_between_zero_and_one(case: tuple[Numbers, Labels, Numbers]) -> None:
    """Whatever the list, a metric is from 0 to 1, or does not apply."""
    found, labels, asked = case
    for values in measure(judge(found, asked, labels)).values():
        assert np.all(np.isnan(values) | ((values >= 0) & (values <= 1 + 1e-12)))
