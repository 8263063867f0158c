"""The messages of a WriteStream that a front sends to the writer together, and their outcomes.

A batch is a sequence of messages, each behind its length. The reply has one outcome for each
message, in the same order. After a message that cannot be parsed, the reply ends.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from divgrpc_server.ipc.errors import FrameError

_LENGTH: Final = struct.Struct("<I")
_OUTCOME: Final = struct.Struct("<BI")


class Kind(IntEnum):
    """The kind of an outcome."""

    ANSWER = 0  # the payload is a WriteStreamResponse
    PUT_OFF = 1  # nothing was done for lack of room; the message is to be sent again
    STATUS = 2  # the payload is the google.rpc.Status of a message that cannot be parsed


_KINDS: Final = frozenset(Kind)


class WriteOutcome(NamedTuple):
    """The outcome of one message; the `Kind` says what the payload holds."""

    kind: int
    payload: bytes = b""


def pack_messages(messages: Iterable[bytes]) -> bytes:
    """Return messages as the payload of a request."""
    return b"".join(part for m in messages for part in (_LENGTH.pack(len(m)), m))


def unpack_messages(payload: bytes) -> Iterator[bytes]:
    """Yield the messages of `pack_messages`; raises `FrameError`."""
    for (_,), message in _unpack(_LENGTH, payload):
        yield message


def pack_outcomes(outcomes: Iterable[WriteOutcome]) -> bytes:
    """Return outcomes as the payload of a reply."""
    return b"".join(
        part for o in outcomes for part in (_OUTCOME.pack(o.kind, len(o.payload)), o.payload)
    )


def unpack_outcomes(payload: bytes) -> Iterator[WriteOutcome]:
    """Yield the outcomes of `pack_outcomes`; raises `FrameError`."""
    for (kind, _), outcome in _unpack(_OUTCOME, payload):
        if kind not in _KINDS:
            raise FrameError("a batch has an outcome of an unknown kind")
        yield WriteOutcome(kind, outcome)


def _unpack(head: struct.Struct, payload: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Yield the numbers of each head, the last of which is a length, and the bytes behind it."""
    start = 0
    while start < len(payload):
        if len(payload) - start < head.size:
            raise FrameError("a batch ends within a length")
        numbers = head.unpack_from(payload, start)
        start += head.size + numbers[-1]
        if start > len(payload):
            raise FrameError("a batch ends within a message")
        yield numbers, payload[start - numbers[-1] : start]
