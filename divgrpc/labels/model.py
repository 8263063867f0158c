"""A label model: two factors whose product scores every label of a document.

The score of label l for document x is h_l . (Vᵀx + offset), with h_l a row of the label factors and
V the feature map. What training gives wants documents of unit length and has an offset, which is
what a constant feature came to; factors from elsewhere are taken as they are.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc.labels.matrices import multiply
from divgrpc.types import FloatArray, IntArray, LabelPrediction
from divgrpc.vectors import Rows, RowsLike, SparseRows, as_rows, prepare, within_float32

# Scores of a block of documents: 64 MiB.
_BLOCK_SCORES: Final = 2**24


@dataclass(frozen=True, slots=True, eq=False)
class LabelModel:
    """`label_factors` (L, r), `feature_map` (d, r) and `offset` (r,), all float32.

    `unit_rows`: documents are scaled to unit length before they are multiplied.
    """

    label_factors: FloatArray
    feature_map: FloatArray
    offset: FloatArray
    unit_rows: bool

    @classmethod
    def of_factors(
        cls, label_factors: npt.ArrayLike, feature_map: npt.ArrayLike, *, unit_rows: bool = False
    ) -> Self:
        """Take factors from elsewhere, (L, r) and (d, r).

        Raises `InvalidArgumentError`, with the field, where they are no finite matrices of as many
        columns.
        """
        factors, features = (
            _factor(name, given)
            for name, given in (("label_factors", label_factors), ("feature_map", feature_map))
        )
        if factors.shape[1] != features.shape[1]:
            raise InvalidArgumentError(
                "feature_map",
                f"feature_map must have {factors.shape[1]} columns, as the label_factors have, "
                f"got {features.shape[1]}",
            )
        return cls(factors, features, np.zeros(factors.shape[1], np.float32), unit_rows)

    @property
    def dims(self) -> int:
        """How many features a document has, d."""
        return len(self.feature_map)

    @property
    def label_count(self) -> int:
        """How many labels there are, L."""
        return len(self.label_factors)

    @property
    def rank(self) -> int:
        """How many numbers stand for a document or a label, r."""
        return int(self.label_factors.shape[1])

    def embed(self, documents: RowsLike) -> FloatArray:
        """Return what stands for each of `documents` (nq, d): (nq, r).

        A document without a feature is its offset alone. Raises `InvalidArgumentError`, with the
        field `documents`, for other columns and for values that are not finite.
        """
        rows = as_rows("documents", documents, self.dims)
        # Both raise for what is not finite; the first also scales.
        prepare("documents", rows, "cosine" if self.unit_rows else "inner_product")
        return np.asarray(multiply(rows, self.feature_map) + self.offset)

    def predict(
        self, documents: RowsLike, *, top_k: int = 5, threshold: float | None = None
    ) -> LabelPrediction:
        """Score every label of each document and return the `top_k` best of at least `threshold`.

        What is faster but not exact is measured beside this. Equal scores go by the smaller label.
        """
        embedded = self.embed(documents)
        width = check_top_k(top_k, self.label_count)
        labels = np.empty((len(embedded), width), np.int64)
        scores = np.empty((len(embedded), width), np.float32)
        size = max(1, _BLOCK_SCORES // self.label_count)
        for start in range(0, len(embedded), size):
            block = slice(start, start + size)
            labels[block], scores[block] = best_labels(
                embedded[block] @ self.label_factors.T, width
            )
        return prediction(labels, scores, top_k, threshold)


def as_documents(documents: RowsLike) -> Rows:
    """Return documents (n, d) as training takes them: of unit length, and a feature that is 1.

    The constant is the last of d + 1 columns. Raises `InvalidArgumentError` as `embed` does.
    """
    rows = as_rows("documents", documents, None)
    prepare("documents", rows, "cosine")
    constant = np.ones((len(rows), 1), np.float32)
    if isinstance(rows, SparseRows):
        joined = sparse.hstack([rows.matrix, sparse.csr_array(constant)], format="csr")
        return SparseRows.of(sparse.csr_array(joined))
    return np.hstack([rows, constant])


def as_labels(labels: RowsLike, documents: int | None = None) -> SparseRows:
    """Return a label matrix (n, L), sparse or dense, as rows of ones: what is not 0 is a label.

    Raises `InvalidArgumentError`, with the field `labels`, where there are other rows than
    `documents`, no labels, and values that are not finite.
    """
    rows = label_rows(as_rows("labels", labels, None))
    if documents is not None and len(rows) != documents:
        raise InvalidArgumentError(
            "labels", f"labels must have one row for each of {documents} documents, got {len(rows)}"
        )
    if not len(rows.values):
        raise InvalidArgumentError("labels", "labels must have one label at least")
    rows.values[:] = 1
    return rows


def label_rows(given: Rows) -> SparseRows:
    """Return labels (n, L) as sparse rows of what is not 0; sparse ones are written over.

    Raises `InvalidArgumentError`, with the field `labels`, for values that are not finite.
    """
    matrix = given.matrix if isinstance(given, SparseRows) else sparse.csr_array(given)
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all():
        raise InvalidArgumentError("labels", "labels must be finite")
    return SparseRows.of(matrix)


def best_labels(scores: FloatArray, count: int) -> tuple[IntArray, FloatArray]:
    """Return labels and scores (m, count) of the greatest of `scores` (m, L), best first.

    `count` is from 1 to L; of equal scores the smaller label comes first.
    """
    least = np.partition(scores, scores.shape[1] - count, axis=1)[:, scores.shape[1] - count]
    rows, labels = np.nonzero(scores >= least[:, None])
    return best_of_pairs(rows, labels, scores[rows, labels], len(scores), count)


def best_of_pairs(
    rows: IntArray, labels: IntArray, scores: FloatArray, row_count: int, count: int
) -> tuple[IntArray, FloatArray]:
    """Return the same of t triples of row, label and score; -1 and NaN where a row has fewer."""
    order = np.lexsort((labels, -scores, rows))
    rows = rows[order]
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = place < count
    best = np.full((row_count, count), -1)
    worth = np.full((row_count, count), np.nan, np.float32)
    best[rows[kept], place[kept]] = labels[order][kept]
    worth[rows[kept], place[kept]] = scores[order][kept]
    return best, worth


def prediction(
    labels: IntArray, scores: FloatArray, top_k: int, threshold: float | None
) -> LabelPrediction:
    """Return lists of `top_k` places of which those below the threshold are empty."""
    empty = ((0, 0), (0, top_k - labels.shape[1]))
    labels = np.pad(labels, empty, constant_values=-1)
    scores = np.pad(scores, empty, constant_values=np.nan)
    if threshold is not None:
        below = ~(scores >= within_float32(threshold))
        labels[below], scores[below] = -1, np.nan
    return LabelPrediction(labels, scores, (labels >= 0).sum(axis=1).astype(np.uint32))


def check_top_k(top_k: int, label_count: int) -> int:
    """Return how many labels there can be at most; raises for none."""
    if not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1:
        raise InvalidArgumentError("top_k", f"top_k must be a whole number from 1 up, got {top_k}")
    return min(top_k, label_count)


def _factor(name: str, given: npt.ArrayLike) -> FloatArray:
    factor = as_rows(name, given, None)
    if isinstance(factor, SparseRows) or not factor.size:
        raise InvalidArgumentError(name, f"{name} must be a dense matrix, and not empty")
    if not np.isfinite(factor).all():
        raise InvalidArgumentError(name, f"{name} must be finite")
    return factor
