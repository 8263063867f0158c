"""Divides the rows of a build among the folders of shards as they arrive.

Rows have arrays, such as vectors, ids and attributes, which arrive in blocks. An array has an entry
for each row, or it has several values for each row. Then another array has the end of the values of
each row (`_ENDS`). Rows are held until there are many, because many small writes take long.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, spans
from divgrpc.columns.annotations import INDICES, INDPTR
from divgrpc.columns.ids import ID_TEXTS
from divgrpc.columns.reader import PAYLOAD, array_name
from divgrpc.columns.texts import BYTES, ENDS
from divgrpc.sharding.files import ShardPart
from divgrpc.sharding.staged_shards import ShardFiles, SyncArray
from divgrpc.storage.arrays import ArrayEntry, ArrayFolder, check_room, checksum_of, open_array
from divgrpc.storage.shards import is_received
from divgrpc.storage.writers import put
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute

# By the name of an array of values, the array with the ends of the values of each row. Attributes
# with several values for a point are added in `RowDivider`.
_ENDS: Final = {
    "indices": "indptr",
    "values": "indptr",
    INDICES: INDPTR,
    ID_TEXTS + BYTES: ID_TEXTS + ENDS,
    PAYLOAD + BYTES: PAYLOAD + ENDS,
}
# The ends of compressed sparse rows begin with a 0, which is of no row.
_LEADING: Final = ("indptr", INDPTR)
_POINTS: Final = ("vectors", "indptr", "indices", "values")
# Rows are written when so many are held, or so many bytes of them.
_HELD_ROWS: Final = 1 << 16
_HELD_BYTES: Final = 1 << 22


class ShardStaging:
    """The arrays of a shard that is being built.

    rows: (m,) the numbers of its rows, when all were written. row_count: the number of rows so far.
    """

    def __init__(self, store: ArrayFolder) -> None:
        """Take the folder of the shard."""
        self.store = store
        self.rows: IntArray = np.empty(0, np.int64)
        self.row_count = 0
        self._entries: dict[str, ArrayEntry] = {}

    def read(self, name: str) -> Array:
        """Map an array, which may still be written."""
        if name in self._entries:
            path = self.store.folder / f"{name}.npy"
            return open_array(path, self._entries[name], verify=False)
        return self.store.read(name)

    def finish(self) -> None:
        """Close the arrays that were written."""
        self._entries |= self.store.close()

    def arrays(self) -> dict[str, Array]:
        """Map the points, and what was made of them, from files.

        A mapping keeps a file open, so ids, labels and columns are left out.
        """
        names = [name for name in self._entries if name in _POINTS or not is_received(name)]
        return {name: self.read(name) for name in names}

    def files(self, sync_numbers: SyncArray) -> ShardFiles:
        """Return the files of the shard; `sync_numbers` syncs the numbers of its rows, its ids."""
        return ShardFiles(self.store.folder, self._entries, sync_numbers)

    def described(self, dims: int) -> ShardPart:
        """Return the description of the shard."""
        rows, entries = len(self.rows), self._entries
        nonzeros = entries["indices"].shape[0] if "indices" in entries else rows * dims
        return ShardPart(rows, nonzeros, entries)


@dataclass(slots=True)
class _Rows:
    """An array of all rows.

    count: the number of its rows so far. crc32: their checksum. blocks: those that are held. end:
    in an array of ends, the last one that was written. ends: for each shard, the last one that was
    written to it.
    """

    dtype: np.dtype[np.generic]
    row_shape: tuple[int, ...]
    count: int = 0
    crc32: int = 0
    blocks: list[Array] = field(default_factory=list)
    end: int = 0
    ends: list[int] = field(default_factory=list)

    def take(self) -> Array:
        """Return the rows that are held, and hold none."""
        blocks, self.blocks = self.blocks, []
        return np.concatenate([np.empty((0, *self.row_shape), self.dtype), *blocks])


class RowDivider:
    """Takes the arrays of all rows, as a store does, and writes them to the folders of shards."""

    def __init__(
        self, folder: Path, shards: Sequence[ShardStaging], attributes: Sequence[Attribute]
    ) -> None:
        """Take the staging folder, the files of the shards, and the declared attributes."""
        self._folder, self._shards = folder, shards
        self._arrays: dict[str, _Rows] = {}
        self._held_bytes = 0
        self._ends_of = dict(_ENDS)
        for number, attribute in enumerate(attributes):
            if attribute.multi:
                self._ends_of[array_name(number, "values")] = array_name(number, "ends")

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Create an array; raises `StorageFullError` if `rows` rows do not fit."""
        array = _Rows(np.dtype(dtype), row_shape, ends=[0] * len(self._shards))
        self._arrays[name] = array
        check_room(self._folder, rows * math.prod(row_shape) * array.dtype.itemsize)
        for shard in self._shards:
            shard.store.begin(name, dtype, row_shape, rows // len(self._shards))
            if name in _LEADING:
                shard.store.append(name, np.zeros(1, array.dtype))

    def append(self, name: str, block: Array) -> None:
        """Hold rows of an array."""
        array = self._arrays[name]
        data = np.ascontiguousarray(block, array.dtype)
        array.crc32 = checksum_of(data, array.crc32)
        is_first, array.count = array.count == 0, array.count + len(data)
        array.blocks.append(data[1:] if is_first and name in _LEADING else data)
        self._held_bytes += data.nbytes

    def is_full(self, rows: int) -> bool:
        """Return whether so much is held, of so many rows, that it should be written."""
        return rows >= _HELD_ROWS or self._held_bytes >= _HELD_BYTES

    def write(self, homes: IntArray) -> list[IntArray]:
        """Write the rows that are held to their shards, `homes` (m,).

        Returns for each shard which of the rows (m,) it has.
        """
        blocks = {name: array.take() for name, array in self._arrays.items()}
        starts, sizes = self._take_sizes(blocks)
        order = np.argsort(homes, kind="stable")
        ends = np.cumsum(np.bincount(homes, minlength=len(self._shards))).tolist()
        rows_of_shards = [order[start:stop] for start, stop in pairwise([0, *ends])]
        for number, rows in enumerate(rows_of_shards):
            for name, values in blocks.items() if len(rows) else ():
                array, ends_name = self._arrays[name], self._ends_of.get(name, "")
                if name in sizes:
                    part = array.ends[number] + np.cumsum(sizes[name][rows], dtype=np.int64)
                    array.ends[number] = int(part[-1])
                elif ends_name in sizes:
                    part = values[spans(starts[ends_name][rows], sizes[ends_name][rows])]
                else:
                    part = values[rows]
                self._shards[number].store.append(name, part)
        self._held_bytes = 0
        return rows_of_shards

    def _take_sizes(self, blocks: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return where the values of each row begin, and their number, for each array of ends."""
        starts, sizes = {}, {}
        for name in set(self._ends_of.values()) & blocks.keys():
            array, ends = self._arrays[name], blocks[name]
            bounds = np.concatenate(([array.end], ends)) - array.end
            starts[name], sizes[name] = bounds[:-1], np.diff(bounds)
            array.end += int(bounds[-1])
        return starts, sizes

    def read(self, name: str) -> Array:
        """Return all rows of an array that were written, in the order of the upload, in memory."""
        numbers = [shard.rows for shard in self._shards]
        parts = [shard.read(name) for shard in self._shards]
        if name in self._ends_of.values():
            ends = np.cumsum(_joined(self._sizes(name), numbers), dtype=np.int64)
            return np.concatenate(([0], ends)) if name in _LEADING else ends
        ends_name = self._ends_of.get(name, "")
        if ends_name not in self._arrays:
            return _joined(parts, numbers)
        sizes_of_parts = self._sizes(ends_name)
        sizes = _joined(sizes_of_parts, numbers)
        starts = np.cumsum(sizes) - sizes
        values = np.empty(sizes.sum(), self._arrays[name].dtype)
        for part, rows, sizes_of_part in zip(parts, numbers, sizes_of_parts, strict=True):
            values[spans(starts[rows], sizes_of_part)] = part
        return values

    def _sizes(self, ends_name: str) -> list[Array]:
        """Return for each shard the number of values of each of its rows."""
        ends = [shard.read(ends_name) for shard in self._shards]
        if ends_name in _LEADING:
            return [np.diff(part) for part in ends]
        return [np.diff(part, prepend=0) for part in ends]

    def replace(self, name: str, parts: Sequence[Array]) -> None:
        """Write an array anew; `parts` are the rows of each shard."""
        for shard, part in zip(self._shards, parts, strict=True):
            shard.store.drop(name)
            put(shard.store, name, part)
        self._arrays[name].crc32 = checksum_of(self.read(name))

    def entries(self) -> dict[str, ArrayEntry]:
        """Return the entries that the arrays would have if they were whole."""
        return {
            name: ArrayEntry(array.dtype.name, (array.count, *array.row_shape), array.crc32)
            for name, array in self._arrays.items()
        }


def _joined(parts: Sequence[Array], numbers: Sequence[IntArray]) -> Array:
    """Return the rows of all parts, whose numbers are given."""
    rows = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for part, places in zip(parts, numbers, strict=True):
        rows[places] = part
    return rows
