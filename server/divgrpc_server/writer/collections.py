"""The collections that the writer has open, and the writes to them."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from divgrpc.builder.attributes import AttributeValues
from divgrpc.engine import Engine
from divgrpc.errors import (
    IndexChangedError,
    IndexDamagedError,
    IndexNotFoundError,
    MergesBehindError,
)
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.published import was_written
from divgrpc.types import Durability, IndexInfo, Progress
from divgrpc.writes.committer import Committer
from divgrpc.writes.target import Request
from divgrpc_server.builder.attributes import receive
from divgrpc_server.builder.uploads import AttributeUpload
from divgrpc_server.codec.points import parse_declarations
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Reply
from divgrpc_server.logging.logs import Logger
from divgrpc_server.writer.calls import Call, calls_of, reply_of
from divgrpc_server.writer.meter import WriteMeter

Report: TypeAlias = Callable[[Progress], None]


class RenewalOutcome(NamedTuple):
    """The state of a collection after a merge, a vacuum or a retraining.

    generation, sequence: its generation, and the number of its last write.
    is_done: whether there was anything to do.
    """

    generation: int
    sequence: int
    is_done: bool


class _MeteredCommitter(Committer):
    """A committer that tells the durations of its merges, those in the background included."""

    def __init__(self, on_merge: Callable[[float], None], *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # as Committer's
        """Open the writes; `on_merge` gets seconds, in the thread of the merge."""
        self._on_merge = on_merge
        super().__init__(*arguments, **options)

    def merge(self, on_progress: Report | None = None) -> bool:
        """Merge all rows now, as `Committer.merge` does."""
        start = time.monotonic()
        is_done = super().merge(on_progress)
        if is_done:
            self._on_merge(time.monotonic() - start)
        return is_done


class Collections:
    """The collections of a server by name; they are opened at their first write.

    One thread makes writes, and others merge and retrain.
    """

    def __init__(self, root: Path, durability: Durability, meter: WriteMeter, log: Logger) -> None:
        self._root, self._durability, self._meter, self._log = root, durability, meter, log
        self._open: dict[str, Committer] = {}
        # Held while collections are looked up, opened or removed from `_open`.
        self._lock = threading.Lock()

    def answer(self, requests: list[packets.Request]) -> list[Reply]:
        """Make the writes of several requests, with one sync for each collection."""
        batches = [calls_of(request, self._log) for request in requests]
        groups: dict[str, list[Call]] = {}
        for call in chain(*batches):
            if call.outcome is None:
                groups.setdefault(call.index, []).append(call)
        for name, group in groups.items():
            self._answer_group(name, group)
        return [reply_of(*pair) for pair in zip(requests, batches, strict=True)]

    def compact(self, name: str, report: Report, *, vacuum: bool) -> RenewalOutcome:
        """Merge a collection, and with `vacuum` also remove deleted points from the disk.

        Raises the errors of opening and of renewing an index, and what `report` raises.
        """

        def merge(committer: Committer) -> bool:
            if vacuum and committer.vacuum(report):
                self._meter.add_renewal(name, is_retraining=False)
                return True
            return committer.merge(report)

        return self._renew("compacted", name, merge)

    def retrain(self, name: str, report: Report) -> RenewalOutcome:
        """Build a collection anew from its points; raises as `compact` does."""
        outcome = self._renew("retrained", name, lambda committer: committer.retrain(report))
        if outcome.is_done:
            self._meter.add_renewal(name, is_retraining=True)
        return outcome

    def add_attributes(self, upload: AttributeUpload) -> IndexInfo:
        """Give a collection the attributes of an upload; return its description.

        Raises `EOFError` and `OSError` if the front hangs up.
        """
        header = upload.header()
        folder = IndexFolder(self._root / check_index_name(header.index))
        declared = parse_declarations(header.declarations)
        with self._lock:
            if not was_written(folder.path / str(folder.current())):
                # A builder adds them to an index without writes.
                changed = f"index {folder.name!r} was replaced: add the attributes again"
                raise IndexChangedError(changed)
            committer = self._find(folder.name)

        def pass_on(values: AttributeValues) -> None:
            receive(upload, header, declared, values)

        committer.add_attributes(declared, pass_on, upload.report)
        info = folder.read_info()
        self._log.info("extended", index=folder.name, generation=info.generation, rows=info.rows)
        return info

    def refresh(self, name: str) -> None:
        """Close a collection if its index was replaced or deleted."""
        with self._lock, suppress(IndexNotFoundError, IndexDamagedError):
            self._find_open(name)

    def close(self) -> None:
        """Close all collections."""
        # A retraining that goes on may still remove one.
        for committer in list(self._open.values()):
            with suppress(Exception):
                committer.close()
        self._open.clear()

    def _answer_group(self, name: str, group: list[Call]) -> None:
        """Make the writes to one collection."""
        try:
            with self._lock:
                committer = self._find(name)
        except Exception as error:  # noqa: BLE001  # becomes the status of the calls
            for call in group:
                call.fail(error)
            return
        writes: list[tuple[Call, Request]] = []
        for call in group:
            try:
                writes.append((call, call.write(committer.manifest)))
            except Exception as error:  # noqa: BLE001  # becomes the status of the call
                call.fail(error)
        outcomes = committer.commit_all([write for _, write in writes]) if writes else []
        for (call, _), outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, Exception):
                call.fail(outcome)
                if isinstance(outcome, MergesBehindError):
                    self._meter.add_merges_behind(name)
            else:
                call.succeed(outcome)
                self._meter.add_write(name, outcome.rows)
        if committer.state is None:
            # Nothing was ever written, so attributes can still be added (`AddAttributes`).
            with self._lock:
                if self._open.get(name) is committer:
                    del self._open[name]
                committer.close()

    def _renew(self, event: str, name: str, renew: Callable[[Committer], bool]) -> RenewalOutcome:
        folder = IndexFolder(self._root / check_index_name(name))
        with self._lock:
            committer = self._find_open(folder.name)
            if committer is None and folder.read_info().writes is not None:
                committer = self._find(folder.name)
        if committer is None:
            return RenewalOutcome(folder.current(), 0, is_done=False)
        is_done = renew(committer)
        outcome = RenewalOutcome(committer.manifest.generation, committer.sequence, is_done)
        if is_done:
            generation, sequence, _ = outcome
            self._log.info(event, index=folder.name, generation=generation, sequence=sequence)
        return outcome

    def _find(self, name: str) -> Committer:
        """Return a collection at its current generation; raises the errors of opening it."""
        folder = IndexFolder(self._root / name)
        committer = self._find_open(name)
        if committer is None:
            engine = Engine(folder.open(), name, folder.path)
            # One thread writes to all collections, so it does not wait for the merges of one.
            committer = _MeteredCommitter(
                partial(self._meter.add_merge, name),
                engine,
                folder.path,
                self._durability,
                has_queries=False,
                waits_for_merges=False,
            )
            self._open[name] = committer
        return committer

    def _find_open(self, name: str) -> Committer | None:
        """Return a collection if it is open at its current generation; otherwise close it."""
        committer = self._open.get(name)
        is_current = False
        try:
            is_current = committer is not None and committer.is_current
        finally:
            if committer is not None and not is_current:
                del self._open[name]
                committer.close()
        return committer if is_current else None
