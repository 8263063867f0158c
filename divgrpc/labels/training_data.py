"""The data that a training reads many times: documents of unit length, without empty columns."""

from dataclasses import dataclass

import numpy as np

from divgrpc.build_rows import BuildRows, SparseBuildRows, block_rows, release_rows
from divgrpc.labels.matrices import columns_in_use, select_columns, without_empty
from divgrpc.labels.model import as_documents
from divgrpc.search.point_arrays import PointArrays
from divgrpc.storage.writers import ArrayStore
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """What LEML trains on.

    documents: X (n, d). Rows have unit length before a constant feature, the last column, is
        appended. A sparse X has no empty column.
    labels: Y (n, L) without empty columns; all values are 1.
    features: the columns (d,) that were kept, ascending, with the constant feature after the last
        column of the documents; None for dense documents, which keep all.
    label_ids: the columns (L,) of the labels that were kept, ascending.
    feature_count: the number of columns of the documents and the constant feature.
    label_count: the number of columns of the labels.
    """

    documents: Rows
    labels: SparseRows
    features: IntArray | None
    label_ids: IntArray
    feature_count: int
    label_count: int

    def feature_map_of(self, rows: FloatArray) -> FloatArray:
        """Return the `rows` (d, r) of a feature map, with zeros for the columns left out."""
        return _insert_zeros(rows, self.features, self.feature_count)

    def label_factors_of(self, rows: FloatArray) -> FloatArray:
        """Return the `rows` (L, r) of label factors, with zeros for the labels left out."""
        return _insert_zeros(rows, self.label_ids, self.label_count)


def prepare_data(store: ArrayStore, documents: BuildRows, labels: SparseRows) -> TrainingData:
    """Write the data of a training to a store, a block of rows at a time.

    documents: (n, d), which may be mapped from files. labels: (n, L), whose values are all 1.

    Raises `InvalidArgumentError` with the field documents for values that are not finite, and
    `StorageFullError`.
    """
    truth, label_ids = without_empty(labels)
    features = columns_in_use(documents) if isinstance(documents, SparseBuildRows) else None
    count = documents.shape[1] + 1
    kept = None if features is None else np.append(features, count - 1)
    dims = count if kept is None else len(kept)
    points = PointArrays(store, dims, len(documents), sparse=kept is not None)
    step = block_rows(documents)
    for start in range(0, len(documents), step):
        rows = range(start, min(start + step, len(documents)))
        block = as_documents(documents[rows.start : rows.stop], rows)
        if isinstance(block, SparseRows) and kept is not None:
            block = select_columns(block, kept)
        points.append(block)
        release_rows(documents)
    return TrainingData(points.read(), truth, kept, label_ids, count, labels.dims)


def _insert_zeros(rows: FloatArray, places: IntArray | None, count: int) -> FloatArray:
    """Return `count` rows with `rows` at the row numbers `places`, and zeros elsewhere.

    If `places` is None, `rows` is returned unchanged.
    """
    if places is None or len(places) == count:
        return rows
    spread = np.zeros((count, rows.shape[1]), np.float32)
    spread[places] = rows
    return spread
