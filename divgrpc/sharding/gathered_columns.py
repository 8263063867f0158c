"""Columns of points that several shards have sent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.columns.reader import RowReader, array_name
from divgrpc.columns.texts import ENDS
from divgrpc.errors import IndexDamagedError
from divgrpc.sharding import checks
from divgrpc.sharding.messages import Layout
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute

UNREADABLE: Final = "shards have sent columns of points that cannot be read"


class GatheredColumns:
    """Reads the attributes of points from the replies of shards.

    arrays: what replies refer to, such as the words of attributes.
    """

    def __init__(
        self, arrays: Mapping[str, Array], attributes: Sequence[Attribute], dims: int
    ) -> None:
        self._arrays, self._attributes, self._dims = arrays, attributes, dims
        # For each attribute of keywords, the array with an entry for each word, and its values.
        self._keywords = [
            (array_name(number, "words") + ENDS, array_name(number, "values"))
            for number, attribute in enumerate(attributes)
            if attribute.type == "keyword"
        ]

    def joined(self, layout: Layout, replies: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Return copies of the columns of the points in all replies, beside the other arrays.

        Raises `IndexDamagedError` for a word that no point of the index has.
        """
        arrays = dict(self._arrays)
        for name, dtype, dimensions in layout.columns:
            parts = [reply[name] for reply in replies]
            if name in checks.STARTS:
                sizes = [np.diff(starts) for starts in parts]
                parts = [np.cumsum(np.concatenate((np.zeros(1, dtype), *sizes)))]
            elif name.endswith("ends"):
                starts = np.cumsum([0, *(int(ends[-1]) if len(ends) else 0 for ends in parts)])
                parts = [ends + start for ends, start in zip(parts, starts, strict=False)]
            elif dimensions > 1:
                # A matrix without rows loses its width in a message.
                parts = [part for part in parts if len(part)] or [np.empty((0, self._dims), dtype)]
            arrays[name] = np.concatenate(parts) if parts else np.empty(0, dtype)
        for words, values in self._keywords:
            if values in arrays and arrays[values].max(initial=-1) >= len(arrays[words]):
                raise IndexDamagedError(UNREADABLE)
        return arrays

    def reader(self, layout: Layout, replies: Sequence[Mapping[str, Array]]) -> RowReader:
        """Return a reader of the points in replies, which have the column `ids`."""
        arrays = self.joined(layout, replies)
        return RowReader(arrays, len(arrays["ids"]), self._attributes)


class GatheredValues:
    """The values of attributes of points that shards have sent during a call."""

    def __init__(self, columns: GatheredColumns, layout: Layout) -> None:
        """Have no values yet; `layout` has the columns `ids` and those of attributes."""
        self._columns, self.layout = columns, layout
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self._replies: list[Mapping[str, Array]] = []
        self._reader: RowReader | None = None

    def add(self, replies: Iterable[Mapping[str, Array]]) -> None:
        """Add the points in replies."""
        self._replies += replies
        self._reader = None

    @property
    def reader(self) -> RowReader:
        """A reader of all points so far."""
        if self._reader is None:
            self._reader = self._columns.reader(self.layout, self._replies)
        return self._reader


def check_rows(keys: IntArray, rows: IntArray) -> IntArray:
    """Return the rows of points; raises `IndexDamagedError` if a point has none.

    Negative keys are padding.
    """
    if ((rows < 0) & (keys >= 0)).any():
        raise IndexDamagedError("the shards lack a point that one of them has found")
    return rows


@contextmanager
def reading() -> Iterator[None]:
    """Raise `IndexDamagedError` for values of shards that cannot be read."""
    try:
        yield
    except (ValueError, IndexError, OverflowError) as error:
        raise IndexDamagedError(UNREADABLE) from error
