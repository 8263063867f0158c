"""Adds attributes to the points of an index that exists.

Values come in the order of the rows, or with the ids of their points. They are stored in the order
in which they come, and then put in the order of the rows.

If nothing was written to the index, the result is a generation that shares all arrays with the one
before it, and has further arrays for the new attributes (`extend`). So nothing is hashed again, and
searches give the same answers. `divgrpc.writes.additions` adds them to other indexes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np

from divgrpc.builder.progress import Report, StageReport
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


class LiveColumns(Protocol):
    """The methods of `divgrpc.columns.reader.RowReader` that are needed here."""

    @property
    def ids(self) -> Any:  # noqa: ANN401  # the ids of rows
        """The ids, with the method `rows_of`."""

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The declarations that the index has."""

    def bytes_beside_ids(self, rows: IntArray, *, attributes: bool, payload: bool) -> IntArray:
        """Return an upper bound of the bytes that each row takes in a message without its id."""


class AttributeValues:
    """Values of new attributes, which `append` takes.

    store: the store of the new generation; the values are in its scratch store.
    attributes: the declarations of the new attributes.
    reader: the columns of the points.
    rows: number of rows of the index.
    needs_ids: whether values must come with ids, because the rows are not in the order of Build.

    Raises `InvalidArgumentError` for declarations that are invalid or that the index has already.
    """

    def __init__(
        self,
        store: Store,
        attributes: Iterable[Attribute],
        reader: LiveColumns,
        rows: int,
        *,
        needs_ids: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.attributes = check_new(attributes, reader.attributes)
        self._reader, self._rows, self._needs_ids = reader, rows, needs_ids
        # Number of rows of all blocks, 0 if it is not known, to report progress.
        self.expected_rows = 0
        self.report = StageReport(on_progress)
        self._rows_received = 0
        # Whether blocks have ids; None before the first block.
        self._has_ids: bool | None = None
        self._scratch = store.scratch("scratch")
        self._writer = ColumnWriter(self._scratch, self.attributes)
        # For each row of the index, the place of its values among those that came.
        self._entries = np.full(rows, _NO_ENTRY)

    @property
    def entries(self) -> IntArray:
        """The place (rows,) of the values of each row among those that came, -1 without values."""
        return self._entries

    def append(self, columns: Mapping[Attribute, Column], rows: int, ids: object = None) -> None:
        """Add the values of `rows` points.

        columns: values by declaration; without a column, an attribute has no values here.
        ids: ids of the points; either all blocks have ids or none. Without ids, blocks have the
            points in the order of their rows.

        Raises `InvalidArgumentError` with the field `ids`, `attributes` or `attributes.NAME`.
        """
        for attribute, column in columns.items():
            if attribute not in self.attributes:
                raise unknown_attribute(attribute.name, self.attributes)
            check_column(attribute, column, rows)
        block = {a: columns.get(a) or missing_column(a, rows) for a in self.attributes}
        if self._has_ids is None:
            self._has_ids = ids is not None
        if self._has_ids != (ids is not None):
            raise invalid("ids", "must come with every row or with none")
        places = self._following(rows) if ids is None else self._places_of(ids, rows)
        other_bytes = None
        if self._reader.attributes:
            other_bytes = self._reader.bytes_beside_ids(places, attributes=True, payload=False)
        numbers = range(self._rows_received, self._rows_received + rows)
        check_row_bytes(block, rows, numbers, other_bytes)
        self._writer.append(slice(None), (), block, ())
        self._rows_received += rows
        self.report("receiving", self._rows_received, self.expected_rows)

    def append_all(self, columns: Mapping[Attribute, Column], rows: int, ids: object) -> None:
        """Add all values as `append` does, one block of rows at a time."""
        point_ids: Any = None if ids is None else as_ids(ids)
        if point_ids is not None and len(point_ids) != rows:
            raise invalid("ids", f"must have one entry per value, {rows}, got {len(point_ids)}")
        self.expected_rows = rows
        for start in range(0, max(1, rows), _BLOCK_ROWS):
            stop = min(rows, start + _BLOCK_ROWS)
            block = {a: c.cut(start, stop, multi=a.multi) for a, c in columns.items()}
            block_ids = None if point_ids is None else point_ids[start:stop]
            self.append(block, stop - start, block_ids)

    def check_whole(self) -> None:
        """Raise `InvalidArgumentError` if values are missing.

        Some values must have come and, without ids, those of all points.
        """
        if self._has_ids is None:
            raise invalid("attributes", "must have values of at least one point")
        if not self._has_ids and self._rows_received != self._rows:
            rule = f"must have one value for each of the {self._rows} points of the index"
            hint = "; with ids, they are values of these points"
            raise invalid("attributes", f"{rule}, got {self._rows_received}{hint}")

    def columns(self) -> dict[Attribute, Column]:
        """Return the columns of all values in the order in which they came."""
        return {a: self._received(number, a) for number, a in enumerate(self.attributes)}

    def discard(self) -> None:
        """Remove the files of the values; columns that were returned stay readable."""
        self._scratch.discard()

    def _following(self, rows: int) -> IntArray:
        """Return the rows of the index for a block without ids."""
        if self._needs_ids:
            rule = "must be given, because points were written since Build or lack a vector"
            raise invalid("ids", rule)
        start = self._rows_received
        if start + rows > self._rows:
            rule = f"must have one value for each of the {self._rows} points of the index, got more"
            raise invalid("attributes", rule)
        places = np.arange(start, start + rows)
        self._entries[places] = places
        return places

    def _places_of(self, ids: Any, rows: int) -> IntArray:  # noqa: ANN401  # a sequence of ids
        """Return the rows of the index that have these ids, and store where their values are."""
        if len(ids) != rows:
            raise invalid("ids", f"must have one entry per value, {rows}, got {len(ids)}")
        places: IntArray = self._reader.ids.rows_of(ids)
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

    def _received(self, number: int, attribute: Attribute) -> Column:
        values = self._scratch.read(array_name(number, "values"))
        ends = np.empty(0, np.int64)
        if attribute.multi:
            ends = self._scratch.read(array_name(number, "ends"))
        return Column(values, ends, self._writer.words(number))


def values_for(
    store: Store,
    generation: Generation,
    attributes: Iterable[Attribute],
    on_progress: Callable[[Progress], None] | None = None,
) -> AttributeValues:
    """Return an object that takes values for the points of a generation.

    The arguments are those of `AttributeValues`.
    """
    manifest = generation.manifest
    reader = RowReader(generation.arrays, manifest.rows, manifest.attributes)
    return AttributeValues(store, attributes, reader, manifest.rows, on_progress=on_progress)


def extend(
    store: Store, generation: Generation, values: AttributeValues, report: Report
) -> Generation:
    """Publish a generation with further attributes and return it.

    Raises the errors of `AttributeValues.check_whole`, and `StorageFullError`.
    """
    values.check_whole()
    manifest, columns = generation.manifest, values.columns()
    writer = ColumnWriter(store, values.attributes, first=len(manifest.attributes))
    for start in range(0, manifest.rows, _BLOCK_ROWS):
        report("ordering", start, manifest.rows)
        entries = values.entries[start : start + _BLOCK_ROWS]
        block = {a: rows_of_column(a, column, entries) for a, column in columns.items()}
        writer.append(slice(None), (), block, ())
    values.discard()
    total = manifest.rows * len(values.attributes)
    writer.finish(
        store, on_attribute=lambda number: report("sorting", number * manifest.rows, total)
    )
    report("writing", 0, manifest.rows)
    store.share(generation)
    extended = store.publish(replace(manifest, attributes=manifest.attributes + values.attributes))
    report("writing", manifest.rows, manifest.rows)
    return extended


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
