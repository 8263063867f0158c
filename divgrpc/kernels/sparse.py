"""Dot products and distances of sparse rows and one dense vector, summed in a fixed order.

Sums are float64, in which the product of two float32 numbers is exact. So the rounding error of
|x|^2 + |y|^2 - 2 x.y is about 1e-16 times its terms, and points that nearly equal the query are
ordered correctly.
"""

import numpy as np

from divgrpc.kernels.jit import kernel, part
from divgrpc.kernels.vector_sums import gathered_dot

# Upper bound of the relative rounding error of a float64 sum of about ten thousand products.
_SUM_ERROR = 1e-14


@kernel
def marked_dot(indices, values, start, stop, dense, marks, sums):
    """Return the same bits as `gathered_dot` with row 0 of `dense` (1, d); skip unmarked columns.

    `marks` (ceil(d / 64),) uint64 has one bit for each column; `dense` is 0 in columns whose bit is
    not set. Skipping is faster if the marks fit into the processor's cache but the dense row does
    not. `sums` (16,) float64 is scratch memory, which must hold zeros before the call and holds
    zeros after it.
    """
    whole = start + ((stop - start) & ~15)
    for i in range(start, whole):
        if is_marked(indices[i], marks):
            sums[(i - start) & 15] += np.float64(values[i]) * np.float64(dense[0, indices[i]])
    for half in (8, 4, 2, 1):
        for j in range(half):
            sums[j] += sums[j + half]
            sums[j + half] = 0.0
    total = sums[0]
    sums[0] = 0.0
    for i in range(whole, stop):
        if is_marked(indices[i], marks):
            total += np.float64(values[i]) * np.float64(dense[0, indices[i]])
    return total


@kernel
def is_marked(column, marks):
    """Return whether the bit of a column is set in `marks`, as a uint64."""
    return marks[column >> 6] >> np.uint64(column & 63) & np.uint64(1)


@kernel
def sparse_distance(points, row, next_row, query):
    """Return the float32 distance of a sparse point from a `Query`.

    `next_row`, a row that will be scored soon, is prefetched.
    """
    indptr, indices, values = points.indptr, points.indices, points.values
    start, stop, ahead = indptr[row], indptr[row + 1], indptr[next_row]
    dot = gathered_dot(indices, values, start, stop, ahead, query.dense, query.row)
    return distance_from_dot(dot, points.squares[row], query.square, query.product)


@kernel
def distance_from_dot(dot, square, other_square, product):
    """Return a float32 distance from a dot product and squared lengths, all float64."""
    if product:
        return np.float32(-dot)
    square_sum = square + other_square
    far = square_sum - 2.0 * dot
    # A difference within the rounding error counts as 0, so equal points of any length have
    # distance 0.
    return np.float32(far if far > _SUM_ERROR * square_sum else 0.0)


@kernel
def dense_square(dense, row):
    """Return the float64 squared length of row `row` of `dense` (m, d) float32.

    Squares are added to four sums. The square of column j is added to sum j % 4, except that the
    squares of the last d % 4 columns are added to the first sum. Then the four sums are added
    pairwise.
    """
    a, b, c, e = 0.0, 0.0, 0.0, 0.0
    j = 0
    while j + 4 <= dense.shape[1]:
        a += np.float64(dense[row, j]) * np.float64(dense[row, j])
        b += np.float64(dense[row, j + 1]) * np.float64(dense[row, j + 1])
        c += np.float64(dense[row, j + 2]) * np.float64(dense[row, j + 2])
        e += np.float64(dense[row, j + 3]) * np.float64(dense[row, j + 3])
        j += 4
    while j < dense.shape[1]:
        a += np.float64(dense[row, j]) * np.float64(dense[row, j])
        j += 1
    return (a + b) + (c + e)


@kernel
def sparse_square(indices, values, start, stop, dims):
    """Return the same bits as `dense_square` for a sparse row of `dims` columns."""
    a, b, c, e = 0.0, 0.0, 0.0, 0.0
    for i in range(start, stop):
        term = np.float64(values[i]) * np.float64(values[i])
        lane = indices[i] & 3 if indices[i] < dims & ~3 else 0
        if lane == 0:
            a += term
        elif lane == 1:
            b += term
        elif lane == 2:
            c += term
        else:
            e += term
    return (a + b) + (c + e)


@part
def spread(indices, values, start, stop, selection):
    """Write elements start to stop - 1 of a sparse row into `dense` and `marks` of `selection`.

    `selection` is a `SelectionScratch` whose arrays `dense` and `marks` must hold zeros before the
    call.
    """
    dense, marks = selection.dense, selection.marks
    for i in range(start, stop):
        dense[0, indices[i]] = values[i]
    if marks.shape[0]:
        for i in range(start, stop):
            marks[indices[i] >> 6] |= np.uint64(1) << np.uint64(indices[i] & 63)


@part
def clear(indices, start, stop, selection):
    """Reset what `spread` wrote to zeros."""
    dense, marks = selection.dense, selection.marks
    for i in range(start, stop):
        dense[0, indices[i]] = np.float32(0)
    if marks.shape[0]:
        for i in range(start, stop):
            marks[indices[i] >> 6] = np.uint64(0)
