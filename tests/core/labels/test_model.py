"""Label models: exhaustive prediction, and factors from elsewhere."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc.labels import LabelModel, model, train
from divgrpc.labels.model import as_documents, best_labels
from divgrpc.types import FloatArray
from divgrpc.vectors import SparseRows
from reference import labels as reference

examples = settings(deadline=None, derandomize=True, max_examples=200)


def factors(count: int = 7, dims: int = 4, rank: int = 3) -> tuple[FloatArray, FloatArray]:
    """Return label factors and a feature map."""
    rng = np.random.default_rng(1)
    return (
        rng.standard_normal((count, rank), dtype=np.float32),
        rng.standard_normal((dims, rank), dtype=np.float32),
    )


@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), max_size=4), st.integers(1, 6)
)
@examples
def test_best_labels_agree_with_their_twin(rows: list[list[int]], count: int) -> None:
    """Largest score first; of equal scores the smaller label comes first."""
    scores = np.array(rows, np.float32).reshape(-1, 6)
    labels, best = best_labels(scores, count)
    expected = [reference.best(dict(enumerate(row)), count) for row in rows]
    assert labels.tolist() == expected
    assert np.array_equal(best, np.take_along_axis(scores, labels, axis=1))


def test_every_label_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions are the largest of X V H', for sparse and dense rows, in any number of blocks."""
    label_factors, feature_map = factors()
    label_model = LabelModel.of_factors(label_factors, feature_map)
    documents = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    scores = documents @ feature_map @ label_factors.T
    expected = np.argsort(-scores, axis=1)[:, :3]
    whole = label_model.predict(documents, top_k=3)
    assert np.array_equal(whole.labels, expected)
    assert np.allclose(whole.scores, np.take_along_axis(scores, expected, axis=1), atol=1e-5)
    monkeypatch.setattr(model, "_BLOCK_SCORES", 1)
    for given_rows in (documents, sparse.csr_array(documents)):
        assert np.array_equal(label_model.predict(given_rows, top_k=3).labels, expected)


def test_lists_have_top_k_places() -> None:
    """Places beyond the labels are empty, and places below the threshold."""
    label_model = LabelModel.of_factors([[1.0], [3.0], [2.0]], [[1.0]])
    all_there = label_model.predict([[2.0]], top_k=5)
    assert all_there.labels.tolist() == [[1, 2, 0, -1, -1]]
    assert all_there.counts.tolist() == [3]
    assert np.isnan(all_there.scores[0, 3:]).all()
    some = label_model.predict([[2.0], [0.0]], top_k=2, threshold=5.0)
    assert some.labels.tolist() == [[1, -1], [-1, -1]]
    assert some.counts.tolist() == [1, 0]


def test_a_trained_model_scales_documents() -> None:
    """Longer documents get the same labels; one without features gets those of the offset."""
    rng = np.random.default_rng(3)
    documents = rng.random((60, 8))
    trained = train(documents, rng.random((60, 5)) < 0.4).model
    long = trained.predict(documents * 100)
    assert np.array_equal(long.labels, trained.predict(documents).labels)
    nothing = trained.predict(np.zeros((1, 8)))
    assert nothing.scores[0, 0] == pytest.approx((trained.label_factors @ trained.offset).max())


def test_documents_get_unit_length_and_a_constant() -> None:
    """A row of zeros stays one, and gets the constant too."""
    given_rows = np.array([[3.0, 0, 4], [0, 0, 0]])
    expected = np.array([[0.6, 0, 0.8, 1], [0, 0, 0, 1]])
    for rows in (given_rows, sparse.csr_array(given_rows)):
        extended = as_documents(rows)
        dense = extended.matrix.toarray() if isinstance(extended, SparseRows) else extended
        assert np.allclose(dense, expected)


@pytest.mark.parametrize(
    ("label_factors", "feature_map", "field"),
    [
        ([[1.0, 2.0]], [[1.0]], "feature_map"),
        ([[np.nan]], [[1.0]], "label_factors"),
        (np.empty((0, 2)), [[1.0, 2.0]], "label_factors"),
        ([[1.0]], "wrong", "feature_map"),
    ],
)
def test_wrong_factors_are_refused(label_factors: Any, feature_map: Any, field: str) -> None:  # noqa: ANN401  # whatever a caller gives
    """The error names the factor."""
    with pytest.raises(InvalidArgumentError) as caught:
        LabelModel.of_factors(label_factors, feature_map)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("documents", "top_k", "field"),
    [
        (np.ones((1, 5)), 3, "documents"),
        (np.full((1, 4), np.inf), 3, "documents"),
        (np.ones((1, 4)), 0, "top_k"),
        (np.ones((1, 4)), True, "top_k"),
    ],
)
@pytest.mark.parametrize("unit_rows", [False, True])
def test_wrong_requests_are_refused(
    documents: FloatArray, top_k: int, field: str, *, unit_rows: bool
) -> None:
    """Errors for wrong columns, for values that are not finite and for top_k name the field."""
    with pytest.raises(InvalidArgumentError) as caught:
        LabelModel.of_factors(*factors(), unit_rows=unit_rows).predict(documents, top_k=top_k)
    assert caught.value.field == field
