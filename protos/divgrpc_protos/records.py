"""Conversion between dataclasses and messages, driven by the names of their fields.

A dataclass or NamedTuple has the same field names as its message, so this module lists no fields.
The descriptor of the message and the type hints of the dataclass determine the conversion of each
field:

    field of the message           value in the dataclass
    enum                           string, such as "lsh_sdiv" for HASH_FAMILY_LSH_SDIV
    message                        dataclass, or a dict of the message's fields
    repeated enum, number or text  tuple, or array of the dtype in the hint
    repeated message               tuple of dataclasses; dict by `name` if the message has a name
    map                            dict
    optional field that is unset   None

An item of a repeated message may also be a tuple of the message's fields, or the value of its only
field. The conversions are cached for each pair of a dataclass and a message.

The string of an enum value is called its word. It is the value's name in lower case, without the
prefix of the enum. The prefix is the name of the value 0 without `UNSPECIFIED`.
"""

from collections.abc import Callable
from dataclasses import fields as fields_of_record
from dataclasses import is_dataclass
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin

import numpy as np
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

RecordT = TypeVar("RecordT")
MessageT = TypeVar("MessageT", bound=Message)
Convert = Callable[[Any], Any]


class UnknownWordError(ValueError):
    """An enum field has a number that the contract does not define."""

    def __init__(self, field: str, number: int) -> None:
        super().__init__(f"{field} has no value {number}")
        self.field = field


def to_message(record: object, kind: type[MessageT], **overrides: object) -> MessageT:
    """Convert a dataclass, a NamedTuple, or a dict by field name to a message.

    `overrides` are fields of the message that replace fields of the record. Fields that are None,
    or that only the message has, stay unset. Fields that only the record has are ignored.
    """
    return kind(**message_fields(record, kind, **overrides))


def message_fields(record: object, kind: type[Message], **overrides: object) -> dict[str, Any]:
    """Return the fields that `to_message` sets, as arguments for the message's constructor."""
    fields: dict[str, Any] = dict(overrides)
    values = record if isinstance(record, dict) else None
    for name, is_repeated, write in _writers(cast(Descriptor, kind.DESCRIPTOR)):
        if name in fields:
            continue
        value = getattr(record, name, None) if values is None else values.get(name)
        if value is not None and not (is_repeated and len(value) == 0):
            fields[name] = write(value) if write else value
    return fields


def from_message(message: Message, kind: type[RecordT], **overrides: object) -> RecordT:
    """Convert a message to a dataclass or NamedTuple; `overrides` replace fields of the message.

    A newer peer may send an enum number that this contract does not define. Such a number becomes a
    string of its digits.
    """
    readers = _readers(cast(Any, kind), cast(Descriptor, message.DESCRIPTOR))
    return kind(**{n: read(message) for n, read in readers if n not in overrides}, **overrides)


def set_values(message: Message) -> dict[str, Any]:
    """Return the plain values of the fields that are set, by name, without singular messages."""
    return {
        field.name: plain_value(field, value)
        for field, value in message.ListFields()
        if field.is_repeated or field.message_type is None
    }


def plain_value(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401  # any field's value
    """Return the value of a field, with strings for enum values and tuples for repeated fields.

    An item that is a message with a single field becomes the value of this field. Any other message
    becomes a tuple of its fields, in which unset fields are None. Raises `UnknownWordError` for an
    enum number that the contract does not define, and for the unspecified value.
    """
    if field.enum_type is not None:
        words = partial(word_of, field)
        return tuple(map(words, value)) if field.is_repeated else words(value)
    if not field.is_repeated:
        return value
    return tuple(value) if field.message_type is None else tuple(map(_plain_item, value))


def _plain_item(message: Message) -> Any:  # noqa: ANN401  # any value, or a tuple of them
    names = fields_of(type(message))
    values = tuple(
        getattr(message, name) if field.is_repeated or message.HasField(name) else None
        for name, field in names.items()
    )
    return values[0] if len(values) == 1 else values


@cache
def _numbers(enum: EnumDescriptor) -> dict[str, int]:
    prefix = next(v.name for v in enum.values if v.number == 0).removesuffix("UNSPECIFIED")
    return {v.name.removeprefix(prefix).lower(): v.number for v in enum.values if v.number != 0}


@cache
def _words(enum: EnumDescriptor) -> dict[int, str]:
    return {number: word for word, number in _numbers(enum).items()}


def number_of(field: FieldDescriptor, word: str) -> int | None:
    """Return the enum value of a word, or None if the enum has no such word."""
    return _numbers(cast(EnumDescriptor, field.enum_type)).get(word)


def word_of(field: FieldDescriptor, number: int) -> str:
    """Return the word of an enum value; raises `UnknownWordError` if it has no word."""
    word = _words(cast(EnumDescriptor, field.enum_type)).get(number)
    if word is None:
        raise UnknownWordError(field.name, number)
    return word


def fields_of(kind: type[Message]) -> dict[str, FieldDescriptor]:
    """Return the fields of a message by name, in the order of their declaration."""
    return _fields(cast(Descriptor, kind.DESCRIPTOR))


@cache
def _fields(kind: Descriptor) -> dict[str, FieldDescriptor]:
    return {field.name: field for field in kind.fields}


@cache
def _writers(kind: Descriptor) -> list[tuple[str, bool, Convert | None]]:
    """Return each field's name, whether the field is repeated, and its conversion or None."""
    return [(field.name, field.is_repeated, _writer(field)) for field in kind.fields]


def _writer(field: FieldDescriptor) -> Convert | None:
    if field.enum_type is not None:
        number = partial(number_of, field)
        return (lambda values: [number(word) for word in values]) if field.is_repeated else number
    if field.message_type is None:
        return _listed if field.is_repeated else None
    if field.message_type.GetOptions().map_entry:
        return None
    kind = message_factory.GetMessageClass(field.message_type)
    return partial(_items, kind) if field.is_repeated else partial(to_message, kind=kind)


def _listed(values: Any) -> Any:  # noqa: ANN401  # an array or any iterable
    return values.tolist() if isinstance(values, np.ndarray) else values


def _items(kind: type[Message], values: Any) -> list[Message]:  # noqa: ANN401  # a dict or any iterable
    if isinstance(values, dict):
        return [_item(kind, value, name=name) for name, value in values.items()]
    return [_item(kind, value) for value in values]


def _item(kind: type[Message], value: Any, **overrides: object) -> Message:  # noqa: ANN401  # see `to_message`
    if is_dataclass(value) or hasattr(value, "_fields"):
        return to_message(value, kind, **overrides)
    names = [name for name in fields_of(kind) if name not in overrides]
    values = value if isinstance(value, tuple | list) and len(names) > 1 else [value]
    return to_message(dict(zip(names, values, strict=True)), kind, **overrides)


@cache
def _readers(record: type, kind: Descriptor) -> list[tuple[str, Convert]]:
    """Return the fields that message and dataclass share, and the functions that read them."""
    fields = _fields(kind)
    if is_dataclass(record):
        hints: dict[str, Any] = {field.name: field.type for field in fields_of_record(record)}
    else:
        hints = record.__annotations__
    return [(name, _reader(fields[name], hint)) for name, hint in hints.items() if name in fields]


def _reader(field: FieldDescriptor, hint: Any) -> Convert:  # noqa: ANN401  # any type hint
    """Return a function that reads a field from a message as the type in `hint`."""
    name, members = field.name, get_args(hint)
    may_be_none = NoneType in members
    if may_be_none:
        hint = next(member for member in members if member is not NoneType)
    convert = _value_reader(field, hint, every_field=not may_be_none)
    value_of: Convert = attrgetter(name)
    read: Convert = (lambda message: convert(value_of(message))) if convert else value_of
    if not may_be_none or field.is_repeated:
        return read
    if field.enum_type is not None:
        return lambda message: read(message) if value_of(message) else None
    return lambda message: read(message) if message.HasField(name) else None


def _value_reader(field: FieldDescriptor, hint: Any, *, every_field: bool) -> Convert | None:  # noqa: ANN401  # any type hint
    """Return the function that converts a field's value, or None if no conversion is needed."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict
    if not field.is_repeated:
        return _item_reader(field, hint, every_field=every_field)
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is np.ndarray:
        (dtype,) = get_args(arguments[1])
        word = _item_reader(field, str)
        return lambda values: np.array([word(n) for n in values] if word else values, dtype)
    item = _item_reader(field, arguments[-1 if kind is dict else 0])
    if item is None:
        return tuple
    if kind is dict:
        return lambda values: {value.name: item(value) for value in values}
    return lambda values: tuple(item(value) for value in values)


def _item_reader(field: FieldDescriptor, hint: Any, *, every_field: bool = True) -> Convert | None:  # noqa: ANN401  # any type hint
    """Return the function that converts one value of a field, or None if no conversion is needed.

    If the value becomes a dict, unset fields are None in it if `every_field` is true; otherwise
    the dict leaves them out.
    """
    if field.enum_type is not None:
        words = _words(field.enum_type)
        return lambda number: words.get(number) or str(number)
    if field.message_type is None:
        return None
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return lambda message: from_message(message, cast("type[Any]", hint))
    if get_origin(hint) is dict:
        return partial(_as_dict, every_field=every_field)
    parts = [part for part in field.message_type.fields if part.name != "name"]
    return _reader(parts[0], hint) if len(parts) == 1 else None


def _as_dict(message: Message, *, every_field: bool) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(fields_of(type(message))) if every_field else {}
    for field, value in message.ListFields():
        read = _item_reader(field, Any)
        values[field.name] = read(value) if read else value
    return values
