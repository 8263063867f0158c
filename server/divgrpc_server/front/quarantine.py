"""The quarantine: fingerprints of queries that killed two workers.

A query in quarantine is refused for a minute. If its index changes, it is admitted earlier, because
the old generation may have been the cause of the deaths.
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

_STAY_SECONDS: Final = 60.0
_ENTRIES_MAX: Final = 1024


class _Entry(NamedTuple):
    """A query in quarantine.

    `until` is the end of its stay, in seconds of `time.monotonic`. `name` is its index, and `stamp`
    is the stamp that the index had when the query was added.
    """

    until: float
    name: str
    stamp: object


class Quarantine:
    """The set of queries that the front refuses, which is usually empty."""

    def __init__(self, stamp: Callable[[str], object]) -> None:
        """Create an empty quarantine.

        `stamp` returns, for the name of an index, a value that changes with every generation.
        """
        self._stamp = stamp
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def add(self, op: int, payload: bytes) -> None:
        """Add a query."""
        name = index_of(op, payload)
        fingerprint = _fingerprint(op, payload)
        self._entries[fingerprint] = _Entry(
            time.monotonic() + _STAY_SECONDS, name, self._stamp(name)
        )
        self._entries.move_to_end(fingerprint)
        while len(self._entries) > _ENTRIES_MAX:
            self._entries.popitem(last=False)

    def holds(self, op: int, payload: bytes) -> bool:
        """Return whether a query is in quarantine; an empty quarantine hashes no query."""
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
    """Return the name of the index that a query names, or "" if the query cannot be parsed."""
    try:
        if op == Op.STREAM:
            return query_pb2.QueryStreamRequest.FromString(payload).query.index
        if op == Op.PREDICT:
            return predict_pb2.PredictLabelsRequest.FromString(payload).index
        return query_pb2.QueryRequest.FromString(payload).index
    except DecodeError:
        return ""


def _fingerprint(op: int, payload: bytes) -> bytes:
    """Return a hash of a query that does not depend on its correlation id."""
    if op == Op.STREAM:
        with contextlib.suppress(DecodeError):
            payload = query_pb2.QueryStreamRequest.FromString(payload).query.SerializeToString()
    return hashlib.blake2b(payload, digest_size=16).digest()
