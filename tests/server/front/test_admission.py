"""Whom a front takes on, by a clock that stands still unless it is moved."""

import math
from typing import Any

import pytest

from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.config import Config
from divgrpc_server.front.admission import Admission, kind_of
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Request

SMALL, LARGE = b"four", bytes(packets.SMALL_MAX + 1)


class Line:
    """Calls held by an admission, and a clock."""

    def __init__(self, payload: bytes = SMALL, **options: Any) -> None:  # noqa: ANN401  # as Config's
        self.now = 100.0
        self.admission = Admission(Config(**options), clock=lambda: self.now)
        self.payload = payload
        self.held: list[Request] = []

    def ask(self, seconds: float = math.inf, payload: bytes = b"") -> Request:
        """Add a call that its caller waits so many seconds for."""
        payload = payload or self.payload
        self.admission.check(payload, self.now + seconds)
        self.held.append(Request(len(self.held), self.now + seconds, Op.QUERY, "", payload))
        self.admission.take(self.held[-1])
        return self.held[-1]

    def full(self, *, full: bool = True) -> None:
        """Say that no worker has room for these calls, or that one has."""
        self.admission.measure(kind_of(self.payload), full=full)

    def serve(self, calls: int, seconds: float) -> None:
        """Answer calls, so many seconds later, while no worker has room."""
        self.now += seconds
        for _ in range(calls):
            self.admission.release(self.held.pop(), answered=True)
        self.full()


def busy(payload: bytes = SMALL) -> Line:
    """Return a line of ten that takes a tenth of a second per call."""
    line = Line(payload)
    for _ in range(30):
        line.ask()
    line.full()
    line.serve(20, 2.0)
    return line


@pytest.mark.parametrize("payload", [SMALL, LARGE])
def test_a_call_that_would_wait_for_long_is_refused(payload: bytes) -> None:
    """Ten calls of a tenth of a second are a second, which is half of what a caller must have."""
    line = busy(payload)
    with pytest.raises(QueueFullError, match="before the deadline"):
        line.ask(1.99)
    line.ask(2.01)
    with pytest.raises(QueueFullError):
        line.ask(2.01)
    line.ask(2.21)
    line.ask()


def test_a_passed_deadline_is_refused_under_load_alone() -> None:
    """Where nobody waits, who has no time left is told so by a worker."""
    line = busy()
    with pytest.raises(QueueFullError):
        line.ask(-1.0)
    Line().ask(-1.0)


def test_nobody_is_refused_while_a_worker_has_room() -> None:
    """A call that goes out at once is taken on; a moment later it may be full again, as before."""
    line = busy()
    line.full(full=False)
    line.ask(0.01)
    line.now += 0.05
    line.full()
    with pytest.raises(QueueFullError):
        line.ask(0.01)


def test_what_was_learnt_is_forgotten_where_there_was_room_for_long() -> None:
    """The next crowd may ask for something else."""
    line = busy()
    line.full(full=False)
    line.now += 0.2
    line.full()
    line.ask(0.01)


def test_time_in_which_nobody_asks_is_not_measured() -> None:
    """A batch holds the only worker for long; single calls pass it, seconds apart."""
    line = Line()
    line.ask(payload=LARGE)
    line.admission.measure("large", full=True)
    for _ in range(8):
        line.full(full=False)
        line.now += 1.5
        call = line.ask(2.0)
        line.now += 0.008
        line.held.remove(call)
        line.admission.release(call, answered=True)
        line.admission.measure("large", full=True)


def test_batches_are_not_ahead() -> None:
    """Batches do not keep a small call from its turn."""
    line = busy()
    others = [line.ask(payload=LARGE) for _ in range(10)]
    line.ask(2.01)
    line.now += 1.0
    for call in others:
        line.admission.release(call, answered=True)
    line.held = [call for call in line.held if call not in others]
    line.full()  # 11 small calls in a window without one small answer: still a tenth each
    with pytest.raises(QueueFullError):
        line.ask(2.19)
    line.ask(2.21)


def test_the_pace_follows_the_calls() -> None:
    """Each window counts as much as all before it, and is as long as an answer takes to come."""
    line = busy()
    for _ in range(8):
        line.ask()
    line.serve(0, 1.0)
    line.serve(8, 7.0)  # a second each: .55 with what was before
    with pytest.raises(QueueFullError):
        line.ask(10.99)
    line.ask(11.01)


def test_a_pace_that_nothing_bears_out_is_forgotten() -> None:
    """Where all should have been answered and none was, nobody is refused for what was before."""
    line = busy()
    line.serve(0, 0.99)
    with pytest.raises(QueueFullError):
        line.ask(1.0)
    line.serve(0, 0.02)
    line.ask(1.0)
    line.serve(2, 0.99)  # two in two seconds, and nine are left
    with pytest.raises(QueueFullError):
        line.ask(17.99)
    line.ask(18.01)


def test_callers_who_leave_say_nothing_of_the_pace() -> None:
    """A call that was given up, or that a dead worker left, took no worker's time."""
    line = busy()
    for _ in range(10):
        line.ask()
    for _ in range(9):
        line.admission.release(line.held.pop())
    line.serve(1, 0.3)  # .3 a call: .2 with what was before; ten are left
    with pytest.raises(QueueFullError):
        line.ask(3.99)
    line.ask(4.01)


def test_bounds_hold_without_a_pace() -> None:
    """Calls and bytes are bounded for whoever waits, and what leaves makes room."""
    line = Line(queue_calls=2)
    line.ask()
    line.ask()
    with pytest.raises(QueueFullError, match="queue of the server is full"):
        line.ask()
    line.serve(1, 0.0)
    line.ask()
    narrow = Line(queue_bytes=7)
    narrow.ask()
    with pytest.raises(QueueFullError, match="queue of the server is full"):
        narrow.ask()
