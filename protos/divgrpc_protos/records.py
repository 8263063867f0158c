"""Dataclasses to messages and back, by the names of their fields.

A dataclass, or a NamedTuple, and its message have the same field names, so no field is listed here.
The message's descriptor and the type hints of the dataclass decide how a field is converted:

    message                       dataclass
    enum                          word, such as "lsh_sdiv" for HASH_FAMILY_LSH_SDIV
    message                       dataclass, or a dict of the message's fields
    repeated message              tuple of dataclasses
    repeated number or text       tuple, or array of the dtype in the hint
    map                           dict
    optional field that is unset  None

What reflection finds is kept for each pair of classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from divgrpc_protos import words

RecordT = TypeVar("RecordT")
MessageT = TypeVar("MessageT", bound=Message)
Convert = Callable[[Any], Any]


class UnknownWordError(ValueError):
    """An enum field holds a number for which the contract has no word."""

    def __init__(self, field: str, number: int) -> None:
        super().__init__(f"{field} has no value {number}")
        self.field = field


def to_message(record: object, kind: type[MessageT]) -> MessageT:
    """Return the message of a dataclass or NamedTuple; fields that are None stay unset.

    Fields of the message that the record lacks stay unset too.
    """
    classes: tuple[Any, Any] = (type(record), kind)
    fields = {name: write(record) for name, write in _writers(*classes)}
    return kind(**fields)


def from_message(message: Message, kind: type[RecordT]) -> RecordT:
    """Return the dataclass or NamedTuple of a message.

    A number for which an enum has no word, as a newer peer may send it, is given as its digits.
    """
    classes: tuple[Any, Any] = (kind, type(message))
    readers = _readers(*classes)
    return kind(**{name: read(message) for name, read in readers})


def set_values(message: Message) -> dict[str, Any]:
    """Return the fields of a message that are set and hold no message, enums as words.

    An enum that is unspecified is not set. Raises `UnknownWordError`.
    """
    set_fields = message.ListFields()
    return {
        field.name: word_of(field, value) if field.enum_type is not None else value
        for field, value in set_fields
        if field.message_type is None
    }


def word_of(field: FieldDescriptor, number: int) -> str:
    """Return the word of an enum value; raises `UnknownWordError` where there is none."""
    word = words.to_word(field, number)
    if word is None:
        raise UnknownWordError(field.name, number)
    return word


def fields_of(kind: type[Message]) -> dict[str, FieldDescriptor]:
    """Return the fields of a message by name, in their order."""
    descriptor = cast(Descriptor, kind.DESCRIPTOR)
    return {field.name: field for field in descriptor.fields}


def class_of(field: FieldDescriptor) -> type[Message]:
    """Return the class of the messages that a field holds."""
    return message_factory.GetMessageClass(cast(Descriptor, field.message_type))


@cache
def _writers(record: type, kind: type[Message]) -> list[tuple[str, Convert]]:
    """Return the names of common fields, and what reads each from a record for the message."""
    hints = get_type_hints(record)
    fields = fields_of(kind)
    return [(name, _writer(fields[name], hint)) for name, hint in hints.items() if name in fields]


def _writer(field: FieldDescriptor, hint: Any) -> Convert:  # noqa: ANN401  # any type hint
    """Return what reads a field from a record for its message."""
    value_of = attrgetter(field.name)
    if field.is_repeated and get_origin(hint) is np.ndarray:
        to_list = attrgetter(f"{field.name}.tolist")
        return lambda record: to_list(record)()
    convert = _converter(field)
    if convert is None:
        return value_of
    if NoneType in get_args(hint):
        return lambda record: None if (value := value_of(record)) is None else convert(value)
    return lambda record: convert(value_of(record))


def _converter(field: FieldDescriptor) -> Convert | None:
    """Return how a value is converted for a field; None if it goes as it is."""
    if field.enum_type is not None and not field.is_repeated:
        return lambda word: words.to_enum(field, word)
    if field.message_type is None or field.message_type.GetOptions().map_entry:
        return None
    kind = class_of(field)
    if field.is_repeated:
        return lambda records: [to_message(record, kind) for record in records]
    return lambda record: _part(record, kind)


def _part(record: object, kind: type[Message]) -> Message:
    """Return the message of a dataclass, or of a mapping from the message's field names."""
    if not isinstance(record, Mapping):
        return to_message(record, kind)
    fields = fields_of(kind)
    values = {
        name: words.to_enum(fields[name], value) if isinstance(value, str) else value
        for name, value in record.items()
    }
    return kind(**values)


@cache
def _readers(record: type, kind: type[Message]) -> list[tuple[str, Convert]]:
    """Return the names of common fields, and what reads each from a message."""
    hints = get_type_hints(record)
    fields = fields_of(kind)
    return [(name, _reader(fields[name], hint)) for name, hint in hints.items() if name in fields]


def _reader(field: FieldDescriptor, hint: Any) -> Convert:  # noqa: ANN401  # any type hint
    """Return what reads a field from a message as the type that `hint` says."""
    value_of = attrgetter(field.name)
    members = [member for member in get_args(hint) if member is not NoneType]
    may_be_none = NoneType in get_args(hint)
    plain = members[0] if may_be_none and len(members) == 1 else hint
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda message: dict(value_of(message))
    if field.is_repeated:
        return _sequence_reader(value_of, plain)
    if field.enum_type is not None:
        read = _enum_reader(field, value_of)
        return read if not may_be_none else lambda m: read(m) if value_of(m) else None
    if field.message_type is not None:
        read = _part_reader(value_of, plain, every_field=not may_be_none)
    else:
        read = value_of
    if not may_be_none:
        return read
    name = field.name
    return lambda message: read(message) if message.HasField(name) else None


def _enum_reader(field: FieldDescriptor, value_of: Convert) -> Convert:
    def read(message: Message) -> str:
        number = value_of(message)
        return words.to_word(field, number) or str(number)

    return read


def _sequence_reader(value_of: Convert, hint: Any) -> Convert:  # noqa: ANN401  # any type hint
    """Return what reads a repeated field as an array or a tuple."""
    if get_origin(hint) is np.ndarray:
        (dtype,) = get_args(get_args(hint)[1])
        return lambda message: np.array(value_of(message), dtype)
    item = get_args(hint)[0]
    if is_dataclass(item):
        kind = cast("type[Any]", item)
        return lambda message: tuple(from_message(part, kind) for part in value_of(message))
    return lambda message: tuple(value_of(message))


def _part_reader(value_of: Convert, hint: Any, *, every_field: bool) -> Convert:  # noqa: ANN401  # any type hint
    """Return what reads a message as a dataclass, or as a dict of its fields.

    With `every_field` the dict has the fields that are unset as well, which are None.
    """
    if get_origin(hint) is not dict:
        return lambda message: from_message(value_of(message), hint)

    def read(message: Message) -> dict[str, Any]:
        part = value_of(message)
        values: dict[str, Any] = dict.fromkeys(fields_of(type(part))) if every_field else {}
        for field, value in part.ListFields():
            named = field.enum_type is not None
            values[field.name] = (words.to_word(field, value) or str(value)) if named else value
        return values

    return read
