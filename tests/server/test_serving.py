"""What a healthy server reports: health, reflection, its indexes and its access log."""

import json
from collections.abc import Callable
from functools import partial

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

import divgrpc
from divgrpc.errors import IndexNotFoundError
from divgrpc.parameters import LIMITS
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import failure
from support.data.served_index import Served, place
from support.processes.running_server import RunningServer, eventually

SERVICE = "divgrpc.v1.DiverseIndex"
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("service", ["", SERVICE])
def test_a_server_that_serves_is_healthy(channel: grpc.Channel, service: str) -> None:
    """Check and Watch return SERVING for the whole server, and for the service by its name."""
    health = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    assert health.Check(request, timeout=30).status == SERVING
    watch = health.Watch(request, timeout=30)
    assert next(watch).status == SERVING
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_both_versions(channel: grpc.Channel, version: str) -> None:
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = ask(iter([question]), timeout=30)
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= names
    symbols = [
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names
    ]
    for answer in ask(iter(symbols), timeout=30):
        assert answer.file_descriptor_response.file_descriptor_proto, answer


def test_server_info_has_versions_workers_and_limits(client: Client) -> None:
    info = client.server_info()
    assert info.version == divgrpc.__version__
    assert info.durable
    assert (info.workers, info.workers_ready, info.fronts) == (2, 2, 1)
    assert info.kernels_ready
    assert info.kernels_compiled == info.kernels_total > 100
    assert LIMITS.items() <= dict(info.limits).items()
    assert {"python", "numpy", "numba", "grpcio", "protobuf"} <= set(info.versions)


def test_indexes_are_listed_in_pages(
    server: RunningServer, client: Client, stub: DiverseIndexStub
) -> None:
    """Pages have at most `page_size` indexes, in the order of their names."""
    pages = {"page-a", "page-b", "page-c"}
    for name in pages:
        place(server, name, np.eye(4, dtype=np.float32))
    names = [info.name for info in client.list_indexes()]
    assert names == sorted(set(names))
    assert pages <= set(names)
    listed_names: list[str] = []
    request = index_pb2.ListIndexesRequest(page_size=2)
    while True:
        page = stub.ListIndexes(request, timeout=30)
        assert len(page.indexes) <= 2
        listed_names += [info.name for info in page.indexes]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert listed_names == names
    request = index_pb2.ListIndexesRequest(page_size=-1)
    assert failure(stub.ListIndexes, request, timeout=30).fields == ("page_size",)


def test_a_deleted_index_is_gone(server: RunningServer, client: Client) -> None:
    """DeleteIndex returns the last generation that was served, and later calls are NOT_FOUND."""
    for _ in range(2):
        place(server, "gone", np.eye(4, dtype=np.float32))
    assert client.query("gone", np.ones(4)).generation == 2
    assert client.delete_index("gone") == 2
    calls: list[Callable[[str], object]] = [partial(client.query, queries=np.ones(4))] * 8
    for call in [*calls, client.get_index, client.delete_index]:
        with pytest.raises(IndexNotFoundError):
            call("gone")
    assert not (server.folder / "data" / "gone").exists()


def access_lines(server: RunningServer, request_id: str) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in server.log.splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("request_id") == request_id]


def test_a_call_is_one_line_in_the_log(
    server: RunningServer, client: Client, served_index: Served
) -> None:
    """Successful and failed calls each have one line of JSON with the caller's request id."""
    client.query(served_index.name, served_index.queries[0], request_id="good-call")
    with pytest.raises(IndexNotFoundError) as error_info:
        client.query("nobody", served_index.queries[0], request_id="bad-call")
    assert error_info.value.request_id == "bad-call"  # type: ignore[attr-defined]  # an RpcError
    eventually(lambda: access_lines(server, "bad-call"))
    (good,), (bad,) = access_lines(server, "good-call"), access_lines(server, "bad-call")
    for line, name, code in ((good, served_index.name, "OK"), (bad, "nobody", "NOT_FOUND")):
        expected = {"method": "Query", "code": code, "index": name, "rows": 1, "k": 10}
        assert line.items() >= expected.items()
    assert isinstance(good["duration_ms"], float)
    assert str(good["peer"]).startswith("ipv4:127.0.0.1")


def test_a_stream_is_one_line_in_the_log(
    server: RunningServer, stub: DiverseIndexStub, served_index: Served
) -> None:
    queries = [
        query_pb2.QueryRequest(
            index=served_index.name, k=7, queries=encode_dense(served_index.queries[:rows])
        )
        for rows in (1, 3)
    ]
    messages = iter([query_pb2.QueryStreamRequest(query=query) for query in queries])
    answers = stub.QueryStream(messages, metadata=(("x-request-id", "a-stream"),), timeout=30)
    assert [answer.HasField("response") for answer in answers] == [True, True]
    eventually(lambda: access_lines(server, "a-stream"))
    (line,) = access_lines(server, "a-stream")
    expected = {"method": "QueryStream", "index": served_index.name, "rows": 4, "k": 7}
    assert line.items() >= expected.items()


def test_a_request_id_cannot_forge_a_line(server: RunningServer, stub: DiverseIndexStub) -> None:
    """If the caller's request id has quotes or is too long, the server replaces it."""
    for name in ('x", "code": "OK', "y" * 500, "after-forged"):
        metadata = (("x-request-id", name),)
        stub.GetServerInfo(index_pb2.GetServerInfoRequest(), metadata=metadata, timeout=30)
    eventually(lambda: access_lines(server, "after-forged"))
    assert "y" * 500 not in server.log
    assert '"x", "code"' not in server.log
