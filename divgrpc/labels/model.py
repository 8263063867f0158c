"""The label model: two factors whose product scores every label of a document.

The score of label l for document x is h_l · (Vᵀx + offset). h_l is a row of the label factors, V is
the feature map. A trained model scales documents to unit length; its offset is the row of V of a
constant feature. Factors from elsewhere are used as they are.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.errors import invalid
from divgrpc.labels.matrices import multiply
from divgrpc.types import FloatArray, IntArray, LabelPrediction
from divgrpc.vectors import Rows, RowsLike, SparseRows, as_rows, prepare, within_float32

# Scores of one block of documents: 64 MiB.
_BLOCK_SCORES: Final = 2**24


@dataclass(frozen=True, slots=True, eq=False)
class LabelModel:
    """`label_factors` (L, r), `feature_map` (d, r) and `offset` (r,), all float32.

    `unit_rows`: documents are scaled to unit length first.
    """

    label_factors: FloatArray
    feature_map: FloatArray
    offset: FloatArray
    unit_rows: bool

    @classmethod
    def of_factors(
        cls, label_factors: npt.ArrayLike, feature_map: npt.ArrayLike, *, unit_rows: bool = False
    ) -> Self:
        """Make a model of factors from elsewhere, (L, r) and (d, r), with an offset of zeros.

        Raises `InvalidArgumentError`, with the field label_factors or feature_map, unless both are
        dense, finite matrices with the same number of columns.
        """
        factors = _as_factor("label_factors", label_factors)
        features = _as_factor("feature_map", feature_map)
        if factors.shape[1] != features.shape[1]:
            raise invalid(
                "feature_map",
                f"must have {factors.shape[1]} columns, as the label_factors have, "
                f"got {features.shape[1]}",
            )
        return cls(factors, features, np.zeros(factors.shape[1], np.float32), unit_rows)

    @property
    def dims(self) -> int:
        """The number of features of a document, d."""
        return len(self.feature_map)

    @property
    def label_count(self) -> int:
        """The number of labels, L."""
        return len(self.label_factors)

    @property
    def rank(self) -> int:
        """The numbers that represent a document or a label, r."""
        return int(self.label_factors.shape[1])

    def embed(self, documents: RowsLike) -> FloatArray:
        """Return Vᵀx + offset (nq, r) float32 for `documents` (nq, d), dense or sparse.

        A document without features becomes the offset. Raises `InvalidArgumentError`, with the
        field documents, for another number of columns and for values that are not finite.
        """
        rows = as_rows("documents", documents, self.dims)
        # Both raise for values that are not finite; the first also scales the rows.
        prepare("documents", rows, "cosine" if self.unit_rows else "inner_product")
        return np.asarray(multiply(rows, self.feature_map) + self.offset)

    def predict(
        self, documents: RowsLike, *, top_k: int = 5, threshold: float | None = None
    ) -> LabelPrediction:
        """Score every label of `documents` (nq, d); return the `top_k` best.

        Labels with a score below `threshold` are left out. Of equal scores the smaller label comes
        first. Approximate searches are measured against this one. Raises `InvalidArgumentError` as
        `embed` does, and with the field top_k unless it is at least 1.
        """
        embedded = self.embed(documents)
        width = check_top_k(top_k, self.label_count)
        return prediction(*best_products(embedded, self.label_factors, width), top_k, threshold)


def as_documents(documents: RowsLike) -> Rows:
    """Return `documents` (n, d) for training: (n, d + 1), of unit length, with a last column of 1.

    Raises `InvalidArgumentError` as `LabelModel.embed` does.
    """
    rows = as_rows("documents", documents, None)
    prepare("documents", rows, "cosine")
    constant = np.ones((len(rows), 1), np.float32)
    if isinstance(rows, SparseRows):
        matrix = sparse.hstack([rows.matrix, sparse.csr_array(constant)], format="csr")
        return SparseRows.of(sparse.csr_array(matrix))
    return np.hstack([rows, constant])


def as_labels(labels: RowsLike, documents: int | None = None) -> SparseRows:
    """Return `labels` (n, L), sparse or dense, as sparse rows of ones: any number but 0 is a label.

    Raises `InvalidArgumentError`, with the field labels, if `documents` is another number of rows,
    if there is no label, and for values that are not finite.
    """
    rows = label_rows(as_rows("labels", labels, None))
    if documents is not None and len(rows) != documents:
        raise invalid(
            "labels", f"must have one row for each of {documents} documents, got {len(rows)}"
        )
    if not len(rows.values):
        raise invalid("labels", "must have one label at least")
    rows.values[:] = 1
    return rows


def label_rows(labels: Rows) -> SparseRows:
    """Return `labels` (n, L) as sparse rows without zeros; sparse ones are overwritten.

    Raises `InvalidArgumentError`, with the field labels, for values that are not finite.
    """
    matrix = labels.matrix if isinstance(labels, SparseRows) else sparse.csr_array(labels)
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all():
        raise invalid("labels", "must be finite")
    return SparseRows.of(matrix)


def best_products(
    embedded: FloatArray, factors: FloatArray, count: int
) -> tuple[IntArray, FloatArray]:
    """Return labels and scores (m, count) of the largest products of each row, in blocks of rows.

    `embedded` is (m, r) and `factors` (L, r), float32; the rest is as in `best_labels`.
    """
    labels = np.empty((len(embedded), count), np.int64)
    scores = np.empty((len(embedded), count), np.float32)
    rows = max(1, _BLOCK_SCORES // len(factors))
    for start in range(0, len(embedded), rows):
        block = slice(start, start + rows)
        labels[block], scores[block] = best_labels(embedded[block] @ factors.T, count)
    return labels, scores


def best_labels(scores: FloatArray, count: int) -> tuple[IntArray, FloatArray]:
    """Return labels and scores (m, count) of the largest `scores` (m, L) of each row, best first.

    `count` is from 1 to L. Of equal scores the smaller label comes first.
    """
    boundary = np.partition(scores, scores.shape[1] - count, axis=1)[:, scores.shape[1] - count]
    rows, labels = np.nonzero(scores >= boundary[:, None])
    return best_of_pairs(rows, labels, scores[rows, labels], len(scores), count)


def best_of_pairs(
    rows: IntArray, labels: IntArray, scores: FloatArray, row_count: int, count: int
) -> tuple[IntArray, FloatArray]:
    """Return labels and scores (row_count, count) of the best of t scored pairs, best first.

    Pair i gives the label labels[i] of row rows[i] the score scores[i]. Of equal scores the smaller
    label comes first. A row with fewer pairs ends with -1 and NaN.
    """
    order = np.lexsort((labels, -scores, rows))
    rows = rows[order]
    places = np.arange(len(rows)) - np.searchsorted(rows, rows)
    inside = places < count
    best = np.full((row_count, count), -1)
    best_scores = np.full((row_count, count), np.nan, np.float32)
    best[rows[inside], places[inside]] = labels[order][inside]
    best_scores[rows[inside], places[inside]] = scores[order][inside]
    return best, best_scores


def prediction(
    labels: IntArray, scores: FloatArray, top_k: int, threshold: float | None
) -> LabelPrediction:
    """Return `labels` and `scores` (nq, at most top_k) as lists of `top_k` places.

    Places without a label, or with a score below `threshold`, get -1 and NaN.
    """
    padding = ((0, 0), (0, top_k - labels.shape[1]))
    labels = np.pad(labels, padding, constant_values=-1)
    scores = np.pad(scores, padding, constant_values=np.nan)
    if threshold is not None:
        below = ~(scores >= within_float32(threshold))
        labels[below], scores[below] = -1, np.nan
    return LabelPrediction(labels, scores, (labels >= 0).sum(axis=1).astype(np.uint32))


def check_top_k(top_k: int, label_count: int) -> int:
    """Return the smaller of `top_k` and `label_count`.

    Raises `InvalidArgumentError`, with the field top_k, unless `top_k` is an int from 1 up.
    """
    if not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1:
        raise invalid("top_k", f"must be a whole number from 1 up, got {top_k}")
    return min(top_k, label_count)


def _as_factor(name: str, matrix: npt.ArrayLike) -> FloatArray:
    factor = as_rows(name, matrix, None)
    if isinstance(factor, SparseRows) or not factor.size:
        raise invalid(name, "must be a dense matrix, and not empty")
    if not np.isfinite(factor).all():
        raise invalid(name, "must be finite")
    return factor
