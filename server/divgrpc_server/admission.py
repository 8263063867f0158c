"""What a front takes on: no more than it may hold, and nothing that would be answered too late.

Theory of operation. A queue with a bound alone is worst when it matters most: past capacity every
call in it waits until its deadline has all but passed, workers answer callers who have left, and
hardly anything comes in time. So the time that the queue takes is measured, as seconds per call
while no worker is idle, and a call is refused at once if waiting would take more than half of what
its deadline leaves. The other half is for what the measure did not know: packets that workers hold,
and queries that take longer than those before. Callers without a deadline wait, up to the bounds.
"""

import time
from collections.abc import Callable
from typing import Final

from divgrpc_server.config import Config
from divgrpc_server.frames import Op, Request
from divgrpc_server.statuses import QueueFullError

# What goes to every worker, counts for no queue and is tried once.
TO_ALL: Final = (Op.PREPARE, Op.PLAN)
_SHARE: Final = 0.5
_WINDOW_SECONDS: Final = 0.05


class Admission:
    """Counts the calls that a front holds, and how fast they go; `clock` gives seconds."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls_max = config.queue_calls
        self._bytes_max = config.queue_bytes
        self._calls = 0
        self._bytes = 0
        # Seconds per call, 0 while a worker was idle a moment ago or nothing is known.
        self._pace = 0.0
        self._since: float | None = None
        self._released = 0

    def check(self, op: Op, payload: bytes, deadline: float) -> None:
        """Raise `QueueFullError` for a call that is not to be taken on.

        Not for a piece of an evaluation, of which whoever deals them has few under way.
        """
        if op == Op.PIECE:
            return
        if self._calls >= self._calls_max or self._bytes + len(payload) > self._bytes_max:
            raise QueueFullError("the server holds as many queries as it may; try again shortly")
        if self._pace and self._calls * self._pace > _SHARE * (deadline - self._clock()):
            raise QueueFullError(
                "the server has too much to do to answer before the deadline; try again shortly"
            )

    def take(self, request: Request) -> None:
        """Count a call in."""
        self._calls += 1
        self._bytes += len(request.payload)

    def release(self, request: Request) -> None:
        """Count a call out, however it ended."""
        if request.op not in TO_ALL:
            self._calls -= 1
            self._bytes -= len(request.payload)
            self._released += 1

    def measure(self, *, idle: bool) -> None:
        """Learn from what was released so far; `idle` where a worker has nothing to do."""
        now = self._clock()
        if idle:
            self._pace, self._since = 0.0, None
        elif self._since is None:
            self._since, self._released = now, 0
        elif now - self._since >= _WINDOW_SECONDS and self._released:
            pace = (now - self._since) / self._released
            self._pace = (self._pace + pace) / 2 if self._pace else pace
            self._since, self._released = now, 0
