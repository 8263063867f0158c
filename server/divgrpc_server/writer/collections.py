"""The collections that the writer has open, and the writes to them."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from divgrpc.engine import Engine
from divgrpc.errors import IndexDamagedError, IndexNotFoundError
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import IndexFolder
from divgrpc.types import Durability, WriteResult
from divgrpc.writes.committer import Committer, Request
from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.codec import writes
from divgrpc_server.codec.statuses import OutOfMemoryError, explain
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply
from divgrpc_server.logging.logs import Logger

_MESSAGES: Final[dict[int, Any]] = {
    Op.UPSERT: writes_pb2.UpsertRequest,
    Op.DELETE: writes_pb2.DeleteRequest,
    Op.COMPACT: writes_pb2.CompactRequest,
}
_RESPONSES: Final[dict[int, Any]] = {
    Op.UPSERT: writes_pb2.UpsertResponse,
    Op.DELETE: writes_pb2.DeleteResponse,
}


class Collections:
    """The collections of a server by name; they are opened at their first write."""

    def __init__(self, root: Path, durability: Durability, log: Logger) -> None:
        self._root, self._durability, self._log = root, durability, log
        self._open: dict[str, Committer] = {}

    def answer(self, requests: list[packets.Request]) -> list[Reply]:
        """Make the writes of several requests, with one sync for each collection."""
        replies: dict[int, Reply] = {}
        groups: dict[str, list[tuple[packets.Request, Any]]] = {}
        for request in requests:
            try:
                message = _parse(request)
                groups.setdefault(check_index_name(message.index), []).append((request, message))
            except Exception as error:  # noqa: BLE001  # becomes the status of the call
                replies[request.id] = self.refuse(request, error)
        for name, group in groups.items():
            replies |= self._answer_group(name, group)
        return [replies[request.id] for request in requests]

    def refresh(self, name: str) -> None:
        """Close a collection if its index was replaced or deleted."""
        with suppress(IndexNotFoundError, IndexDamagedError):
            self._find_open(name)

    def refuse(self, request: packets.Request, error: Exception) -> Reply:
        """Return the reply to a request that raised an error, or that is not made."""
        status = explain(error, request.tag, self._log)
        return Reply(request.id, Outcome.STATUS, status.SerializeToString())

    def close(self) -> None:
        """Close all collections."""
        for committer in self._open.values():
            with suppress(Exception):
                committer.close()
        self._open.clear()

    def _answer_group(
        self, name: str, group: list[tuple[packets.Request, Any]]
    ) -> dict[int, Reply]:
        """Make the writes to one collection."""
        replies: dict[int, Reply] = {}
        try:
            committer = self._find(name)
        except Exception as error:  # noqa: BLE001  # becomes the status of the calls
            return {request.id: self.refuse(request, error) for request, _ in group}
        calls: list[tuple[packets.Request, Request]] = []
        for request, message in group:
            try:
                if request.op == Op.COMPACT:
                    replies[request.id] = _compact(committer, request, vacuum=message.vacuum)
                elif request.op == Op.UPSERT:
                    calls.append((request, writes.parse_upsert(message, committer.manifest)))
                else:
                    calls.append((request, writes.parse_delete(message, committer.manifest)))
            except Exception as error:  # noqa: BLE001  # becomes the status of the call
                replies[request.id] = self.refuse(request, error)
        outcomes = committer.commit_all([write for _, write in calls]) if calls else []
        for (request, _), outcome in zip(calls, outcomes, strict=True):
            replies[request.id] = self._reply(request, outcome)
        if committer.state is None:
            # Nothing was ever written, so attributes can still be added (`AddAttributes`).
            self._open.pop(name).close()
        return replies

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

    def _reply(self, request: packets.Request, outcome: WriteResult | Exception) -> Reply:
        if isinstance(outcome, Exception):
            return self.refuse(request, outcome)
        response = _RESPONSES[request.op](
            generation=outcome.generation, sequence=outcome.sequence, rows=outcome.rows
        )
        return Reply(request.id, Outcome.ANSWER, response.SerializeToString())


def _parse(request: packets.Request) -> Any:  # noqa: ANN401  # one of `_MESSAGES`
    """Return the message of a request; raises `DecodeError` and `OutOfMemoryError`."""
    if request.op == Op.LOST:
        raise OutOfMemoryError("the writer has no descriptor left for the request")
    return _MESSAGES[request.op].FromString(request.payload)


def _compact(committer: Committer, request: packets.Request, *, vacuum: bool) -> Reply:
    has_merged = (vacuum and committer.vacuum()) or committer.merge()
    response = writes_pb2.CompactResponse(
        generation=committer.manifest.generation,
        merged=has_merged,
        sequence=committer.sequence,
    )
    return Reply(request.id, Outcome.ANSWER, response.SerializeToString())
