"""The order in which an index stores the codes of its points."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.kernels.records import Cells
from divgrpc.search.arrays import NO_FILTER
from divgrpc.types import IntArray

Flags = npt.NDArray[np.bool_]
RowNumbers = IntArray | npt.NDArray[np.int32]


class CodeOrder:
    """The order in which an index stores its codes: by row, or with cells by place."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    @property
    def heads(self) -> npt.NDArray[np.int32]:
        """The first overflow tile of each cell (C,), or -1; empty if no cell has one."""
        return NO_FILTER.heads

    def put(self, flags: Flags) -> tuple[Array, Array]:
        """Return flags (n,) of rows as uint8 in the order of the codes, and their sum in each cell.

        The sums (C,) are int32, and empty without cells.
        """
        by_row: Array = flags.view(np.uint8)
        if not len(self._cells.starts):
            return by_row, NO_FILTER.cells
        by_place = by_row[self._cells.rows]
        sums = np.concatenate(([0], np.cumsum(by_place, dtype=np.int32)))
        return by_place, np.diff(sums[self._cells.starts]).astype(np.int32)

    def count(self, rows: RowNumbers) -> Array:
        """Return the number (C,) int32 of different rows in each cell; empty without cells."""
        if not len(self._cells.starts):
            return NO_FILTER.cells
        cells = self.cells_of(self.places_of(rows))
        return np.bincount(cells, minlength=len(self._cells.starts) - 1).astype(np.int32)

    def copy_flags(self, flags: Array) -> Array:
        """Return a copy of flags that has those of all places."""
        return flags.copy()

    def copy_counts(self, counts: Array) -> Array:
        """Return a copy of sums that has those of all cells."""
        return counts.copy()

    def clear(self, flags: Array, counts: Array, rows: IntArray) -> None:
        """Clear the flags of `rows` (m,), which differ, in what `put` returned."""
        if not len(self._cells.starts):
            flags[rows] = 0
            return
        places = self.places_of(rows)
        flags[places] = 0
        np.subtract.at(counts, self.cells_of(places), 1)

    def places_of(self, rows: RowNumbers) -> npt.NDArray[np.int32]:
        """Return the place of each row (m,)."""
        return self._places[rows]

    def cells_of(self, places: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the cell of each place (m,)."""
        return np.searchsorted(self._cells.starts, places, side="right").astype(np.int32) - 1

    @cached_property
    def _places(self) -> npt.NDArray[np.int32]:
        """The place (n,) of each row."""
        places = np.empty(len(self._cells.rows), np.int32)
        places[self._cells.rows] = np.arange(len(places), dtype=np.int32)
        return places
