"""Reads the ids, attributes and payloads of points from the arrays of a generation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.columns.ids import Ids
from divgrpc.columns.texts import ENDS, Texts
from divgrpc.columns.values import Column, row_values, unknown_attribute
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute, AttributeValue

PAYLOAD: Final = "payload"
# Maximum number of bytes before a text in a message: its tag and its length.
_HEAD_BYTES: Final = 6


def array_name(number: int, part: str) -> str:
    """Return the name of an array of the attribute with this number, counted from 0."""
    return f"attribute.{number}.{part}"


class RowReader:
    """The columns of one generation: ids, attributes and payloads by row."""

    def __init__(
        self, arrays: Mapping[str, Array], rows: int, attributes: Sequence[Attribute]
    ) -> None:
        self.ids = Ids(arrays, rows)
        self.attributes = tuple(attributes)
        self._arrays = arrays
        self._payloads = Texts(arrays, PAYLOAD) if PAYLOAD + ENDS in arrays else None

    def values(
        self, rows: IntArray, names: Iterable[str] | None = None
    ) -> dict[str, tuple[AttributeValue, ...]]:
        """Return the values of attributes for `rows` (m,), by name; `names` None means all.

        Raises `InvalidArgumentError` with the field `attributes` for an unknown name.
        """
        columns = self.columns(rows, names)
        return {attribute.name: row_values(attribute, c) for attribute, c in columns.items()}

    def columns(
        self, rows: IntArray, names: Iterable[str] | None = None
    ) -> dict[Attribute, Column]:
        """Return the columns of attributes for `rows` (m,), as `values` chooses them."""
        by_name = {attribute.name: number for number, attribute in enumerate(self.attributes)}
        numbers: Iterable[int] = by_name.values()
        if names is not None:
            names = list(names)
            for name in names:
                if name not in by_name:
                    raise unknown_attribute(name, self.attributes)
            numbers = [by_name[name] for name in names]
        return {self.attributes[number]: self._column(number, rows) for number in numbers}

    def payloads(self, rows: IntArray) -> tuple[bytes, ...]:
        """Return the payloads of `rows` (m,); empty if no point of the index has a payload."""
        return () if self._payloads is None else tuple(self._payloads.take(rows))

    def bytes_of_rows(self, rows: IntArray, *, attributes: bool, payload: bool) -> IntArray:
        """Return an upper bound of the bytes that each of `rows` (m,) takes in a message."""
        sizes = self.ids.bytes_of_rows(rows)
        if payload and self._payloads is not None:
            sizes += self._payloads.lengths(rows) + _HEAD_BYTES
        if attributes:
            for attribute, column in self.columns(rows).items():
                sizes += column.bytes_of_rows(multi=attribute.multi)
        return sizes

    def _column(self, number: int, rows: IntArray) -> Column:
        attribute = self.attributes[number]
        stored, ends = self._arrays[array_name(number, "values")], np.empty(0, np.int64)
        if attribute.multi:
            all_ends = self._arrays[array_name(number, "ends")]
            starts = np.where(rows > 0, all_ends[rows - 1], 0)
            parts = [stored[i:j] for i, j in zip(starts, all_ends[rows], strict=True)]
            values = np.concatenate([*parts, stored[:0]])
            ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        else:
            values = stored[rows]
        if attribute.type != "keyword":
            return Column(values, ends)
        has_word = values >= 0
        used, places = np.unique(values[has_word], return_inverse=True)
        codes = np.full(len(values), -1, np.int32)
        codes[has_word] = places
        texts = Texts(self._arrays, array_name(number, "words"))
        return Column(codes, ends, tuple(text.decode() for text in texts.take(used)))
