"""What the writer counts: writes, merges and renewals, by index."""

import threading

from divgrpc_server.monitoring.page import Page


class WriteMeter:
    """Counts for all threads of the writer; without a page, it counts nothing."""

    def __init__(self, page: Page | None) -> None:
        self._page = page
        self._lock = threading.Lock()

    def add_write(self, index: str, rows: int) -> None:
        """Count a write that was made, of a number of points."""
        self._add("divgrpc_writes_total", index)
        self._add("divgrpc_written_rows_total", index, rows)

    def add_merges_behind(self, index: str) -> None:
        """Count a write that was refused or put off."""
        self._add("divgrpc_merges_behind_total", index)

    def add_merge(self, index: str, seconds: float) -> None:
        """Count a merge."""
        self._add("divgrpc_merges_total", index)
        if (page := self._page) is not None:
            with self._lock:
                page.set(page.cell("divgrpc_last_merge_seconds", page.index_label(index)), seconds)

    def add_renewal(self, index: str, *, is_retraining: bool) -> None:
        """Count a new generation, of a vacuum or of a retraining."""
        self._add("divgrpc_retrains_total" if is_retraining else "divgrpc_vacuums_total", index)

    def _add(self, name: str, index: str, amount: float = 1.0) -> None:
        if (page := self._page) is not None:
            with self._lock:
                page.add(page.cell(name, page.index_label(index)), amount)
