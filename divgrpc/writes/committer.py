"""Commits writes: appends them to the log, applies them, publishes them, and merges.

Writes of several threads are committed together, with one sync of the log for all of them. A query
sees a write when the write is as durable as the caller asked, and not earlier.

Only one process may write to a collection at a time. A lock on a file ensures this.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias, get_args

from divgrpc.columns.ids import as_ids
from divgrpc.engine import Engine
from divgrpc.errors import (
    ConditionFailedError,
    IndexChangedError,
    IndexDamagedError,
    MergesBehindError,
    StorageInUseError,
    UnavailableError,
    invalid,
)
from divgrpc.platforms import lock_exclusively, write_at
from divgrpc.storage.arrays import HEADER_BYTES, full_disk_errors
from divgrpc.storage.generations import WRITER_LOCK, Generation, IndexFolder, staging
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.published import Published
from divgrpc.types import Durability, Progress, WriteResult
from divgrpc.writes.backlog import check_bytes, check_rows, is_merge_due
from divgrpc.writes.digests import digest_of
from divgrpc.writes.layout import Source, WritesFolder
from divgrpc.writes.log import LogWriter, Tail
from divgrpc.writes.model import RowEncoder
from divgrpc.writes.records import Record, pack, unpack
from divgrpc.writes.snapshot import LayoutEngine, Snapshot
from divgrpc.writes.state import State
from divgrpc.writes.vacuum import Vacuum
from divgrpc.writes.writer import Delete, Requests, Upsert, check_writable

Request: TypeAlias = Upsert | Delete
# With the durability "interval", the log is synced so often.
_INTERVAL_SECONDS: Final = 0.05


class _Pending:
    """A request that waits to be committed."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.result: WriteResult | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None


class Committer:
    """The one writer of a collection. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        durability: Durability = "sync",
        *,
        has_queries: bool = True,
        waits_for_merges: bool = True,
    ) -> None:
        """Open the writes to the generation of `engine`, which is in the index folder `folder`.

        has_queries: whether `snapshot` is called.
        waits_for_merges: whether a write waits if there is room for it only after a merge. If not,
            it raises `MergesBehindError`, and so do the writes behind it.

        Raises `StorageInUseError` if another process writes to the collection,
        `IndexChangedError` if the index is replaced meanwhile, and `UnsupportedError` or
        `UnfitIndexError` if it cannot be written to.
        """
        check_writable(engine.manifest)
        self._durability = _check_durability(durability)
        self._has_queries, self._waits_for_merges = has_queries, waits_for_merges
        self._index = IndexFolder(folder)
        # Held while requests are committed, and while the state is read or changed.
        self._commit_lock, self._state_lock = threading.Lock(), threading.RLock()
        self._merge_lock = threading.Lock()
        self._queue: deque[_Pending] = deque()
        self._merging: threading.Thread | None = None
        self._merge_error: Exception | None = None
        self._snapshot: Engine = engine
        # Number of the last write that queries see, and bytes of the log since the last merge.
        self._sequence = self._log_bytes = 0
        self._is_closed = False
        # Whether a merge begins when it is due; benchmarks switch this off.
        self.merges_by_itself = True
        self._open(engine)
        if durability == "interval":
            threading.Thread(target=self._sync_regularly, daemon=True).start()

    @property
    def sequence(self) -> int:
        """Number of the last write that queries see."""
        return self._sequence

    @property
    def manifest(self) -> Manifest:
        """The manifest of the generation."""
        return self._engine.manifest

    @property
    def is_current(self) -> bool:
        """Whether the generation is the current one of its index.

        Raises `IndexNotFoundError` and `IndexDamagedError`.
        """
        if self._lock_file < 0 or self._index.current() != self._engine.generation:
            return False
        # The numbers of an index that was deleted and built again begin at 1 again.
        try:
            lock = os.stat(self._writes.path / WRITER_LOCK)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(lock, os.fstat(self._lock_file))

    @property
    def state(self) -> State | None:
        """The state, None if nothing was ever written; read it while nothing is written."""
        return self._state

    def commit_all(self, requests: Sequence[Request]) -> list[WriteResult | Exception]:
        """Make several writes with one sync of the log; return a result or an error of each."""
        batch = [_Pending(request) for request in requests]
        self._queue.extend(batch)
        return [self._outcome(pending) for pending in batch]

    def commit(self, request: Request) -> WriteResult:
        """Make a write; when this returns, queries see it.

        Raises `InvalidArgumentError`, `ConditionFailedError`, `LimitExceededError`,
        `MergesBehindError`, `StorageFullError` and `IndexChangedError`. A write that raises has no
        effect.
        """
        (outcome,) = self.commit_all([request])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _outcome(self, pending: _Pending) -> WriteResult | Exception:
        """Commit the requests that wait until a request is done."""
        while not pending.is_done:
            with self._commit_lock:
                if not pending.is_done:
                    self._commit_queue()
            if not pending.is_done:
                self._merge_for(pending)
        outcome = pending.error or pending.result
        assert outcome is not None  # noqa: S101  # it is done
        return outcome

    def snapshot(self) -> Engine:
        """Return the points as they are now."""
        snapshot = self._snapshot
        if snapshot.sequence == self._sequence:
            return snapshot
        with self._state_lock:
            return self._renew()

    def merge(self, on_progress: Callable[[Progress], None] | None = None) -> bool:
        """Merge all rows now; return whether there was anything to merge.

        Raises `StorageFullError`, `StorageInUseError` after `close`, and `IndexChangedError`.
        """
        with self._merge_lock:
            with self._commit_lock:
                self._check_open()
                state = self._state
                if state is None or state.sequence == state.layout.info.sequence:
                    return False
                # A layout never has a record that the log may lose.
                self._sync()
                source, merged_bytes = state.source(), self._log_bytes
            if on_progress is not None:
                on_progress(Progress("merging", 0, len(source.alive)))
            self._merge(source)
            with self._commit_lock:
                self._log_bytes -= merged_bytes
            if on_progress is not None:
                on_progress(Progress("merging", len(source.alive), len(source.alive)))
        return True

    def vacuum(self, on_progress: Callable[[Progress], None] | None = None) -> bool:
        """Remove the rows of deleted points; return whether there were any and a point is left.

        The result is a new generation. Writes wait meanwhile, and queries do not. Raises
        `BuildUnderWayError` and `StorageFullError`.
        """
        with self._merge_lock, staging(self._index.path, replace=True) as stage, self._commit_lock:
            self._check_open()
            state = self._state
            if state is None or state.live in (0, state.rows):
                return False
            self._sync()
            if self._has_queries:
                # Queries have no other state until the new generation is open.
                self.snapshot()
            generation = Vacuum(state, stage).publish(on_progress)
            try:
                self._replace(Engine(generation, self._index.name, self._index.path))
            except BaseException:
                self._is_closed = True
                raise
        return True

    def close(self) -> None:
        """Wait for a merge, sync the log, and let another process write."""
        with self._commit_lock:
            self._is_closed = True
        if self._merging is not None:
            self._merging.join()
        with self._merge_lock, self._commit_lock:
            if self._log is not None:
                with suppress(Exception):
                    self._log.sync()
                self._log.close()
            self._close_files()

    def _replace(self, engine: Engine) -> None:
        """Continue with another generation of the same points; the locks are held."""
        assert self._log is not None  # noqa: S101  # writes were made
        self._log.close()
        self._close_files()
        self._log_bytes = 0
        if not self._has_queries:
            self._snapshot = engine
        self._open(engine)

    def _open(self, engine: Engine) -> None:
        """Lock a generation, and recover the state of the collection."""
        self._engine = engine
        self._writes = WritesFolder(self._index.path / str(engine.generation))
        self._generation = Generation(engine.manifest, engine.arrays, engine.defaults)
        self._state: State | None = None
        self._log: LogWriter | None = None
        # The stamp of the pointer when it last named this generation.
        self._stamp: tuple[int, int] | None = None
        self._lock_file = self._vectors_file = -1
        try:
            self._open_files()
            if self._writes.read_info() is not None:
                self._recover()
            self._check_current()
        except (FileNotFoundError, IndexDamagedError) as error:
            is_current = self.is_current
            self._close_files()
            if is_current:
                raise
            raise self._replaced() from error
        except BaseException:
            self._close_files()
            raise

    def _open_files(self) -> None:
        with full_disk_errors():
            self._writes.path.mkdir(exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._lock_file = os.open(self._writes.path / WRITER_LOCK, flags, 0o666)
        if not lock_exclusively(self._lock_file):
            raise StorageInUseError("another process writes to this collection")
        self._vectors_file = self._writes.open_vectors()
        self._published = Published(self._writes.path, writable=True)

    def _check_current(self) -> None:
        """Raise unless the generation is current; one that was removed may seem unwritten."""
        if not self.is_current:
            raise self._replaced()

    def _replaced(self) -> IndexChangedError:
        return IndexChangedError(f"index {self._index.name!r} was replaced; open it again")

    def _close_files(self) -> None:
        for name in ("_vectors_file", "_lock_file"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    def _commit_queue(self) -> None:
        """Commit the requests that wait, up to the first one that lacks room."""
        batch = [self._queue.popleft() for _ in range(len(self._queue))]
        rest: list[_Pending] = []
        try:
            rest = self._commit(batch)
        except Exception as error:  # noqa: BLE001  # each caller gets it
            for item in batch:
                item.error = item.error or error
        finally:
            for item in batch[: len(batch) - len(rest)]:
                if not item.is_done:
                    item.error = UnavailableError("the thread that wrote was interrupted")
        self._queue.extendleft(reversed(rest))

    def _merge_for(self, pending: _Pending) -> None:
        """Make room for a request that waits; no lock is held."""
        try:
            self.merge()
        except Exception as error:  # noqa: BLE001  # its caller gets it
            with self._commit_lock:
                if not pending.is_done:
                    self._queue.remove(pending)
                    pending.error = error

    def _commit(self, batch: list[_Pending]) -> list[_Pending]:
        """Commit requests up to the first one that lacks room; return this one and all after it."""
        self._check_open()
        self._check_merge()
        if self._state is None:
            self._begin()
        is_synced = self._durability == "sync"
        if is_synced and self._has_queries:
            # While the log is synced, queries see what was there before.
            self.snapshot()
        results: list[tuple[_Pending, WriteResult]] = []
        rest: list[_Pending] = []
        for place, pending in enumerate(batch):
            try:
                with self._state_lock:
                    result = self._write(pending.request)
                    if not is_synced:
                        self._publish()
            except MergesBehindError as error:
                rest = self._put_off(batch[place:], error)
                break
            except Exception as error:  # noqa: BLE001  # its caller gets it
                pending.error = error
            else:
                results.append((pending, result))
        if is_synced and results:
            self._sync()
        for pending, result in results:
            pending.result = result
        self._merge_if_due()
        return rest

    def _put_off(self, batch: list[_Pending], error: MergesBehindError) -> list[_Pending]:
        """Begin a merge; return the requests that wait for it, or give them the error.

        The first one lacks room. No other one overtakes it.
        """
        if self._waits_for_merges:
            return batch
        for pending in batch:
            pending.error = error
        self._begin_merge()
        return []

    def _sync(self) -> None:
        """Sync the log, and let queries see all writes so far."""
        assert self._log is not None  # noqa: S101  # writes were made
        self._log.sync()
        self._publish()

    def _publish(self) -> None:
        """Let queries see all writes so far."""
        with self._state_lock:
            state = self._state
            assert state is not None  # noqa: S101  # writes were made
            self._sequence = state.sequence
            self._published.publish(
                state.sequence,
                layout=state.layout.info.number,
                live=state.live,
                rows=state.rows,
                unmerged=state.rows_unmerged,
            )

    def _write(self, request: Request) -> WriteResult:
        """Append a write to the log and apply it."""
        state, log = self._state, self._log
        assert state is not None  # noqa: S101  # callers begin first
        assert log is not None  # noqa: S101
        if request.write_id in state.requests:
            return self._result(*_first_result(request, state))
        if isinstance(request, Upsert):
            check_rows(len(as_ids(request.ids)), state)
        record = self._record(request, state)
        if request.write_id:
            record = replace(record, digest=digest_of(request))
        count = len(record.removed) if record.rows is None else len(record.rows)
        if not count and not request.write_id:
            return self._result(state.sequence, 0)
        body = pack(record)
        check_bytes(len(body), self._log_bytes)
        # Readers find the vectors of each record of the log.
        self._put_vectors(state, record)
        sequence = log.append(body)
        self._log_bytes += len(body)
        try:
            state.apply(sequence, record)
        except BaseException as error:
            # The state lacks a record of the log, so nothing can follow it.
            log.error = error
            raise
        return self._result(sequence, count)

    def _record(self, request: Request, state: State) -> Record:
        if isinstance(request, Upsert):
            return self._requests.upsert(request, state)
        return self._requests.delete(request, state)

    def _result(self, sequence: int, count: int) -> WriteResult:
        return WriteResult(self._engine.generation, sequence, count)

    def _put_vectors(self, state: State, record: Record) -> None:
        if record.rows is None:
            return
        start = HEADER_BYTES + 4 * self._engine.dims * state.rows
        write_at(self._vectors_file, record.rows.vectors.tobytes(), start)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageInUseError("the collection is closed")
        stamp = self._index.pointer_stamp()
        if stamp != self._stamp:
            self._check_current()
            self._stamp = stamp

    def _check_merge(self) -> None:
        """Raise the error of the last merge in the background, once."""
        if self._merge_error is not None:
            error, self._merge_error = self._merge_error, None
            raise error

    # Opening and merging.

    def _begin(self) -> None:
        """Make the first layout, from the arrays of Build."""
        vectors = self._engine.arrays["vectors"]
        self._writes.merge(self._generation, Source.of_build(self._generation, vectors))
        self._recover()
        # Readers look for writes when the pointer changes.
        self._index.touch()

    def _recover(self) -> None:
        """Open the current layout, and apply the records of the log."""
        self._writes.sweep()
        state = self._open_state()
        attributes = self._generation.manifest.attributes
        for sequence, body in self._writes.log.read(state.sequence):
            record = unpack(body, attributes)
            self._put_vectors(state, record)
            state.apply(sequence, record)
            self._log_bytes += len(body)
        log = LogWriter(self._writes.log, state.sequence)
        if self._durability == "sync":
            # No query sees a record that a loss of power could remove.
            log.sync()
        with self._state_lock:
            self._log = log
            self._take(state)
            self._publish()
            self._snapshot = self._new_snapshot(state)

    def _open_state(self, *, verify: bool = True) -> State:
        return State(self._generation, self._writes.open_layout(self._generation, verify=verify))

    def _take(self, state: State) -> None:
        """Use a state; the locks are held."""
        layout_engine = LayoutEngine(self._engine, self._generation, state.layout)
        arrays = self._generation.arrays | state.layout.arrays
        encoder = RowEncoder(layout_engine.searcher, arrays, self._engine.manifest)
        self._requests = Requests(self._engine.manifest, encoder)
        self._state, self._shared = state, layout_engine

    def _renew(self) -> Engine:
        """Return a snapshot of the state; the lock of the state is held."""
        state = self._state
        # After a failed sync, the state has records that queries must not see.
        is_current = state is not None and state.sequence == self._sequence
        if state is not None and is_current and self._snapshot.sequence != state.sequence:
            self._snapshot = Snapshot(self._shared, state)
        return self._snapshot

    def _new_snapshot(self, state: State) -> Engine:
        return Snapshot(self._shared, state) if self._has_queries else self._snapshot

    def _merge_if_due(self) -> None:
        if self._state is not None and is_merge_due(self._state, self._log_bytes):
            self._begin_merge()

    def _begin_merge(self) -> None:
        """Begin a merge in the background, unless one is under way."""
        is_merging = self._merging is not None and self._merging.is_alive()
        if self.merges_by_itself and not is_merging:
            self._merging = threading.Thread(target=self._merge_in_background, daemon=True)
            self._merging.start()

    def _merge_in_background(self) -> None:
        try:
            self.merge()
        except Exception as error:  # noqa: BLE001  # the next write raises it
            self._merge_error = error

    def _merge(self, source: Source) -> None:
        """Write a layout, and use it; the lock of merges is held."""
        self._writes.merge(self._generation, source)
        state = self._open_state(verify=False)
        attributes = self._generation.manifest.attributes
        tail = Tail(self._writes.log, state.sequence)
        try:
            # Most records since then are applied before writes have to wait.
            for sequence, body in tail.read(self._sequence):
                state.apply(sequence, unpack(body, attributes))
            with self._commit_lock, self._state_lock:
                assert self._state is not None  # noqa: S101  # it was merged
                for sequence, body in tail.read(self._state.sequence):
                    state.apply(sequence, unpack(body, attributes))
                self._use(state)
        finally:
            tail.close()
        self._writes.sweep()
        self._writes.log.drop(source.sequence)

    def _use(self, state: State) -> None:
        """Use the state of a new layout; the locks are held."""
        is_published = self._sequence == state.sequence
        self._take(state)
        if is_published:
            self._publish()
            self._snapshot = self._new_snapshot(state)
        else:
            self._published.publish(self._sequence, layout=state.layout.info.number)

    def _sync_regularly(self) -> None:
        while not self._is_closed:
            time.sleep(_INTERVAL_SECONDS)
            log = self._log
            if log is not None:
                with suppress(Exception):
                    log.sync()


def _check_durability(durability: Durability) -> Durability:
    names = get_args(Durability)
    if durability not in names:
        rule = f"must be one of {', '.join(names)}"
        raise invalid("durability", f"{rule}, got {durability!r:.80}")
    return durability


def _first_result(request: Request, state: State) -> tuple[int, int]:
    """Return sequence number and rows of the write that has the name of a request.

    Raises `ConditionFailedError` if that was another write.
    """
    sequence, count, digest = state.requests[request.write_id]
    if digest and digest != digest_of(request):
        other = f"write {sequence} has the name {request.write_id!r} and other contents"
        raise ConditionFailedError("write_id", f"{other}; give each write a name of its own")
    return sequence, count
