"""The label model computes a score for every label of a document from two factors.

The score of label l for document x is h_l · (Vᵀx + offset), where h_l is row l of the label factors
and V is the feature map. A trained model scales documents to unit length. Its offset was learned as
the row of V for a constant feature. A model of factors that a caller provides scales documents only
if `unit_rows` is set, and its offset is zero.
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

# Documents are scored in blocks with at most this many scores (64 MiB) each.
_BLOCK_SCORES: Final = 2**24


@dataclass(frozen=True, slots=True, eq=False)
class LabelModel:
    """A label model: `label_factors` (L, r), `feature_map` (d, r) and `offset` (r,), float32.

    If `unit_rows` is true, documents are scaled to unit length before they are embedded.
    """

    label_factors: FloatArray
    feature_map: FloatArray
    offset: FloatArray
    unit_rows: bool

    @classmethod
    def of_factors(
        cls, label_factors: npt.ArrayLike, feature_map: npt.ArrayLike, *, unit_rows: bool = False
    ) -> Self:
        """Create a model from given factors (L, r) and (d, r), with an offset of zeros.

        Raises `InvalidArgumentError` with the field label_factors or feature_map unless both are
        dense, finite matrices with the same number of columns.
        """
        factors = _as_factor("label_factors", label_factors)
        features = _as_factor("feature_map", feature_map)
        rank, columns = factors.shape[1], features.shape[1]
        if columns != rank:
            sentence = f"must have {rank} columns, as the label_factors have, got {columns}"
            raise invalid("feature_map", sentence)
        return cls(factors, features, np.zeros(rank, np.float32), unit_rows)

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
        """The number of columns of both factors, r."""
        return int(self.label_factors.shape[1])

    def embed(self, documents: RowsLike) -> FloatArray:
        """Return Vᵀx + offset (nq, r) float32 for `documents` (nq, d), dense or sparse.

        The embedding of a document of zeros is the offset. Raises `InvalidArgumentError` with the
        field documents for a wrong number of columns, for values that are not finite and, without
        `unit_rows`, for rows longer than `vectors.LENGTH_MAX`.
        """
        rows = as_rows("documents", documents, self.dims)
        # Both metrics refuse values that are not finite. "cosine" also scales the rows, and
        # "inner_product" also refuses rows that are too long.
        prepare("documents", rows, "cosine" if self.unit_rows else "inner_product")
        return np.asarray(multiply(rows, self.feature_map) + self.offset)

    def predict(
        self, documents: RowsLike, *, top_k: int = 5, threshold: float | None = None
    ) -> LabelPrediction:
        """Score every label for each of `documents` (nq, d); return the `top_k` best labels.

        Labels with a score below `threshold` are left out. Labels with equal scores are ordered by
        label number. The result is exact, so it is the reference for approximate searches. Raises
        the errors of `embed`, and `InvalidArgumentError` with the field top_k unless `top_k` is an
        int of at least 1.
        """
        embedded = self.embed(documents)
        width = check_top_k(top_k, self.label_count)
        return prediction(*best_products(embedded, self.label_factors, width), top_k, threshold)


def as_documents(documents: RowsLike, row_numbers: range | None = None) -> Rows:
    """Scale `documents` (n, d) to unit length and append a column of ones: (n, d + 1).

    Training uses documents in this form. Errors name rows by `row_numbers`, by default from 0 on.
    Raises `InvalidArgumentError` with the field documents for
    malformed documents or values that are not finite.
    """
    rows = as_rows("documents", documents, None)
    prepare("documents", rows, "cosine", row_numbers=row_numbers)
    constant = np.ones((len(rows), 1), np.float32)
    if isinstance(rows, SparseRows):
        matrix = sparse.hstack([rows.matrix, sparse.csr_array(constant)], format="csr")
        return SparseRows.of(sparse.csr_array(matrix))
    return np.hstack([rows, constant])


def as_labels(labels: RowsLike, documents: int | None = None) -> SparseRows:
    """Return `labels` (n, L), sparse or dense, as sparse rows with every nonzero replaced by 1.

    Raises `InvalidArgumentError` with the field labels if n differs from `documents`, if no value
    is nonzero, or if a value is not finite. If `documents` is None, n is not checked.
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
    """Return `labels` (n, L) as sparse rows without stored zeros; overwrite sparse `labels`.

    Raises `InvalidArgumentError` with the field labels for values that are not finite.
    """
    matrix = labels.matrix if isinstance(labels, SparseRows) else sparse.csr_array(labels)
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all():
        raise invalid("labels", "must be finite")
    return SparseRows.of(matrix)


def best_products(
    embedded: FloatArray, factors: FloatArray, count: int
) -> tuple[IntArray, FloatArray]:
    """Return the labels and scores (m, count) with the largest inner products for each row.

    `embedded` is (m, r) and `factors` (L, r), both float32. `count` and the order are as in
    `best_labels`.
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

    `count` is from 1 to L. Labels with equal scores are ordered by label number.
    """
    boundary = np.partition(scores, scores.shape[1] - count, axis=1)[:, scores.shape[1] - count]
    rows, labels = np.nonzero(scores >= boundary[:, None])
    return best_of_pairs(rows, labels, scores[rows, labels], len(scores), count)


def best_of_pairs(
    rows: IntArray, labels: IntArray, scores: FloatArray, row_count: int, count: int
) -> tuple[IntArray, FloatArray]:
    """Return for each row the labels and scores (row_count, count) of its best pairs, best first.

    Pair i says that label labels[i] has the score scores[i] in row rows[i]. Labels with equal
    scores are ordered by label number. If a row has fewer than `count` pairs, its remaining labels
    are -1 and its remaining scores NaN.
    """
    order = np.lexsort((labels, -scores, rows))
    rows = rows[order]
    places = np.arange(len(rows)) - np.searchsorted(rows, rows)
    mask = places < count
    best = np.full((row_count, count), -1)
    best_scores = np.full((row_count, count), np.nan, np.float32)
    best[rows[mask], places[mask]] = labels[order][mask]
    best_scores[rows[mask], places[mask]] = scores[order][mask]
    return best, best_scores


def prediction(
    labels: IntArray, scores: FloatArray, top_k: int, threshold: float | None
) -> LabelPrediction:
    """Return a `LabelPrediction` of width `top_k` from `labels` and `scores` (nq, at most top_k).

    An entry without a label, or with a score below `threshold`, becomes label -1 and score NaN.
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

    Raises `InvalidArgumentError` with the field top_k unless `top_k` is an int of at least 1.
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
