"""Products of documents and labels with matrices: their parts, and their sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from divgrpc import parallel
from divgrpc.errors import InvalidArgumentError
from divgrpc.kernels import leml
from divgrpc.labels import matrices, products
from divgrpc.labels.matrices import symmetric, triangle_size
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
        patch.setattr(products, "GRAM_COLUMNS_MAX", int(rng.integers(2)) * d)
        method = {"features": "to_features", "labels": "to_labels"}.get(operation, operation)
        product = getattr(Products(x, y), method)(matrix)
    assert np.allclose(product, definition(operation, x, y, matrix), atol=1e-3)


@given(st.integers(1, 50), st.integers(1, 9), st.integers(0, 999))
def test_parts_have_every_row_once(n: int, size: int, seed: int) -> None:
    x, y = make_data(n, 4, 3, seed, dense=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_PART_VALUES_MIN", size)
        patch.setattr(products, "_VALUES_PER_ROW_MIN", 0)
        parts = divide_rows("features", x, y)
    assert [row for part in parts for row in part] == list(range(n))


def test_no_part_is_too_large_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make_data(40, 10, 3, 1, dense=True)
    monkeypatch.setattr(products, "_PART_VALUES_MAX", 50)
    parts = divide_rows("features", x, y)
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
    monkeypatch.setattr(products, "GRAM_COLUMNS_MAX", 0)
    x, y = make_data(200, 9, 7, 3, dense=dense)
    assert len(divide_rows("features", x, y)) > 8
    matrix = np.random.default_rng(1).standard_normal((7 if operation == "features" else 9, 4))
    matrix = matrix.astype(np.float32)
    method = {"features": "to_features", "labels": "to_labels"}.get(operation, operation)
    everywhere = getattr(Products(x, y), method)(matrix)
    with parallel.on_this_thread():
        here = getattr(Products(x, y), method)(matrix)
    assert here.tobytes() == everywhere.tobytes()


@given(
    n=st.integers(1, 40),
    d=st.integers(1, 12),
    density=st.sampled_from([0.03, 0.3, None]),
    seed=st.integers(0, 999),
)
def test_the_gram_matrix_is_the_sum_of_those_of_the_parts(
    n: int, d: int, density: float | None, seed: int
) -> None:
    """For any number of parts, and in blocks and panels of any size.

    density: the share of values that are stored; None for dense rows.
    """
    rng = np.random.default_rng(seed)
    x, y = make_data(n, d, 3, seed, dense=True)
    dense = np.where(rng.random((n, d)) < (density or 1), np.asarray(x), np.float32(0))
    x = dense if density is None else SparseRows.of(sparse.csr_array(dense))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_PART_VALUES_MAX", int(rng.integers(1, 200)))
        patch.setattr(matrices, "_BLOCK_ROWS", int(rng.integers(1, 9)))
        patch.setattr(matrices, "_PANEL_ROWS", int(rng.integers(1, 9)))
        patch.setattr(products, "_GRAM_PER_STORED_MAX", 10**6)
        computed = Products(x, y)._gram
        no_matrix = np.empty((d, 0), np.float32)
        parts = divide_rows("gram", x, y)
        triangles = [multiply_part("gram", x, y, part, no_matrix) for part in parts]
    assert [row for part in parts for row in part] == list(range(n))
    total = np.zeros((d, d))
    for part, triangle in zip(parts, triangles, strict=True):
        assert triangle.shape == (1, triangle_size(d))
        rows = dense[part.start : part.stop].astype(float)
        assert np.allclose(symmetric(triangle[0], d), rows.T @ rows, rtol=1e-5, atol=1e-5)
        total += symmetric(triangle[0], d)
    assert computed is not None
    # The sum has the precision of float64, and is rounded once.
    assert computed.tobytes() == total.astype(np.float32).tobytes()


@pytest.mark.parametrize("density", [0.02, 0.3, None])
def test_the_gram_matrix_is_the_same_on_one_core(
    monkeypatch: pytest.MonkeyPatch, density: float | None
) -> None:
    """Bit for bit, and so is that of a part whose other rows are not there."""
    monkeypatch.setattr(products, "_PART_VALUES_MAX", 200)
    x, y = make_data(200, 40, 7, 3, dense=True)
    dense = np.where(np.random.default_rng(2).random(x.shape) < (density or 1), np.asarray(x), 0)
    x = dense if density is None else SparseRows.of(sparse.csr_array(dense))
    everywhere = Products(x, y)._gram
    with parallel.on_this_thread():
        here = Products(x, y)._gram
    assert everywhere is not None
    assert here is not None
    assert here.tobytes() == everywhere.tobytes()
    parts = divide_rows("gram", x, y)
    assert len(parts) >= 3
    for part in parts:
        no_matrix = np.empty((40, 0), np.float32)
        rows, truth = x[part.start : part.stop], y[part.start : part.stop]
        whole = multiply_part("gram", x, y, part, no_matrix)
        alone = multiply_part("gram", rows, truth, range(len(part)), no_matrix)
        assert whole.tobytes() == alone.tobytes()


def test_parts_of_the_gram_matrix_are_worth_a_message() -> None:
    """They have as many values as XᵀX, unless their product would take too long."""
    labels = SparseRows(
        np.zeros(200_001, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), 1
    )
    for columns, count in ((20, 1), (256, 12), (2_048, 64)):
        # A view of one number takes no memory.
        rows = np.broadcast_to(np.float32(1), (200_000, columns))
        parts = divide_rows("gram", rows, labels)
        assert len(parts) == count
        assert min(map(len, parts)) >= columns


@given(st.integers(0, 20), st.integers(1, 12), st.integers(0, 999))
def test_the_gram_matrix_adds_rows_in_stored_order(m: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = SparseRows.of(sparse.random_array((m, d), density=0.3, rng=rng, format="csr"))
    arrays = (rows.indptr, rows.indices, rows.values)
    triangle = np.zeros(triangle_size(d), np.float32)
    leml.add_gram(*arrays, triangle)
    assert symmetric(triangle, d).tobytes() == reference.gram(*arrays, d).tobytes()


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
