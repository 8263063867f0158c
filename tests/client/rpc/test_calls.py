"""Calls of both clients to a server that fails when the test says so."""

import asyncio
import inspect
import math
import multiprocessing
import pickle
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from types import GenericAlias
from typing import Any, get_args

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from divgrpc.errors import (
    IndexNotFoundError,
    InvalidArgumentError,
    LimitExceededError,
    UnavailableError,
)
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc_client import AsyncClient, Client, ClientStateError, RpcError
from divgrpc_client.rpc.channels import SERVICE
from support.checks.refusals import failing, refused, wrong
from support.processes.both_clients import Stack
from support.processes.scripted_server import ScriptedIndex, status

QUERY = np.array([4.0, 0.5], np.float32)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def test_query_returns_the_result_of_the_core(call: Stack, script: ScriptedIndex) -> None:
    """The result is the core's frozen dataclass, with arrays of the documented dtypes."""
    result = call("query", "images", QUERY, k=3)
    assert result.ids.tolist() == [[40, 41, 42]]
    assert (result.ids.dtype, result.scores.dtype) == (np.int64, np.float32)
    assert result.selection_scores.shape == (1, 3)
    assert result.counts.tolist() == [3]
    assert result.generation == 1
    assert result.stats.points_hashed.tolist() == [7]
    assert result.parameters.search == "scan"
    assert [warning.code for warning in result.warnings] == ["A_WARNING"]
    assert script.queries[0].k == 3


def test_other_methods_return_dataclasses(call: Stack, script: ScriptedIndex) -> None:
    """Results are dataclasses whose enum values are strings, as in the core."""
    info = call("get_index", "images")
    assert (info.name, info.generation, info.auto_search) == ("images", 2, "scan")
    parameters = {name: value for name, value in info.parameters.items() if value is not None}
    assert parameters == {"hash_family": "lsh_div", "centred": False, "n_tables": 4}
    assert list(info.parameters) == list(BuildParameters.__dataclass_fields__)
    assert info.arrays[0].shape == (4, 9)
    assert call("delete_index", "images") == 2
    assert script.calls["DeleteIndex images"] == 1
    server = call("server_info")
    assert (server.version, server.durable, server.workers) == ("1.2", True, 2)
    assert server.limits == {"k_max": 9}


def test_all_pages_are_listed(call: Stack) -> None:
    names = [info.name for info in call("list_indexes")]
    assert names == ["index-0", "index-1", "index-2"]


def test_errors_have_all_details(call: Stack, script: ScriptedIndex, target: str) -> None:
    delay = Duration()
    delay.FromNanoseconds(1_500_000_000)
    violation = error_details_pb2.BadRequest.FieldViolation(field="index", description="unknown")
    script.failures = [grpc.StatusCode.NOT_FOUND]
    details = status(
        code_pb2.NOT_FOUND,
        "on command",
        error_details_pb2.ErrorInfo(reason="INDEX_NOT_FOUND", metadata={"request_id": "r-1"}),
        error_details_pb2.BadRequest(field_violations=[violation]),
        error_details_pb2.RetryInfo(retry_delay=delay),
    )
    script.packed_details = details.SerializeToString()
    with pytest.raises(IndexNotFoundError) as error_info:
        call("query", "images", QUERY)
    error = error_info.value
    assert isinstance(error, RpcError)
    assert error.code is grpc.StatusCode.NOT_FOUND
    assert error.reason == "INDEX_NOT_FOUND"
    assert error.field_violations == (("index", "unknown"),)
    assert error.field == "index"
    assert error.retry_after == 1.5
    assert error.request_id == "r-1"
    for part in ("on command", "Query", target, " s", "r-1"):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    assert isinstance(again, IndexNotFoundError)
    assert str(again) == str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, LimitExceededError),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError),
        (UNAVAILABLE, UnavailableError),
    ],
)
def test_errors_without_details_have_the_class_of_their_code(
    call: Stack, script: ScriptedIndex, code: grpc.StatusCode, kind: type[Exception]
) -> None:
    """Errors that gRPC itself raises have no details, so the class depends on their code."""
    script.failures = [code] * 9
    with failing(code, kind, reason=code.name, field=""):
        call("query", "images", QUERY)


def test_unreadable_details_do_not_hide_the_code(call: Stack, script: ScriptedIndex) -> None:
    script.failures = [grpc.StatusCode.DATA_LOSS]
    script.packed_details = b"\xff\xff"
    with failing(grpc.StatusCode.DATA_LOSS, match="on command"):
        call("query", "images", QUERY)


@pytest.mark.parametrize(
    ("settings", "failures", "calls"), [({}, 2, 3), ({}, 9, 3), ({"retries": False}, 9, 1)]
)
def test_a_call_is_tried_three_times(
    call: Stack, script: ScriptedIndex, settings: dict[str, Any], failures: int, calls: int
) -> None:
    """Two failures with UNAVAILABLE are retried, unless retries are off; the third is raised."""
    script.failures = [UNAVAILABLE] * failures
    with failing(UNAVAILABLE) if failures >= calls else nullcontext():
        assert call("query", "images", QUERY, settings=settings).generation == 1
    assert script.calls["Query"] == calls


@pytest.mark.parametrize(
    "code", [c for c in grpc.StatusCode if c.name not in ("OK", "UNAVAILABLE", "CANCELLED")]
)
def test_other_failures_are_not_retried(
    script: ScriptedIndex, target: str, code: grpc.StatusCode
) -> None:
    script.failures = [code] * 9
    with Client(target) as client, failing(code):
        client.query("images", QUERY)
    assert script.calls["Query"] == 1


def test_changes_are_not_retried(call: Stack, script: ScriptedIndex) -> None:
    """DeleteIndex and Build are tried once, because a second attempt could do harm."""
    script.failures = [UNAVAILABLE] * 9
    for method, data in (("delete_index", []), ("build", [np.ones((2, 2))])):
        with failing(UNAVAILABLE):
            call(method, "images", *data)
    assert script.calls == {"DeleteIndex images": 1, "Build": 1}


def test_queries_have_a_deadline(call: Stack, script: ScriptedIndex) -> None:
    """By default a query's deadline is two seconds; the client or the call may set another."""
    call("query", "images", QUERY, settings=None)
    assert 0 < script.seconds_left < 2.5
    call("query", "images", QUERY, settings={"timeout": 700})
    assert 600 < script.seconds_left < 701
    call("query", "images", QUERY, timeout=500)
    assert 400 < script.seconds_left < 501
    for endless in (float("inf"), 1e12):
        call("query", "images", QUERY, timeout=endless)
        assert not 0 <= script.seconds_left < 3600


@pytest.mark.parametrize(("timeout", "calls"), [(0.2, 1), (-1, 0)])
def test_deadlines_end_calls(
    call: Stack, script: ScriptedIndex, timeout: float, calls: int
) -> None:
    """A server that never answers is called if there is time; the call ends at its deadline."""
    script.silent = True
    start = time.monotonic()
    with failing(grpc.StatusCode.DEADLINE_EXCEEDED, reason="LATE"):
        call("query", "images", QUERY, timeout=timeout)
    assert time.monotonic() - start < 5
    assert script.calls["Query"] == calls


def test_request_ids_are_sent_and_returned_in_errors(call: Stack, script: ScriptedIndex) -> None:
    """If the server returns no request id, the error carries the id that the client sent."""
    script.failures = [grpc.StatusCode.INTERNAL]
    with pytest.raises(RpcError) as error_info:
        call("query", "images", QUERY, request_id="mine-7")
    assert script.metadata["x-request-id"] == "mine-7"
    assert error_info.value.request_id == "mine-7"


def test_an_unreachable_server_is_unavailable() -> None:
    address = r"127\.0\.0\.1:1"
    with Client("127.0.0.1:1") as client, failing(UNAVAILABLE, UnavailableError, match=address):
        client.query("images", QUERY)


def test_a_closed_client_refuses_calls(target: str) -> None:
    client = Client(target, timeout=30)
    client.query("images", QUERY)
    client.close()
    client.close()
    with pytest.raises(ClientStateError, match="closed"):
        client.query("images", QUERY)


def _ask_in_child(client: Client, answers: Connection) -> None:
    try:
        client.query("images", QUERY)
    except ClientStateError as error:
        answers.send(str(error))
    client.close()


def test_a_forked_child_gets_an_error(target: str) -> None:
    fork = multiprocessing.get_context("fork")
    answers, writer = fork.Pipe(duplex=False)
    with Client(target, timeout=30) as client, answers, writer:
        client.query("images", QUERY)
        child = fork.Process(target=_ask_in_child, args=(client, writer))
        child.start()
        try:
            assert answers.poll(30), "the child gave no answer"
            assert "forked" in answers.recv()
            child.join(30)
            assert child.exitcode == 0
        finally:
            child.kill()
        assert client.query("images", QUERY).generation == 1


def test_async_clients_belong_to_their_loop(target: str) -> None:
    client = AsyncClient(target, timeout=30)
    asyncio.run(client.query("images", QUERY))
    with pytest.raises(ClientStateError, match="event loop"):
        asyncio.run(client.query("images", QUERY))


def test_connections_take_turns(script: ScriptedIndex, target: str) -> None:
    with Client(target, channels=3, timeout=30) as client:
        for _ in range(6):
            client.query("images", QUERY)
    assert len(script.peers) == 3


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@wrong(target=(5, ""), channels=(0, "two"), timeout=(0, -1, None), idle_timeout=(math.nan,))
def test_clients_are_checked_when_they_are_made(
    kind: type[Client] | type[AsyncClient], field: str, value: object
) -> None:
    settings: dict[str, Any] = {"target": "127.0.0.1:1", field: value}
    with pytest.raises(InvalidArgumentError, match=field) as error_info:
        kind(**settings)
    assert error_info.value.field == field
    assert error_info.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert repr(value) in str(error_info.value)


@wrong(timeout=("2", math.nan, True), request_id=(5, "für", "a\nb"))
@pytest.mark.parametrize("method", ["query", "query_stream", "build", "get_index"])
def test_calls_are_checked_before_they_are_made(
    call: Stack, script: ScriptedIndex, method: str, field: str, value: object
) -> None:
    """A timeout or request id that gRPC could not take is refused before anything is sent."""
    data: dict[str, list[Any]] = {"query": [QUERY], "query_stream": [[QUERY]], "get_index": []}
    data["build"] = [np.ones((2, 2))]
    with refused(field, field):
        call(method, "images", *data[method], **{field: value})
    assert not script.calls


@pytest.mark.parametrize(
    ("method", "data", "options", "field"),
    [
        ("query", [QUERY], {"k": 0}, "k"),
        ("query", [QUERY], {"timeout": "2"}, "timeout"),
        ("query_stream", [[QUERY]], {"diversity": 2}, "diversity"),
        ("query_stream", [[QUERY, np.ones((1, 1, 1))]], {}, "queries"),
        ("build", [np.ones((2, 2))], {"n_tables": 0}, "n_tables"),
        ("build", [np.ones(2)], {}, "vectors"),
        ("predict_labels", [QUERY], {"top_k": 0}, "top_k"),
    ],
)
def test_argument_errors_of_the_client_are_like_those_of_the_server(
    call: Stack, method: str, data: list[Any], options: dict[str, Any], field: str
) -> None:
    """One handler reads the code and the fields of an error, wherever it was found."""
    with pytest.raises(InvalidArgumentError) as error_info:
        call(method, "images", *data, **options)
    error = error_info.value
    assert not isinstance(error, RpcError)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.reason, error.field, error.detail) == ("INVALID_ARGUMENT", field, str(error))
    assert error.field_violations == ((field, str(error)),)
    assert (error.retry_after, error.request_id) == (None, "")


@pytest.mark.parametrize("method", ["evaluate", "evaluate_labels"])
def test_argument_errors_of_evaluations_have_a_code(method: str) -> None:
    """The arguments of an evaluation are checked before its rows are asked for."""
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidArgumentError) as error_info:
        getattr(client, method)("images", np.ones((4, 2)), np.ones((4, 1)), folds=-1)
    assert error_info.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_argument_errors_in_process_have_no_code() -> None:
    with pytest.raises(InvalidArgumentError) as error_info:
        QueryParameters(k=0)
    assert error_info.value.code is None


def test_an_infinite_idle_timeout_is_accepted(call: Stack) -> None:
    patient = {"idle_timeout": float("inf")}
    assert call("build", "images", np.ones((2, 2)), settings=patient).generation == 2
    assert len(call("query_stream", "images", [QUERY] * 3, settings=patient)) == 3


def test_methods_of_the_async_client_are_coroutine_functions() -> None:
    """Only methods that return a stream are plain functions, as all methods of `Client` are."""
    names = {name for name, _ in inspect.getmembers(Client, inspect.isfunction)}
    public = {name for name in names if not name.startswith("_")}
    coroutines = {
        name for name in public if inspect.iscoroutinefunction(getattr(AsyncClient, name))
    }
    streams = {"query_stream", "write_stream", "diversify_stream", "scroll", "pages"}
    streams |= {"evaluate", "evaluate_labels"}
    assert public - coroutines == streams
    assert not any(inspect.iscoroutinefunction(getattr(Client, name)) for name in public)


def test_the_clients_are_alike() -> None:
    """Methods differ only in that `AsyncClient` returns asynchronous iterators."""
    assert inspect.signature(AsyncClient) == inspect.signature(Client)
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if name.startswith("_"):
            continue
        async_method = getattr(AsyncClient, name)
        signature, async_signature = inspect.signature(method), inspect.signature(async_method)
        assert async_signature.parameters == signature.parameters
        return_type = str(signature.return_annotation)
        has_many = return_type.startswith("Iterator[")
        assert str(async_signature.return_annotation) == (
            f"Async{return_type}" if has_many else return_type
        )
        types, async_types = method.__annotations__, async_method.__annotations__
        if has_many:
            types = {**types, "return": GenericAlias(AsyncIterator, get_args(types["return"]))}
        assert async_types == types
        assert async_method.__doc__ == method.__doc__


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_methods_bear_the_name_of_their_client(client: type) -> None:
    """A wrong argument raises a TypeError with that name."""
    functions = inspect.getmembers(client, inspect.isfunction)
    names = {function.__qualname__ for _, function in functions}
    assert names == {f"{client.__name__}.{name}" for name, _ in functions}
    with pytest.raises(TypeError, match=rf"^{client.__name__}\.__init__\(\) got"):
        client("127.0.0.1:1", pools=2)


def failure_to_become_ready(call: Stack) -> tuple[RpcError, RpcError]:
    """Return the error of `wait_until_ready` and its cause.

    A busy machine may take longer than the first timeout to find the cause.
    """
    for timeout in (0.3, 3.0, 30.0):
        with pytest.raises(RpcError) as error_info:
            call("wait_until_ready", timeout=timeout)
        error, cause = error_info.value, error_info.value.__cause__
        assert isinstance(error, UnavailableError)
        assert isinstance(cause, RpcError)
        if cause.code is UNAVAILABLE:
            return error, cause
    raise AssertionError("no attempt found the cause")


@pytest.mark.parametrize("is_async", [False, True])
def test_waiting_for_an_absent_server_ends(is_async: bool) -> None:
    """`wait_until_ready` says that nothing answers, and its cause is the refused connection."""
    error, cause = failure_to_become_ready(Stack("127.0.0.1:1", is_async=is_async))
    assert str(error).startswith("nothing answered at 127.0.0.1:1: ")
    assert error.code is cause.code is UNAVAILABLE
    assert "Connection refused" in cause.detail
    assert cause.detail in error.detail


def test_waiting_for_a_silent_server_ends() -> None:
    """If a server accepts connections but says nothing, the cause is the deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(target) as client, pytest.raises(UnavailableError) as error_info:
            client.wait_until_ready(timeout=0.3)
    assert str(error_info.value).startswith(f"nothing answered at {target} (UNAVAILABLE")
    assert isinstance(error_info.value.__cause__, RpcError)
    assert error_info.value.__cause__.code is grpc.StatusCode.DEADLINE_EXCEEDED


@contextmanager
def compiling() -> Iterator[tuple[grpc.Server, HealthServicer, str]]:
    """Yield a server to start, its health service, which reports NOT_SERVING, and its address."""
    health = HealthServicer()
    health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        add_HealthServicer_to_server(health, server)
        yield server, health, f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.stop(0).wait(60)


def test_waiting_for_a_server_that_compiles_ends() -> None:
    """The error says that the server answers, and its cause says what the server may lack."""
    with compiling() as (server, _, target):
        server.start()
        error, cause = failure_to_become_ready(Stack(target, is_async=False))
    assert str(error).startswith(f"the server at {target} is not ready: it still compiles")
    assert cause.reason == "NOT_SERVING"


def test_waiting_goes_on_until_the_server_serves() -> None:
    """A server that is up but reports NOT_SERVING is waited for until it reports SERVING."""
    with (
        compiling() as (server, health, target),
        ThreadPoolExecutor(1) as waiter,
        Client(target) as client,
    ):
        # The client begins to wait before the server starts.
        waiting = waiter.submit(client.wait_until_ready, timeout=60)
        server.start()
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        waiting.result(timeout=60)


def test_waiting_for_a_server_without_health(target: str) -> None:
    """If the server has no health service, the error is raised at once, before the timeout."""
    with Client(target) as client, failing(grpc.StatusCode.UNIMPLEMENTED):
        client.wait_until_ready(timeout=30)
