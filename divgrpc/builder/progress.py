"""Reports the progress of builds."""

import time
from collections.abc import Callable
from typing import TypeAlias

from divgrpc.types import Progress

# Called with a stage, the number of rows that passed it, and their total number. A count of 0
# starts the stage.
Report: TypeAlias = Callable[[str, int, int], None]


class StageReport:
    """A `Report` that estimates the seconds left from the rate since the stage began."""

    def __init__(self, on_progress: Callable[[Progress], None] | None) -> None:
        self._on_progress = on_progress
        self._stage_start = time.monotonic()

    def __call__(self, stage: str, count: int, total: int) -> None:
        """Report that `count` of `total` rows passed a stage; a total of 0 is unknown."""
        if count == 0:
            self._stage_start = time.monotonic()
        if self._on_progress is None:
            return
        seconds_left = None
        if 0 < count <= total:
            seconds_left = (time.monotonic() - self._stage_start) * (total - count) / count
        self._on_progress(Progress(stage, count, total, seconds_left))
