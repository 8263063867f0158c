"""Products of documents X (n, d) and labels Y (n, L) with matrices of few columns, for LEML.

Sparse matrices stay sparse. A product with a sparse matrix reads the stored values of the matrix or
of its transposed copy, and divides the rows among all cores. If d is small, XᵀX (d, d) is computed
once. A step of conjugate gradients is then one dense product, about thirty times faster than two
sparse products.
"""

from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.kernels import leml
from divgrpc.parallel import on_all_cores
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows

Matrix: TypeAlias = FloatArray | SparseRows

# XᵀX is kept only if X has at most 4,096 columns, so that XᵀX takes at most 64 MiB, and if XᵀX has
# at most 32 times as many values as X stores. The ratio is 32 because a dense product handles about
# 32 values in the time that a sparse product needs for one stored value.
_MOMENT_COLUMNS_MAX: Final = 4_096
_MOMENTS_PER_STORED_MAX: Final = 32
# If a sparse X stores at least this share of its n x d values, XᵀX is computed from dense blocks of
# rows.
_DENSE_SHARE_MIN: Final = 1 / 16
_BLOCK_ROWS: Final = 8_192
# Approximate number of stored values that one thread multiplies at a time.
_BLOCK_VALUES: Final = 2**17


class Products:
    """Products of X and Y with matrices of few columns, in float32."""

    def __init__(self, documents: Rows, labels: SparseRows) -> None:
        """Store `documents` X (n, d) and `labels` Y (n, L); all values in Y are 1."""
        self.documents, self.labels = documents, labels
        self._transposed_documents = _transpose(documents)
        self._transposed_labels = _transpose(labels)
        self._moments = _moments(documents) if _worth_moments(documents) else None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of documents, features and labels: n, d, L."""
        return len(self.documents), self.documents.shape[1], self.labels.shape[1]

    def embed(self, feature_map: FloatArray) -> FloatArray:
        """Return X V (n, r) for `feature_map` V (d, r)."""
        return multiply(self.documents, feature_map)

    def to_features(self, rows: FloatArray) -> FloatArray:
        """Return Xᵀ A (d, r) for `rows` A (n, r)."""
        return multiply(self._transposed_documents, rows)

    def of_labels(self, label_factors: FloatArray) -> FloatArray:
        """Return Y H (n, r) for `label_factors` H (L, r)."""
        return multiply(self.labels, label_factors)

    def to_labels(self, rows: FloatArray) -> FloatArray:
        """Return Yᵀ A (L, r) for `rows` A (n, r)."""
        return multiply(self._transposed_labels, rows)

    def moments(self, feature_map: FloatArray) -> FloatArray:
        """Return XᵀX V (d, r) for `feature_map` V (d, r)."""
        if self._moments is not None:
            return self._moments @ feature_map
        return self.to_features(self.embed(feature_map))


def multiply(matrix: Matrix, columns: FloatArray) -> FloatArray:
    """Return the product (m, r) float32 of `matrix` (m, d) and `columns` (d, r).

    Sums over a sparse row run in order, so the result does not depend on the number of threads.
    """
    if not isinstance(matrix, SparseRows):
        return matrix @ columns
    product = np.empty((len(matrix), columns.shape[1]), np.float32)
    arrays = (matrix.indptr, matrix.indices, matrix.values, np.ascontiguousarray(columns))
    ends = np.arange(_BLOCK_VALUES, len(matrix.indices), _BLOCK_VALUES)
    cuts = np.unique([0, *np.searchsorted(matrix.indptr, ends), len(matrix)]).tolist()

    def block(rows: tuple[int, int]) -> None:
        leml.sparse_product(*arrays, *rows, product)

    for _ in on_all_cores(block, list(pairwise(cuts))):
        pass
    return product


def second_moments(rows: FloatArray) -> npt.NDArray[np.float64]:
    """Return AᵀA (r, r) float64 for `rows` A (n, r), summed over blocks of rows."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        total += block.T @ block
    return total


def without_empty(rows: SparseRows) -> tuple[SparseRows, IntArray]:
    """Drop the empty columns of `rows` (n, d); also return the kept column numbers, ascending.

    Without empty columns, the time of training depends on the number of columns in use, not on d.
    """
    in_use = np.zeros(rows.dims, np.bool_)
    in_use[rows.indices] = True
    columns = np.flatnonzero(in_use)
    if len(columns) == rows.dims:
        return rows, columns
    indices = (np.cumsum(in_use, dtype=np.int32) - 1)[rows.indices]
    return SparseRows(rows.indptr, indices, rows.values, len(columns)), columns


def _transpose(matrix: Matrix) -> Matrix:
    if not isinstance(matrix, SparseRows):
        return matrix.T
    return SparseRows.of(sparse.csr_array(matrix.matrix.T))


def _worth_moments(documents: Matrix) -> bool:
    columns = int(documents.shape[1])
    size = len(documents.indices) if isinstance(documents, SparseRows) else documents.size
    return columns <= _MOMENT_COLUMNS_MAX and columns**2 <= _MOMENTS_PER_STORED_MAX * max(1, size)


def _moments(documents: Matrix) -> FloatArray:
    """Return XᵀX (d, d) float32."""
    if not isinstance(documents, SparseRows):
        return second_moments(documents).astype(np.float32)
    rows, columns = documents.shape
    if len(documents.indices) < _DENSE_SHARE_MIN * rows * columns:
        matrix = documents.matrix
        return np.asarray((matrix.T @ matrix).toarray(), np.float32)
    total = np.zeros((columns, columns))
    for start in range(0, rows, _BLOCK_ROWS):
        total += second_moments(documents[start : start + _BLOCK_ROWS].matrix.toarray())
    return total.astype(np.float32)
