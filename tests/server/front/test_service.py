"""How calls end: what a caller sees of an internal fault, and what the access log records."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from google.rpc import status_pb2
from grpc import aio
from structlog.testing import capture_logs

from divgrpc.errors import UnavailableError
from divgrpc.storage.generations import POINTER
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.codec.statuses import ReplicaBehindError, ShardsMissingError
from divgrpc_server.config import Config
from divgrpc_server.front.audit import AuditLog
from divgrpc_server.front.catalog import Catalog
from divgrpc_server.front.gate import Gate
from divgrpc_server.front.jobs import Job, Jobs
from divgrpc_server.front.meter import NoCallMeter
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.service import Service
from divgrpc_server.front.tracing import NoTracer
from divgrpc_server.front.writer import Writer
from divgrpc_server.ipc import control
from divgrpc_server.logging import logs
from divgrpc_server.logging.logs import AccessLog
from support.checks.status_details import Details, details_of_status

TEXT = "secret /path/to/somewhere"
CONFIG = Config(log_level="error")


class Context:
    """The part of gRPC's context that a handler uses, for one call with a message.

    If the message is None, the caller sends nothing in time.
    """

    def __init__(
        self,
        message: bytes | None = b"",
        metadata: tuple[tuple[str, str], ...] = (),
        remaining: float | None = 10,
    ) -> None:
        self._messages: list[object] = [message, aio.EOF]
        self.error_details: Details | None = None
        self.trailers: dict[str, Any] = {}
        self.invocation_metadata = lambda: metadata
        self.time_remaining = lambda: remaining
        self.peer = lambda: "ipv4:127.0.0.1:1"
        self.write = AsyncMock()
        self.send_initial_metadata = AsyncMock()

    async def read(self) -> object:
        """Return the next message."""
        message = self._messages.pop(0)
        return await asyncio.Event().wait() if message is None else message

    async def abort(self, code: grpc.StatusCode, _: str, trailers: Any) -> None:  # noqa: ANN401
        """End the call."""
        self.trailers = dict(trailers)
        self.error_details = details_of_status(code, status_pb2.Status.FromString(trailers[0][1]))
        raise aio.AbortError


# Stand-ins that raise an error which the server does not expect.
FAIL, FAIL_AT_ONCE = AsyncMock(side_effect=KeyError(TEXT)), Mock(side_effect=KeyError(TEXT))


def build_header(index: str, **parameters: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # fields
    header = index_pb2.BuildHeader(index=index, parameters=index_pb2.BuildParameters(**parameters))
    return index_pb2.BuildRequest(header=header)


class Parts:
    """A service and its parts; tests replace some of these by parts that fail."""

    def __init__(self, access: AccessLog | None = None) -> None:
        log = logs.configure(CONFIG, "test")
        self.pool = Pool(
            CONFIG, log, report=lambda _: None, on_change=lambda: None, stamp=lambda _: None
        )
        self.catalog = Catalog(
            CONFIG, Path("/nowhere"), self.pool, lambda: True, lambda: (117, 117)
        )
        self.jobs = Jobs(CONFIG, None, self.pool, Path("/nowhere"))  # type: ignore[arg-type]  # no supervisor
        writer = Writer(self.pool, lambda: None)
        access = access or AccessLog(CONFIG)
        self.service = Service(
            CONFIG,
            self.pool,
            self.catalog,
            self.jobs,
            writer,
            gate=Gate(CONFIG, Path("/nowhere"), log),
            access=access,
            audit_log=AuditLog(CONFIG),
            meter=NoCallMeter(),
            tracer=NoTracer(),
            log=log,
        )

    async def call(self, method: str, context: Context) -> object:
        """Call a method with an empty message."""
        details = Mock(method=f"/divgrpc.v1.DiverseIndex/{method}", invocation_metadata=None)
        handler = self.service.handler().service(details)
        assert handler is not None
        function: Any = handler.unary_unary or handler.stream_stream
        try:
            return await function(b"", context)
        finally:
            self.pool.close()


BROKEN: dict[str, Callable[[Parts], None]] = {
    "Query": lambda parts: setattr(parts.pool, "answer", FAIL),
    "QueryStream": lambda parts: setattr(parts.pool, "submit", FAIL_AT_ONCE),
    "GetServerInfo": lambda parts: setattr(parts.catalog, "_is_serving", FAIL_AT_ONCE),
    "Build": lambda parts: setattr(parts.jobs, "relay", FAIL),
}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (index_pb2.BuildRequest(), "INVALID_ARGUMENT"),
        (index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=1)), "INVALID_ARGUMENT"),
        (build_header(index="NO NAME"), "INVALID_ARGUMENT"),
        (build_header(index="x", target_recall=7), "INVALID_ARGUMENT"),
        (build_header(index="there"), "INDEX_EXISTS"),
        (None, "LATE"),
    ],
)
def test_a_wrong_header_is_refused_before_a_builder_starts(
    tmp_path: Path, header: index_pb2.BuildRequest | None, reason: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / POINTER).write_text("1\n")

    async def scene() -> Details | None:
        parts = Parts()
        parts.jobs._root = tmp_path
        parts.jobs._config = replace(CONFIG, upload_idle=0.05)
        setattr(parts.jobs, "_start", FAIL)  # noqa: B010  # mypy: a method
        context = Context(None if header is None else header.SerializeToString())
        with pytest.raises(aio.AbortError):
            await parts.call("Build", context)
        return context.error_details

    details = asyncio.run(scene())
    assert details is not None
    assert details.reason == reason


@pytest.mark.parametrize("method", BROKEN)
def test_a_fault_is_internal_and_has_an_id(method: str) -> None:
    """The caller gets INTERNAL with an error id but not the fault's text; the log has both."""

    async def scene() -> tuple[Details, list[Any]]:
        parts, context = Parts(), Context()
        BROKEN[method](parts)
        with capture_logs() as events, pytest.raises(aio.AbortError):
            await parts.call(method, context)
        assert context.error_details is not None
        return context.error_details, list(events)

    details, events = asyncio.run(scene())
    assert (details.code, details.reason) == (grpc.StatusCode.INTERNAL, "FAULT")
    assert TEXT not in str(details)
    (event,) = events
    assert event["error_id"] == details.metadata["error_id"]
    assert event["error_id"] in details.message
    assert isinstance(event["exc_info"], KeyError)


@pytest.mark.parametrize(
    ("error", "remaining", "is_final"),
    [
        (ShardsMissingError([1]), 0.01, True),
        (ShardsMissingError([1]), 10.0, False),
        (ShardsMissingError([1]), None, False),
        (ReplicaBehindError(2, 1), 0.01, True),
        (ReplicaBehindError(2, 1), None, True),
        (UnavailableError("no worker"), 0.01, False),
    ],
)
def test_a_call_that_has_waited_is_not_repeated_without_time(
    error: Exception, remaining: float | None, is_final: bool
) -> None:
    """Otherwise gRPC repeats it, and reports the deadline instead of the error."""

    async def fail(*_: object, **__: object) -> None:
        await asyncio.sleep(0.05)
        raise error

    async def scene() -> dict[str, Any]:
        parts, context = Parts(), Context(remaining=remaining)
        parts.pool.answer = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(aio.AbortError):
            await parts.call("Query", context)
        return context.trailers

    assert asyncio.run(scene()).get("grpc-retry-pushback-ms") == ("-1" if is_final else None)


async def _cancel_a_write(job: Job, _: str) -> None:
    write = asyncio.ensure_future(job.write(b""))
    await asyncio.sleep(0)
    write.cancel()
    raise UnavailableError("the process of the call has ended")


@pytest.mark.parametrize("method", ["Build", "AddAttributes", "Evaluate", "Diagnose", "Compact"])
def test_a_call_whose_progress_is_cancelled_gets_its_status(method: str) -> None:
    async def scene() -> aio.AioRpcError:
        parts, server = Parts(), aio.server()
        setattr(parts.jobs, "relay", _cancel_a_write)  # noqa: B010  # mypy: a method
        server.add_generic_rpc_handlers([parts.service.handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call: Any = channel.stream_stream(f"/divgrpc.v1.DiverseIndex/{method}")
                with pytest.raises(aio.AioRpcError) as error:
                    [_ async for _ in call(iter([b""]), timeout=20)]
                return error.value
        finally:
            parts.pool.close()
            await server.stop(0)

    assert asyncio.run(scene()).code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("remaining", "code"), [(5.0, "CANCELLED"), (0.0, "DEADLINE_EXCEEDED")])
def test_a_cancelled_call_is_logged(remaining: float, code: str) -> None:
    """The call's cancellation reaches gRPC, and the access log gets a line for the call."""

    async def scene() -> str:
        reading, writing = os.pipe()
        access = AccessLog(Config(log_format="json"), descriptor=writing)
        parts = Parts(access)
        metadata = (("x-request-id", "leaver"),)
        call = asyncio.ensure_future(parts.call("Query", Context(b"", metadata, remaining)))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        access.close()
        os.close(writing)
        with os.fdopen(reading) as pipe:
            return pipe.read()

    (line,) = map(json.loads, asyncio.run(scene()).splitlines())
    assert (line["method"], line["code"], line["request_id"]) == ("Query", code, "leaver")
    assert line.get("reason") == (None if remaining else "LATE")


def test_a_builder_is_released_if_its_caller_has_left() -> None:
    async def scene() -> bytes:
        parts = Parts()
        front_end, builder_end = socket.socketpair()
        parts.jobs.handle(control.Message("job", 7), front_end.detach())
        parts.pool.close()
        with builder_end:
            return builder_end.recv(1)

    assert asyncio.run(scene()) == b""
