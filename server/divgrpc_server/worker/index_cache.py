"""The indexes that a worker has open, each at its current generation.

Theory of operation. The pointer of an index is a file that names the current generation. The stamp
of the pointer is its inode and modification time. For every request, the worker checks with one
stat call whether the stamp has changed. It answers the request from the generation that the pointer
names, never from an earlier generation. A build replaces the pointer with a rename, which switches
all workers at once.

Opening a generation verifies checksums, which takes a second per gigabyte. A thread opens the
generation, so that requests for other indexes do not wait. Before a build moves the pointer, it
makes all workers `prepare` the new generation, so that the switch takes no time. A generation that
was not prepared is opened at its first request, and requests wait until it is open.

If an index was written to, the worker follows its log: before each request it applies the writes
that the writer has published since the last one.

In a read-only server, no build lets the worker open a generation before it is published. So
requests are answered from the earlier generation until the new one is open. Of the writes, the
worker shows those that were merged.

If an index cannot be opened, its error is kept for a few seconds. Other indexes are not affected.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from divgrpc.engine import Engine
from divgrpc.errors import DivgrpcError, IndexDamagedError, IndexNotFoundError
from divgrpc.sharding.files import open_router_engine, open_router_part
from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.storage.defaults import read_defaults
from divgrpc.storage.generations import IndexFolder, list_indexes, open_generation, read_manifest
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.published import LAYOUT, WRITES
from divgrpc.writes.opening import open_index
from divgrpc.writes.replica import MergedReplica

_RETRY_SECONDS: Final = 5.0
# How often `open_all` looks whether a thread has opened an index.
_OPENING_SECONDS: Final = 0.01

Stamp = tuple[int, int]


@dataclass(slots=True)
class _Entry:
    """One index; `index` or `error` is the result of opening it when the pointer had `stamp`.

    `replica` follows the writes to the index, if there were any.
    """

    folder: IndexFolder
    stamp: Stamp | None = None
    index: Engine | None = None
    replica: MergedReplica | None = None
    error: Exception | None = None
    error_time: float = 0.0
    # The pointer's stamp for the generation that a thread is opening, None if no thread is opening
    # the index.
    opening: Stamp | None = None

    def set(self, stamp: Stamp | None, outcome: Engine | MergedReplica | Exception) -> None:
        """Store the result of opening the index at `stamp`."""
        self.stamp, self.opening = stamp, None
        self.replica = outcome if isinstance(outcome, MergedReplica) else None
        engine = outcome.engine if isinstance(outcome, MergedReplica) else outcome
        self.index = engine if isinstance(engine, Engine) else None
        self.error = outcome if isinstance(outcome, Exception) else None
        self.error_time = time.monotonic()

    def is_open_whole(self) -> bool:
        """Whether the current generation is open, with the writes to it if there are any."""
        if self.index is None:
            return False
        if self.replica is None:
            return self.is_whole(self.index)
        return self.index.manifest == self.serving_manifest()

    def is_whole(self, index: Engine) -> bool:
        """Whether `index` is the current generation, and nothing was written to it."""
        if index.manifest != self.serving_manifest():
            return False
        return not (self.folder.path / str(index.generation) / WRITES / LAYOUT).exists()

    def serving_manifest(self) -> Manifest | None:
        """Return the manifest of the current generation, or None if it cannot be read."""
        try:
            return read_manifest(self.folder.path / str(self.folder.current()))
        except DivgrpcError:
            return None


@dataclass(frozen=True, slots=True)
class _Opening:
    """A generation that a thread has opened.

    `stamp` is the pointer's stamp if the generation is current. `folder` is its folder if it was
    prepared.
    """

    name: str
    stamp: Stamp | None
    folder: str
    outcome: Engine | MergedReplica | Exception


class IndexCache:
    """Open indexes by name; a thread calls `on_open` when it has opened a generation."""

    def __init__(
        self,
        root: Path,
        on_open: Callable[[], None],
        on_damage: Callable[[str, str], None] = lambda _name, _reason: None,
        *,
        is_read_only: bool = False,
        has_shards: bool = False,
    ) -> None:
        """Take the folder of the indexes.

        on_damage: called with the name of an index and the damage, once for each.
        is_read_only: whether another server, perhaps on another machine, writes to the indexes.
        has_shards: whether the front can ask shards, so that divided indexes can be served.
        """
        self._open_divided = open_router_engine if has_shards else None
        self._root, self._is_read_only = root, is_read_only
        self._on_open, self._on_damage = on_open, on_damage
        self._entries: dict[str, _Entry] = {}
        # Prepared generations that are not current yet, by the name of their index.
        self._prepared: dict[str, Engine] = {}
        # The names of indexes by the folders of the generations that threads prepare.
        self._awaited: dict[str, str] = {}
        self._openings: SimpleQueue[_Opening] = SimpleQueue()

    def find(self, name: str) -> Engine | None:
        """Return the index, or None while it is being opened.

        Raises `IndexNotFoundError`, or the error of opening the index.
        """
        while True:
            entry = self._look(name)
            if entry.opening is None and entry.error is not None:
                raise entry.error.with_traceback(None)
            if entry.replica is None:
                return entry.index
            try:
                return entry.replica.follow()
            except (IndexDamagedError, FileNotFoundError) as error:
                # A vacuum, a build or a deletion may have removed the generation meanwhile.
                if entry.folder.fresh_stamp() == entry.stamp:
                    raise _damage(error) from None
                if self._is_read_only:
                    return entry.replica.snapshot()

    def open_all(self) -> None:
        """Open all indexes, one after another; `find` raises the errors of damaged ones."""
        for name in list_indexes(self._root):
            with suppress(DivgrpcError):
                while self._look(name).opening is not None:
                    time.sleep(_OPENING_SECONDS)
                    self.collect()

    def prepare(self, name: str, folder: str) -> None:
        """Start to open a complete generation that is not published yet."""
        path = self._root / folder
        self._awaited[folder] = name

        def work() -> Engine:
            if self._open_divided is not None and read_manifest(path).shards:
                # Its files will be in the folder of the index when it is asked.
                return self._open_divided(path, self._root / name)
            return Engine(open_generation(path), name)

        self._open(name, work, folder=folder)

    @property
    def damaged(self) -> set[str]:
        """The names of the indexes that could not be opened because they are damaged."""
        entries = self._entries.items()
        return {name for name, entry in entries if isinstance(entry.error, IndexDamagedError)}

    def take_error(self, folder: str) -> Exception | None:
        """Return None: the first request of a generation that cannot be opened gets the error."""

    def explain_wait(self, name: str) -> str:
        """Return what this server does while `find` returns None for an index."""
        return f"the server is opening {name!r}; ask again later, or with a longer timeout"

    def forget_prepared(self) -> None:
        """Close prepared generations, because the front that requested them may be gone."""
        self._prepared.clear()
        self._awaited.clear()

    def refresh(self, name: str) -> None:
        """Close the previous generation of an index, or the index if it was deleted.

        A read-only server also opens the current layout, so that no query waits for it.
        """
        try:
            self._look(name)
            if self._is_read_only:
                self.find(name)
        except (DivgrpcError, OSError):
            pass  # the next request raises it
        finally:
            self._prepared.pop(name, None)
            self._awaited = {f: other for f, other in self._awaited.items() if other != name}

    def recheck(self, name: str) -> None:
        """Close an index whose files were truncated.

        Reading beyond the end of a mapped file kills the process with SIGBUS, which gives no
        reason.
        """
        entry = self._entries.get(name)
        if entry is None or entry.index is None:
            return
        try:
            open_folder = partial(open_generation, verify=False)
            if isinstance(entry.index, GatheringEngine):
                open_folder = partial(open_router_part, verify=False)
            entry.folder.read_current(open_folder)
        except DivgrpcError as error:
            entry.set(entry.stamp, error)

    def collect(self) -> list[tuple[str, str]]:
        """Store the generations that threads have opened.

        Returns the name of each index, and the folder of the generation if it was prepared, else
        "". A prepared generation that could not be opened is ignored, and its first request gets
        the error.
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
                # After a refresh nobody needs it: the build was cancelled or has published it.
                is_awaited = self._awaited.pop(opening.folder, None) is not None
                if is_awaited and isinstance(opening.outcome, Engine):
                    self._prepared[opening.name] = opening.outcome
            elif entry is not None and entry.opening == opening.stamp:
                self._report(opening.name, entry.error, opening.outcome)
                entry.set(opening.stamp, opening.outcome)

    def _report(self, name: str, before: Exception | None, outcome: object) -> None:
        """Report an index that is damaged, unless the damage was reported before."""
        if isinstance(outcome, IndexDamagedError) and str(outcome) != str(before):
            self._on_damage(name, str(outcome))

    def _look(self, name: str) -> _Entry:
        """Return the entry of an index; if it is out of date, start to update it."""
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
        """Update an entry to the current generation.

        If an engine of the current generation was prepared, or if the entry already has this
        generation open, only the defaults are read again. Otherwise, a thread opens the generation.
        """
        engine = self._prepared.pop(name, None)
        if engine is not None and entry.is_whole(engine):
            entry.set(stamp, _with_new_defaults(engine, entry.folder))
        elif entry.is_open_whole():
            assert entry.index is not None  # noqa: S101  # it is open
            outcome = _with_new_defaults(entry.index, entry.folder)
            if entry.replica is not None and isinstance(outcome, Engine):
                entry.replica.forget_snapshot()
                entry.set(stamp, entry.replica)
            else:
                entry.set(stamp, outcome)
        else:
            entry.opening = stamp
            if not self._is_read_only:
                entry.index = entry.replica = None
            work = partial(
                open_index, entry.folder.path, is_merged=self._is_read_only,
                open_divided=self._open_divided,
            )  # fmt: skip
            self._open(name, work, stamp=stamp)

    def _open(
        self,
        name: str,
        work: Callable[[], Engine | MergedReplica],
        *,
        stamp: Stamp | None = None,
        folder: str = "",
    ) -> None:
        """Start a thread that opens a generation; `find` raises the error of the thread."""

        def run() -> None:
            outcome: Engine | MergedReplica | Exception
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001  # `find` raises it
                outcome = _damage(error)
            self._openings.put(_Opening(name, stamp, folder, outcome))
            self._on_open()

        threading.Thread(target=run, daemon=True).start()


def _damage(error: Exception) -> Exception:
    """Return an error of opening an index; a file that is missing for good is damage."""
    if isinstance(error, FileNotFoundError):
        return IndexDamagedError("a file of the index is missing")
    return error


def _with_new_defaults(index: Engine, folder: IndexFolder) -> Engine | Exception:
    """Return the index with the defaults stored in its folder, or the error of reading them."""
    try:
        index.defaults = read_defaults(folder.path / str(index.generation), index.manifest)
    except DivgrpcError as error:
        return error
    return index
