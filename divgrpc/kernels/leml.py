"""Loops that train the label model LEML: sparse products, and the steps of conjugate gradients.

Most kernels work on rows start to stop - 1 of their matrices, so threads can divide the rows among
them. A kernel passes over these rows only once, because the arrays are larger than any cache. Inner
loops run over columns, because the columns of a row are contiguous in memory. So every sum adds
rows in ascending order.
"""

import numpy as np

from divgrpc.kernels.jit import kernel


@kernel
def sparse_product(indptr, indices, values, columns, start, stop, product):
    """Write the product of sparse rows (m, d) and `columns` (d, r) into `product` (m, r) float32.

    `indptr` int64, `indices` int32 and `values` float32 are the sparse rows; `columns` is float32.
    """
    for i in range(start, stop):
        for j in range(columns.shape[1]):
            product[i, j] = np.float32(0)
        for at in range(indptr[i], indptr[i + 1]):
            value, row = values[at], indices[at]
            for j in range(columns.shape[1]):
                product[i, j] += value * columns[row, j]


@kernel
def add_transposed(indptr, indices, values, rows, total):
    """Add the product of transposed sparse rows (m, d) and `rows` (m, r) to `total` (d, r) float32.

    `indptr` int64, `indices` int32 and `values` float32 are the sparse rows; `rows` is float32.
    """
    for i in range(len(indptr) - 1):
        for at in range(indptr[i], indptr[i + 1]):
            value, column = values[at], indices[at]
            for j in range(rows.shape[1]):
                total[column, j] += value * rows[i, j]


@kernel
def add_gram(indptr, indices, values, triangle):
    """Add the lower triangle of the product of transposed sparse rows (m, d) and these rows.

    `indptr` int64, `indices` int32 and `values` float32 are the sparse rows, whose columns ascend.
    `triangle` (d * (d + 1) / 2,) float32 has row i of the product from i * (i + 1) / 2 on.
    """
    for i in range(len(indptr) - 1):
        for at in range(indptr[i], indptr[i + 1]):
            value, row = values[at], np.int64(indices[at])
            first = row * (row + 1) // 2
            for other in range(indptr[i], at + 1):
                triangle[first + indices[other]] += value * values[other]


@kernel
def column_squares(rows, start, stop, sums):
    """Add the squares of each column of `rows` (n, r) float32 to `sums` (r,) float64."""
    for i in range(start, stop):
        for j in range(rows.shape[1]):
            sums[j] += np.float64(rows[i, j]) * np.float64(rows[i, j])


@kernel
def weigh(image, block, scales, weight, start, stop, sums):
    """Replace `image` by scales * image + weight * block, and add dot products to `sums`.

    `image` and `block` (n, r) float32; `scales` (r,) and `weight` float32. The dot product of each
    new column of `image` with the same column of `block` is added to `sums` (r,) float64.
    """
    for i in range(start, stop):
        for j in range(image.shape[1]):
            image[i, j] = scales[j] * image[i, j] + weight * block[i, j]
            sums[j] += np.float64(image[i, j]) * np.float64(block[i, j])


@kernel
def descend(solution, residual, direction, image, lengths, start, stop, sums):
    """Take one step of conjugate gradients, and add the squares of the new residual to `sums`.

    All matrices are (n, r) float32, and `lengths` is (r,) float32. `image` is the matrix of the
    linear system times `direction`. In column j, lengths[j] * direction is added to `solution`, and
    lengths[j] * image is subtracted from `residual`. `sums` (r,) float64 has one sum per column.
    """
    for i in range(start, stop):
        for j in range(solution.shape[1]):
            solution[i, j] += lengths[j] * direction[i, j]
            residual[i, j] -= lengths[j] * image[i, j]
            sums[j] += np.float64(residual[i, j]) * np.float64(residual[i, j])


@kernel
def turn(direction, residual, shares, start, stop, _):
    """Replace column j of `direction` (n, r) float32 by shares[j] * direction + residual."""
    for i in range(start, stop):
        for j in range(direction.shape[1]):
            direction[i, j] = shares[j] * direction[i, j] + residual[i, j]
