"""An open loop that costs far less than gRPC's caller does: HTTP/2 frames, made by hand.

A caller in Python takes as much of a core for a call as a front does, so on two cores it is at its
end before a server on one of them is at twice its capacity. Here requests are packed before the
clock starts, a call is one write, and of the answers only the frames' heads and the status are
read. It asks for headers without compression, which is what allows that. Both windows and
MAX_CONCURRENT_STREAMS are waited for, pings are answered, and a call whose deadline passes is
cancelled.
"""

import asyncio
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc
from hdrh.histogram import HdrHistogram

from benchmarks.harness.load import QUERY, percentiles
from benchmarks.harness.programs import Program

_HEAD: Final = struct.Struct(">HBBBI")
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_TABLE_SIZE, _STREAMS_MAX, _STREAM_WINDOW, _TRUE_BINARY = 1, 3, 4, 0xFE03
_WINDOW_BYTES: Final = 65_535  # of a connection, until more is granted
_FRAME_BYTES: Final = 16_384
_WIDE: Final = 2**30
_CANCEL: Final = 8
# What gRPC makes of a stream's reset.
_OF_RESET: Final = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED"}
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
_TICK_SECONDS: Final = 0.001
_MICROSECONDS_MAX: Final = 60_000_000


# Refused, and told when to come again.
REFUSED_UNTIL: Final = "RESOURCE_EXHAUSTED, RetryInfo"
# Answered after the last call was sent: with it a full queue would count for goodput.
_AFTERWARDS: Final = "OK, afterwards"
# With calls sent so late or later, the figures are void.
_LATE_MICROSECONDS: Final = 50_000


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
        """Calls answered a second, while calls were sent."""
        return self.codes["OK"] / self.seconds


class _Tally:
    """What became of the calls that are due between `begun` and `end`."""

    def __init__(self, begun: float, end: float) -> None:
        self.begun, self.end = begun, end
        self.codes: Counter[str] = Counter()
        self.answered, self.late = (HdrHistogram(1, _MICROSECONDS_MAX, 3) for _ in range(2))

    def note(self, code: str, due: float) -> None:
        now = time.perf_counter()
        if code == "OK":
            self.answered.record_value(max(1, round((now - due) * 1e6)))
            code = "OK" if now < self.end else _AFTERWARDS
        self.codes[code] += 1


class _Connection(asyncio.Protocol):
    """One connection; calls wait here for streams and window, first come, first served."""

    def __init__(self, tally: _Tally, timeout: float) -> None:
        self._tally, self._timeout = tally, timeout
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._waiting: deque[tuple[float, float, bytes, bytes]] = deque()
        self._open: dict[int, float] = {}
        self._deadlines: deque[tuple[float, int]] = deque()
        self._next, self._room, self._streams_max = 1, _WINDOW_BYTES, 2**31

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say that headers are to come as they are, and that answers need not wait for us."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        settings = ((_TABLE_SIZE, 0), (_STREAM_WINDOW, _WIDE), (_TRUE_BINARY, 1))
        wishes = b"".join(struct.pack(">HI", *each) for each in settings)
        wide = struct.pack(">I", _WIDE)
        transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, wishes) + _frame(_WINDOW, 0, 0, wide))

    @property
    def busy(self) -> bool:
        """Whether calls wait or are under way."""
        return bool(self._waiting or self._open)

    def call(self, due: float, head: bytes, body: bytes) -> None:
        """Begin a call, with its headers and its message."""
        now = time.perf_counter()
        self._tally.late.record_value(max(1, round((now - due) * 1e6)))
        self._waiting.append((now + self._timeout, due, head, body))

    def turn(self) -> None:
        """Send what may be sent, and end what is over."""
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
        """Read whole frames."""
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


async def run(
    program: Program,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    *,
    timeout: float,
    channels: int = 4,
) -> Offered:
    """Call Query so many times a second for some seconds, each with a deadline of its own.

    Raises ValueError where a request does not fit one frame.
    """
    bodies = [b"\0" + struct.pack(">I", len(request)) + request for request in requests]
    if max(map(len, bodies)) > _FRAME_BYTES:
        raise ValueError(f"a request may have {_FRAME_BYTES - 5} bytes at most")
    loop, (host, port) = asyncio.get_running_loop(), program.address.rsplit(":", 1)
    begun = time.perf_counter() + 0.1
    tally = _Tally(begun, begun + seconds)
    head = _head(program.address, timeout)
    opened = [
        await loop.create_connection(partial(_Connection, tally, timeout), host, int(port))
        for _ in range(channels)
    ]
    connections = [connection for _, connection in opened]
    number, count = 0, round(rate * seconds)
    while number < count or any(connection.busy for connection in connections):
        while number < count and begun + number / rate <= time.perf_counter():
            due = begun + number / rate
            connections[number % channels].call(due, head, bodies[number % len(bodies)])
            number += 1
        for connection in connections:
            connection.turn()
        await asyncio.sleep(_TICK_SECONDS)
    for transport, _ in opened:
        transport.close()
    late = float(tally.late.get_value_at_percentile(99))
    return Offered(rate, seconds, tally.codes, percentiles(tally.answered), late)


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 255, kind, flags, number) + payload


def _head(address: str, timeout: float) -> bytes:
    """Return the headers of a Query: POST and http by their numbers, the rest in letters."""
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
    """Return the name of the status; of one refused with RetryInfo, that of both."""
    found = trailers.find(b"grpc-status")
    if found < 0:
        raise ValueError(f"trailers without a status that can be read: {trailers!r}")
    size = trailers[found + 11]
    name = _NAMES[int(trailers[found + 12 : found + 12 + size])]
    return REFUSED_UNTIL if name == "RESOURCE_EXHAUSTED" and b"RetryInfo" in trailers else name
