"""A collection that another process may write to: its state follows the log, or the merges alone.

A reader on another machine, or beside a writer that it knows nothing of, must not follow the log.
Its last records may not be on the disk yet, so a loss of power could remove what was shown. The
numbers that say how far readers may go are in a mapped file, which other machines see late or never
(`divgrpc.storage.published`). A layout is complete and on the disk before LAYOUT names it, and its
files never change.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import IndexDamagedError
from divgrpc.storage.generations import Generation
from divgrpc.storage.layouts import layout_stamp
from divgrpc.storage.published import Published, open_published
from divgrpc.writes.layout import Layout, WritesFolder
from divgrpc.writes.log import Tail, lost_write
from divgrpc.writes.point_files import items_of
from divgrpc.writes.records import Record, unpack
from divgrpc.writes.snapshot import LayoutEngine, Snapshot
from divgrpc.writes.state import State

_OPEN_ATTEMPTS_MAX: Final = 10
_FOLLOW_ATTEMPTS_MAX: Final = 3


class MergedReplica:
    """The state of a collection as of its last merge. For one thread."""

    def __init__(self, engine: Engine, generation: Path) -> None:
        """Open the writes to a generation, which is in a folder."""
        self._engine = engine
        self._folder = WritesFolder(generation)
        self._generation = Generation(engine.manifest, engine.arrays, engine.defaults)
        self._snapshot: Snapshot | None = None
        self._open()

    @property
    def engine(self) -> Engine:
        """The engine of the generation without the writes to it."""
        return self._engine

    def forget_snapshot(self) -> None:
        """Make a new snapshot at the next call, because defaults of the engine have changed."""
        self._snapshot = None

    def follow(self) -> Engine:
        """Return the points as of the last merge."""
        stamp = layout_stamp(self._folder.path)
        # Without the file, the generation was replaced, and what is open of it stays valid.
        if stamp not in (None, self._stamp):
            # Queries wait, so the arrays are not read.
            self._open(verify=False)
        return self.snapshot()

    def snapshot(self) -> Engine:
        """Return the points as they were when `follow` was called last."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self._shared, self._state)
        return self._snapshot

    def _open(self, *, verify: bool = True) -> None:
        stamp = layout_stamp(self._folder.path)
        layout = self._open_layout(verify=verify)
        self._state = State(self._generation, layout)
        self._shared = LayoutEngine(self._engine, self._generation, layout)
        self._stamp, self._snapshot = stamp, None

    def _open_layout(self, *, verify: bool) -> Layout:
        """Open the current layout; another merge may remove its files meanwhile."""
        for attempts_left in reversed(range(_OPEN_ATTEMPTS_MAX)):
            before = self._folder.read_info()
            try:
                return self._folder.open_layout(self._generation, verify=verify)
            except (IndexDamagedError, FileNotFoundError):
                if not attempts_left or before == self._folder.read_info():
                    raise
        raise AssertionError("unreachable")


class Replica(MergedReplica):
    """The state of a collection that a process of this machine writes to. For one thread."""

    def __init__(self, engine: Engine, generation: Path) -> None:
        """Open the writes to a generation, which is in a folder."""
        self._published: Published | None = None
        self._tail: Tail | None = None
        super().__init__(engine, generation)

    def follow(self) -> Engine:
        """Return the points as the writer has published them last."""
        if self._published is None:
            # A loss of power may have left an empty file.
            with suppress(FileNotFoundError, ValueError):
                self._published = Published(self._folder.path)
        if self._published is not None and self._published.is_current:
            return self.snapshot(self._published)
        # Nothing was written since the system started: all that is in the log is on the disk.
        return self.snapshot() if self._snapshot is None else self._snapshot

    def snapshot(self, published: Published | None = None) -> Engine:
        """Return the points as they are now.

        published: what the writer has published. Without it, all records of the log are applied.
        """
        for attempts_left in reversed(range(_FOLLOW_ATTEMPTS_MAX)):
            try:
                self._follow(published)
                break
            except (IndexDamagedError, FileNotFoundError):
                # The writer may have merged meanwhile, and may have appended while this was read.
                if not attempts_left:
                    raise
                self._open()
        if self._snapshot is None or self._snapshot.sequence != self._state.sequence:
            self._snapshot = Snapshot(self._shared, self._state)
        return self._snapshot

    def _follow(self, published: Published | None) -> None:
        """Apply the records that were written since."""
        if published is None:
            # Read first, because records may be appended meanwhile.
            numbers = open_published(self._folder.path)
            acknowledged = 0 if numbers is None else numbers.acknowledged
            for sequence, body in self._folder.log.read(self._state.sequence):
                self._apply(sequence, body)
            if self._state.sequence < acknowledged:
                raise lost_write(self._state.sequence + 1)
            return
        if published.layout > self._state.layout.info.number:
            # The writer has just written the layout. Queries wait, so its arrays are not read.
            self._open(verify=False)
        if published.sequence > self._state.sequence:
            assert self._tail is not None  # noqa: S101  # `_open` makes it
            for sequence, body in self._tail.read(published.sequence):
                self._apply(sequence, body)

    def _open(self, *, verify: bool = True) -> None:
        super()._open(verify=verify)
        if self._tail is not None:
            self._tail.close()
        self._tail = Tail(self._folder.log, self._state.sequence)

    def _apply(self, sequence: int, body: bytes) -> None:
        record = unpack(body, self._generation.manifest.attributes)
        check_vectors(self._state, record)
        self._state.apply(sequence, record)


def check_vectors(state: State, record: Record) -> None:
    """Raise `IndexDamagedError` if the files of vectors lack the rows of a record."""
    for name in arrays_without(state, record):
        raise IndexDamagedError(
            f"array {name} lacks rows of the log; open the collection for writing to repair it"
        )


def arrays_without(state: State, record: Record) -> list[str]:
    """Return the names of the arrays of vectors that lack the rows of the next record."""
    names = []
    items = {} if record.rows is None else items_of(record.rows.vectors)
    for name, block in items.items():
        stored = state.layout.arrays[name][state.items : state.items + len(block)]
        if not np.array_equal(stored.view(np.uint32), block.view(np.uint32)):
            names.append(name)
    return names
