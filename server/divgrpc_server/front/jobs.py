"""Calls that have a process of their own: asks for the process, and relays between it and callers.

Build and BuildOnce have a builder, Evaluate and EvaluateLabels an evaluator. The messages pass as
bytes, unread. When a builder has a generation whole, every worker opens it; then the builder lets
it serve, which is one rename that all workers see at once. So no query waits for a large index to
be opened, and none is answered from the past once another was not.
"""

import asyncio
import itertools
import math
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol

from google.rpc import status_pb2
from grpc import aio

from divgrpc.errors import (
    DivgrpcError,
    IndexExistsError,
    InvalidArgumentError,
    UnavailableError,
)
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import IndexFolder
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.codec.results import parse_build_parameters
from divgrpc_server.codec.statuses import (
    BuildsFullError,
    EvaluationsFullError,
    LateError,
    OutOfMemoryError,
)
from divgrpc_server.config import Config
from divgrpc_server.front.pool import Pool
from divgrpc_server.ipc import build_frames, control, packets
from divgrpc_server.ipc.build_frames import Part, Whole
from divgrpc_server.ipc.packets import Op
from divgrpc_server.ipc.subject_lines import NO_SUBJECT, subject


class Stream(Protocol):
    """As much of a call's context as a relay needs: raw messages both ways."""

    async def read(self) -> object:
        """Return the caller's next message, bytes, or `aio.EOF`."""

    async def write(self, message: bytes) -> None:
        """Send the caller a message."""


class Job:
    """One call: how its process is asked for, and its messages."""

    # What a front asks the supervisor for, and how often if the process dies.
    request: ClassVar[control.Kind]
    tries = 1
    died: ClassVar[str]
    full: ClassVar[type[DivgrpcError]]
    # The frame of the caller's messages.
    part: Part

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def check(self, message: object, root: Path) -> None:
        """Check the first message; raises the error that the process would raise."""

    def done(self, response: bytes) -> None:
        """Take the last response."""


class Evaluation(Job):
    """One Evaluate or EvaluateLabels call, as `part` says: one message to read, events to write."""

    request = "evaluate"
    # Nothing but progress is sent before the rows, so a second process may begin anew.
    tries = 2
    died = "two evaluators ended while they evaluated this request"
    full = EvaluationsFullError

    def __init__(
        self, part: Part, request: bytes, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        super().__init__(_OneMessage(request, write))
        self.part = part


class Build(Job):
    """One Build call; its subject comes from its header and its end."""

    request = "build"
    died = "the builder ended before the index was done"
    full = BuildsFullError
    part = Part.MESSAGE

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.subject = NO_SUBJECT
        self._index = ""

    def check(self, message: object, root: Path) -> None:
        """Check the first message; raises the core's error for a header that a builder refuses."""
        request = index_pb2.BuildRequest()
        if isinstance(message, bytes):
            request.ParseFromString(message)
        if request.WhichOneof("step") != "header":
            raise InvalidArgumentError("header", "the first message must be a header")
        self._check(request.header, root)

    def done(self, response: bytes) -> None:
        """Take the number of rows from the last response."""
        info = index_pb2.BuildResponse.FromString(response).done
        self.subject = subject(self._index, info.rows)

    def _check(
        self, header: index_pb2.BuildHeader | index_pb2.BuildOnceRequest, root: Path
    ) -> None:
        name = check_index_name(header.index)
        self._index = name
        self.subject = subject(name)
        parse_build_parameters(header.parameters)
        if not header.replace and IndexFolder(root / name).pointer_stamp() is not None:
            raise IndexExistsError(f"index {name!r} exists; set replace=True to replace it")


class BuildOnce(Build):
    """One BuildOnce call; `response` is its answer, empty until its end."""

    part = Part.ONCE

    def __init__(self, request: bytes) -> None:
        super().__init__(_OneMessage(request, _drop))
        self.response = b""

    def check(self, message: object, root: Path) -> None:
        """Check the message as a Build checks its header."""
        request = index_pb2.BuildOnceRequest()
        if isinstance(message, bytes):
            request.ParseFromString(message)
        self._check(request, root)

    def done(self, response: bytes) -> None:
        """Make the answer from the last response."""
        super().done(response)
        info = index_pb2.BuildResponse.FromString(response).done
        self.response = index_pb2.BuildOnceResponse(index=info).SerializeToString()


class _OneMessage:
    """The stream of a call whose caller sends one message."""

    def __init__(self, message: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._unread: list[object] = [aio.EOF, message]
        self._write = write

    async def read(self) -> object:
        """Return the message, then the end of the stream."""
        return self._unread.pop() if self._unread else aio.EOF

    async def write(self, message: bytes) -> None:
        """Send the caller an event, or drop it where the call answers with one message."""
        await self._write(message)


async def _drop(_: bytes) -> None:
    """Drop an event."""


class RefusedError(Exception):
    """Another process of ours made a status, and the call ends with it."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class _DiedError(Exception):
    """The process of a job ended without a word."""


class Jobs:
    """Starts processes through the supervisor and relays to them; `root` has the indexes."""

    def __init__(self, config: Config, channel: control.Channel, pool: Pool, root: Path) -> None:
        self._config = config
        self._root = root
        self._channel = channel
        self._pool = pool
        self._marks = itertools.count(1)
        self._awaited: dict[int, tuple[Job, asyncio.Future[socket.socket]]] = {}

    def hear(self, message: control.Message, descriptor: int) -> None:
        """Take the supervisor's answer to a request for a process."""
        job, future = self._awaited.pop(message.number, (None, None))
        if message.kind == "refused" or descriptor < 0:
            if job is not None and future is not None and not future.done():
                future.set_exception(_refusal(job, message))
            return
        link = packets.adopt(descriptor)
        link.setblocking(False)
        if future is None or future.done():
            link.close()  # the caller is gone; its process ends with the link
        else:
            future.set_result(link)

    async def relay(self, job: Job, request_id: str) -> None:
        """Serve one call to its end.

        A bad header is refused before a builder starts, which takes seconds.
        Raises `RefusedError` with what the process says, and errors of ours. Being cancelled, by a
        caller who left or whose deadline passed, ends the process too.
        """
        idle = self._config.upload_idle
        try:
            async with asyncio.timeout(idle):
                header = await job.stream.read()
        except TimeoutError:
            raise _stood_still(idle) from None
        job.check(header, self._root)
        for _ in range(job.tries):
            with await self._start(job, request_id) as link:
                relay = _Relay(job, header, link, idle, self._pool)
                with suppress(_DiedError):
                    await relay.run()
                    return
                if relay.committed:
                    break
        raise UnavailableError(job.died)

    async def _start(self, job: Job, request_id: str) -> socket.socket:
        mark = next(self._marks)
        future: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._awaited[mark] = job, future
        self._channel.send(control.Message(job.request, mark, request_id))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().close()
            raise


def _refusal(job: Job, message: control.Message) -> DivgrpcError:
    """Return why there is no process."""
    if message.kind != "refused":
        return OutOfMemoryError("the server has no descriptor left for the process of this call")
    if message.text:
        return UnavailableError(message.text)
    return job.full()


def _stood_still(seconds: float) -> LateError:
    return LateError(f"the upload stood still for {seconds:g} seconds")


class _Relay:
    """One call between its caller and its process; its first message has been read."""

    def __init__(
        self, job: Job, header: object, link: socket.socket, idle: float, pool: Pool
    ) -> None:
        self._job = job
        self._header = header
        self._stream = job.stream
        self._link = link
        self._pool = pool
        self._sending = asyncio.Lock()
        self.committed = False
        self._whole: Whole | None = None
        self._upload_task: asyncio.Future[None] | None = None
        self._clock = _IdleClock(idle, self._end_upload)

    async def run(self) -> None:
        """Relay until the last event."""
        upload = self._upload_task = asyncio.ensure_future(self._upload())
        events = asyncio.ensure_future(self._events())
        try:
            await asyncio.wait((upload, events), return_when=asyncio.FIRST_COMPLETED)
            if self._clock.expired:
                raise _stood_still(self._clock.seconds)
            if not events.done():
                await upload  # raises what ended it early; else the caller has sent all it will
            await events
        finally:
            self._clock.stop()
            upload.cancel()
            events.cancel()
            await asyncio.gather(upload, events, return_exceptions=True)
            if self._whole is not None:
                # Workers let go of what went before, or of what never came to serve.
                self._pool.refresh(self._whole.index)

    async def _upload(self) -> None:
        """Pass the caller's messages on."""
        # The caller may wait for us to accept the header before it goes on.
        self._clock.turn(callers=False)
        message = self._header
        while True:
            try:
                if not isinstance(message, bytes):  # aio.EOF
                    await self._send(Part.END)
                    return
                await self._send(self._job.part, message)
            except (BrokenPipeError, ConnectionResetError):
                return  # the process has ended, and `_events` hears why
            self._clock.start()
            message = await self._stream.read()
            self._clock.stop()

    async def _events(self) -> None:
        """Pass the events of the process on."""
        while True:
            try:
                part, payload = await build_frames.receive_async(self._link)
            except (EOFError, ConnectionResetError):
                raise _DiedError from None
            if part == Part.STATUS:
                raise RefusedError(status_pb2.Status.FromString(payload))
            if part == Part.COMMITTED:
                self.committed = True
                self._clock.turn(callers=False)
            elif part == Part.WHOLE:
                self._whole = Whole.unpack(payload)
                await self._pool.ask_all(Op.PREPARE, payload, math.inf, "")
                # A builder that has ended meanwhile has said why, and that is read next.
                with suppress(BrokenPipeError, ConnectionResetError):
                    await self._send(Part.PUBLISH)
            else:
                self._clock.turn(callers=not self.committed)
                if payload:
                    await self._stream.write(payload)
            if part == Part.DONE:
                self._job.done(payload)
                return

    async def _send(self, part: Part, payload: bytes = b"") -> None:
        async with self._sending:
            await build_frames.send_async(self._link, part, payload)

    def _end_upload(self) -> None:
        if self._upload_task is not None:
            self._upload_task.cancel()


class _IdleClock:
    """Runs while we wait for the caller and the caller does not wait for us."""

    def __init__(self, seconds: float, expire: Callable[[], None]) -> None:
        self.seconds = seconds
        self.expired = False
        self._expire = expire
        self._waiting = False
        self._callers_turn = True
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to wait for a message."""
        self._waiting = True
        self._set()

    def stop(self) -> None:
        """Stop waiting: a message has come."""
        self._waiting = False
        self._set()

    def turn(self, *, callers: bool) -> None:
        """Say whether it is for the caller to go on."""
        if callers != self._callers_turn:
            self._callers_turn = callers
            self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self._callers_turn:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.seconds, self._run_out)

    def _run_out(self) -> None:
        self.expired = True
        self._expire()
