"""Rounds of messages to shards, as evaluators and builders send them to a front, and the replies.

Each thread of an evaluator may wait for a round, and a builder waits for several. So a round has a
number, and its replies have the same one. Both may be larger than a frame and are sent in parts,
which may come between those of other rounds. A part begins with the number and with a flag, which
is set in the last part.
"""

import struct
from collections.abc import Iterator
from typing import Final

from divgrpc_server.ipc.errors import FrameError

_HEAD: Final = struct.Struct("<IB3x")
_PART_BYTES_MAX: Final = 16 << 20


def parts_of(number: int, data: bytes) -> Iterator[bytes]:
    """Yield the payloads of the frames for the round `number`."""
    view = memoryview(data)
    for start in range(0, max(1, len(data)), _PART_BYTES_MAX):
        is_last = start + _PART_BYTES_MAX >= len(data)
        yield _HEAD.pack(number, is_last) + view[start : start + _PART_BYTES_MAX]


class Assembly:
    """The parts that have come of several rounds."""

    def __init__(self) -> None:
        self._parts: dict[int, list[bytes]] = {}

    def add(self, payload: bytes) -> tuple[int, bytes] | None:
        """Add the payload of a frame; return the number and the data of a round that is complete.

        Raises `FrameError`.
        """
        if len(payload) < _HEAD.size:
            raise FrameError(f"a part of a round has {len(payload)} bytes")
        number, is_last = _HEAD.unpack_from(payload)
        parts = self._parts.setdefault(number, [])
        parts.append(payload[_HEAD.size :])
        if not is_last:
            return None
        return number, b"".join(self._parts.pop(number))
