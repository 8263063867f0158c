"""Admission of calls: no more than a front may hold, and none that would be answered too late.

Theory of operation. A bound on the queue is not enough. Past capacity every call in the queue would
wait until its deadline has almost passed, workers would answer callers who have left, and few
answers would be in time. So the front measures the pace of the queue, in seconds per answered call,
and refuses a call at once if it would wait for more than half of the time to its deadline. The
other half is for what the pace does not cover: packets that workers hold, and queries that take
longer than those before. Callers without a deadline wait, up to the bounds.

Small and large packets have credits of their own. So each kind has a pace of its own, measured only
while the kind is full: workers are up, and none has room for it. Otherwise a call goes out at once
and is not refused: a worker that answers a batch for a minute answers small calls in between.
"""

import time
from collections.abc import Callable
from typing import Final, Literal

from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.config import Config
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Request

Kind = Literal["small", "large"]

# Operations for every worker: they count for no queue and are tried once.
TO_ALL: Final = (Op.PREPARE,)
# The most that a call may wait, as a share of the time to its deadline.
_WAIT_SHARE_MAX: Final = 0.5
_WINDOW_SECONDS: Final = 0.05


def kind_of(payload: bytes) -> Kind:
    """Return the kind of credit that a call costs."""
    return "small" if len(payload) <= packets.SMALL_MAX else "large"


class _Line:
    """The calls of one kind that a front holds, queued or with a worker, and their pace."""

    def __init__(self) -> None:
        self.held = 0
        # Seconds per call, 0 if unknown.
        self.pace = 0.0
        # Start of the window that is measured, None while there is room; and the end of the last.
        self.since: float | None = None
        self._full_until = 0.0
        self._answers = 0

    def release(self, *, answered: bool) -> None:
        """Count a call out."""
        self.held -= 1
        self._answers += answered

    def measure(self, now: float, *, full: bool) -> None:
        """Update the pace from the answers so far."""
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
            # By the pace all held calls would be answered, so it does not apply to these.
            self.pace = 0.0

    def _begin(self, now: float) -> None:
        self.since, self._answers = now, 0


class Admission:
    """Counts the calls that a front holds and measures their pace; `clock` returns seconds."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls_max = config.queue_calls
        self._bytes_max = config.queue_bytes
        self._lines: dict[Kind, _Line] = {"small": _Line(), "large": _Line()}
        self._calls = 0
        self._bytes = 0

    def check(self, payload: bytes, deadline: float) -> None:
        """Raise `QueueFullError` if the call must be refused."""
        if self._calls >= self._calls_max or self._bytes + len(payload) > self._bytes_max:
            raise QueueFullError("the queue of the server is full; try again shortly")
        line = self._lines[kind_of(payload)]
        if line.since is None or not line.pace:
            return
        if line.held * line.pace > _WAIT_SHARE_MAX * (deadline - self._clock()):
            raise QueueFullError(
                "the server has too much to do to answer before the deadline; try again shortly"
            )

    def take(self, request: Request) -> None:
        """Count a call in."""
        self._lines[kind_of(request.payload)].held += 1
        self._calls += 1
        self._bytes += len(request.payload)

    def release(self, request: Request, *, answered: bool = False) -> None:
        """Count a call out; only those that a worker `answered` count for the pace."""
        if request.op not in TO_ALL:
            self._lines[kind_of(request.payload)].release(answered=answered)
            self._calls -= 1
            self._bytes -= len(request.payload)

    def measure(self, kind: Kind, *, full: bool) -> None:
        """Update the pace of a kind; it is `full` if workers are up and none has room."""
        self._lines[kind].measure(self._clock(), full=full)
