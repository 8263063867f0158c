"""The gRPC handlers: raw bytes in, raw bytes out, one access line and one status per call.

Nothing is deserialised by gRPC here: a Query goes to a worker as it came, and bytes that are no
message end in INVALID_ARGUMENT instead of gRPC's UNKNOWN. Every way a call can end passes through
`_Ending`, which is where errors become statuses.
"""

import asyncio
import itertools
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NoReturn, TypeVar

import grpc
from google.rpc import code_pb2, status_pb2
from grpc import aio

from divgrpc.parameters import LIMITS
from divgrpc_protos.v1 import diverse_index_pb2
from divgrpc_server.codec import subjects
from divgrpc_server.codec.statuses import MessageTooLargeError, explain
from divgrpc_server.config import Config
from divgrpc_server.front.catalog import Catalog
from divgrpc_server.front.jobs import Build, BuildOnce, Evaluation, Jobs, RefusedError, Stream
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.query_stream import QueryStream
from divgrpc_server.front.standard_requests import DETAILS_KEY
from divgrpc_server.ipc.build_frames import Part
from divgrpc_server.ipc.packets import Op, Outcome
from divgrpc_server.ipc.subject_lines import NO_SUBJECT, Subject
from divgrpc_server.logging.logs import AccessLog, Logger

SERVICE: Final = diverse_index_pb2.DESCRIPTOR.services_by_name["DiverseIndex"].full_name

_T = TypeVar("_T")
_Context = aio.ServicerContext[bytes, bytes]
_REQUEST_ID_KEY: Final = "x-request-id"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def _check_size(method: str, message: bytes) -> None:
    """Raise `MessageTooLargeError` for a message above the limit, and say what to do instead."""
    size, most = len(message), LIMITS["message_bytes_max"]
    if size > most:
        instead = "use Build" if method == "BuildOnce" else "send fewer rows at a time"
        raise MessageTooLargeError(
            f"a message must have at most {most} bytes, got {size}; {instead}"
        )


class _SizedStream:
    """A call's stream that refuses messages above the limit."""

    def __init__(self, method: str, stream: Stream) -> None:
        self._method = method
        self._stream = stream

    async def read(self) -> object:
        """Return the caller's next message, or `aio.EOF`; raises `MessageTooLargeError`."""
        message = await self._stream.read()
        if isinstance(message, bytes):
            _check_size(self._method, message)
        return message

    async def write(self, message: bytes) -> None:
        """Send the caller a message."""
        await self._stream.write(message)


class Service:
    """Handlers of `divgrpc.v1.DiverseIndex`."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        catalog: Catalog,
        jobs: Jobs,
        *,
        access: AccessLog,
        log: Logger,
    ) -> None:
        self._config = config
        self._pool = pool
        self._catalog = catalog
        self._jobs = jobs
        self._access = access
        self._log = log
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._streams: set[QueryStream] = set()

    def in_floods(self) -> "Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]":
        """Return the methods that come thousands of times a second."""
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "Query": unary(self._from_pool("Query", Op.QUERY)),
            "PredictLabels": unary(self._from_pool("PredictLabels", Op.PREDICT)),
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the whole service for a server to register."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        server_stream = grpc.unary_stream_rpc_method_handler
        catalog = self._catalog
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                **self.in_floods(),
                "QueryStream": stream(self._query_stream),
                "Build": stream(self._build),
                "BuildOnce": unary(self._build_once),
                "GetIndex": unary(self._from_catalog("GetIndex", catalog.get_index)),
                "ListIndexes": unary(self._from_catalog("ListIndexes", catalog.list_indexes)),
                "DeleteIndex": unary(self._from_catalog("DeleteIndex", catalog.delete_index)),
                "GetServerInfo": unary(
                    self._from_catalog("GetServerInfo", catalog.get_server_info)
                ),
                "Evaluate": server_stream(self._evaluate("Evaluate", Part.EVALUATE)),
                "EvaluateLabels": server_stream(
                    self._evaluate("EvaluateLabels", Part.EVALUATE_LABELS)
                ),
            },
        )

    def drain(self) -> None:
        """End streams once what they have sent is answered; other calls end by themselves."""
        for stream in self._streams:
            stream.drain()

    def _from_pool(
        self, method: str, op: Op
    ) -> Callable[[bytes, _Context], Coroutine[Any, Any, bytes]]:
        async def handle(request: bytes, context: _Context) -> bytes:
            # The hot path: `_run` in one piece.
            start = time.monotonic()
            request_id = self._request_id(context)
            remaining = context.time_remaining()
            deadline = math.inf if remaining is None else start + remaining
            try:
                _check_size(method, request)
                reply = await self._pool.answer(op, request, deadline, request_id)
            except BaseException as error:  # noqa: BLE001  # `_fail` raises it again, or its status
                subject = self._subject(method, request)
                await self._fail(context, method, start, request_id, error, subject=subject)
            subject = self._subject(method, request)
            if reply.outcome == Outcome.STATUS:
                refused = RefusedError(status_pb2.Status.FromString(reply.payload))
                await self._fail(context, method, start, request_id, refused, subject=subject)
            seconds = time.monotonic() - start
            self._access.add(method, "OK", seconds, request_id, context.peer(), subject=subject)
            return reply.payload

        return handle

    async def _query_stream(self, _: object, context: _Context) -> None:
        queries = subjects.StreamSubject()

        async def serve(request_id: str, deadline: float) -> None:
            stream = QueryStream(
                _SizedStream("QueryStream", context),
                self._pool,
                window=self._config.stream_window,
                deadline=deadline,
                request_id=request_id,
                heard=queries.add if self._access.enabled else lambda _: None,
            )
            self._streams.add(stream)
            try:
                await stream.run()
            finally:
                self._streams.discard(stream)

        await self._run("QueryStream", context, serve, lambda: queries.subject)

    async def _build(self, _: object, context: _Context) -> None:
        build = Build(_SizedStream("Build", context))

        async def serve(request_id: str, _: float) -> None:
            await self._jobs.relay(build, request_id)

        await self._run("Build", context, serve, lambda: build.subject)

    async def _build_once(self, request: bytes, context: _Context) -> bytes:
        build = BuildOnce(request)

        async def serve(request_id: str, _: float) -> bytes:
            _check_size("BuildOnce", request)
            await self._jobs.relay(build, request_id)
            return build.response

        return await self._run("BuildOnce", context, serve, lambda: build.subject)

    def _evaluate(
        self, method: str, part: Part
    ) -> Callable[[bytes, _Context], Coroutine[Any, Any, None]]:
        async def handle(request: bytes, context: _Context) -> None:
            async def serve(request_id: str, _: float) -> None:
                _check_size(method, request)
                await self._jobs.relay(Evaluation(part, request, context.write), request_id)

            await self._run(method, context, serve, lambda: self._subject(method, request))

        return handle

    def _from_catalog(
        self, method: str, answer: Callable[[bytes], Awaitable[bytes]]
    ) -> Callable[[bytes, _Context], Coroutine[Any, Any, bytes]]:
        async def handle(request: bytes, context: _Context) -> bytes:
            async def serve(_: str, __: float) -> bytes:
                _check_size(method, request)
                return await answer(request)

            return await self._run(method, context, serve, lambda: self._subject(method, request))

        return handle

    def _subject(self, method: str, request: bytes) -> Subject:
        return subjects.read(method, request) if self._access.enabled else NO_SUBJECT

    async def _run(
        self,
        method: str,
        context: _Context,
        serve: Callable[[str, float], Awaitable[_T]],
        subject: Callable[[], Subject] = lambda: NO_SUBJECT,
    ) -> _T:
        """Serve a call; `subject` is called at its end, for the access line."""
        start = time.monotonic()
        request_id = self._request_id(context)
        remaining = context.time_remaining()
        deadline = math.inf if remaining is None else start + remaining
        try:
            answer = await serve(request_id, deadline)
        except BaseException as error:  # noqa: BLE001  # `_fail` raises it again, or its status
            await self._fail(context, method, start, request_id, error, subject=subject())
        seconds = time.monotonic() - start
        self._access.add(method, "OK", seconds, request_id, context.peer(), subject=subject())
        return answer

    async def _fail(
        self,
        context: _Context,
        method: str,
        start: float,
        request_id: str,
        error: BaseException,
        *,
        subject: Subject,
    ) -> NoReturn:
        """End a call that failed: note it, then raise its status, or that it was cancelled."""
        if isinstance(error, RefusedError):
            status = error.status
        elif isinstance(error, asyncio.CancelledError):
            # Swallowing it would leak gRPC's memory of the call.
            late = context.time_remaining() == 0
            status = status_pb2.Status(
                code=code_pb2.DEADLINE_EXCEEDED if late else code_pb2.CANCELLED
            )
        else:
            status = explain(error, request_id, self._log)
        code = _CODES[status.code]
        seconds = time.monotonic() - start
        self._access.add(method, code.name, seconds, request_id, context.peer(), subject=subject)
        if not isinstance(error, Exception):
            raise error
        details = ((DETAILS_KEY, status.SerializeToString()),)
        await context.abort(code, status.message, details)
        raise AssertionError("abort raises")

    def _request_id(self, context: _Context) -> str:
        """Return the caller's id for the call if it is a decent one, else a new one."""
        for key, value in context.invocation_metadata() or ():
            if key == _REQUEST_ID_KEY and _REQUEST_ID.fullmatch(str(value)):
                return str(value)
        return f"{self._prefix}-{next(self._numbers)}"
