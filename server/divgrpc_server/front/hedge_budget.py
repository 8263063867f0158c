"""Limits how many calls to slow servers are repeated elsewhere."""

import time
from typing import Final

# One call in ten may be hedged, at first as many as the maximum, and one more each second.
_SHARE: Final = 0.1
_MOST: Final = 20.0
_REFILLS_PER_SECOND: Final = 1.0


class HedgeBudget:
    """The number of calls that may still ask another replica because the first one is slow.

    left: this number, which is less than 1 if no call may. refill_time: when it was last raised.
    """

    def __init__(self) -> None:
        self.left = _MOST
        self.refill_time = time.monotonic()

    def refill(self) -> None:
        """Raise the number for the time that has passed."""
        now = time.monotonic()
        seconds, self.refill_time = now - self.refill_time, now
        self.left = min(_MOST, self.left + seconds * _REFILLS_PER_SECOND)

    def take(self) -> None:
        """Note a call that asks another replica."""
        self.left = max(0.0, self.left - 1)

    def add_reply(self) -> None:
        """Note a call that was answered."""
        self.left = min(_MOST, self.left + _SHARE)
