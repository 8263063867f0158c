"""Commits writes: appends them to the log, applies them, publishes them, and merges.

Writes of several threads are committed together, with one sync of the log for all of them. A query
sees a write when the write is as durable as the caller asked, and not earlier.

A merge, a vacuum and a retraining read a copy of the state while writes go on. Then they apply the
records that were written meanwhile, the last few of them while writes wait.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from divgrpc.builder.attributes import AttributeValues, extend
from divgrpc.builder.progress import StageReport
from divgrpc.engine import Engine
from divgrpc.errors import (
    IndexChangedError,
    IndexDamagedError,
    MergesBehindError,
    StorageInUseError,
    UnavailableError,
    UnfitIndexError,
)
from divgrpc.storage.build_locks import check_writes
from divgrpc.storage.generations import IndexFolder, Staging, staging, sync_pointer
from divgrpc.storage.manifest import Manifest
from divgrpc.types import Durability, Progress, WriteResult
from divgrpc.types.records import Attribute
from divgrpc.writes.additions import Addition, PresentPoints
from divgrpc.writes.backlog import is_merge_due
from divgrpc.writes.layout import Source
from divgrpc.writes.log import Tail
from divgrpc.writes.queue_entry import QueueEntry
from divgrpc.writes.renewal import Renewal, extension_of, retraining_of, vacuum_of
from divgrpc.writes.requests import check_durability
from divgrpc.writes.snapshot import Snapshot
from divgrpc.writes.state import State
from divgrpc.writes.target import Request, WriteTarget

# With the durability "interval", the log is synced so often.
_INTERVAL_SECONDS: Final = 0.05
# A new layout or generation follows the log, first while callers write. Then their lock is held for
# so long and released for so long, until so few records are missing.
_FREE_ROUNDS: Final = 3
_HELD_SECONDS: Final = 0.05
_RELEASED_SECONDS: Final = 0.02
_RECORDS_BEHIND: Final = 64


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

        Raises `StorageInUseError` if another process writes to the collection, and
        `IndexChangedError` if the index is replaced meanwhile.
        """
        self._durability = check_durability(durability)
        self._has_queries, self._waits_for_merges = has_queries, waits_for_merges
        self._index = IndexFolder(folder)
        # Held while requests are committed, and while the state is read or changed.
        self._commit_lock, self._state_lock = threading.Lock(), threading.RLock()
        self._merge_lock = threading.Lock()
        self._queue: deque[QueueEntry] = deque()
        self._merging: threading.Thread | None = None
        self._merge_error: Exception | None = None
        self._snapshot: Engine = engine
        # Number of the last write that queries see.
        self._sequence = 0
        # Records above this number stay in the log, because a new generation will follow them.
        self._followed_sequence: int | None = None
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
        return self._target.engine.manifest

    @property
    def is_current(self) -> bool:
        """Whether the generation is the current one of its index.

        Raises `IndexNotFoundError` and `IndexDamagedError`.
        """
        # While a new generation takes its place, the answer would be wrong.
        with self._commit_lock:
            return self._is_current

    @property
    def _is_current(self) -> bool:
        target = self._target
        if not target.is_open or self._index.current() != self.manifest.generation:
            return False
        # The numbers of an index that was deleted and built again begin at 1 again.
        return target.is_locked

    @property
    def state(self) -> State | None:
        """The state, None if the generation has no layout; read it while nothing is written."""
        return self._target.state if self._target.was_written else None

    def commit_all(self, requests: Sequence[Request]) -> list[WriteResult | Exception]:
        """Make several writes with one sync of the log; return a result or an error of each."""
        batch = [QueueEntry(request) for request in requests]
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

    def _outcome(self, pending: QueueEntry) -> WriteResult | Exception:
        """Commit the requests that wait until a request is done."""
        while not pending.is_done:
            with self._commit_lock:
                if not pending.is_done:
                    self._commit_queue()
            if not pending.is_done:
                self._merge_for(pending)
        return pending.outcome

    def snapshot(self) -> Engine:
        """Return the points as they are now."""
        snapshot = self._snapshot
        if snapshot.sequence == self._sequence:
            return snapshot
        with self._state_lock:
            return self._snapshot_now()

    def merge(self, on_progress: Callable[[Progress], None] | None = None) -> bool:
        """Merge all rows now; return whether there was anything to merge.

        Raises `StorageFullError`, `StorageInUseError` after `close`, and `IndexChangedError`.
        """
        with self._commit_lock:
            state = self._unmerged_state()
        if state is None:
            return False
        if on_progress is not None:
            # No lock is held, because the callback may write, merge and close.
            on_progress(Progress("merging", 0, state.rows))
        with self._merge_lock:
            with self._commit_lock:
                state = self._unmerged_state()
                if state is None:
                    return False
                # A layout never has a record that the log may lose.
                self._sync()
                source, merged_bytes = state.source(), self._target.log_bytes
            with self._removal_errors():
                self._merge(source)
            with self._commit_lock:
                self._target.log_bytes -= merged_bytes
        if on_progress is not None:
            on_progress(Progress("merging", len(source.alive), len(source.alive)))
        return True

    def _unmerged_state(self) -> State | None:
        """Return the state if it has records that no merge has; the lock of commits is held."""
        self._check_open()
        state = self.state
        is_merged = state is None or state.sequence == state.layout.info.sequence
        return None if is_merged else state

    def vacuum(self, on_progress: Callable[[Progress], None] | None = None) -> bool:
        """Remove the rows of deleted points; return whether there were any and a point is left.

        The result is a new generation. Queries and writes go on meanwhile. Raises
        `BuildUnderWayError`, `StorageFullError`, `IndexChangedError`, and `StorageInUseError` after
        `close`.
        """
        with staging(self._index.path, replace=True) as stage:
            return self._renew(partial(vacuum_of, stage=stage), on_progress)

    def retrain(self, on_progress: Callable[[Progress], None] | None = None) -> bool:
        """Build the index anew from its points; return whether it was.

        Nothing happens if nothing was written since Build, or if no point has a vector. The result
        is a new generation, as Build would make it of the points in the order of their rows.
        Queries and writes go on meanwhile. Raises the errors of `vacuum`.
        """
        with staging(self._index.path, replace=True) as stage:
            return self._renew(partial(retraining_of, stage=stage), on_progress)

    def add_attributes(
        self,
        attributes: Iterable[Attribute],
        receive: Callable[[AttributeValues], None],
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Give the points further attributes, whose values `receive` passes to its argument.

        The result is a new generation. Queries and writes go on meanwhile; while the generation has
        no layout, writes wait. A point that is replaced meanwhile gets its values too. Raises
        `InvalidArgumentError`, `UnfitIndexError` if no point has a vector, and the errors of
        `vacuum`.
        """
        with staging(self._index.path, replace=True) as stage:
            with self._commit_lock:
                self._check_open()
                points = PresentPoints(self._target)
            values = points.values(stage, attributes, self._reporter(on_progress))
            receive(values)
            values.check_whole()
            with self._commit_lock:
                self._check_open()
                if self.state is None:
                    self._extend(stage, values)
                    return
            addition = Addition(values, points.keys)
            values.discard()
            begin = partial(extension_of, stage=stage, addition=addition)
            if not self._renew(begin, on_progress):
                rule = "has no point with a vector: write one first, or build it again"
                raise UnfitIndexError("index", f"index {self._index.name!r} {rule}")

    def close(self) -> None:
        """Wait for a merge, sync the log, and let another process write."""
        with self._commit_lock:
            self._is_closed = True
        if self._merging is not None:
            self._merging.join()
        with self._merge_lock, self._commit_lock, suppress(Exception):
            self._target.close(is_synced=True)

    def _open(self, engine: Engine) -> None:
        """Lock a generation, and recover the state of the collection."""
        # The stamp of the pointer when it last named this generation.
        self._stamp: tuple[int, int] | None = None
        path = self._index.path / str(engine.generation)
        self._target = WriteTarget(engine, path)
        try:
            with self._removal_errors():
                self._target.open(is_synced=self._durability == "sync")
                self._check_current()
                # No loss of power may bring back the generation before, without later writes.
                sync_pointer(self._index.path)
            if self._target.was_written:
                with self._state_lock:
                    self._use()
        except BaseException:
            self._target.close()
            raise

    def _use(self) -> None:
        """Let queries see the recovered state; the lock of the state is held."""
        self._publish()
        self._snapshot = self._new_snapshot()

    def _check_current(self) -> None:
        """Raise unless the generation is current; one that was removed may seem unwritten."""
        if not self._is_current:
            raise self._replaced()

    @contextmanager
    def _removal_errors(self) -> Iterator[None]:
        """Raise `IndexChangedError` for files that are missing because the index was replaced."""
        try:
            yield
        except (FileNotFoundError, IndexDamagedError) as error:
            if self._is_current:
                raise
            raise self._replaced() from error

    def _replaced(self) -> IndexChangedError:
        return IndexChangedError(f"index {self._index.name!r} was replaced; open it again")

    def _commit_queue(self) -> None:
        """Commit the requests that wait, up to the first one that lacks room."""
        batch = [self._queue.popleft() for _ in range(len(self._queue))]
        rest: list[QueueEntry] = []
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

    def _merge_for(self, pending: QueueEntry) -> None:
        """Make room for a request that waits; no lock is held."""
        try:
            self.merge()
        except Exception as error:  # noqa: BLE001  # its caller gets it
            with self._commit_lock:
                if not pending.is_done:
                    self._queue.remove(pending)
                    pending.error = error

    def _commit(self, batch: list[QueueEntry]) -> list[QueueEntry]:
        """Commit requests up to the first one that lacks room; return this one and all after it."""
        check_writes(self._index.path)
        self._check_open()
        self._check_merge()
        if not self._sequence:
            self._begin()
        is_synced = self._durability == "sync"
        if is_synced and self._has_queries:
            # While the log is synced, queries see what was there before.
            self.snapshot()
        results: list[tuple[QueueEntry, WriteResult]] = []
        rest: list[QueueEntry] = []
        for place, pending in enumerate(batch):
            try:
                with self._removal_errors(), self._state_lock:
                    sequence, count = self._target.write(pending.request)
                    if not is_synced:
                        self._publish()
            except MergesBehindError as error:
                rest = self._put_off(batch[place:], error)
                break
            except Exception as error:  # noqa: BLE001  # its caller gets it
                pending.error = error
            else:
                result = WriteResult(self.manifest.generation, sequence, count)
                results.append((pending, result))
        if is_synced and results:
            self._sync()
        for pending, result in results:
            pending.result = result
        self._merge_if_due()
        return rest

    def _put_off(self, batch: list[QueueEntry], error: MergesBehindError) -> list[QueueEntry]:
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
        self._target.log.sync()
        self._publish()

    def _publish(self) -> None:
        """Let queries see all writes so far."""
        with self._state_lock:
            self._sequence = self._target.state.sequence
            self._target.publish(self._sequence)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageInUseError("the collection is closed")
        stamp = self._index.pointer_stamp()
        # Without an index there is no stamp, and before the first check there is none either.
        if stamp is None or stamp != self._stamp:
            self._check_current()
            self._stamp = stamp

    def _check_merge(self) -> None:
        """Raise the error of the last merge in the background, once."""
        if self._merge_error is not None:
            error, self._merge_error = self._merge_error, None
            raise error

    # Opening and merging.

    def _begin(self) -> None:
        """Make the first layout, from the arrays of Build, unless there is one; tell readers."""
        with self._removal_errors():
            if not self._target.was_written:
                self._target.begin()
                with self._state_lock:
                    self._use()
            # Readers look for writes when the pointer changes. An earlier try may have failed.
            self._index.touch()

    def _snapshot_now(self) -> Engine:
        """Return a snapshot of the state; the lock of the state is held."""
        state = self.state
        # After a failed sync, the state has records that queries must not see.
        is_current = state is not None and state.sequence == self._sequence
        if state is not None and is_current and self._snapshot.sequence != state.sequence:
            self._snapshot = Snapshot(self._target.layout_engine, state)
        return self._snapshot

    def _new_snapshot(self) -> Engine:
        if not self._has_queries:
            return self._target.engine
        return Snapshot(self._target.layout_engine, self._target.state)

    def _merge_if_due(self) -> None:
        if self.state is not None and is_merge_due(self.state, self._target.log_bytes):
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
        target = self._target
        state = target.merge(source)
        tail = Tail(target.folder.log, state.sequence)
        try:
            self._catch_up(tail, partial(target.apply, state))
            with self._commit_lock, self._state_lock:
                target.apply(state, tail.read(target.state.sequence))
                target.take(state)
                if self._sequence == state.sequence:
                    self._use()
                else:
                    target.publish_layout(self._sequence)
        finally:
            tail.close()
        target.folder.sweep()
        kept = source.sequence if self._followed_sequence is None else self._followed_sequence
        target.folder.log.drop(min(kept, source.sequence))

    def _extend(self, stage: Staging, values: AttributeValues) -> None:
        """Let a generation with further attributes take the place of one without writes."""
        # Writes wait, also those of a callback for progress.
        generation = extend(stage, self._target.generation, values, StageReport(None))
        self._target.close()
        self._open(Engine(generation, self._index.name, self._index.path))
        with self._state_lock:
            self._snapshot = self._target.engine

    def _reporter(
        self, on_progress: Callable[[Progress], None] | None
    ) -> Callable[[Progress], None]:
        """Return a callback for progress that raises after `close`."""

        def report(progress: Progress) -> None:
            if self._is_closed:
                raise StorageInUseError("the collection was closed")
            if on_progress is not None:
                on_progress(progress)

        return report

    def _renew(
        self,
        begin: Callable[[State], Renewal | None],
        on_progress: Callable[[Progress], None] | None,
    ) -> bool:
        """Make a new generation, and let it take the place of this one.

        begin: returns what makes it from a state, or None if there is nothing to do.
        """
        with ExitStack() as locks:
            renewal = self._begin_renewal(begin)
            if renewal is None:
                return False
            successors: list[WriteTarget] = []

            def follow(folder: Path) -> None:
                successors.append(self._successor(folder, renewal, locks))

            try:
                generation = renewal.publish(self._reporter(on_progress), follow)
                self._succeed(successors[0], generation.manifest.generation)
            except BaseException:
                # If the new generation is current already, the next write raises IndexChangedError.
                for successor in successors:
                    successor.close()
                raise
            finally:
                self._followed_sequence = None
        return True

    def _begin_renewal(self, begin: Callable[[State], Renewal | None]) -> Renewal | None:
        """Copy the state that a new generation begins with; return None if none is needed."""
        with self._merge_lock, self._commit_lock:
            self._check_open()
            if (state := self.state) is None:
                return None
            self._sync()
            renewal = begin(state)
            if renewal is not None:
                self._followed_sequence = renewal.source.sequence
        return renewal

    def _successor(self, folder: Path, renewal: Renewal, locks: ExitStack) -> WriteTarget:
        """Open a new generation, which is complete in `folder`, and give it all later writes.

        Writes wait when it returns, until `locks` are released.
        """
        generation = renewal.open_generation(folder)
        engine = Engine(generation, self._index.name, self._index.path)
        successor = WriteTarget(engine, folder)
        try:
            successor.open()
            successor.begin(renewal.first_source(generation))
            tail = Tail(self._target.folder.log, successor.state.sequence)
            locks.callback(tail.close)
            follow = partial(
                successor.follow,
                attributes=self.manifest.attributes,
                change=renewal.change(successor.encode),
            )
            self._catch_up(tail, follow)
            locks.enter_context(self._merge_lock)
            self._catch_up(tail, follow)
            if successor.has_merged_like(self._target):
                self._catch_up(tail, follow)
            # The sync of the last records is then short.
            successor.log.sync()
            locks.enter_context(self._commit_lock)
            self._check_open()
            self._sync()
            if self._has_queries:
                # Queries have no other state until the new generation is open.
                self.snapshot()
            follow(tail.read(self._sequence))
            successor.log.sync()
            successor.publish(self._sequence)
        except BaseException:
            successor.close()
            raise
        return successor

    def _catch_up(self, tail: Tail, follow: Callable[[Iterable[tuple[int, bytes]]], None]) -> None:
        """Let a new layout or generation follow all records but the last few."""
        for _ in range(_FREE_ROUNDS):
            follow(tail.read(self._sequence))
        # Callers may write as fast as this thread follows, so they wait most of the time now.
        while self._sequence - tail.sequence > _RECORDS_BEHIND:
            time.sleep(_RELEASED_SECONDS)
            with self._commit_lock:
                end_time = time.monotonic() + _HELD_SECONDS
                while self._sequence > tail.sequence and time.monotonic() < end_time:
                    follow(tail.read(min(self._sequence, tail.sequence + _RECORDS_BEHIND)))

    def _succeed(self, successor: WriteTarget, number: int) -> None:
        """Let the generation `number`, which is the current one now, take the place of the old."""
        successor.move(self._index.path / str(number))
        predecessor = self._target
        try:
            with self._state_lock:
                self._target, self._stamp = successor, None
                self._use()
        finally:
            predecessor.close()

    def _sync_regularly(self) -> None:
        while not self._is_closed:
            time.sleep(_INTERVAL_SECONDS)
            target = self._target
            if target.was_written:
                with suppress(Exception):
                    target.log.sync()
