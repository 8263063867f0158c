"""Closed loops of raw calls: so many in flight, each sent when one before it was answered.

Requests are serialised before the clock starts, so that the caller costs as little as it can. A
closed loop waits with the server; its percentiles are those of calls that were sent, not of users
who would have come. That suits cost per call, which is what it is for.
"""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from grpc import aio
from hdrh.histogram import HdrHistogram

from benchmarks.processes import Program

QUERY = "/divgrpc.v1.DiverseIndex/Query"
QUERY_STREAM = "/divgrpc.v1.DiverseIndex/QueryStream"
_PERCENTILES = (50, 90, 99, 99.9)
_WARM_UP = 0.5
_MICROSECONDS_MAX = 10_000_000


@dataclass(frozen=True)
class Load:
    """What one loop saw: `cpu` and `latency` in microseconds, per call by role, by percentile."""

    calls: int
    per_second: float
    cpu: dict[str, float]
    latency: dict[float, float]


async def unary(
    program: Program, requests: Sequence[bytes], in_flight: int, seconds: float
) -> Load:
    """Call Query in a closed loop on one channel, after a warm-up that counts for nothing."""
    async with aio.insecure_channel(program.address) as channel:
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(QUERY)
        source = itertools.cycle(requests)

        async def one(histogram: HdrHistogram, stop: float) -> None:
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
        latency = {p: float(histogram.get_value_at_percentile(p)) for p in _PERCENTILES}
    cpu = {role: (after[role] - before[role]) / calls * 1e6 for role in after}
    return Load(calls=calls, per_second=calls / taken, cpu=cpu, latency=latency)
