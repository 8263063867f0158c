"""Makes the arrays of a whole generation from those of its shards.

The arrays have the same bytes as those that were divided. Rows are joined in blocks, so that points
of any size take little memory. What depends on all rows is made again, as a build makes it.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only, spans
from divgrpc.columns.annotations import INDICES, INDPTR
from divgrpc.columns.filters import order_of
from divgrpc.columns.ids import ID_TEXTS
from divgrpc.columns.reader import PAYLOAD, array_name
from divgrpc.columns.texts import BYTES, ENDS
from divgrpc.columns.writer import write_order
from divgrpc.hashing.codes import copy_codes, tiles_shape
from divgrpc.hashing.length_bounds import length_bounds
from divgrpc.hashing.lists import blocks_of, create_lists
from divgrpc.hashing.tables import create_tables
from divgrpc.kernels.inverted_lists import LISTED_POINTS_MAX
from divgrpc.search.arrays import points_of
from divgrpc.sharding.cutting import BY_ROW, ROW_NUMBERS
from divgrpc.storage.generations import Generation
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.writers import Store
from divgrpc.types import IntArray
from divgrpc.vectors import SparseRows

_TOPICS: Final = ("categories", "subtopics")
# Bytes of rows that are joined at once.
_BLOCK_BYTES: Final = 1 << 24
_BLOCK_ROWS_MAX: Final = 65_536


def join(store: Store, manifest: Manifest, parts: Sequence[Generation]) -> None:
    """Write the arrays of a whole generation, except those that its shards share.

    manifest: the manifest of the generation that was divided. parts: its shards, in order.
    """
    joint = _Joint(store, manifest, parts)
    joint.join_rows()
    joint.join_columns()
    joint.join_points()
    joint.join_codes()


def rows_of(parts: Sequence[Generation]) -> list[IntArray]:
    """Return the rows (m,) of the whole generation that each shard has, in ascending order."""
    if any(ROW_NUMBERS in part.arrays for part in parts):
        return [part.arrays[ROW_NUMBERS].astype(np.int64) for part in parts]
    # Without numbers, the ids of the whole generation ascend.
    order = np.argsort(np.concatenate([part.arrays["ids"] for part in parts]))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    ends = np.cumsum([part.manifest.rows for part in parts])
    return np.split(ranks, ends[:-1])


class _Joint:
    def __init__(self, store: Store, manifest: Manifest, parts: Sequence[Generation]) -> None:
        self._store, self._manifest, self._parts = store, manifest, parts
        self._names = manifest.arrays.keys()
        # For each shard, the rows (m,) of the whole generation that it has.
        self._rows = rows_of(parts)
        self._count = manifest.rows

    def join_rows(self) -> None:
        """Write the arrays with an entry for each row."""
        for name in (*BY_ROW, *_TOPICS):
            if name in self._names:
                self._join_array(name)
        if "ids" in self._names:
            write_order(self._store, self._store.read("ids"))
        if INDPTR in self._names:
            self._join_ragged(INDICES, INDPTR, leads_with_zero=True)

    def join_columns(self) -> None:
        """Write text ids, attributes and payloads."""
        for name in (ID_TEXTS, PAYLOAD):
            if name + ENDS in self._names:
                self._join_ragged(name + BYTES, name + ENDS)
        for number, attribute in enumerate(self._manifest.attributes):
            values = array_name(number, "values")
            if attribute.multi:
                self._join_ragged(values, array_name(number, "ends"))
            else:
                self._join_array(values)
            self._put(array_name(number, "order"), order_of(self._store.read(values)))

    def join_points(self) -> None:
        """Write sparse points and their lists, and the bounds of the lengths of dense points."""
        if "indptr" not in self._names:
            if self._manifest.parameters.metric == "inner_product":
                self._put("length_bounds", length_bounds(self._store.read("vectors")))
            return
        self._join_ragged("indices", "indptr", leads_with_zero=True, also="values")
        arrays = {name: self._store.read(name) for name in ("indptr", "indices", "values")}
        points = points_of(arrays, self._manifest.dims)
        assert isinstance(points, SparseRows)  # noqa: S101  # the arrays are those of sparse rows
        if len(points) <= LISTED_POINTS_MAX:
            create_lists(blocks_of(points), len(points), points.dims, self._store.create)

    def join_codes(self) -> None:
        """Write codes, and the tables or cells that hold them."""
        bits = self._manifest.code_bits
        places = [rows.astype(np.int32) for rows in self._rows]
        if "cell_rows" in self._names:
            places = self._join_cells()
        codes = self._store.create("codes", np.uint8, tiles_shape(self._count, bits))
        has_terms = "scan_terms" in self._names
        terms = self._store.create("scan_terms", np.uint32, (self._count,)) if has_terms else None
        for part, new_places in zip(self._parts, places, strict=True):
            places_of_part = np.arange(len(new_places), dtype=np.int32)
            copy_codes(part.arrays["codes"], places_of_part, codes, new_places)
            if terms is not None:
                terms[new_places] = part.arrays["scan_terms"]
        if "table_rows" in self._names:
            sizes = (self._manifest.parameters.n_tables or 0, self._manifest.parameters.n_bits or 0)
            create_tables(codes, np.ones(self._count, np.bool_), sizes, self._store.create)

    def _join_cells(self) -> list[npt.NDArray[np.int32]]:
        """Write the rows by cell; return the new place of the code at each place of each shard."""
        cells = np.empty(self._count, np.int32)
        rows_by_place = []
        for part, rows in zip(self._parts, self._rows, strict=True):
            by_place = rows[part.arrays["cell_rows"]]
            sizes = np.diff(part.arrays["cell_starts"])
            cells[by_place] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
            rows_by_place.append(by_place)
        # Rows ascend within a cell.
        order = np.argsort(cells, kind="stable").astype(np.int32)
        self._put("cell_rows", order)
        places = np.empty(self._count, np.int32)
        places[order] = np.arange(self._count, dtype=np.int32)
        return [places[by_place] for by_place in rows_by_place]

    def _join_array(self, name: str) -> None:
        """Write an array with an entry of the same size for each row."""
        first = self._parts[0].arrays[name]
        shape = first.shape[1:]
        row_bytes = first.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._store.begin(name, first.dtype, shape, self._count)

        def join_block(start: int, stop: int, pieces: list[slice]) -> None:
            block = np.empty((stop - start, *shape), first.dtype)
            for part, rows, piece in zip(self._parts, self._rows, pieces, strict=True):
                block[rows[piece] - start] = part.arrays[name][piece]
            self._store.append(name, block)

        self._in_blocks(row_bytes, join_block)

    def _join_ragged(
        self, name: str, ends_name: str, *, leads_with_zero: bool = False, also: str = ""
    ) -> None:
        """Write the values of all rows, one row after another, and where each row ends.

        leads_with_zero: whether the ends begin with a 0, as in compressed sparse rows. also: the
            name of a second array of values with the same ends.
        """
        names = [name, also] if also else [name]
        bounds = []
        for part in self._parts:
            ends = part.arrays[ends_name]
            bounds.append(ends if leads_with_zero else np.concatenate(([0], ends)))
        for one in names:
            self._store.begin(one, self._parts[0].arrays[one].dtype, ())
        self._store.begin(ends_name, np.int64, (), self._count + leads_with_zero)
        if leads_with_zero:
            self._store.append(ends_name, np.zeros(1, np.int64))
        total = 0

        def join_block(start: int, stop: int, pieces: list[slice]) -> None:
            nonlocal total
            sizes = np.zeros(stop - start, np.int64)
            for part_bounds, rows, piece in zip(bounds, self._rows, pieces, strict=True):
                sizes[rows[piece] - start] = np.diff(part_bounds[piece.start : piece.stop + 1])
            ends = np.cumsum(sizes)
            for one in names:
                values = np.empty(int(sizes.sum()), self._parts[0].arrays[one].dtype)
                for shard, piece in enumerate(pieces):
                    rows = self._rows[shard][piece] - start
                    low, high = bounds[shard][piece.start], bounds[shard][piece.stop]
                    places = spans(ends[rows] - sizes[rows], sizes[rows])
                    values[places] = self._parts[shard].arrays[one][low:high]
                self._store.append(one, values)
            self._store.append(ends_name, ends + total)
            total += len(values)

        widths = sum(int(part_bounds[-1]) for part_bounds in bounds) // max(1, self._count)
        self._in_blocks(8 * (1 + widths), join_block)

    def _in_blocks(
        self, row_bytes: int, join_block: Callable[[int, int, list[slice]], None]
    ) -> None:
        """Call `join_block` with the first and last row of each block, and what shards have of it.

        The last row is not part of the block. A slice is of the points of a shard.
        """
        step = max(1, min(_BLOCK_ROWS_MAX, _BLOCK_BYTES // max(1, row_bytes)))
        for start in range(0, self._count, step):
            stop = min(self._count, start + step)
            pieces = [slice(*map(int, np.searchsorted(rows, (start, stop)))) for rows in self._rows]
            join_block(start, stop, pieces)

    def _put(self, name: str, array: Array) -> None:
        self._store.begin(name, array.dtype, array.shape[1:])
        self._store.append(name, read_only(array))
