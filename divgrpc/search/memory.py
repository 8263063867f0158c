"""Scratch memory that queries write into.

Each thread has its own scratch memory, so kernels write into it without a lock. The arrays for one
kind of search are allocated when a query first uses that kind. The arrays for found points can hold
all points of the index, except for a search through cells. The arrays of such a search grow if the
probed cells hold more points than fit.
"""

from typing import Any, Final

import numpy as np

from divgrpc.kernels import code_scan
from divgrpc.kernels.projection import GROUP_BITS, WORD_BITS
from divgrpc.kernels.records import (
    BatchScratch,
    Candidates,
    CellScratch,
    ListScratch,
    Passing,
    ProbeScratch,
    ScanScratch,
    Scratch,
)
from divgrpc.kernels.registers import record_of, register
from divgrpc.types import IntArray

# Maximum of `n_probes` for hash tables. Each probe (bucket looked up) adds at most two entries to
# the heap. If `Plan.min_points` asks for more points, a query may probe more buckets than this.
PROBES_MAX: Final = 4_096

# With at least this many dimensions, the columns of a sparse query are marked for
# `sparse.marked_dot`. A dense row of so many dimensions no longer fits into the faster caches.
_MARKS_DIMS_MIN: Final = 1 << 17


class Memory:
    """Holds the scratch memory of one thread, and enlarges it as queries need more.

    Each `fit_` method enlarges some arrays if they are too small. It replaces the old arrays only
    after all allocations have succeeded, so no kernel writes past the end of an array.
    """

    def __init__(self, dims: int, hyperplanes: tuple[int, int], *, sparse: bool = False) -> None:
        """Allocate the arrays of fixed size.

        `dims`: number of columns of the points; `hyperplanes`: shape (m, B) of the hyperplanes;
        `sparse`: whether the points are sparse.
        """
        marks = -(-dims // 64) if sparse and dims >= _MARKS_DIMS_MIN else 0
        sums, margins = hyperplanes
        words, self._groups = margins // WORD_BITS, margins // GROUP_BITS
        self._code_sizes = {"m": sums, "B": margins, "W": words, "G": self._groups}
        sizes = self._code_sizes | {"d": dims, "marks": marks, "block": code_scan.SCRATCH_POINTS}
        self._scratch = record_of(Scratch, None, sizes)
        self._register: IntArray | None = None

    @property
    def scratch(self) -> Scratch:
        """The record of the scratch arrays; read it again after calling a `fit_` method."""
        return self._scratch

    @property
    def register(self) -> IntArray:
        """The register of the scratch arrays; read it again after calling a `fit_` method."""
        if self._register is None:
            self._register = register(self._scratch)
        return self._register

    def _replace(self, **parts: Any) -> None:  # noqa: ANN401  # any field of `Scratch`
        self._scratch, self._register = self._scratch._replace(**parts), None

    def set_passing(self, passing: Passing) -> None:
        """Set the points that pass the filter of the next queries."""
        if self._scratch.passing is not passing:
            self._scratch = self._scratch._replace(passing=passing)
            if self._register is not None:
                # The points that pass are the last field of `Scratch`.
                self._register[-len(passing) :] = register(passing)

    def fit_points(self, points: int) -> None:
        """Allocate memory for the rows and distances of `points` points."""
        if len(self._scratch.candidates.rows) < points:
            self._replace(candidates=record_of(Candidates, None, {"r": points}))

    def fit_selection(self, candidates: int, k: int) -> None:
        """Allocate memory for the selection of `k` points from `candidates` candidates."""
        selection = self._scratch.selection
        if len(selection.apart) < candidates:
            far, apart, costs = (np.zeros(candidates, np.float32) for _ in range(3))
            self._replace(selection=selection._replace(far=far, apart=apart), costs=costs)
        if len(self._scratch.picks) < k:
            self._replace(picks=np.zeros(k, np.int64))

    def fit_lists(self, points: int) -> None:
        """Allocate memory for a search through the inverted lists of `points` points."""
        if len(self._scratch.lists.bounds) < points:
            self._replace(lists=record_of(ListScratch, None, {"n": points}))

    def fit_scan(self, points: int) -> None:
        """Allocate memory for a scan of the codes of `points` points."""
        if len(self._scratch.scan.minima) * code_scan.GROUP_POINTS < points:
            groups = -(-points // code_scan.BLOCK_POINTS) * code_scan.BLOCK_GROUPS
            sizes = {"block": code_scan.SCRATCH_POINTS, "groups": groups}
            self._replace(scan=record_of(ScanScratch, None, sizes))

    def fit_batch(self, queries: int, room: int) -> None:
        """Allocate memory for a batch of `queries` queries that keep `room` points each."""
        rows = self._scratch.batch.rows
        if len(rows) < queries or rows.shape[1] < room:
            sizes = self._code_sizes | {"q": queries, "qG": queries * self._groups, "r": room}
            self._replace(batch=record_of(BatchScratch, None, sizes))

    def fit_probes(self, n_tables: int, n_bits: int) -> None:
        """Allocate memory for a search through tables, for as many points as `fit_points` did."""
        if not len(self._scratch.probes.home_keys):
            points = len(self._scratch.candidates.rows)
            sizes = {"T": n_tables, "n_bits": n_bits, "h": n_tables + 2 * PROBES_MAX, "n": points}
            self._replace(probes=record_of(ProbeScratch, None, sizes))

    def fit_tags(self) -> None:
        """Allocate memory for the probes that find points, after `fit_probes`."""
        probes = self._scratch.probes
        if not len(probes.tags):
            self._replace(probes=probes._replace(tags=np.zeros(len(probes.visits), np.int32)))

    def fit_cells(self, n_cells: int) -> None:
        """Allocate memory for a search through `n_cells` cells."""
        if len(self._scratch.cells.numbers) < n_cells:
            self._replace(cells=record_of(CellScratch, None, {"C": n_cells}))
