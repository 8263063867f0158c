"""Reads the ids, attributes and payloads of points from the arrays of a generation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

import numpy as np

from divgrpc.arrays import Array, spans
from divgrpc.columns.ids import Ids
from divgrpc.columns.texts import ENDS, Texts
from divgrpc.columns.values import MISSING_INTEGER, NUMBER_BYTES, python_values
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute, AttributeValue, Scalar

PAYLOAD: Final = "payload"
_NO_ENDS: Final = np.empty(0, np.int64)
# Maximum number of words that are kept for an attribute.
_WORDS_MAX: Final = 65_536
# Maximum number of bytes before a text in a message: its tag and its length.
_HEAD_BYTES: Final = 6


def array_name(number: int, part: str) -> str:
    """Return the name of an array of the attribute with this number, counted from 0."""
    return f"attribute.{number}.{part}"


def is_of_attribute(name: str) -> bool:
    """Whether an array is one of an attribute."""
    return name.startswith("attribute.")


class ValueNumbers(NamedTuple):
    """The values of one attribute for m rows, as numbers that differ if the values do.

    numbers: (m,) int64, MISSING_INTEGER for a missing value. If rows may have several values, the
        numbers of all rows, one row after another.
    ends: (m,) end of each row's part of `numbers`; empty if each row has one value or none.
    value_of: returns the value that a number stands for, None for MISSING_INTEGER.
    """

    numbers: IntArray
    ends: IntArray
    value_of: Callable[[int], Scalar | None]


def _numbers_of(attribute: Attribute, values: Array) -> IntArray:
    if attribute.type == "integer":
        return values
    if attribute.type == "float":
        # Zeros of both signs are equal.
        numbers: IntArray = (values + 0.0).view(np.int64)
        return np.where(np.isnan(values), MISSING_INTEGER, numbers)
    return np.where(values < 0, MISSING_INTEGER, values.astype(np.int64))


class RowReader:
    """The columns of one generation: ids, attributes and payloads by row."""

    def __init__(
        self, arrays: Mapping[str, Array], rows: int, attributes: Sequence[Attribute]
    ) -> None:
        self.ids = Ids(arrays, rows)
        self.attributes = tuple(attributes)
        self._arrays = arrays
        # Words that were read before, for each attribute of keywords.
        self._words: list[dict[int, str]] = [{} for _ in attributes]
        self._payloads = Texts(arrays, PAYLOAD) if PAYLOAD + ENDS in arrays else None

    def values(self, rows: IntArray) -> dict[str, tuple[AttributeValue, ...]]:
        """Return the values of all attributes for `rows` (m,), by name."""
        return {
            attribute.name: self._values(number, rows)
            for number, attribute in enumerate(self.attributes)
        }

    def numbers(self, name: str, rows: IntArray) -> ValueNumbers:
        """Return the values of a declared attribute for `rows` (m,) as numbers."""
        number = next(n for n, attribute in enumerate(self.attributes) if attribute.name == name)
        attribute, stored = self.attributes[number], self._arrays[array_name(number, "values")]
        ends = _NO_ENDS
        if not attribute.multi:
            values = stored[rows]
        else:
            starts, stops = (np.array(bound, np.int64) for bound in self._bounds(number, rows))
            values, ends = stored[spans(starts, stops - starts)], np.cumsum(stops - starts)

        def value_of(code: int) -> Scalar | None:
            if code == MISSING_INTEGER:
                return None
            item = np.array([code], np.int64)
            if attribute.type == "float":
                item = item.view(np.float64)
            return cast("Scalar | None", self._python_values(number, item)[0])

        return ValueNumbers(_numbers_of(attribute, values), ends, value_of)

    def payloads(self, rows: IntArray) -> tuple[bytes, ...]:
        """Return the payloads of `rows` (m,); empty if no point of the index has a payload."""
        return () if self._payloads is None else tuple(self._payloads.take(rows))

    def bytes_of_rows(self, rows: IntArray, *, attributes: bool, payload: bool) -> IntArray:
        """Return an upper bound of the bytes that each of `rows` (m,) takes in a message."""
        sizes = self.ids.bytes_of_rows(rows)
        return sizes + self.bytes_beside_ids(rows, attributes=attributes, payload=payload)

    def bytes_beside_ids(self, rows: IntArray, *, attributes: bool, payload: bool) -> IntArray:
        """Return an upper bound of the bytes that each of `rows` (m,) takes without its id."""
        sizes = np.zeros(len(rows), np.int64)
        if payload and self._payloads is not None:
            sizes += self._payloads.lengths(rows) + _HEAD_BYTES
        if attributes:
            for number, attribute in enumerate(self.attributes):
                sizes += self._value_bytes(number, attribute, rows)
        return sizes

    def _values(self, number: int, rows: IntArray) -> tuple[AttributeValue, ...]:
        attribute, stored = self.attributes[number], self._arrays[array_name(number, "values")]
        if not attribute.multi:
            return tuple(self._python_values(number, stored[rows]))
        bounds = zip(*self._bounds(number, rows), strict=True)
        return tuple(
            cast("AttributeValue", tuple(self._python_values(number, stored[start:stop])))
            for start, stop in bounds
        )

    def _python_values(self, number: int, values: Array) -> list[AttributeValue]:
        """Return numbers of an attribute as Python values."""
        attribute = self.attributes[number]
        if attribute.type != "keyword":
            return python_values(attribute, values, ())
        words = self._words[number]
        if len(words) > _WORDS_MAX:
            words = self._words[number] = {}
        items: list[AttributeValue] = []
        for code in values.tolist():
            if code >= 0 and code not in words:
                words[code] = self._texts(number)[code].decode()
            items.append(words[code] if code >= 0 else None)
        return items

    def _bounds(self, number: int, rows: IntArray) -> tuple[list[int], list[int]]:
        """Return where the values of each row begin, and where they end, if it may have several."""
        ends = self._arrays[array_name(number, "ends")]
        return np.where(rows > 0, ends[rows - 1], 0).tolist(), ends[rows].tolist()

    def _texts(self, number: int) -> Texts:
        return Texts(self._arrays, array_name(number, "words"))

    def _value_bytes(self, number: int, attribute: Attribute, rows: IntArray) -> IntArray:
        """Return an upper bound of the bytes that the values of each row take in a message."""
        stored, widths = self._arrays[array_name(number, "values")], np.ones(len(rows), np.int64)
        values = stored[rows] if not attribute.multi else stored[:0]
        if attribute.multi:
            starts, ends = self._bounds(number, rows)
            parts = [stored[start:end] for start, end in zip(starts, ends, strict=True)]
            widths = np.array(ends, np.int64) - np.array(starts, np.int64)
            values = np.concatenate([*parts, values])
        sizes = np.full(len(values), NUMBER_BYTES, np.int64)
        if attribute.type == "keyword":
            has_word = values >= 0
            sizes[has_word] += self._texts(number).lengths(values[has_word].astype(np.int64))
        totals = np.concatenate(([0], np.cumsum(sizes)))
        ends_of_rows = np.cumsum(widths)
        # The end of the values of a row takes a number too.
        of_rows: IntArray = totals[ends_of_rows] - totals[ends_of_rows - widths]
        return of_rows + NUMBER_BYTES * attribute.multi
