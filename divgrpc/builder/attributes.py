"""Adds attributes to the points of an index that exists.

The result is a new generation. It shares all arrays with the generation before it, and has further
arrays for the new attributes. So nothing is hashed again, and searches give the same answers.

Values come in the order of the rows, or with the ids of their points. With ids, the values are
first stored in the order in which they come, and then put in the order of the rows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from divgrpc.builder.progress import StageReport
from divgrpc.columns.ids import as_ids
from divgrpc.columns.reader import RowReader, array_name
from divgrpc.columns.values import (
    Column,
    check_attributes,
    check_column,
    check_row_bytes,
    missing_column,
    rows_of_column,
    unknown_attribute,
)
from divgrpc.columns.writer import ColumnWriter
from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.storage.generations import Generation
from divgrpc.storage.writers import Store
from divgrpc.types import IntArray, Progress
from divgrpc.types.records import Attribute

_BLOCK_ROWS: Final = 65_536
_NO_ENTRY: Final = -1


class AttributeAdder:
    """Takes values of new attributes with `append`; `build` then makes the generation.

    store: the store of the new generation.
    generation: the generation that gets the attributes.
    attributes: the declarations of the new attributes.
    expected_rows: number of rows of all blocks, None if it is not known. It is used to report
        progress.

    Raises `InvalidArgumentError` for declarations that are invalid or that the index has already.
    """

    def __init__(
        self,
        store: Store,
        generation: Generation,
        attributes: Iterable[Attribute],
        *,
        expected_rows: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        manifest = generation.manifest
        self._attributes = check_new(attributes, manifest.attributes)
        self._store, self._generation = store, generation
        self._rows = manifest.rows
        self._reader = RowReader(generation.arrays, self._rows, manifest.attributes)
        self._expected_rows = expected_rows or 0
        self._report = StageReport(on_progress)
        self._rows_received = 0
        # Whether blocks have ids; None before the first block.
        self._has_ids: bool | None = None

    def append(self, columns: Mapping[Attribute, Column], rows: int, ids: object = None) -> None:
        """Add the values of `rows` points.

        columns: values by declaration; without a column, an attribute has no values here.
        ids: ids of the points; either all blocks have ids or none. Without ids, blocks have the
            points in the order of their rows.

        Raises `InvalidArgumentError` with the field `ids`, `attributes` or `attributes.NAME`.
        """
        for attribute, column in columns.items():
            if attribute not in self._attributes:
                raise unknown_attribute(attribute.name, self._attributes)
            check_column(attribute, column, rows)
        block = {a: columns.get(a) or missing_column(a, rows) for a in self._attributes}
        if self._has_ids is None:
            self._begin(has_ids=ids is not None)
        if self._has_ids != (ids is not None):
            raise invalid("ids", "must come with every row or with none")
        places = self._following(rows) if ids is None else self._places_of(ids, rows)
        if self._reader.attributes:
            other_bytes = self._reader.bytes_beside_ids(places, attributes=True, payload=False)
            check_row_bytes(block, rows, self._rows_received, other_bytes)
        else:
            check_row_bytes(block, rows, self._rows_received)
        self._writer.append(slice(None), (), block, ())
        self._rows_received += rows
        self._report("receiving", self._rows_received, self._expected_rows)

    def append_all(self, columns: Mapping[Attribute, Column], rows: int, ids: object) -> None:
        """Add all values as `append` does, one block of rows at a time."""
        point_ids: Any = None if ids is None else as_ids(ids)
        if point_ids is not None and len(point_ids) != rows:
            raise invalid("ids", f"must have one entry per value, {rows}, got {len(point_ids)}")
        self._expected_rows = rows
        for start in range(0, max(1, rows), _BLOCK_ROWS):
            stop = min(rows, start + _BLOCK_ROWS)
            block = {a: c.cut(start, stop, multi=a.multi) for a, c in columns.items()}
            block_ids = None if point_ids is None else point_ids[start:stop]
            self.append(block, stop - start, block_ids)

    def build(self) -> Generation:
        """Publish the new generation and return it.

        Raises `InvalidArgumentError` if no values came, or if values without ids came for fewer
        points than the index has.
        """
        if self._has_ids is None:
            raise invalid("attributes", "must have values of at least one point")
        if not self._has_ids and self._rows_received != self._rows:
            rule = f"must have one value for each of the {self._rows} points of the index"
            hint = "; with ids, they are values of these points"
            raise invalid("attributes", f"{rule}, got {self._rows_received}{hint}")
        if self._has_ids:
            self._put_in_order()
        total = self._rows * len(self._attributes)
        self._writer.finish(
            on_attribute=lambda number: self._report("sorting", number * self._rows, total)
        )
        self._report("writing", 0, self._rows)
        self._store.share(self._generation)
        manifest = self._generation.manifest
        attributes = manifest.attributes + self._attributes
        generation = self._store.publish(replace(manifest, attributes=attributes))
        self._report("writing", self._rows, self._rows)
        return generation

    def _begin(self, *, has_ids: bool) -> None:
        self._has_ids = has_ids
        if not has_ids:
            self._writer = self._new_writer()
            return
        self._scratch = self._store.scratch()
        self._writer = ColumnWriter(self._scratch, self._attributes)
        # For each row of the index, the place of its values among those that came.
        self._entries = np.full(self._rows, _NO_ENTRY)

    def _new_writer(self) -> ColumnWriter:
        first = len(self._generation.manifest.attributes)
        return ColumnWriter(self._store, self._attributes, first=first)

    def _following(self, rows: int) -> IntArray:
        """Return the rows of the index for a block without ids."""
        start = self._rows_received
        if start + rows > self._rows:
            rule = f"must have one value for each of the {self._rows} points of the index, got more"
            raise invalid("attributes", rule)
        return np.arange(start, start + rows)

    def _places_of(self, ids: Any, rows: int) -> IntArray:  # noqa: ANN401  # a sequence of ids
        """Return the rows of the index that have these ids, and store where their values are."""
        if len(ids) != rows:
            raise invalid("ids", f"must have one entry per value, {rows}, got {len(ids)}")
        places = self._reader.ids.rows_of(ids)
        for entry in np.flatnonzero(places < 0)[:1].tolist():
            raise invalid("ids", f"has {_plain(ids[entry])!r:.80}, which is no id of the index")
        entries = np.arange(self._rows_received, self._rows_received + rows)
        before = self._entries[places]
        self._entries[places] = entries
        # If an id comes twice in this block, the last entry stays.
        repeated = (before != _NO_ENTRY) | (self._entries[places] != entries)
        for entry in np.flatnonzero(repeated)[:1].tolist():
            raise invalid("ids", f"must be unique, {_plain(ids[entry])!r:.80} occurs twice")
        return places

    def _put_in_order(self) -> None:
        """Write the values that came with ids in the order of the rows."""
        columns = {a: self._received(number, a) for number, a in enumerate(self._attributes)}
        self._writer = self._new_writer()
        for start in range(0, self._rows, _BLOCK_ROWS):
            self._report("ordering", start, self._rows)
            entries = self._entries[start : start + _BLOCK_ROWS]
            block = {a: rows_of_column(a, column, entries) for a, column in columns.items()}
            self._writer.append(slice(None), (), block, ())
        self._scratch.discard()

    def _received(self, number: int, attribute: Attribute) -> Column:
        """Return the values of an attribute in the order in which they came."""
        values = self._scratch.read(array_name(number, "values"))
        ends = np.empty(0, np.int64)
        if attribute.multi:
            ends = self._scratch.read(array_name(number, "ends"))
        return Column(values, ends, self._writer.words(number))


def check_new(
    attributes: Iterable[Attribute], existing: tuple[Attribute, ...]
) -> tuple[Attribute, ...]:
    """Return declarations if an index with the attributes `existing` can get them.

    Raises `InvalidArgumentError` with the field `attributes`, or `attributes.NAME` for a name that
    the index has already.
    """
    added = check_attributes(attributes)
    if not added:
        raise invalid("attributes", "must have at least one name")
    names = {attribute.name for attribute in existing}
    for attribute in added:
        if attribute.name in names:
            rule = "exists in this index: take another name, or build the index again"
            raise invalid(f"attributes.{attribute.name}", rule)
    most = LIMITS["attributes_max"]
    if len(existing) + len(added) > most:
        counts = f"the index has {len(existing)}, and {len(added)} more came"
        raise invalid("attributes", f"must be at most {most} in all, {counts}")
    return added


def _plain(point_id: Any) -> Any:  # noqa: ANN401  # an id of numpy or of Python
    return point_id.item() if isinstance(point_id, np.generic) else point_id
