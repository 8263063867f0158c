"""Closed loops of raw calls, each sent when one before it was answered; and an open loop.

Requests are serialised before the clock starts, so that the caller costs as little as it can. A
closed loop waits with the server; its percentiles are those of calls that were sent, not of users
who would have come. That suits cost per call, which is what it is for.

It is not the harness of `divgrpc load`, which costs the caller more a call, and in a process of its
own, while caller and server share the machine's few cores. That one asks GetServerInfo first, which
neither the echo nor the service written by hand can answer, and does not say who was told when to
come back.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc
from grpc import aio
from hdrh.histogram import HdrHistogram

from benchmarks.processes import Program

Call: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"

QUERY = "/divgrpc.v1.DiverseIndex/Query"
QUERY_STREAM = "/divgrpc.v1.DiverseIndex/QueryStream"
_PERCENTILES = (50, 90, 99, 99.9)
_WARM_UP = 0.5
# Channels of a process share a connection to an address, unless told not to.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
_MICROSECONDS_MAX = 60_000_000
# Refused, and told when to come again.
REFUSED_UNTIL = "RESOURCE_EXHAUSTED, RetryInfo"
# Calls sent in a row, at most, when the loop is behind.
_TURN = 8
# So late and more, and figures are void.
_LATE_MICROSECONDS = 50_000
# What was answered after the last call was sent: with it a full queue would count for goodput.
AFTERWARDS = "OK, afterwards"


@dataclass(frozen=True)
class Load:
    """What one loop saw: `cpu` and `latency` in microseconds, per call by role, by percentile."""

    calls: int
    per_second: float
    cpu: dict[str, float]
    latency: dict[float, float]


@dataclass(frozen=True)
class Offered:
    """What an open loop saw: calls by status code, and `latency` of those that were answered.

    `lateness` is the 99th percentile of how late calls were sent. All in microseconds.
    """

    rate: float
    seconds: float
    codes: Counter[str]
    latency: dict[float, float]
    lateness: float

    @property
    def void(self) -> bool:
        """Whether the caller was at its end."""
        return self.lateness >= _LATE_MICROSECONDS

    @property
    def goodput(self) -> float:
        """Calls answered a second, while calls were sent; what came afterwards counts for none."""
        return self.codes["OK"] / self.seconds


async def one(program: Program, request: bytes) -> bytes:
    """Return the reply to one call."""
    async with aio.insecure_channel(program.address) as channel:
        call: Call = channel.unary_unary(QUERY)
        return await call(request, timeout=10)


@asynccontextmanager
async def _calls(program: Program, channels: int) -> AsyncIterator[Iterator[Call]]:
    """Open so many connections; each call that is made goes to the next."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                aio.insecure_channel(program.address, options=OWN_CONNECTION)
            )
            for _ in range(channels)
        ]
        yield itertools.cycle([channel.unary_unary(QUERY) for channel in opened])


async def unary(
    program: Program,
    requests: Sequence[bytes],
    in_flight: int,
    seconds: float,
    channels: int = 1,
) -> Load:
    """Call Query in a closed loop, after a warm-up that counts for nothing."""
    async with _calls(program, channels) as calls:
        source = itertools.cycle(requests)

        async def one(histogram: HdrHistogram, stop: float) -> None:
            call = next(calls)
            while time.perf_counter() < stop:
                begun = time.perf_counter()
                await call(next(source), timeout=10)
                histogram.record_value(round((time.perf_counter() - begun) * 1e6))

        async def loop(length: float) -> tuple[HdrHistogram, float]:
            histogram = HdrHistogram(1, _MICROSECONDS_MAX, 3)
            begun = time.perf_counter()
            await asyncio.gather(*(one(histogram, begun + length) for _ in range(in_flight)))
            return histogram, time.perf_counter() - begun

        await loop(_WARM_UP)
        before = program.cpu_seconds()
        histogram, taken = await loop(seconds)
        after = program.cpu_seconds()
    return _load(histogram.get_total_count(), taken, before, after, histogram)


async def open_loop(
    program: Program,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    *,
    timeout: float,
    channels: int = 4,
) -> Offered:
    """Call Query so many times a second for some seconds, each with a deadline of its own."""
    answered, late = (HdrHistogram(1, _MICROSECONDS_MAX, 3) for _ in range(2))
    codes: Counter[str] = Counter()

    async def one(number: int, due: float) -> None:
        late.record_value(max(1, round((time.perf_counter() - due) * 1e6)))
        try:
            await next(calls)(requests[number % len(requests)], timeout=timeout)
        except aio.AioRpcError as error:
            told = any(b"RetryInfo" in _bytes(value) for _, value in error.trailing_metadata())
            refused = told and error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            codes[REFUSED_UNTIL if refused else error.code().name] += 1
        else:
            codes["OK" if time.perf_counter() < begun + seconds else AFTERWARDS] += 1
            answered.record_value(round((time.perf_counter() - due) * 1e6))

    async with _calls(program, channels) as calls:
        begun = time.perf_counter()
        await _send_on_time(one, begun, rate, round(rate * seconds))
    latency = percentiles(answered)
    lateness = float(late.get_value_at_percentile(99))
    return Offered(rate, seconds, codes, latency, lateness)


def percentiles(histogram: HdrHistogram) -> dict[float, float]:
    """Return the percentiles that are reported, in the histogram's unit."""
    return {p: float(histogram.get_value_at_percentile(p)) for p in _PERCENTILES}


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


async def _send_on_time(
    send: Callable[[int, float], Coroutine[None, None, None]], begun: float, rate: float, count: int
) -> None:
    """Begin so many calls, each when it is due, and wait for all."""
    calls = []
    for number in range(count):
        due = begun + number / rate
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        elif number % _TURN == 0:
            await asyncio.sleep(0)  # behind: what has come back must be read all the same
        calls.append(asyncio.ensure_future(send(number, due)))
    await asyncio.gather(*calls)


async def stream(
    program: Program, requests: Sequence[bytes], in_flight: int, seconds: float
) -> Load:
    """Send on one QueryStream, at most `in_flight` unanswered; percentiles are left out."""
    async with aio.insecure_channel(program.address) as channel:
        method: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(QUERY_STREAM)
        call = method(timeout=60)
        source, room = itertools.cycle(requests), asyncio.Semaphore(in_flight)
        sent = answered = 0

        async def send(stop: float) -> None:
            nonlocal sent
            while time.perf_counter() < stop:
                await room.acquire()
                await call.write(next(source))
                sent += 1

        async def receive() -> None:
            nonlocal answered
            while await call.read() is not aio.EOF:
                answered += 1
                room.release()

        receiving = asyncio.ensure_future(receive())
        await send(time.perf_counter() + _WARM_UP)
        before, done, begun = program.cpu_seconds(), answered, time.perf_counter()
        await send(begun + seconds)
        after, calls, taken = program.cpu_seconds(), answered - done, time.perf_counter() - begun
        await call.done_writing()
        await receiving
    if answered != sent:
        raise RuntimeError(f"{sent} queries were sent on the stream and {answered} answered")
    return _load(calls, taken, before, after, None)


def _load(
    calls: int,
    taken: float,
    before: dict[str, float],
    after: dict[str, float],
    histogram: HdrHistogram | None,
) -> Load:
    latency = {}
    if histogram is not None:
        latency = percentiles(histogram)
    cpu = {role: (after[role] - before[role]) / calls * 1e6 for role in after}
    return Load(calls=calls, per_second=calls / taken, cpu=cpu, latency=latency)
