"""Documents X (n, d) and labels Y (n, L) as what LEML multiplies with; neither is spread out.

Everything goes over the stored numbers: X, Y and a transposed copy of each, by rows on all cores.
Where d is small, XᵀX (d, d) is kept instead of being applied: then a step of conjugate gradients
costs one dense product, some thirty times faster than two passes over sparse rows.
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

# XᵀX has at most 4,096 columns (64 MiB), and is worth it where it is no more than so many times the
# stored numbers: a dense product does about as much more in the same time.
_MOMENT_COLUMNS: Final = 4_096
_MOMENTS_OVER_STORED: Final = 32
# Rows with more of their columns stored are multiplied as dense ones.
_DENSE_FROM: Final = 1 / 16
_BLOCK_ROWS: Final = 8_192
# Rows that one thread takes at a time hold so many numbers together.
_BLOCK_VALUES: Final = 2**17


class Products:
    """X and Y, to be multiplied with few columns; float32 throughout."""

    def __init__(self, documents: Rows, labels: SparseRows) -> None:
        """Take X (n, d) and Y (n, L), whose values are 1."""
        self.documents, self.labels = documents, labels
        self._documents_back, self._labels_back = _transposed(documents), _transposed(labels)
        self._moments = _moments(documents) if _worth_moments(documents) else None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Documents, features and labels: n, d, L."""
        return len(self.documents), self.documents.shape[1], self.labels.shape[1]

    def embed(self, feature_map: FloatArray) -> FloatArray:
        """Return X V (n, r) of V (d, r)."""
        return multiply(self.documents, feature_map)

    def to_features(self, rows: FloatArray) -> FloatArray:
        """Return Xᵀ A (d, r) of A (n, r)."""
        return multiply(self._documents_back, rows)

    def of_labels(self, label_factors: FloatArray) -> FloatArray:
        """Return Y H (n, r) of H (L, r)."""
        return multiply(self.labels, label_factors)

    def to_labels(self, rows: FloatArray) -> FloatArray:
        """Return Yᵀ A (L, r) of A (n, r)."""
        return multiply(self._labels_back, rows)

    def moments(self, feature_map: FloatArray) -> FloatArray:
        """Return XᵀX V (d, r) of V (d, r)."""
        if self._moments is not None:
            return self._moments @ feature_map
        return self.to_features(self.embed(feature_map))


def multiply(matrix: Matrix, columns: FloatArray) -> FloatArray:
    """Return the product of a matrix (m, d) and `columns` (d, r): (m, r) float32.

    A sparse row's sum runs over its own numbers in order, whatever thread has it.
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
    """Return AᵀA (r, r) float64 of A (n, r), added up over blocks."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        total += block.T @ block
    return total


def without_empty(rows: SparseRows) -> tuple[SparseRows, IntArray]:
    """Return rows in the columns that they have anything in, and which these are, ascending.

    Of a few with millions of columns a model is trained in the time that their own take.
    """
    used = np.zeros(rows.dims, np.bool_)
    used[rows.indices] = True
    columns = np.flatnonzero(used)
    if len(columns) == rows.dims:
        return rows, columns
    renamed = (np.cumsum(used, dtype=np.int32) - 1)[rows.indices]
    return SparseRows(rows.indptr, renamed, rows.values, len(columns)), columns


def _transposed(matrix: Matrix) -> Matrix:
    if not isinstance(matrix, SparseRows):
        return matrix.T
    return SparseRows.of(sparse.csr_array(matrix.matrix.T))


def _worth_moments(documents: Matrix) -> bool:
    columns = int(documents.shape[1])
    stored = len(documents.indices) if isinstance(documents, SparseRows) else documents.size
    return columns <= _MOMENT_COLUMNS and columns**2 <= _MOMENTS_OVER_STORED * max(1, stored)


def _moments(documents: Matrix) -> FloatArray:
    """Return XᵀX (d, d) float32."""
    if not isinstance(documents, SparseRows):
        return second_moments(documents).astype(np.float32)
    rows, columns = documents.shape
    if len(documents.indices) < _DENSE_FROM * rows * columns:
        matrix = documents.matrix
        return np.asarray((matrix.T @ matrix).toarray(), np.float32)
    total = np.zeros((columns, columns))
    for start in range(0, rows, _BLOCK_ROWS):
        total += second_moments(documents[start : start + _BLOCK_ROWS].matrix.toarray())
    return total.astype(np.float32)
