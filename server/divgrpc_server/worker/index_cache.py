"""The indexes a worker has open, each at the generation that serves.

Theory of operation. Every request compares the stamp of its index's pointer, one cheap stat, and is
answered by the generation that the pointer names, never by one before it: so a rename of the
pointer switches all workers at once. Opening compares checksums, a second per gigabyte, and happens
in a thread, so that other indexes need not wait. Before a build moves the pointer it has workers
`prepare` the new generation, and then the switch costs nothing; a generation that nobody prepared
is opened when it is first asked for, and requests wait for it.

An index that cannot be opened keeps its error for a few seconds and harms no other.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    """What is known of one index; `index` and `error` are those of `stamp`."""

    folder: IndexFolder
    stamp: Stamp | None = None
    index: Engine | None = None
    error: Exception | None = None
    failed_at: float = 0.0
    opening: Stamp | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A generation that is open and does not serve yet."""

    index: Engine
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a thread has opened: the generation of a pointer's stamp, or a folder's, prepared."""

    name: str
    stamp: Stamp | None = None
    folder: str = ""
    index: Engine | None = None
    prepared: _Prepared | None = None
    error: Exception | None = None


class Shelf:
    """Open indexes by name; `opened` is called, from a thread, when an opening has ended."""

    def __init__(self, root: Path, opened: Callable[[], None]) -> None:
        self._root = root
        self._opened = opened
        self._entries: dict[str, _Entry] = {}
        self._prepared: dict[str, _Prepared] = {}
        self._results: SimpleQueue[_Opened] = SimpleQueue()

    def find(self, name: str) -> Engine | None:
        """Return the index, None where it is being opened.

        Raises `IndexNotFoundError`, and what opening it raised.
        """
        entry = self._look(name)
        if entry.opening is None and entry.error is not None:
            raise entry.error.with_traceback(None)
        return entry.index

    def prepare(self, name: str, folder: str) -> None:
        """Begin to open a generation that is whole and does not serve yet."""

        def work() -> _Opened:
            generation = open_generation(self._root / folder)
            prepared = _Prepared(Engine(generation, name), generation.manifest)
            return _Opened(name, folder=folder, prepared=prepared)

        self._run(work, _Opened(name, folder=folder))

    def forget_prepared(self) -> None:
        """Let go of all that was prepared: whoever was to publish it may be gone."""
        self._prepared.clear()

    def refresh(self, name: str) -> None:
        """Let go of what does not serve: the generation before, an index that was deleted."""
        try:
            self._look(name)
        except IndexNotFoundError:
            pass
        finally:
            self._prepared.pop(name, None)

    def recheck(self, name: str) -> None:
        """Let go of an index whose files are not as long as they were.

        Whoever reads what a mapped file no longer has is ended by SIGBUS, and cannot tell why.
        """
        entry = self._entries.get(name)
        if entry is None or entry.index is None:
            return
        try:
            open_generation(entry.folder.path / str(entry.folder.current()), verify=False)
        except DivgrpcError as error:
            entry.index, entry.error, entry.failed_at = None, error, time.monotonic()

    def collect(self) -> list[tuple[str, str]]:
        """Take in what threads have opened; returns names, with the folders of what was prepared.

        What was prepared and cannot be opened is forgotten: whoever asks for it will hear why.
        """
        names: list[tuple[str, str]] = []
        while True:
            try:
                opened = self._results.get_nowait()
            except Empty:
                return names
            names.append((opened.name, opened.folder))
            entry = self._entries.get(opened.name)
            if opened.prepared is not None:
                self._prepared[opened.name] = opened.prepared
            elif entry is not None and opened.stamp and entry.opening == opened.stamp:
                entry.stamp, entry.opening = opened.stamp, None
                entry.index, entry.error = opened.index, opened.error
                entry.failed_at = time.monotonic()

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
        failed = entry.error is not None and time.monotonic() - entry.failed_at > _RETRY_SECONDS
        if (stamp != entry.stamp or failed) and stamp != entry.opening:
            self._renew(name, entry, stamp)
        return entry

    def _renew(self, name: str, entry: _Entry, stamp: Stamp) -> None:
        """Take the prepared generation if it is the one that serves, else open it."""
        prepared = self._prepared.pop(name, None)
        if prepared is not None and prepared.manifest == _serving(entry.folder):
            entry.stamp, entry.index, entry.error = stamp, prepared.index, None
            entry.opening = None
            return
        if entry.index is not None and entry.index.manifest == _serving(entry.folder):
            self._renew_default(entry, entry.index, stamp)
            return
        entry.opening, entry.index = stamp, None
        path = entry.folder.path
        self._run(
            lambda: _Opened(name, stamp=stamp, index=Engine.open(path)), _Opened(name, stamp=stamp)
        )

    def _renew_default(self, entry: _Entry, index: Engine, stamp: Stamp) -> None:
        """Take the defaults that were set on the generation that is open."""
        entry.stamp, entry.opening = stamp, None
        try:
            generation = entry.folder.path / str(index.generation)
            index.defaults = read_defaults(generation, index.manifest)
        except DivgrpcError as error:
            entry.index, entry.error, entry.failed_at = None, error, time.monotonic()

    def _run(self, work: Callable[[], _Opened], failed: _Opened) -> None:
        """Do `work` in a thread; what it raises is the error of `failed`."""

        def run() -> None:
            try:
                opened = work()
            except Exception as error:  # noqa: BLE001  # the edge of a thread: requests raise it
                opened = replace(failed, error=error)
            self._results.put(opened)
            self._opened()

        threading.Thread(target=run, daemon=True).start()


def _serving(folder: IndexFolder) -> Manifest | None:
    """Return the manifest that serves, with its checksums; None where it cannot be read."""
    try:
        return read_manifest(folder.path / str(folder.current()))
    except DivgrpcError:
        return None
