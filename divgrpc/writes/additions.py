"""Further attributes for the points of an index that was written to.

The values that came for a point belong to its key, and not to its row. So a point that is replaced
while the new generation is made has them too, as if they had come after all writes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from divgrpc.builder.attributes import AttributeValues, LiveColumns
from divgrpc.columns.reader import RowReader
from divgrpc.columns.values import Column, check_row_bytes, rows_of_column
from divgrpc.storage.generations import Staging
from divgrpc.types import IntArray, Progress
from divgrpc.types.records import Attribute
from divgrpc.writes.records import Rows
from divgrpc.writes.target import WriteTarget


class PresentPoints:
    """The points that have an id now, to which values of new attributes may belong.

    keys: (rows,) the key of each row.
    """

    def __init__(self, target: WriteTarget) -> None:
        """Take the points of a generation; nothing may be written meanwhile."""
        self._was_written = target.was_written
        self._reader: LiveColumns
        if self._was_written:
            state = target.state
            self._reader, self._rows = state.reader_of_now(), state.rows
            self.keys: IntArray = state.keys_of(np.arange(state.rows))
        else:
            manifest, arrays = target.generation.manifest, target.generation.arrays
            self._reader = RowReader(arrays, manifest.rows, manifest.attributes)
            self._rows = manifest.rows
            self.keys = arrays.get("ids", np.arange(manifest.rows))

    def values(
        self,
        stage: Staging,
        attributes: Iterable[Attribute],
        on_progress: Callable[[Progress], None],
    ) -> AttributeValues:
        """Return an object that takes values; raises `InvalidArgumentError`."""
        return AttributeValues(
            stage,
            attributes,
            self._reader,
            self._rows,
            needs_ids=self._was_written,
            on_progress=on_progress,
        )


class Addition:
    """The values of new attributes by the keys of the points.

    attributes: the declarations of the new attributes.
    """

    def __init__(self, values: AttributeValues, keys: IntArray) -> None:
        """Take values, and the key of each row that they may belong to."""
        self.attributes = values.attributes
        self._columns = values.columns()
        rows = np.flatnonzero(values.entries >= 0)
        order = rows[np.argsort(keys[rows], kind="stable")]
        self._keys, self._entries = keys[order], values.entries[order]

    def columns(self, keys: IntArray) -> dict[Attribute, Column]:
        """Return the values for points with these keys (m,); a point may have none."""
        entries = np.full(len(keys), -1)
        if len(self._keys):
            places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            entries = np.where(self._keys[places] == keys, self._entries[places], -1)
        return {a: rows_of_column(a, column, entries) for a, column in self._columns.items()}

    def extend(self, rows: Rows) -> Rows:
        """Return rows with the new attributes.

        Raises `InvalidArgumentError` if all attributes of a point have no room in a message.
        """
        columns: Mapping[Attribute, Column] = {**rows.columns, **self.columns(rows.keys)}
        check_row_bytes(columns, len(rows))
        return replace(rows, columns=columns)
