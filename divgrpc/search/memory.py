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
    Heap,
    ProbeScratch,
    QueryCode,
    ScanScratch,
    Scratch,
    SelectionScratch,
)
from divgrpc.kernels.registers import register
from divgrpc.types import FloatArray, IntArray

# Most probes of one query: entries of the heap beside one per table.
MAX_PROBES: Final = 4_096

# Dimensions from which a sparse query gets marks: its spread row no longer fits the processor's
# nearer caches.
_MARKED_DIMS_MIN: Final = 1 << 17


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
        marks = -(-dims // 64) if sparse and dims >= _MARKED_DIMS_MIN else 0
        self._scratch = Scratch(
            candidates=_candidates(0),
            code=QueryCode(
                sketched=np.empty((1, hyperplanes[0]), np.float32),
                margins=np.empty(hyperplanes[1], np.float32),
                signs=np.empty((words, 1), np.uint64),
                planes=np.empty((5, words), np.uint64),
            ),
            scan=_scan_scratch(np.empty(0, np.float32), 0),
            probes=_probe_scratch(0, 0, 0, 0),
            cells=CellScratch(np.empty(0, np.int32), np.empty(0, np.float32)),
            selection=SelectionScratch(
                far=np.empty(0, np.float32),
                apart=np.empty(0, np.float32),
                dense=np.zeros((1, dims), np.float32),
                marks=np.zeros(marks, np.uint64),
            ),
            costs=np.empty(0, np.float32),
            picked=np.empty(0, np.int64),
            sums=np.empty(0, np.float32),
            batch=_batch_scratch(0, 0, 0, 0),
        )
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
            candidates, scan = _candidates(points), self._scratch.scan
            # Scores are used up before distances are written: they share one memory.
            scores = candidates.distances.view(np.int32)
            self._replace(candidates=candidates, scan=scan._replace(scores=scores))

    def fit_selection(self, candidates: int, k: int) -> None:
        """Make room for the selection of `k` from a number of candidates."""
        selection = self._scratch.selection
        if len(selection.apart) < candidates:
            apart, costs, far = (np.empty(candidates, np.float32) for _ in range(3))
            self._replace(selection=selection._replace(apart=apart, far=far), costs=costs)
        if len(self._scratch.picked) < k:
            self._replace(picked=np.empty(k, np.int64))

    def fit_lists(self, points: int) -> None:
        """Make room for the sums of inverted lists over `points` points."""
        if len(self._scratch.sums) < points:
            self._replace(sums=np.empty(points, np.float32))

    def fit_scan(self, points: int) -> None:
        """Make room for a scan of the codes of `points` points."""
        if len(self._scratch.scan.maxima) * code_scan.GROUP < points:
            self._replace(scan=_scan_scratch(self._scratch.candidates.distances, points))

    def fit_batch(self, queries: int, room: int) -> None:
        """Make room for queries that are searched together and keep up to `room` points each."""
        rows = self._scratch.batch.rows
        if len(rows) < queries or rows.shape[1] < room:
            margins, words = len(self._scratch.code.margins), len(self._scratch.code.signs)
            self._replace(batch=_batch_scratch(queries, room, margins, words))

    def fit_probes(self, n_tables: int, n_bits: int) -> None:
        """Make room for a search through tables, once there is room for all points."""
        if not len(self._scratch.probes.home_keys):
            room, points = n_tables + 2 * MAX_PROBES, len(self._scratch.candidates.rows)
            self._replace(probes=_probe_scratch(n_tables, n_bits, room, points))

    def fit_cells(self, n_cells: int) -> None:
        """Make room for a search through cells."""
        if len(self._scratch.cells.numbers) < n_cells:
            cells = CellScratch(np.empty(n_cells, np.int32), np.empty(n_cells, np.float32))
            self._replace(cells=cells)


def _candidates(points: int) -> Candidates:
    return Candidates(np.empty(points, np.int32), np.empty(points, np.float32))


def _scan_scratch(distances: FloatArray, points: int) -> ScanScratch:
    # A scan keeps the largest score or the least estimate of a group, never both.
    minima = np.empty(-(-points // code_scan.BLOCK) * code_scan.COLUMN, np.float32)
    return ScanScratch(
        scores=distances.view(np.int32),
        maxima=minima.view(np.int32),
        minima=minima,
        block_scores=np.empty(code_scan.BLOCK, np.int32),
        block_distances=np.empty(code_scan.BLOCK, np.float32),
    )


def _batch_scratch(queries: int, room: int, margins: int, words: int) -> BatchScratch:
    return BatchScratch(
        rows=np.empty((queries, room), np.int32),
        distances=np.empty((queries, room), np.float32),
        counts=np.empty(queries, np.int64),
        scored=np.empty(queries, np.int64),
        settled=np.empty(queries, np.int64),
        level_sums=np.empty(queries, np.int64),
        limits=np.empty(queries, np.float32),
        units=np.empty(queries, np.float32),
        margins=np.empty((queries, margins), np.float32),
        planes=np.empty((5 * queries, words), np.uint64),
    )


def _probe_scratch(n_tables: int, n_bits: int, room: int, points: int) -> ProbeScratch:
    return ProbeScratch(
        ranks=np.empty((n_tables, n_bits), np.int32),
        squares=np.empty((n_tables, n_bits), np.float32),
        home_keys=np.empty(n_tables, np.int64),
        heap=Heap(
            costs=np.empty(room, np.float32),
            tables=np.empty(room, np.int32),
            masks=np.empty(room, np.int64),
            keys=np.empty(room, np.int64),
        ),
        seen=np.zeros(points, np.uint32),
        epoch=np.zeros(1, np.uint32),
    )
