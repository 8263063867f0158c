"""The collections that the writer has open, and the writes to them."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from divgrpc.engine import Engine
from divgrpc.errors import IndexDamagedError, IndexNotFoundError
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import IndexFolder, read_manifest
from divgrpc.types import Durability, WriteResult
from divgrpc.writes.committer import Committer
from divgrpc.writes.writer import check_writable
from divgrpc.writes.written import Request
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
    Op.RETRAIN: writes_pb2.RetrainRequest,
}
_RESPONSES: Final[dict[int, Any]] = {
    Op.UPSERT: writes_pb2.UpsertResponse,
    Op.DELETE: writes_pb2.DeleteResponse,
}


class Collections:
    """The collections of a server by name; they are opened at their first write.

    One thread makes writes, and others merge and retrain.
    """

    def __init__(self, root: Path, durability: Durability, log: Logger) -> None:
        self._root, self._durability, self._log = root, durability, log
        self._open: dict[str, Committer] = {}
        # Held while collections are looked up, opened or removed from `_open`.
        self._lock = threading.Lock()

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

    def renew(self, request: packets.Request) -> Reply:
        """Make a merge, a vacuum or a retraining."""
        try:
            return self._renew(request, _parse(request))
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            return self.refuse(request, error)

    def refresh(self, name: str) -> None:
        """Close a collection if its index was replaced or deleted."""
        with self._lock, suppress(IndexNotFoundError, IndexDamagedError):
            self._find_open(name)

    def refuse(self, request: packets.Request, error: Exception) -> Reply:
        """Return the reply to a request that raised an error, or that is not made."""
        status = explain(error, request.tag, self._log)
        return Reply(request.id, Outcome.STATUS, status.SerializeToString())

    def close(self) -> None:
        """Close all collections."""
        # A retraining that goes on may still remove one.
        for committer in list(self._open.values()):
            with suppress(Exception):
                committer.close()
        self._open.clear()

    def _answer_group(
        self, name: str, group: list[tuple[packets.Request, Any]]
    ) -> dict[int, Reply]:
        """Make the writes to one collection."""
        replies: dict[int, Reply] = {}
        try:
            with self._lock:
                committer = self._find(name)
        except Exception as error:  # noqa: BLE001  # becomes the status of the calls
            return {request.id: self.refuse(request, error) for request, _ in group}
        calls: list[tuple[packets.Request, Request]] = []
        for request, message in group:
            try:
                if request.op == Op.UPSERT:
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
            with self._lock:
                if self._open.get(name) is committer:
                    del self._open[name]
                committer.close()
        return replies

    def _renew(self, request: packets.Request, message: Any) -> Reply:  # noqa: ANN401  # a message
        folder = IndexFolder(self._root / check_index_name(message.index))
        with self._lock:
            committer = self._find_open(folder.name)
            if committer is None and folder.read_info().writes is not None:
                committer = self._find(folder.name)
        if committer is None:
            check_writable(folder.read_current(read_manifest))
            is_done, generation, sequence = False, folder.current(), 0
        else:
            is_done = _renewed(committer, message)
            generation, sequence = committer.manifest.generation, committer.sequence
            if is_done:
                # The caller may have left, and a retraining takes long.
                event = "retrained" if request.op == Op.RETRAIN else "compacted"
                self._log.info(event, index=folder.name, generation=generation, sequence=sequence)
        response: Any
        if request.op == Op.COMPACT:
            response = writes_pb2.CompactResponse(merged=is_done)
        else:
            response = writes_pb2.RetrainResponse(retrained=is_done)
        response.generation, response.sequence = generation, sequence
        return Reply(request.id, Outcome.ANSWER, response.SerializeToString())

    def _find(self, name: str) -> Committer:
        """Return a collection at its current generation; raises the errors of opening it."""
        folder = IndexFolder(self._root / name)
        committer = self._find_open(name)
        if committer is None:
            engine = Engine(folder.open(), name, folder.path)
            committer = Committer(engine, folder.path, self._durability, has_queries=False)
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


def _renewed(committer: Committer, message: Any) -> bool:  # noqa: ANN401  # of `Op`
    """Return whether a collection was merged or retrained as a message asks."""
    if isinstance(message, writes_pb2.RetrainRequest):
        return committer.retrain()
    return (message.vacuum and committer.vacuum()) or committer.merge()
