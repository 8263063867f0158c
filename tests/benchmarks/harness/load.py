"""Load generators: closed loops over gRPC, and an open loop that writes HTTP/2 frames itself.

All requests are serialised before the measurement starts, to keep the cost of the caller low.

A closed loop sends a call only after an earlier call was answered. It slows down together with the
server, which is fine for measuring the cost per call. (`divgrpc load` is not used, because it calls
GetServerInfo first, which neither the echo nor the hand-written service implements.)

An open loop sends calls at a fixed rate. With gRPC's caller, a call costs the caller about as much
CPU as it costs a front process. On two cores such a caller could not overload a server. The open
loop therefore writes a call as HTTP/2 frames in a single write, and reads only the frame headers
and the status of responses. It asks for headers without compression. It observes both flow-control
windows and MAX_CONCURRENT_STREAMS, answers pings, and cancels calls whose deadline has passed.
"""

import asyncio
import itertools
import struct
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import grpc
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


_HEAD: Final = struct.Struct(">HBBBI")
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_TABLE_SIZE, _STREAMS_MAX, _STREAM_WINDOW, _TRUE_BINARY = 1, 3, 4, 0xFE03
_WINDOW_BYTES: Final = 65_535  # of a connection, until more is granted
_FRAME_BYTES: Final = 16_384
_WIDE: Final = 2**30
_CANCEL: Final = 8
# The statuses that gRPC assigns to error codes of HTTP/2 stream resets.
_OF_RESET: Final = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED"}
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
_TICK_SECONDS: Final = 0.001


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


class _Tally:
    """Counts the outcomes of the calls that are due between `begin` and `end`."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self.codes: Counter[str] = Counter()
        self.answered, self.late = (HdrHistogram(1, _MICROSECONDS_MAX, 3) for _ in range(2))

    def note(self, code: str, due: float) -> None:
        now = time.perf_counter()
        if code == "OK":
            self.answered.record_value(max(1, round((now - due) * 1e6)))
            code = "OK" if now < self.end else _AFTERWARDS
        self.codes[code] += 1


class _Connection(asyncio.Protocol):
    """An HTTP/2 connection of the open loop.

    Calls wait in a queue until the limit of streams and the flow-control window let them be sent.
    """

    def __init__(self, tally: _Tally, timeout: float) -> None:
        self._tally, self._timeout = tally, timeout
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._waiting: deque[tuple[float, float, bytes, bytes]] = deque()
        self._open: dict[int, float] = {}
        self._deadlines: deque[tuple[float, int]] = deque()
        self._next, self._room, self._streams_max = 1, _WINDOW_BYTES, 2**31

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings of the connection.

        The settings ask for uncompressed headers, and set wide windows so that the server need not
        wait before it sends responses.
        """
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        settings = ((_TABLE_SIZE, 0), (_STREAM_WINDOW, _WIDE), (_TRUE_BINARY, 1))
        wishes = b"".join(struct.pack(">HI", *setting) for setting in settings)
        wide = struct.pack(">I", _WIDE)
        transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, wishes) + _frame(_WINDOW, 0, 0, wide))

    @property
    def busy(self) -> bool:
        """Whether calls are queued or in flight."""
        return bool(self._waiting or self._open)

    def call(self, due: float, head: bytes, body: bytes) -> None:
        """Queue a call with its headers and its message."""
        now = time.perf_counter()
        self._tally.late.record_value(max(1, round((now - due) * 1e6)))
        self._waiting.append((now + self._timeout, due, head, body))

    def turn(self) -> None:
        """Send queued calls as far as limits permit, and end calls whose deadline has passed."""
        now, out = time.perf_counter(), []
        while self._waiting and (self._waiting[0][0] <= now or self._may_send()):
            deadline, due, head, body = self._waiting.popleft()
            if deadline <= now:
                self._tally.note("DEADLINE_EXCEEDED", due)
                continue
            number = self._next
            self._next += 2
            self._open[number] = due
            self._deadlines.append((deadline, number))
            self._room -= len(body)
            out.append(_frame(_HEADERS, _END_HEADERS, number, head))
            out.append(_frame(_DATA, _END_STREAM, number, body))
        while self._deadlines and self._deadlines[0][0] <= now:
            number = self._deadlines.popleft()[1]
            if number in self._open:
                self._tally.note("DEADLINE_EXCEEDED", self._open.pop(number))
                out.append(_frame(_RESET, 0, number, struct.pack(">I", _CANCEL)))
        if out:
            self._write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        """Read the complete frames in the data, and keep an incomplete last frame for later."""
        data, at = self._rest + data, 0
        while (start := at + _HEAD.size) <= len(data):
            high, low, kind, flags, number = _HEAD.unpack_from(data, at)
            end = start + (high << 8) + low
            if end > len(data):
                break
            self._take(kind, flags, number, data[start:end])
            at = end
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _HEADERS and flags & _END_STREAM:
            self._end(number, _status(payload))
        elif kind == _RESET:
            self._end(number, _OF_RESET.get(int.from_bytes(payload), "INTERNAL"))
        elif kind == _WINDOW and number == 0:
            self._room += int.from_bytes(payload)
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                self._streams_max = value if name == _STREAMS_MAX else self._streams_max
            self._write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))
        elif kind == _AWAY:
            raise ConnectionError(f"the server hung up: {payload!r}")

    def _end(self, number: int, code: str) -> None:
        due = self._open.pop(number, None)
        if due is not None:
            self._tally.note(code, due)

    def _may_send(self) -> bool:
        return self._room >= len(self._waiting[0][3]) and len(self._open) < self._streams_max

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


async def open_loop(
    program: Program,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    *,
    timeout: float,
    channels: int = 4,
) -> Offered:
    """Call Query `rate` times a second for some seconds; `timeout` is the deadline of each call.

    Raises `ValueError` if a request does not fit into one frame.
    """
    bodies = [b"\0" + struct.pack(">I", len(request)) + request for request in requests]
    if max(map(len, bodies)) > _FRAME_BYTES:
        raise ValueError(f"a request may have {_FRAME_BYTES - 5} bytes at most")
    loop, (host, port) = asyncio.get_running_loop(), program.address.rsplit(":", 1)
    begin = time.perf_counter() + 0.1
    tally = _Tally(begin, begin + seconds)
    head = _head(program.address, timeout)
    transports = [
        await loop.create_connection(partial(_Connection, tally, timeout), host, int(port))
        for _ in range(channels)
    ]
    connections = [connection for _, connection in transports]
    number, count = 0, round(rate * seconds)
    while number < count or any(connection.busy for connection in connections):
        while number < count and begin + number / rate <= time.perf_counter():
            due = begin + number / rate
            connections[number % channels].call(due, head, bodies[number % len(bodies)])
            number += 1
        for connection in connections:
            connection.turn()
        await asyncio.sleep(_TICK_SECONDS)
    for transport, _ in transports:
        transport.close()
    late = float(tally.late.get_value_at_percentile(99))
    return Offered(rate, seconds, tally.codes, percentiles(tally.answered), late)


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 255, kind, flags, number) + payload


def _head(address: str, timeout: float) -> bytes:
    """Return the encoded headers of a Query.

    The method and the scheme are entries of HPACK's static table; all other values are literals.
    """
    fields = (
        (b"\x04", QUERY),
        (b"\x01", address),
        (b"\x0f\x10", "application/grpc"),
        (b"\x00\x02te", "trailers"),
        (b"\x00\x0cgrpc-timeout", f"{round(timeout * 1e3)}m"),
    )
    return b"\x83\x86" + b"".join(
        name + bytes([len(value)]) + value.encode() for name, value in fields
    )


def _status(trailers: bytes) -> str:
    """Return the name of a call's status, or `REFUSED_UNTIL` for a refusal with RetryInfo."""
    place = trailers.find(b"grpc-status")
    if place < 0:
        raise ValueError(f"trailers without a status that can be read: {trailers!r}")
    size = trailers[place + 11]
    name = _NAMES[int(trailers[place + 12 : place + 12 + size])]
    return REFUSED_UNTIL if name == "RESOURCE_EXHAUSTED" and b"RetryInfo" in trailers else name
