"""Products of sparse or dense rows with matrices of few columns, and rows without empty columns."""

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import read_only
from divgrpc.build_rows import SparseBuildRows, block_rows
from divgrpc.kernels import leml
from divgrpc.parallel import on_all_cores
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows

_BLOCK_ROWS: Final = 8_192
# Approximate number of stored values that one thread multiplies at a time.
_BLOCK_VALUES: Final = 2**17
# `gram` computes at most this many rows of AᵀA at a time, so that no more exist in float64.
_PANEL_ROWS: Final = 1_024
# `gram` makes sparse rows dense if they store at least this share of their values.
_DENSE_SHARE_MIN: Final = 1 / 16
# For `gram`, a value of other sparse rows takes about as much time as so many of dense rows.
_DENSE_PER_STORED: Final = 4


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


def gram(rows: Rows) -> FloatArray:
    """Return the lower triangle of AᵀA for `rows` A (n, r), row by row, (r (r + 1) / 2,) float32.

    Sums over sparse rows run in float32. Those over dense rows run in float32 within a block of
    rows, and in float64 over the blocks.
    """
    if not isinstance(rows, SparseRows):
        return _gram_of_dense(rows)
    if _is_nearly_dense(rows):
        return _gram_of_dense(rows.matrix.toarray())
    triangle = np.zeros(triangle_size(rows.dims), np.float32)
    starts, indices, values = rows.indptr, rows.indices, rows.values
    leml.add_gram(read_only(starts), read_only(indices), read_only(values), triangle)
    return triangle


def _gram_of_dense(rows: FloatArray) -> FloatArray:
    columns = rows.shape[1]
    triangle = np.empty(triangle_size(columns), np.float32)
    for start in range(0, columns, _PANEL_ROWS):
        stop = min(start + _PANEL_ROWS, columns)
        panel = np.zeros((stop - start, stop))
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = rows[first : first + _BLOCK_ROWS]
            left = block[:, start:stop]
            panel[:, :start] += left.T @ block[:, :start]
            # BLAS computes half of a product like this one.
            panel[:, start:] += left.T @ left
        lower = np.tri(stop - start, stop, start, np.bool_)
        triangle[triangle_size(start) : triangle_size(stop)] = panel[lower]
    return triangle


def gram_work(rows: Rows) -> int:
    """Return the number of values of dense rows for which `gram` takes about as much time."""
    if not isinstance(rows, SparseRows) or _is_nearly_dense(rows):
        return len(rows) * int(rows.shape[1])
    return _DENSE_PER_STORED * len(rows.indices)


def _is_nearly_dense(rows: SparseRows) -> bool:
    return len(rows.indices) >= _DENSE_SHARE_MIN * len(rows) * rows.dims


def triangle_size(columns: int) -> int:
    """Return the number of values in the lower triangle of a matrix of so many columns."""
    return columns * (columns + 1) // 2


def symmetric(triangle: npt.NDArray[np.floating], columns: int) -> FloatArray:
    """Return the symmetric matrix (d, d) float32 of d `columns` that has this lower triangle."""
    matrix = np.empty((columns, columns), np.float32)
    lower = np.tri(columns, columns, 0, np.bool_)
    matrix[lower] = triangle
    matrix.T[lower] = triangle
    return matrix


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
