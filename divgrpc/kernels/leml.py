"""The loops of LEML's training: sparse rows times many columns, and the steps between.

Each works on rows start to stop - 1, so that threads share the rows, and passes once over its
arrays, which are larger than any cache. Inner loops run over columns, which are contiguous, so that
every sum is over rows in their order.
"""

import numpy as np

from divgrpc.kernels.jit import kernel


@kernel
def sparse_product(indptr, indices, values, columns, start, stop, product):
    """Write sparse rows (m, d) times `columns` (d, r) into `product` (m, r), float32."""
    for i in range(start, stop):
        for j in range(columns.shape[1]):
            product[i, j] = np.float32(0)
        for at in range(indptr[i], indptr[i + 1]):
            value, row = values[at], indices[at]
            for j in range(columns.shape[1]):
                product[i, j] += value * columns[row, j]


@kernel
def column_squares(rows, start, stop, sums):
    """Add the squares of each column of `rows` (n, r) float32 to `sums` (r,) float64."""
    for i in range(start, stop):
        for j in range(rows.shape[1]):
            sums[j] += np.float64(rows[i, j]) * np.float64(rows[i, j])


@kernel
def weigh(image, block, scales, weight, start, stop, sums):
    """Replace `image` by scales * image + weight * block; add its products with `block` to `sums`.

    `image` and `block` (n, r) float32; `scales` (r,) and `weight` float32; `sums` (r,) float64, one
    per column.
    """
    for i in range(start, stop):
        for j in range(image.shape[1]):
            image[i, j] = scales[j] * image[i, j] + weight * block[i, j]
            sums[j] += np.float64(image[i, j]) * np.float64(block[i, j])


@kernel
def descend(solution, residual, direction, image, lengths, start, stop, sums):
    """Step along each column of `direction`; add the squares of the new residual to `sums`.

    `solution` (n, r) float32 moves by `lengths` (r,) float32 times `direction`, `residual` (n, r)
    float32 by minus as much of its `image`; `sums` (r,) float64.
    """
    for i in range(start, stop):
        for j in range(solution.shape[1]):
            solution[i, j] += lengths[j] * direction[i, j]
            residual[i, j] -= lengths[j] * image[i, j]
            sums[j] += np.float64(residual[i, j]) * np.float64(residual[i, j])


@kernel
def turn(direction, residual, shares, start, stop, _):
    """Replace each column of `direction` (n, r) float32 by shares * direction + residual."""
    for i in range(start, stop):
        for j in range(direction.shape[1]):
            direction[i, j] = shares[j] * direction[i, j] + residual[i, j]
