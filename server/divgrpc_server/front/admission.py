"""Admission control: refuses calls above the front's limits, and calls that would end too late.

Theory of operation. A limit on the length of the queue is not enough. Above capacity, every call
would wait in the queue until shortly before its deadline. Workers would then answer callers that
have left, and few answers would arrive in time. So the front measures the pace of the queue, in
seconds per answered call. It refuses a call immediately if the expected wait exceeds half of the
time to the call's deadline. The other half of the time is a reserve, because later queries may take
longer than earlier ones. Calls without a deadline are admitted up to the limits.

Small and large packets have separate credits, so the pace of each kind is measured separately. It
is measured only while the kind is full, which means that workers are running and none can accept a
packet of this kind. While the kind is not full, calls are sent without waiting, so no call is
refused because of its deadline. For example, a worker that answers a batch for a minute still
answers small calls in between.

Queries of streams are never refused. A stream waits with its next query until the front has room,
and flow control slows down its caller. Streams hold at most half of the queue's calls and half of
its bytes, so that they leave room for unary calls. Streams that wait are served in the order of
their arrival, so a large query waits until it fits and is not overtaken by smaller ones.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.config import Config
from divgrpc_server.ipc import packets

Kind = Literal["small", "large"]

# A call is refused if its expected wait exceeds this share of the time to its deadline.
_WAIT_SHARE_MAX: Final = 0.5
_WINDOW_SECONDS: Final = 0.05
# The queries of all streams hold at most this share of the front's calls, and of its bytes.
_STREAM_SHARE_MAX: Final = 0.5


def kind_of(size: int) -> Kind:
    """Return the kind of credit that a call of `size` bytes needs."""
    return "small" if size <= packets.SMALL_MAX else "large"


class _Line:
    """The calls of one kind that a front holds, queued or sent to a worker, and their pace."""

    def __init__(self) -> None:
        self.held = 0
        # Seconds per call, 0 if unknown.
        self.pace = 0.0
        # `since` is the start of the current measurement window, or None while the kind is not
        # full. `_full_until` is the time at which the kind was last full.
        self.since: float | None = None
        self._full_until = 0.0
        self._answers = 0

    def release(self, *, is_answered: bool) -> None:
        """Remove a call from the count."""
        self.held -= 1
        self._answers += is_answered

    def measure(self, now: float, *, full: bool) -> None:
        """Update the pace from the number of answers since the window began."""
        if not full:
            if self.since is not None:
                self.since, self._full_until = None, now
        elif self.since is None:
            if now - self._full_until > max(_WINDOW_SECONDS, self.pace):
                self.pace = 0.0
            self._begin(now)
        elif (seconds := now - self.since) < _WINDOW_SECONDS:
            return
        elif self._answers:
            pace = seconds / self._answers
            self.pace = (self.pace + pace) / 2 if self.pace else pace
            self._begin(now)
        elif seconds > self.held * self.pace:
            # At the measured pace all held calls would have been answered by now, so the pace is
            # out of date.
            self.pace = 0.0

    def _begin(self, now: float) -> None:
        self.since, self._answers = now, 0


class Admission:
    """Counts the calls that a front holds, and measures their pace.

    Calls are described by the sizes of their requests in bytes. `clock` returns seconds.
    """

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls_max = config.queue_calls
        self._bytes_max = config.queue_bytes
        self._lines: dict[Kind, _Line] = {"small": _Line(), "large": _Line()}
        self._calls = 0
        self._bytes = 0
        self._stream_calls_max = int(_STREAM_SHARE_MAX * config.queue_calls)
        self._stream_bytes_max = int(_STREAM_SHARE_MAX * config.queue_bytes)
        self._stream_calls = 0
        self._stream_bytes = 0
        # Streams that wait for room, the longest wait first. Only the first one is woken.
        self._waiting: deque[asyncio.Event] = deque()

    def check(self, size: int, deadline: float) -> None:
        """Raise `QueueFullError` if a unary call must be refused."""
        if self._calls >= self._calls_max or self._bytes + size > self._bytes_max:
            raise QueueFullError("the queue of the server is full; try again shortly")
        line = self._lines[kind_of(size)]
        if line.since is None or not line.pace:
            return
        if line.held * line.pace > _WAIT_SHARE_MAX * (deadline - self._clock()):
            raise QueueFullError(
                "the server has too much to do to answer before the deadline; try again shortly"
            )

    async def wait_for_room(self, size: int) -> None:
        """Wait until a stream may submit a query; it must submit the query before its next await.

        A stream does not wait if no stream holds a query and none waits.
        """
        if not self._waiting and self._has_room(size):
            return
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            while turn is not self._waiting[0] or not self._has_room(size):
                turn.clear()
                await turn.wait()
        finally:
            self._waiting.remove(turn)
            # There may be room for the next stream too.
            self._wake_stream()

    def _has_room(self, size: int) -> bool:
        return not self._stream_calls or (
            self._stream_calls < self._stream_calls_max
            and self._stream_bytes + size <= self._stream_bytes_max
            and self._calls < self._calls_max
            and self._bytes + size <= self._bytes_max
        )

    def _wake_stream(self) -> None:
        """Let the stream that has waited longest try again."""
        if self._waiting:
            self._waiting[0].set()

    def take(self, size: int, *, is_stream: bool) -> None:
        """Add a call to the count."""
        self._lines[kind_of(size)].held += 1
        self._calls += 1
        self._bytes += size
        if is_stream:
            self._stream_calls += 1
            self._stream_bytes += size

    def release(self, size: int, *, is_stream: bool, is_answered: bool = False) -> None:
        """Remove a call from the count; `is_answered` says whether it counts towards the pace."""
        self._lines[kind_of(size)].release(is_answered=is_answered)
        self._calls -= 1
        self._bytes -= size
        if is_stream:
            self._stream_calls -= 1
            self._stream_bytes -= size
        self._wake_stream()

    def measure(self, kind: Kind, *, full: bool) -> None:
        """Update the pace of a kind.

        `full` is true if workers are running and none can accept another packet of this kind.
        """
        self._lines[kind].measure(self._clock(), full=full)
