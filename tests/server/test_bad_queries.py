"""What is wrong with a query is said with the status and the field of the contract."""

import math
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import IndexNotFoundError, InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc_client import Client
from divgrpc_client.rpc.errors import RpcError
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import query_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2 import DESCRIPTOR
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.raw_calls import stream, unary
from support.served_index import DIMS, Served, random_points
from support.status_details import Details, details_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

pytestmark = pytest.mark.usefixtures("served")


def one_row() -> vectors_pb2.Vectors:
    """Return a query that nothing is wrong with."""
    return encode_dense(np.ones((1, DIMS), np.float32))


def dense(**fields: Any) -> vectors_pb2.Vectors:  # noqa: ANN401  # a message's own types
    """Return a matrix with one row of numbers, but for `fields`."""
    given = {"rows": 1, "cols": DIMS, "data": np.ones(DIMS, np.float32).tobytes(), **fields}
    return vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(**given))


def refusal(stub: DiverseIndexStub, **fields: Any) -> Details:  # noqa: ANN401  # as above
    """Return the details of a query that must fail."""
    request = query_pb2.QueryRequest(**{"index": "served", "queries": one_row(), **fields})
    with pytest.raises(grpc.RpcError) as caught:
        stub.Query(request, timeout=10)
    return details_of(caught.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"k": 0}, "k"),
        ({"k": 10_001}, "k"),
        ({"diversity": -0.01}, "diversity"),
        ({"diversity": 1.01}, "diversity"),
        ({"diversity": math.nan}, "diversity"),
        ({"diversity_auto": True, "diversity": 0.3}, "diversity_auto"),
        ({"diversity_auto": True, "lose_at_most": 0.1}, "diversity_auto"),
        ({"diversity_auto": True, "selector": query_pb2.SELECTOR_NEAREST}, "diversity_auto"),
        ({"lose_at_most": 0.1, "diversity": 0.3}, "lose_at_most"),
        ({"lose_at_most": 0.1, "selector": query_pb2.SELECTOR_NEAREST}, "lose_at_most"),
        ({"lose_at_most": 0.1, "variant": query_pb2.VARIANT_PRINTED}, "lose_at_most"),
        ({"lose_at_most": -0.01}, "lose_at_most"),
        ({"lose_at_most": 1.01}, "lose_at_most"),
        ({"lose_at_most": math.nan}, "lose_at_most"),
        ({"candidates_limit": 9}, "candidates_limit"),
        ({"hash_limit": 9}, "hash_limit"),
        ({"n_probes": 0}, "n_probes"),
        ({"n_probes": 2**31}, "n_probes"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1.0, "hash_limit": 100}, "epsilon"),
        ({"max_distance": -1.0}, "max_distance"),
        ({"max_distance": math.inf}, "max_distance"),
        ({"selector": 99}, "selector"),
        ({"variant": 99}, "variant"),
        ({"search": 99}, "search"),
        ({"sampling": 99}, "sampling"),
        ({"rounding": 99}, "rounding"),
        ({"index": ""}, "index"),
        ({"index": "../x"}, "index"),
        ({"index": "x" * 300}, "index"),
        ({"index": "a\0b"}, "index"),
        ({"queries": vectors_pb2.Vectors()}, "queries"),
        ({"queries": dense(rows=0, data=b"")}, "queries"),
        ({"queries": dense(cols=DIMS + 1)}, "queries.dense.data"),
        ({"queries": dense(data=b"short")}, "queries.dense.data"),
        ({"queries": dense(rows=2**32 - 1, cols=2**32 - 1)}, "queries.dense.data"),
        ({"queries": dense(values=[1.0] * DIMS)}, "queries.dense.values"),
        ({"queries": dense(data=b"", values=[1.0])}, "queries.dense.values"),
        ({"queries": dense(dtype=99)}, "queries.dense.dtype"),
        ({"queries": encode_dense(np.ones((1, DIMS + 1), np.float32))}, "queries"),
        ({"queries": encode_dense(np.zeros((1, DIMS), np.float32))}, "queries"),
        ({"queries": encode_dense(np.full((1, DIMS), np.nan, np.float32))}, "queries"),
        ({"queries": encode_dense(np.full((1, DIMS), np.inf, np.float32))}, "queries"),
    ],
    ids=str,
)
def test_a_wrong_query_names_its_field(
    stub: DiverseIndexStub, fields: dict[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT, the field in BadRequest, an ErrorInfo of ours with the request's id."""
    details = refusal(stub, **fields)
    assert details.code == INVALID
    assert details.fields == (field,)
    assert details.domain == "divgrpc"
    assert details.reason == "INVALID_ARGUMENT"
    assert details.metadata["request_id"]
    assert details.retry_after is None


@pytest.mark.parametrize("other", [{"diversity": 0.3}, {"lose_at_most": 0.1}])
def test_a_dial_that_is_set_twice_names_the_fields(
    stub: DiverseIndexStub, other: dict[str, float]
) -> None:
    """The sentence has the names that a request has."""
    sentence = "diversity, diversity_auto and lose_at_most are three ways to set the dial"
    assert sentence in refusal(stub, diversity_auto=True, **other).message


def test_a_bad_row_is_called_by_its_number(client: Client, served: Served) -> None:
    """In a batch of any size the first bad row is named, however the server cuts the batch."""
    queries = np.repeat(served.queries[:1], 200, axis=0)
    queries[137, 3] = np.nan
    with pytest.raises(InvalidArgumentError, match="row 137"):
        client.query(served.name, queries)


def test_more_rows_than_a_query_may_have(stub: DiverseIndexStub) -> None:
    """Ten thousand rows are the most."""
    queries = encode_dense(np.ones((10_001, DIMS), np.float32))
    assert refusal(stub, queries=queries).fields == ("queries",)


def test_an_answer_too_large_for_a_message(stub: DiverseIndexStub) -> None:
    """What could not be sent is refused before it is computed."""
    queries = encode_dense(np.ones((5_000, DIMS), np.float32))
    details = refusal(stub, queries=queries, k=1_000)
    assert (details.code, details.reason) == (EXHAUSTED, "REPLY_TOO_LARGE")


def test_more_results_than_points(client: Client, served: Served) -> None:
    """Asking for more than there is gives all there is, and a warning."""
    result = client.query(served.name, served.queries[0], k=5_000)
    assert result.counts.tolist() == [len(served.points)]
    assert [warning.code for warning in result.warnings] == ["FEWER_THAN_K_POINTS"]


def test_more_results_than_points_for_many_rows(client: Client, stub: DiverseIndexStub) -> None:
    """The size of an answer is reckoned with the points there are, not with what is asked."""
    client.build("few", random_points(40), replace=True)
    queries = encode_dense(random_points(1_000))
    request = query_pb2.QueryRequest(index="few", queries=queries, k=10_000)
    assert len(stub.Query(request, timeout=30).ids) == 40_000


def test_an_index_that_is_not_there(client: Client) -> None:
    """NOT_FOUND, as the core's own error."""
    with pytest.raises(IndexNotFoundError) as caught:
        client.query("nobody", np.ones(DIMS))
    assert isinstance(caught.value, RpcError)
    assert caught.value.code == grpc.StatusCode.NOT_FOUND


METHODS = DESCRIPTOR.services_by_name["DiverseIndex"].methods
PATHS = (
    *(f"divgrpc.v1.DiverseIndex/{method.name}" for method in METHODS),
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", b"\x0a\xff", b"\x08" * 40_001])
@pytest.mark.parametrize("path", PATHS)
def test_bytes_that_are_no_message(channel: grpc.Channel, path: str, payload: bytes) -> None:
    """Malformed protobuf, small or large, is INVALID_ARGUMENT in every method."""
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{path}")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([payload]), timeout=10))
    details = details_of(caught.value)
    assert (details.code, details.reason) == (INVALID, "MALFORMED_MESSAGE")


@pytest.mark.parametrize("method", ["Query", "GetIndex", "DeleteIndex"])
def test_a_name_that_is_no_text(channel: grpc.Channel, method: str) -> None:
    """A name whose bytes are no UTF-8 makes a message malformed."""
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, method)(b"\x0a\x02\xff\xfe", timeout=10)
    assert details_of(caught.value).reason == "MALFORMED_MESSAGE"


def test_a_message_over_the_limit(channel: grpc.Channel) -> None:
    """RESOURCE_EXHAUSTED says what a message may have; gRPC itself refuses four times as much."""
    most = LIMITS["message_bytes_max"]
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Query")(bytes(most + 1), timeout=10)
    details = details_of(caught.value)
    assert (details.code, details.reason) == (EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert str(most) in details.message
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Query")(bytes(4 * most + 1), timeout=10)
    assert caught.value.code() == EXHAUSTED
    with pytest.raises(grpc.RpcError) as caught:
        list(stream(channel, "QueryStream", iter([bytes(most + 1)])))
    assert details_of(caught.value).reason == "MESSAGE_TOO_LARGE"


def test_a_method_that_does_not_exist(channel: grpc.Channel) -> None:
    """Unknown methods are UNIMPLEMENTED."""
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Nothing")(b"", timeout=10)
    assert caught.value.code() == UNIMPLEMENTED


def test_a_deadline_that_has_passed(channel: grpc.Channel, served: Served) -> None:
    """A call without time left is DEADLINE_EXCEEDED."""
    request = query_pb2.QueryRequest(index=served.name, queries=one_row())
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Query")(request.SerializeToString(), timeout=-1)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_no_fault_shows_a_path(stub: DiverseIndexStub) -> None:
    """Messages hold neither paths nor tracebacks."""
    for fields in ({"index": "nobody"}, {"index": "/etc/passwd"}, {"k": 0}):
        message = refusal(stub, **fields).message
        assert "/data" not in message
        assert "Traceback" not in message
