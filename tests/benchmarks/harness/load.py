"""Closed loops over gRPC, which measure the CPU time of a call.

All requests are serialised before the measurement starts, to keep the cost of the caller low. A
closed loop sends a call only after an earlier call was answered. It slows down together with the
server, which is fine for measuring the cost per call. Open loops are in `divgrpc_client.load`.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from grpc import ChannelCredentials, StatusCode, aio
from hdrh.histogram import HdrHistogram

from benchmarks.harness.programs import Program
from divgrpc.types import IntArray
from divgrpc_protos.v1 import query_pb2

Call: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"
Metadata: TypeAlias = tuple[tuple[str, str], ...]

QUERY = "/divgrpc.v1.DiverseIndex/Query"
QUERY_STREAM = "/divgrpc.v1.DiverseIndex/QueryStream"
UPSERT = "/divgrpc.v1.DiverseIndex/Upsert"
WRITE_STREAM = "/divgrpc.v1.DiverseIndex/WriteStream"
_PERCENTILES = (50, 99)
_WARM_UP_SECONDS = 0.5
_CALL_SECONDS = 60
# A server refuses a call that it expects to answer too late, after a moment without answers. The
# loop goes on after a pause, as clients do.
_REFUSED_SECONDS = 0.1
# By default all channels of a process to one address share a connection. This option gives each
# channel a connection of its own.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
_MICROSECONDS_MAX = 60_000_000


@dataclass(frozen=True)
class Load:
    """Results of a closed loop: CPU by role and latency by percentile, in microseconds a call."""

    calls: int
    per_second: float
    cpu: dict[str, float]
    latency: dict[float, float]


async def check(name: str, program: Program, request: bytes, ids: IntArray) -> int:
    """Return the size of the reply to a Query; raise `RuntimeError` unless it has `ids`."""
    async with aio.insecure_channel(program.address) as channel:
        call: Call = channel.unary_unary(QUERY)
        reply = await call(request, timeout=10)
    if list(query_pb2.QueryResponse.FromString(reply).ids) != ids.tolist():
        raise RuntimeError(f"{name}: the server's answer differs from that in process")
    return len(reply)


@asynccontextmanager
async def _calls(
    program: Program,
    channels: int,
    method: str,
    credentials: ChannelCredentials | None,
    metadata: Metadata,
) -> AsyncIterator[Iterator[Callable[..., Awaitable[Any]]]]:
    """Open `channels` connections and distribute calls over them in turn."""

    def connect() -> aio.Channel:
        if credentials is None:
            return aio.insecure_channel(program.address, options=OWN_CONNECTION)
        return aio.secure_channel(program.address, credentials, options=OWN_CONNECTION)

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect()) for _ in range(channels)]
        methods: list[Call] = [channel.unary_unary(method) for channel in connections]
        yield itertools.cycle([partial(call, metadata=metadata) for call in methods])


async def unary(
    program: Program,
    requests: Sequence[bytes],
    in_flight: int,
    seconds: float,
    *,
    channels: int = 1,
    method: str = QUERY,
    credentials: ChannelCredentials | None = None,
    metadata: Metadata = (),
) -> Load:
    """Call a method in a closed loop, after a warm-up that is not measured."""
    async with _calls(program, channels, method, credentials, metadata) as calls:
        source = itertools.cycle(requests)

        async def one(histogram: HdrHistogram, stop: float) -> None:
            call = next(calls)
            while time.perf_counter() < stop:
                begin = time.perf_counter()
                try:
                    await call(next(source), timeout=_CALL_SECONDS)
                except aio.AioRpcError as error:
                    if error.code() is not StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    await asyncio.sleep(_REFUSED_SECONDS)
                    continue
                histogram.record_value(round((time.perf_counter() - begin) * 1e6))

        async def loop(length: float) -> tuple[HdrHistogram, float]:
            histogram = HdrHistogram(1, _MICROSECONDS_MAX, 3)
            begin = time.perf_counter()
            await asyncio.gather(*(one(histogram, begin + length) for _ in range(in_flight)))
            return histogram, time.perf_counter() - begin

        await loop(_WARM_UP_SECONDS)
        before = program.cpu_seconds()
        histogram, duration = await loop(seconds)
        after = program.cpu_seconds()
    return _load(histogram.get_total_count(), duration, before, after, histogram)


async def stream(
    program: Program, requests: Sequence[bytes], in_flight: int, seconds: float, method: str
) -> Load:
    """Send requests on one stream, at most `in_flight` unanswered; measure no latency."""
    async with aio.insecure_channel(program.address) as channel:
        start: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
        call = start(timeout=60)
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
        after, calls, duration = (
            program.cpu_seconds(),
            answered_count - answered_before,
            time.perf_counter() - begin,
        )
        await call.done_writing()
        await receiving
    if answered_count != sent_count:
        raise RuntimeError(f"{sent_count} messages were sent, and {answered_count} answered")
    return _load(calls, duration, before, after, None)


def _load(
    calls: int,
    duration: float,
    before: dict[str, float],
    after: dict[str, float],
    histogram: HdrHistogram | None,
) -> Load:
    latency: dict[float, float] = {}
    if histogram is not None:
        latency = {p: float(histogram.get_value_at_percentile(p)) for p in _PERCENTILES}
    cpu = {role: (after[role] - before[role]) / calls * 1e6 for role in after}
    return Load(calls=calls, per_second=calls / duration, cpu=cpu, latency=latency)
