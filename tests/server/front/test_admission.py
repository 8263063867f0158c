"""Admission of calls to a front's queue, with a clock that only the test moves."""

import math
from typing import Any

import pytest

from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.config import Config
from divgrpc_server.front.admission import Admission, kind_of
from divgrpc_server.ipc import packets

# Sizes of calls in bytes.
SMALL, LARGE = 4, packets.SMALL_MAX + 1


class Line:
    """An admission, the number of calls that it holds, and the clock that the test moves."""

    def __init__(self, size: int = SMALL, **options: Any) -> None:  # noqa: ANN401  # as Config's
        self.now = 100.0
        self.admission = Admission(Config(**options), clock=lambda: self.now)
        self.size = size
        self.held = 0

    def ask(self, seconds: float = math.inf) -> None:
        """Add a call whose deadline is `seconds` from now."""
        self.admission.check(self.size, self.now + seconds)
        self.admission.take(self.size, is_stream=False)
        self.held += 1

    def release(self, *, is_answered: bool) -> None:
        """Remove a call."""
        self.admission.release(self.size, is_stream=False, is_answered=is_answered)
        self.held -= 1

    def full(self, *, full: bool = True) -> None:
        """Tell the admission whether every worker is busy with calls of this kind."""
        self.admission.measure(kind_of(self.size), full=full)

    def serve(self, calls: int, seconds: float) -> None:
        """Answer `calls` calls after `seconds` seconds in which every worker was busy."""
        self.now += seconds
        for _ in range(calls):
            self.release(is_answered=True)
        self.full()


def busy(size: int = SMALL) -> Line:
    """Return a line that holds ten calls, at a pace of 0.1 seconds per call."""
    line = Line(size)
    for _ in range(30):
        line.ask()
    line.full()
    line.serve(20, 2.0)
    return line


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_call_is_refused_if_its_wait_exceeds_half_of_its_time(size: int) -> None:
    """Ten calls of 0.1 seconds make a wait of one second, so a caller needs two seconds."""
    line = busy(size)
    with pytest.raises(QueueFullError, match="before the deadline"):
        line.ask(1.99)
    line.ask(2.01)
    with pytest.raises(QueueFullError):
        line.ask(2.01)
    line.ask(2.21)
    line.ask()


def test_a_passed_deadline_is_refused_only_under_load() -> None:
    """Without load a call past its deadline is admitted, and the worker reports the deadline."""
    line = busy()
    with pytest.raises(QueueFullError):
        line.ask(-1.0)
    Line().ask(-1.0)


def test_no_call_is_refused_while_a_worker_is_free() -> None:
    """When all workers are busy again a moment later, the known pace applies again."""
    line = busy()
    line.full(full=False)
    line.ask(0.01)
    line.now += 0.05
    line.full()
    with pytest.raises(QueueFullError):
        line.ask(0.01)


def test_the_pace_is_forgotten_after_a_worker_was_free_for_long() -> None:
    line = busy()
    line.full(full=False)
    line.now += 0.2
    line.full()
    line.ask(0.01)


def test_idle_time_is_not_measured() -> None:
    """A batch occupies the only worker, while single calls are answered now and then."""
    line = Line()
    line.admission.take(LARGE, is_stream=False)
    line.admission.measure("large", full=True)
    for _ in range(8):
        line.full(full=False)
        line.now += 1.5
        line.ask(2.0)
        line.now += 0.008
        line.release(is_answered=True)
        line.admission.measure("large", full=True)


def test_large_calls_do_not_count_in_the_wait_of_small_calls() -> None:
    line = busy()
    for _ in range(10):
        line.admission.take(LARGE, is_stream=False)
    line.ask(2.01)
    line.now += 1.0
    for _ in range(10):
        line.admission.release(LARGE, is_stream=False, is_answered=True)
    line.full()  # 11 small calls at 0.1 seconds each; the window had no small answer
    with pytest.raises(QueueFullError):
        line.ask(2.19)
    line.ask(2.21)


def test_the_pace_is_a_moving_average() -> None:
    """A window counts as much as all before it, and lasts until a call is answered in it."""
    line = busy()
    for _ in range(8):
        line.ask()
    line.serve(0, 1.0)
    line.serve(8, 7.0)  # one second per call; with the old pace of 0.1, 0.55
    with pytest.raises(QueueFullError):
        line.ask(10.99)
    line.ask(11.01)


def test_a_pace_is_forgotten_if_no_answers_confirm_it() -> None:
    """If no call was answered although the known pace says that all should be, it is forgotten."""
    line = busy()
    line.serve(0, 0.99)
    with pytest.raises(QueueFullError):
        line.ask(1.0)
    line.serve(0, 0.02)
    line.ask(1.0)
    line.serve(2, 0.99)  # two answers in two seconds; nine calls are left
    with pytest.raises(QueueFullError):
        line.ask(17.99)
    line.ask(18.01)


def test_unanswered_calls_do_not_change_the_pace() -> None:
    """A call that is cancelled, or lost with its worker, does not count as an answer."""
    line = busy()
    for _ in range(10):
        line.ask()
    for _ in range(9):
        line.release(is_answered=False)
    line.serve(1, 0.3)  # 0.3 s per call; with the old pace of 0.1, 0.2; ten are left
    with pytest.raises(QueueFullError):
        line.ask(3.99)
    line.ask(4.01)


def test_calls_and_bytes_are_bounded_before_a_pace_is_known() -> None:
    """The bounds also hold for callers without a deadline, and a call that ends frees its place."""
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
