"""The builder collects rows in blocks and makes a generation (one build of an index) of them.

The builder writes each block to the store before it takes the next one. With a store on disk,
memory therefore holds only one block. Under cosine, rows are scaled to unit length first. `build`
assembles the index (`assembly`) and publishes it.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from divgrpc import compilation
from divgrpc.arrays import Array
from divgrpc.builder.assembly import assemble
from divgrpc.builder.label_model import TrainLabels, train_here
from divgrpc.builder.labels import LabelBuilder
from divgrpc.builder.point_writer import PointWriter, WholePoints
from divgrpc.builder.progress import StageReport
from divgrpc.columns.ids import encode_texts, is_texts, plain
from divgrpc.columns.values import (
    Column,
    check_attributes,
    check_column,
    check_row_bytes,
    missing_column,
)
from divgrpc.columns.writer import ColumnWriter, Mask, check_payloads, keep_rows
from divgrpc.errors import InvalidArgumentError, LimitExceededError, invalid
from divgrpc.hashing import hyperplanes
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.parameters import INDEX_NAME, LIMITS, BuildParameters
from divgrpc.parameters.suggestions import none_hint
from divgrpc.storage.generations import Generation, staging
from divgrpc.storage.writers import MemoryStore, Store
from divgrpc.types import IntArray, Progress, WarningInfo
from divgrpc.types.records import Attribute
from divgrpc.vectors import Rows, SparseRows, any_number, as_rows, prepare

_BLOCK_ROWS: Final = 8_192
_COLUMN_DTYPES: Final = {"ids": np.int64, "categories": np.int32, "subtopics": np.int32}
# The kind of a block whose ids are texts.
_TEXT_IDS: Final = "id_texts"


@contextlib.contextmanager
def store_at(path: Path | str | None, *, replace: bool) -> Iterator[tuple[Store, Path | None]]:
    """Yield the store of a build and the folder of the index.

    If `path` is None, yield a memory store and None.

    Raises `InvalidArgumentError` with the field `path` if the last component of `path` is not a
    valid index name. Also raises the errors of `divgrpc.storage.generations.staging`.
    """
    if path is None:
        yield MemoryStore(), None
        return
    folder = Path(path).absolute()
    if not INDEX_NAME.fullmatch(folder.name):
        raise invalid(
            "path", f"must end in an index name ({INDEX_NAME.pattern}), got {folder.name!r}"
        )
    with staging(folder, replace=replace) as store:
        yield store, folder


class IndexBuilder:
    """Collects rows with `append` or `append_all`; `build` then makes the generation.

    `expected_rows` is the total number of rows, or None if it is not known. The number is used to
    reserve disk space and to report progress. `labels` are the inputs for labels other than the
    label rows. `attributes` declares the attributes of the points. `points` writes the points and
    encodes them, by default to `store`. `train_labels` trains a label model. Raises
    `LimitExceededError` if `expected_rows` exceeds the maximum size of an index, and
    `InvalidArgumentError` for invalid attributes.
    """

    def __init__(
        self,
        store: Store,
        parameters: BuildParameters,
        *,
        expected_rows: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        labels: LabelInputs | None = None,
        attributes: Iterable[Attribute] = (),
        points: PointWriter | None = None,
        train_labels: TrainLabels = train_here,
    ) -> None:
        compilation.ensure()
        self._attributes = check_attributes(attributes)
        self._columns: ColumnWriter | None = None
        self._store = store
        self._parameters = parameters
        self._points: PointWriter = points or WholePoints(store)
        self._expect(expected_rows or 0)
        self._report = StageReport(on_progress)
        self._labels = LabelBuilder(
            store, self._points.rows, labels or LabelInputs(), on_progress, train_labels
        )
        self._kinds: frozenset[str] = frozenset()
        self._dims: int | None = None
        self._sparse = False
        self._rows_received = 0
        self._rows_skipped = 0

    def append(
        self,
        vectors: object,
        *,
        ids: object = None,
        categories: object = None,
        subtopics: object = None,
        labels: object = None,
        columns: Mapping[Attribute, Column] | None = None,
        payloads: object = None,
        row_numbers: range | IntArray | None = None,
    ) -> None:
        """Add the rows `vectors` (m, d), dense or sparse, converted to float32.

        `ids` are (m,) integers or texts; `categories` and `subtopics` are (m,) integers. `labels`
        (m, L) is dense or sparse; row i has label j if labels[i, j] is not 0. `payloads` has m
        entries, bytes or None. These five arguments must be the same ones in every call.
        `columns` are the values of declared attributes; without a column, an attribute has no
        values in these rows. Raises `InvalidArgumentError` with the name of the argument as the
        field. For a vector that cannot be scaled or is not finite, the message gives the row
        number: the one in `row_numbers` (m,), by default counted over all calls. Raises
        `LimitExceededError` for too many rows.
        """
        block = self._check_vectors(vectors, row_numbers)
        rows, ids = len(block), plain(ids)
        texts, ids = (_texts(ids, rows), None) if is_texts(ids) else (None, ids)
        numbers = _columns(rows, {"ids": ids, "categories": categories, "subtopics": subtopics})
        attributes = self._check_attributes(columns or {}, rows)
        if row_numbers is None:
            row_numbers = range(self._rows_received, self._rows_received + rows)
        check_row_bytes(attributes, rows, row_numbers)
        stored_payloads = None if payloads is None else check_payloads(payloads, rows)
        label_sets = None if labels is None else self._labels.check(labels, rows)
        parts = {**numbers, _TEXT_IDS: texts, "payloads": stored_payloads, "labels": label_sets}
        self._check_kinds(block, {name for name, part in parts.items() if part is not None})
        if "ids" not in numbers and self._stores_ids:
            numbers["ids"] = np.arange(self._rows_received, self._rows_received + rows)
        mask = self._prepare(block, row_numbers)
        self._points.append(block[mask], _kept_ids(numbers.get("ids"), texts, mask))
        for name, values in numbers.items():
            self._points.rows.append(name, values[mask])
        if self._columns is not None:
            self._columns.append(mask, texts or (), attributes, stored_payloads or ())
        if label_sets is not None:
            self._labels.append(label_sets[mask])
        self._rows_received += rows
        self._report("receiving", self._rows_received, self._expected_rows)

    def append_all(self, vectors: object, **columns: object) -> None:
        """Add all rows as `append` does; dense vectors are copied one block of rows at a time."""
        if hasattr(vectors, "tocsr") or isinstance(vectors, SparseRows):
            # Check the whole matrix first, because blocks of a malformed matrix may look valid.
            vectors = as_rows("vectors", vectors, None, single=False)
        if not isinstance(vectors, np.ndarray | SparseRows) or len(vectors.shape) != 2:
            self.append(vectors, **cast(Any, columns))
            return
        rows = len(vectors)
        self._expect(rows)
        labels, payloads, ids = (columns.pop(n, None) for n in ("labels", "payloads", "ids"))
        attributes = cast("Mapping[Attribute, Column]", columns.pop("columns", None) or {})
        parts: dict[str, Any] = {**_columns(rows, columns)}
        if labels is not None:
            parts["labels"] = self._labels.check(labels, rows)
        if payloads is not None:
            parts["payloads"] = check_payloads(payloads, rows)
        ids = plain(ids)
        if is_texts(ids):
            _texts(ids, rows)  # refuse a wrong id before the first row is written
            parts["ids"] = ids
        elif ids is not None:
            parts["ids"] = integer_column("ids", ids, rows)
        for start in range(0, max(1, rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            stop = min(rows, start + _BLOCK_ROWS)
            cut = {a: c.cut(start, stop, multi=a.multi) for a, c in attributes.items()}
            blocks = {name: part[block] for name, part in parts.items()}
            self.append(vectors[block], columns=cut, **blocks)

    def build(self) -> Generation:
        """Build and publish a generation.

        Raises `InvalidArgumentError` without rows, with duplicate ids, or for unfit label inputs.
        """
        if self._rows_received == self._rows_skipped:
            raise invalid("vectors", "must have at least one row that is kept")
        self._store.refuse_writes()
        self._points.finish(self._columns, self._report)
        points = self._points.read()
        # Refuse inconsistent inputs for labels before the long work begins.
        self._labels.count_labels(points.shape[1])
        # Only queries of sparse points are made from them.
        has_categories = self._sparse and "categories" in self._kinds
        categories = self._points.rows.read("categories") if has_categories else None
        manifest = assemble(
            self._store,
            self._parameters,
            points,
            report=self._report,
            categories=categories,
            encode=self._points.encode,
        )
        section = self._labels.build(points, self._parameters, self._report)
        warnings = self._skip_warnings() + self._labels.warnings
        self._report("writing", len(points), len(points))
        return self._store.publish(
            replace(
                manifest,
                warnings=warnings,
                labels=section,
                attributes=self._attributes,
                id_kind="string" if _TEXT_IDS in self._kinds else "int64",
            )
        )

    def _expect(self, rows: int) -> None:
        self._check_row_count(rows)
        self._expected_rows = rows

    def _check_row_count(self, rows: int) -> None:
        if rows > self._points.rows_max:
            raise LimitExceededError(f"an index holds at most {self._points.rows_max} rows")

    @property
    def _stores_ids(self) -> bool:
        # If rows may be skipped, ids are stored, because the rows after a skipped row get lower row
        # numbers than the caller gave them.
        skips = self._parameters.zero_vectors == "skip" and _TEXT_IDS not in self._kinds
        return "ids" in self._kinds or skips

    def _begin(self, block: Rows, kinds: frozenset[str]) -> None:
        dims = block.shape[1]
        sparse = isinstance(block, SparseRows)
        kind, limit = ("sparse ", "sparse_dims_max") if sparse else ("", "dims_max")
        if not 1 <= dims <= LIMITS[limit]:
            raise InvalidArgumentError(
                "vectors", f"{kind}vectors must have 1 to {LIMITS[limit]} columns, got {dims}"
            )
        # Refuse parameters that do not fit the dimensions before the caller sends more rows.
        hyperplanes.fill_defaults(self._parameters, 1, dims)
        self._dims, self._kinds, self._sparse = dims, kinds, sparse
        self._points.begin(dims, self._expected_rows, sparse=sparse)
        numbers = kinds & _COLUMN_DTYPES.keys()
        for name in sorted(numbers | ({"ids"} if self._stores_ids else set())):
            self._points.rows.begin(name, _COLUMN_DTYPES[name], (), self._expected_rows)
        has_texts, has_payloads = _TEXT_IDS in kinds, "payloads" in kinds
        if self._attributes or has_texts or has_payloads:
            self._columns = ColumnWriter(
                self._points.rows, self._attributes, has_texts=has_texts, has_payloads=has_payloads
            )

    def _check_vectors(self, vectors: object, row_numbers: range | IntArray | None) -> Rows:
        """Return a checked block of rows; error messages name them by `row_numbers`."""
        block = as_rows("vectors", vectors, self._dims, single=False, row_numbers=row_numbers)
        if self._dims is not None and isinstance(block, SparseRows) != self._sparse:
            now, before = ("dense", "sparse") if self._sparse else ("sparse", "dense")
            raise invalid("vectors", f"must not be {now} after {before}")
        if row_numbers is not None and len(row_numbers) != len(block):
            rule = f"must have one row for each vector that is not None, {len(row_numbers)}"
            raise invalid("vectors", f"{rule}, got {len(block)}")
        return block

    def _prepare(self, block: Rows, numbers: range | IntArray) -> npt.NDArray[np.bool_] | slice:
        """Check and scale `block` in place for the metric; return a mask or slice of kept rows.

        numbers: the numbers of the rows in error messages.
        """
        zero = prepare("vectors", block, self._parameters.metric, row_numbers=numbers)
        if zero < 0:
            return slice(None)
        if self._parameters.zero_vectors == "reject":
            raise invalid(
                "vectors",
                f"row {numbers[zero]} is all zeros, which has no direction; "
                'zero_vectors="skip" leaves such rows out',
            )
        mask = any_number(block)
        self._rows_skipped += int(len(block) - mask.sum())
        return mask

    def _check_attributes(
        self, columns: Mapping[Attribute, Column], rows: int
    ) -> dict[Attribute, Column]:
        """Return a checked column of each declared attribute for a block of `rows` rows."""
        for attribute, column in columns.items():
            if attribute not in self._attributes:
                names = ", ".join(a.name for a in self._attributes) or "none"
                sentence = f"has {attribute.name!r}, which is not declared ({names} are)"
                raise invalid("attributes", sentence)
            check_column(attribute, column, rows)
        return {
            attribute: columns.get(attribute) or missing_column(attribute, rows)
            for attribute in self._attributes
        }

    def _check_kinds(self, block: Rows, kinds: set[str]) -> None:
        """Raise if a block has other kinds of data than the blocks before it, or too many rows."""
        if self._dims is None:
            self._begin(block, frozenset(kinds))
        self._check_row_count(self._rows_received + len(block))
        if kinds == self._kinds:
            return
        name = sorted(kinds ^ self._kinds)[0]
        if {_TEXT_IDS, "ids"} <= kinds ^ self._kinds:
            raise invalid("ids", "must be all texts or all integers")
        name = "ids" if name == _TEXT_IDS else name
        raise invalid(name, "must come with every row or with none")

    def _skip_warnings(self) -> tuple[WarningInfo, ...]:
        if not self._rows_skipped:
            return ()
        sentence = f"{self._rows_skipped} vectors of length zero were left out"
        return (WarningInfo("ZERO_VECTORS_SKIPPED", sentence, "zero_vectors"),)


def _columns(rows: int, columns: Mapping[str, object]) -> dict[str, Array]:
    """Check the columns that are not None, and return a dict of them by name."""
    return {
        name: integer_column(name, values, rows)
        for name, values in columns.items()
        if values is not None
    }


def _kept_ids(
    ids: Array | None, texts: Sequence[bytes] | None, mask: Mask
) -> Array | Sequence[bytes] | None:
    """Return the ids or texts of the rows that `mask` keeps."""
    if texts is not None:
        return keep_rows(texts, mask)
    return None if ids is None else ids[mask]


def _texts(ids: Any, rows: int) -> list[bytes]:  # noqa: ANN401  # a sequence of texts
    if len(ids) != rows:
        raise invalid("ids", f"must have one entry per row, {rows}, got {len(ids)}")
    return encode_texts(ids)


def integer_column(name: str, values: object, rows: int) -> Array:
    """Return ids, categories or sub-topics (rows,) as integers of the dtype that is stored.

    Raises `InvalidArgumentError` with the field `name`.
    """
    try:
        numbers = np.asarray(values)
        with np.errstate(invalid="ignore"):
            # The conversion changes fractions and out-of-range numbers. The comparison below
            # detects such a change.
            block = numbers.astype(_COLUMN_DTYPES[name], copy=False)
        whole = bool((block == numbers).all())
    except (TypeError, ValueError, OverflowError):
        none = "" if name == "ids" else ", -1 for none"
        raise invalid(name, f"must be whole numbers{none}{none_hint(values)}") from None
    if block.shape != (rows,):
        raise invalid(name, f"must have one entry per row, {rows}, got shape {block.shape}")
    if not whole:
        raise invalid(name, "must be whole numbers in range")
    least = 0 if name == "ids" else -1
    if rows and block.min() < least:
        raise invalid(name, f"must be at least {least}, got {block.min()}")
    return block
