"""The indexes a worker has open, each at the generation that serves.

Theory of operation. Every request compares the stamp of its index's pointer, one cheap stat. A new
stamp opens the new generation in a thread of its own, because comparing checksums takes a second
per gigabyte and other indexes must not wait for it. Until that is done the generation at hand goes
on answering; where there is none, requests wait. A front says that a build is done only after
every worker was asked to `refresh` and has finished, so nobody sees an older generation after that.

An index that cannot be opened keeps its error for a few seconds and harms no other.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from divgrpc.errors import IndexNotFoundError
from divgrpc.index import Index
from divgrpc.storage import IndexFolder

_RETRY_SECONDS: Final = 5.0

Stamp = tuple[int, int]


@dataclass(slots=True)
class _Entry:
    folder: IndexFolder
    stamp: Stamp | None = None
    index: Index | None = None
    error: Exception | None = None
    failed_at: float = 0.0
    opening: Stamp | None = None


@dataclass(frozen=True, slots=True)
class _Opened:
    name: str
    stamp: Stamp
    index: Index | None
    error: Exception | None


class Shelf:
    """Open indexes by name; `opened` is called, from a thread, when an opening has ended."""

    def __init__(self, root: Path, opened: Callable[[], None]) -> None:
        self._root = root
        self._opened = opened
        self._entries: dict[str, _Entry] = {}
        self._results: SimpleQueue[_Opened] = SimpleQueue()

    def find(self, name: str) -> Index | None:
        """Return the index, None where it is being opened.

        Raises `IndexNotFoundError`, and what opening it raised.
        """
        entry = self._look(name)
        if entry.index is None and entry.opening is None and entry.error is not None:
            raise entry.error.with_traceback(None)
        return entry.index

    def refresh(self, name: str) -> bool:
        """Look for a new generation; True where nothing is left to wait for."""
        try:
            return self._look(name).opening is None
        except IndexNotFoundError:
            return True

    def collect(self) -> list[str]:
        """Put what threads have opened on the shelf and return the names."""
        names: list[str] = []
        while True:
            try:
                opened = self._results.get_nowait()
            except Empty:
                return names
            names.append(opened.name)
            entry = self._entries.get(opened.name)
            if entry is None or entry.opening != opened.stamp:
                continue  # deleted, or replaced again, meanwhile
            entry.stamp, entry.opening = opened.stamp, None
            entry.index, entry.error = opened.index, opened.error
            entry.failed_at = time.monotonic()
            self._look_again(opened.name)

    def _look(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        folder = entry.folder if entry else IndexFolder(self._root / name)
        stamp = folder.pointer_stamp()
        if stamp is None:
            self._entries.pop(name, None)
            raise IndexNotFoundError(f"there is no index {name!r}")
        if entry is None:
            entry = self._entries[name] = _Entry(folder)
        failed = entry.error is not None and time.monotonic() - entry.failed_at > _RETRY_SECONDS
        if stamp not in (entry.stamp, entry.opening) or (failed and entry.opening is None):
            entry.opening = stamp
            thread = threading.Thread(target=self._open, args=(name, folder, stamp), daemon=True)
            thread.start()
        return entry

    def _look_again(self, name: str) -> None:
        """Open a generation that was published while its predecessor was being opened."""
        with contextlib.suppress(IndexNotFoundError):
            self._look(name)

    def _open(self, name: str, folder: IndexFolder, stamp: Stamp) -> None:
        index: Index | None = None
        error: Exception | None = None
        try:
            index = Index.open(folder.path)
        except Exception as caught:  # noqa: BLE001  # the edge of a thread: requests raise it
            error = caught
        self._results.put(_Opened(name, stamp, index, error))
        self._opened()
