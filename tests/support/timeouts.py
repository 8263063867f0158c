"""An end to waiting: code that hangs fails its test instead of holding up the suite."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

# A first start compiles every kernel, and has its own, shorter limit.
PHASE_SECONDS = 180.0
# Rung again where the first was caught, as by a property test that tries the same example anew.
_AGAIN_SECONDS = 15.0


@contextmanager
def alarm(seconds: float = PHASE_SECONDS) -> Iterator[None]:
    """Fail the test, wherever its thread is waiting, once it has run for so long.

    What never comes back from compiled code hears no signal: pytest's `faulthandler_timeout` ends
    the whole run for that.
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
