"""Documents as points: payloads of JSON, and attributes with the metadata that filters test."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final, TypeAlias, get_args

import numpy.typing as npt

from divgrpc.columns.values import check_attributes, microseconds
from divgrpc.errors import invalid
from divgrpc.types.filters import Condition, Field, Filter
from divgrpc.types.records import Attribute, AttributeType

# The type of an attribute, or a list of this one type if a document may have several values.
TypeLike: TypeAlias = AttributeType | Sequence[AttributeType]
# A time in ISO 8601, such as 2026-01-31 or 2026-01-31T08:00:00+01:00.
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?")
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "keyword": (str,),
    "integer": (int,),
    "float": (int, float),
    "bool": (bool,),
}


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document to write, or one that was read.

    id: a text of 1 to 256 bytes.
    text: the content; None for a document without one.
    metadata: values that JSON can express. Those that the index declares may be filtered by.
    vector: (dims,) numbers; None for a document without an embedding, and in documents that were
        read without vectors.
    extra: further values that JSON can express, which an adapter keeps beside the metadata.
    """

    id: str
    text: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: npt.ArrayLike | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def payload(self) -> bytes:
        """Return the JSON object that is stored; raises `InvalidArgumentError`."""
        content = {"text": self.text, "metadata": dict(self.metadata), **self.extra}
        try:
            return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            rule = f"of document {self.id!r:.80} must be values that JSON can express: {error}"
            raise invalid("metadata", rule) from error


def parse_document(
    document_id: object, payload: bytes, vector: npt.ArrayLike | None = None
) -> StoredDocument:
    """Return the document of a point; raises `InvalidArgumentError` if the point is none."""
    try:
        content = json.loads(payload)
        text, metadata = content.pop("text"), content.pop("metadata")
    except (ValueError, AttributeError, KeyError):
        rule = f"of point {document_id!r:.80} is no document: the index holds other points"
        raise invalid("payload", rule) from None
    return StoredDocument(str(document_id), text, metadata, vector, content)


class MetadataField:
    """A name of the metadata in a filter, whose comparisons return conditions.

    `==`, `!=`, `<`, `<=`, `>`, `>=`, `is_in` and `exists` are those of `divgrpc.Field`. In an
    integer attribute, texts in ISO 8601 are compared as times. None is a missing value.
    """

    __slots__ = ("_attribute", "_field")
    __hash__ = None  # type: ignore[assignment]  # == returns a condition

    def __init__(self, attribute: Attribute) -> None:
        self._attribute = attribute
        self._field = Field(attribute.name)

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]  # a condition
        if value is None:
            return ~self.exists()
        condition: Condition = self._field == self._plain(value)
        return condition

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]  # a condition
        return self.exists() if value is None else ~(self == value)

    def __lt__(self, bound: object) -> Condition:
        condition: Condition = self._field < self._bound(bound)
        return condition

    def __le__(self, bound: object) -> Condition:
        condition: Condition = self._field <= self._bound(bound)
        return condition

    def __gt__(self, bound: object) -> Condition:
        condition: Condition = self._field > self._bound(bound)
        return condition

    def __ge__(self, bound: object) -> Condition:
        condition: Condition = self._field >= self._bound(bound)
        return condition

    def is_in(self, values: Sequence[object]) -> Condition:
        """Return the condition that a value of the document is one of `values`."""
        condition: Condition = self._field.is_in(
            [self._plain(value) for value in values if value is not None]
        )
        return condition | ~self.exists() if None in values else condition

    def exists(self) -> Condition:
        """Return the condition that the document has a value of this name."""
        return self._field.exists()

    def _plain(self, value: object) -> object:
        try:
            return _plain_value(self._attribute, value)
        except ValueError as error:
            raise invalid("filter", str(error)) from None

    def _bound(self, bound: object) -> Any:  # noqa: ANN401  # a number
        number = self._plain(bound)
        if isinstance(number, str | bool):
            rule = f"cannot order values of {self._attribute.name!r}: only numbers and times have"
            raise invalid("filter", f"{rule} an order")
        return number


@dataclass(frozen=True)
class Metadata:
    """The attributes of an index, by name: `metadata["year"] >= 2020` is a condition."""

    attributes: tuple[Attribute, ...]

    def __getitem__(self, name: str) -> MetadataField:
        for attribute in self.attributes:
            if attribute.name == name:
                return MetadataField(attribute)
        names = ", ".join(sorted(attribute.name for attribute in self.attributes)) or "nothing"
        rule = f"names {name!r:.80}, but the index declares {names}"
        hint = "only declared metadata can be filtered by: name it in `attributes`"
        raise invalid("filter", f"{rule}; {hint}")

    def columns(self, documents: Sequence[StoredDocument]) -> dict[str, list[Any]]:
        """Return the values of the declared names, one of each document."""
        return {
            attribute.name: [_value_of(attribute, document) for document in documents]
            for attribute in self.attributes
        }

    def types(self) -> dict[str, AttributeType]:
        """Return the types of the attributes, by name."""
        return {attribute.name: attribute.type for attribute in self.attributes}


# A filter: a condition, a function of the declared metadata that returns one, or None.
Where: TypeAlias = Condition | Callable[[Metadata], Condition | None] | None


def condition_of(where: Where, metadata: Metadata) -> Condition | None:
    """Return the condition of a filter, whose names must be declared."""
    if where is None:
        return None
    if isinstance(where, Condition):
        for name in _names(where):
            metadata[name]
        return where
    if callable(where):
        return where(metadata)
    raise invalid("filter", f"must be a condition, got {type(where).__name__}")


def _names(condition: Condition) -> Iterator[str]:
    if isinstance(condition, Filter):
        for part in condition:
            yield from _names(part)
    elif hasattr(condition, "attribute"):
        yield condition.attribute


def declare(types: Mapping[str, TypeLike] | None) -> tuple[Attribute, ...]:
    """Return declarations for the types of some metadata; raises `InvalidArgumentError`."""
    attributes = []
    for name, kind in (types or {}).items():
        words = [kind] if isinstance(kind, str) else list(kind)
        if len(words) != 1 or words[0] not in get_args(AttributeType):
            names = ", ".join(get_args(AttributeType))
            rule = f"must have one of the types {names}, or a list of one, got {kind!r:.80}"
            raise invalid("attributes", f"{rule} for {name!r:.80}")
        attributes.append(Attribute(name, words[0], words != [kind]))
    return check_attributes(attributes)


def _value_of(attribute: Attribute, document: StoredDocument) -> object:
    value = document.metadata.get(attribute.name)
    if value is None:
        return [] if attribute.multi else None
    try:
        if not attribute.multi:
            return _plain_value(attribute, value)
        values = value if isinstance(value, list | tuple | set | frozenset) else [value]
        return [_plain_value(attribute, item) for item in values]
    except ValueError as error:
        raise invalid("metadata", f"of document {document.id!r:.80}: {error}") from None


def _plain_value(attribute: Attribute, value: object) -> object:
    """Return a value of an attribute, with times as integers; raises `ValueError`."""
    if attribute.type == "integer" and (time := _time(value)) is not None:
        return time
    is_bool = isinstance(value, bool) != (attribute.type == "bool")
    if is_bool or not isinstance(value, _TYPES[attribute.type]):
        raise ValueError(f"{attribute.name!r} is of type {attribute.type}, got {value!r:.80}")
    return value


def _time(value: object) -> int | None:
    """Return a time in microseconds since 1970; None if `value` is no time."""
    if isinstance(value, str) and _TIME.fullmatch(value):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return microseconds("metadata", value) if isinstance(value, date) else None


def check_declared(
    wanted_attributes: Sequence[Attribute], attributes: Sequence[Attribute], name: str
) -> None:
    """Raise `InvalidArgumentError` unless the index has all attributes that an adapter declares."""
    types = {attribute.name: attribute for attribute in attributes}
    for attribute in wanted_attributes:
        present = types.get(attribute.name)
        if present == attribute:
            continue
        values = "several values" if present and present.multi else "one value"
        state = f"has it as {present.type} with {values}" if present else "does not have it"
        rule = f"{attribute.name!r}, but the index {name!r} exists and {state}"
        raise invalid("attributes", f"declare {rule}; add_attributes adds one")
