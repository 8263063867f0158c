"""Builds a generation: rows come in blocks, then everything else is computed from them.

Only the rows pass through memory while they arrive; they go straight to the store, as unit vectors
under cosine. `build` encodes them (`divgrpc.encoding`), tunes, and publishes.
"""

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc import hashing
from divgrpc.array_files import Array
from divgrpc.encoding import Encoded, encode_points
from divgrpc.errors import InvalidArgumentError, LimitExceededError
from divgrpc.manifest import Manifest
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.reasons import choices
from divgrpc.searching import Searcher
from divgrpc.storage import Generation
from divgrpc.stores import Store
from divgrpc.tuning import Tuned, tune
from divgrpc.types import IndexInfo, Progress, WarningInfo
from divgrpc.vectors import Rows, SparseRows, as_rows, prepare

_BLOCK_ROWS: Final = 8_192
_LABELS: Final = ("ids", "categories", "subtopics")
_LABEL_DTYPES: Final = {"ids": np.int64, "categories": np.int32, "subtopics": np.int32}


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
        self._sparse = False
        self._nonzeros = 0
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
        block = as_rows("vectors", vectors, self._dims)
        if self._dims is not None and isinstance(block, SparseRows) != self._sparse:
            kinds = ("dense", "sparse") if self._sparse else ("sparse", "dense")
            raise InvalidArgumentError(
                "vectors", f"vectors must not be {kinds[0]} after {kinds[1]}"
            )
        given = {"ids": ids, "categories": categories, "subtopics": subtopics}
        labels = {
            name: _label_block(name, values, len(block))
            for name, values in given.items()
            if values is not None
        }
        if self._dims is None:
            self._begin(block, frozenset(labels))
        if frozenset(labels) != self._labels:
            odd = sorted(frozenset(labels) ^ self._labels)[0]
            raise InvalidArgumentError(odd, f"{odd} must come with every row or with none")
        if self._rows_given + len(block) > LIMITS["rows_max"]:
            raise LimitExceededError(f"an index holds at most {LIMITS['rows_max']} rows")
        if "ids" not in labels and self._stores_ids:
            labels["ids"] = np.arange(self._rows_given, self._rows_given + len(block))
        kept = self._prepare(block)
        self._append_points(block[kept])
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
        if hasattr(vectors, "tocsr") or isinstance(vectors, SparseRows):
            # Whole rows are checked: a part of what is malformed may look well formed.
            vectors = as_rows("vectors", vectors, None)
        if not isinstance(vectors, np.ndarray | SparseRows) or len(vectors.shape) != 2:
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
        points = self._read_points()
        self._check_unique()
        encoded = encode_points(self._store, self._parameters, points, self._report)
        tuned = self._tune(encoded, points)
        self._report("writing", len(points), len(points))
        return self._store.publish(
            Manifest(
                generation=0,
                rows=len(points),
                dims=points.shape[1],
                points="sparse" if self._sparse else "dense",
                nonzeros=self._nonzeros,
                parameters=encoded.parameters,
                code_bits=encoded.code_bits,
                n_probes=tuned.n_probes,
                auto_search=tuned.auto_search,
                search_costs=tuned.search_costs,
                choices=choices(self._parameters, encoded, tuned, len(points), points.shape[1]),
                warnings=self._warnings(tuned),
                arrays={},
            )
        )

    @property
    def _stores_ids(self) -> bool:
        # Rows that are left out leave holes in the numbering.
        return "ids" in self._labels or self._parameters.zero_vectors == "skip"

    def _begin(self, block: Rows, labels: frozenset[str]) -> None:
        dims = block.shape[1]
        if not 1 <= dims <= LIMITS["dims_max"]:
            raise InvalidArgumentError(
                "vectors", f"vectors must have 1 to {LIMITS['dims_max']} columns, got {dims}"
            )
        # Refuse what the parameters ask of the dimensions before rows are sent.
        hashing.fill_defaults(self._parameters, 1, dims)
        self._dims, self._labels, self._sparse = dims, labels, isinstance(block, SparseRows)
        if self._sparse:
            self._store.begin("indptr", np.int64, (), self._expected_rows + 1)
            self._store.append("indptr", np.zeros(1, np.int64))
            self._store.begin("indices", np.int32, ())
            self._store.begin("values", np.float32, ())
        else:
            self._store.begin("vectors", np.float32, (dims,), self._expected_rows)
        for name in sorted(labels | ({"ids"} if self._stores_ids else set())):
            self._store.begin(name, _LABEL_DTYPES[name], (), self._expected_rows)

    def _append_points(self, block: Rows) -> None:
        if isinstance(block, SparseRows):
            self._store.append("indptr", block.indptr[1:] + self._nonzeros)
            self._store.append("indices", block.indices)
            self._store.append("values", block.values)
            self._nonzeros += len(block.values)
        else:
            self._store.append("vectors", block)
            self._nonzeros += block.size

    def _read_points(self) -> Rows:
        if not self._sparse:
            return self._store.read("vectors")
        return SparseRows(
            self._store.read("indptr"),
            self._store.read("indices"),
            self._store.read("values"),
            self._dims or 0,
        )

    def _prepare(self, block: Rows) -> npt.NDArray[np.bool_] | slice:
        """Make rows in place what the metric works on and return which stay."""
        zero = prepare("vectors", block, self._parameters.metric, first_row=self._rows_given)
        if zero < 0:
            return slice(None)
        if self._parameters.zero_vectors == "reject":
            raise InvalidArgumentError(
                "vectors",
                f"vectors row {self._rows_given + zero} is all zeros, which has no direction; "
                'zero_vectors="skip" leaves such rows out',
            )
        if isinstance(block, SparseRows):
            kept = np.diff(np.concatenate(([0], np.cumsum(block.values != 0)))[block.indptr]) > 0
        else:
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

    def _tune(self, encoded: Encoded, points: Rows) -> Tuned:
        self._report("tuning", 0, len(points))
        arrays = dict(encoded.arrays)
        if isinstance(points, SparseRows):
            arrays |= {"indptr": points.indptr, "indices": points.indices, "values": points.values}
        else:
            arrays["vectors"] = points
        if self._stores_ids:
            arrays["ids"] = self._store.read("ids")
        for name, array in arrays.items():
            # Kernels are compiled for arrays that cannot be written.
            arrays[name] = array.view()
            arrays[name].setflags(write=False)
        parameters = encoded.parameters
        searcher = Searcher(arrays, parameters, points.shape[1])

        def report(done: int, total: int) -> None:
            self._report("tuning", done, total)

        return tune(searcher, parameters.target_recall, parameters.seed, report)

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
        if done == 0:
            self._stage_begun = time.monotonic()
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
