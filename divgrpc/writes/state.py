"""The state of a collection: a layout, and the records that were applied to it since.

A state does no input or output, and has no clock. The same layout and records give the same state
in every process. One thread may apply records; other threads may use snapshots meanwhile.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.columns.filters import Flags
from divgrpc.columns.ids import hash_of
from divgrpc.columns.reader import PAYLOAD
from divgrpc.columns.texts import ENDS
from divgrpc.kernels.encode import CODE_BYTE_TILE_BYTES, put_codes, take_codes
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.kernels.overflow import add_places
from divgrpc.search.arrays import NO_FILTER, points_of
from divgrpc.search.code_order import CodeOrder, RowNumbers
from divgrpc.search.passing import PassingRows
from divgrpc.storage.generations import Generation
from divgrpc.types import IntArray
from divgrpc.types.filters import Filter
from divgrpc.vectors import Rows as Vectors
from divgrpc.vectors import SparseRows, lengths
from divgrpc.writes.columns import LiveIds, LiveReader, Parts
from divgrpc.writes.layout import ROW_ARRAYS, Layout, Source
from divgrpc.writes.model import MODEL
from divgrpc.writes.point_files import item_count
from divgrpc.writes.records import Record, Rows
from divgrpc.writes.sparse_rows import SparseState
from divgrpc.writes.tables import Chains

# Number of request ids that are remembered.
REQUESTS_MAX: Final = 10_000
_NO_CELLS: Final = np.empty(0, np.int32)


class State:
    """The rows of a collection.

    sequence: number of the last record that was applied.
    rows, live: number of rows, deleted ones included, and number of points.
    items: number of items of all rows in the files of `point_files`.
    searched: number of points that have a vector.
    layout: the layout that the records were applied to.
    """

    def __init__(self, generation: Generation, layout: Layout) -> None:
        self.generation, self.layout = generation, layout
        info, arrays = layout.info, layout.arrays
        self.sequence, self.rows, self.live = info.sequence, info.rows, info.live
        self.items, self._items_max = info.items
        self.displaced = info.displaced
        self.parts: Parts = layout.parts
        self.has_payloads = any(PAYLOAD + ENDS in part.arrays for part in layout.parts)
        self.requests: dict[str, tuple[int, int, str]] = {
            name: (sequence, count, digest) for name, sequence, count, digest in info.requests
        }
        self._capacity = info.capacity
        self._keys: IntArray = arrays["ids"]
        self._codes: Array = arrays["codes"]
        self._terms: Array | None = arrays.get("scan_terms")
        self._inverse_lengths: Array | None = arrays.get("inverse_lengths")
        self._sparse_rows = SparseState(generation.manifest, arrays) if info.values else None
        self._order: IntArray = arrays["order"]
        self._ascending = self._keys[self._order]
        # The last row since the merge of each key, and the row that each of these rows replaced.
        self._later: dict[int, int] = {}
        self._former = np.full(info.capacity, -1, np.int32)
        self._alive: Flags = np.zeros(info.capacity, np.bool_)
        self._alive[: info.rows] = arrays["alive"]
        if self._sparse_rows is not None:
            self._sparse_rows.begin(self._alive[: info.rows])
        # Whether each row has a vector; None if all have.
        self._has_vector: Flags | None = None
        self.searched = self.live
        if "has_vector" in arrays:
            self._has_vector = np.ones(info.capacity, np.bool_)
            self._has_vector[: info.rows] = arrays["has_vector"]
            self.searched = int(np.count_nonzero(self._alive & self._has_vector))
        self._places = np.full(info.capacity, -1, np.int32)
        self._has_cells = "cell_rows" in arrays
        if self._has_cells:
            self._begin_cells()
        else:
            self._places[:] = np.arange(info.capacity)
            self._chains = Chains(arrays, generation.manifest.parameters)

    def _begin_cells(self) -> None:
        arrays = self.layout.arrays
        self._cell_rows: npt.NDArray[np.int32] = arrays["cell_rows"]
        self._nexts: npt.NDArray[np.int32] = arrays["overflow_nexts"]
        starts: IntArray = arrays["cell_starts"]
        stored, tiles = int(starts[-1]), len(self._nexts)
        self._first_tile = len(self._codes) - tiles
        self._starts = starts
        self._places[self._cell_rows[:stored]] = np.arange(stored, dtype=np.int32)
        self._flags = np.zeros(len(self._cell_rows), np.uint8)
        self._flags[:stored] = 1
        self._counts = np.diff(starts).astype(np.int32)
        self._heads = np.full(len(self._counts), -1, np.int32)
        self._tile_counts, self._tile_cells = np.zeros(tiles, np.int32), np.zeros(tiles, np.int32)
        self._used = np.zeros(1, np.int64)
        # Whether a point was deleted whose code is not in an overflow tile.
        self._has_removed = False

    @property
    def rows_unmerged(self) -> int:
        """Number of points that were written since the last merge."""
        return int(np.count_nonzero(self._alive[self.layout.info.rows : self.rows]))

    @property
    def alive(self) -> Flags:
        """Whether the point of each row (rows,) exists."""
        return self._alive[: self.rows]

    @property
    def rows_with_vector(self) -> int:
        """Number of rows that have a vector, deleted ones included."""
        flags = self._has_vector
        return self.rows if flags is None else int(np.count_nonzero(flags[: self.rows]))

    @property
    def room(self) -> int:
        """Number of rows that can be written before the next merge."""
        return self._capacity - 1 - self.rows

    @property
    def room_share(self) -> float:
        """Share of the room of the layout, for rows and for their items, that is left."""
        info = self.layout.info
        items, items_max = info.items
        rows_share = self.room / (info.capacity - info.rows)
        return min(rows_share, (self._items_max - self.items) / (items_max - items))

    def has_room(self, rows: Rows) -> bool:
        """Return whether rows can be written before the next merge."""
        return len(rows) <= self.room and self.has_items(rows)

    def has_items(self, rows: Rows) -> bool:
        """Return whether the files of vectors have room for rows."""
        return self.items + item_count(rows.vectors) <= self._items_max

    @property
    def nonzeros(self) -> int:
        """Number of stored values of all points; each number of a dense vector counts."""
        if self._sparse_rows is not None:
            return self._sparse_rows.live_values
        return self.searched * self.generation.manifest.dims

    @property
    def widest_row(self) -> int:
        """The greatest number of values that any row of the collection has stored."""
        sparse_rows = self._sparse_rows
        return self.generation.manifest.dims if sparse_rows is None else sparse_rows.widest

    def vectors(self, rows: IntArray) -> Vectors:
        """Return a copy of the vectors (m, d) of `rows` (m,)."""
        return points_of(self.layout.arrays, self.generation.manifest.dims)[rows]

    @property
    def is_clean(self) -> bool:
        """Whether every row has a point, and no row was written since the merge."""
        is_whole = self.rows == self.layout.info.rows == self.searched
        return is_whole and not (self._has_cells and bool((self._counts == 0).any()))

    def has_vector(self, rows: IntArray) -> Flags:
        """Return for each of `rows` (m,) whether it has a vector."""
        if self._has_vector is None:
            return np.ones(len(rows), np.bool_)
        return self._has_vector[rows]

    def apply(self, sequence: int, record: Record) -> None:
        """Apply a record, the one after the last."""
        assert sequence == self.sequence + 1  # noqa: S101  # callers read records in order
        rows = self.rows_of_keys(record.removed)
        self._remove(rows[rows >= 0])
        if record.rows is not None:
            self._add(record.rows)
        self.sequence = sequence
        if record.write_id:
            count = len(rows) if record.rows is None else len(record.rows)
            self.requests[record.write_id] = (sequence, count, record.digest)
            if len(self.requests) > REQUESTS_MAX:
                del self.requests[next(iter(self.requests))]

    def _add(self, block: Rows) -> None:
        first, count = self.rows, len(block)
        rows = np.arange(first, first + count, dtype=np.int32)
        old_rows = self.rows_of_keys(block.keys)
        self._remove(old_rows[old_rows >= 0])
        self._keys[first : first + count] = block.keys
        for row, key in zip(rows.tolist(), block.keys.tolist(), strict=True):
            self._former[row] = self._later.get(key, -1)
            self._later[key] = row
        if self._inverse_lengths is not None:
            sizes = lengths(block.vectors)
            part = self._inverse_lengths[first : first + count]
            np.divide(1, sizes, out=part, where=sizes > 0)
        if self._sparse_rows is not None and isinstance(block.vectors, SparseRows):
            self._sparse_rows.add(block.vectors, first, self.items)
        self._add_codes(block, rows)
        self._alive[first : first + count] = True
        self.parts = self.parts.with_rows(block, self.generation.manifest.attributes)
        self.has_payloads = self.has_payloads or any(block.payloads)
        if block.texts and not self.displaced:
            hashes = np.fromiter(map(hash_of, block.texts), np.int64, count)
            self.displaced = bool((hashes != block.keys).any())
        self.rows += count
        self.items += item_count(block.vectors)
        self.live += count
        self.searched += len(rows[block.with_vector])

    def _add_codes(self, block: Rows, rows: npt.NDArray[np.int32]) -> None:
        """Add the codes of new rows (m,) that have a vector."""
        if block.has_vector is not None:
            if self._has_vector is None:
                self._has_vector = np.ones(self._capacity, np.bool_)
            self._has_vector[rows] = block.has_vector
        places, kept = rows, block.with_vector
        if self._has_cells:
            places = np.full(len(rows), -1, np.int32)
            places[kept] = self._add_to_cells(block.cells[kept], rows[kept])
        else:
            self._chains.add(block.codes)
        self._places[rows] = places
        places = places[kept]
        put_codes(read_only(block.codes[kept]), read_only(places), self._codes)
        if self._terms is not None:
            self._terms[places] = block.terms[kept]

    def _add_to_cells(
        self, cells: npt.NDArray[np.int32], rows: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        """Give new rows (m,) places in the overflow tiles of their cells; return the places."""
        places = np.empty(len(rows), np.int32)
        overflow = (
            self._heads,
            self._nexts,
            self._tile_counts,
            self._tile_cells,
            self._cell_rows,
            self._used,
        )
        if add_places(read_only(cells), read_only(rows), self._first_tile, overflow, places) < 0:
            raise AssertionError("the caller must leave room for each row")
        self._flags[places] = 1
        np.add.at(self._counts, cells, 1)
        return places

    def _remove(self, rows: IntArray) -> None:
        if not len(rows):
            return
        self._alive[rows] = False
        self.live -= len(rows)
        if self._sparse_rows is not None:
            self._sparse_rows.remove(rows)
        if self._has_vector is not None:
            rows = rows[self._has_vector[rows]]
        self.searched -= len(rows)
        if self._has_cells:
            places = self._places[rows]
            self._flags[places] = 0
            self._has_removed |= bool((places < self._first_tile * TILE_POINTS).any())
            np.subtract.at(self._counts, self.cells_of(places), 1)

    def cells_of(self, places: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the cell of each place."""
        tiles = places // TILE_POINTS - self._first_tile
        stored = np.searchsorted(self._starts, places, side="right").astype(np.int32) - 1
        cells = np.where(tiles >= 0, self._tile_cells[np.maximum(tiles, 0)], stored)
        return cells.astype(np.int32)

    def rows_of_keys(self, keys: IntArray) -> IntArray:
        """Return the row of each key (m,), -1 where there is none."""
        return self.ids().rows_of_keys(keys)

    def keys_of(self, rows: IntArray) -> IntArray:
        """Return the keys (m,) of `rows`."""
        return self._keys[rows]

    def flags(self, condition: Filter) -> Flags:
        """Return for each row (rows,) whether it has a point that passes a filter.

        Raises `InvalidArgumentError` with the field `filter`.
        """
        ids = self.ids()
        flags: Flags = np.concatenate([part.flags(condition, ids) for part in self.parts])
        return flags & self._alive[: self.rows]

    def reader(self) -> LiveReader:
        """Return the columns of the rows."""
        return LiveReader(self.parts, self.ids(), self.generation.manifest.attributes)

    def reader_of_now(self) -> LiveReader:
        """Return the columns of the points that exist now; later records do not change them."""
        ids = self.ids(self._alive.copy())
        return LiveReader(self.parts, ids, self.generation.manifest.attributes)

    def ids(self, alive: Flags | None = None) -> LiveIds:
        """Return the ids, of the points in `alive` if it is given."""
        return LiveIds(
            keys=self._keys,
            order=self._order,
            ascending=self._ascending,
            later=self._later,
            former=self._former,
            rows=self.rows,
            alive=self._alive if alive is None else alive,
            parts=self.parts,
            kind=self.generation.manifest.id_kind,
            merged=self.layout.info.rows,
            displaced=self.displaced,
        )

    def visible(self) -> tuple[PassingRows, CodeOrder]:
        """Return the points that searches see now, and the order of codes.

        Both are copies, so later records do not change them.
        """
        alive = self._alive.copy()
        if self._has_vector is not None:
            alive &= self._has_vector
        if not self._has_cells:
            by_row = self._chains.order()
            return PassingRows(alive, order=by_row), by_row
        # A merge stores no codes of deleted points. So at first no code needs a flag, and then only
        # those in overflow tiles.
        first = 0 if self._has_removed else self._first_tile * TILE_POINTS
        is_merged = not (self._has_removed or self._used[0])
        flags = NO_FILTER.flags if is_merged else self._flags[first:].copy()
        # Searches leave out cells without points.
        counts = self._counts.copy()
        if is_merged and counts.all():
            counts = NO_FILTER.cells
        order = GrownOrder(self, self._heads.copy() if self._used[0] else NO_FILTER.heads)
        return PassingRows(alive, by_code=(flags, counts), order=order), order

    def present(self) -> PassingRows | None:
        """Return the points that exist now, a copy; None if searches see all of them."""
        return None if self.searched == self.live else PassingRows(self._alive.copy())

    def source(self) -> Source:
        """Return what a merge reads; later records do not change it."""
        rows, places = self.rows, self._places[: self.rows].copy()
        names = ("codes", "ids", "scan_terms", *ROW_ARRAYS)
        arrays = self.layout.arrays
        return Source(
            sequence=self.sequence,
            alive=self._alive[:rows].copy(),
            has_vector=None if self._has_vector is None else self._has_vector[:rows].copy(),
            places=places,
            cells=self.cells_of(places) if self._has_cells else _NO_CELLS,
            arrays={name: arrays[name] for name in names if name in arrays},
            model={name: arrays[name] for name in MODEL if name in arrays},
            parts=self.parts,
            displaced=self.displaced,
            requests=tuple((name, *result) for name, result in self.requests.items()),
        )

    def encoded(self, rows: IntArray) -> tuple[Array, Array, Array]:
        """Return cells (m,) int32, scan terms (m,) uint32 and codes (m, bits / 8) uint8.

        rows: (m,) rows whose points exist and have vectors. Without cells, all cells are -1.
        """
        places = self._places[rows]
        codes = np.empty((len(rows), self._codes.shape[1] // CODE_BYTE_TILE_BYTES), np.uint8)
        take_codes(read_only(self._codes), read_only(places), codes)
        terms = np.zeros(len(rows), np.uint32) if self._terms is None else self._terms[places]
        cells = self.cells_of(places) if self._has_cells else np.full(len(rows), -1, np.int32)
        return cells, terms, codes

    # What `GrownOrder` reads.

    @property
    def cell_rows(self) -> npt.NDArray[np.int32]:
        """The row at each place; an empty place has a row that never has a point."""
        return self._cell_rows

    @property
    def place_of_rows(self) -> npt.NDArray[np.int32]:
        """The place of each row."""
        return self._places

    @property
    def starts(self) -> IntArray:
        """The first place of each cell."""
        return self._starts

    def overflow_cells(self) -> tuple[int, npt.NDArray[np.int32]]:
        """Return the first place of the overflow tiles, and the cell of each tile in use."""
        return self._first_tile * TILE_POINTS, self._tile_cells[: int(self._used[0])]


class GrownOrder(CodeOrder):
    """The order of codes in cells to which points were added."""

    def __init__(self, state: State, heads: npt.NDArray[np.int32]) -> None:
        self._state, self._heads = state, heads

    @property
    def heads(self) -> npt.NDArray[np.int32]:
        """The first overflow tile of each cell, or -1; empty if no cell has one."""
        return self._heads

    def put(self, flags: Flags) -> tuple[Array, Array]:
        """Return flags (n,) of rows in the order of the codes, and their sum in each cell."""
        state = self._state
        by_place = flags.view(np.uint8)[state.cell_rows]
        starts = state.starts
        sums = np.concatenate(([0], np.cumsum(by_place[: starts[-1]], dtype=np.int32)))
        counts = np.diff(sums[starts]).astype(np.int32)
        first, cells = state.overflow_cells()
        tiles = by_place[first : first + len(cells) * TILE_POINTS].reshape(-1, TILE_POINTS)
        np.add.at(counts, cells, tiles.sum(axis=1, dtype=np.int32))
        return by_place, counts

    def copy_flags(self, flags: Array) -> Array:
        """Return a copy of flags that has those of all places."""
        stored = np.ones(len(self._state.cell_rows) - len(flags), np.uint8)
        return np.concatenate((stored, flags))

    def copy_counts(self, counts: Array) -> Array:
        """Return a copy of sums that has those of all cells."""
        return counts.copy() if len(counts) else np.diff(self._state.starts).astype(np.int32)

    def clear(self, flags: Array, counts: Array, rows: IntArray) -> None:
        """Clear the flags of `rows` (m,), which differ, in what `put` returned."""
        places = self.places_of(rows)
        flags[places] = 0
        np.subtract.at(counts, self.cells_of(places), 1)

    def places_of(self, rows: RowNumbers) -> npt.NDArray[np.int32]:
        """Return the place of each row (m,)."""
        return self._state.place_of_rows[rows]

    def cells_of(self, places: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the cell of each place (m,)."""
        return self._state.cells_of(places)
