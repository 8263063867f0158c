"""Fingerprints of queries that ended two workers, remembered for a minute.

Or until their index changes: what was wrong may have been wrong with the index.
"""

import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from divgrpc_protos.v1 import predict_pb2, query_pb2
from divgrpc_server.ipc.packets import Op

_SECONDS: Final = 60.0
_ENTRIES: Final = 1024


class _Entry(NamedTuple):
    """When to forget a query, and the index it was for as it was."""

    until: float
    name: str
    stamp: object


class Quarantine:
    """Remembers which queries not to try again; empty but for the worst of days."""

    def __init__(self, stamp: Callable[[str], object]) -> None:
        """Begin with none; `stamp` gives of an index what changes with every generation."""
        self._stamp = stamp
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def add(self, op: int, payload: bytes) -> None:
        """Remember a query."""
        name = index_of(op, payload)
        fingerprint = _fingerprint(op, payload)
        self._entries[fingerprint] = _Entry(time.monotonic() + _SECONDS, name, self._stamp(name))
        self._entries.move_to_end(fingerprint)
        while len(self._entries) > _ENTRIES:
            self._entries.popitem(last=False)

    def holds(self, op: int, payload: bytes) -> bool:
        """Tell whether a query is remembered; costs nothing while none is."""
        while self._entries and next(iter(self._entries.values())).until < time.monotonic():
            self._entries.popitem(last=False)
        if not self._entries:
            return False
        fingerprint = _fingerprint(op, payload)
        entry = self._entries.get(fingerprint)
        if entry is not None and entry.stamp != self._stamp(entry.name):
            del self._entries[fingerprint]
            return False
        return entry is not None


def index_of(op: int, payload: bytes) -> str:
    """Return the name of the index that a query is for, "" where that cannot be told."""
    try:
        if op == Op.STREAM:
            return query_pb2.QueryStreamRequest.FromString(payload).query.index
        if op == Op.PREDICT:
            return predict_pb2.PredictLabelsRequest.FromString(payload).index
        return query_pb2.QueryRequest.FromString(payload).index
    except DecodeError:
        return ""


def _fingerprint(op: int, payload: bytes) -> bytes:
    """Return what makes a query the same again, whatever number its stream gave it."""
    if op == Op.STREAM:
        with contextlib.suppress(DecodeError):
            payload = query_pb2.QueryStreamRequest.FromString(payload).query.SerializeToString()
    return hashlib.blake2b(payload, digest_size=16).digest()
