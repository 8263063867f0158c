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

from divgrpc.array_files import Array
from divgrpc.errors import InvalidArgumentError, UnsupportedError
from divgrpc.kernels import answering, normalising, scanning, selection
from divgrpc.types import (
    CountArray,
    EffectiveParameters,
    FloatArray,
    IntArray,
)

# Probes that one query may look at: the room of the heap.
MAX_PROBES: Final = 4_096

# Candidates are copied side by side up to this size; a larger block would leave the cache anyway.
_BLOCK_FLOATS: Final = 1 << 20

# How far from its true distance a point may seem to be: rounding of two unit vectors. Without it a
# limit of 0 would lose points that equal the query but for their length.
_ROUNDING: Final = 1e-12

_SEARCHES: Final = {
    "exact": answering.EXACT,
    "tables": answering.TABLES,
    "scan": answering.SCAN,
    "scan_hamming": answering.SCAN_HAMMING,
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


def unit_rows(field_name: str, rows: object, dims: int | None) -> FloatArray:
    """Return a new (n, d) float32 array of unit rows.

    A single vector is one row. Raises `InvalidArgumentError` naming `field_name` where `rows` is no
    matrix of `dims` columns, or has a value that is not finite, or a row of zeros.
    """
    matrix = as_matrix(field_name, rows, dims)
    bad, zero = normalising.normalise(matrix)
    if bad >= 0:
        raise InvalidArgumentError(
            field_name, f"{field_name} row {bad} has a value that is not finite"
        )
    if zero >= 0:
        raise InvalidArgumentError(
            field_name, f"{field_name} row {zero} is all zeros, which has no direction"
        )
    return matrix


def as_matrix(field_name: str, rows: object, dims: int | None) -> FloatArray:
    """Return a new C-contiguous (n, d) float32 copy, finite or not."""
    if hasattr(rows, "tocsr"):
        raise UnsupportedError(
            f"{field_name}.sparse",
            f"sparse {field_name} are not there yet in this version; use a dense array",
        )
    try:
        given = np.asarray(rows)
        if given.dtype.kind not in "fiub":
            raise TypeError(given.dtype)  # noqa: TRY301  # joins the conversions that fail by themselves
        with np.errstate(over="ignore"):
            matrix = np.array(given, np.float32, order="C", ndmin=2)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            field_name, f"{field_name} must be a matrix of numbers"
        ) from None
    if matrix.ndim != 2:
        raise InvalidArgumentError(
            field_name, f"{field_name} must have rows and columns, got {matrix.ndim} axes"
        )
    if dims is not None and matrix.shape[1] != dims:
        raise InvalidArgumentError(
            field_name, f"{field_name} must have {dims} columns, got {matrix.shape[1]}"
        )
    return matrix


class Searcher:
    """Answers queries over the arrays of one generation."""

    def __init__(self, arrays: Mapping[str, Array], n_tables: int, n_bits: int) -> None:
        self.vectors: FloatArray = arrays["vectors"]
        self.ids: IntArray = arrays.get("ids", _frozen(np.empty(0, np.int64)))
        self._hashing = (arrays["hyperplanes"], arrays["thresholds"], arrays["codes"])
        self._tables = (
            arrays["table_starts"],
            arrays["table_keys"],
            arrays["table_offsets"],
            arrays["table_rows"],
        )
        self._n_tables, self._n_bits = n_tables, n_bits
        self._local = threading.local()

    def answer(
        self, queries: FloatArray, wanted: EffectiveParameters, *, n_probes: int, at_least: int = 0
    ) -> Answers:
        """Answer unit rows (nq, d) float32.

        `at_least` hashed points are found where there are so many: by probing on, then by a scan.
        """
        answers = _empty_answers(len(queries), wanted.k)
        rows, limit = len(self.vectors), wanted.max_distance
        seen = min(wanted.candidates_limit or rows, wanted.hash_limit or rows, rows)
        scratch = self._scratch(wanted.search, seen, wanted.k, at_least)
        plan = (
            _SEARCHES[wanted.search],
            n_probes,
            at_least,
            wanted.k,
            wanted.hash_limit,
            wanted.candidates_limit,
            np.float32(np.inf if limit is None else limit + _ROUNDING),
            answering.NEAREST if wanted.selector == "nearest" else answering.GREEDY,
            np.float32(1 - wanted.diversity),
            selection.MMR if wanted.selector == "mmr" else _VARIANTS[wanted.variant],
            wanted.sampling == "uniform",
            np.uint64(wanted.seed),
        )
        answering.answer(
            (self.vectors, self.ids),
            self._hashing,
            self._tables,
            plan,
            queries,
            scratch.as_tuple(),
            (answers.ids, answers.scores, answers.values, answers.counts, answers.stats),
        )
        return answers

    def _scratch(self, search: str, seen: int, k: int, at_least: int) -> "_Scratch":
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            points, dims = self.vectors.shape
            scratch = _Scratch.empty(points, dims, len(self._hashing[2]))
            self._local.scratch = scratch
        scratch.make_room(seen, k)
        if search == "tables":
            scratch.make_probing(self._n_tables, self._n_bits)
        if search in ("scan", "scan_hamming") or (search == "tables" and at_least):
            scratch.make_scanning()
        return scratch


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
    block: FloatArray
    apart: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    picked: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def empty(cls, points: int, dims: int, words: int) -> "_Scratch":
        return cls(
            np.empty(points, np.int32),
            np.empty(points, np.float32),
            np.empty(64 * words, np.float32),
            np.empty((words, 1), np.uint64),
            np.empty((4, words), np.uint64),
            _scanning_scratch(0, 0),
            _probing_scratch(0, 0, 0, 0),
            np.empty((0, dims), np.float32),
        )

    def make_room(self, seen: int, k: int) -> None:
        if len(self.apart) < seen:
            self.apart = np.empty(seen, np.float32)
            dims = self.block.shape[1]
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

    def as_tuple(self) -> tuple[Any, ...]:
        return (
            self.rows,
            self.distances,
            self.projections,
            self.code,
            self.planes,
            self.scanning,
            self.probing,
            self.block,
            self.apart,
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


def _empty_answers(queries: int, k: int) -> Answers:
    return Answers(
        np.empty((queries, k), np.int64),
        np.empty((queries, k), np.float32),
        np.empty((queries, k), np.float32),
        np.empty(queries, np.uint32),
        np.empty((4, queries), np.uint32),
    )


def _frozen(array: IntArray) -> IntArray:
    array.setflags(write=False)
    return array
