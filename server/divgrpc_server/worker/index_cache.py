"""The indexes that a worker has open, each at the generation that serves.

Theory of operation. Every request compares the stamp of its index's pointer, which costs one stat,
and is answered from the generation that the pointer names, never from one before it. So a rename of
the pointer switches all workers at once. Opening compares checksums, a second per gigabyte, and
happens in a thread, so that other indexes need not wait. Before a build moves the pointer, it has
workers `prepare` the new generation; then the switch costs nothing. A generation that was not
prepared is opened at its first request, and requests wait for it.

An index that cannot be opened keeps its error for a few seconds, and affects no other index.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from divgrpc.engine import Engine
from divgrpc.errors import DivgrpcError, IndexNotFoundError
from divgrpc.storage.defaults import read_defaults
from divgrpc.storage.generations import IndexFolder, open_generation, read_manifest
from divgrpc.storage.manifest import Manifest

_RETRY_SECONDS: Final = 5.0

Stamp = tuple[int, int]


@dataclass(slots=True)
class _Entry:
    """One index; `index` or `error` is the outcome of opening it at `stamp`."""

    folder: IndexFolder
    stamp: Stamp | None = None
    index: Engine | None = None
    error: Exception | None = None
    error_time: float = 0.0
    # The stamp of the generation that a thread opens, if any.
    opening: Stamp | None = None

    def set(self, stamp: Stamp | None, outcome: Engine | Exception) -> None:
        """Take the outcome of opening the index at `stamp`."""
        self.stamp, self.opening = stamp, None
        self.index = None if isinstance(outcome, Exception) else outcome
        self.error = outcome if isinstance(outcome, Exception) else None
        self.error_time = time.monotonic()

    def serving_manifest(self) -> Manifest | None:
        """Return the manifest that serves, with its checksums; None if it cannot be read."""
        try:
            return read_manifest(self.folder.path / str(self.folder.current()))
        except DivgrpcError:
            return None


@dataclass(frozen=True, slots=True)
class _Opening:
    """A generation that a thread has opened: that of a pointer's stamp, or one in a folder."""

    name: str
    stamp: Stamp | None
    folder: str
    outcome: Engine | Exception


class IndexCache:
    """Open indexes by name; threads call `on_open` at the end of an opening."""

    def __init__(self, root: Path, on_open: Callable[[], None]) -> None:
        self._root = root
        self._on_open = on_open
        self._entries: dict[str, _Entry] = {}
        # Generations that do not serve yet.
        self._prepared: dict[str, Engine] = {}
        self._openings: SimpleQueue[_Opening] = SimpleQueue()

    def find(self, name: str) -> Engine | None:
        """Return the index, None while it is being opened.

        Raises `IndexNotFoundError`, and the error of opening it.
        """
        entry = self._look(name)
        if entry.opening is None and entry.error is not None:
            raise entry.error.with_traceback(None)
        return entry.index

    def prepare(self, name: str, folder: str) -> None:
        """Begin to open a complete generation that does not serve yet."""
        path = self._root / folder
        self._open(name, lambda: Engine(open_generation(path), name), folder=folder)

    def forget_prepared(self) -> None:
        """Close prepared generations, because the front that was to publish them may be gone."""
        self._prepared.clear()

    def refresh(self, name: str) -> None:
        """Close what does not serve: the generation before, or an index that was deleted."""
        try:
            self._look(name)
        except IndexNotFoundError:
            pass
        finally:
            self._prepared.pop(name, None)

    def recheck(self, name: str) -> None:
        """Close an index whose files have become shorter.

        A process that reads beyond the end of a mapped file ends by SIGBUS, and cannot tell why.
        """
        entry = self._entries.get(name)
        if entry is None or entry.index is None:
            return
        try:
            open_generation(entry.folder.path / str(entry.folder.current()), verify=False)
        except DivgrpcError as error:
            entry.set(entry.stamp, error)

    def collect(self) -> list[tuple[str, str]]:
        """Take the generations that threads have opened; return names, and folders if prepared.

        A prepared generation that cannot be opened is forgotten; its first request gets the error.
        """
        names: list[tuple[str, str]] = []
        while True:
            try:
                opening = self._openings.get_nowait()
            except Empty:
                return names
            names.append((opening.name, opening.folder))
            entry = self._entries.get(opening.name)
            if opening.folder:
                if isinstance(opening.outcome, Engine):
                    self._prepared[opening.name] = opening.outcome
            elif entry is not None and entry.opening == opening.stamp:
                entry.set(opening.stamp, opening.outcome)

    def _look(self, name: str) -> _Entry:
        """Return the entry of an index, up to date or being opened."""
        entry = self._entries.get(name)
        folder = entry.folder if entry else IndexFolder(self._root / name)
        stamp = folder.pointer_stamp()
        if stamp is None:
            self._entries.pop(name, None)
            raise IndexNotFoundError(f"there is no index {name!r}")
        if entry is None:
            entry = self._entries[name] = _Entry(folder)
        is_due = entry.error is not None and time.monotonic() - entry.error_time > _RETRY_SECONDS
        if (stamp != entry.stamp or is_due) and stamp != entry.opening:
            self._renew(name, entry, stamp)
        return entry

    def _renew(self, name: str, entry: _Entry, stamp: Stamp) -> None:
        """Take the open generation that serves, prepared or with new defaults; else open it."""
        prepared = self._prepared.pop(name, None)
        if prepared is not None and prepared.manifest == entry.serving_manifest():
            entry.set(stamp, prepared)
        elif entry.index is not None and entry.index.manifest == entry.serving_manifest():
            entry.set(stamp, _with_new_defaults(entry.index, entry.folder))
        else:
            entry.opening, entry.index = stamp, None
            path = entry.folder.path
            self._open(name, lambda: Engine.open(path), stamp=stamp)

    def _open(
        self, name: str, work: Callable[[], Engine], *, stamp: Stamp | None = None, folder: str = ""
    ) -> None:
        """Open a generation in a thread; its error is raised to requests."""

        def run() -> None:
            outcome: Engine | Exception
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001  # `find` raises it
                outcome = error
            self._openings.put(_Opening(name, stamp, folder, outcome))
            self._on_open()

        threading.Thread(target=run, daemon=True).start()


def _with_new_defaults(index: Engine, folder: IndexFolder) -> Engine | Exception:
    """Return an index with the defaults of its folder, or the error of reading them."""
    try:
        index.defaults = read_defaults(folder.path / str(index.generation), index.manifest)
    except DivgrpcError as error:
        return error
    return index
