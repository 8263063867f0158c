"""The label part of a build stores labels, trains a model, and indexes the label factors.

This part of a build writes these arrays:

    label_sets.indptr, .indices     the labels of every point, as compressed sparse rows
    feature_map, label_offset       the embedding of documents (`divgrpc.labels.model`)
    label_index.*                   an index of the label factors under inner_product
    label_names.bytes, .ends        all names in UTF-8, concatenated, and the end offset of each
    label_tree.parents, .depths     the hierarchy as a tree (`divgrpc.metrics.LabelTree`)

The points of the label index are the label factors. Its hash family, hyperplanes, tables and seed
are those that were requested for the main index, except numbers that do not fit the rank. The
factors are sorted by decreasing length, and the id of a factor is its label. Because factors are
sorted, an exact search can stop early if only a few factors are long
(`divgrpc.kernels.exact.score_longest`).
"""

from collections.abc import Callable

import numpy as np

from divgrpc.arrays import Array
from divgrpc.build_rows import BuildRows
from divgrpc.builder.label_model import TrainLabels, build_model, train_here
from divgrpc.builder.progress import Report
from divgrpc.columns.annotations import INDICES, INDPTR, AnnotationWriter
from divgrpc.columns.writer import RowStore
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.labels import LabelModel
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.labels.model import label_rows
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.storage.manifest import LabelSection
from divgrpc.storage.writers import Store, put
from divgrpc.types import Progress, WarningInfo
from divgrpc.types.records import PointLabels
from divgrpc.vectors import Rows, SparseRows, as_rows


class LabelBuilder:
    """Collects the labels of points block by block; `build` then makes the label arrays.

    `train_labels` trains the model. `warnings` is complete when `build` returns.
    """

    def __init__(
        self,
        store: Store,
        rows: RowStore,
        inputs: LabelInputs,
        on_progress: Callable[[Progress], None] | None,
        train_labels: TrainLabels = train_here,
    ) -> None:
        """Take the store of the model, and the one of the labels of the points."""
        self._store, self._rows = store, rows
        self._inputs = inputs
        self._on_progress = on_progress
        self._train_labels = train_labels
        self._label_count: int | None = None
        self.warnings: tuple[WarningInfo, ...] = ()

    def check(self, labels: object, rows: int) -> SparseRows:
        """Check `labels` (rows, L), and return them, as `check_label_sets` does."""
        return check_label_sets(labels, rows, self._label_count)

    def append(self, block: SparseRows) -> None:
        """Store the labels of the next points."""
        if self._label_count is None:
            self._label_count = block.dims
            self._writer = AnnotationWriter(self._rows, (INDPTR, INDICES))
        self._writer.append({INDPTR: block.indptr, INDICES: block.indices})

    def build(
        self, documents: BuildRows, request: BuildParameters, report: Report
    ) -> LabelSection | None:
        """Train a model on `documents` (n, d) or use the given model, and index its label factors.

        Returns None if the build has no labels. `report` is called with the stage, the number of
        rows done, and the total number of rows.
        """
        count = self.count_labels(documents.shape[1])
        if count is None:
            return None
        self._store_names()
        self._store_tree(count)
        model = self._inputs.model
        if model is None:
            return LabelSection(label_count=count)
        source = self._inputs.parameters if isinstance(model, str) else model
        section, warnings = build_model(
            self._store,
            source,
            count,
            documents,
            request,
            rows=self._rows,
            report=report,
            on_progress=self._on_progress,
            train_labels=self._train_labels,
        )
        self.warnings += warnings
        return section

    def count_labels(self, dims: int) -> int | None:
        """Return the number of labels, or None if the build has no labels.

        Raises `InvalidArgumentError` with the name of the argument as the field if the labels of
        the points, the model and the names have different numbers of labels, if needed labels are
        missing, or if the model does not embed documents of `dims` dimensions.
        """
        model, names = self._inputs.model, self._inputs.names
        if self._label_count is None and self._inputs.is_empty:
            return None
        if isinstance(model, str) and self._label_count is None:
            raise invalid("labels", "must come with the vectors to be trained")
        if isinstance(model, LabelModel) and model.dims != dims:
            sentence = f"must have a feature map of {dims} rows, one per dimension"
            raise invalid("label_model", f"{sentence}, got {model.dims}")
        sizes = {
            "labels": self._label_count,
            "label_model": model.label_count if isinstance(model, LabelModel) else None,
            "label_names": None if names is None else len(names),
        }
        counts = {field: size for field, size in sizes.items() if size is not None}
        for field, count in counts.items():
            _check_label_count(field, count)
        if not counts or list(counts) == ["label_names"]:
            raise invalid("labels", "must come with every row or with none")
        first, label_count = next(iter(counts.items()))
        for field, count in counts.items():
            if count != label_count:
                raise invalid(field, f"must have {label_count} labels like {first}, got {count}")
        return label_count

    def _store_names(self) -> None:
        if self._inputs.names is None:
            return
        texts = [name.encode() for name in self._inputs.names]
        self._put("label_names.bytes", np.frombuffer(b"".join(texts), np.uint8))
        self._put("label_names.ends", np.cumsum([len(text) for text in texts], dtype=np.int64))

    def _store_tree(self, count: int) -> None:
        tree = self._inputs.tree(count)
        if tree is None:
            return
        self._put("label_tree.parents", tree.parents.astype(np.int32))
        self._put("label_tree.depths", tree.depths.astype(np.int32))
        unknown = len(tree.unknown)
        if unknown == count:
            raise invalid("hierarchy", f"must reach labels, 0 to {count - 1}, from its roots")
        parents, children = np.asarray(self._inputs.hierarchy).T
        ends = int((np.setdiff1d(children, parents) >= count).sum())
        parts = []
        if unknown:
            parts.append(f"{unknown} of {count} labels are not reached from the hierarchy's roots")
        if ends:
            parts.append(f"{ends} nodes of the hierarchy are neither labels nor parents")
        if parts:
            self._warn("LABELS_OUTSIDE_HIERARCHY", ", and ".join(parts), "hierarchy")

    def _warn(self, code: str, sentence: str, field: str) -> None:
        self.warnings += (WarningInfo(code, sentence, field),)

    def _put(self, name: str, array: Array) -> None:
        put(self._store, name, array)


def check_label_sets(
    labels: object, rows: int, label_count: int | None, row_noun: str = "vector"
) -> SparseRows:
    """Check `labels` (rows, L), dense or sparse, and return them as sparse rows.

    Row i has label j if labels[i, j] is not 0. `PointLabels` are taken too. `label_count` is L if
    it is known already, and `row_noun` the word for a row in errors. Raises `InvalidArgumentError`
    with the field labels.
    """
    block = as_label_rows(labels)
    if len(block) != rows:
        raise invalid("labels", f"must have one row per {row_noun}, {rows}, got {len(block)}")
    count = block.shape[1]
    if label_count is not None and count != label_count:
        raise wrong_label_count(label_count, count)
    if rows:
        _check_label_count("labels", count)
    return label_rows(block)


def as_label_rows(labels: object) -> Rows:
    """Return labels (n, L) as `as_rows` does; `PointLabels` become sparse rows of ones."""
    if isinstance(labels, PointLabels):
        ones = np.ones(len(labels.indices), np.float32)
        labels = SparseRows(labels.indptr, labels.indices, ones, labels.label_count)
    return as_rows("labels", labels, None)


def wrong_label_count(expected: int, count: int) -> InvalidArgumentError:
    """Return the error for labels with `count` columns where there must be `expected`."""
    advice = (
        "leave out the columns of other labels, or build the index anew to have more labels"
        if count > expected
        else "add columns of zeros for the labels that no point has"
    )
    rule = f"must have {expected} columns, one per label, got {count}"
    return invalid("labels", f"{rule}: {advice}")


def _check_label_count(field: str, count: int) -> None:
    if not 1 <= count <= LIMITS["labels_max"]:
        raise invalid(field, f"must have 1 to {LIMITS['labels_max']} labels, got {count}")
