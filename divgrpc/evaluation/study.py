"""An evaluation, whatever its subject: checked, measured block by block, made into rows.

Theory of operation. `queries` and `label_running` check a task against an index and make a `Study`.
Its work is a list of blocks, and a block is some consecutive rows at one setting. Any number of
threads may take blocks; kernels release the interpreter's lock. Each block fills its part of a
`Tally`, and the tally makes the result rows at the end. A client that had to cut an evaluation into
several messages fills a tally with the figures of the answers, so numpy alone is imported here.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic

from divgrpc.evaluation.tally import Resolution, RowT, Tally
from divgrpc.metrics import Values
from divgrpc.types import Progress

STAGE: Final = "evaluating"
# A block is long enough that its overhead is small, and short enough that progress moves and all
# threads end at about the same time.
_BLOCK_SECONDS: Final = 0.1
_FIRST_ROWS: Final = 16
_BLOCK_ROWS_MAX: Final = 512
# Results of a block, all of which are measured at once.
_BLOCK_RESULTS_MAX: Final = 2**15


class Study(Generic[RowT]):
    """A checked evaluation on an open index; any number of threads may call `work`.

    `measure` returns the figures (columns, n) of a slice of rows at a setting. `store_default`
    makes the chosen settings the index's default.
    """

    def __init__(
        self,
        tally: Tally[RowT],
        measure: Callable[[slice, Any], Values],
        store_default: Callable[[list[RowT]], object],
    ) -> None:
        self._tally = tally
        self._measure = measure
        self._store_default = store_default
        self._widths = tally.task.widths()
        self._total = len(self._widths) * tally.task.rows
        self._start_seconds = time.monotonic()
        self._lock = threading.Lock()
        self._setting = self._start = self._rows_done = 0
        # Seconds of a row at each setting, once a block has shown it.
        self._row_seconds: dict[int, float] = {}

    @property
    def resolution(self) -> Resolution:
        """The task as the index resolves it."""
        return self._tally.resolution

    @property
    def progress(self) -> Progress:
        """How far the study has come; a row counts once at each setting."""
        count, seconds = self._rows_done, time.monotonic() - self._start_seconds
        seconds_left = seconds * (self._total - count) / count if count else None
        return Progress(STAGE, count, self._total, seconds_left)

    def work(self) -> Iterator[None]:
        """Measure one block after the other until none is left; pauses after each.

        An error ends the work of all threads.
        """
        while (block := self._next()) is not None:
            setting, rows = block
            start, count = time.monotonic(), rows.stop - rows.start
            try:
                figures = self._measure(rows, self._tally.settings[setting])
            except BaseException:
                with self._lock:
                    self._setting = len(self._widths)
                raise
            self._tally.add(setting, rows.start, figures)
            with self._lock:
                self._row_seconds[setting] = (time.monotonic() - start) / count
                self._rows_done += count
            yield

    def rows(self) -> list[RowT]:
        """Return a row for every setting, then one for every choice; sets the default if asked."""
        rows = self._tally.rows()
        if self._tally.task.set_default:
            self._store_default(rows)
        return rows

    def run(self, on_progress: Callable[[Progress], object] | None) -> Iterator[RowT]:
        """Do all of it on this thread: measure, and yield the rows."""
        report = on_progress or (lambda _: None)
        report(self.progress)
        for _ in self.work():
            report(self.progress)
        yield from self.rows()

    def _next(self) -> tuple[int, slice] | None:
        """Take the next block: its setting and its rows."""
        with self._lock:
            if self._setting == len(self._widths):
                return None
            setting, start = self._setting, self._start
            row_seconds = self._row_seconds.get(setting)
            size = _FIRST_ROWS if row_seconds is None else int(_BLOCK_SECONDS / row_seconds)
            most = min(_BLOCK_ROWS_MAX, _BLOCK_RESULTS_MAX // self._widths[setting])
            stop = min(start + max(1, min(size, most)), self._tally.task.rows)
            is_last = stop == self._tally.task.rows
            self._setting, self._start = (setting + 1, 0) if is_last else (setting, stop)
            return setting, slice(start, stop)
