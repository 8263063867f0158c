"""The codes of some points of an index with cells, copied cell by cell.

A search with a filter reads the codes of all points in the cells that it probes, and skips those
that do not pass. If few pass, most of its time goes to the others. If a filter is used again and
again, a copy of the codes that pass saves this time. The search reads the same cells and finds the
same points.
"""

import threading
import weakref
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import read_only
from divgrpc.hashing.codes import copy_codes
from divgrpc.hashing.partition import order_by_cell
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.kernels.records import Index, Passing
from divgrpc.kernels.registers import register
from divgrpc.search.arrays import NO_FILTER
from divgrpc.search.code_order import CodeOrder
from divgrpc.types import IntArray

# Maximum number of bytes of all copies of this process together.
_COPIES_BYTES_MAX: Final = 64 << 20


class _Memory:
    """Counts the bytes of the copies that exist."""

    def __init__(self) -> None:
        self._lock, self._bytes = threading.Lock(), 0

    def take(self, size: int) -> bool:
        """Count `size` more bytes, and return True, unless there would be too many."""
        with self._lock:
            fits = self._bytes + size <= _COPIES_BYTES_MAX
            self._bytes += size if fits else 0
            return fits

    def give_back(self, size: int) -> None:
        """Count `size` fewer bytes."""
        with self._lock:
            self._bytes -= size


_MEMORY: Final = _Memory()


@dataclass(frozen=True, eq=False)
class PackedCells:
    """Points of an index with cells, as an index of their own whose rows have the same numbers.

    register: the register of this index, for kernels.
    passing: the points that a query may return.
    """

    register: IntArray
    passing: Passing
    _index: Index

    @classmethod
    def of(
        cls,
        index: Index,
        rows: npt.NDArray[np.int32],
        order: CodeOrder,
    ) -> "PackedCells | None":
        """Copy the codes of points, or return None if copies take too much memory already.

        index: an index with cells; `order` is the order of its codes. `rows` (m,) are the rows of
        the points, ascending.
        """
        codes, terms = index.hashing.codes, index.hashing.terms
        tile_bytes, tiles = codes.shape[1], -(-len(rows) // TILE_POINTS)
        size = tiles * tile_bytes + len(rows) * (rows.itemsize + terms.itemsize)
        if not _MEMORY.take(size):
            return None
        places = order.places_of(rows)
        by_cell, starts = order_by_cell(order.cells_of(places), len(index.cells.starts) - 1)
        new_codes = np.zeros((tiles, tile_bytes), np.uint8)
        copy_codes(codes, places[by_cell], new_codes)
        new_terms = terms[places[by_cell]] if len(terms) else terms
        packed = index._replace(
            hashing=index.hashing._replace(codes=read_only(new_codes), terms=read_only(new_terms)),
            cells=index.cells._replace(starts=read_only(starts), rows=read_only(rows[by_cell])),
        )
        counts = np.diff(starts).astype(np.int32)
        passing = NO_FILTER._replace(total=np.array([len(rows)]), cells=counts)
        copy = cls(register(packed), passing, packed)
        weakref.finalize(copy, _MEMORY.give_back, size).atexit = False
        return copy

    def without(self, rows: IntArray, cells: npt.NDArray[np.int32]) -> "PackedCells":
        """Return the same points without those of some rows.

        rows: (r,) different rows of the copy that pass so far; `cells` (r,) are their cells.
        """
        starts, members = self._index.cells.starts, self._index.cells.rows
        before = self.passing.flags
        flags = before.copy() if len(before) else np.ones(len(members), np.uint8)
        counts = self.passing.cells.copy()
        for row, cell in zip(rows.tolist(), cells.tolist(), strict=True):
            # The rows of a cell ascend.
            first, stop = int(starts[cell]), int(starts[cell + 1])
            flags[first + np.searchsorted(members[first:stop], row)] = 0
            counts[cell] -= 1
        total = self.passing.total - len(rows)
        passing = self.passing._replace(total=total, cells=counts, flags=flags)
        return PackedCells(self.register, passing, self._index)
