"""How requests are made from arguments and results from answers, without a connection."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.types import QueryResult
from divgrpc_client.messages import upload
from divgrpc_client.messages.batches import MESSAGE_BYTES, Exchange, predict_batch, query_batch
from divgrpc_client.messages.options import (
    BUILD_DEFAULTS,
    QUERY_DEFAULTS,
    BuildOptions,
    QueryOptions,
)
from divgrpc_client.messages.requests import build_header, predict_fields, query_fields
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode, row_ends
from divgrpc_protos import arrays
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import query_pb2
from support.checks.refusals import refused, wrong
from support.processes.scripted_server import answer

QUERY = [1.0, 2.0]


def sent(queries: VectorsLike, **options: Any) -> query_pb2.QueryRequest:  # noqa: ANN401  # any option, wrong ones too
    """Return the first request of a query, serialized and parsed, as the server receives it."""
    request = next(query_batch("images", queries, cast(QueryOptions, options)))
    return query_pb2.QueryRequest.FromString(request.SerializeToString())


def test_unset_options_stay_unset() -> None:
    for request in (sent(QUERY), sent(QUERY, epsilon=None, hash_limit=None, max_distance=None)):
        assert [field.name for field, _ in request.ListFields()] == ["index", "queries"]


def test_zeros_are_sent() -> None:
    """The fields have presence, so a zero differs from an option that is not set."""
    request = sent(QUERY, diversity=0, hash_limit=0, candidates_limit=0, seed=0, max_distance=0.0)
    for field in ("diversity", "hash_limit", "candidates_limit", "seed", "max_distance"):
        assert request.HasField(field)
        assert getattr(request, field) == 0


def test_numpy_scalars_are_accepted() -> None:
    request = sent(QUERY, k=np.int32(7), diversity=np.float32(0.5), seed=np.uint64(2**64 - 1))
    assert (request.k, request.diversity, request.seed) == (7, 0.5, 2**64 - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("k", value) for value in (-1, 2**32, 1.5, "ten", True)),
        *(("diversity", value) for value in ("much", False, [0.5])),
        *(("seed", value) for value in (-1, 2**64)),
        *(("selector", value) for value in ("best", 2, True, ["greedy"])),
        *(("search", "Tables"), ("variant", ""), ("sampling", "unspecified")),
        *(("hash_limit", 1e3), ("n_probes", 2**32)),
        *((name, None) for name, default in QUERY_DEFAULTS.items() if default is not None),
    ],
)
def test_a_wrong_option_is_named(field: str, value: object) -> None:
    """The error names field and value; cached values that are equal make no difference."""
    query_fields("images", {"k": 1, "keep_duplicates": True})
    with pytest.raises(InvalidArgumentError, match=field) as error_info:
        query_fields("images", cast(QueryOptions, {field: value}))
    assert error_info.value.field == field
    assert repr(value) in str(error_info.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("centred", "yes"), ("n_tables", True), ("metric", "manhattan")),
        *((name, None) for name, default in BUILD_DEFAULTS.items() if default is not None),
    ],
)
def test_a_wrong_option_of_a_build_is_named(field: str, value: object) -> None:
    with refused(field, field):
        build_header("images", cast(BuildOptions, {field: value}), replace=False, expected_rows=1)


@pytest.mark.parametrize(
    ("field", "value", "limits"),
    [("k", 10**12, "1 and 10000"), ("k", 0, "1 and 10000"), ("seed", 2**64, f"0 and {2**64 - 1}")],
)
def test_an_integer_out_of_range_is_refused_with_the_range(
    field: str, value: int, limits: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"between {limits}, got {value}"):
        query_fields("images", cast(QueryOptions, {field: value}))


@pytest.mark.parametrize(("exchange_of", "count"), [(query_batch, "k"), (predict_batch, "top_k")])
def test_small_integers_of_numpy_are_counts(
    exchange_of: Callable[..., Exchange[Any, Any, object]], count: str
) -> None:
    """The number of bytes of an answer would overflow such an integer."""
    request = next(exchange_of("images", np.zeros((9, 2)), {count: np.uint8(10)}))
    assert getattr(request, count) == 10


def test_replace_must_be_a_bool() -> None:
    """Any other value is refused, because `replace` decides whether an index is lost."""
    with pytest.raises(InvalidArgumentError, match="replace must be true or false, got 'no'"):
        build_header("images", {}, replace=cast(bool, "no"), expected_rows=1)


def test_unknown_options_are_type_errors() -> None:
    with pytest.raises(TypeError, match=r"query\(\) got an unexpected keyword argument 'depth'"):
        query_fields("images", QueryOptions(depth=3))  # type: ignore[typeddict-unknown-key]  # on purpose


@pytest.mark.parametrize("name", [7, ["images"], "\ud800", None])
def test_an_index_name_must_be_a_text(name: Any) -> None:  # noqa: ANN401  # no text on purpose
    with pytest.raises(InvalidArgumentError, match="index must be a text"):
        query_fields(name, {})
    with pytest.raises(InvalidArgumentError, match="index must be a text"):
        build_header(name, {}, replace=False, expected_rows=1)


def test_words_become_enum_values() -> None:
    request = sent(QUERY, selector="qp_relax", search="scan_hamming", variant="marginal")
    assert request.selector == query_pb2.SELECTOR_QP_RELAX
    assert request.search == query_pb2.SEARCH_SCAN_HAMMING
    assert request.variant == query_pb2.VARIANT_MARGINAL


@pytest.mark.parametrize(
    "queries",
    [[1, 2], (1.0, 2.0), np.array([1, 2]), np.array([[1, 2]], "f8"), np.array([[1, 2]], ">f4")],
)
def test_queries_become_float32(queries: VectorsLike) -> None:
    """Lists, integers and other floats are sent as float32, and a single vector as one row."""
    matrix = sent(queries).queries.dense
    assert (matrix.rows, matrix.cols) == (1, 2)
    assert matrix.data == np.array([1, 2], "<f4").tobytes()


def test_a_sparse_row_of_one_dimension_is_one_row() -> None:
    """Indexing a sparse array gives such a row; a query takes it, and a build needs a matrix."""
    row = scipy.sparse.csr_array([[0, 2.0, 0], [1, 0, 3]])[1]
    assert row.ndim == 1
    for of_one in (row, scipy.sparse.coo_array(row)):
        csr = arrays.decode(sent(of_one).queries)
        assert isinstance(csr, arrays.Csr)
        assert (csr.cols, csr.indptr.tolist()) == (3, [0, 2])
        assert (csr.indices.tolist(), csr.data.tolist()) == ([0, 2], [1, 3])
    with pytest.raises(InvalidArgumentError, match=r"got \(3,\); matrix\[\[0\]\]"):
        as_matrix("vectors", row)


def test_rows_of_different_lengths_are_refused() -> None:
    """The client's message explains the fault better than numpy's message."""
    with pytest.raises(InvalidArgumentError, match="must be a matrix of numbers; its rows differ"):
        as_matrix("queries", [[1, 2], [3]])


@pytest.mark.parametrize(
    ("request_of", "has_hierarchy"), [(query_fields, False), (predict_fields, True)]
)
def test_a_wrong_selector_lists_the_valid_ones(request_of: Any, has_hierarchy: bool) -> None:  # noqa: ANN401  # either function
    """The error lists the selectors of the method; only PredictLabels has `hierarchy`."""
    with pytest.raises(InvalidArgumentError, match="selector must be one of") as error_info:
        request_of("images", {"selector": "xyz"})
    assert ("hierarchy" in str(error_info.value)) == has_hierarchy


def test_values_beyond_float32_are_sent_as_infinity() -> None:
    """The server refuses infinite values, so the client sends them without a warning."""
    huge = np.array([[1e39, 1.0]])
    assert np.isinf(np.asarray(arrays.decode(sent(huge).queries))[0, 0])
    sparse = arrays.decode(sent(scipy.sparse.csr_matrix(huge)).queries)
    assert isinstance(sparse, arrays.Csr)
    assert np.isinf(sparse.data[0])


def test_float16_is_sent_as_float16() -> None:
    matrix = sent(np.ones((3, 2), np.float16)).queries.dense
    assert len(matrix.data) == 12


def test_strided_arrays_are_sent_correctly() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    matrix = arrays.decode(sent(base[::2, 1::2]).queries)
    assert np.array_equal(np.asarray(matrix), base[::2, 1::2])


@pytest.mark.parametrize(
    "queries",
    [
        *(np.float32(3), np.zeros((1, 2, 3)), [[1.0, 2.0], [3.0]], ["a", "b"], [[object()]]),
        *(np.array([[1j, 2]]), np.array(["2020-01-01"], "M8[D]")),
    ],
)
def test_invalid_matrices_are_refused(queries: Any) -> None:  # noqa: ANN401  # anything but vectors
    """Refused are three dimensions, ragged rows, texts, objects, complex numbers and dates."""
    with refused("queries", "queries"):
        query_batch("images", queries, {})


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 200))
def test_dense_rows_are_split_into_pieces(rows: int, dims: int, limit: int) -> None:
    """Each row comes once and in order; a piece exceeds the limit only if it is a single row."""
    matrix = np.arange(rows * dims, dtype=np.float32).reshape(rows, dims)
    ends = row_ends(matrix, limit)
    starts = [0, *ends[:-1]]
    pieces = [matrix[a:b] for a, b in zip(starts, ends, strict=False)]
    assert ends == sorted(set(ends))
    assert np.array_equal(np.concatenate([matrix[:0], *pieces]), matrix)
    assert all(len(piece) == 1 or piece.nbytes <= limit for piece in pieces)


@given(st.integers(0, 30), st.integers(1, 12), st.integers(1, 300), st.integers(0, 99))
def test_sparse_rows_are_split_into_pieces(rows: int, dims: int, limit: int, seed: int) -> None:
    """The pieces hold each row once and in order, and each piece is a valid matrix."""
    random = np.random.default_rng(seed)
    matrix = random.binomial(1, 0.3, (rows, dims)) * random.normal(size=(rows, dims))
    sparse = as_matrix("vectors", scipy.sparse.csr_matrix(matrix.astype(np.float32)))
    start, blocks = 0, [np.empty((0, dims), np.float32)]
    for stop in row_ends(sparse, limit):
        piece = arrays.decode(encode(sparse, start, stop))
        assert isinstance(piece, arrays.Csr)
        parts = (piece.data, piece.indices, piece.indptr)
        blocks.append(scipy.sparse.csr_matrix(parts, (stop - start, dims)).toarray())
        start = stop
    assert start == row_count(sparse) == rows
    assert np.array_equal(np.concatenate(blocks), matrix.astype(np.float32))


def test_sparse_matrices_of_any_kind() -> None:
    """All formats are sent as CSR with sorted columns and without duplicates."""
    dense = np.array([[0, 2, 1], [3, 0, 0]], np.float32)
    unsorted_matrix = scipy.sparse.csr_matrix(dense)
    unsorted_matrix.indices[:2], unsorted_matrix.data[:2] = [2, 1], [1, 2]
    unsorted_matrix.has_sorted_indices = False
    parts = (np.array([1, 1, 1, 3], np.float32), np.array([1, 2, 1, 0]), np.array([0, 3, 4]))
    twice = scipy.sparse.csr_array(parts, shape=(2, 3))
    for matrix in (
        unsorted_matrix,
        scipy.sparse.csc_matrix(dense),
        scipy.sparse.coo_array(dense),
        twice,
    ):
        csr = arrays.decode(encode(as_matrix("queries", matrix), 0, 2))
        assert isinstance(csr, arrays.Csr)
        assert csr.indices.tolist() == [1, 2, 0]
        assert csr.data.tolist() == [2, 1, 3]
    assert unsorted_matrix.indices.tolist() == [2, 1, 0]
    assert twice.nnz == 4


@pytest.mark.parametrize(
    "matrix",
    [
        scipy.sparse.csr_array(np.array([[1j, 0]])),
        scipy.sparse.csr_array((2, 2**32)),
        scipy.sparse.coo_array(np.ones(3)),
    ],
)
def test_invalid_sparse_matrices_are_refused(matrix: Any) -> None:  # noqa: ANN401  # scipy has no types
    with refused("vectors", "vectors must"):
        as_matrix("vectors", matrix)


def results_of(
    batch: Exchange[query_pb2.QueryRequest, query_pb2.QueryResponse, QueryResult],
    generations: list[int],
) -> tuple[list[int], QueryResult | None]:
    """Answer all requests of a batch, and return the rows of each request and the result."""
    counts = []
    request = next(batch)
    while True:
        counts.append(request.queries.dense.rows)
        generation = generations.pop(0) if len(generations) > 1 else generations[0]
        assert request.ByteSize() <= LIMITS["message_bytes_max"]
        try:
            request = batch.send(answer(request, generation))
        except StopIteration as end:
            return counts, end.value


def test_large_batches_are_split_and_joined() -> None:
    """A batch above the message limit is sent in several requests and returns one result."""
    queries = np.zeros((3000, 1000), np.float32)
    queries[:, 0] = np.arange(3000)
    row_counts, result = results_of(query_batch("images", queries, {}), [4])
    assert len(row_counts) == 3
    assert result is not None
    assert result.ids[:, 0].tolist() == list(range(0, 30000, 10))
    assert result.stats.points_hashed.shape == (3000,)
    assert len(result.warnings) == 1


def test_a_batch_with_large_answers_is_split() -> None:
    """The vectors would fit one request, but the answer would exceed the message limit."""
    for k in (10_000, cast(int, np.int64(10_000))):
        row_counts, _ = results_of(query_batch("images", np.zeros((100, 2)), {"k": k}), [1])
        assert max(row_counts) * 10_000 * 17 < MESSAGE_BYTES
        assert sum(row_counts) == 100
    many = np.zeros((LIMITS["query_rows_max"] + 1, 2))
    assert results_of(query_batch("images", many, {}), [1])[0] == [LIMITS["query_rows_max"], 1]


def test_rows_answered_by_an_older_generation_are_queried_again() -> None:
    row_counts, result = results_of(query_batch("images", np.zeros((3000, 1000)), {}), [1, 1, 2])
    assert len(row_counts) == 5
    assert result is not None
    assert result.generation == 2


def test_a_batch_fails_if_its_index_is_replaced_too_often() -> None:
    """A result never mixes answers of two generations."""
    batch = query_batch("images", np.zeros((3000, 1000)), {})
    row_counts, result = results_of(batch, list(range(1, 100)))
    assert result is None
    assert len(row_counts) < 20


def test_fewer_results_are_padded() -> None:
    response = query_pb2.QueryResponse(
        generation=1,
        offsets=[0, 2, 2, 3],
        ids=[5, 6, 7],
        scores=[0.5, 0.25, 0.125],
        selection_scores=[1, 2, 3],
        parameters=query_pb2.EffectiveParameters(k=2),
    )
    batch = query_batch("images", np.zeros((3, 2)), {})
    next(batch)
    with pytest.raises(StopIteration) as end:
        batch.send(response)
    result = end.value.value
    assert result.duality_gaps.shape == (0,)
    assert result.ids.tolist() == [[5, 6], [-1, -1], [7, -1]]
    assert result.counts.tolist() == [2, 0, 1]
    assert np.isnan(result.scores).sum() == np.isnan(result.selection_scores).sum() == 3


def prepared(vectors: VectorsLike, **columns: Any) -> upload.Upload:  # noqa: ANN401  # wrong ones too
    return upload.upload("images", vectors, {}, upload.RowData(**columns), replace=False)


UNSIGNED = np.array([0, 1, 2**63], np.uint64)


@wrong(
    ids=([1, 2], [[1, 2, 3]], [1.0, 2.0, 3.0], ["a", "b", 3], UNSIGNED),
    categories=([0, 1, 2**31],),
    subtopics=([0, 1, -(2**31) - 1], [True, False, True]),
)
def test_columns_are_checked_before_anything_is_sent(field: str, value: Any) -> None:  # noqa: ANN401  # wrong on purpose
    """The error names the column whose length, shape, type or range is wrong."""
    with refused(field, field):
        prepared(np.ones((3, 2)), **{field: value})


def test_a_build_needs_a_matrix() -> None:
    with pytest.raises(InvalidArgumentError, match=r"vectors must be of shape \(rows, dims\)"):
        prepared(np.ones(3))


def test_an_upload_without_rows_is_sent() -> None:
    """The upload consists of a header and a commit, and the server refuses it."""
    assert [m.WhichOneof("step") for m in prepared(np.ones((0, 3))).chunks(99)] == ["commit"]
