"""A load generator: one of the processes that send the calls of a run.

The generator receives a `Task` from the session, answers `READY`, and receives the time at which to
begin. At the end it sends the records of its calls and the share of the time for which it was busy.
A further message from the session ends the run early. The sending loop does as little work as
possible: it takes the next due time from a list, waits and starts a call. Each call appends one
record to a buffer.
"""

import asyncio
import gc
import itertools
import random
import selectors
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypeAlias

import grpc
from grpc import aio

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.load.record import NOT_SENT
from divgrpc_client.load.schedule import Schedule
from divgrpc_client.load.settings import Settings
from divgrpc_client.rpc import async_stack
from divgrpc_client.rpc.channels import SERVICE, ChannelSettings
from divgrpc_client.rpc.security import Peer

READY: Final = "ready"
# A record of `record.SAMPLE`.
_RECORD: Final = struct.Struct("=dddHB")
# Maximum duration of one sleep, because a generator notices a stop only after a sleep.
_SLEEP_SECONDS_MAX: Final = 0.25
# A generator that is late sends no calls later than this after the end of its schedule. The run is
# void if too few calls were sent.
_BEHIND_SECONDS_MAX: Final = 5.0

# Index of the kind of a call, and index of its message.
Pick: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Task:
    """The work of generator number `place` in one run.

    `kinds` has the method and the share of each kind of call, and `messages` the serialised
    requests of each kind. If `closed` is 0, calls are sent at the times of `schedule`. Otherwise
    `closed` calls are kept in flight, by all generators together, for as long as `schedule` lasts.
    """

    place: int
    peer: Peer
    kinds: Sequence[tuple[str, float]]
    messages: Sequence[Sequence[bytes]]
    settings: Settings
    schedule: Schedule
    closed: int = 0


class Generator:
    """Sends the calls of one process."""

    def __init__(self, task: Task) -> None:
        self._task, self._settings = task, task.settings
        plan = ChannelSettings(
            task.peer, task.settings.channels, retries=False, credentials=None, options=()
        )
        self._metadata = task.peer.metadata() or None
        self._methods: list[list[aio.UnaryUnaryMultiCallable[bytes, bytes]]] = []
        for _ in range(task.settings.channels):
            channel = async_stack.connect(plan).channel
            # Connect now, so that the first call need not wait for it.
            channel.get_state(try_to_connect=True)
            self._methods.append(
                [channel.unary_unary(f"/{SERVICE}/{name}") for name, _ in task.kinds]
            )
        self._samples = bytearray()
        self._stopped = False

    def stop(self) -> None:
        """Send no further call; calls in flight are still awaited."""
        self._stopped = True

    async def run(self, begin: float) -> tuple[bytes, float]:
        """Send the calls, beginning at the time `begin` of the monotonic clock.

        Return the records of the calls, an array of `SAMPLE` as bytes, and the share of the time, 0
        to 1, for which the sending thread ran or waited for a core.
        """
        await asyncio.sleep(begin - time.monotonic())
        before = _busy_seconds()
        calls = asyncio.ensure_future((self._closed if self._task.closed else self._open)(begin))
        # After the end of the schedule the process only waits for answers, which is not counted.
        await asyncio.wait([calls], timeout=self._task.schedule.seconds)
        busy = (_busy_seconds() - before) / max(time.monotonic() - begin, 1e-9)
        await calls
        return bytes(self._samples), busy

    async def _open(self, begin: float) -> None:
        under_way: set[asyncio.Task[None]] = set()
        clock = time.monotonic
        last = begin + self._task.schedule.seconds + _BEHIND_SECONDS_MAX
        limit = -(-self._settings.max_in_flight // self._settings.processes)
        for number, seconds, (kind, message) in self.arrivals():
            due = begin + seconds
            while not self._stopped:
                wait_seconds = due - clock()
                # Sleep even if the call is overdue, so that the event loop can receive answers.
                await asyncio.sleep(min(max(wait_seconds, 0), _SLEEP_SECONDS_MAX))
                if wait_seconds <= _SLEEP_SECONDS_MAX:
                    break
            now = clock()
            if self._stopped or now > last:
                break
            if len(under_way) >= limit:
                self._samples += _RECORD.pack(due, now, now, kind, NOT_SENT)
                continue
            call = asyncio.ensure_future(self._call(number, due, kind, message))
            under_way.add(call)
            call.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way)

    async def _closed(self, begin: float) -> None:
        end = begin + self._task.schedule.seconds
        # As in the open loop, process i of n makes the calls i, i + n, i + 2n and so on.
        place, processes = self._task.place, self._settings.processes
        picks = itertools.islice(enumerate(self._picks()), place, None, processes)

        async def loop() -> None:
            while (now := time.monotonic()) < end and not self._stopped:
                number, (kind, message) = next(picks)
                await self._call(number, now, kind, message)

        loops = range(place, self._task.closed, processes)
        await asyncio.gather(*(loop() for _ in loops))

    def _follow_token(self) -> None:
        """Read the token again if its file has changed; keep it if the file is broken."""
        with suppress(InvalidArgumentError):
            self._metadata = self._task.peer.metadata() or None

    async def _call(self, number: int, due: float, kind: int, message: int) -> None:
        # Consecutive calls of one process have numbers that differ by the number of processes.
        own_number = number // self._settings.processes
        method = self._methods[own_number % self._settings.channels][kind]
        request = self._task.messages[kind][message]
        if isinstance(self._task.peer.token, Path):
            self._follow_token()
        code, send_time = grpc.StatusCode.OK, time.monotonic()
        try:
            await method(request, timeout=self._settings.timeout, metadata=self._metadata)
        except aio.AioRpcError as error:
            code = error.code()
        self._samples += _RECORD.pack(due, send_time, time.monotonic(), kind, code.value[0])

    def arrivals(self) -> Iterator[tuple[int, float, Pick]]:
        """Yield the number, due time and call of each arrival that this process sends.

        Process i of n sends the arrivals i, i + n, i + 2n and so on. Therefore the traffic is the
        same for any number of processes.
        """
        settings = self._settings
        blocks = self._task.schedule.arrivals(poisson=settings.poisson, seed=settings.seed)
        dues = itertools.chain.from_iterable(block.tolist() for block in blocks)
        arrivals = zip(itertools.count(), dues, self._picks(), strict=False)
        return itertools.islice(arrivals, self._task.place, None, settings.processes)

    def _picks(self) -> Iterator[Pick]:
        """Yield randomly drawn calls without end; the same seed yields the same calls."""
        draws = random.Random(self._settings.seed)  # noqa: S311  # no secret
        kinds = range(len(self._task.kinds))
        ends = [*itertools.accumulate(share for _, share in self._task.kinds)]
        while True:
            (kind,) = draws.choices(kinds, cum_weights=ends)
            yield kind, draws.randrange(len(self._task.messages[kind]))


def _busy_seconds() -> float:
    """Return the seconds that this thread has run or waited for a core."""
    running, waiting, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return (int(running) + int(waiting)) / 1e9


async def main(connection: Connection) -> None:
    """Do one task of the session."""
    generator = Generator(connection.recv())
    # The messages and the imported modules live until exit, so the garbage collector need not scan
    # them.
    gc.freeze()
    connection.send(READY)
    begin = connection.recv()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(connection.fileno())
        generator.stop()

    # The connection becomes readable when the session sends a stop, and when the session ends.
    loop.add_reader(connection.fileno(), stop)
    connection.send(await generator.run(begin))


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timeouts have microsecond resolution; epoll's is 1 ms."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
