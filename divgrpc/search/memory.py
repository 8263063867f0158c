"""Memory that queries write into.

It belongs to a thread: kernels write into it without a lock. What only one way to search needs is
made when that way is first taken, and there is room for as many points as a query had to look at:
all of them where it was exact or a scan, else those in the cells or buckets that it probed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import code_scan, registers
from divgrpc.types import FloatArray, IntArray

# Probes that one query may look at: the room of the heap.
MAX_PROBES: Final = 4_096

# From so many dimensions on a row that is spread out leaves the processor's nearer caches.
_MARKED_FROM: Final = 1 << 17


@dataclass(slots=True)
class Scratch:
    """What one thread's queries write into; see `kernels.answering._answer`."""

    rows: npt.NDArray[np.int32]
    distances: FloatArray
    scores: npt.NDArray[np.int32]
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
    sums: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    together: tuple[Any, ...] = field(default_factory=lambda: _together_scratch(0, 0, 0, 0))
    _register: IntArray | None = field(default=None, init=False, repr=False)

    @classmethod
    def empty(
        cls,
        points: int,
        dims: int,
        words: int,
        hashed: tuple[int, int],
        *,
        sparse: bool = False,
    ) -> "Scratch":
        """Return memory for that many points, dimensions, and words of a code.

        `hashed`: the shape of the hyperplanes, which is how many dimensions are left to be hashed,
        and how many margins come of them.
        """
        distances = np.empty(points, np.float32)
        return cls(
            np.empty(points, np.int32),
            distances,
            distances.view(np.int32),
            np.empty(hashed[1], np.float32),
            np.empty((words, 1), np.uint64),
            np.empty((5, words), np.uint64),
            _scanning_scratch(0),
            _probing_scratch(0, 0, 0, 0),
            (np.empty(0, np.int32), np.empty(0, np.float32)),
            np.zeros((1, dims), np.float32),
            np.empty((1, hashed[0]), np.float32),
            np.zeros(-(-dims // 64) if sparse and dims >= _MARKED_FROM else 0, np.uint64),
        )

    def make_points(self, points: int) -> None:
        """Make room for the numbers and distances of so many points.

        Scores of codes are over before a distance is written: they share one memory.
        """
        if len(self.rows) < points:
            # All or nothing: where memory ends in between, kernels would write past what is short.
            rows, distances = np.empty(points, np.int32), np.empty(points, np.float32)
            scores = distances.view(np.int32)
            self.rows, self.distances, self.scores, self._register = rows, distances, scores, None

    def make_room(self, seen: int, k: int) -> None:
        """Make room for `seen` candidates and `k` picks."""
        if len(self.apart) < seen:
            apart, costs, far = (np.empty(seen, np.float32) for _ in range(3))
            self.apart, self.costs, self.far, self._register = apart, costs, far, None
        if len(self.picked) < k:
            self.picked, self._register = np.empty(k, np.int64), None

    def make_sums(self, points: int) -> None:
        """Make what lists of points add up in."""
        if len(self.sums) < points:
            self.sums, self._register = np.empty(points, np.float32), None

    def make_scanning(self, points: int) -> None:
        """Make what a scan of so many codes needs."""
        if len(self.scanning[0]) * code_scan.GROUP < points:
            self.scanning, self._register = _scanning_scratch(points), None

    def make_together(self, queries: int, room: int) -> None:
        """Make what so many queries need that are searched together, each keeping so many rows."""
        rows = self.together[0]
        if len(rows) < queries or rows.shape[1] < room:
            self.together = _together_scratch(queries, room, len(self.projections), len(self.code))
            self._register = None

    def make_probing(self, n_tables: int, n_bits: int) -> None:
        """Make what a search through tables needs."""
        if not len(self.probing[2]):
            room = n_tables + 2 * MAX_PROBES
            self.probing = _probing_scratch(n_tables, n_bits, room, len(self.rows))
            self._register = None

    def make_cells(self, cells: int) -> None:
        """Make what a search needs through so many cells."""
        if len(self.cells[0]) < cells:
            self.cells = (np.empty(cells, np.int32), np.empty(cells, np.float32))
            self._register = None

    @property
    def register(self) -> IntArray:
        """Where all of it lies, for kernels; another one once something was made anew."""
        if self._register is None:
            self._register = registers.register(registers.SCRATCH, flat(self.as_tuple()))
        return self._register

    @property
    def margins(self) -> FloatArray:
        """The margins of queries that are searched together, a row for each."""
        margins: FloatArray = self.together[4]
        return margins

    @property
    def selection(self) -> tuple[Any, ...]:
        """What selectors write into; see `kernels.selection.greedy`."""
        return (self.far, self.target, self.apart, self.marks)

    def as_tuple(self) -> tuple[Any, ...]:
        """Return everything in the order of `kernels.answering._answer`."""
        return (
            self.rows,
            self.distances,
            self.projections,
            self.code,
            self.planes,
            (self.scores, *self.scanning),
            self.probing,
            self.cells,
            self.selection,
            self.costs,
            self.picked,
            self.sketched,
            self.sums,
            self.together,
        )


def flat(held: Iterable[Any]) -> list[npt.NDArray[Any]]:
    """Return the arrays of tuples in tuples, in their order."""
    arrays: list[npt.NDArray[Any]] = []
    for each in held:
        arrays += flat(each) if isinstance(each, tuple) else (each,)
    return arrays


def _scanning_scratch(points: int) -> tuple[Any, ...]:
    # Of a group a scan keeps the largest score or the least estimate, never both.
    minima = np.empty(-(-points // code_scan.BLOCK) * code_scan.COLUMN, np.float32)
    return (
        minima.view(np.int32),
        minima,
        np.empty(code_scan.BLOCK, np.int32),
        np.empty(code_scan.BLOCK, np.float32),
    )


def _together_scratch(queries: int, room: int, margins: int, words: int) -> tuple[Any, ...]:
    return (
        np.empty((queries, room), np.int32),
        np.empty((queries, room), np.float32),
        np.empty((queries, 3), np.int64),
        np.empty((queries, 2), np.float32),
        np.empty((queries, margins), np.float32),
        np.empty((5 * queries, words), np.uint64),
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
