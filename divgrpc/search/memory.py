"""Memory that queries write into.

It belongs to one thread: kernels write into it without a lock. Memory for one way to search is made
when a query first searches that way. There is room for as many points as a query had to look at:
all of them for exact search and scans, otherwise those in the cells or buckets it probed.
"""

from typing import Any, Final

import numpy as np

from divgrpc.kernels import code_scan
from divgrpc.kernels.records import (
    BatchScratch,
    Candidates,
    CellScratch,
    ProbeScratch,
    ScanScratch,
    Scratch,
)
from divgrpc.kernels.registers import record_of, register
from divgrpc.types import IntArray

# Most probes of one query: entries of the heap beside one per table.
PROBES_MAX: Final = 4_096

# Dimensions from which a sparse query gets marks: its spread row no longer fits the processor's
# nearer caches.
_MARKS_DIMS_MIN: Final = 1 << 17


class Memory:
    """The scratch memory of one thread, a `Scratch`, grown as queries need it.

    Each `fit_` method makes memory large enough, all arrays of it or none: if memory ends in
    between, kernels would write past the end of an array that stayed short.
    """

    def __init__(
        self, dims: int, words: int, hyperplanes: tuple[int, int], *, sparse: bool = False
    ) -> None:
        """Make the parts whose size is fixed.

        `words`: 64-bit words of a code; `hyperplanes`: shape (m, B) of the hyperplanes; `sparse`:
        whether points are.
        """
        marks = -(-dims // 64) if sparse and dims >= _MARKS_DIMS_MIN else 0
        self._code_sizes = {"m": hyperplanes[0], "B": hyperplanes[1], "W": words}
        sizes = self._code_sizes | {"d": dims, "marks": marks, "block": code_scan.BLOCK_POINTS}
        self._scratch = record_of(Scratch, None, sizes)
        self._register: IntArray | None = None

    @property
    def scratch(self) -> Scratch:
        """The arrays; another record after a part was made anew."""
        return self._scratch

    @property
    def register(self) -> IntArray:
        """The register of the arrays; another one after a part was made anew."""
        if self._register is None:
            self._register = register(self._scratch)
        return self._register

    def _replace(self, **parts: Any) -> None:  # noqa: ANN401  # any field of `Scratch`
        self._scratch, self._register = self._scratch._replace(**parts), None

    def fit_points(self, points: int) -> None:
        """Make room for the rows and distances of `points` points."""
        if len(self._scratch.candidates.rows) < points:
            self._replace(candidates=record_of(Candidates, None, {"r": points}))

    def fit_selection(self, candidates: int, k: int) -> None:
        """Make room for the selection of `k` from a number of candidates."""
        selection = self._scratch.selection
        if len(selection.apart) < candidates:
            far, apart, costs = (np.zeros(candidates, np.float32) for _ in range(3))
            self._replace(selection=selection._replace(far=far, apart=apart), costs=costs)
        if len(self._scratch.picks) < k:
            self._replace(picks=np.zeros(k, np.int64))

    def fit_lists(self, points: int) -> None:
        """Make room for the sums of inverted lists over `points` points."""
        if len(self._scratch.sums) < points:
            self._replace(sums=np.zeros(points, np.float32))

    def fit_scan(self, points: int) -> None:
        """Make room for a scan of the codes of `points` points."""
        if len(self._scratch.scan.minima) * code_scan.GROUP_POINTS < points:
            groups = -(-points // code_scan.BLOCK_POINTS) * code_scan.BLOCK_GROUPS
            sizes = {"block": code_scan.BLOCK_POINTS, "groups": groups}
            self._replace(scan=record_of(ScanScratch, None, sizes))

    def fit_batch(self, queries: int, room: int) -> None:
        """Make room for queries that are searched together and keep up to `room` points each."""
        rows = self._scratch.batch.rows
        if len(rows) < queries or rows.shape[1] < room:
            sizes = self._code_sizes | {"q": queries, "5q": 5 * queries, "r": room}
            self._replace(batch=record_of(BatchScratch, None, sizes))

    def fit_probes(self, n_tables: int, n_bits: int) -> None:
        """Make room for a search through tables, once there is room for all points."""
        if not len(self._scratch.probes.home_keys):
            points = len(self._scratch.candidates.rows)
            sizes = {"T": n_tables, "n_bits": n_bits, "h": n_tables + 2 * PROBES_MAX, "n": points}
            self._replace(probes=record_of(ProbeScratch, None, sizes))

    def fit_cells(self, n_cells: int) -> None:
        """Make room for a search through cells."""
        if len(self._scratch.cells.numbers) < n_cells:
            self._replace(cells=record_of(CellScratch, None, {"C": n_cells}))
