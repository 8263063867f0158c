"""Sums over points that earlier pages have shown, kept in memory for the next page.

A later page needs, for each candidate, a sum over the distances from all points shown. The page
before has computed most of this sum. A process keeps the sums of recent pages, so that a late page
costs little more than the first. A page whose sums are not kept computes them anew, in the same
order, and so has the same bytes.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.search.kept_pages import PAGES_MAX, KeptPages
from divgrpc.types import IntArray

Rows32 = npt.NDArray[np.int32]

# Maximum number of bytes of the sums that a process keeps.
BYTES_MAX: Final = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What the rule of a selector has computed for some rows over some points shown.

    shown: (s,) row numbers of the points shown, in their order.
    rows: (m,) row numbers, ascending.
    columns: arrays with one entry for each of `rows`.
    """

    shown: Rows32
    rows: Rows32
    columns: tuple[Array, ...]

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(array.nbytes for array in (self.shown, self.rows, *self.columns))


def places_in(ascending: Rows32, rows: Rows32) -> IntArray:
    """Return the place of each of `rows` (n,) in `ascending`, which is not empty, or -1."""
    places = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)
    return np.where(ascending[places] == rows, places, -1)


class KeptSums(KeptPages[tuple[Hashable, bytes], Sums]):
    """The sums of recent pages, by rule and by the points shown."""

    def __init__(self, bytes_max: int = BYTES_MAX, pages_max: int = PAGES_MAX) -> None:
        super().__init__(bytes_max, pages_max)

    def find(self, key: Hashable, shown: Rows32) -> Sums | None:
        """Return the sums over most of the first of the points shown, if any are kept.

        key: tells the rule, and the points that rows are numbers of.
        """
        data = shown.tobytes()
        with self._lock:
            fits = [page for page in self._pages if page[0] == key and data.startswith(page[1])]
            if not fits:
                return None
            page = max(fits, key=lambda fit: len(fit[1]))
            self._pages.move_to_end(page)
            return self._pages[page]

    def keep(self, key: Hashable, sums: Sums) -> None:
        """Keep sums, which must not change, and forget those that were used least recently."""
        if len(sums.rows):
            self._keep((key, sums.shown.tobytes()), sums)


# Those of this process.
KEPT: Final = KeptSums()
