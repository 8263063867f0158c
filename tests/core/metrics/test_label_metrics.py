"""Label metrics agree with hand calculations, a slow reference and scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc import metrics
from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import JudgedLabels, measure_labels
from reference import metrics as reference
from support.checks.refusals import refused

examples = settings(max_examples=200)
COUNT = 9


def truth_of(sets: list[set[int]], count: int = COUNT) -> sparse.csr_array:
    matrix = np.zeros((len(sets), count), np.float32)
    for row, labels in enumerate(sets):
        matrix[row, sorted(labels)] = 1
    return sparse.csr_array(matrix)


def judged(labels: list[list[int]], sets: list[set[int]]) -> JudgedLabels:
    return JudgedLabels.of(np.array(labels), truth_of(sets))


def test_every_metric_by_hand() -> None:
    lists = judged([[3, 1, -1], [0, 5, 2]], [{1, 2}, {0, 2, 5, 7}])
    third = 1 + 1 / math.log2(3)
    result = [f(lists).tolist() for f in (metrics.precision_at, metrics.recall_at, metrics.ndcg_at)]
    assert result[0] == [[0, 1 / 2, 1 / 3], [1, 1, 1]]
    assert result[1] == [[0, 1 / 2, 1 / 2], [1 / 4, 2 / 4, 3 / 4]]
    assert result[2][0] == pytest.approx([0, *[1 / math.log2(3) / third] * 2])
    assert result[2][1] == pytest.approx([1, 1, 1])
    assert metrics.set_precision(lists).tolist() == [1 / 2, 1]
    assert metrics.set_recall(lists).tolist() == [1 / 2, 3 / 4]
    # The true labels found are {0} within one place, {0, 1, 5} within two and {0, 1, 2, 5} within
    # three. Five labels occur.
    assert metrics.coverage_at(lists).tolist() == [1 / 5, 3 / 5, 4 / 5]
    inverse = np.arange(1.0, COUNT + 1)
    # The best list is labels 2 and 1 for the first document (3 + 2), and labels 7, 5 and 2 for the
    # second (8 + 6 + 3).
    expected = [1 / 11, (1 + 2 + 6) / 19, (1 + 2 + 6 + 3) / 22]
    assert metrics.propensity_scored_at(lists, inverse).tolist() == pytest.approx(expected)


def test_inverse_propensities_by_hand() -> None:
    """The inverse propensity 1 + C (N_l + B)^-A is largest for a label that no document has."""
    result = metrics.inverse_propensities([0, 4, 100], 1000)
    c = (math.log(1000) - 1) * 2.5**0.55
    assert result.tolist() == pytest.approx([1 + c * (n + 1.5) ** -0.55 for n in (0, 4, 100)])
    assert (np.diff(result) < 0).all()
    with pytest.raises(InvalidArgumentError, match="documents must be at least 3"):
        metrics.inverse_propensities([1], 2)


def test_empty_and_repeated_labels_count_as_zero() -> None:
    """The cases have no documents, documents or predictions without labels, or repeated labels."""
    lists = judged([[1, 2]], [set()])
    names = ["precision", "recall", "f_score", "ndcg"]
    values = {n: v.tolist() for n, v in measure_labels(lists).items()}
    assert values == {name: [0] for name in names}
    assert metrics.propensity_scored_at(lists, np.ones(COUNT)).tolist() == [0, 0]
    assert metrics.coverage_at(lists).tolist() == [0, 0]
    lists = judged([[-1, -1]], [{1}])
    assert all(values.tolist() == [0] for values in measure_labels(lists).values())
    lists = judged([[1, 1, 1]], [{1}])
    assert metrics.precision_at(lists).tolist() == [[1, 1 / 2, 1 / 3]]
    assert metrics.set_precision(lists).tolist() == [1]
    lists = JudgedLabels.of(np.empty((0, 3), np.int64), truth_of([]))
    assert metrics.precision_at(lists).shape == (0, 3)
    assert metrics.coverage_at(lists).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("labels", "field"), [([[0]] * 2, "truth"), ([[9]], "labels"), ([[-2]], "labels")]
)
def test_wrong_labels_are_refused(labels: list[list[int]], field: str) -> None:
    with refused(field):
        judged(labels, [{1}])


rows = st.lists(
    st.tuples(
        st.lists(st.integers(-1, COUNT - 1), min_size=4, max_size=4),
        st.sets(st.integers(0, COUNT - 1)),
    ),
    min_size=1,
    max_size=6,
)


@given(rows)
@examples
def test_metrics_agree_with_the_reference(pairs: list[tuple[list[int], set[int]]]) -> None:
    labels, sets = [list(pair[0]) for pair in pairs], [pair[1] for pair in pairs]
    lists = judged(labels, sets)
    inverse = metrics.inverse_propensities(np.arange(COUNT) ** 2, 100)
    for at, k in enumerate(range(1, 5)):
        cut = [reference.cut(row, k) for row in labels]
        judged_pairs = list(zip(cut, sets, strict=True))
        assert metrics.precision_at(lists)[:, at].tolist() == pytest.approx(
            [reference.label_hits(*pair) / k for pair in judged_pairs]
        )
        assert metrics.ndcg_at(lists)[:, at].tolist() == pytest.approx(
            [reference.label_ndcg(*pair, k) for pair in zip(labels, sets, strict=True)]
        )
        assert metrics.propensity_scored_at(lists, inverse)[at] == pytest.approx(
            reference.propensity_scored(cut, sets, inverse, k)
        )
        assert metrics.coverage_at(lists)[at] == pytest.approx(reference.coverage(cut, sets))
