"""Ids, attributes and payloads of a collection, from Build, from merges and from later writes.

The rows of a collection are divided into parts, each a run of rows with its own arrays. Build makes
the first part, and each merge makes one more. Later writes are parts in memory. Small parts are
joined, so that there are few of them.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, spans
from divgrpc.columns.annotations import AnnotationWriter
from divgrpc.columns.filters import FilterReader, Flags
from divgrpc.columns.ids import (
    ID_TEXTS,
    as_integers,
    encode_texts,
    hash_of,
    is_texts,
    next_key,
)
from divgrpc.columns.reader import RowReader, ValueNumbers
from divgrpc.columns.texts import Texts
from divgrpc.columns.values import MISSING_INTEGER
from divgrpc.columns.writer import ColumnStore, ColumnWriter
from divgrpc.errors import invalid
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import IntArray
from divgrpc.types.filters import Condition
from divgrpc.types.records import Attribute, AttributeValue, IdArray, IdKind, Scalar
from divgrpc.writes.records import Rows, join_rows

_ABSENT: Final = -1
# So many parts of about the same size are joined to one.
_FANOUT: Final = 16
# If texts may have other keys than their hashes, so many keys after a hash are looked up.
_MISSES_MAX: Final = 16
# Up to so many keys, a loop over them is faster than operations of numpy.
_FEW_KEYS: Final = 8


class Part:
    """A run of rows with arrays of its own."""

    def __init__(
        self, first: int, rows: int, arrays: Mapping[str, Array], attributes: Sequence[Attribute]
    ) -> None:
        """Take the columns of rows `first` to `first` + `rows` - 1."""
        self.first, self.rows = first, rows
        self._arrays, self._attributes = arrays, attributes

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The arrays of the columns, by the names of `divgrpc.columns.writer`."""
        return self._arrays

    @cached_property
    def reader(self) -> RowReader:
        """Reads attributes and payloads."""
        return RowReader(self.arrays, self.rows, self._attributes)

    @cached_property
    def texts(self) -> Texts:
        """Text ids."""
        return Texts(self.arrays, ID_TEXTS)

    def flags(self, condition: Condition, ids: "LiveIds") -> Flags:
        """Return for each row of the part whether it passes."""
        part_ids: Any = _PartIds(ids, self.first, self.rows)
        reader = FilterReader(self.arrays, self.rows, part_ids, self._attributes)
        return reader.flags(condition)


class MemoryPart(Part):
    """Rows that were written since the last merge; the arrays are made when they are first read."""

    def __init__(self, first: int, blocks: Sequence[Rows], attributes: Sequence[Attribute]) -> None:
        super().__init__(first, sum(map(len, blocks)), {}, attributes)
        self._blocks = tuple(blocks)

    @property
    def blocks(self) -> Iterable[Rows]:
        """The rows in blocks, which may be read once."""
        return self._blocks

    @cached_property
    def arrays(self) -> Mapping[str, Array]:
        """The arrays of the columns."""
        return columns_in(MemoryStore(), self.blocks, self._attributes)

    def join(self, parts: Sequence["MemoryPart"]) -> "MemoryPart":
        """Return this part and those that follow it as one."""
        blocks = [block for part in (self, *parts) for block in part.blocks]
        return MemoryPart(self.first, [join_rows(blocks, self._attributes)], self._attributes)


class StreamedPart(MemoryPart):
    """Rows of a new layout whose blocks are made each time that they are read.

    The blocks need no vectors and no codes.
    """

    def __init__(
        self,
        first: int,
        rows: int,
        blocks: Callable[[], Iterator[Rows]],
        attributes: Sequence[Attribute],
    ) -> None:
        super().__init__(first, (), attributes)
        self.rows, self._make_blocks = rows, blocks

    @property
    def blocks(self) -> Iterable[Rows]:
        """The rows in blocks, which may be read once."""
        return self._make_blocks()


class Blocks:
    """The blocks of several parts, which may be read several times."""

    def __init__(self, parts: Sequence[MemoryPart]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Rows]:
        return (block for part in self._parts for block in part.blocks)


def columns_in(
    store: ColumnStore, blocks: Iterable[Rows], attributes: Sequence[Attribute]
) -> dict[str, Array]:
    """Write the columns of blocks of rows into a store, and return the arrays by name."""
    has_texts = any(block.texts for block in blocks)
    has_payloads = any(any(block.payloads) for block in blocks)
    recorder = _Recorder(store)
    writer = ColumnWriter(recorder, attributes, has_texts=has_texts, has_payloads=has_payloads)
    for block in blocks:
        payloads = block.payloads or (b"",) * len(block)
        writer.append(slice(None), block.texts, block.columns, payloads if has_payloads else ())
    writer.finish(recorder, with_keys=False)
    annotation_writer = AnnotationWriter(recorder, next(iter(blocks)).annotations)
    for block in blocks:
        annotation_writer.append(block.annotations)
    return {name: store.read(name) for name in recorder.names}


class _Recorder:
    """Passes calls to a store, and keeps the names of the arrays."""

    def __init__(self, store: ColumnStore) -> None:
        self._store = store
        self.names: list[str] = []

    def begin(self, name: str, dtype: Any, row_shape: tuple[int, ...], rows: int = 0) -> None:  # noqa: ANN401  # a dtype
        """Create an array for `append`."""
        self.names.append(name)
        self._store.begin(name, dtype, row_shape, rows)

    def append(self, name: str, block: Array) -> None:
        """Append rows."""
        self._store.append(name, block)

    def read(self, name: str) -> Array:
        """Return the rows appended so far."""
        return self._store.read(name)

    def create(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:  # noqa: ANN401  # a dtype
        """Return a new array of this shape to be written in place."""
        self.names.append(name)
        return self._store.create(name, dtype, shape)


class Parts:
    """The parts of a collection, in the order of their rows."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self._firsts = [part.first for part in parts]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._parts[-1].first + self._parts[-1].rows

    def with_rows(self, rows: Rows, attributes: Sequence[Attribute]) -> "Parts":
        """Return these parts and one more of new rows."""
        parts = [*self._parts, MemoryPart(self.rows, [rows], attributes)]
        while (tail := _parts_to_join(parts)) is not None:
            parts[-len(tail) :] = [tail[0].join(tail[1:])]
        return Parts(parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def groups(self, rows: IntArray) -> list[tuple[Part, IntArray]]:
        """Return the parts that hold some of `rows` (m,), with the places of these in `rows`."""
        numbers = np.searchsorted(np.array(self._firsts), rows, side="right") - 1
        if len(rows) and (numbers == numbers[0]).all():
            return [(self._parts[int(numbers[0])], np.arange(len(rows)))]
        return [(self._parts[n], np.flatnonzero(numbers == n)) for n in np.unique(numbers).tolist()]

    def part_of(self, row: int) -> Part:
        """Return the part of a row."""
        return self._parts[bisect_right(self._firsts, row) - 1]


def _parts_to_join(parts: Sequence[Part]) -> list[MemoryPart] | None:
    """Return the last parts if they are of about the same size, else None."""
    tail = parts[-_FANOUT:]
    if len(tail) < _FANOUT or not all(isinstance(part, MemoryPart) for part in tail):
        return None
    if max(part.rows for part in tail[:-1]) >= _FANOUT * tail[-1].rows:
        return None
    return [part for part in tail if isinstance(part, MemoryPart)]


class LiveIds:
    """The ids of a snapshot; has the methods of `divgrpc.columns.ids.Ids`."""

    def __init__(  # the parts of a snapshot
        self,
        *,
        keys: IntArray,
        order: IntArray,
        ascending: IntArray,
        later: Mapping[int, int],
        former: npt.NDArray[np.int32],
        rows: int,
        alive: Flags,
        parts: Parts,
        kind: IdKind,
        merged: int,
        displaced: bool,
    ) -> None:
        """Take the state of a collection.

        keys: (capacity,) key of each row.
        order: rows of the last merge in ascending order of their keys; `ascending` are these keys.
        later: the last row of each key that was written since.
        former: (capacity,) the row since the merge that a row replaced, or -1.
        rows: number of rows of the snapshot; later rows are invisible.
        alive: (capacity,) whether the point of a row exists.
        merged: number of rows at the last merge.
        displaced: whether a text may have another key than its hash.
        """
        self._keys, self._order, self._later = keys, order, later
        self._ascending = ascending
        self._former, self._rows, self._alive = former, rows, alive
        self._parts, self.kind, self._merged = parts, kind, merged
        self._displaced = displaced

    @property
    def keys(self) -> IntArray:
        """The key of each row (capacity,), int64."""
        return self._keys

    def of_rows(self, rows: IntArray) -> IdArray:
        """Return the ids of `rows` (m,)."""
        return self.of_results(rows) if self.kind == "string" else self._keys[rows]

    def of_results(self, rows: IntArray) -> npt.NDArray[np.object_]:
        """Return the text ids of `rows`, an array of any shape; "" for the padding of -1."""
        flat = rows.ravel()
        texts = np.full(len(flat), "", object)
        places = np.flatnonzero(flat >= 0)
        for part, group in self._parts.groups(flat[places]):
            group_places = places[group]
            texts[group_places] = [
                t.decode() for t in part.texts.take(flat[group_places] - part.first)
            ]
        return texts.reshape(rows.shape)

    def bytes_of_rows(self, rows: IntArray) -> IntArray:
        """Return an upper bound of the bytes that the id of each row takes in a message."""
        sizes = np.full(len(rows), 10)
        if self.kind == "string":
            for part, group in self._parts.groups(rows):
                sizes[group] += part.texts.lengths(rows[group] - part.first)
        return sizes

    def rows_of(self, ids: Sequence[int | str] | IdArray, field: str = "ids") -> IntArray:
        """Return the row of each id (m,), -1 for an id that no point has."""
        if self.kind == "int64":
            return self.rows_of_keys(as_integers(ids, field))
        if len(ids) and not is_texts(ids):
            raise invalid(field, "must be texts, as the ids of this index are")
        return np.array([self.row_of_text(t)[0] for t in encode_texts(ids, field)], np.int64)

    def keys_of_rows(self, rows: IntArray) -> IntArray:
        """Return the integer id, or the key of the text id, of each row (m,)."""
        return self._keys[rows]

    def rows_of_keys(self, keys: IntArray) -> IntArray:
        """Return the row of each key, -1 where there is none; `keys` may have any shape."""
        if keys.size <= _FEW_KEYS:
            row_list = [self._row_of_key(key) for key in keys.ravel().tolist()]
            return np.array(row_list, np.int64).reshape(keys.shape)
        rows = np.full(keys.shape, _ABSENT, np.int64)
        if len(self._order):
            places = np.searchsorted(self._ascending, keys)
            candidates = self._order[np.minimum(places, len(self._order) - 1)]
            rows = np.where(self._keys[candidates] == keys, candidates, _ABSENT)
        if self._later:
            flat, result = keys.ravel().tolist(), rows.ravel()
            for place, key in enumerate(flat):
                row = self._later_row(key)
                if row != _ABSENT:
                    result[place] = row
            rows = result.reshape(keys.shape)
        return np.where((rows >= 0) & self._alive[rows], rows, _ABSENT)

    def row_of_text(self, text: bytes) -> tuple[int, int]:
        """Return the row and the key of a text id.

        Without such a point, the row is -1, and the key is the one that a new point would get: a
        key stays with its text for as long as there are rows of it.
        """
        key = hash_of(text)
        free, misses = key, 0
        # If no two texts have the same hash, only the hash itself can be the key.
        while misses <= (_MISSES_MAX if self._displaced else 0):
            row = self._row_ever(key)
            if row == _ABSENT:
                free = key if not misses else free
                misses += 1
            else:
                part = self._parts.part_of(row)
                if part.texts[row - part.first] == text:
                    return (row if self._alive[row] else _ABSENT), key
            key = next_key(key)
        return _ABSENT, free

    def free_key(self, key: int) -> int:
        """Return the next key after `key` that no row has."""
        key = next_key(key)
        while self._row_ever(key) != _ABSENT:
            key = next_key(key)
        return key

    def after(self, key: int, count: int) -> tuple[IntArray, IntArray]:
        """Return the rows and the keys of the next `count` keys above `key`, ascending."""
        merged_rows = self._merged_rows_after(key, count)
        later_rows = self._rows_written
        keys = self._keys[later_rows]
        start = int(np.searchsorted(keys, key, side="right"))
        rows = np.concatenate((merged_rows, later_rows[start : start + count]))
        rows = rows[np.argsort(self._keys[rows], kind="stable")][:count]
        return rows, self._keys[rows]

    def _merged_rows_after(self, key: int, count: int) -> IntArray:
        """Return the next `count` live rows of the last merge above `key`, ascending by key."""
        rows: list[IntArray] = []
        order = self._order
        start = int(np.searchsorted(self._ascending, key, side="right"))
        while count > 0 and start < len(order):
            block = order[start : start + count]
            live_rows = block[self._alive[block]]
            rows.append(live_rows)
            count, start = count - len(live_rows), start + len(block)
        return np.concatenate([np.empty(0, np.int64), *rows])

    @cached_property
    def _rows_written(self) -> IntArray:
        """The rows since the merge that exist, in ascending order of their keys."""
        rows = self._merged + np.flatnonzero(self._alive[self._merged : self._rows])
        return rows[np.argsort(self._keys[rows], kind="stable")]

    def _later_row(self, key: int) -> int:
        row = self._later.get(key, _ABSENT)
        # A row that was written after this snapshot replaced the row that it shows.
        while row >= self._rows:
            row = int(self._former[row])
        return row

    def _row_ever(self, key: int) -> int:
        """Return the last row of a key, whether or not its point still exists; -1 without one."""
        row = self._later_row(key)
        return self._merged_row(key) if row == _ABSENT else row

    def _row_of_key(self, key: int) -> int:
        row = self._row_ever(key)
        return row if row != _ABSENT and self._alive[row] else _ABSENT

    def _merged_row(self, key: int) -> int:
        place = int(np.searchsorted(self._ascending, key))
        if place < len(self._ascending) and self._ascending[place] == key:
            return int(self._order[place])
        return _ABSENT


class _PartIds:
    """The ids of one part, for a filter by ids."""

    def __init__(self, ids: LiveIds, first: int, rows: int) -> None:
        self._ids, self._first, self._rows = ids, first, rows

    def rows_of(self, ids: Sequence[int | str] | IdArray, field: str = "ids") -> IntArray:
        """Return the row of each id within the part, -1 for an id of another part."""
        rows = self._ids.rows_of(ids, field) - self._first
        return np.where((rows >= 0) & (rows < self._rows), rows, _ABSENT)


class LiveReader:
    """The columns of a snapshot; has the methods of `divgrpc.columns.reader.RowReader`."""

    def __init__(self, parts: Parts, ids: LiveIds, attributes: Sequence[Attribute]) -> None:
        self.ids = ids
        self.attributes = tuple(attributes)
        self._parts = parts

    def values(self, rows: IntArray) -> dict[str, tuple[AttributeValue, ...]]:
        """Return the values of all attributes for `rows` (m,), by name."""
        values = {a.name: np.full(len(rows), None, object) for a in self.attributes}
        for part, group in self._parts.groups(rows):
            for name, column in part.reader.values(rows[group] - part.first).items():
                for place, value in zip(group.tolist(), column, strict=True):
                    values[name][place] = value
        return {name: tuple(column.tolist()) for name, column in values.items()}

    def numbers(self, name: str, rows: IntArray) -> ValueNumbers:
        """Return the values of a declared attribute for `rows` (m,) as numbers."""
        groups = [
            (group, part.reader.numbers(name, rows[group] - part.first))
            for part, group in self._parts.groups(rows)
        ]
        if len(groups) == 1:
            return groups[0][1]
        # Parts may have different numbers for a value.
        known: dict[Scalar | None, int] = {None: MISSING_INTEGER}
        is_multi = next(a.multi for a in self.attributes if a.name == name)
        widths = np.full(len(rows), int(not is_multi))
        for group, part_numbers in groups if is_multi else ():
            widths[group] = np.diff(part_numbers.ends, prepend=0)
        ends = np.cumsum(widths)
        numbers = np.empty(ends[-1] if len(ends) else 0, np.int64)
        for group, part_numbers in groups:
            codes, places = np.unique(part_numbers.numbers, return_inverse=True)
            values = [part_numbers.value_of(int(code)) for code in codes]
            own_numbers = np.array([known.setdefault(v, len(known)) for v in values], np.int64)
            numbers[spans(ends[group] - widths[group], widths[group])] = own_numbers[places]
        names = {number: value for value, number in known.items()}
        return ValueNumbers(numbers, ends if is_multi else np.empty(0, np.int64), names.__getitem__)

    def payloads(self, rows: IntArray) -> tuple[bytes, ...]:
        """Return the payloads of `rows` (m,); empty if none of these points has a payload."""
        payloads, has_any = [b""] * len(rows), False
        for part, group in self._parts.groups(rows):
            part_payloads = part.reader.payloads(rows[group] - part.first)
            has_any = has_any or bool(part_payloads)
            for place, payload in zip(group.tolist(), part_payloads, strict=False):
                payloads[place] = payload
        return tuple(payloads) if has_any else ()

    def bytes_of_rows(self, rows: IntArray, *, attributes: bool, payload: bool) -> IntArray:
        """Return an upper bound of the bytes that each of `rows` (m,) takes in a message."""
        sizes = self.ids.bytes_of_rows(rows)
        return sizes + self.bytes_beside_ids(rows, attributes=attributes, payload=payload)

    def bytes_beside_ids(self, rows: IntArray, *, attributes: bool, payload: bool) -> IntArray:
        """Return an upper bound of the bytes that each of `rows` (m,) takes without its id."""
        sizes = np.zeros(len(rows), np.int64)
        for part, group in self._parts.groups(rows):
            sizes[group] = part.reader.bytes_beside_ids(
                rows[group] - part.first, attributes=attributes, payload=payload
            )
        return sizes
