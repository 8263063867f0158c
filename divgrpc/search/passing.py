"""The points that pass a filter, in the forms that searches read."""

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.kernels.records import Cells, Passing
from divgrpc.kernels.registers import record_of

# What kernels read if a query has no filter.
NO_FILTER: Final = record_of(Passing, None, {})
_NO_FLAGS: Final = np.empty(0, np.uint8)
_NO_COUNTS: Final = np.empty(0, np.int32)


class PassingRows:
    """The points of an index that pass a filter.

    flags: (n,) bool, whether the point of each row passes.
    count: number of points that pass.
    """

    def __init__(self, flags: npt.NDArray[np.bool_]) -> None:
        self.flags = flags
        self.count = int(np.count_nonzero(flags))
        self._by_code: Passing | None = None

    @property
    def bytes_max(self) -> int:
        """Upper bound of the bytes that this object takes in memory."""
        return 4 * len(self.flags) + 4 * self.count

    @cached_property
    def by_row(self) -> Passing:
        """The rows that pass, for an exact search."""
        rows = np.flatnonzero(self.flags).astype(np.int32)
        return Passing(rows, _NO_FLAGS, _NO_COUNTS)

    def by_code(self, cells: Cells) -> Passing:
        """Return the rows that pass, with flags in the order of the codes, for other searches.

        `cells`: the cells of the index, which may be empty.
        """
        # Two threads may do this at the same time, with the same result.
        if self._by_code is None:
            flags: Array = self.flags.view(np.uint8)
            counts = _NO_COUNTS
            if len(cells.starts):
                flags = flags[cells.rows]
                sums = np.concatenate(([0], np.cumsum(flags, dtype=np.int32)))
                counts = np.diff(sums[cells.starts]).astype(np.int32)
            self._by_code = self.by_row._replace(flags=flags, cells=counts)
        return self._by_code

    def without(self, rows: Array | list[int]) -> "PassingRows":
        """Return the points that pass without those of `rows` (m,)."""
        flags = self.flags.copy()
        flags[rows] = False
        return PassingRows(flags)
