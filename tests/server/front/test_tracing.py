"""Traces of calls: in the lines of logs, and as spans of OpenTelemetry."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_server.codec.statuses import explain
from divgrpc_server.front.tracing import NoTracer, Tracer, tracer_of
from divgrpc_server.ipc.tags import Trace, pack_tag
from support.data.served_index import DIMS
from support.processes.running_server import RunningServer, eventually

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra tracing is not installed")

from opentelemetry import trace as otel
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = Trace(TRACE_ID, SPAN_ID, is_sampled=True)
HEADER = f"00-{TRACE_ID}-{SPAN_ID}-01"
SERVICE = "divgrpc.v1.DiverseIndex"
REQUEST = query_pb2.QueryRequest(index="nobody", queries=encode_dense(np.ones((1, DIMS), "f4")))


class Memory:
    """A tracer whose spans stay in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = Tracer(provider, SERVICE)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The spans that have ended, by name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}


def test_a_call_has_a_span_under_that_of_its_caller() -> None:
    memory = Memory()
    call = memory.tracer.begin("Query", PARENT)
    assert call.trace is not None
    assert call.trace.trace_id == TRACE_ID
    assert call.trace.span_id != SPAN_ID
    call.end("OK", "r-1")
    span = memory.spans[f"{SERVICE}/Query"]
    assert span.kind is otel.SpanKind.SERVER
    assert span.parent is not None
    assert span.parent.is_remote
    assert f"{span.parent.span_id:016x}" == SPAN_ID
    assert span.attributes is not None
    assert span.attributes["divgrpc.request_id"] == "r-1"
    assert span.status.status_code is otel.StatusCode.UNSET


@pytest.mark.parametrize(
    ("code", "is_fault"), [("OK", False), ("NOT_FOUND", False), ("INTERNAL", True)]
)
def test_only_faults_of_the_server_are_errors(code: str, is_fault: bool) -> None:
    memory = Memory()
    memory.tracer.begin("Query", None).end(code, "r-1")
    status = memory.spans[f"{SERVICE}/Query"].status.status_code
    assert (status is otel.StatusCode.ERROR) == is_fault


def test_requests_have_spans_with_their_times() -> None:
    memory = Memory()
    call = memory.tracer.begin("Query", None)
    now = time.monotonic()
    memory.tracer.add_request("worker", now - 0.5, now - 0.3, now)
    call.end("OK", "r-1")
    spans = memory.spans
    server = spans[f"{SERVICE}/Query"]
    assert server.parent is None
    for name, seconds in (("queue", 0.2), ("worker", 0.3)):
        span = spans[name]
        assert span.parent is not None
        assert server.context is not None
        assert span.parent.span_id == server.context.span_id
        assert span.start_time is not None
        assert span.end_time is not None
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(seconds, abs=1e-4)
    assert spans["queue"].end_time == pytest.approx(spans["worker"].start_time, abs=1e5)
    assert abs(spans["worker"].end_time / 1e9 - time.time()) < 5  # type: ignore[operator]  # it ended


def test_calls_in_other_tasks_get_no_spans_of_this_one() -> None:
    memory = Memory()

    async def serve(method: str) -> None:
        memory.tracer.begin(method, None)
        await asyncio.sleep(0)
        now = time.monotonic()
        memory.tracer.add_request(method, now, now, now)

    async def serve_all() -> None:
        await asyncio.gather(serve("Query"), serve("Get"))

    asyncio.run(serve_all())
    parents = [memory.spans[name].parent for name in ("Query", "Get")]
    assert len({parent.span_id for parent in parents if parent is not None}) == 2


def test_a_parent_that_is_not_sampled_has_no_spans() -> None:
    memory = Memory()
    call = memory.tracer.begin("Query", Trace(TRACE_ID, SPAN_ID))
    assert call.trace is not None
    assert (call.trace.trace_id, call.trace.is_sampled) == (TRACE_ID, False)
    memory.tracer.add_request("worker", 0.0, 0.0, 0.0)
    call.end("OK", "r-1")
    assert memory.spans == {}


@pytest.mark.parametrize(
    ("environment", "is_traced"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
            False,
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_variables_ask_for_spans(environment: dict[str, str], is_traced: bool) -> None:
    tracer = tracer_of(environment, SERVICE, Mock())
    assert isinstance(tracer, Tracer) == is_traced
    start = time.monotonic()
    asyncio.run(tracer.close())
    assert time.monotonic() - start < 5


def test_without_the_extra_a_warning_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    log = Mock()
    tracer = tracer_of({"OTEL_TRACES_EXPORTER": "otlp"}, SERVICE, log)
    assert not isinstance(tracer, Tracer)
    log.warning.assert_called_once_with("OTEL_ variables ask for traces: install divgrpc[tracing]")


def test_a_call_without_a_tracer_keeps_the_trace_of_its_caller() -> None:
    assert NoTracer().begin("Query", PARENT).trace is PARENT
    assert NoTracer().begin("Query", None).trace is None


def test_a_fault_is_logged_with_its_trace() -> None:
    """Workers and the writer log by this function; the caller gets the request id alone."""
    log = Mock()
    status = explain(KeyError("x"), pack_tag("r-1", PARENT), log)
    (_, values) = log.error.call_args
    assert (values["request_id"], values["trace_id"]) == ("r-1", TRACE_ID)
    assert TRACE_ID not in str(status)
    assert "r-1" in str(status)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: object) -> Any:  # noqa: ANN401, ARG002, N802  # generated names
        """Take spans."""
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    """Run a collector, and yield it with its endpoint."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"http://127.0.0.1:{port}"
    server.stop(None)


def access_lines(server: RunningServer) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in server.log.splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == "call"]


def test_a_server_sends_spans_and_names_them_in_its_log(
    tmp_path: Path, collector: tuple[Collector, str]
) -> None:
    """The last spans are sent when the server stops."""
    servicer, endpoint = collector
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_INSECURE": "true"}
    options = ("--workers", "1", "--log-format", "json")
    with RunningServer(tmp_path, *options, environment=environment) as server:
        with server.channel() as channel, pytest.raises(grpc.RpcError):
            DiverseIndexStub(channel).Query(REQUEST, metadata=(("traceparent", HEADER),))
        server.stop()
    spans = {span.name: span for span in servicer.spans}
    assert set(spans) == {f"{SERVICE}/Query", "queue", "worker"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE_ID}
    assert spans[f"{SERVICE}/Query"].parent_span_id.hex() == SPAN_ID
    (line,) = access_lines(server)
    assert (line["trace_id"], line["code"]) == (TRACE_ID, "NOT_FOUND")
    assert line["span_id"] == spans[f"{SERVICE}/Query"].span_id.hex()


def test_access_lines_have_the_callers_trace_without_the_extra_in_use(tmp_path: Path) -> None:
    options = ("--workers", "1", "--log-format", "json")
    with RunningServer(tmp_path, *options) as server, server.channel() as channel:
        stub, errors = DiverseIndexStub(channel), []
        for header in (HEADER, f"{HEADER}0", "00-x"):
            with pytest.raises(grpc.RpcError) as raised:
                stub.Query(REQUEST, metadata=(("traceparent", header),))
            errors.append(raised.value)
        eventually(lambda: len(access_lines(server)) == 3)
        first, *rest = access_lines(server)
    assert (first["trace_id"], first["span_id"]) == (TRACE_ID, SPAN_ID)
    # The caller reads the same request id as the log, without the trace.
    info = error_details_pb2.ErrorInfo()
    status = rpc_status.from_call(errors[0])
    assert status.details[0].Unpack(info)
    assert info.metadata["request_id"] == first["request_id"]
    assert not any("trace_id" in line for line in rest)


def test_clients_pass_on_the_current_span(tmp_path: Path) -> None:
    options = ("--workers", "1", "--log-format", "json")
    with RunningServer(tmp_path, *options) as server, Client(server.target) as client:
        client.server_info()
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
        with tracer.start_as_current_span("caller") as span:
            client.server_info()
        eventually(lambda: len(access_lines(server)) == 2)
        before, within = access_lines(server)
    context = span.get_span_context()
    assert "trace_id" not in before
    assert within["trace_id"] == f"{context.trace_id:032x}"
    assert within["span_id"] == f"{context.span_id:016x}"


def test_a_client_does_not_import_opentelemetry() -> None:
    script = (
        "import sys, divgrpc_client; divgrpc_client.Client; print('opentelemetry' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "False\n"
