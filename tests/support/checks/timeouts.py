"""A time limit for tests, so that code that hangs fails its test and not the suite."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

# Time limit in seconds of a test, of its fixtures and of its teardown. It exceeds START_SECONDS,
# the limit of a first server start, which compiles every kernel. An emulated processor is slower.
PHASE_SECONDS = float(os.environ.get("DIVGRPC_PHASE_SECONDS", "180"))
# Seconds after which the alarm rings again. Hypothesis catches the first failure and runs the
# example again, which would otherwise hang.
_AGAIN_SECONDS = 15.0


@contextmanager
def alarm(seconds: float = PHASE_SECONDS) -> Iterator[None]:
    """Fail the test if the block runs for more than `seconds` seconds, even while it waits.

    Compiled code that never returns does not receive the signal. In that case pytest's
    `faulthandler_timeout` ends the whole run.
    """

    def ring(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(f"still waiting after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, ring)
    outer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, previous)
