"""Closed loops of raw calls, each sent when one before it was answered.

Requests are serialised before the clock starts, so that the caller costs as little as it can. A
closed loop waits with the server; its percentiles are those of calls that were sent. That suits
cost per call. `divgrpc load` costs the caller more a call, and asks GetServerInfo first, which
neither the echo nor the service written by hand can answer.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from grpc import aio
from hdrh.histogram import HdrHistogram

from benchmarks.harness.programs import Program

Call: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"

QUERY = "/divgrpc.v1.DiverseIndex/Query"
QUERY_STREAM = "/divgrpc.v1.DiverseIndex/QueryStream"
_PERCENTILES = (50, 90, 99, 99.9)
_WARM_UP = 0.5
# Channels of a process share a connection to an address, unless told not to.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
_MICROSECONDS_MAX = 60_000_000


@dataclass(frozen=True)
class Load:
    """What one loop saw: `cpu` and `latency` in microseconds, per call by role, by percentile."""

    calls: int
    per_second: float
    cpu: dict[str, float]
    latency: dict[float, float]


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


def percentiles(histogram: HdrHistogram) -> dict[float, float]:
    """Return the percentiles that are reported, in the histogram's unit."""
    return {p: float(histogram.get_value_at_percentile(p)) for p in _PERCENTILES}


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
