"""LEML: its loss, its two solves, its iteration steps, and training with it."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from benchmarks.harness.datasets import documents, precisions
from divgrpc.errors import InvalidArgumentError
from divgrpc.kernels import leml as factoring
from divgrpc.labels import leml, matrices, model_selection, products, training
from divgrpc.labels.leml import Alternation
from divgrpc.labels.matrices import multiply
from divgrpc.labels.model import as_documents, as_labels
from divgrpc.labels.model_selection import RANK_MAX, REGULARISATIONS
from divgrpc.labels.products import Products
from divgrpc.labels.training import TrainedLabels, train
from divgrpc.parameters import LIMITS, LabelParameters
from divgrpc.types import FloatArray, Progress, TrainingProgress
from divgrpc.vectors import SparseRows
from reference import labels as reference
from reference.definitions import Floats
from support.checks.refusals import refused, wrong
from support.data.labelled_documents import widened

examples = settings(max_examples=40)


def make_data(
    n: int, d: int, count: int, seed: int, density: float = 0.3
) -> tuple[sparse.csr_array, sparse.csr_array]:
    rng = np.random.default_rng(seed)
    documents = (rng.random((n, d)) < density) * rng.random((n, d))
    scores = documents @ rng.standard_normal((d, 3)) @ rng.standard_normal((3, count))
    labels = scores >= np.quantile(scores, 0.8)
    labels[rng.integers(n), rng.integers(count)] = True
    return sparse.csr_array(documents, dtype=np.float32), sparse.csr_array(labels)


def begin(
    data: tuple[sparse.csr_array, sparse.csr_array], rank: int, weight: float, inner: int = 30
) -> tuple[Alternation, Floats, Floats]:
    """Return a training before its first iteration, and dense X and Y."""
    documents, labels = as_documents(data[0]), as_labels(data[1])
    assert isinstance(documents, SparseRows)
    operators = Products(documents, labels)
    first = leml.start(operators, rank, np.random.default_rng(0), lambda _: None)
    dense = (documents.matrix.toarray(), labels.matrix.toarray())
    return Alternation(operators, first, weight, inner), *dense


def iterate(training: Alternation, times: int) -> list[float]:
    return [training.iterate(lambda _: None) for _ in range(times)]


@given(
    st.integers(4, 40),
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(0, 99),
    st.sampled_from([0.1, 1.0, 10.0]),
)
@examples
def test_loss_falls_and_agrees_with_its_definition(
    n: int, d: int, count: int, seed: int, weight: float
) -> None:
    rank = max(1, min(n, d, count) // 2)
    training, x, y = begin(make_data(n, d, count, seed), rank, weight, inner=4)
    losses = iterate(training, 6)
    assert all(b <= a * (1 + 1e-5) for a, b in pairwise(losses))
    expected_loss = reference.leml_loss(x, y, training.feature_map, training.label_factors, weight)
    assert losses[-1] == pytest.approx(expected_loss, rel=1e-4)


@given(st.integers(6, 30), st.integers(2, 12), st.integers(2, 8), st.integers(0, 99))
@examples
def test_both_solves_are_exact(n: int, d: int, count: int, seed: int) -> None:
    rank, weight = min(d, count, 3), 0.7
    training, x, y = begin(make_data(n, d, count, seed), rank, weight, inner=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leml, "_RESIDUAL_SHARE", 0.0)
        for _ in range(2):
            scales = training._separate_columns()
            training._solve_columns(slice(0, rank), scales, lambda _: None)
            features = reference.solve_features(x, y, training.label_factors, weight)
            assert np.allclose(features, training.feature_map, atol=1e-3)
            training._solve_labels()
            exact = reference.solve_labels(x, y, training.feature_map, weight)
            assert np.allclose(exact, training.label_factors, atol=1e-3)


def test_first_factors_are_singular_vectors() -> None:
    documents, labels = make_data(80, 30, 9, 2)
    training, x, y = begin((documents, labels), 4, 1.0)
    right = np.linalg.svd(x.T @ y)[2][:4].T
    assert np.allclose(np.abs(right.T @ training.label_factors), np.eye(4), atol=1e-3)


@pytest.mark.parametrize("dense", [False, True])
def test_precomputed_and_implicit_moments_agree(
    monkeypatch: pytest.MonkeyPatch, *, dense: bool
) -> None:
    """Every solve continues to float32's precision, so both ways differ only by rounding."""
    monkeypatch.setattr(leml, "_RESIDUAL_SHARE", 0.0)
    documents, labels = make_data(70, 9, 8, 4)
    rows: object = documents.toarray() if dense else documents
    parameters = LabelParameters(rank=4, regularisation=1, iterations=3, inner_iterations=100)
    matrix_training = train(rows, labels, parameters)
    monkeypatch.setattr(products, "GRAM_COLUMNS_MAX", 0)
    monkeypatch.setattr(products, "_BLOCK_ROWS_MAX", 7)
    monkeypatch.setattr(products, "_BLOCK_ROWS_MIN", 1)
    monkeypatch.setattr(products, "_NUMBERS_MAX", 1)
    monkeypatch.setattr(products, "_DENSE_NUMBERS_MAX", 1)
    operator_training = train(rows, labels, parameters)
    assert scores_of(operator_training, documents) == pytest.approx(
        scores_of(matrix_training, documents), abs=1e-4
    )
    assert operator_training.losses == pytest.approx(matrix_training.losses, rel=1e-5)


def scores_of(result: TrainedLabels, documents: object) -> npt.NDArray[np.float32]:
    model = result.model
    return np.asarray(model.embed(documents) @ model.label_factors.T)


def test_training_with_a_seed_is_reproducible() -> None:
    data = make_data(120, 25, 14, 5)
    first, second = (train(*data, LabelParameters(seed=7)) for _ in range(2))
    for name in ("label_factors", "feature_map", "offset"):
        assert getattr(first.model, name).tobytes() == getattr(second.model, name).tobytes()
    assert (first.parameters, first.trials, first.losses) == (
        second.parameters,
        second.trials,
        second.losses,
    )


def test_parameters_that_are_not_given_are_chosen_by_trials() -> None:
    data = make_data(150, 30, 20, 6)
    result = train(*data)
    parameters = result.parameters
    assert parameters.rank is not None
    assert parameters.rank <= RANK_MAX
    assert parameters.regularisation in REGULARISATIONS
    best = max(trial.score for trial in result.trials)
    choice_scores = [
        trial.score
        for trial in result.trials
        if (trial.rank, trial.regularisation) == (parameters.rank, parameters.regularisation)
    ]
    assert choice_scores == [best]
    second_result = train(*data, LabelParameters(rank=5, iterations=3))
    assert (second_result.parameters.rank, second_result.parameters.iterations) == (5, 3)
    assert {(t.rank, t.iterations) for t in second_result.trials} == {(5, 3)}
    assert train(*data, LabelParameters(rank=5, iterations=3, regularisation=2)).trials == ()


def test_trials_train_only_features_of_their_sample() -> None:
    """A trial leaves out features that occur only in rows that it holds out."""
    documents, labels = make_data(100, 40, 6, 7, density=0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_selection, "_TRAINED_ROWS_MAX", 20)
        patch.setattr(model_selection, "_HELD_OUT_ROWS_MAX", 9)
        result = train(documents, labels)
    assert result.model.dims == 40
    assert result.trials


def test_empty_columns_change_no_trained_factor() -> None:
    documents, labels = make_data(90, 25, 14, 12)
    plain = train(documents, labels)
    columns, ids = np.arange(25) * 700 + 3, np.arange(14) * 700
    wide = train(widened(documents, columns, 25 * 700), widened(labels, ids, 14 * 700))
    assert wide.trials == plain.trials
    for wide_matrix, plain_matrix, places in (
        (wide.model.label_factors, plain.model.label_factors, ids),
        (wide.model.feature_map, plain.model.feature_map, columns),
    ):
        assert wide_matrix[places].tobytes() == plain_matrix.tobytes()
        assert np.count_nonzero(wide_matrix.any(axis=1)) == len(places)


def test_training_skips_labels_without_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    class ShapeRecorder(Products):
        def __init__(self, *data: Any) -> None:  # noqa: ANN401  # X and Y
            super().__init__(*data)
            shapes.append(self.shape[1:])

    for module in (model_selection, training):
        monkeypatch.setattr(module, "Products", ShapeRecorder)
    documents, labels = make_data(90, 25, 14, 12)
    train(documents, widened(labels, np.arange(14) * 100_000, 2_000_000))
    assert set(shapes) == {(26, 14)}


def test_too_large_label_factors_are_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All columns and all labels count, used or not, and so does the constant feature."""
    monkeypatch.setitem(LIMITS, "label_factor_numbers_max", 100)
    monkeypatch.setattr(training, "choose", None)
    for d, count in ((25, 3), (3, 26)):
        with refused("rank", f"at most 3 with {d} col"):
            train(np.ones((30, d)), np.ones((30, count)), LabelParameters(rank=4))


@pytest.mark.parametrize("width", [3, 6, 9, 4_000])
def test_the_maximum_rank_depends_on_columns_in_use(width: int) -> None:
    rng = np.random.default_rng(2)
    x = widened(sparse.csr_array(rng.random((30, 3)) + 0.1), np.arange(3) * width // 3, width)
    y = sparse.csr_array(rng.random((30, 50)) < 0.3)
    train(x, y, LabelParameters(rank=4))
    with pytest.raises(InvalidArgumentError, match=r"30 documents, 4 features .* and 50 labels"):
        train(x, y, LabelParameters(rank=5))


def test_progress_is_reported_and_may_cancel_the_training() -> None:
    data, steps = make_data(100, 20, 10, 8), list[Progress]()
    train(*data, LabelParameters(tolerance=0), steps.append)
    assert [step.stage for step in steps if step.stage == "choosing"]
    training = [step for step in steps if isinstance(step, TrainingProgress)]
    training = [step for step in training if step.stage == "training"]
    assert training[0].loss is None
    assert training[-1].loss is not None
    assert training[-1].rows_done == training[-1].rows_total
    row_counts = [step.rows_done for step in training]
    assert row_counts == sorted(row_counts)
    assert all((step.seconds_left or 0) >= 0 for step in training)

    class Enough(Exception):  # noqa: N818  # not an error
        pass

    def stop(step: Progress) -> None:
        if step.stage == "training" and step.rows_done:
            raise Enough

    with pytest.raises(Enough):
        train(*data, on_progress=stop)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 5), (2, 7, 1), (30, 2, 2)])
def test_training_works_on_the_smallest_data(shape: tuple[int, int, int]) -> None:
    documents = np.ones(shape[:2], np.float32)
    documents[-1] = 0
    labels = np.ones((shape[0], shape[2]))
    result = train(documents, labels)
    assert np.isfinite(result.model.label_factors).all()
    assert result.model.predict(documents).counts.tolist() == [min(5, shape[2])] * shape[0]


@pytest.mark.parametrize(
    ("documents", "labels", "parameters", "field"),
    [
        (np.ones((3, 2)), np.ones((2, 2)), LabelParameters(), "labels"),
        (np.ones((3, 2)), np.zeros((3, 2)), LabelParameters(), "labels"),
        (np.ones((3, 2)), "labels", LabelParameters(), "labels"),
        (np.ones((3, 2)), np.full((3, 2), np.nan), LabelParameters(), "labels"),
        (np.ones((3, 2)), np.full((3, 2), np.inf), LabelParameters(), "labels"),
        (np.full((3, 2), np.nan), np.ones((3, 2)), LabelParameters(), "documents"),
        (np.ones((3, 2)), np.ones((3, 9)), LabelParameters(rank=4), "rank"),
        (np.ones((3, 2)), np.ones((3, 2)), LabelParameters(regularisation=1e12), "regularisation"),
    ],
)
def test_invalid_training_data_are_refused(
    documents: npt.NDArray[np.float64], labels: object, parameters: LabelParameters, field: str
) -> None:
    with refused(field):
        train(documents, labels, parameters)


@wrong(
    rank=[0],
    regularisation=[0, float("nan"), 1e39, 1.1e12],
    iterations=[0],
    inner_iterations=[1.5],
    tolerance=[1],
    seed=[-1],
)
def test_wrong_parameters_are_refused(field: str, value: Any) -> None:  # noqa: ANN401  # any type
    with refused(field):
        LabelParameters(**{field: value})


@pytest.mark.parametrize(
    ("name", "least"), [("bibtex", [62.5, 38.2, 28.0]), ("delicious", [65.7, 60.1, 55.5])]
)
def test_default_training_reaches_the_published_precision(
    data_folder: Path, name: str, least: list[float]
) -> None:
    """P@1, P@3 and P@5 on the test documents are at least those that LEML's authors report."""
    split = documents.read(data_folder, name)
    model = train(split.documents, split.labels).model
    result = list(precisions(split, model.predict(split.test_documents).labels).values())
    assert all(precision >= expected for precision, expected in zip(result, least, strict=True)), (
        result
    )


sizes, seeds = st.integers(0, 30), st.integers(0, 2**32 - 1)


def drawn(seed: int, count: int, rows: int, columns: int) -> list[FloatArray]:
    rng = np.random.default_rng(seed)
    shapes = [(rows, columns)] * count + [(columns,)]
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@given(sizes, st.integers(1, 20), st.integers(1, 12), seeds, st.integers(1, 9))
def test_sparse_product_sums_values_in_stored_order(
    m: int, d: int, r: int, seed: int, block: int
) -> None:
    """Sums are float32 and equal for any number of threads, and rows without values are zero."""
    rng = np.random.default_rng(seed)
    rows = SparseRows.of(sparse.random_array((m, d), density=0.3, rng=rng, format="csr"))
    columns = rng.standard_normal((d, r), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrices, "_BLOCK_VALUES", block)
        product = multiply(rows, columns)
    expected = reference.sparse_product(rows.indptr, rows.indices, rows.values, columns)
    assert product.tobytes() == expected.tobytes()
    assert np.allclose(product, rows.matrix @ columns, atol=1e-5)


@given(sizes, st.integers(1, 12), seeds)
def test_iteration_steps_agree_with_their_formulas(rows: int, columns: int, seed: int) -> None:
    solution, residual, direction, image, scales = drawn(seed, 4, rows, columns)
    weight = np.float32(0.7)
    sums = np.zeros(columns)
    expected = scales * image + weight * direction
    factoring.weigh(image, direction, scales, weight, 0, rows, sums)
    assert np.array_equal(image, expected)
    assert np.array_equal(sums, reference.column_sums(image, direction))

    sums[:] = 0
    next_solution, rest = solution + scales * direction, residual - scales * image
    factoring.descend(solution, residual, direction, image, scales, 0, rows, sums)
    assert np.array_equal(solution, next_solution)
    assert np.array_equal(residual, rest)
    assert np.array_equal(sums, reference.column_sums(rest, rest))

    new_direction = scales * direction + residual
    factoring.turn(direction, residual, scales, 0, rows, sums)
    assert np.array_equal(direction, new_direction)


@given(sizes, st.integers(1, 12), seeds, st.integers(1, 40))
def test_squares_are_summed_over_blocks(rows: int, columns: int, seed: int, block: int) -> None:
    matrix, _ = drawn(seed, 1, rows, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leml, "_UPDATED_NUMBERS", block)
        squares = leml._squares(matrix)
    assert squares == pytest.approx(reference.column_sums(matrix, matrix), rel=1e-12)


def test_rows_outside_the_range_stay_unchanged() -> None:
    solution, residual, direction, image, scales = drawn(1, 4, 9, 3)
    before = solution.copy()
    sums = np.zeros(3)
    factoring.descend(solution, residual, direction, image, scales, 2, 5, sums)
    factoring.turn(direction, residual, scales, 4, 4, sums)
    assert np.array_equal(
        np.delete(solution, range(2, 5), axis=0), np.delete(before, range(2, 5), 0)
    )
    assert not np.array_equal(solution[2:5], before[2:5])
