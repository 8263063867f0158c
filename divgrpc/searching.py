"""Calls the kernels: the arrays of a generation, scratch memory, and one query plan.

Scratch belongs to a thread: kernels write into it without a lock. It grows with the number of
points, and what only one way to search needs is made when that way is first taken.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.array_files import Array, release
from divgrpc.kernels import answering, finding, scanning, selection
from divgrpc.parameters import BuildParameters
from divgrpc.types import (
    CountArray,
    EffectiveParameters,
    FloatArray,
    IntArray,
    Metric,
)
from divgrpc.vectors import Rows, SparseRows

# Probes that one query may look at: the room of the heap.
MAX_PROBES: Final = 4_096

# Candidates are copied side by side up to this size; a larger block would leave the cache anyway.
_BLOCK_FLOATS: Final = 1 << 20

# Stored values of sparse candidates that are linked by column at most.
_MAX_LINKS: Final = 1 << 18

# How far from its true distance a point may seem to be: rounding of two unit vectors. Without it a
# limit of 0 would lose points that equal the query but for their length.
_ROUNDING: Final = 1e-12

_SEARCHES: Final = {
    "exact": finding.EXACT,
    "tables": finding.TABLES,
    "scan": finding.SCAN,
    "scan_hamming": finding.SCAN_HAMMING,
}
_METRICS: Final = {
    "cosine": answering.COSINE,
    "euclidean": answering.EUCLIDEAN,
    "inner_product": answering.INNER_PRODUCT,
}
_VARIANTS: Final = {
    "corrected": selection.CORRECTED,
    "printed": selection.PRINTED,
    "marginal": selection.MARGINAL,
}


@dataclass(frozen=True, slots=True)
class Answers:
    """What the kernel writes: `QueryResult`'s columns; `stats` (4, nq) in `QueryStats`'s order."""

    ids: IntArray
    scores: FloatArray
    values: FloatArray
    counts: CountArray
    stats: CountArray


class Searcher:
    """Answers queries over the arrays of one generation; `parameters` are filled in."""

    def __init__(self, arrays: Mapping[str, Array], parameters: BuildParameters, dims: int) -> None:
        def array(name: str, dtype: type[np.generic], *shape: int) -> Array:
            """Return the array, or an empty one of its type: compiled kernels know no absence."""
            return arrays[name] if name in arrays else _frozen(np.empty(shape, dtype))

        self._points = (
            array("vectors", np.float32, 0, dims),
            array("indptr", np.int64, 0),
            array("indices", np.int32, 0),
            array("values", np.float32, 0),
            array("squares", np.float64, 0),
        )
        self.ids: IntArray = array("ids", np.int64, 0)
        self._named = (self.ids, array("inverse_lengths", np.float32, 0))
        self._hashing = (
            arrays["hyperplanes"],
            arrays["thresholds"],
            arrays["codes"],
            array("scan_terms", np.float32, 2, 0),
        )
        self._tables = (
            array("table_starts", np.int64, 0),
            array("table_keys", np.uint32, 0),
            array("table_offsets", np.int32, 0),
            array("table_rows", np.int32, 0, 0),
        )
        self._cells = (
            array("coarse_centres", np.float32, 0, 1),
            array("coarse_starts", np.int64, 0),
            array("cell_centres", np.float32, 0, 1),
            array("cell_squares", np.float32, 0),
            array("cell_starts", np.int64, 0),
            array("cell_rows", np.int32, 0),
            _frozen(np.empty(0, np.int64)),
        )
        self._arrays = arrays
        self._parameters = parameters
        self.metric: Metric = parameters.metric
        self.dims = dims
        self._n_tables, self._n_bits = parameters.n_tables or 0, parameters.n_bits or 0
        self._local = threading.local()

    @property
    def points(self) -> Rows:
        """The points as rows, dense or sparse."""
        vectors, indptr, indices, values, _ = self._points
        return SparseRows(indptr, indices, values, self.dims) if len(indptr) else vectors

    def release(self) -> None:
        """Let go of the pages of mapped arrays."""
        for array in self._arrays.values():
            release(array)

    def of_first(self, count: int) -> "Searcher":
        """Return a searcher of the first points for exact searches: it has no codes of them."""
        arrays = {
            name: self._arrays[name] for name in ("indices", "values") if name in self._arrays
        }
        for name in ("vectors", "squares", "inverse_lengths", "ids"):
            if name in self._arrays:
                arrays[name] = self._arrays[name][:count]
        if "indptr" in self._arrays:
            arrays["indptr"] = self._arrays["indptr"][: count + 1]
        words = len(self._arrays["codes"])
        codes = _frozen(np.empty((words, count), np.uint64))
        planes = {name: self._arrays[name] for name in ("hyperplanes", "thresholds")}
        return Searcher(arrays | planes | {"codes": codes}, self._parameters, self.dims)

    @property
    def max_probes(self) -> int:
        """How many buckets a search through tables can look at."""
        return len(self._cells[2]) or MAX_PROBES

    @property
    def least_probes(self) -> int:
        """How many buckets it looks at in any case: one, or every table's home."""
        return self._n_tables or 1

    def answer(
        self, queries: Rows, wanted: EffectiveParameters, *, n_probes: int, at_least: int = 0
    ) -> Answers:
        """Answer rows that are prepared for the metric.

        `at_least` hashed points are found where there are so many: by probing on, then by a scan.
        """
        answers = _empty_answers(len(queries), wanted.k)
        points = self._hashing[2].shape[1]
        seen = min(wanted.candidates_limit or points, wanted.hash_limit or points, points)
        # All selectors are plain nearest neighbours at 0, but the one that the paper prints.
        printed = wanted.selector == "greedy" and wanted.variant == "printed"
        nearest = wanted.selector == "nearest" or (wanted.diversity == 0 and not printed)
        step = answering.NEAREST if nearest else answering.GREEDY
        self._run(queries, self._plan(wanted, step, n_probes, at_least), seen, answers)
        return answers

    def hashed(self, query: Rows, wanted: EffectiveParameters, n_probes: int) -> IntArray:
        """Return the ids of the points that one query, (1, d), has hashed: at most `hash_limit`."""
        answers = _empty_answers(1, wanted.hash_limit)
        self._run(query, self._plan(wanted, answering.HASHED, n_probes, 0), 0, answers)
        ids: IntArray = answers.ids[0, : answers.counts[0]]
        return ids

    def _run(self, queries: Rows, plan: tuple[Any, ...], seen: int, answers: "Answers") -> None:
        scratch = self._scratch(plan[0], seen, plan[3], plan[2])
        answering.answer(
            self._points,
            self._named,
            self._hashing,
            self._tables,
            self._cells,
            plan,
            _as_queries(queries),
            scratch.as_tuple(),
            (answers.ids, answers.scores, answers.values, answers.counts, answers.stats),
        )

    def _plan(
        self, wanted: EffectiveParameters, step: int, n_probes: int, at_least: int
    ) -> tuple[Any, ...]:
        limit = wanted.max_distance
        return (
            _SEARCHES[wanted.search],
            n_probes,
            at_least,
            wanted.k,
            wanted.hash_limit,
            wanted.candidates_limit,
            np.float32(np.inf if limit is None else limit + _ROUNDING),
            step,
            np.float32(1 - wanted.diversity),
            selection.MMR if wanted.selector == "mmr" else _VARIANTS[wanted.variant],
            wanted.sampling == "uniform",
            np.uint64(wanted.seed),
            self.metric == "inner_product",
            _METRICS[self.metric],
        )

    def _scratch(self, search: int, seen: int, k: int, at_least: int) -> "_Scratch":
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            words, points = self._hashing[2].shape
            scratch = _Scratch.empty(points, self.dims, words, sparse=len(self._points[1]) > 0)
            self._local.scratch = scratch
        scratch.make_room(seen, k)
        n_cells = len(self._cells[2])
        if search == finding.TABLES:
            if n_cells:
                scratch.make_cells(n_cells + len(self._cells[0]))
            else:
                scratch.make_probing(self._n_tables, self._n_bits)
        if search != finding.EXACT and (search != finding.TABLES or at_least or n_cells):
            scratch.make_scanning()
        return scratch


def _as_queries(queries: Rows) -> tuple[Any, ...]:
    if isinstance(queries, SparseRows):
        empty = np.empty((0, queries.dims), np.float32)
        return (empty, queries.indptr, queries.indices, queries.values)
    return (
        queries,
        np.empty(0, np.int64),
        np.empty(0, np.int32),
        np.empty(0, np.float32),
    )


@dataclass(slots=True)
class _Scratch:
    """What one thread's queries write into; see `kernels.answering.answer`."""

    rows: npt.NDArray[np.int32]
    distances: FloatArray
    projections: FloatArray
    code: npt.NDArray[np.uint64]
    planes: npt.NDArray[np.uint64]
    scanning: tuple[Any, ...]
    probing: tuple[Any, ...]
    cells: tuple[Any, ...]
    block: FloatArray
    target: FloatArray
    sparse: bool
    links: tuple[Any, ...]
    dots: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))
    apart: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    costs: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    picked: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def empty(cls, points: int, dims: int, words: int, *, sparse: bool) -> "_Scratch":
        return cls(
            np.empty(points, np.int32),
            np.empty(points, np.float32),
            np.empty(64 * words, np.float32),
            np.empty((words, 1), np.uint64),
            np.empty((4, words), np.uint64),
            _scanning_scratch(0, 0),
            _probing_scratch(0, 0, 0, 0),
            _cells_scratch(0, 0),
            np.empty((0, dims), np.float32),
            np.zeros((1, dims), np.float32),
            sparse,
            _links_scratch(dims if sparse else 0, _MAX_LINKS if sparse else 0),
        )

    def make_room(self, seen: int, k: int) -> None:
        if len(self.apart) < seen:
            self.apart = np.empty(seen, np.float32)
            self.costs = np.empty(seen, np.float32)
            dims = self.block.shape[1]
            if self.sparse:
                self.dots = np.empty(seen, np.float64)
            else:
                self.block = np.empty((min(seen, max(1, _BLOCK_FLOATS // dims)), dims), np.float32)
        if len(self.picked) < k:
            self.picked = np.empty(k, np.int64)

    def make_scanning(self) -> None:
        if not len(self.scanning[0]):
            self.scanning = _scanning_scratch(len(self.rows), len(self.code))

    def make_probing(self, n_tables: int, n_bits: int) -> None:
        if not len(self.probing[2]):
            room = n_tables + 2 * MAX_PROBES
            self.probing = _probing_scratch(n_tables, n_bits, room, len(self.rows))

    def make_cells(self, cells: int) -> None:
        if not len(self.cells[0]):
            self.cells = _cells_scratch(cells, len(self.rows))

    def as_tuple(self) -> tuple[Any, ...]:
        return (
            self.rows,
            self.distances,
            self.projections,
            self.code,
            self.planes,
            self.scanning,
            self.probing,
            self.cells,
            (self.block, self.target, self.apart, self.links, self.dots),
            self.costs,
            self.picked,
        )


def _scanning_scratch(points: int, words: int) -> tuple[Any, ...]:
    groups = -(-points // scanning.GROUP)
    levels = 14 * 64 * words + 1
    return (np.empty(points, np.int32), np.empty(groups, np.int32), np.empty(levels, np.int32))


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


def _links_scratch(dims: int, room: int) -> tuple[Any, ...]:
    return (
        np.full(dims, -1, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.float32),
    )


def _empty_answers(queries: int, k: int) -> Answers:
    return Answers(
        np.empty((queries, k), np.int64),
        np.empty((queries, k), np.float32),
        np.empty((queries, k), np.float32),
        np.empty(queries, np.uint32),
        np.empty((4, queries), np.uint32),
    )


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array
