"""Messages between a router and shards: named columns of numbers, packed.

A message begins with the version of the format, the number of its layout and the sizes of all
columns. The columns follow, each from a multiple of eight bytes on.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.errors import invalid

VERSION: Final = 1
_HEAD: Final = struct.Struct("<HHI")
_SIZE: Final = struct.Struct("<q")
_ALIGNMENT_BYTES: Final = 8
_FIELD: Final = "message"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a message: its name, its dtype and its number of dimensions."""

    name: str
    dtype: npt.DTypeLike
    dimensions: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a kind of messages. Different layouts have different numbers."""

    number: int
    columns: tuple[Column, ...]

    def pack(self, columns: Mapping[str, Array]) -> bytes:
        """Return a message; a column that `columns` does not have is empty."""
        parts: list[bytes] = [_HEAD.pack(VERSION, self.number, len(self.columns))]
        arrays = []
        for column in self.columns:
            array = columns.get(column.name)
            if array is None:
                array = np.empty((0,) * column.dimensions, column.dtype)
            assert array.dtype == column.dtype and array.ndim == column.dimensions  # noqa: S101, PT018  # a mistake of the caller
            parts += [_SIZE.pack(size) for size in array.shape]
            arrays.append(array)
        for array in arrays:
            parts += [array.tobytes(), bytes(-array.nbytes % _ALIGNMENT_BYTES)]
        return b"".join(parts)

    def unpack(self, message: bytes) -> dict[str, Array]:
        """Return the columns of a message, read-only.

        Raises `InvalidArgumentError` with the field `message` for anything else than a whole
        message of this layout and version.
        """
        if len(message) < _HEAD.size:
            raise invalid(_FIELD, "is too short")
        version, number, count = _HEAD.unpack_from(message)
        if version != VERSION:
            raise invalid(_FIELD, f"must be of version {VERSION}, got {version}")
        if number != self.number or count != len(self.columns):
            raise invalid(_FIELD, f"must have the layout {self.number}, got {number}")
        shapes, start = self._shapes(message)
        arrays = {}
        for column, shape in zip(self.columns, shapes, strict=True):
            dtype = np.dtype(column.dtype)
            values, size = math.prod(shape), math.prod(shape) * dtype.itemsize
            if start + size > len(message):
                raise invalid(_FIELD, f"ends within the column {column.name}")
            arrays[column.name] = np.frombuffer(message, dtype, values, start).reshape(shape)
            start += size + -size % _ALIGNMENT_BYTES
        if start != len(message):
            raise invalid(_FIELD, f"must have {start} bytes, got {len(message)}")
        return arrays

    def _shapes(self, message: bytes) -> tuple[list[tuple[int, ...]], int]:
        """Return the shape of each column, and where the first one begins."""
        count = sum(column.dimensions for column in self.columns)
        start = _HEAD.size + count * _SIZE.size
        if len(message) < start:
            raise invalid(_FIELD, "ends before its columns")
        sizes = [
            _SIZE.unpack_from(message, _HEAD.size + place * _SIZE.size)[0] for place in range(count)
        ]
        if any(not 0 <= size <= len(message) for size in sizes):
            raise invalid(_FIELD, "has a column with an impossible size")
        remaining = iter(sizes)
        shapes = [
            tuple(next(remaining) for _ in range(column.dimensions)) for column in self.columns
        ]
        return shapes, start


_ENVELOPE: Final = Layout(1, (Column("ends", np.int64), Column("bytes", np.uint8)))


def join(messages: Sequence[bytes]) -> bytes:
    """Return one message that holds several."""
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    return _ENVELOPE.pack({"ends": ends, "bytes": np.frombuffer(b"".join(messages), np.uint8)})


def divide(message: bytes) -> list[bytes]:
    """Return the messages that `join` has joined; raises `InvalidArgumentError`."""
    columns = _ENVELOPE.unpack(message)
    ends, body = columns["ends"].tolist(), columns["bytes"].tobytes()
    starts = [0, *ends]
    ascends = all(start <= end for start, end in zip(starts, ends, strict=False))
    if starts[-1] != len(body) or not ascends:
        raise invalid(_FIELD, "has messages with impossible ends")
    return [body[start:end] for start, end in zip(starts, ends, strict=False)]
