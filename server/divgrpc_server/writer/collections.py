"""The collections that the writer has open, and the writes to them."""

from contextlib import suppress
from itertools import chain
from pathlib import Path

from divgrpc.engine import Engine
from divgrpc.errors import IndexDamagedError, IndexNotFoundError
from divgrpc.storage.generations import IndexFolder
from divgrpc.types import Durability
from divgrpc.writes.committer import Committer, Request
from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Reply
from divgrpc_server.logging.logs import Logger
from divgrpc_server.writer.calls import Call, calls_of, reply_of


class Collections:
    """The collections of a server by name; they are opened at their first write."""

    def __init__(self, root: Path, durability: Durability, log: Logger) -> None:
        self._root, self._durability, self._log = root, durability, log
        self._open: dict[str, Committer] = {}

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

    def refresh(self, name: str) -> None:
        """Close a collection if its index was replaced or deleted."""
        with suppress(IndexNotFoundError, IndexDamagedError):
            self._find_open(name)

    def close(self) -> None:
        """Close all collections."""
        for committer in self._open.values():
            with suppress(Exception):
                committer.close()
        self._open.clear()

    def _answer_group(self, name: str, group: list[Call]) -> None:
        """Make the writes to one collection."""
        try:
            committer = self._find(name)
        except Exception as error:  # noqa: BLE001  # becomes the status of the calls
            for call in group:
                call.fail(error)
            return
        writes: list[tuple[Call, Request]] = []
        for call in group:
            try:
                if call.op == Op.COMPACT:
                    call.answer(_compact(committer, vacuum=call.message.vacuum))
                else:
                    writes.append((call, call.write(committer.manifest)))
            except Exception as error:  # noqa: BLE001  # becomes the status of the call
                call.fail(error)
        outcomes = committer.commit_all([write for _, write in writes]) if writes else []
        for (call, _), outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, Exception):
                call.fail(outcome)
            else:
                call.succeed(outcome)
        if committer.state is None:
            # Nothing was ever written, so attributes can still be added (`AddAttributes`).
            self._open.pop(name).close()

    def _find(self, name: str) -> Committer:
        """Return a collection at its current generation; raises the errors of opening it."""
        folder = IndexFolder(self._root / name)
        committer = self._find_open(name)
        if committer is None:
            engine = Engine(folder.open(), name, folder.path)
            # One thread serves all collections, so it does not wait for the merges of one.
            committer = Committer(
                engine,
                folder.path,
                self._durability,
                has_queries=False,
                waits_for_merges=False,
            )
            self._open[name] = committer
        return committer

    def _find_open(self, name: str) -> Committer | None:
        """Return a collection if it is open at its current generation; else close it."""
        committer = self._open.get(name)
        is_current = False
        try:
            is_current = committer is not None and committer.is_current
        finally:
            if committer is not None and not is_current:
                del self._open[name]
                committer.close()
        return committer if is_current else None


def _compact(committer: Committer, *, vacuum: bool) -> writes_pb2.CompactResponse:
    has_merged = (vacuum and committer.vacuum()) or committer.merge()
    return writes_pb2.CompactResponse(
        generation=committer.manifest.generation,
        merged=has_merged,
        sequence=committer.sequence,
    )
