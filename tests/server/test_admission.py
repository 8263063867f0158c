"""Whom a front takes on, by a clock that stands still unless it is moved."""

import math
from typing import Any

import pytest

from divgrpc_server.admission import Admission
from divgrpc_server.config import Config
from divgrpc_server.frames import Op, Request
from divgrpc_server.statuses import QueueFullError


class Line:
    """Calls held by an admission, and a clock."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # as Config's
        self.now = 100.0
        self.admission = Admission(Config(**options), clock=lambda: self.now)
        self.held: list[Request] = []

    def ask(self, seconds: float = math.inf, op: Op = Op.QUERY) -> None:
        """Add a call that its caller waits so many seconds for."""
        self.admission.check(op, b"four", self.now + seconds)
        self.held.append(Request(len(self.held), self.now + seconds, op, "", b"four"))
        self.admission.take(self.held[-1])

    def serve(self, calls: int, seconds: float, *, idle: bool = False) -> None:
        """Answer calls, so many seconds later."""
        self.now += seconds
        for _ in range(calls):
            self.admission.release(self.held.pop())
        self.admission.measure(idle=idle)


def busy() -> Line:
    """Return a line of ten that takes a tenth of a second per call."""
    line = Line()
    for _ in range(30):
        line.ask()
    line.serve(0, 1.0)
    line.serve(20, 2.0)
    return line


def test_a_call_that_would_wait_for_long_is_refused() -> None:
    """Ten calls of a tenth of a second are a second, which is half of what a caller must have."""
    line = busy()
    with pytest.raises(QueueFullError, match="before the deadline"):
        line.ask(1.99)
    line.ask(2.01)
    with pytest.raises(QueueFullError):
        line.ask(2.01)
    line.ask(2.21)
    line.ask()
    line.ask(0.0, Op.PIECE)


def test_a_passed_deadline_is_refused_under_load_alone() -> None:
    """Where nobody waits, who has no time left is told so by a worker."""
    line = busy()
    with pytest.raises(QueueFullError):
        line.ask(-1.0)
    Line().ask(-1.0)


def test_an_idle_worker_ends_the_refusals() -> None:
    """What was learnt of other calls holds no longer than workers are busy."""
    line = busy()
    line.serve(1, 0.1, idle=True)
    line.ask(0.01)
    line.serve(1, 0.01)
    line.ask(0.01)


def test_the_pace_follows_the_calls() -> None:
    """Each window counts as much as all before it; one without an answer tells nothing."""
    line = busy()
    for _ in range(8):
        line.ask()
    line.serve(0, 5.0)
    line.serve(8, 3.0)  # a second each: .55 with what was before
    with pytest.raises(QueueFullError):
        line.ask(10.99)
    line.ask(11.01)


def test_bounds_hold_without_a_pace() -> None:
    """Calls and bytes are bounded for whoever waits, and what leaves makes room."""
    line = Line(queue_calls=2)
    line.ask()
    line.ask()
    with pytest.raises(QueueFullError, match="holds as many"):
        line.ask()
    line.serve(1, 0.0)
    line.ask()
    narrow = Line(queue_bytes=7)
    narrow.ask()
    with pytest.raises(QueueFullError, match="holds as many"):
        narrow.ask()
