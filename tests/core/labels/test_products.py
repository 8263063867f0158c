"""Products of documents and labels with matrices: their parts, and their sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc import parallel
from divgrpc.errors import InvalidArgumentError
from divgrpc.kernels import leml
from divgrpc.labels import products
from divgrpc.labels.model import as_documents, as_labels
from divgrpc.labels.products import Operation, Products, divide_rows, multiply_part
from divgrpc.labels.training_data import prepare_data
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows
from reference import labels as reference
from reference.definitions import Floats

OPERATIONS: tuple[Operation, ...] = ("features", "labels", "moments", "squares")


def make_data(n: int, d: int, count: int, seed: int, *, dense: bool) -> tuple[Rows, SparseRows]:
    rng = np.random.default_rng(seed)
    rows: Rows = rng.standard_normal((n, d), np.float32)
    if not dense:
        rows = SparseRows.of(sparse.random_array((n, d), density=0.3, rng=rng, format="csr"))
    labels = rng.random((n, count)) < 0.3
    labels[0, 0] = True
    return rows, as_labels(sparse.csr_array(labels))


def definition(operation: Operation, x: Rows, y: SparseRows, matrix: FloatArray) -> Floats:
    """Return a product in float64."""
    documents = (x.matrix.toarray() if isinstance(x, SparseRows) else x).astype(float)
    labels = y.matrix.toarray().astype(float)
    if operation == "features":
        return np.asarray(documents.T @ (labels @ matrix))
    embedded = documents @ matrix
    left = {"labels": labels, "moments": documents, "squares": embedded}[operation]
    return np.asarray(left.T @ embedded)


@given(
    n=st.integers(1, 40),
    shape=st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 5)),
    seed=st.integers(0, 999),
    dense=st.booleans(),
    operation=st.sampled_from(OPERATIONS),
)
def test_a_product_is_the_sum_of_those_of_its_parts(
    *, n: int, shape: tuple[int, int, int], seed: int, dense: bool, operation: Operation
) -> None:
    """For any number of parts, and in blocks of any size."""
    d, count, r = shape
    x, y = make_data(n, d, count, seed, dense=dense)
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((count if operation == "features" else d, r), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_PART_VALUES_MIN", int(rng.integers(1, 60)))
        patch.setattr(products, "_VALUES_PER_ROW_MIN", 0)
        patch.setattr(products, "_BLOCK_ROWS_MIN", 1)
        patch.setattr(products, "_BLOCK_ROWS_MAX", int(rng.integers(1, 9)))
        patch.setattr(products, "_MOMENT_COLUMNS_MAX", int(rng.integers(2)) * d)
        method = {"features": "to_features", "labels": "to_labels"}.get(operation, operation)
        product = getattr(Products(x, y), method)(matrix)
    assert np.allclose(product, definition(operation, x, y, matrix), atol=1e-3)


@given(st.integers(1, 50), st.integers(1, 9), st.integers(0, 999))
def test_parts_have_every_row_once(n: int, size: int, seed: int) -> None:
    x, y = make_data(n, 4, 3, seed, dense=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_PART_VALUES_MIN", size)
        patch.setattr(products, "_VALUES_PER_ROW_MIN", 0)
        parts = divide_rows(x, y)
    assert [row for part in parts for row in part] == list(range(n))


def test_no_part_is_too_large_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make_data(40, 10, 3, 1, dense=True)
    monkeypatch.setattr(products, "_PART_VALUES_MAX", 50)
    parts = divide_rows(x, y)
    assert max(len(part) for part in parts) <= 5
    assert len(parts) == -(-(400 + len(y.indices)) // 50)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dense", [False, True])
def test_a_sum_is_the_same_on_one_core(
    monkeypatch: pytest.MonkeyPatch, operation: Operation, *, dense: bool
) -> None:
    """Bit for bit, because parts depend on the data alone."""
    monkeypatch.setattr(products, "_PART_VALUES_MIN", 40)
    monkeypatch.setattr(products, "_VALUES_PER_ROW_MIN", 0)
    monkeypatch.setattr(products, "_MOMENT_COLUMNS_MAX", 0)
    x, y = make_data(200, 9, 7, 3, dense=dense)
    assert len(divide_rows(x, y)) > 8
    matrix = np.random.default_rng(1).standard_normal((7 if operation == "features" else 9, 4))
    matrix = matrix.astype(np.float32)
    method = {"features": "to_features", "labels": "to_labels"}.get(operation, operation)
    everywhere = getattr(Products(x, y), method)(matrix)
    with parallel.on_this_thread():
        here = getattr(Products(x, y), method)(matrix)
    assert here.tobytes() == everywhere.tobytes()


@given(st.integers(0, 20), st.integers(1, 12), st.integers(1, 6), st.integers(0, 999))
def test_transposed_products_add_values_in_stored_order(m: int, d: int, r: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = SparseRows.of(sparse.random_array((m, d), density=0.3, rng=rng, format="csr"))
    matrix = rng.standard_normal((m, r), np.float32)
    total = np.zeros((d, r), np.float32)
    leml.add_transposed(rows.indptr, rows.indices, rows.values, matrix, total)
    arrays = (rows.indptr, rows.indices, rows.values)
    assert total.tobytes() == reference.transposed_product(*arrays, matrix, d).tobytes()


@pytest.mark.parametrize("dense", [False, True])
def test_data_are_prepared_in_blocks(monkeypatch: pytest.MonkeyPatch, *, dense: bool) -> None:
    """They are those that are prepared at once, without the columns that are empty."""
    monkeypatch.setattr("divgrpc.labels.training_data.block_rows", lambda _: 7)
    x, y = make_data(30, 6, 4, 2, dense=dense)
    if isinstance(x, SparseRows):
        x = SparseRows(x.indptr, x.indices * 3, x.values, 18)
    data = prepare_data(MemoryStore(), x, y)
    whole = as_documents(x)
    if isinstance(whole, SparseRows) and isinstance(data.documents, SparseRows):
        assert data.features is not None
        assert data.features.tolist() == [0, 3, 6, 9, 12, 15, 18]
        assert data.documents.values.tobytes() == whole.values.tobytes()
        assert (data.features[data.documents.indices] == whole.indices).all()
    else:
        assert np.asarray(data.documents).tobytes() == np.asarray(whole).tobytes()
    assert (data.feature_count, data.label_count) == (whole.shape[1], 4)


def test_an_error_names_the_row_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("divgrpc.labels.training_data.block_rows", lambda _: 7)
    x, y = make_data(30, 6, 4, 2, dense=True)
    assert not isinstance(x, SparseRows)
    x[17, 3] = np.nan
    with pytest.raises(InvalidArgumentError, match="row 17"):
        prepare_data(MemoryStore(), x, y)


def test_a_part_needs_no_other_rows() -> None:
    x, y = make_data(30, 6, 4, 2, dense=False)
    matrix = np.ones((6, 2), np.float32)
    whole = multiply_part("labels", x, y, range(10, 20), matrix)
    alone = multiply_part("labels", x[10:20], y[10:20], range(10), matrix)
    assert whole.tobytes() == alone.tobytes()
