"""A generation that is open for writing: its files, its log, and the state of its points.

Only one process may have a generation open for writing. A lock on a file ensures this.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.columns.ids import as_ids
from divgrpc.engine import Engine
from divgrpc.errors import StorageInUseError
from divgrpc.platforms import lock_exclusively
from divgrpc.storage.arrays import full_disk_errors
from divgrpc.storage.generations import WRITER_LOCK, Generation
from divgrpc.storage.published import Published, was_written
from divgrpc.types.records import Attribute
from divgrpc.writes.backlog import check_bytes, check_items, check_rows, has_bytes
from divgrpc.writes.digests import digest_of, first_result
from divgrpc.writes.layout import Layout, Source, WritesFolder
from divgrpc.writes.log import LogWriter, lost_write
from divgrpc.writes.point_files import PointWriter
from divgrpc.writes.records import Record, Rows, pack, unpack
from divgrpc.writes.requests import Delete, Requests, Upsert
from divgrpc.writes.snapshot import LayoutEngine
from divgrpc.writes.state import State

Request: TypeAlias = Upsert | Delete


class WriteTarget:
    """A generation, to which one thread at a time may write.

    engine: searches the points of Build.
    folder: the files of the writes.
    layout_engine: what all snapshots of the current layout share.
    log_bytes: bytes of the records that no merge has.
    """

    layout_engine: LayoutEngine

    def __init__(self, engine: Engine, path: Path) -> None:
        """Take an engine of the generation in the folder `path`; `open` opens the files."""
        self.engine = engine
        self.generation = Generation(engine.manifest, engine.arrays, engine.defaults)
        self.folder = WritesFolder(path)
        self.log_bytes = 0
        self._state: State | None = None
        self._log: LogWriter | None = None
        self._lock_file = -1
        self._point_writer: PointWriter | None = None

    def open(self, *, is_synced: bool = True) -> None:
        """Lock the generation, and recover the state of its points.

        is_synced: whether to sync the log, so that no later loss of power removes a record of it.

        Raises `StorageInUseError` if another process has it open for writing, `FileNotFoundError`
        or `IndexDamagedError` if its files were removed, and `StorageFullError`.
        """
        with full_disk_errors():
            self.folder.path.mkdir(exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._lock_file = os.open(self.folder.path / WRITER_LOCK, flags, 0o666)
        if not lock_exclusively(self._lock_file):
            raise StorageInUseError("another process writes to this collection")
        self._point_writer = self.folder.point_files(self.generation.manifest).open()
        self._published = Published(self.folder.path, writable=True)
        if was_written(self.folder.path.parent):
            # The writer before may have ended between the rename of LAYOUT and the sync.
            self.folder.sync_names()
            self._recover(is_synced=is_synced)

    def begin(self, source: Source | None = None) -> None:
        """Make the first layout, from the rows of Build unless a source is given."""
        source = source or Source.of_build(self.generation)
        self.folder.merge(self.generation, source)
        self._recover(is_synced=True)

    def close(self, *, is_synced: bool = False) -> None:
        """Close the files, and let another process write; with `is_synced`, sync the log first."""
        try:
            if self._log is not None and is_synced:
                self._log.sync()
        finally:
            if self._log is not None:
                self._log.close()
            if self._point_writer is not None:
                self._point_writer.close()
            if self._lock_file >= 0:
                os.close(self._lock_file)
                self._lock_file = -1

    def move(self, path: Path) -> None:
        """Continue in another folder, to which the folder of the generation was renamed."""
        self.folder = WritesFolder(path)
        if self._log is not None:
            self._log.move(self.folder.log)

    @property
    def is_open(self) -> bool:
        """Whether the files are open."""
        return self._lock_file >= 0

    @property
    def is_locked(self) -> bool:
        """Whether the lock file in the folder is still the one that this process has locked."""
        try:
            lock = os.stat(self.folder.path / WRITER_LOCK)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(lock, os.fstat(self._lock_file))

    @property
    def was_written(self) -> bool:
        """Whether there is a state: something was written, if only in part."""
        return self._state is not None

    @property
    def state(self) -> State:
        """The state of the points; there is one if `was_written`."""
        assert self._state is not None  # noqa: S101  # callers begin first
        return self._state

    @property
    def log(self) -> LogWriter:
        """The log; there is one if `was_written`."""
        assert self._log is not None  # noqa: S101  # callers begin first
        return self._log

    # Writes.

    def write(self, request: Request) -> tuple[int, int]:
        """Append a write to the log and apply it; return its sequence number and its rows.

        Raises `MergesBehindError` if there is room for it only after a merge, and the errors of
        `Requests`. A write that raises has no effect.
        """
        state = self.state
        if request.write_id in state.requests:
            return first_result(request, state)
        if isinstance(request, Upsert):
            check_rows(len(as_ids(request.ids)), state)
            record = self._requests.upsert(request, state)
            check_items(record, state)
        else:
            record = self._requests.delete(request, state)
        if request.write_id:
            record = replace(record, digest=digest_of(request))
        count = len(record.removed) if record.rows is None else len(record.rows)
        if not count and not request.write_id:
            return state.sequence, 0
        body = pack(record)
        check_bytes(len(body), self.log_bytes)
        self._append(record, body)
        return state.sequence, count

    def follow(
        self,
        records: Iterable[tuple[int, bytes]],
        attributes: Sequence[Attribute],
        change: Callable[[Rows], Rows] | None = None,
    ) -> None:
        """Write the records of another generation of the same points, which has `attributes`.

        change: returns rows as this generation has them; without it, they are the same.
        """
        for sequence, body in records:
            record = unpack(body, attributes)
            if change is not None and record.rows is not None:
                record = replace(record, rows=change(record.rows))
                body = pack(record)  # noqa: PLW2901  # the same record with other codes or columns
            has_room = record.rows is None or self.state.has_room(record.rows)
            if not has_room or not has_bytes(len(body), self.log_bytes):
                self._make_room()
            self._append(record, body)
            assert sequence == self.state.sequence  # noqa: S101  # the numbers are the same

    def encode(self, rows: Rows) -> Rows:
        """Return rows of another generation with the codes and cells that they have in this one."""
        return self._requests.encode(rows)

    def publish(self, sequence: int) -> None:
        """Let readers see all writes so far, whose last one has the number `sequence`."""
        state = self.state
        self._published.publish(
            sequence,
            layout=state.layout.info.number,
            live=state.live,
            nonzeros=state.nonzeros,
            absent=state.live - state.searched,
            rows=state.rows,
            unmerged=state.rows_unmerged,
        )

    def publish_layout(self, sequence: int) -> None:
        """Let readers open the layout; the last write that they may see has the number given."""
        self._published.publish(sequence, layout=self.state.layout.info.number)

    # Layouts.

    def merge(self, source: Source) -> State:
        """Write a layout; return the state that it has without any later record."""
        self.folder.merge(self.generation, source)
        return self._open_state(verify=False)

    def apply(self, state: State, records: Iterable[tuple[int, bytes]]) -> None:
        """Apply records of the log to a state that has not been taken yet."""
        for sequence, body in records:
            state.apply(sequence, self._unpack(body))

    def has_merged_like(self, predecessor: "WriteTarget") -> bool:
        """Merge, if a merge of the generation before has later records; return whether there was.

        So readers of layouts alone never see fewer writes than before.
        """
        is_behind = self.state.layout.info.sequence < predecessor.state.layout.info.sequence
        if is_behind:
            self._make_room()
        return is_behind

    def _make_room(self) -> None:
        """Merge all rows while no other thread reads the state."""
        # A layout never has a record that the log may lose.
        self.log.sync()
        state = self.merge(self.state.source())
        self.take(state)
        self.folder.sweep()
        self.folder.log.drop(state.sequence)
        self.log_bytes = 0

    def take(self, state: State) -> None:
        """Use a state that has all records of the log."""
        self.layout_engine = LayoutEngine(self.engine, self.generation, state.layout)
        arrays = self.generation.arrays | state.layout.arrays
        encoder = RowEncoder(arrays, self.engine.manifest.parameters)
        self._requests = Requests(self.engine.manifest, encoder)
        self._state = state

    def _recover(self, *, is_synced: bool) -> None:
        """Open the current layout, and apply the records of the log."""
        self.folder.sweep()
        state = self._open_state()
        for sequence, body in self.folder.log.read(state.sequence):
            record = self._unpack(body)
            self._put_vectors(state, record)
            state.apply(sequence, record)
            self.log_bytes += len(body)
        if state.sequence < self._published.acknowledged:
            raise lost_write(state.sequence + 1)
        self._log = LogWriter(self.folder.log, state.sequence)
        if is_synced:
            # No query sees a record that a loss of power could remove.
            self._log.sync()
        self.take(state)

    def _open_state(self, *, verify: bool = True) -> State:
        layout: Layout = self.folder.open_layout(self.generation, verify=verify)
        return State(self.generation, layout)

    def _append(self, record: Record, body: bytes) -> None:
        state, log = self.state, self.log
        # Readers find the vectors of each record of the log.
        self._put_vectors(state, record)
        sequence = log.append(body)
        self.log_bytes += len(body)
        try:
            state.apply(sequence, record)
        except BaseException as error:
            # The state lacks a record of the log, so nothing can follow it.
            log.error = error
            raise

    def _put_vectors(self, state: State, record: Record) -> None:
        if record.rows is not None:
            assert self._point_writer is not None  # noqa: S101  # `open` makes it
            self._point_writer.put(record.rows.vectors, state.items)

    def _unpack(self, body: bytes) -> Record:
        return unpack(body, self.generation.manifest.attributes)
