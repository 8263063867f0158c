"""The gRPC handlers, which receive and return bytes and write an access line for each call.

gRPC does not deserialise messages here. A Query is passed to a worker as bytes. A request that
cannot be parsed ends with INVALID_ARGUMENT, whereas gRPC itself would return UNKNOWN.
`Service._run` converts errors to statuses.
"""

import asyncio
import itertools
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import grpc
from google.rpc import code_pb2, status_pb2
from grpc import aio

from divgrpc.parameters import LIMITS
from divgrpc_protos.v1 import diverse_index_pb2, shard_index_pb2
from divgrpc_server.codec import subjects
from divgrpc_server.codec.staged_folders import parse_preparation
from divgrpc_server.codec.statuses import (
    LateError,
    MessageTooLargeError,
    ReplicaBehindError,
    ShardsMissingError,
    explain,
)
from divgrpc_server.codec.subjects import IncomingMessage, Subject
from divgrpc_server.config import Config
from divgrpc_server.front import audit
from divgrpc_server.front.catalog import Catalog
from divgrpc_server.front.gate import Call, Gate
from divgrpc_server.front.jobs import (
    AddAttributes,
    Build,
    BuildOnce,
    Evaluation,
    Job,
    Jobs,
    Read,
    Renewal,
    Write,
)
from divgrpc_server.front.message_stream import MessageStream
from divgrpc_server.front.meter import CallMeter
from divgrpc_server.front.pick_stream import PickStream
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.query_stream import QueryStream
from divgrpc_server.front.refusals import RefusedError, info_of
from divgrpc_server.front.standard_services import DETAILS_KEY
from divgrpc_server.front.tracing import CallSpan, NoTracer
from divgrpc_server.front.write_stream import WriteStream
from divgrpc_server.front.writer import Writer
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.ipc.packets import Op, Outcome
from divgrpc_server.ipc.tags import REQUEST_ID_KEY, TRACE_KEY, Trace, pack_tag, parse_traceparent
from divgrpc_server.logging.logs import AccessLog, Logger
from divgrpc_server.security import requests
from divgrpc_server.security.roles import is_write

SERVICE: Final = diverse_index_pb2.DESCRIPTOR.services_by_name["DiverseIndex"].full_name

_T = TypeVar("_T")
# Maximum number of bytes of a refused request that is read for the logs.
_REFUSED_BYTES_MAX: Final = 4_096
# Evaluations that set defaults are writes.
_MAY_SET_DEFAULTS: Final = ("Evaluate", "EvaluateLabels")
_Context = aio.ServicerContext[bytes, bytes]
# Tells gRPC's clients after how many milliseconds to try again; a negative number forbids it.
_PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
_BEHIND: Final = ReplicaBehindError.reason
_MISSING: Final = ShardsMissingError.reason
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def _check_size(message: IncomingMessage) -> None:
    """Raise `MessageTooLargeError`, which names an alternative, for a message above the limit."""
    limit, size = LIMITS["message_bytes_max"], len(message.payload)
    # Routers send all rows of a batch together; gRPC itself limits their messages.
    if size > limit and message.method != "Ask":
        instead = "use Build" if message.method == "BuildOnce" else "send fewer rows at a time"
        raise MessageTooLargeError(
            f"a message must have at most {limit} bytes, got {size}; {instead}"
        )


async def _check(call: Call, message: IncomingMessage) -> None:
    """Check the size of a message, and whether the caller may send it."""
    _check_size(message)
    await call.check(message)
    call.is_checked = True


def _checked_reader(call: Call, context: _Context) -> Read:
    """Return a function that reads the next message of a call and checks it."""

    async def read() -> object:
        message = await context.read()
        if isinstance(message, bytes):
            await _check(call, IncomingMessage(call.method, message))
        return message

    return read


class _Call(NamedTuple):
    """A call that is served; `start` is in seconds of `time.monotonic`."""

    method: str
    start: float
    request_id: str
    peer: str
    span: CallSpan
    admission: Call


class Service:
    """Handlers of `divgrpc.v1.DiverseIndex`."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        catalog: Catalog,
        jobs: Jobs,
        writer: Writer,
        *,
        gate: Gate,
        access: AccessLog,
        audit_log: audit.AuditLog,
        meter: CallMeter,
        tracer: NoTracer,
        log: Logger,
    ) -> None:
        self._config = config
        self._pool = pool
        self._catalog = catalog
        self._jobs = jobs
        self._writer = writer
        self._gate, self._audit = gate, audit_log
        self._access, self._meter, self._tracer = access, meter, tracer
        self._log = log
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._streams: set[MessageStream[Any]] = set()

    def registered_methods(self) -> "Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]":
        """Return the handlers of the methods that are called thousands of times per second."""
        return {
            "Query": self._unary("Query", partial(self._answer, Op.QUERY)),
            "PredictLabels": self._unary("PredictLabels", partial(self._answer, Op.PREDICT)),
            "Diversify": self._unary("Diversify", partial(self._answer, Op.DIVERSIFY)),
            "Get": self._unary("Get", partial(self._answer, Op.GET)),
            "Count": self._unary("Count", partial(self._answer, Op.COUNT)),
            "Scroll": self._unary("Scroll", partial(self._answer, Op.SCROLL)),
            "Upsert": self._unary("Upsert", partial(self._write, Op.UPSERT)),
            "Delete": self._unary("Delete", partial(self._write, Op.DELETE)),
        }

    def shard_methods(self) -> "Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]":
        """Return the handlers of `divgrpc.v1.ShardIndex`, for a shard server."""
        return {
            "Ask": self._unary("Ask", partial(self._answer, Op.ASK)),
            "Prepare": self._unary("Prepare", _without_call(self._prepare)),
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of all methods of the service."""
        catalog = {
            "GetIndex": _without_call(self._catalog.get_index),
            "ListIndexes": self._list_indexes,
            "DeleteIndex": _without_call(self._catalog.delete_index),
            "GetServerInfo": self._get_server_info,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                **self.registered_methods(),
                **{name: self._unary(name, run) for name, run in catalog.items()},
                "QueryStream": self._stream("QueryStream", partial(QueryStream, pool=self._pool)),
                "WriteStream": self._stream(
                    "WriteStream", partial(WriteStream, writer=self._writer)
                ),
                "DiversifyStream": grpc.unary_stream_rpc_method_handler(self._pick),
                "Build": self._upload("Build", Build),
                "AddAttributes": self._upload("AddAttributes", AddAttributes),
                "BuildOnce": grpc.unary_unary_rpc_method_handler(self._build_once),
                "Compact": self._job("Compact", partial(Renewal, Frame.COMPACT)),
                "Retrain": self._job("Retrain", partial(Renewal, Frame.RETRAIN)),
                "Diagnose": self._job("Diagnose", partial(Evaluation, Frame.DIAGNOSE)),
                "Evaluate": self._job("Evaluate", partial(Evaluation, Frame.EVALUATE)),
                "EvaluateLabels": self._job(
                    "EvaluateLabels", partial(Evaluation, Frame.EVALUATE_LABELS)
                ),
            },
        )

    def drain(self) -> None:
        """End each stream once the messages read so far are answered; do not end other calls."""
        for stream in self._streams:
            stream.drain()

    def _unary(
        self, method: str, answer: Callable[[bytes, Call], Awaitable[bytes]]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Return the handler of a method; `answer` takes the request and the call."""

        async def handle(request: bytes, context: _Context) -> bytes:
            incoming = IncomingMessage(method, request)

            async def serve(call: Call) -> bytes:
                await _check(call, incoming)
                return await answer(request, call)

            def subject(response: bytes | None) -> Subject:
                return self._subject(incoming, response)

            return await self._run(method, context, serve, subject, len(request))

        return grpc.unary_unary_rpc_method_handler(handle)

    def _list_indexes(self, request: bytes, call: Call) -> Awaitable[bytes]:
        return self._catalog.list_indexes(request, call.covers)

    def _get_server_info(self, request: bytes, call: Call) -> Awaitable[bytes]:
        return self._catalog.get_server_info(request, call.quotas)

    async def _answer(self, op: Op, request: bytes, call: Call) -> bytes:
        reply = await self._pool.answer(op, request, call.deadline, call.tag)
        if reply.outcome == Outcome.STATUS:
            raise RefusedError(reply.payload)
        return reply.payload

    async def _prepare(self, request: bytes) -> bytes:
        """Let all workers open a shard of a build."""
        status = await self._pool.prepare(parse_preparation(request).pack())
        if status:
            raise RefusedError(status)
        return shard_index_pb2.PrepareResponse().SerializeToString()

    async def _write(self, op: Op, request: bytes, call: Call) -> bytes:
        reply = await self._writer.answer(op, request, call.deadline, call.tag)
        if reply.outcome == Outcome.STATUS:
            raise RefusedError(reply.payload)
        return reply.payload

    def _stream(
        self, method: str, make: Callable[..., MessageStream[Any]]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def handle(_: object, context: _Context) -> None:
            messages = subjects.StreamSubject(method)

            async def serve(call: Call) -> None:
                call.rows_of_indexes = messages.rows_of_indexes
                stream = make(
                    _checked_reader(call, context),
                    context.write,
                    window=self._config.stream_window,
                    deadline=call.deadline,
                    tag=call.tag,
                    on_message=messages.add if self._wants_subject(method) else lambda _: None,
                )
                self._streams.add(stream)
                try:
                    await stream.run()
                finally:
                    self._streams.discard(stream)

            await self._run(method, context, serve, lambda _: messages.subject)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _upload(
        self, method: str, kind: Callable[[Read, Write], Build]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def handle(_: object, context: _Context) -> None:
            job = kind(_no_message, context.write)

            async def serve(call: Call) -> None:
                await _send_headers(context)
                job.read = _checked_reader(call, context)
                await self._do(job, call)

            await self._run(method, context, serve, lambda _: job.subject)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _build_once(self, request: bytes, context: _Context) -> bytes:
        build = BuildOnce(request)
        serve = self._relay(build, IncomingMessage("BuildOnce", request))
        await self._run("BuildOnce", context, serve, lambda _: build.subject)
        return build.response

    def _job(
        self, method: str, make: Callable[[bytes, Write], Job]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def handle(request: bytes, context: _Context) -> None:
            incoming = IncomingMessage(method, request)
            relay = self._relay(make(request, context.write), incoming)

            async def serve(call: Call) -> None:
                await _send_headers(context)
                await relay(call)

            size = len(request)
            await self._run(method, context, serve, lambda _: self._subject(incoming), size)

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _pick(self, request: bytes, context: _Context) -> None:
        """Handle a DiversifyStream call."""
        incoming = IncomingMessage("DiversifyStream", request)

        async def serve(call: Call) -> None:
            await _check(call, incoming)
            picks = PickStream(self._pool, request, call.deadline, call.tag)
            await picks.relay(context.write)

        def subject(_: None) -> Subject:
            return self._subject(incoming)

        await self._run("DiversifyStream", context, serve, subject, len(request))

    def _relay(
        self, job: Job, request: IncomingMessage
    ) -> Callable[[Call], Coroutine[None, None, None]]:
        async def serve(call: Call) -> None:
            _check_size(request)
            call.is_write = call.is_write or requests.read(request).needs_admin
            await _check(call, request)
            await self._do(job, call)

        return serve

    async def _do(self, job: Job, call: Call) -> None:
        try:
            await self._jobs.relay(job, call.tag)
        finally:
            call.result = job.result

    def _wants_subject(self, method: str) -> bool:
        return self._access.enabled or is_write(method) or method in _MAY_SET_DEFAULTS

    def _subject(self, request: IncomingMessage, response: bytes | None = None) -> Subject:
        if not self._wants_subject(request.method):
            return subjects.NO_SUBJECT
        return subjects.read(request, response)

    async def _run(
        self,
        method: str,
        context: _Context,
        serve: Callable[[Call], Awaitable[_T]],
        subject: Callable[[_T | None], Subject],
        size: int = 0,
    ) -> _T:
        """Serve a call until it ends, log it, and convert errors to statuses.

        All calls pass through this method.

        serve: serves the call once the gate has admitted it.
        subject: returns the subject for the access line; it is called at the end, with the answer
            or, if the call failed, None.
        size: the bytes of the request, 0 for a stream.
        """
        start = time.monotonic()
        self._meter.begin(method)
        metadata = context.invocation_metadata() or ()  # gRPC converts it at each call
        request_id, trace = self._identify(metadata)
        span = self._tracer.begin(method, trace)
        tag = pack_tag(request_id, span.trace)
        remaining = context.time_remaining()
        deadline = math.inf if remaining is None else start + remaining
        admission = self._gate.call(method, context, tag, deadline)
        # gRPC forgets the peer of a call that was cancelled.
        call = _Call(method, start, request_id, context.peer(), span, admission)
        try:
            answer = await self._gate.serve(call.admission, metadata, serve)
        except BaseException as error:
            status = self._status(error, tag, is_late=context.time_remaining() == 0)
            code = _CODES[status.code]
            # A large request that was refused is not read, because strangers may send many.
            is_read = admission.is_checked or size <= _REFUSED_BYTES_MAX
            logged_subject = subject(None) if is_read else Subject(admission.refused_index)
            self._record(call, code.name, status, logged_subject)
            if not isinstance(error, Exception):
                raise  # swallowing a cancellation would leak gRPC's memory of the call
            seconds_left = context.time_remaining()
            may_repeat = seconds_left is None or seconds_left > time.monotonic() - start
            await context.abort(code, status.message, _trailers(status, may_repeat=may_repeat))
            raise AssertionError("abort raises") from error
        finally:
            call.admission.leave()
        self._record(call, "OK", None, subject(answer), answer)
        return answer

    def _record(
        self,
        call: _Call,
        code: str,
        status: status_pb2.Status | None,
        subject: Subject,
        answer: object = None,
    ) -> None:
        """Count and log a call that has ended, and end its span; log writes for the audit."""
        method, start, request_id, peer, span, admission = call
        seconds = time.monotonic() - start
        self._meter.end(method, code, seconds, status)
        trace, caller = span.trace, admission.caller
        self._access.add(
            method, code, seconds, request_id, peer,
            subject=subject, refusal=_refusal_of(status), trace=trace, caller=caller,
        )  # fmt: skip
        span.end(code, request_id)
        if admission.is_write:
            self._audit.add_call(
                admission, code, request_id=request_id, peer=peer, subject=subject, answer=answer
            )

    def _status(self, error: BaseException, tag: str, *, is_late: bool) -> status_pb2.Status:
        if isinstance(error, RefusedError):
            return error.status
        if isinstance(error, asyncio.CancelledError):
            if not is_late:
                return status_pb2.Status(code=code_pb2.CANCELLED)
            error = LateError("the deadline passed before the call ended")
        return explain(error, tag, self._log)

    def _identify(self, metadata: "Iterable[tuple[str, str | bytes]]") -> tuple[str, Trace | None]:
        """Return the request id and the trace that the caller sent.

        If the request id is missing or invalid, return a new one. A malformed trace is ignored.
        """
        request_id, trace = "", None
        for key, value in metadata:
            if key == REQUEST_ID_KEY and not request_id and _REQUEST_ID.fullmatch(str(value)):
                request_id = str(value)
            elif key == TRACE_KEY and trace is None:
                trace = parse_traceparent(str(value))
        return request_id or f"{self._prefix}-{next(self._numbers)}", trace


async def _send_headers(context: _Context) -> None:
    """Send the initial metadata of a call whose writes may be cancelled.

    Otherwise the first write sends them. If it is cancelled, gRPC sends them again with the status,
    which fails, and the caller waits until its deadline.
    """
    await context.send_initial_metadata(())


def _trailers(
    status: status_pb2.Status, *, may_repeat: bool
) -> tuple[tuple[str, bytes | str], ...]:
    """Return the trailing metadata of a call that fails with a status.

    may_repeat: whether its deadline leaves as much time as the call has taken.
    """
    details = (DETAILS_KEY, status.SerializeToString())
    reason = info_of(status).reason
    if reason == _BEHIND or (reason == _MISSING and not may_repeat):
        # The call has waited. Another attempt would pass the deadline, and the caller would not
        # learn the reason.
        return details, (_PUSHBACK_KEY, "-1")
    return (details,)


def _refusal_of(status: status_pb2.Status | None) -> tuple[str, str]:
    """Return the reason of a status, and the shards that it names; "" for none."""
    if status is None:
        return "", ""
    info = info_of(status)
    return info.reason, info.metadata.get("shards", "")


def _without_call(
    answer: Callable[[bytes], Awaitable[bytes]],
) -> Callable[[bytes, Call], Awaitable[bytes]]:
    return lambda request, _: answer(request)


async def _no_message() -> object:
    raise AssertionError("an upload is read after it was admitted")
