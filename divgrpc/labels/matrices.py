"""Products of sparse or dense rows with matrices of few columns, and rows without empty columns."""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.build_rows import SparseBuildRows, block_rows
from divgrpc.kernels import leml
from divgrpc.parallel import on_all_cores
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows

_BLOCK_ROWS: Final = 8_192
# Approximate number of stored values that one thread multiplies at a time.
_BLOCK_VALUES: Final = 2**17


def multiply(matrix: Rows, columns: FloatArray) -> FloatArray:
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
    columns = columns_in_use(rows)
    return select_columns(rows, columns), columns


def columns_in_use(rows: SparseBuildRows) -> IntArray:
    """Return the columns in which at least one row has a value, ascending."""
    in_use = np.zeros(rows.dims, np.bool_)
    step = block_rows(rows)
    for start in range(0, len(rows), step):
        in_use[rows[start : start + step].indices] = True
    return np.flatnonzero(in_use)


def select_columns(rows: SparseRows, columns: IntArray) -> SparseRows:
    """Return `rows` without the columns that are empty; `columns` (ascending) has all others."""
    if len(columns) == rows.dims:
        return rows
    places = np.empty(rows.dims, np.int32)
    places[columns] = np.arange(len(columns), dtype=np.int32)
    return SparseRows(rows.indptr, places[rows.indices], rows.values, len(columns))
