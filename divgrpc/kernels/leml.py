"""What LEML's training spends its time in: sparse rows against many columns, and steps between.

Each works on rows start to stop, so that threads share them out, and goes once over what it reads
and writes: the arrays are larger than any cache. Inner loops run over columns, which lie side by
side, so that every sum is over rows in their order.
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
    """Make of `image` scales * image + weight * block, and add its products with `block` to sums.

    Both (n, r) float32, `scales` (r,) and `weight` float32, `sums` (r,) float64, by columns.
    """
    for i in range(start, stop):
        for j in range(image.shape[1]):
            image[i, j] = scales[j] * image[i, j] + weight * block[i, j]
            sums[j] += np.float64(image[i, j]) * np.float64(block[i, j])


@kernel
def descend(found, residual, direction, image, lengths, start, stop, sums):
    """Go so far along each column of `direction`, and add the squares that remain to `sums`.

    `found` and `residual` (n, r) float32 are changed, by `lengths` (r,) float32 times `direction`
    and its `image`; `sums` (r,) float64.
    """
    for i in range(start, stop):
        for j in range(found.shape[1]):
            found[i, j] += lengths[j] * direction[i, j]
            residual[i, j] -= lengths[j] * image[i, j]
            sums[j] += np.float64(residual[i, j]) * np.float64(residual[i, j])


@kernel
def turn(direction, residual, shares, start, stop, _):
    """Make of each column of `direction` (n, r) its share of itself plus `residual`, float32."""
    for i in range(start, stop):
        for j in range(direction.shape[1]):
            direction[i, j] = shares[j] * direction[i, j] + residual[i, j]
