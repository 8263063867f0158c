"""Memory that queries write into.

It belongs to a thread: kernels write into it without a lock. It grows with the number of points,
and what only one way to search needs is made when that way is first taken.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import scanning
from divgrpc.types import FloatArray, IntArray

# Probes that one query may look at: the room of the heap.
MAX_PROBES: Final = 4_096

# From so many dimensions on a row that is spread out leaves the processor's nearer caches.
_MARKED_FROM: Final = 1 << 17


@dataclass(slots=True)
class Scratch:
    """What one thread's queries write into; see `kernels.answering.answer`."""

    rows: npt.NDArray[np.int32]
    distances: FloatArray
    projections: FloatArray
    code: npt.NDArray[np.uint64]
    planes: npt.NDArray[np.uint64]
    scanning: tuple[Any, ...]
    probing: tuple[Any, ...]
    cells: tuple[Any, ...]
    target: FloatArray
    sketched: FloatArray
    marks: npt.NDArray[np.uint64]
    far: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    apart: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    costs: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    picked: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def empty(
        cls, points: int, dims: int, words: int, hashed_dims: int, *, sparse: bool = False
    ) -> "Scratch":
        """Return memory for that many points, dimensions, and words of a code.

        `hashed_dims` is how many dimensions are left to be hashed.
        """
        return cls(
            np.empty(points, np.int32),
            np.empty(points, np.float32),
            np.empty(64 * words, np.float32),
            np.empty((words, 1), np.uint64),
            np.empty((4, words), np.uint64),
            _scanning_scratch(0, 0),
            _probing_scratch(0, 0, 0, 0),
            _cells_scratch(0, 0),
            np.zeros((1, dims), np.float32),
            np.empty((1, hashed_dims), np.float32),
            np.zeros(-(-dims // 64) if sparse and dims >= _MARKED_FROM else 0, np.uint64),
        )

    def make_room(self, seen: int, k: int) -> None:
        """Make room for `seen` candidates and `k` picks."""
        if len(self.apart) < seen:
            self.apart = np.empty(seen, np.float32)
            self.costs = np.empty(seen, np.float32)
            self.far = np.empty(seen, np.float32)
        if len(self.picked) < k:
            self.picked = np.empty(k, np.int64)

    def make_scanning(self) -> None:
        """Make what a scan of all codes needs."""
        if not len(self.scanning[0]):
            self.scanning = _scanning_scratch(len(self.rows), len(self.code))

    def make_probing(self, n_tables: int, n_bits: int) -> None:
        """Make what a search through tables needs."""
        if not len(self.probing[2]):
            room = n_tables + 2 * MAX_PROBES
            self.probing = _probing_scratch(n_tables, n_bits, room, len(self.rows))

    def make_cells(self, cells: int) -> None:
        """Make what a search through cells needs, coarse ones counted too."""
        if not len(self.cells[0]):
            self.cells = _cells_scratch(cells, len(self.rows))

    @property
    def selection(self) -> tuple[Any, ...]:
        """What selectors write into; see `kernels.selection.greedy`."""
        return (self.far, self.target, self.apart, self.marks)

    def as_tuple(self) -> tuple[Any, ...]:
        """Return everything in the order of `kernels.answering.answer`."""
        return (
            self.rows,
            self.distances,
            self.projections,
            self.code,
            self.planes,
            self.scanning,
            self.probing,
            self.cells,
            self.selection,
            self.costs,
            self.picked,
            self.sketched,
        )


def _scanning_scratch(points: int, words: int) -> tuple[Any, ...]:
    groups = -(-points // scanning.GROUP)
    levels = 14 * 64 * words + 1
    columns = -(-points // scanning.BLOCK) * scanning.COLUMN
    return (
        np.empty(points, np.int32),
        np.empty(groups, np.int32),
        np.empty(levels, np.int32),
        np.empty(columns, np.float32),
    )


def _probing_scratch(n_tables: int, n_bits: int, room: int, points: int) -> tuple[Any, ...]:
    heap = (
        np.empty(room, np.float32),
        np.empty(room, np.int32),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    return (
        np.empty((n_tables, n_bits), np.int32),
        np.empty((n_tables, n_bits), np.float32),
        np.empty(n_tables, np.int64),
        heap,
        np.zeros(points, np.uint32),
        np.zeros(1, np.uint32),
    )


def _cells_scratch(cells: int, points: int) -> tuple[Any, ...]:
    return (np.empty(cells, np.int32), np.empty(cells, np.float32), np.empty(points, np.int32))
