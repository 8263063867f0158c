"""Input rows: dense or sparse in any scipy format, and malformed rows that are refused."""

import re
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from scipy import sparse

from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.parameters import BuildParameters
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import FloatArray, HashFamily, Metric, Variant
from divgrpc.vectors import LENGTH_MAX, SparseRows, as_rows, concatenate_rows
from reference import kernels
from reference.index import dense, same_bytes
from support.checks.refusals import refused

NAN = float("nan")
INF = float("inf")
LENGTHY: list[Metric] = ["euclidean", "inner_product"]


def drawn(rows: int = 30, dims: int = 12, seed: int = 0) -> FloatArray:
    """Draw points with half of their entries zero, but no zero row."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((rows, dims)).astype(np.float32)
    points[rng.random(points.shape) < 0.5] = 0
    points[:, 3] = 1
    return points


def rows_of(points: FloatArray) -> SparseRows:
    return SparseRows.of(sparse.csr_array(points))


@pytest.mark.parametrize(
    "rows",
    [
        *(slice(None), slice(3, 9), slice(9, 9), slice(9, 3), slice(25, 99), slice(-4, None)),
        *(slice(2, 29, 3), slice(None, None, -2)),
        *(np.array([7, 2, 2, 29]), np.empty(0, np.int64), np.arange(30) % 3 > 0),
    ],
    ids=str,
)
def test_sparse_rows_are_indexed_like_a_matrix(rows: Any) -> None:  # noqa: ANN401  # a key
    points = drawn()
    cut = rows_of(points)[rows]
    assert dense(cut).tolist() == points[rows].tolist()
    assert cut.shape == points[rows].shape
    assert cut.indptr[0] == 0
    dtypes = [array.dtype for array in (cut.indptr, cut.indices, cut.values)]
    assert dtypes == [np.int64, np.int32, np.float32]
    assert as_rows("vectors", cut, 12).shape == cut.shape
    again = concatenate_rows([cut[:3], cut[3:3], cut[3:]])
    assert isinstance(again, SparseRows)
    assert again.indptr.tolist() == cut.indptr.tolist()
    assert again.indices.tolist() == cut.indices.tolist()


FORMS = ["csr", "csc", "coo", "dok", "lil", "bsr", "dia"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("matrix", [False, True])
def test_any_scipy_format_gives_the_same_index(form: str, matrix: bool) -> None:
    points = drawn()
    kind = sparse.csr_matrix if matrix else sparse.csr_array
    plain = Index.build(sparse.csr_array(points), n_components=4)
    index = Index.build(kind(points).asformat(form), n_components=4)
    for name, array in plain.engine._arrays.items():
        assert index.engine._arrays[name].tobytes() == array.tobytes()
    queries = drawn(5, seed=1)
    result = index.query(kind(queries).asformat(form), k=4)
    assert same_bytes(result, plain.query(rows_of(queries), k=4))


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.uint32, np.bool_])
def test_any_dtype_gives_the_same_answer(dtype: type[np.generic]) -> None:
    points = (drawn() > 0.5).astype(np.float32)
    index = Index.build(points)
    matrix = sparse.csr_array(points).astype(dtype)
    assert index.query(matrix, k=3).ids.tolist() == index.query(points, k=3).ids.tolist()


def test_repeated_and_unsorted_entries_are_merged_in_a_copy() -> None:
    """Scipy allows such entries, so the caller's matrix stays unchanged."""
    indptr, indices = np.array([0, 3, 4]), np.array([5, 2, 5, 0])
    values = np.array([1.0, 4.0, 2.0, 3.0], np.float32)
    matrix = sparse.csr_array((values, indices, indptr), shape=(2, 6))
    index = Index.build(matrix, metric="euclidean")
    assert index.engine._arrays["indices"].tolist() == [2, 5, 0]
    assert index.engine._arrays["values"].tolist() == [4, 3, 3]
    assert index.info.nonzeros == 3
    result = index.query(matrix, k=1, search="exact", selector="nearest")
    assert result.ids[:, 0].tolist() == [0, 1]
    assert matrix.indices.tolist() == [5, 2, 5, 0]
    assert matrix.data.tolist() == [1, 4, 2, 3]


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
def test_rows_of_a_scipy_matrix_are_a_copy(kind: Callable[..., Any]) -> None:
    matrix = kind(drawn())
    rows = as_rows("points", matrix, None)
    assert isinstance(rows, SparseRows)
    assert (rows.matrix != matrix).nnz == 0
    for copy, array in ((rows.indptr, matrix.indptr), (rows.indices, matrix.indices)):
        assert not np.shares_memory(copy, array)
    assert not np.shares_memory(rows.values, matrix.data)


def test_stored_zeros_change_only_the_count_of_nonzeros() -> None:
    """A row that stores only zeros counts as a zero row, which is refused under cosine."""
    points = drawn()
    plain = sparse.csr_array(points)
    with_zeros = sparse.csr_array(np.where(points == 0, 7, points))
    with_zeros.data[with_zeros.data == 7] = 0
    queries = drawn(6, seed=2)
    for metric in get_args(Metric):
        index, index_with_zeros = (
            Index.build(p, metric=metric, n_components=5) for p in (plain, with_zeros)
        )
        assert index.info.nonzeros == np.count_nonzero(points)
        assert index_with_zeros.info.nonzeros == points.size
        answers = [i.query(queries, search="exact", k=5) for i in (index, index_with_zeros)]
        assert answers[0].ids.tolist() == answers[1].ids.tolist()
    empty = SparseRows(np.array([0, 1]), np.array([2], np.int32), np.zeros(1, np.float32), 12)
    for rows in (empty, rows_of(np.zeros((1, 12), np.float32))):
        with refused("vectors", r"row 0 .*zeros"):
            Index.build(rows)
        with pytest.raises(InvalidArgumentError, match=r"row 0 .*zeros"):
            Index.build(points).query(rows)


def malformed(changes: dict[str, Any]) -> SparseRows:
    """Return two sparse rows of three columns, in which some arrays are replaced."""
    parts: dict[str, Any] = {
        "indptr": np.array([0, 2, 3], np.int64),
        "indices": np.array([0, 2, 1], np.int32),
        "values": np.ones(3, np.float32),
        "dims": 3,
    }
    return SparseRows(**parts | changes)


DEFECTS: list[tuple[str, dict[str, Any], str]] = [
    ("unsorted", {"indices": np.array([2, 0, 1], np.int32)}, "indices"),
    ("twice", {"indices": np.array([0, 0, 1], np.int32)}, "indices"),
    ("too large", {"indices": np.array([0, 3, 1], np.int32)}, "indices"),
    ("negative", {"indices": np.array([-1, 2, 1], np.int32)}, "indices"),
    ("far too large", {"indices": np.array([0, 2**32 + 2, 1], np.int64)}, "indices"),
    ("too few columns", {"dims": 2}, "indices"),
    ("falling", {"indptr": np.array([0, 2, 1, 3], np.int64)}, "indptr"),
    ("not from zero", {"indptr": np.array([1, 2, 3], np.int64)}, "indptr"),
    ("past the end", {"indptr": np.array([0, 2, 4], np.int64)}, "indptr"),
    ("short of the end", {"indptr": np.array([0, 1, 2], np.int64)}, "indptr"),
    ("nothing at all", {"indptr": np.empty(0, np.int64)}, "indptr"),
    ("in a matrix", {"indptr": np.array([[0, 2, 3]], np.int64)}, "indptr"),
    ("too few values", {"values": np.ones(2, np.float32)}, "values"),
    ("too many values", {"values": np.ones(4, np.float32)}, "values"),
]


@pytest.mark.parametrize(("changes", "part"), [m[1:] for m in DEFECTS], ids=[m[0] for m in DEFECTS])
def test_malformed_sparse_rows_are_refused_by_field(changes: dict[str, Any], part: str) -> None:
    assert malformed({}).shape == (2, 3)
    Index.build(malformed({}))
    index = Index.build(np.eye(changes.get("dims", 3), dtype=np.float32))
    with refused(f"vectors.{part}", part):
        Index.build(malformed(changes))
    with refused(f"queries.{part}", part):
        index.query(malformed(changes))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e39])
def test_values_that_are_not_finite_are_named_by_row_and_column(
    kind: str, metric: Metric, value: float
) -> None:
    """The error is the same for points and queries under every metric. 1e39 overflows float32."""
    points = drawn().astype(np.float64)
    wrong_points = points.copy()
    wrong_points[17, 3] = value
    rows = sparse.csr_array(wrong_points) if kind == "sparse" else wrong_points
    with np.errstate(over="ignore"):
        place = f"row 17 has a value that is not finite: column 3 holds {np.float32(value)}$"
    with refused("vectors", place):
        Index.build(rows, metric=metric)
    with refused("queries", place):
        Index.build(points, metric=metric).query(rows)


def test_a_one_dimensional_sparse_row_is_a_query_but_no_set_of_points() -> None:
    points = sparse.csr_array(drawn())
    row = points[4]
    assert row.ndim == 1
    index = Index.build(points)
    assert index.query(row, k=3).ids.tolist() == index.query(points[[4]], k=3).ids.tolist()
    with refused("vectors", r"a single vector.*matrix\[\[0\]\]"):
        Index.build(row)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("metric", LENGTHY)
def test_rows_above_the_maximum_length_are_refused(kind: str, metric: Metric) -> None:
    """Below the maximum, squared lengths can be added up in float32. Cosine has no maximum."""
    points = drawn()
    points *= np.float32(0.99 * LENGTH_MAX) / np.linalg.norm(points, axis=1)[:, np.newaxis]
    constructor = sparse.csr_array if kind == "sparse" else np.array
    index = Index.build(constructor(points), metric=metric)
    for search in ("tables", "scan", "scan_hamming", "exact"):
        result = index.query(constructor(points[:5]), k=8, search=search)
        assert np.isfinite(result.scores[:, 0]).all()
        assert np.isfinite(result.selection_scores[:, 0]).all()
    points[20] *= 1.1
    with refused("vectors", re.escape(f"{LENGTH_MAX:.0e}")):
        Index.build(constructor(points), metric=metric)
    with pytest.raises(InvalidArgumentError, match="row 20 "):
        index.query(constructor(points))
    Index.build(constructor(1e19 * drawn()))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("metric", get_args(Metric))
def test_vectors_of_length_1e_30_are_answered(kind: str, metric: Metric) -> None:
    """Squares of such short rows underflow in float32, but answers are finite and cosines exact."""
    constructor: Callable[..., Any] = sparse.csr_array if kind == "sparse" else np.array
    index = Index.build(constructor(1e-30 * drawn()), metric=metric)
    for search in ("tables", "scan", "exact"):
        result = index.query(
            constructor(1e-30 * drawn())[:5], k=6, search=search, selector="nearest"
        )
        assert (result.counts[0] >= 1).all()
        assert np.isfinite(result.scores[result.ids >= 0]).all()
        if metric == "cosine" and search == "exact":
            assert np.abs(result.scores[:, 0] - 1).max() < 1e-6
            assert result.ids[:, 0].tolist() == list(range(5))


@pytest.mark.parametrize("first", ["dense", "sparse"])
def test_dense_and_sparse_blocks_do_not_mix(first: str) -> None:
    """The first block decides; rows received before a refused block are kept."""
    points = drawn()
    blocks = [points, sparse.csr_array(points)]
    block, other_block = blocks if first == "dense" else reversed(blocks)
    builder = IndexBuilder(MemoryStore(), BuildParameters())
    builder.append(block)
    with refused("vectors", first):
        builder.append(other_block)
    builder.append(block)
    info = builder.build().manifest
    assert (info.rows, info.points) == (60, first)
    assert info.nonzeros == 2 * (points.size if first == "dense" else np.count_nonzero(points))


@pytest.mark.parametrize("columns", [11, 13])
@pytest.mark.parametrize("constructor", [np.array, sparse.csr_array])
def test_queries_with_another_number_of_columns_are_refused(
    columns: int, constructor: Callable[..., object]
) -> None:
    for kind in (np.array, sparse.csr_array):
        index = Index.build(kind(drawn()))
        with refused("queries", f"12 columns, got {columns}"):
            index.query(constructor(drawn(dims=columns)))


def normal(rows: int, dims: int) -> FloatArray:
    """Draw standard normal float32 numbers."""
    return np.random.default_rng(3).standard_normal((rows, dims)).astype(np.float32)


@pytest.mark.parametrize("column", [12, 1_000_000_000, -5])
def test_scipy_matrices_with_wrong_column_numbers_are_refused(column: int) -> None:
    index = Index.build(normal(50, 12))
    matrix = sparse.csr_array(normal(2, 12))
    matrix.indices[-1] = column
    with pytest.raises(InvalidArgumentError, match="queries is malformed"):
        index.query(matrix)
    with pytest.raises(InvalidArgumentError, match="vectors is malformed"):
        IndexBuilder(MemoryStore(), BuildParameters()).append(matrix)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("indptr", [0, 1.5]),
        ("indices", [[0]]),
        ("indices", [0.5]),
        ("values", ["a"]),
        ("values", [1j]),
        ("values", [[1.0]]),
    ],
)
def test_parts_of_sparse_rows_must_be_numeric_vectors(part: str, wrong: list[Any]) -> None:
    parts: dict[str, Any] = {"indptr": [0, 1], "indices": [0], "values": [1.0], part: wrong}
    rows = SparseRows(**{name: np.array(value) for name, value in parts.items()}, dims=4)
    with refused(f"queries.{part}"):
        Index.build(normal(20, 4)).query(rows)


def test_masked_entries_are_refused() -> None:
    masked_array: Any = np.ma.masked_greater(normal(20, 4), 1)
    with pytest.raises(InvalidArgumentError, match="masked"):
        Index.build(masked_array)


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv"])
def test_the_longest_points_have_finite_hyperplanes_and_estimates(
    metric: Metric, family: HashFamily
) -> None:
    """An overflowing sum would be infinite or NaN, and a scan could not rank such a point."""
    points = np.full((3_000, 1), 0.99 * LENGTH_MAX)
    points[::10] *= -1
    index = Index.build(points, metric=metric, hash_family=family)
    assert np.isfinite(index.engine._arrays["hyperplanes"]).all()
    assert np.isfinite(kernels.unpack_terms(index.engine._arrays["scan_terms"])).all()
    result = index.query([[0.0], [LENGTH_MAX / 2]], search="scan", k=50)
    assert (result.counts == 50).all()
    assert all(len(set(ids)) == 50 for ids in result.ids.tolist())


@pytest.mark.parametrize("variant", ["corrected", "marginal"])
def test_a_diversity_that_rounds_to_zero_repeats_no_point(variant: Variant) -> None:
    """With diversity 1e-9, 1 - diversity rounds to 1 in float32."""
    index = Index.build(normal(400, 8) * 1e13, metric="euclidean")
    options: dict[str, Any] = {"search": "exact", "hash_limit": 0, "candidates_limit": 0}
    result = index.query(normal(1, 8), k=300, diversity=1e-9, variant=variant, **options)
    assert len(set(result.ids[0].tolist())) == 300


@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv", "pca_hash"])
def test_estimates_of_a_point_do_not_depend_on_the_others_in_its_block(family: HashFamily) -> None:
    """Points in the last block, or with values in few columns, have the same estimates."""
    points = normal(9_000, 40)
    points[8_192:, 2:] = 0
    order = np.random.default_rng(0).permutation(len(points))
    options: dict[str, Any] = {"metric": "inner_product", "n_components": 20, "hash_family": family}
    terms, permuted_terms = (
        kernels.unpack_terms(Index.build(rows, **options).engine._arrays["scan_terms"])
        for rows in (points, points[order])
    )
    # Another order of points changes the last digits of sums, and therefore those of components.
    assert np.allclose(terms[:, order], permuted_terms, rtol=0.05, atol=1e-3)


def test_max_distance_may_exceed_float32(recwarn: pytest.WarningsRecorder) -> None:
    """A max_distance above the largest float32 excludes no point and causes no warning."""
    index = Index.build(normal(20, 4))
    assert index.query(normal(1, 4), max_distance=1e300).counts[0] == 10
    assert not recwarn.list
