"""Random changes of requests, in their fields and in their bytes.

Fields are changed according to their descriptors, so that most changed requests still parse and
pass the first checks. Bytes are changed regardless of their meaning. The generator that the caller
passes determines all changes.
"""

import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Draw: TypeAlias = random.Random

_WHOLE: Final = (
    *(0, 1, 2, 3, 7, 8, 9, 24, 25, 200, 255, 256, 257, 1_000, 9_999, 10_000, 10_001),
    *(2**16 - 1, 2**16, 2**16 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1),
    *(2**63 - 1, 2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63)),
)
_REAL: Final = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 5e-324, 1e30, 1e300, 1.0000001, -1e-9),
    *(math.nan, math.inf, -math.inf),
)
_SINGLE: Final = (
    *(0.0, -0.0, 1e-45, 1e-30, 1e15, 1e18, 1e19, 3e38, -3e38),
    *(math.nan, math.inf, -math.inf),
)
_TEXTS: Final = (
    *("", "scratch", "scratch-2", "nobody", "../x", "a\0b"),
    *("\u00e9", "x" * 300, "-", "Upper"),
)
_ENUMS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 99, 2**31 - 1, -1)
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def mutated(draw: Draw, message: Message) -> bytes:
    """Return a message as bytes, after changes of its fields, of its bytes, or of both."""
    mutant = type(message)()
    mutant.CopyFrom(message)
    way = draw.random()
    if way < 0.75:
        for _ in range(draw.choice((1, 1, 1, 2))):
            change_field(draw, mutant)
    payload = mutant.SerializeToString()
    if way >= 0.65:
        for _ in range(draw.choice((1, 1, 2, 4))):
            payload = change_bytes(draw, payload)
    return payload


def change_field(draw: Draw, message: Message) -> None:
    """Change a field at any depth: to an extreme value, to unset, or to another oneof member."""
    spots = list(_spots(message))
    if not spots:
        return
    owner, field = draw.choice(spots)
    if field.is_repeated:
        _change_repeated(draw, owner, field)
    elif draw.random() < 0.12:
        owner.ClearField(field.name)
    elif field.message_type is not None:
        getattr(owner, field.name).SetInParent()
    else:
        setattr(owner, field.name, _extreme(draw, field, getattr(owner, field.name)))


def _spots(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    fields: list[FieldDescriptor] = list(message.DESCRIPTOR.fields)  # type: ignore[arg-type]  # upb's own class, the same
    for field in fields:
        yield message, field
        if field.message_type is None or field.is_repeated:
            continue
        if message.HasField(field.name):
            yield from _spots(getattr(message, field.name))


def _change_repeated(draw: Draw, owner: Message, field: FieldDescriptor) -> None:
    values = getattr(owner, field.name)
    if field.message_type is not None:
        values.add()
        return
    items = list(values)
    match draw.randrange(4):
        case 0:
            items *= 2
        case 1:
            items = items[:-1]
        case 2 if items:
            place = draw.randrange(len(items))
            items[place] = _extreme(draw, field, items[place])
        case _:
            absent = b"" if field.type == FieldDescriptor.TYPE_BYTES else 0
            items.append(_extreme(draw, field, items[0] if items else absent))
    del values[:]
    values.extend(items)


def _extreme(draw: Draw, field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401  # a field's type
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        near = [value - 1, value + 1, value * 2]
        return draw.choice([n for n in (*_WHOLE, *near) if low <= n <= high])
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return draw.choice(_REAL)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice(_ENUMS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _change_numbers(draw, value)
    return draw.choice(_TEXTS)


def _change_numbers(draw: Draw, data: bytes) -> bytes:
    """Change the bytes of an array of numbers: their count, their order, or some of the values."""
    match draw.randrange(8):
        case 0:
            return data[: -draw.choice((1, 2, 4, 8))]
        case 1:
            return data + bytes(draw.choice((1, 2, 4, 8)))
        case 2:
            return draw.choice((b"", data * 2, bytes(len(data)), b"\xff" * len(data)))
        case 3 if len(data) >= 16:
            return data[8:16] + data[:8] + data[16:]
        case 4 if len(data) >= 8:
            return _put(draw, data, 8, struct.pack("<q", draw.choice(_WHOLE[:24])))
        case 5 if len(data) >= 4:
            number = draw.choice([n for n in _WHOLE if 0 <= n < 2**32])
            return _put(draw, data, 4, struct.pack("<I", number))
    if len(data) < 4:
        return bytes(draw.randrange(16))
    return _put(draw, data, 4, struct.pack("<f", draw.choice(_SINGLE)))


def _put(draw: Draw, data: bytes, size: int, number: bytes) -> bytes:
    at = draw.randrange(len(data) // size) * size
    return data[:at] + number + data[at + size :]


def _flip(draw: Draw, data: bytearray) -> bytes:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def _truncate(draw: Draw, data: bytearray) -> bytes:
    return bytes(data[: draw.randrange(len(data) + 1)])


def _double(draw: Draw, data: bytearray) -> bytes:
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return bytes(data[:stop] + data[start:])


def _remove(draw: Draw, data: bytearray) -> bytes:
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return bytes(data[:start] + data[stop:])


def _insert(draw: Draw, data: bytearray) -> bytes:
    at = draw.randrange(len(data) + 1)
    return bytes(data[:at] + draw.randbytes(draw.randrange(1, 12)) + data[at:])


def _prepend(draw: Draw, data: bytearray) -> bytes:
    # Malformed wire data: a field number that no message has, varints that are too long, and a
    # group that is never closed.
    return draw.choice((b"\xff" * 10, b"\xf8\x7f\x01", b"\x80" * 9 + b"\x01", b"\x0b")) + data


def _twice(_: Draw, data: bytearray) -> bytes:
    return bytes(data * 2)


_BYTES: Final[tuple[Callable[[Draw, bytearray], bytes], ...]] = (
    *(_flip, _flip, _flip, _truncate, _double, _remove, _insert, _prepend, _twice),
)


def change_bytes(draw: Draw, payload: bytes) -> bytes:
    """Change some bytes without regard to their meaning."""
    return draw.choice(_BYTES)(draw, bytearray(payload))
