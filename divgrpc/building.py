"""Builds a generation: rows come in blocks, then everything else is computed from them.

Only the rows pass through memory while they arrive; they go straight to the store as unit vectors.
`finish` draws hyperplanes, hashes blocks of rows by one matrix product each, fills the tables,
tunes, and publishes. Arrays are created in the store and filled in place, so that a staged build
holds a few blocks of private memory whatever its size.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc import hashing
from divgrpc.array_files import Array
from divgrpc.errors import InvalidArgumentError, LimitExceededError
from divgrpc.kernels import normalising
from divgrpc.manifest import Manifest
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.searching import Searcher, as_matrix
from divgrpc.storage import Generation
from divgrpc.stores import Store
from divgrpc.tuning import Tuned, tune
from divgrpc.types import FloatArray, IndexInfo, Progress, WarningInfo

_BLOCK_ROWS: Final = 8_192
_LABELS: Final = ("ids", "categories", "subtopics")
_LABEL_DTYPES: Final = {"ids": np.int64, "categories": np.int32, "subtopics": np.int32}


@dataclass(frozen=True, slots=True)
class _Hashed:
    """The arrays that hashing makes of the vectors, by name."""

    arrays: dict[str, Array]
    parameters: BuildParameters
    code_bits: int


class IndexBuilder:
    """Takes rows, then builds; `name` is the index's, for the description that `finish` returns."""

    def __init__(
        self,
        store: Store,
        parameters: BuildParameters,
        *,
        expected_rows: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        name: str = "",
    ) -> None:
        if expected_rows is not None and expected_rows > LIMITS["rows_max"]:
            raise LimitExceededError(f"an index holds at most {LIMITS['rows_max']} rows")
        self._store = store
        self._parameters = parameters
        self._expected_rows = expected_rows or 0
        self._on_progress = on_progress
        self._name = name
        self._labels: frozenset[str] = frozenset()
        self._dims: int | None = None
        self._rows_given = 0
        self._rows_skipped = 0
        self._stage_begun = time.monotonic()

    def append(
        self,
        vectors: object,
        ids: object = None,
        categories: object = None,
        subtopics: object = None,
    ) -> None:
        """Add rows: `vectors` (m, d), and of each label kind one per row, in every call or in none.

        Raises `InvalidArgumentError` naming the field and, for a bad vector, its row in the upload.
        """
        block = as_matrix("vectors", vectors, self._dims)
        given = {"ids": ids, "categories": categories, "subtopics": subtopics}
        labels = {
            name: _label_block(name, values, len(block))
            for name, values in given.items()
            if values is not None
        }
        if self._dims is None:
            self._begin(block.shape[1], frozenset(labels))
        if frozenset(labels) != self._labels:
            odd = sorted(frozenset(labels) ^ self._labels)[0]
            raise InvalidArgumentError(odd, f"{odd} must come with every row or with none")
        if self._rows_given + len(block) > LIMITS["rows_max"]:
            raise LimitExceededError(f"an index holds at most {LIMITS['rows_max']} rows")
        if "ids" not in labels and self._stores_ids:
            labels["ids"] = np.arange(self._rows_given, self._rows_given + len(block))
        kept = self._normalise(block)
        self._store.append("vectors", block[kept])
        for name, values in labels.items():
            self._store.append(name, values[kept])
        self._rows_given += len(block)
        self._report("receiving", self._rows_given, self._expected_rows)

    def append_all(
        self,
        vectors: object,
        ids: object = None,
        categories: object = None,
        subtopics: object = None,
    ) -> None:
        """Add the rows of a whole matrix, block by block: no more than one is copied at a time."""
        if not isinstance(vectors, np.ndarray) or vectors.ndim != 2:
            self.append(vectors, ids, categories, subtopics)
            return
        given = (("ids", ids), ("categories", categories), ("subtopics", subtopics))
        labels = {
            name: _label_block(name, values, len(vectors))
            for name, values in given
            if values is not None
        }
        for start in range(0, max(1, len(vectors)), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            self.append(vectors[block], **{name: values[block] for name, values in labels.items()})

    def finish(self) -> IndexInfo:
        """Build, publish, and return what came of it."""
        return self.build().manifest.info(self._name)

    def build(self) -> Generation:
        """Build and publish; raises `InvalidArgumentError` where there are no rows or equal ids."""
        if self._rows_given == self._rows_skipped:
            raise InvalidArgumentError("vectors", "vectors must have at least one row that is kept")
        vectors = self._store.read("vectors")
        self._check_unique()
        hashed = self._hash(vectors)
        tuned = self._tune(hashed, vectors)
        self._report("writing", len(vectors), len(vectors))
        return self._store.publish(
            Manifest(
                generation=0,
                rows=len(vectors),
                dims=vectors.shape[1],
                points="dense",
                parameters=hashed.parameters,
                code_bits=hashed.code_bits,
                n_probes=tuned.n_probes,
                auto_search=tuned.auto_search,
                search_costs=tuned.search_costs,
                warnings=self._warnings(tuned),
                arrays={},
            )
        )

    @property
    def _stores_ids(self) -> bool:
        # Rows that are left out leave holes in the numbering.
        return "ids" in self._labels or self._parameters.zero_vectors == "skip"

    def _begin(self, dims: int, labels: frozenset[str]) -> None:
        if not 1 <= dims <= LIMITS["dims_max"]:
            raise InvalidArgumentError(
                "vectors", f"vectors must have 1 to {LIMITS['dims_max']} columns, got {dims}"
            )
        # Refuse what the parameters ask of the dimensions before rows are sent.
        hashing.fill_defaults(self._parameters, 1, dims)
        self._dims, self._labels = dims, labels
        self._store.begin("vectors", np.float32, (dims,), self._expected_rows)
        for name in sorted(labels | ({"ids"} if self._stores_ids else set())):
            self._store.begin(name, _LABEL_DTYPES[name], (), self._expected_rows)

    def _normalise(self, block: FloatArray) -> npt.NDArray[np.bool_] | slice:
        """Make unit rows in place and return which stay."""
        bad, zero = normalising.normalise(block)
        if bad >= 0:
            raise InvalidArgumentError(
                "vectors",
                f"vectors row {self._rows_given + bad} has a value that is not finite",
            )
        if zero < 0:
            return slice(None)
        if self._parameters.zero_vectors == "reject":
            raise InvalidArgumentError(
                "vectors",
                f"vectors row {self._rows_given + zero} is all zeros, which has no direction; "
                'zero_vectors="skip" leaves such rows out',
            )
        kept = np.asarray(block.any(axis=1))
        self._rows_skipped += int(len(block) - kept.sum())
        return kept

    def _check_unique(self) -> None:
        if "ids" not in self._labels:
            return
        ids = np.sort(self._store.read("ids"))
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            raise InvalidArgumentError("ids", f"ids must be unique, {ids[twice[0]]} occurs twice")

    def _hash(self, vectors: FloatArray) -> _Hashed:
        rows, dims = vectors.shape
        parameters = hashing.fill_defaults(self._parameters, rows, dims)
        n_tables, n_bits = parameters.n_tables or 0, parameters.n_bits or 0
        bits = hashing.code_bits(parameters)
        self._report("components", 0, rows)
        centre = self._mean(vectors) if parameters.centred else np.zeros(dims, np.float32)
        hyperplanes = self._put(
            "hyperplanes", hashing.draw_hyperplanes(parameters, vectors, centre, bits)
        )
        thresholds = self._put("thresholds", centre @ hyperplanes)
        codes = self._store.create("codes", np.uint64, (bits // hashing.WORD, rows))
        self._stage_begun = time.monotonic()
        for start in range(0, rows, _BLOCK_ROWS):
            block = vectors[start : start + _BLOCK_ROWS]
            hashing.encode(block, hyperplanes, thresholds, codes, start)
            self._report("hashing", min(rows, start + _BLOCK_ROWS), rows)
        arrays = {"hyperplanes": hyperplanes, "thresholds": thresholds, "codes": codes}
        return _Hashed(arrays | self._fill_tables(codes, n_tables, n_bits), parameters, bits)

    def _fill_tables(
        self, codes: npt.NDArray[np.uint64], n_tables: int, n_bits: int
    ) -> dict[str, Array]:
        rows = codes.shape[1]
        entries = self._store.create("table_rows", np.int32, (n_tables, rows))
        keys, offsets, starts = [], [], [0]
        self._stage_begun = time.monotonic()
        for table in range(n_tables):
            table_keys, table_offsets, entries[table] = hashing.build_table(codes, table, n_bits)
            keys.append(table_keys)
            offsets.append(table_offsets)
            starts.append(starts[-1] + len(table_offsets) - 1)
            self._report("tables", rows * (table + 1) // n_tables, rows)
        return {
            "table_rows": entries,
            "table_keys": self._put("table_keys", np.concatenate(keys)),
            "table_offsets": self._put("table_offsets", np.concatenate(offsets)),
            "table_starts": self._put("table_starts", np.array(starts, np.int64)),
        }

    def _tune(self, hashed: _Hashed, vectors: FloatArray) -> Tuned:
        self._report("tuning", 0, len(vectors))
        parameters = hashed.parameters
        n_tables, n_bits = parameters.n_tables or 0, parameters.n_bits or 0
        arrays = {"vectors": vectors} | hashed.arrays
        if self._stores_ids:
            arrays["ids"] = self._store.read("ids")
        for name, array in arrays.items():
            # Kernels are compiled for arrays that cannot be written.
            arrays[name] = array.view()
            arrays[name].setflags(write=False)
        searcher = Searcher(arrays, n_tables, n_bits)
        return tune(searcher, n_tables, parameters.target_recall, parameters.seed)

    def _mean(self, vectors: FloatArray) -> FloatArray:
        total = np.zeros(vectors.shape[1])
        for start in range(0, len(vectors), _BLOCK_ROWS):
            total += vectors[start : start + _BLOCK_ROWS].sum(axis=0, dtype=np.float64)
        return (total / len(vectors)).astype(np.float32)

    def _put(self, name: str, array: Array) -> Array:
        kept = self._store.create(name, array.dtype, array.shape)
        kept[...] = array
        return kept

    def _warnings(self, tuned: Tuned) -> tuple[WarningInfo, ...]:
        warnings = []
        if self._rows_skipped:
            sentence = f"{self._rows_skipped} vectors of length zero were left out"
            warnings.append(WarningInfo("ZERO_VECTORS_SKIPPED", sentence, "zero_vectors"))
        tables = next(cost for cost in tuned.search_costs if cost.search == "tables")
        if tables.recall < self._parameters.target_recall - 1e-9:
            sentence = (
                f"search tables finds {tables.recall:.2f} of the nearest at default limits, less "
                f"than target_recall {self._parameters.target_recall:g}; auto takes another search"
            )
            warnings.append(WarningInfo("TARGET_RECALL_MISSED", sentence, "target_recall"))
        return tuple(warnings)

    def _report(self, stage: str, done: int, total: int) -> None:
        if self._on_progress is None:
            return
        seconds_left = None
        if 0 < done <= total:
            spent = time.monotonic() - self._stage_begun
            seconds_left = spent * (total - done) / done
        self._on_progress(Progress(stage, done, total, seconds_left))


def _label_block(name: str, values: object, rows: int) -> Array:
    try:
        given = np.asarray(values)
        with np.errstate(invalid="ignore"):
            # What has no whole number becomes one that is not equal to it.
            block = given.astype(_LABEL_DTYPES[name], copy=False)
        whole = bool((block == given).all())
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(name, f"{name} must be whole numbers") from None
    if block.shape != (rows,):
        raise InvalidArgumentError(
            name, f"{name} must have one entry per row, {rows}, got shape {block.shape}"
        )
    if not whole:
        raise InvalidArgumentError(name, f"{name} must be whole numbers in range")
    least = 0 if name == "ids" else -1
    if rows and block.min() < least:
        raise InvalidArgumentError(name, f"{name} must be at least {least}, got {block.min()}")
    return block
