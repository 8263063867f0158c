"""One process that makes calls: `python -m divgrpc_client.load.generator FD`.

It gets a `Task` with all messages first, then one `Trial` after the other, each answered by `Sent`
every few milliseconds; an `Ended` says that it is done with either; None stops a trial. The loop
that sends does as little as it can: it takes the next due time from a list, waits, and starts a
call; what a call saw is one tuple in a list.
"""

import asyncio
import gc
import itertools
import os
import selectors
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypeAlias

import grpc
import numpy as np
from grpc import aio

from divgrpc_client.load.orders import NOT_SENT, SAMPLE, Ended, Sent, Task, Trial
from divgrpc_client.load.streaming import StreamedQuery
from divgrpc_client.rpc.channels import SERVICE, Settings

_FLUSH_SECONDS: Final = 0.05
_BACKOFF_SECONDS: Final = 0.05
# How long a stop may go unheard between two calls.
_LOOK_SECONDS: Final = 0.25
_BEHIND_MOST: Final = 5.0
_PICKS: Final = 2**16

Pick: TypeAlias = tuple[int, int]
Ask: TypeAlias = Callable[..., Awaitable[bytes]]


@dataclass
class _Seen:
    samples: list[tuple[float, float, float, int, int, int]] = field(default_factory=list)
    retried: Counter[int] = field(default_factory=Counter)
    replies: list[tuple[int, int, bytes]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


class Generator:
    """The calls of one process."""

    def __init__(self, task: Task, connection: Connection) -> None:
        self._task = task
        self._connection = connection
        settings = Settings(task.target, task.channels, retries=False, credentials=None, options=())
        options = settings.channel_options()
        channels = [
            aio.insecure_channel(task.target, options=options) for _ in range(task.channels)
        ]
        self._calls = [_callables(channel, task.methods) for channel in channels]
        for channel in channels:
            # By the first call it has connected.
            channel.get_state(try_to_connect=True)
        self._seen = _Seen()
        self._in_flight = 0
        self._stopped = asyncio.Event()
        self._sample_every = 0
        self._busy = _busy_seconds()

    def stop(self) -> None:
        """Send nothing more; what is under way is still awaited."""
        self._stopped.set()

    async def run(self, trial: Trial) -> None:
        """Make the calls of a trial, and tell of them."""
        self._stopped.clear()
        self._sample_every = trial.sample_every
        telling = asyncio.ensure_future(self._tell())
        try:
            await asyncio.sleep(trial.begin - time.monotonic())
            await (self._closed(trial) if trial.closed else self._open(trial))
        finally:
            telling.cancel()
        self._flush()
        self._connection.send(Ended())

    async def _open(self, trial: Trial) -> None:
        under_way: set[asyncio.Task[None]] = set()
        clock, begin, most = time.monotonic, trial.begin, self._task.max_in_flight
        last = begin + trial.schedule.seconds + _BEHIND_MOST
        for number, due, (kind, message) in self._arrivals(trial):
            while (wait := begin + due - clock()) > _LOOK_SECONDS and not self._stopped.is_set():
                await asyncio.sleep(_LOOK_SECONDS)
            # Where the loop is late it still has to hear the answers.
            await asyncio.sleep(max(wait, 0))
            # One that is hopelessly behind leaves the rest: the run is void, and ends.
            if self._stopped.is_set() or clock() > last:
                break
            if self._in_flight >= most:
                now = clock()
                self._seen.samples.append((begin + due, now, now, kind, NOT_SENT, 0))
                continue
            task = asyncio.ensure_future(self._call(number, begin + due, kind, message))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way)

    async def _closed(self, trial: Trial) -> None:
        end = trial.begin + trial.schedule.seconds
        numbered = enumerate(self._picks())

        async def loop() -> None:
            while (now := time.monotonic()) < end and not self._stopped.is_set():
                number, (kind, message) = next(numbered)
                await self._call(number, now, kind, message)

        place, processes = self._task.place, self._task.processes
        await asyncio.gather(*(loop() for _ in range(place, trial.closed, processes)))

    async def _call(self, number: int, due: float, kind: int, message: int) -> None:
        """Make one call, again where it may be; the deadline is that of all attempts."""
        task = self._task
        call = self._calls[number % task.channels][kind]
        request = task.messages[kind][message]
        retries = 0
        self._in_flight += 1
        sent = time.monotonic()
        while True:
            try:
                reply = await call(request, timeout=sent + task.timeout - time.monotonic())
            except aio.AioRpcError as error:
                code = error.code()
            else:
                code = grpc.StatusCode.OK
            if code is not grpc.StatusCode.UNAVAILABLE or retries == task.retries:
                break
            retries += 1
            self._seen.retried[code.value[0]] += 1
            await asyncio.sleep(_BACKOFF_SECONDS * 2**retries)
        done = time.monotonic()
        self._in_flight -= 1
        self._seen.samples.append((due, sent, done, kind, code.value[0], retries))
        if code is grpc.StatusCode.OK and self._sample_every and not number % self._sample_every:
            self._seen.replies.append((kind, message, reply))

    def _arrivals(self, trial: Trial) -> Iterator[tuple[int, float, Pick]]:
        """Yield number, time and call of this process's share of the arrivals.

        Arrival i is made by process i modulo their number, so that the traffic is the same however
        many there are.
        """
        place, processes = self._task.place, self._task.processes
        blocks = trial.schedule.arrivals(poisson=trial.poisson, seed=self._task.seed)
        dues = itertools.chain.from_iterable(block.tolist() for block in blocks)
        every = enumerate(zip(dues, self._picks(), strict=False))
        for number, (due, pick) in itertools.islice(every, place, None, processes):
            yield number, due, pick

    def _picks(self) -> Iterator[Pick]:
        """Yield kind and message of one call after the other; same seed, same calls."""
        draws = np.random.default_rng([self._task.seed, 1])
        counts = np.array([len(messages) for messages in self._task.messages])
        ends = np.cumsum(self._task.shares)
        while True:
            kinds = np.searchsorted(ends / ends[-1], draws.random(_PICKS), side="right")
            messages = (draws.random(_PICKS) * counts[kinds]).astype(np.int64)
            yield from zip(kinds.tolist(), messages.tolist(), strict=True)

    async def _tell(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_FLUSH_SECONDS)
            self._seen.lags.append(time.monotonic() - before - _FLUSH_SECONDS)
            self._flush()

    def _flush(self) -> None:
        seen, self._seen = self._seen, _Seen()
        busy = _busy_seconds()
        self._connection.send(
            Sent(
                samples=np.array(seen.samples, SAMPLE).tobytes(),
                retried=dict(seen.retried),
                replies=seen.replies,
                in_flight=self._in_flight,
                lags=seen.lags,
                busy=busy - self._busy,
            )
        )
        self._busy = busy


def _callables(channel: aio.Channel, methods: Sequence[str]) -> list[Ask]:
    """Return what makes each kind of call; all queries of streams share one."""
    made: dict[str, Ask] = {name: channel.unary_unary(f"/{SERVICE}/{name}") for name in methods}
    if "QueryStream" in made:
        made["QueryStream"] = StreamedQuery(channel)
    return [made[name] for name in methods]


def _busy_seconds() -> float:
    """Return how long this thread ran or waited for a core: what keeps it from being on time."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return (int(ran) + int(waited)) / 1e9


async def main(connection: Connection) -> None:
    """Do as told until the other end is closed, which ends the process."""
    heard: asyncio.Queue[Task | Trial] = asyncio.Queue()
    generator: Generator | None = None

    def hear() -> None:
        try:
            told = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if told is not None:
            heard.put_nowait(told)
        elif generator is not None:
            generator.stop()

    asyncio.get_running_loop().add_reader(connection.fileno(), hear)
    while True:
        told = await heard.get()
        if isinstance(told, Task):
            generator = Generator(told, connection)
            connection.send(Ended())
            # Neither the messages nor what is imported is ever garbage.
            gc.freeze()
        elif generator is not None:
            await generator.run(told)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that wakes to the microsecond; epoll's timeouts are milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    # Ctrl-C goes to every process of a terminal; the one that reports says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(main(Connection(int(sys.argv[1]))))
