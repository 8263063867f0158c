"""Messages between a router and shards: named columns of numbers, packed.

A message begins with the version of the format, the number of its layout and the sizes of all
columns. The columns follow, each from a multiple of eight bytes on.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS

Buffer: TypeAlias = bytes | memoryview

VERSION: Final = 1
_ALIGNMENT_BYTES: Final = 8
# The field that errors of malformed messages name.
MESSAGE_FIELD: Final = "message"


def _head(sizes: int) -> struct.Struct:
    """Return the form of what precedes the columns: three numbers, and so many sizes."""
    return struct.Struct(f"<HHI{sizes}q")


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

    # The first 64 bits of a message.
    first_word: int = field(init=False, compare=False)
    # (c, 2) int64, the bytes of an item and the number of dimensions of each column.
    forms: npt.NDArray[np.int64] = field(init=False, compare=False)
    head: struct.Struct = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Compute what kernels read."""
        forms = [(dtype.itemsize, dimensions) for _, dtype, dimensions in self.columns]
        object.__setattr__(self, "forms", np.array(forms, np.int64))
        head = _head(sum(dimensions for _, _, dimensions in self.columns))
        object.__setattr__(self, "head", head)
        word = VERSION | self.number << 16 | len(self.columns) << 32
        object.__setattr__(self, "first_word", word)

    def pack(self, columns: Mapping[str, Array]) -> bytes:
        """Return a message; a column that `columns` does not have is empty."""
        sizes: list[int] = []
        parts: list[bytes] = []
        for name, dtype, dimensions in self.columns:
            array = columns.get(name)
            if array is None or not array.size:
                # The width of a matrix without rows says nothing, and may exceed the message.
                sizes += [0] * dimensions
                continue
            assert array.dtype == dtype and array.ndim == dimensions  # noqa: S101, PT018  # a mistake of the caller
            sizes += array.shape
            parts.append(array.tobytes())
            if padding := -array.nbytes % _ALIGNMENT_BYTES:
                parts.append(bytes(padding))
        head = self.head.pack(VERSION, self.number, len(self.columns), *sizes)
        return b"".join([head, *parts])

    def unpack(self, message: Buffer) -> dict[str, Array]:
        """Return the columns of a message, read-only.

        Raises `InvalidArgumentError` with the field `message` for anything else than a whole
        message of this layout and version.
        """
        sizes = self._sizes_of(message)
        start, place, arrays = self.head.size, 0, {}
        for name, dtype, dimensions in self.columns:
            values, place = sizes[place], place + dimensions
            if dimensions > 1:
                values = math.prod(sizes[place - dimensions : place])
            elif not values:
                # Most columns of a message are empty.
                arrays[name] = _empty(dtype)
                continue
            size = values * dtype.itemsize
            if start + size > len(message):
                raise invalid(MESSAGE_FIELD, f"ends within the column {name}")
            array = np.frombuffer(message, dtype, values, start)
            if dimensions > 1:
                array = array.reshape(sizes[place - dimensions : place])
            arrays[name] = array
            start += size + -size % _ALIGNMENT_BYTES
        if start != len(message):
            raise invalid(MESSAGE_FIELD, f"must have {start} bytes, got {len(message)}")
        return arrays

    def _sizes_of(self, message: Buffer) -> list[int]:
        """Return the sizes of the columns of a message, each at most its length."""
        if len(message) < self.head.size:
            raise invalid(MESSAGE_FIELD, "ends before its columns")
        version, number, count, *sizes = self.head.unpack_from(message)
        if version != VERSION:
            raise invalid(MESSAGE_FIELD, f"must be of version {VERSION}, got {version}")
        if number != self.number or count != len(self.columns):
            raise invalid(MESSAGE_FIELD, f"must have the layout {self.number}, got {number}")
        if min(sizes) < 0 or max(sizes) > len(message):
            raise invalid(MESSAGE_FIELD, "has a column with an impossible size")
        return sizes


@cache
def _empty(dtype: np.dtype[Any]) -> Array:
    """Return a column without items."""
    return read_only(np.empty(0, dtype))


_ENVELOPE: Final = Layout(1, (Column.of("ends", np.int64), Column.of("bytes", np.uint8)))
_ENVELOPE_HEAD: Final = _head(2)
# The head and the only end of an envelope of one message.
_ENVELOPE_OF_ONE: Final = _head(3)
_KIND_OF_ONE: Final = [VERSION, _ENVELOPE.number, 2, 1]


def join(messages: Sequence[Buffer]) -> bytes:
    """Return one message that holds several."""
    ends = list(accumulate(map(len, messages)))
    size = ends[-1] if ends else 0
    head = _ENVELOPE_HEAD.pack(VERSION, _ENVELOPE.number, 2, len(ends), size)
    packed = struct.pack(f"<{len(ends)}q", *ends)
    return b"".join([head, packed, *messages, bytes(-size % _ALIGNMENT_BYTES)])


def divide(message: Buffer) -> list[Buffer]:
    """Return the messages that `join` has joined; raises `InvalidArgumentError`.

    They are views, but for those whose columns would not begin at multiples of eight bytes.
    """
    view = memoryview(message)
    if len(view) > _ENVELOPE_OF_ONE.size:
        # Most envelopes hold one message, and a query has an envelope for each shard.
        *kind, size, end = _ENVELOPE_OF_ONE.unpack_from(view)
        first = _ENVELOPE_OF_ONE.size
        if kind == _KIND_OF_ONE and len(view) == first + size == first + end:
            return [view[first:]]
    size, ends = _ends_of(view)
    first = _ENVELOPE_HEAD.size + len(ends) * _ALIGNMENT_BYTES
    starts = (0, *ends)
    ascends = all(start <= end for start, end in zip(starts, ends, strict=False))
    if starts[-1] != size or not ascends:
        raise invalid(MESSAGE_FIELD, "has messages with impossible ends")
    return [
        bytes(view[first + start : first + end])
        if start % _ALIGNMENT_BYTES
        else view[first + start : first + end]
        for start, end in zip(starts, ends, strict=False)
    ]


def _ends_of(message: memoryview) -> tuple[int, tuple[int, ...]]:
    """Return the number of bytes of the messages that an envelope holds, and where each ends."""
    if len(message) >= _ENVELOPE_HEAD.size:
        # `Layout.unpack` takes several times as long.
        *kind, count, size = _ENVELOPE_HEAD.unpack_from(message)
        first = _ENVELOPE_HEAD.size + count * _ALIGNMENT_BYTES
        is_whole = size >= 0 and first + size + -size % _ALIGNMENT_BYTES == len(message)
        is_small = 0 <= count <= LIMITS["query_rows_max"]
        if is_whole and is_small and kind == [VERSION, _ENVELOPE.number, 2]:
            return size, struct.unpack_from(f"<{count}q", message, _ENVELOPE_HEAD.size)
    _ENVELOPE.unpack(message)
    raise invalid(MESSAGE_FIELD, f"must hold at most {LIMITS['query_rows_max']} messages")
