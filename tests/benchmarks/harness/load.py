"""Load generators over gRPC: closed loops and an open loop.

All requests are serialised before the measurement starts, to keep the cost of the caller low.

A closed loop sends a call only after an earlier call was answered. It slows down together with the
server, which is fine for measuring the cost per call. An open loop sends calls at a fixed rate.

`divgrpc load` is not used, because the overload benchmark must know which refused calls carry a
time to retry.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from grpc import aio
from hdrh.histogram import HdrHistogram

from benchmarks.harness.programs import Program

Call: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"

QUERY = "/divgrpc.v1.DiverseIndex/Query"
QUERY_STREAM = "/divgrpc.v1.DiverseIndex/QueryStream"
_PERCENTILES = (50, 90, 99, 99.9)
_WARM_UP_SECONDS = 0.5
# By default all channels of a process to one address share a connection. This option gives each
# channel a connection of its own.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
_MICROSECONDS_MAX = 60_000_000


@dataclass(frozen=True)
class Load:
    """Results of a closed loop, in microseconds per call.

    `cpu` maps roles of processes to CPU time, and `latency` maps percentiles to latencies.
    """

    calls: int
    per_second: float
    cpu: dict[str, float]
    latency: dict[float, float]


async def one(program: Program, request: bytes) -> bytes:
    async with aio.insecure_channel(program.address) as channel:
        call: Call = channel.unary_unary(QUERY)
        return await call(request, timeout=10)


@asynccontextmanager
async def _calls(program: Program, channels: int) -> AsyncIterator[Iterator[Call]]:
    """Open `channels` connections and distribute calls over them in turn."""
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(
                aio.insecure_channel(program.address, options=OWN_CONNECTION)
            )
            for _ in range(channels)
        ]
        yield itertools.cycle([channel.unary_unary(QUERY) for channel in connections])


async def unary(
    program: Program,
    requests: Sequence[bytes],
    in_flight: int,
    seconds: float,
    channels: int = 1,
) -> Load:
    """Call Query in a closed loop, after a warm-up that is not measured."""
    async with _calls(program, channels) as calls:
        source = itertools.cycle(requests)

        async def one(histogram: HdrHistogram, stop: float) -> None:
            call = next(calls)
            while time.perf_counter() < stop:
                begin = time.perf_counter()
                await call(next(source), timeout=10)
                histogram.record_value(round((time.perf_counter() - begin) * 1e6))

        async def loop(length: float) -> tuple[HdrHistogram, float]:
            histogram = HdrHistogram(1, _MICROSECONDS_MAX, 3)
            begin = time.perf_counter()
            await asyncio.gather(*(one(histogram, begin + length) for _ in range(in_flight)))
            return histogram, time.perf_counter() - begin

        await loop(_WARM_UP_SECONDS)
        before = program.cpu_seconds()
        histogram, elapsed = await loop(seconds)
        after = program.cpu_seconds()
    return _load(histogram.get_total_count(), elapsed, before, after, histogram)


def percentiles(histogram: HdrHistogram) -> dict[float, float]:
    """Return the percentiles that benchmarks report, in the unit of the histogram."""
    return {p: float(histogram.get_value_at_percentile(p)) for p in _PERCENTILES}


async def stream(
    program: Program, requests: Sequence[bytes], in_flight: int, seconds: float
) -> Load:
    """Send requests on one QueryStream, at most `in_flight` unanswered; measure no latency."""
    async with aio.insecure_channel(program.address) as channel:
        method: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(QUERY_STREAM)
        call = method(timeout=60)
        source, room = itertools.cycle(requests), asyncio.Semaphore(in_flight)
        sent_count = answered_count = 0

        async def send(stop: float) -> None:
            nonlocal sent_count
            while time.perf_counter() < stop:
                await room.acquire()
                await call.write(next(source))
                sent_count += 1

        async def receive() -> None:
            nonlocal answered_count
            while await call.read() is not aio.EOF:
                answered_count += 1
                room.release()

        receiving = asyncio.ensure_future(receive())
        await send(time.perf_counter() + _WARM_UP_SECONDS)
        before, answered_before, begin = program.cpu_seconds(), answered_count, time.perf_counter()
        await send(begin + seconds)
        after, calls, elapsed = (
            program.cpu_seconds(),
            answered_count - answered_before,
            time.perf_counter() - begin,
        )
        await call.done_writing()
        await receiving
    if answered_count != sent_count:
        raise RuntimeError(
            f"{sent_count} queries were sent on the stream and {answered_count} answered"
        )
    return _load(calls, elapsed, before, after, None)


def _load(
    calls: int,
    elapsed: float,
    before: dict[str, float],
    after: dict[str, float],
    histogram: HdrHistogram | None,
) -> Load:
    latency = {}
    if histogram is not None:
        latency = percentiles(histogram)
    cpu = {role: (after[role] - before[role]) / calls * 1e6 for role in after}
    return Load(calls=calls, per_second=calls / elapsed, cpu=cpu, latency=latency)


# The outcome of a call that was refused with a time to try again.
REFUSED_UNTIL: Final = "RESOURCE_EXHAUSTED, RetryInfo"
# The outcome of a call that was answered after sending ended. Such a call does not count as
# goodput, because otherwise all calls in a full queue would count.
_AFTERWARDS: Final = "OK, afterwards"
# If the 99th percentile of lateness reaches this, the caller could not keep up, and the figures are
# void.
_LATE_MICROSECONDS: Final = 50_000


@dataclass(frozen=True)
class Offered:
    """Results of an open loop.

    rate: calls sent per second.
    seconds: time during which calls were sent.
    codes: number of calls by status code.
    latency: percentiles of the answered calls, from the time when the call was due, in
        microseconds.
    lateness: 99th percentile of the delay between the time when a call was due and the time when it
        was sent, in microseconds.
    """

    rate: float
    seconds: float
    codes: Counter[str]
    latency: dict[float, float]
    lateness: float

    @property
    def void(self) -> bool:
        """Whether the caller could not keep up."""
        return self.lateness >= _LATE_MICROSECONDS

    @property
    def goodput(self) -> float:
        """Calls per second that were answered before the last call was due."""
        return self.codes["OK"] / self.seconds


async def open_loop(
    program: Program,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    *,
    timeout: float,
    channels: int = 4,
) -> Offered:
    """Call Query `rate` times a second for some seconds; `timeout` is the deadline of each call."""
    codes: Counter[str] = Counter()
    answered, late = (HdrHistogram(1, _MICROSECONDS_MAX, 3) for _ in range(2))
    begin = time.perf_counter()
    async with _calls(program, channels) as calls:

        async def one(request: bytes, due: float) -> None:
            late.record_value(max(1, round((time.perf_counter() - due) * 1e6)))
            code = await _outcome(next(calls), request, timeout)
            now = time.perf_counter()
            if code == "OK":
                answered.record_value(max(1, round((now - due) * 1e6)))
                code = "OK" if now < begin + seconds else _AFTERWARDS
            codes[code] += 1

        async with asyncio.TaskGroup() as group:
            for number, request in zip(range(round(rate * seconds)), itertools.cycle(requests)):
                due = begin + number / rate
                await asyncio.sleep(due - time.perf_counter())
                group.create_task(one(request, due))
    lateness = float(late.get_value_at_percentile(99))
    return Offered(rate, seconds, codes, percentiles(answered), lateness)


async def _outcome(call: Call, request: bytes, timeout: float) -> str:
    """Return the name of a call's status, or `REFUSED_UNTIL` for a refusal with RetryInfo."""
    try:
        await call(request, timeout=timeout)
    except aio.AioRpcError as error:
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        name = error.code().name
        return REFUSED_UNTIL if name == "RESOURCE_EXHAUSTED" and b"RetryInfo" in details else name
    return "OK"
