"""Jobs: calls that run in a separate process, and the relay between that process and the caller.

Build, BuildOnce and AddAttributes run in a builder, Evaluate, EvaluateLabels and Diagnose in an
evaluator, Compact and Retrain in the writer. If an index was written to, AddAttributes runs in the
writer too, because only it may write. The front relays messages as bytes.

When a builder has staged a generation, every worker opens it. The builder then publishes the
generation with a single rename, which takes effect in all workers at once. So no query waits for a
large index to open. After the first query that is answered from the new generation, no query is
answered from the old generation.
"""

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from google.protobuf.message import Message
from grpc import aio

from divgrpc.errors import (
    DivgrpcError,
    IndexChangedError,
    IndexExistsError,
    InvalidArgumentError,
    UnavailableError,
)
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import IndexFolder, read_manifest
from divgrpc.storage.published import was_written
from divgrpc.storage.shards import check_whole
from divgrpc_protos.v1 import attributes_pb2, index_pb2, writes_pb2
from divgrpc_server.codec.points import parse_declarations
from divgrpc_server.codec.results import parse_build_parameters
from divgrpc_server.codec.statuses import (
    BuildsFullError,
    EvaluationsFullError,
    LateError,
    OutOfMemoryError,
)
from divgrpc_server.codec.subjects import NO_SUBJECT, Subject
from divgrpc_server.config import Config
from divgrpc_server.front.job_rounds import JobRounds
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.room import Promises, RoomCheck
from divgrpc_server.ipc import control, job_frames, packets
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.job_frames import Frame, StagedGeneration

if TYPE_CHECKING:
    from divgrpc_server.front.sharded_pool import Shards

# Number of events of progress that wait for the caller.
_PROGRESS_MAX: Final = 64
# The frames that the process of a job sends.
_EVENTS = (Frame.EVENT, Frame.COMMIT, Frame.STAGED, Frame.RESULT, Frame.STATUS, Frame.ASK)
# The front keeps the rows of an evaluation until the last one has come, up to this many bytes.
# Until it passes one on, another evaluator can start over.
_ROWS_BYTES_MAX: Final = 16 << 20
# Returns the next message of the caller as bytes, or `aio.EOF` at the end.
Read = Callable[[], Awaitable[object]]
Write = Callable[[bytes], Awaitable[None]]


class Job:
    """A call that runs in a separate process; `read` and `write` pass its messages."""

    # `request` is the kind of process to request from the supervisor. `tries` is the maximum number
    # of processes that are started for the call, because a process may die.
    # `needs_places` says whether shards must have servers.
    request: control.Kind
    tries: ClassVar[int] = 1
    needs_places: ClassVar[bool] = False
    death: ClassVar[str]
    full: ClassVar[type[DivgrpcError]]
    # The name of the index, once the first message was checked.
    index = ""
    # The outcome of the job, None until it is done, or if the kind of the job has none.
    result: Message | None = None

    def __init__(self, frame: Frame, read: Read, write: Write) -> None:
        """Create a job; `frame` is the frame kind of the caller's messages."""
        self.frame = frame
        self.read = read
        self.write = write

    def check(self, message: bytes, root: Path) -> None:
        """Check the first message, b"" if none came; raises the error of the process."""

    def finish(self, response: bytes) -> None:
        """Handle the last response."""


class Evaluation(Job):
    """One Evaluate, EvaluateLabels or Diagnose call."""

    request = "evaluate"
    # If the evaluator dies, a second evaluator can start over, because the caller receives only
    # progress events until all rows have come, or more than the front keeps.
    tries = 2
    death = "two evaluators ended while they evaluated this request"
    full = EvaluationsFullError

    def __init__(self, frame: Frame, request: bytes, write: Write) -> None:
        super().__init__(frame, _reader_of(request), write)


class Renewal(Job):
    """One Compact or Retrain call; `frame` says which."""

    request = "renew"
    death = "the writer ended before it had finished this request"
    full = BuildsFullError

    def __init__(self, frame: Frame, request: bytes, write: Write) -> None:
        super().__init__(frame, _reader_of(request), write)

    def check(self, message: bytes, root: Path) -> None:
        """Check the request; raises `InvalidArgumentError` and `IndexNotFoundError`."""
        is_retraining = self.frame == Frame.RETRAIN
        kind = writes_pb2.RetrainRequest if is_retraining else writes_pb2.CompactRequest
        self.index = check_index_name(kind.FromString(message).index)
        IndexFolder(root / self.index).current()

    def finish(self, response: bytes) -> None:
        """Store the outcome from the last response."""
        is_retraining = self.frame == Frame.RETRAIN
        kind = writes_pb2.RetrainResponse if is_retraining else writes_pb2.CompactResponse
        self.result = kind.FromString(response).done


class Build(Job):
    """A Build call, which takes the subject of its access line from its header and its result."""

    request: control.Kind = "build"
    needs_places = True
    death = "the builder ended before the index was done"
    full = BuildsFullError

    def __init__(self, read: Read, write: Write, frame: Frame = Frame.MESSAGE) -> None:
        super().__init__(frame, read, write)
        self.subject = NO_SUBJECT
        self.info = index_pb2.IndexInfo()

    def check(self, message: bytes, root: Path) -> None:
        """Check the first message; raises the core's error if a builder would refuse its header."""
        header = self._header(message)
        name = check_index_name(header.index)
        self.index, self.subject = name, Subject(name)
        parse_build_parameters(header.parameters)
        if not header.replace and IndexFolder(root / name).pointer_stamp() is not None:
            raise IndexExistsError(f"index {name!r} exists; set replace=True to replace it")

    def finish(self, response: bytes) -> None:
        """Store the description of the index from the last response."""
        self._set_result(index_pb2.BuildResponse.FromString(response).done)

    def _set_result(self, info: index_pb2.IndexInfo) -> None:
        self.result = self.info = info
        self.subject = Subject(info.name, info.rows)

    def _header(self, message: bytes) -> index_pb2.BuildHeader | index_pb2.BuildOnceRequest:
        request = index_pb2.BuildRequest.FromString(message)
        if request.WhichOneof("step") != "header":
            raise InvalidArgumentError("header", "the first message must be a header")
        return request.header


class BuildOnce(Build):
    """A BuildOnce call, which has a single message and receives no events."""

    def __init__(self, request: bytes) -> None:
        super().__init__(_reader_of(request), _drop, Frame.ONCE)

    @property
    def response(self) -> bytes:
        """The serialised BuildOnceResponse."""
        return index_pb2.BuildOnceResponse(index=self.info).SerializeToString()

    def _header(self, message: bytes) -> index_pb2.BuildOnceRequest:
        return index_pb2.BuildOnceRequest.FromString(message)


class AddAttributes(Build):
    """An AddAttributes call; its messages have the form of a Build call."""

    needs_places = False
    death = "the process that adds attributes ended before it had added them"

    def __init__(self, read: Read, write: Write) -> None:
        super().__init__(read, write, Frame.ATTRIBUTES)

    def check(self, message: bytes, root: Path) -> None:
        """Check the first message; raises the core's error if the process would refuse its header.

        The process itself checks whether the index has the attributes already.
        """
        request = attributes_pb2.AddAttributesRequest.FromString(message)
        if request.WhichOneof("step") != "header":
            raise InvalidArgumentError("header", "the first message must be a header")
        name = check_index_name(request.header.index)
        self.index, self.subject = name, Subject(name)
        parse_declarations(request.header.declarations)
        index = IndexFolder(root / name)
        index.read_current(lambda folder: check_whole(read_manifest(folder)))
        if index.read_current(was_written):
            self.request = "renew"

    def finish(self, response: bytes) -> None:
        """Store the description of the index from the last response."""
        self._set_result(attributes_pb2.AddAttributesResponse.FromString(response).done)


def _reader_of(message: bytes) -> Read:
    """Return a reader that yields a single message."""
    messages = iter((message,))

    async def read() -> object:
        return next(messages, aio.EOF)

    return read


async def _drop(_: bytes) -> None:
    """Ignore an event."""


class _DeathError(Exception):
    """The process of a job ended without a result or an error."""


class Jobs:
    """Requests processes from the supervisor and relays calls to them.

    `root` is the folder of the indexes. `shards` asks shards; None if the server has none.
    `promises` has the memory that builds may take.
    """

    def __init__(
        self,
        config: Config,
        channel: control.Channel,
        pool: Pool,
        root: Path,
        shards: "Shards | None" = None,
    ) -> None:
        self._config = config
        self._shards = shards
        self._root = root
        self._channel = channel
        self._pool = pool
        self.promises = Promises(self._tell_promise)
        self._numbers = itertools.count(1)
        self._requests: dict[int, tuple[Job, asyncio.Future[socket.socket]]] = {}

    def handle(self, message: control.Message, descriptor: int) -> None:
        """Handle the supervisor's response to a request for a process."""
        job, future = self._requests.pop(message.number, (None, None))
        if message.kind == "refused" or descriptor < 0:
            if job is not None and future is not None and not future.done():
                future.set_exception(_refusal(job, message))
            return
        link = packets.adopt(descriptor)
        link.setblocking(False)
        if future is None or future.done():
            link.close()  # the caller is gone; its job ends with the link
        else:
            future.set_result(link)

    async def relay(self, job: Job, tag: str) -> None:
        """Serve one call until it ends.

        An invalid header is refused before a builder is requested, and so is a build that no shard
        server could answer from. If the caller leaves or the deadline passes, the call is
        cancelled. A builder or an evaluator then exits, and the writer ends the job.

        Raises `RefusedError` with the status that the process returned, or an error of the front
        itself, such as `LateError` or `UnavailableError`.
        """
        upload = _Upload(job.read, self._config.upload_idle)
        header = await upload.read()
        job.check(header if isinstance(header, bytes) else b"", self._root)
        room = None
        if job.needs_places and self._shards is not None:
            await self._shards.await_engine()
            await self._shards.await_places()
            # It reads manifests, perhaps from another machine.
            room = await asyncio.to_thread(self._check_of, job, self._shards)
        is_built = False
        try:
            for tries_left in reversed(range(job.tries)):
                with await self._start(job, tag) as link:
                    relay = _Relay(
                        job, header, upload, link, self._pool,
                        shards=self._shards, tag=tag, room=room,
                    )  # fmt: skip
                    try:
                        await relay.run()
                    except _DeathError:
                        pass
                    except IndexChangedError:
                        # Another process begins with the new generation.
                        if not tries_left:
                            raise
                    else:
                        is_built = True
                        return
                    if relay.has_passed_rows:
                        raise UnavailableError("the evaluator ended while it sent its rows")
        finally:
            if room is not None:
                room.close(is_built=is_built)
            if job.request == "renew":
                # A worker without queries would otherwise keep the files of the old generation
                # open.
                self._pool.refresh(job.index)
        raise UnavailableError(job.death)

    def _check_of(self, job: Job, shards: "Shards") -> RoomCheck | None:
        """Return what compares a build with the memory for its shards, if that is known."""
        if shards.room_bytes is None:
            return None
        return RoomCheck(
            job.index, self._root, self._config.shards, lambda: shards.room_bytes, self.promises,
            reads_upload=job.frame == Frame.MESSAGE,
        )  # fmt: skip

    def _tell_promise(self, size: int) -> None:
        with suppress(OSError):
            self._channel.send(control.Message("promise", 0, str(size)))

    async def _start(self, job: Job, tag: str) -> socket.socket:
        number = next(self._numbers)
        future: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._requests[number] = job, future
        try:
            self._channel.send(control.Message(job.request, number, tag))
            return await future
        except OSError as error:
            raise UnavailableError("the server is too busy to start this call; retry") from error
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().close()
            raise
        finally:
            self._requests.pop(number, None)


def _refusal(job: Job, message: control.Message) -> DivgrpcError:
    """Return the reason why the supervisor did not provide a process."""
    if message.kind != "refused":
        return OutOfMemoryError("the server has no descriptor left for the process of this call")
    if message.text:
        return UnavailableError(message.text)
    return job.full()


class _Upload:
    """The messages of a caller, with a limit on how long the server waits for the next message.

    The limit applies only while the server waits for the caller, not while the caller waits for the
    server.
    """

    def __init__(self, read: Read, idle_seconds: float) -> None:
        self._read = read
        self._idle_seconds = idle_seconds
        self._is_callers_turn = True
        self._limit: asyncio.Timeout | None = None

    async def read(self) -> object:
        """Return the next message; raises `LateError` if it does not arrive in time."""
        try:
            async with asyncio.timeout(None) as self._limit:
                self._set_limit()
                return await self._read()
        except TimeoutError:
            seconds = f"{self._idle_seconds:g}"
            raise LateError(f"the upload stood still for {seconds} seconds") from None
        finally:
            self._limit = None

    def turn(self, *, callers: bool) -> None:
        """Set whether the server waits for the caller.

        The limit on the wait for the next message restarts when the server begins to wait.
        """
        if callers != self._is_callers_turn:
            self._is_callers_turn = callers
            self._set_limit()

    def _set_limit(self) -> None:
        if self._limit is not None and not self._limit.expired():
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(now + self._idle_seconds if self._is_callers_turn else None)


class _Relay:
    """Relays a call between its caller and its process; `header` is the first message."""

    def __init__(
        self,
        job: Job,
        header: object,
        upload: _Upload,
        link: socket.socket,
        pool: Pool,
        *,
        shards: "Shards | None",
        tag: str,
        room: RoomCheck | None,
    ) -> None:
        # Whether the caller has received rows of an evaluation.
        self.has_passed_rows = False
        self._is_committed = False
        self._rows: list[bytes] = []
        # Progress that the caller has not read, and the task that writes it.
        self._progress: deque[bytes] = deque(maxlen=_PROGRESS_MAX)
        self._writing: asyncio.Future[None] | None = None
        self._job = job
        self._header = header
        self._upload = upload
        self._link = link
        self._pool = pool
        self._room = room
        self._sending = asyncio.Lock()
        self._staged: StagedGeneration | None = None
        # Prepares workers, while progress goes on.
        self._preparation: asyncio.Future[None] | None = None
        self._fault: Exception | None = None
        self._rounds = JobRounds(shards, tag, self._send, self._hang_up)

    async def run(self) -> None:
        """Relay messages and events until the last event."""
        messages = asyncio.ensure_future(self._pass_messages())
        events = asyncio.ensure_future(self._pass_events())
        try:
            await asyncio.wait((messages, events), return_when=asyncio.FIRST_COMPLETED)
            if not events.done():
                await messages  # raises what ended it early; otherwise the upload is complete
            await events
        finally:
            tasks = [messages, events, *filter(None, (self._writing, self._preparation))]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._rounds.close()
            if self._staged is not None:
                # Make workers close the generation that is not current. This is the previous
                # generation, or the staged generation if it was not published.
                self._pool.refresh(self._staged.name)

    async def _pass_messages(self) -> None:
        """Pass on the caller's messages."""
        # Suspend the time limit, because the caller may wait for the header to be accepted before
        # it sends chunks.
        self._upload.turn(callers=False)
        message = self._header
        with suppress(BrokenPipeError, ConnectionResetError):  # `_pass_events` raises the reason
            while isinstance(message, bytes):
                if self._room is not None and self._room.reads_upload:
                    self._room.check_message(message)
                await self._send(self._job.frame, message)
                message = await self._upload.read()
            await self._send(Frame.END)

    async def _pass_events(self) -> None:
        """Pass on the events of the process."""
        while True:
            try:
                kind, payload = await job_frames.receive_async(self._link)
            except (EOFError, ConnectionResetError):
                await self._end_progress()  # another process may write to the caller next
                raise self._fault or self._rounds.error or _DeathError() from None
            if kind not in _EVENTS:
                raise FrameError(f"the process of a job sent a frame {kind.name}")
            if kind == Frame.STATUS:
                raise RefusedError(payload)
            if kind == Frame.ASK:
                self._rounds.add(payload)
            elif kind == Frame.COMMIT:
                self._is_committed = True
                self._upload.turn(callers=False)
            elif kind == Frame.STAGED:
                self._staged = StagedGeneration.unpack(payload)
                self._preparation = asyncio.ensure_future(self._prepare(payload))
            else:
                self._upload.turn(callers=not self._is_committed)
                if kind == Frame.RESULT:
                    self._job.finish(payload)
                await self._pass_event(payload, is_last=kind == Frame.RESULT)
            if kind == Frame.RESULT:
                return

    async def _prepare(self, generation: bytes) -> None:
        """Let workers open a generation, and then the builder publish it."""
        try:
            if self._room is not None:
                await self._room.check_build(StagedGeneration.unpack(generation))
            await self._pool.prepare(generation)
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            self._fault = error
            self._hang_up()
            return
        # If PUBLISH cannot be sent, the builder has ended, and its last frame is its status.
        with suppress(BrokenPipeError, ConnectionResetError):
            await self._send(Frame.PUBLISH)

    async def _pass_event(self, payload: bytes, *, is_last: bool) -> None:
        """Pass on an event, or keep it if it is a row of an evaluation that may start over."""
        are_rows = self._is_committed and self._job.tries > 1
        if payload and not are_rows and not is_last:
            self._pass_progress(payload)
            return
        self._rows += [payload] if payload else []
        may_keep = are_rows and not is_last and not self.has_passed_rows
        if may_keep and sum(map(len, self._rows)) <= _ROWS_BYTES_MAX:
            return
        self.has_passed_rows |= are_rows and bool(self._rows)
        rows, self._rows = self._rows, []
        await self._end_progress()
        for row in rows:
            await self._job.write(row)

    async def _end_progress(self) -> None:
        """Wait until the caller has got the progress that is being written."""
        if self._writing is not None:
            await self._writing

    def _pass_progress(self, payload: bytes) -> None:
        """Pass on progress without a wait; drop the oldest if the caller reads none.

        The process may ask shards after it, and a caller who reads no progress must not delay it.
        """
        self._progress.append(payload)
        if self._writing is None or self._writing.done():
            if self._writing is not None:
                self._writing.result()  # raises what ended the call
            self._writing = asyncio.ensure_future(self._write_progress())

    async def _write_progress(self) -> None:
        while self._progress:
            await self._job.write(self._progress.popleft())

    def _hang_up(self) -> None:
        """End the process, which waits for replies that will not come."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    async def _send(self, kind: Frame, payload: bytes = b"") -> None:
        async with self._sending:
            await job_frames.send_async(self._link, kind, payload)
