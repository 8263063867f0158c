"""Counts the stages of builds and of renewals, as progress is reported."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from divgrpc.types import Progress
from divgrpc_server.monitoring.page import Page

Report = Callable[[Progress], None]

# Several threads of the writer renew indexes.
_LOCK = threading.Lock()


class _Stages:
    """The stages of one build."""

    def __init__(self, page: Page, report: Report) -> None:
        self._page, self._report = page, report
        self._stage = ""
        self._start_time = 0.0

    def report(self, progress: Progress) -> None:
        """Count a new stage, and pass the progress on."""
        if progress.stage != self._stage:
            self.enter(progress.stage)
        self._report(progress)

    def enter(self, stage: str) -> None:
        """End the current stage and begin another; "" is none."""
        page, now = self._page, time.monotonic()
        with _LOCK:
            if self._stage:
                page.add(page.cell("divgrpc_builds_in_stage", self._stage), -1)
                cell = page.cell("divgrpc_build_stage_seconds", self._stage)
                page.summarise(cell, now - self._start_time)
            if stage:
                page.add(page.cell("divgrpc_builds_in_stage", stage))
        self._stage, self._start_time = stage, now


@contextmanager
def counting_stages(page: Page | None, report: Report) -> Iterator[Report]:
    """Yield a callback for progress that counts stages and calls `report`.

    Without a page, yield `report` itself.
    """
    if page is None:
        yield report
        return
    stages = _Stages(page, report)
    try:
        yield stages.report
    finally:
        stages.enter("")
