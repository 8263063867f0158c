"""Fingerprints of queries that ended two workers, remembered for a minute."""

import contextlib
import hashlib
import time
from collections import OrderedDict
from typing import Final

from google.protobuf.message import DecodeError

from divgrpc_protos.v1 import query_pb2
from divgrpc_server.frames import Op

_SECONDS: Final = 60.0
_ENTRIES: Final = 1024


class Quarantine:
    """Remembers which queries not to try again; empty but for the worst of days."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, op: int, payload: bytes) -> None:
        """Remember a query."""
        self._until[_fingerprint(op, payload)] = time.monotonic() + _SECONDS
        while len(self._until) > _ENTRIES:
            self._until.popitem(last=False)

    def holds(self, op: int, payload: bytes) -> bool:
        """Tell whether a query is remembered; costs nothing while none is."""
        if not self._until:
            return False
        while self._until and next(iter(self._until.values())) < time.monotonic():
            self._until.popitem(last=False)
        return _fingerprint(op, payload) in self._until


def _fingerprint(op: int, payload: bytes) -> bytes:
    """Return what makes a query the same again, whatever number its stream gave it."""
    if op == Op.STREAM:
        with contextlib.suppress(DecodeError):
            payload = query_pb2.QueryStreamRequest.FromString(payload).query.SerializeToString()
    return hashlib.blake2b(payload, digest_size=16).digest()
