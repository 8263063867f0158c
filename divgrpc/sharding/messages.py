"""Messages between a router and shards: named columns of numbers, packed.

A message begins with the version of the format, the number of its layout and the sizes of all
columns. The columns follow, each from a multiple of eight bytes on.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS

VERSION: Final = 1
_ALIGNMENT_BYTES: Final = 8
_FIELD: Final = "message"


class Column(NamedTuple):
    """A column of a message: its name, its dtype and its number of dimensions."""

    name: str
    dtype: np.dtype[Any]
    dimensions: int

    @classmethod
    def of(cls, name: str, dtype: npt.DTypeLike, dimensions: int = 1) -> "Column":
        """Return a column."""
        return cls(name, np.dtype(dtype), dimensions)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a kind of messages. Different layouts have different numbers."""

    number: int
    columns: tuple[Column, ...]

    def pack(self, columns: Mapping[str, Array]) -> bytes:
        """Return a message; a column that `columns` does not have is empty."""
        sizes: list[int] = []
        parts: list[bytes] = []
        for name, dtype, dimensions in self.columns:
            array = columns.get(name)
            if array is None:
                sizes += [0] * dimensions
                continue
            assert array.dtype == dtype and array.ndim == dimensions  # noqa: S101, PT018  # a mistake of the caller
            # The width of a matrix without rows says nothing, and may exceed the message.
            sizes += array.shape if array.size else [0] * dimensions
            parts += [array.tobytes(), bytes(-array.nbytes % _ALIGNMENT_BYTES)]
        head = _head(len(sizes)).pack(VERSION, self.number, len(self.columns), *sizes)
        return b"".join([head, *parts])

    def unpack(self, message: bytes) -> dict[str, Array]:
        """Return the columns of a message, read-only.

        Raises `InvalidArgumentError` with the field `message` for anything else than a whole
        message of this layout and version.
        """
        head = _head(sum(dimensions for _, _, dimensions in self.columns))
        if len(message) < head.size:
            raise invalid(_FIELD, "ends before its columns")
        version, number, count, *sizes = head.unpack_from(message)
        if version != VERSION:
            raise invalid(_FIELD, f"must be of version {VERSION}, got {version}")
        if number != self.number or count != len(self.columns):
            raise invalid(_FIELD, f"must have the layout {self.number}, got {number}")
        if min(sizes) < 0 or max(sizes) > len(message):
            raise invalid(_FIELD, "has a column with an impossible size")
        start, place, arrays = head.size, 0, {}
        for name, dtype, dimensions in self.columns:
            shape = sizes[place : place + dimensions]
            values, place = math.prod(shape), place + dimensions
            size = values * dtype.itemsize
            if start + size > len(message):
                raise invalid(_FIELD, f"ends within the column {name}")
            array = np.frombuffer(message, dtype, values, start)
            arrays[name] = array if dimensions == 1 else array.reshape(shape)
            start += size + -size % _ALIGNMENT_BYTES
        if start != len(message):
            raise invalid(_FIELD, f"must have {start} bytes, got {len(message)}")
        return arrays


@cache
def _head(sizes: int) -> struct.Struct:
    """Return the form of what precedes the columns: three numbers, and so many sizes."""
    return struct.Struct(f"<HHI{sizes}q")


_ENVELOPE: Final = Layout(1, (Column.of("ends", np.int64), Column.of("bytes", np.uint8)))


def join(messages: Sequence[bytes]) -> bytes:
    """Return one message that holds several."""
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    return _ENVELOPE.pack({"ends": ends, "bytes": np.frombuffer(b"".join(messages), np.uint8)})


def divide(message: bytes) -> list[bytes]:
    """Return the messages that `join` has joined; raises `InvalidArgumentError`."""
    columns = _ENVELOPE.unpack(message)
    if len(columns["ends"]) > LIMITS["query_rows_max"]:
        raise invalid(_FIELD, f"must hold at most {LIMITS['query_rows_max']} messages")
    ends, body = columns["ends"].tolist(), columns["bytes"].tobytes()
    starts = [0, *ends]
    ascends = all(start <= end for start, end in zip(starts, ends, strict=False))
    if starts[-1] != len(body) or not ascends:
        raise invalid(_FIELD, "has messages with impossible ends")
    return [body[start:end] for start, end in zip(starts, ends, strict=False)]
