"""What a front takes on: no more than it may hold, and nothing that would be answered too late.

Theory of operation. A queue with a bound alone is worst when it matters most: past capacity every
call in it waits until its deadline has all but passed, workers answer callers who have left, and
hardly anything comes in time. So the time that the queue takes is measured, as seconds per answered
call, and a call is refused at once if waiting would take more than half of what its deadline
leaves. The other half is for what the measure did not know: packets that workers hold, and queries
that take longer than those before. Callers without a deadline wait, up to the bounds.

Small and large packets go to workers by credits of their own, and small ones go first: each kind is
measured by its own answers, and only while it is full, which is while workers are up and none has
room for that kind. Else a call goes out at once and is not refused, whatever else is under way: a
worker that is at a batch for a minute still answers small calls in between.
"""

import time
from collections.abc import Callable
from typing import Final, Literal

from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.config import Config
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Request

Kind = Literal["small", "large"]

# What goes to every worker, counts for no queue and is tried once.
TO_ALL: Final = (Op.PREPARE,)
_SHARE: Final = 0.5
_WINDOW_SECONDS: Final = 0.05


def kind_of(payload: bytes) -> Kind:
    """Return which room of a worker a call takes."""
    return "small" if len(payload) <= packets.SMALL_MAX else "large"


class _Line:
    """The calls of one kind that a front holds, waiting or with a worker, and how fast they go."""

    def __init__(self) -> None:
        self.held = 0
        # Seconds per call, 0 where nothing is known.
        self.pace = 0.0
        # Since when a window is measured, None while there is room, and when there was none last.
        self.since: float | None = None
        self._full_until = 0.0
        self._answered = 0

    def release(self, *, answered: bool) -> None:
        """Count a call out."""
        self.held -= 1
        self._answered += answered

    def measure(self, now: float, *, full: bool) -> None:
        """Learn from what was answered so far."""
        if not full:
            if self.since is not None:
                self.since, self._full_until = None, now
        elif self.since is None:
            if now - self._full_until > max(_WINDOW_SECONDS, self.pace):
                self.pace = 0.0
            self._begin(now)
        elif (passed := now - self.since) < _WINDOW_SECONDS:
            return
        elif self._answered:
            pace = passed / self._answered
            self.pace = (self.pace + pace) / 2 if self.pace else pace
            self._begin(now)
        elif passed > self.held * self.pace:
            # All of them should have been answered: what was learnt says nothing of these.
            self.pace = 0.0

    def _begin(self, now: float) -> None:
        self.since, self._answered = now, 0


class Admission:
    """Counts the calls that a front holds, and how fast they go; `clock` gives seconds."""

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
        if line.held * line.pace > _SHARE * (deadline - self._clock()):
            raise QueueFullError(
                "the server has too much to do to answer before the deadline; try again shortly"
            )

    def take(self, request: Request) -> None:
        """Count a call in."""
        self._lines[kind_of(request.payload)].held += 1
        self._calls += 1
        self._bytes += len(request.payload)

    def release(self, request: Request, *, answered: bool = False) -> None:
        """Count a call out; only those that a worker `answered` tell how long others will wait."""
        if request.op not in TO_ALL:
            self._lines[kind_of(request.payload)].release(answered=answered)
            self._calls -= 1
            self._bytes -= len(request.payload)

    def measure(self, kind: Kind, *, full: bool) -> None:
        """Learn from what was answered so far; `full` where workers are up and none has room."""
        self._lines[kind].measure(self._clock(), full=full)
