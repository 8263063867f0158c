"""The files of the writes to a generation, and the merge that makes them.

    <generation>/vectors.npy            the vectors of Build, then of later writes; sparse vectors
                                        are in indices.npy and values.npy
    <generation>/writes/LAYOUT          the current layout, replaced by a rename
    <generation>/writes/layouts/<n>/    the arrays of a layout, never changed
    <generation>/writes/parts/<n>/      the columns of the rows that a merge added, never changed
    <generation>/writes/log/            records of later writes (`divgrpc.writes.log`)

A layout has the ids and codes that a search reads, in cells or with hash tables. Its arrays have
room for later rows, which each process adds in private memory, from the log. A merge writes a new
layout, in which these rows are where Build would have put them, and without the rows of deleted
points. Codes are copied and never computed again, so a merge changes no answer. The number of a row
does not change either.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.filters import Flags
from divgrpc.columns.ids import ascends
from divgrpc.errors import IndexDamagedError
from divgrpc.hashing.codes import copy_codes
from divgrpc.hashing.lists import (
    FULL_COLUMNS,
    LENGTHS,
    STEPS,
    blocks_of,
    list_points,
    room_for_later_lists,
    rounding_of,
)
from divgrpc.hashing.partition import order_by_cell
from divgrpc.hashing.tables import create_tables
from divgrpc.kernels.inverted_lists import LISTED_POINTS_MAX
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.parameters.limits import LIMITS
from divgrpc.search.arrays import points_of, with_lists, with_tiles
from divgrpc.storage.arrays import (
    ArrayEntry,
    ArrayFolder,
    full_disk_errors,
    open_array,
    sync_folder,
    write_synced,
)
from divgrpc.storage.generations import Generation
from divgrpc.storage.layouts import LayoutInfo, PartEntry, read_layout
from divgrpc.storage.manifest import Manifest, with_checksum
from divgrpc.storage.published import LAYOUT, LAYOUTS, LOG, WRITES
from divgrpc.storage.removal import remove
from divgrpc.types import IntArray
from divgrpc.vectors import SparseRows
from divgrpc.writes.columns import Blocks, MemoryPart, Part, Parts, columns_in
from divgrpc.writes.log import Log
from divgrpc.writes.model import model_arrays
from divgrpc.writes.point_files import PointFiles
from divgrpc.writes.tables import room_for_later, table_sizes, tables_of

# Folder of the columns of rows that merges added, in the folder of the writes.
PARTS: Final = "parts"
# Arrays of a layout with a number for each row, if the collection has them. `indptr` has one more.
ROW_ARRAYS: Final = ("inverse_lengths", "indptr", "squares", *LENGTHS)
# Numbers of rows that can be written after a merge, at least and at most.
_LATER_ROWS_MIN: Final = 16_384
_LATER_ROWS_MAX: Final = 65_536
# Bytes of a value of a sparse row and of its column.
_VALUE_BYTES: Final = 8


def rows_at_once(manifest: Manifest) -> int:
    """Return the number of rows that one write may have; each new layout has room for that many."""
    return min(_later_rows_max(manifest), LIMITS["write_rows_max"])


def _later_rows_max(manifest: Manifest) -> int:
    if manifest.points == "sparse":
        return _LATER_ROWS_MAX
    return max(1, min(_LATER_ROWS_MAX, LIMITS["unmerged_bytes_max"] // (4 * manifest.dims)))


def values_at_once(manifest: Manifest) -> int:
    """Return the number of values that the sparse rows of one write may have.

    Each new layout has room for that many.
    """
    return min(rows_at_once(manifest) * manifest.dims, LIMITS["write_values_max"])


def _later_values(manifest: Manifest, values: int, rows: int, later_rows: int) -> int:
    """Return the number of values that can be written after `values` values of `rows` rows."""
    mean_width = -(-values // max(1, rows))
    likely = min(later_rows * mean_width, LIMITS["unmerged_bytes_max"] // _VALUE_BYTES)
    return max(values_at_once(manifest), likely)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A layout that is open: its arrays, and the columns of its rows."""

    info: LayoutInfo
    arrays: dict[str, Array]
    parts: Parts


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The rows of a collection at one sequence number, which a merge reads.

    alive: (rows,) whether the point of a row exists.
    places: (rows,) int32, where the code of a row is; `cells` (rows,) int32 the cell of a row,
        empty without cells.
    arrays: `codes`, `ids` and, if the collection has them, `scan_terms` and the arrays of
        `ROW_ARRAYS`.
    model: the arrays of `divgrpc.writes.model`.
    parts: the columns. Those of the rows since the last merge are in memory.
    displaced, requests: as in `LayoutInfo`.
    has_vector: (rows,) whether a row has a vector; None if all have.
    """

    sequence: int
    alive: Flags
    places: npt.NDArray[np.int32]
    cells: npt.NDArray[np.int32]
    arrays: Mapping[str, Array]
    model: Mapping[str, Array]
    parts: Parts
    displaced: bool
    requests: tuple[tuple[str, int, int, str], ...] = ()
    has_vector: Flags | None = None

    @property
    def rows_with_vector(self) -> int:
        """Number of rows that have a vector, deleted ones included."""
        flags = self.has_vector
        return len(self.alive) if flags is None else int(np.count_nonzero(flags))

    @property
    def searchable(self) -> Flags:
        """Whether the point of a row (rows,) exists and has a vector."""
        return self.alive if self.has_vector is None else self.alive & self.has_vector

    @classmethod
    def of_build(cls, generation: Generation, model: Mapping[str, Array] | None = None) -> "Source":
        """Return the rows of Build, or of a vacuum that has kept the `model`."""
        manifest = generation.manifest
        # Codes of older formats are not in tiles, and their lists have no bytes.
        arrays = with_lists(with_tiles(generation.arrays), manifest.dims)
        rows = manifest.rows
        ids = arrays.get("ids", np.arange(rows))
        names = ("codes", "scan_terms", *ROW_ARRAYS)
        code_arrays = {name: arrays[name] for name in names if name in arrays}
        places, cells = np.arange(rows, dtype=np.int32), np.empty(0, np.int32)
        if "cell_rows" in arrays:
            order, sizes = arrays["cell_rows"], np.diff(arrays["cell_starts"])
            places[order] = np.arange(rows, dtype=np.int32)
            cells = np.empty(rows, np.int32)
            cells[order] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        points = points_of(arrays, manifest.dims)
        model = model_arrays(arrays, manifest, points) if model is None else model
        if STEPS in model and not np.array_equal(arrays[STEPS], model[STEPS]):
            assert isinstance(points, SparseRows)  # noqa: S101  # others have no lists
            code_arrays |= rounding_of(points, model[STEPS], model[FULL_COLUMNS])
        return cls(
            sequence=0,
            alive=np.ones(rows, np.bool_),
            places=places,
            cells=cells,
            arrays=code_arrays | {"ids": ids},
            model=model,
            parts=Parts([Part(0, rows, arrays, manifest.attributes)]),
            displaced=manifest.id_kind == "string" and bool((np.diff(np.sort(ids)) == 1).any()),
        )

    @property
    def values(self) -> int:
        """Number of values of all rows; 0 if rows are dense."""
        return int(self.arrays["indptr"][len(self.alive)]) if "indptr" in self.arrays else 0


class WritesFolder:
    """The folder of the writes to a generation."""

    def __init__(self, generation: Path) -> None:
        self.path = generation / WRITES
        self.log = Log(self.path / LOG)

    def read_info(self) -> LayoutInfo | None:
        """Return the current layout, or None if nothing was ever written."""
        return read_layout(self.path)

    def point_files(self, manifest: Manifest) -> PointFiles:
        """Return the files with the vectors of the generation that has this manifest."""
        return PointFiles(self.path.parent, manifest)

    def sweep(self) -> None:
        """Remove the `leftovers`."""
        _, _, root = self.path.parents[:3]
        for path in self.leftovers():
            remove(path, root)

    def leftovers(self) -> list[Path]:
        """Return the drafts and folders of merges that the current layout does not use.

        During a merge, these may be files in use.
        """
        info = self.read_info()
        used_folders = {} if info is None else self.folders(info)
        draft = self.path / f"{LAYOUT}.new"
        paths = [draft] if draft.exists() else []
        for kind in (LAYOUTS, PARTS):
            folders = sorted((self.path / kind).glob("*"))
            paths += [folder for folder in folders if folder not in used_folders]
        return paths

    def folders(self, info: LayoutInfo) -> dict[Path, dict[str, ArrayEntry]]:
        """Return the folders of a layout and of its parts, with the entries of their arrays."""
        parts = {self._folder(PARTS, part.number): part.arrays for part in info.parts}
        return {self._folder(LAYOUTS, info.number): info.arrays} | parts

    def _folder(self, kind: str, number: int) -> Path:
        return self.path / kind / str(number)

    def open_layout(self, generation: Generation, *, verify: bool) -> Layout:
        """Open the current layout; raises `IndexDamagedError`."""
        info = self.read_info()
        if info is None:
            raise IndexDamagedError("the layout is missing")
        folder = self._folder(LAYOUTS, info.number)
        arrays = {
            name: open_array(folder / f"{name}.npy", entry, verify=verify, mode="c")
            for name, entry in info.arrays.items()
        }
        manifest = generation.manifest
        parts = [Part(0, manifest.rows, generation.arrays, manifest.attributes)]
        for entry in info.parts:
            folder = self._folder(PARTS, entry.number)
            columns = {
                name: open_array(folder / f"{name}.npy", array, verify=verify)
                for name, array in entry.arrays.items()
            }
            parts.append(Part(entry.first, entry.rows, columns, manifest.attributes))
        if "cell_rows" not in arrays:
            if "table_rows" not in arrays:
                arrays |= tables_of(arrays["codes"], info.rows, manifest.parameters)
            arrays |= room_for_later(info.capacity - info.rows, manifest.parameters)
        if STEPS in arrays:
            values, values_max = info.items
            room = info.capacity - info.rows, values_max - values
            arrays |= room_for_later_lists(info.rows, *room, arrays[FULL_COLUMNS])
        files = self.point_files(manifest)
        if verify:
            for entry in info.parts:
                if files.checksums(*entry.items) != entry.checksums:
                    raise IndexDamagedError("array vectors does not match its checksum")
        return Layout(info, arrays | files.map(info.items[1]), Parts(parts))

    def merge(self, generation: Generation, source: Source) -> LayoutInfo:
        """Write a layout of all rows of `source`, and make it current.

        Raises `StorageFullError`; the layout before then stays current.
        """
        old_info = self.read_info()
        with full_disk_errors():
            for name in (LAYOUTS, PARTS, LOG):
                # Without `parents`, because the generation may have been removed meanwhile.
                (self.path / name).mkdir(exist_ok=True)
            # Without these folders on the disk, vectors that have grown would seem damaged, and the
            # log could not begin. Without the LAYOUT of an earlier merge, whose sync may have
            # failed, the next layout would seem to have lost it.
            self.sync_names()
        number = 1 if old_info is None else old_info.number + 1
        rows, manifest = len(source.alive), generation.manifest
        capacity, values = _room_of(manifest, source, old_info)
        self.point_files(manifest).reserve(capacity if values is None else values[1])
        arrays = self._write_layout(number, generation, source, capacity)
        parts = () if old_info is None else _parts_before(old_info, source)
        parts += self._write_part(number, generation, source, parts)
        info = LayoutInfo(
            number=number,
            sequence=source.sequence,
            rows=rows,
            capacity=capacity,
            live=int(source.alive.sum()),
            displaced=source.displaced,
            arrays=arrays,
            parts=parts,
            requests=source.requests,
            values=values,
        )
        self._publish(info)
        return info

    def _publish(self, info: LayoutInfo) -> None:
        draft = self.path / f"{LAYOUT}.new"
        write_synced(draft, with_checksum(json.loads(json.dumps(asdict(info)))))
        with full_disk_errors():
            for name in (LAYOUTS, PARTS, LOG):
                sync_folder(self.path / name)
            os.rename(draft, self.path / LAYOUT)
            self.sync_names()

    def sync_names(self) -> None:
        """Let no loss of power bring back an older file LAYOUT than the one in the folder."""
        sync_folder(self.path)
        sync_folder(self.path.parent)

    def _write_layout(
        self, number: int, generation: Generation, source: Source, capacity: int
    ) -> dict[str, ArrayEntry]:
        def fill(store: ArrayFolder) -> None:
            _fill(store, generation, source, capacity)
            if STEPS in source.model:
                files = self.point_files(generation.manifest)
                _fill_lists(store, generation, source, files.map(source.values))

        return _write_arrays(self._folder(LAYOUTS, number), fill)

    def _write_part(
        self, number: int, generation: Generation, source: Source, parts: tuple[PartEntry, ...]
    ) -> tuple[PartEntry, ...]:
        """Write the columns of the rows since the last merge."""
        first = generation.manifest.rows + sum(part.rows for part in parts)
        rows = len(source.alive) - first
        if not rows:
            return ()
        blocks = Blocks([part for part in source.parts if isinstance(part, MemoryPart)])

        def fill(store: ArrayFolder) -> None:
            columns_in(store, blocks, generation.manifest.attributes)

        entries = _write_arrays(self._folder(PARTS, number), fill)
        files = self.point_files(generation.manifest)
        if "indptr" not in source.arrays:
            (crc32,) = files.checksums(first, rows)
            return (PartEntry(number, first, rows, crc32, entries),)
        start = int(source.arrays["indptr"][first])
        values = (start, source.values - start)
        crc32, values_crc32 = files.checksums(*values)
        return (PartEntry(number, first, rows, crc32, entries, values, values_crc32),)


def _room_of(
    manifest: Manifest, source: Source, old_info: LayoutInfo | None
) -> tuple[int, tuple[int, int] | None]:
    """Return the capacity and the values of a new layout, as `LayoutInfo` has them.

    While the layout is written, the one before it may be filled up, so there is room for all of
    its rows. Another release may have given it more room than this one does.
    """
    rows = len(source.alive)
    later_rows = min(_later_rows_max(manifest), max(_LATER_ROWS_MIN, rows))
    # One more row, which is never used: empty places refer to it.
    capacity = -(-(rows + later_rows + 1) // TILE_POINTS) * TILE_POINTS
    values = None
    if manifest.points == "sparse":
        room = _later_values(manifest, source.values, rows, later_rows)
        values = (source.values, source.values + room)
    if old_info is None:
        return capacity, values
    if values is not None:
        values = (values[0], max(values[1], old_info.items[1]))
    return max(capacity, old_info.capacity), values


def _parts_before(info: LayoutInfo, source: Source) -> tuple[PartEntry, ...]:
    """Return the parts of a layout whose rows `source` does not have in memory.

    A merge may have failed when its layout was current already, so that the rows are still there.
    """
    firsts = [part.first for part in source.parts if isinstance(part, MemoryPart)]
    end = min(firsts, default=len(source.alive))
    return tuple(part for part in info.parts if part.first < end)


def _write_arrays(folder: Path, fill: Callable[[ArrayFolder], None]) -> dict[str, ArrayEntry]:
    """Create a folder with the arrays that `fill` writes, sync it, and return their entries.

    Raises `StorageFullError`. After an error, the folder does not exist.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with full_disk_errors():
        store = ArrayFolder(folder)
    try:
        fill(store)
        entries = store.close()
        sync_folder(folder)
    except BaseException:
        store.discard()
        raise
    return entries


def _fill(store: ArrayFolder, generation: Generation, source: Source, capacity: int) -> None:
    """Write the arrays of a layout."""
    rows = len(source.alive)
    for name, array in source.model.items():
        store.create(name, array.dtype, array.shape)[...] = array
    store.create("alive", np.bool_, (rows,))[:] = source.alive
    ids = source.arrays["ids"]
    store.create("ids", np.int64, (capacity,))[:rows] = ids[:rows]
    if source.has_vector is not None:
        store.create("has_vector", np.bool_, (rows,))[:] = source.has_vector
    live_rows = np.flatnonzero(source.alive)
    keys = ids[live_rows]
    order = live_rows if ascends(keys) else live_rows[np.argsort(keys, kind="stable")]
    store.create("order", np.int64, order.shape)[:] = order
    for name in ROW_ARRAYS:
        if name in source.arrays:
            array, ends = source.arrays[name], int(name == "indptr")
            _copy(store.create(name, array.dtype, (capacity + ends,)), array, rows + ends)
    if len(source.cells):
        cells = len(generation.arrays["cell_centres"])
        _fill_cells(store, source, np.flatnonzero(source.searchable), capacity - rows, cells)
        return
    codes, terms = source.arrays["codes"], source.arrays.get("scan_terms")
    tiles = -(-rows // TILE_POINTS)
    shape = (capacity // TILE_POINTS, codes.shape[1])
    _copy(store.create("codes", np.uint8, shape), codes, tiles)
    if terms is not None:
        _copy(store.create("scan_terms", np.uint32, (capacity,)), terms, rows)
    sizes = table_sizes(generation.manifest.parameters)
    # The last rows may have no codes, and are in no table then.
    coded = source.searchable[: len(codes) * TILE_POINTS]
    create_tables(codes, coded, sizes, store.create)


def _copy(target: Array, array: Array, count: int) -> None:
    """Copy the first `count` entries, as many as there are: the last rows may have no vectors."""
    part = array[:count]
    target[: len(part)] = part


def _fill_lists(
    store: ArrayFolder, generation: Generation, source: Source, items: Mapping[str, Array]
) -> None:
    """Write inverted lists of more rows than those of the generation have, if there are more.

    items: the columns and the values of the rows.
    """
    rows, arrays, dims = len(source.alive), generation.arrays, generation.manifest.dims
    # A vacuum has made lists with the same steps. Those of Build have others.
    has_lists = np.array_equal(arrays.get(STEPS, ()), source.model[STEPS])
    list_count = arrays["full_values"].shape[1] if has_lists else 0
    count = max(list_count, min(rows, LISTED_POINTS_MAX))
    if count > list_count:
        indptr = source.arrays["indptr"][: count + 1]
        points = SparseRows(indptr, items["indices"], items["values"], dims)
        columns = source.model[STEPS], source.model[FULL_COLUMNS]
        list_points(blocks_of(points), count, *columns, store.create)


def _fill_cells(
    store: ArrayFolder, source: Source, live_rows: IntArray, room: int, cells: int
) -> None:
    """Write the codes of the rows `live_rows` by cell, with room for `room` more rows."""
    codes, terms = source.arrays["codes"], source.arrays.get("scan_terms")
    order, starts = order_by_cell(source.cells[live_rows], cells)
    by_cell = live_rows[order]
    store.create("cell_starts", np.int64, starts.shape)[:] = starts
    tiles = -(-len(by_cell) // TILE_POINTS)
    # Each cell may have one overflow tile that is not full.
    overflow = min(room, cells + room // TILE_POINTS)
    store.create("overflow_nexts", np.int32, (overflow,))[:] = -1
    places = (tiles + overflow) * TILE_POINTS
    cell_rows = store.create("cell_rows", np.int32, (places,))
    cell_rows[: len(by_cell)] = by_cell
    # The last row never has a point.
    cell_rows[len(by_cell) :] = len(source.alive) + room - 1
    old_places = source.places[by_cell]
    if terms is not None:
        store.create("scan_terms", np.uint32, (places,))[: len(by_cell)] = terms[old_places]
    new_codes = store.create("codes", np.uint8, (tiles + overflow, codes.shape[1]))
    copy_codes(codes, old_places, new_codes)
