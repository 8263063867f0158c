"""Invalid sparse rows: Build, Query and QueryStream refuse them with the same field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from scipy.sparse import csr_array

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc_client import Client
from divgrpc_protos.v1 import index_pb2, query_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.refusals import refused
from support.checks.status_details import Details, details_of_status, failure
from support.data.served_index import DIMS, Served, place
from support.processes.running_server import RunningServer
from support.requests.manual_uploads import build_here, commit, header, wrong_field
from support.requests.raw_calls import stream

INVALID = grpc.StatusCode.INVALID_ARGUMENT
HUGE = 2**63 - 1

Refuse: TypeAlias = Callable[[DiverseIndexStub, str, vectors_pb2.Vectors], Details]


def rows(
    indptr: list[int],
    indices: list[int],
    values: npt.ArrayLike | None = None,
    /,
    **fields: Any,  # noqa: ANN401  # a message's own types
) -> vectors_pb2.Vectors:
    """Return sparse rows whose values are ones; `fields` replace fields of the message."""
    data = np.ones(len(indices)) if values is None else np.asarray(values)
    matrix_fields = {
        "rows": len(indptr) - 1,
        "cols": DIMS,
        "indptr": np.array(indptr, "<i8").tobytes(),
        "indices": np.array(indices, "<u4").tobytes(),
        "data": data.astype("<f4").tobytes(),
        **fields,
    }
    return vectors_pb2.Vectors(sparse=vectors_pb2.CsrMatrix(**matrix_fields))


def refused_query(stub: DiverseIndexStub, name: str, vectors: vectors_pb2.Vectors) -> Details:
    """Return the error of Query."""
    return failure(stub.Query, query_pb2.QueryRequest(index=name, queries=vectors), timeout=30)


def refused_item(stub: DiverseIndexStub, name: str, vectors: vectors_pb2.Vectors) -> Details:
    """Return the error of a query on a QueryStream, which must answer the next query."""
    bad = query_pb2.QueryRequest(index=name, queries=vectors)
    good = query_pb2.QueryRequest(index=name, queries=rows([0, 1], [0]))
    items = [
        query_pb2.QueryStreamRequest(correlation_id=number, query=query)
        for number, query in enumerate((bad, good))
    ]
    answers = {a.correlation_id: a for a in stub.QueryStream(iter(items), timeout=30)}
    assert answers[1].WhichOneof("outcome") == "response"
    error = answers[0].error
    code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
    return details_of_status(code, error)


CALLS: dict[str, Refuse] = {"queries": refused_query, "stream": refused_item}


@pytest.fixture(scope="module")
def names(server: RunningServer, served_index: Served) -> dict[str, str]:
    """Return the names of an index of dense points and an index of sparse points."""
    points = np.where(served_index.points > 0.5, served_index.points, 0)[:200] + np.eye(200, DIMS)
    place(server, "served-sparse", csr_array(points))
    return {"dense": served_index.name, "sparse": "served-sparse"}


WRONG = [
    (rows([0, 2], [3, 1]), ".sparse.indices"),
    (rows([0, 2], [3, 3]), ".sparse.indices"),
    (rows([0, 1, 3], [5, 3, 3]), ".sparse.indices"),
    (rows([0, 1], [DIMS]), ".sparse.indices"),
    (rows([0, 1], [2**32 - 1]), ".sparse.indices"),
    (rows([0, 2, 1, 2], [0, 1]), ".sparse.indptr"),
    (rows([0, HUGE, -HUGE - 1, -1, 2], [0, 1]), ".sparse.indptr"),
    (rows([1, 2], [0, 1]), ".sparse.indptr"),
    (rows([0, -1], [0]), ".sparse.indptr"),
    (rows([0, 1], [0, 1]), ".sparse.indptr"),
    (rows([0, 3], [0, 1]), ".sparse.indptr"),
    (rows([0, HUGE], [0]), ".sparse.indptr"),
    (rows([0, 1], [0], indptr=b""), ".sparse.indptr"),
    (rows([0, 1], [0], indptr=bytes(15)), ".sparse.indptr"),
    (rows([0, 1], [0], rows=2), ".sparse.indptr"),
    (rows([0, 1], [0], rows=2**32 - 1), ".sparse.indptr"),
    (rows([0, 1], [0], indices=bytes(3)), ".sparse.indices"),
    (rows([0, 1], [0], indices=b""), ".sparse.indices"),
    (rows([0, 1], [0], data=bytes(3)), ".sparse.data"),
    (rows([0, 1], [0], dtype=vectors_pb2.DTYPE_FLOAT16), ".sparse.data"),
    (rows([0, 1], [0], dtype=99), ".sparse.dtype"),
    (rows([0, 1], [0], cols=LIMITS["sparse_dims_max"] + 1), ".sparse.cols"),
    (rows([0, 1], [0], cols=2**31), ".sparse.cols"),
    (rows([0, 1], [2**31], cols=2**32 - 1), ".sparse.cols"),
    (rows([0, 0], [], cols=0), ""),
    (rows([0], []), ""),
    (rows([0, 1, 1], [0]), ""),
    (rows([0, 1, 3], [0, 1, 2], [1, 0, 0]), ""),
    (rows([0, 1], [0], [np.nan]), ""),
    (rows([0, 1], [0], [np.inf]), ""),
]


@pytest.mark.parametrize("points", ["dense", "sparse"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("vectors", "field"), WRONG)
def test_invalid_sparse_queries_name_the_field(
    stub: DiverseIndexStub,
    names: dict[str, str],
    *,
    call: str,
    points: str,
    vectors: vectors_pb2.Vectors,
    field: str,
) -> None:
    """The call ends as INVALID_ARGUMENT, for indexes of dense and of sparse points."""
    details = CALLS[call](stub, names[points], vectors)
    assert (details.code, details.fields) == (INVALID, ("queries" + field,))


def upload(vectors: vectors_pb2.Vectors) -> list[index_pb2.BuildRequest]:
    """Return the messages of a build with one chunk."""
    step = index_pb2.BuildRequest(chunk=index_pb2.BuildChunk(vectors=vectors))
    return [header("never"), step, commit(vectors.sparse.rows)]


@pytest.mark.parametrize(("vectors", "field"), WRONG)
def test_invalid_sparse_points_name_the_field(
    tmp_path: Path, vectors: vectors_pb2.Vectors, field: str
) -> None:
    assert wrong_field(tmp_path, *upload(vectors)) == "vectors" + field


@pytest.mark.parametrize("points", ["dense", "sparse"])
@pytest.mark.parametrize("call", ["queries", "stream"])
def test_sparse_queries_have_the_columns_of_the_index(
    stub: DiverseIndexStub, names: dict[str, str], call: str, points: str
) -> None:
    """A query with more or fewer columns than the index is refused, even if its values fit."""
    for cols in (DIMS - 1, DIMS + 1):
        details = CALLS[call](stub, names[points], rows([0, 1], [0], cols=cols))
        assert details.code == INVALID
        assert details.fields == ("queries",)
        assert f"{DIMS} columns" in details.message


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_a_bad_row_is_named_by_its_number(client: Client, names: dict[str, str], kind: Any) -> None:  # noqa: ANN401  # of a matrix
    """The worker cuts the batch into slices, but the error gives the row's number in the batch."""
    queries = np.eye(400, DIMS, dtype=np.float32) + 0.1
    queries[137, 3] = np.nan
    for name in names.values():
        with pytest.raises(InvalidArgumentError, match="row 137"):
            client.query(name, kind(queries))


def test_the_number_of_a_bad_row_is_its_place_in_the_upload(tmp_path: Path) -> None:
    """Sparse rows are counted over all chunks of the upload."""
    chunks = [
        index_pb2.BuildRequest(chunk=index_pb2.BuildChunk(vectors=vectors))
        for vectors in (rows([0, 1, 2], [0, 1]), rows([0, 1, 2], [0, 1], [1, np.nan]))
    ]
    with refused("vectors", match="row 3"):
        build_here(tmp_path, header("never"), *chunks, commit(4))


def test_malformed_stream_queries_are_all_answered(
    channel: grpc.Channel, names: dict[str, str]
) -> None:
    """A stream of malformed rows gets an error for each query."""
    bad = query_pb2.QueryRequest(index=names["sparse"], queries=rows([0, 2], [3, 3]))
    items = [
        query_pb2.QueryStreamRequest(correlation_id=i, query=bad).SerializeToString()
        for i in range(50)
    ]
    answers = [
        query_pb2.QueryStreamResponse.FromString(answer)
        for answer in stream(channel, "QueryStream", iter(items))
    ]
    assert sorted(answer.correlation_id for answer in answers) == list(range(50))
    assert all(answer.error.code == INVALID.value[0] for answer in answers)


def test_max_distance_needs_a_metric_with_distances(
    server: RunningServer, client: Client, served_index: Served
) -> None:
    """Under `inner_product`, `max_distance` is refused for streams and for batches of any size."""
    place(server, "served-product", served_index.points[:200], metric="inner_product")
    with refused("max_distance"):
        client.query("served-product", served_index.queries[:40], max_distance=1.0)
    with refused("max_distance"):
        list(client.query_stream("served-product", [served_index.queries[0]], max_distance=1.0))
