"""A collection that another process may write to: its state follows the log."""

import mmap
import os
import struct
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import IndexDamagedError
from divgrpc.storage.generations import Generation
from divgrpc.writes.layout import Layout, WritesFolder
from divgrpc.writes.log import Tail
from divgrpc.writes.records import Record, unpack
from divgrpc.writes.snapshot import LayoutEngine, Snapshot
from divgrpc.writes.state import State

PUBLISHED: Final = "PUBLISHED"
_OPEN_ATTEMPTS_MAX: Final = 10
_FOLLOW_ATTEMPTS_MAX: Final = 3
_NUMBERS: Final = struct.Struct("<QQ")


class Published:
    """The sequence number and the layout that readers may use, in a mapped file.

    The writer sets the sequence number when a record is as durable as its caller asked, and the
    layout when its files are complete.
    """

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        """Map the file in `folder`; a writer creates it."""
        path, flags = folder / PUBLISHED, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            if writable:
                os.ftruncate(descriptor, _NUMBERS.size)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._memory = mmap.mmap(descriptor, _NUMBERS.size, access=access)
        finally:
            os.close(descriptor)
        # Each number is written by one instruction.
        self._numbers = memoryview(self._memory).cast("Q")

    @property
    def sequence(self) -> int:
        """Number of the last record that readers may show."""
        return self._numbers[0]

    @sequence.setter
    def sequence(self, value: int) -> None:
        self._numbers[0] = value

    @property
    def layout(self) -> int:
        """Number of the current layout."""
        return self._numbers[1]

    @layout.setter
    def layout(self, value: int) -> None:
        self._numbers[1] = value


class Replica:
    """The state of a collection in a process that does not write to it. For one thread."""

    def __init__(self, engine: Engine, generation: Path) -> None:
        """Open the writes to a generation, which is in a folder."""
        self._engine = engine
        self._folder = WritesFolder(generation)
        self._generation = Generation(engine.manifest, engine.arrays, engine.defaults)
        self._snapshot: Snapshot | None = None
        self._tail: Tail | None = None
        self._open()

    @property
    def sequence(self) -> int:
        """Number of the last record that was applied."""
        return self._state.sequence

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
            for sequence, body in self._folder.log.read(self._state.sequence):
                self._apply(sequence, body)
            return
        if published.layout > self._state.layout.info.number:
            self._open()
        if published.sequence > self._state.sequence:
            assert self._tail is not None  # noqa: S101  # `_open` makes it
            for sequence, body in self._tail.read(published.sequence):
                self._apply(sequence, body)

    def _open(self) -> None:
        layout = self._open_layout()
        self._state = State(self._generation, layout)
        self._shared = LayoutEngine(self._engine, self._generation, layout)
        if self._tail is not None:
            self._tail.close()
        self._tail = Tail(self._folder.log, self._state.sequence)
        self._snapshot = None

    def _open_layout(self) -> Layout:
        """Open the current layout; another merge may remove its files meanwhile."""
        for attempts_left in reversed(range(_OPEN_ATTEMPTS_MAX)):
            before = self._folder.read_info()
            try:
                return self._folder.open_layout(self._generation, verify=True)
            except IndexDamagedError:
                if not attempts_left or before == self._folder.read_info():
                    raise
        raise AssertionError("unreachable")

    def _apply(self, sequence: int, body: bytes) -> None:
        record = unpack(body, self._generation.manifest.attributes)
        check_vectors(self._state, record)
        self._state.apply(sequence, record)


def check_vectors(state: State, record: Record) -> None:
    """Raise `IndexDamagedError` if the file of vectors lacks the rows of a record."""
    if record.rows is not None:
        first = state.rows
        stored = state.layout.arrays["vectors"][first : first + len(record.rows)]
        if not np.array_equal(stored.view(np.uint32), record.rows.vectors.view(np.uint32)):
            raise IndexDamagedError(
                "array vectors lacks rows of the log; open the collection for writing to repair it"
            )
