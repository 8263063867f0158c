"""A load generator: one process of a run that sends calls.

The generator first receives a `Task` with all messages, then one `Trial` at a time. During a trial
it sends a `Part` every 50 ms, and `DONE` at the end. `STOP` ends a trial early. The sending loop
does as little work as possible: it takes the next due time from a list, waits and starts a call.
Each call appends one tuple to a list.
"""

import asyncio
import gc
import itertools
import os
import selectors
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypeAlias

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc import aio

from divgrpc_client.load.record import NOT_SENT, SAMPLE, Part
from divgrpc_client.load.schedule import Schedule
from divgrpc_client.load.settings import Settings
from divgrpc_client.rpc.call import CODES
from divgrpc_client.rpc.channels import SERVICE, ChannelSettings
from divgrpc_protos.v1 import query_pb2

STOP: Final = "stop"
DONE: Final = "done"
_FLUSH_SECONDS: Final = 0.05
_BACKOFF_SECONDS: Final = 0.05
# Maximum sleep between two calls, because a generator notices a stop only after a sleep.
_SLEEP_SECONDS_MAX: Final = 0.25
# If a generator is more than this behind its schedule, it sends no further calls, and the run is
# void.
_BEHIND_SECONDS_MAX: Final = 5.0
_PICKS: Final = 2**16

# Index of the kind of a call, and index of its message.
Pick: TypeAlias = tuple[int, int]
Method: TypeAlias = Callable[..., Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Task:
    """The work of generator number `place`.

    `methods`, `messages` and `shares` have one item for each kind of call.
    """

    target: str
    methods: Sequence[str]
    messages: Sequence[Sequence[bytes]]
    shares: Sequence[float]
    place: int
    settings: Settings


@dataclass(frozen=True, slots=True)
class Trial:
    """The calls of one trial, which starts at `begin` in monotonic seconds.

    If `closed` is 0, calls are sent at the times of `schedule`. Otherwise `closed` calls are kept
    in flight, by all generators together, for as long as `schedule` lasts.
    """

    begin: float
    schedule: Schedule
    closed: int = 0


class Generator:
    """The calls of one process."""

    def __init__(self, task: Task, connection: Connection) -> None:
        self._task, self._settings = task, task.settings
        self._connection = connection
        channel_options = ChannelSettings(
            task.target, task.settings.channels, retries=False, credentials=None, options=()
        ).channel_options()
        self._methods: list[list[Method]] = []
        for _ in range(task.settings.channels):
            channel = aio.insecure_channel(task.target, options=channel_options)
            # Connect now, so that the first call need not wait for it.
            channel.get_state(try_to_connect=True)
            methods: dict[str, Method] = {
                name: channel.unary_unary(f"/{SERVICE}/{name}") for name in task.methods
            }
            # All streamed queries of a channel share one stream.
            methods["QueryStream"] = StreamedQuery(channel)
            self._methods.append([methods[name] for name in task.methods])
        quality = task.settings.quality
        # Every `_sample_every`-th call keeps its reply. If it is 0, no reply is kept.
        self._sample_every = round(1 / quality) if quality else 0
        self._samples: list[tuple[float, float, float, int, int]] = []
        self._replies: list[tuple[int, int, bytes]] = []
        self._lags: list[float] = []
        self._retries = self._in_flight = 0
        self._stopped = False
        self._busy = _busy_seconds()

    def stop(self) -> None:
        """Send no further call; calls in flight are still awaited."""
        self._stopped = True

    async def run(self, trial: Trial) -> None:
        """Send the calls of a trial and report them to the session."""
        self._stopped = False
        reporting = asyncio.ensure_future(self._report())
        try:
            await asyncio.sleep(trial.begin - time.monotonic())
            await (self._closed(trial) if trial.closed else self._open(trial))
        finally:
            reporting.cancel()
        self._flush()
        self._connection.send(DONE)

    async def _open(self, trial: Trial) -> None:
        under_way: set[asyncio.Task[None]] = set()
        clock = time.monotonic
        last = trial.begin + trial.schedule.seconds + _BEHIND_SECONDS_MAX
        limit = -(-self._settings.max_in_flight // self._settings.processes)
        for number, seconds, (kind, message) in self.arrivals(trial):
            due = trial.begin + seconds
            while not self._stopped:
                wait_seconds = due - clock()
                # Sleep even if the call is overdue, so that the event loop can receive answers.
                await asyncio.sleep(min(max(wait_seconds, 0), _SLEEP_SECONDS_MAX))
                if wait_seconds <= _SLEEP_SECONDS_MAX:
                    break
            if self._stopped or clock() > last:
                break
            if self._in_flight >= limit:
                now = clock()
                self._samples.append((due, now, now, kind, NOT_SENT))
                continue
            task = asyncio.ensure_future(self._call(number, due, kind, message))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way)

    async def _closed(self, trial: Trial) -> None:
        end = trial.begin + trial.schedule.seconds
        picks = enumerate(self._picks())

        async def loop() -> None:
            while (now := time.monotonic()) < end and not self._stopped:
                number, (kind, message) = next(picks)
                await self._call(number, now, kind, message)

        loops = range(self._task.place, trial.closed, self._settings.processes)
        await asyncio.gather(*(loop() for _ in loops))

    async def _call(self, number: int, due: float, kind: int, message: int) -> None:
        """Make one call, with retries if the server is unavailable, and record it.

        All attempts share one deadline.
        """
        settings = self._settings
        method = self._methods[number % settings.channels][kind]
        request = self._task.messages[kind][message]
        retries = 0
        self._in_flight += 1
        send_time = time.monotonic()
        while True:
            try:
                reply = await method(
                    request, timeout=send_time + settings.timeout - time.monotonic()
                )
            except aio.AioRpcError as error:
                code = error.code()
            else:
                code = grpc.StatusCode.OK
            if code is not grpc.StatusCode.UNAVAILABLE or retries == settings.retries:
                break
            retries += 1
            await asyncio.sleep(_BACKOFF_SECONDS * 2**retries)
        self._in_flight -= 1
        self._retries += retries
        self._samples.append((due, send_time, time.monotonic(), kind, code.value[0]))
        if code is grpc.StatusCode.OK and self._sample_every and not number % self._sample_every:
            self._replies.append((kind, message, reply))

    def arrivals(self, trial: Trial) -> Iterator[tuple[int, float, Pick]]:
        """Yield the number, due time and call of each arrival that this process sends.

        Process i of n sends the arrivals i, i + n, i + 2n and so on. Therefore the traffic is the
        same for any number of processes.
        """
        settings = self._settings
        blocks = trial.schedule.arrivals(poisson=settings.poisson, seed=settings.seed)
        dues = itertools.chain.from_iterable(block.tolist() for block in blocks)
        calls = enumerate(zip(dues, self._picks(), strict=False))
        for number, (due, pick) in itertools.islice(
            calls, self._task.place, None, settings.processes
        ):
            yield number, due, pick

    def _picks(self) -> Iterator[Pick]:
        """Yield randomly drawn calls without end; the same seed yields the same calls."""
        draws = np.random.default_rng([self._settings.seed, 1])
        counts = np.array([len(messages) for messages in self._task.messages])
        ends = np.cumsum(self._task.shares)
        while True:
            kinds = np.searchsorted(ends / ends[-1], draws.random(_PICKS), side="right")
            messages = (draws.random(_PICKS) * counts[kinds]).astype(np.int64)
            yield from zip(kinds.tolist(), messages.tolist(), strict=True)

    async def _report(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_FLUSH_SECONDS)
            self._lags.append(time.monotonic() - before - _FLUSH_SECONDS)
            self._flush()

    def _flush(self) -> None:
        busy = _busy_seconds()
        samples = np.array(self._samples, SAMPLE).tobytes()
        part = Part(
            *(samples, self._retries, self._replies),
            *(self._in_flight, self._lags, busy - self._busy),
        )
        self._connection.send(part)
        self._samples, self._replies, self._lags = [], [], []
        self._retries, self._busy = 0, busy


class StreamedQuery:
    """Sends the queries of one channel on one stream, and accepts answers in any order.

    It is called like the multicallable of a unary method. When the stream ends, the queries that
    wait for answers fail, and the next query opens a new stream.
    """

    def __init__(self, channel: aio.Channel) -> None:
        self._method: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE}/QueryStream"
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._outgoing: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    async def __call__(self, request: bytes, *, timeout: float) -> bytes:
        """Send a QueryStreamRequest that has no correlation id yet, and return its answer.

        Raises `aio.AioRpcError`.
        """
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._outgoing.put_nowait((number, request))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.ensure_future(self._read())
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED) from None
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        """Pass the answers of one stream to the calls that wait for them, until the stream ends."""
        code = grpc.StatusCode.UNAVAILABLE
        try:
            async for reply in self._method(self._requests()):
                self._take(reply)
        except aio.AioRpcError as error:
            code = error.code()
        self._outgoing.put_nowait(None)
        self._outgoing = asyncio.Queue()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(_error(code))

    async def _requests(self) -> AsyncIterator[bytes]:
        outgoing = self._outgoing
        while (item := await outgoing.get()) is not None:
            number, request = item
            if number in self._waiting:
                # The serialised fields of a message may be concatenated, so the correlation id is
                # prepended to the encoded query.
                head = query_pb2.QueryStreamRequest(correlation_id=number)
                yield head.SerializeToString() + request

    def _take(self, reply: bytes) -> None:
        try:
            response = query_pb2.QueryStreamResponse.FromString(reply)
        except DecodeError:
            return  # its call is unknown, and will miss its deadline
        answer = self._waiting.get(response.correlation_id)
        if answer is None or answer.done():
            return
        if response.HasField("error"):
            code = CODES.get(response.error.code, grpc.StatusCode.UNKNOWN)
            answer.set_exception(_error(code))
        else:
            answer.set_result(reply)


def _error(code: grpc.StatusCode) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata())


def _busy_seconds() -> float:
    """Return the seconds that this thread has run or waited for a core."""
    running, waiting, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return (int(running) + int(waiting)) / 1e9


async def main(connection: Connection) -> None:
    """Serve tasks and trials until the session closes the connection, then exit."""
    queue: asyncio.Queue[Task | Trial] = asyncio.Queue()
    generator: Generator | None = None

    def receive() -> None:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if order != STOP:
            queue.put_nowait(order)
        elif generator is not None:
            generator.stop()

    asyncio.get_running_loop().add_reader(connection.fileno(), receive)
    while True:
        order = await queue.get()
        if isinstance(order, Task):
            generator = Generator(order, connection)
            connection.send(DONE)
            # The messages and the imported modules live until exit, so the garbage collector need
            # not scan them.
            gc.freeze()
        elif generator is not None:
            await generator.run(order)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timeouts have microsecond resolution; epoll's is 1 ms."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
