"""Sparse rows against one dense vector: sums in float64, in a fixed order.

Products of two float32 are exact in float64, so a squared distance from |x|^2 + |y|^2 - 2 x.y is
right to some 1e-16: near-duplicates keep their order, which float32 would lose.
"""

import numpy as np

from divgrpc.kernels.jit import kernel, part
from divgrpc.kernels.vector_sums import gathered_dot

# Of sums of some ten thousand float64 products, as a share of them.
_ROUNDING = 1e-14


@kernel
def sparse_dot(indices, values, start, stop, ahead, target, at):
    """Return the float64 dot product of stored values start to stop and row `at` of `target`.

    See `lanes.gathered_dot`.
    """
    return gathered_dot(indices, values, start, stop, ahead, target, at)


@kernel
def marked_dot(indices, values, start, stop, target, marks, sums):
    """Return the same to the bit, of row 0 of a `target` (1, d) that is zero where none is marked.

    `marks` (ceil(d / 64),) uint64 has a bit for each column. Of very many columns they stay in the
    processor's cache, where the target does not, and nearly all of a point's are passed over.
    `sums` (16,) float64 are zero before and after.
    """
    whole = start + ((stop - start) & ~15)
    for i in range(start, whole):
        if _marked(indices[i], marks):
            sums[(i - start) & 15] += np.float64(values[i]) * np.float64(target[0, indices[i]])
    for half in (8, 4, 2, 1):
        for j in range(half):
            sums[j] += sums[j + half]
            sums[j + half] = 0.0
    total = sums[0]
    sums[0] = 0.0
    for i in range(whole, stop):
        if _marked(indices[i], marks):
            total += np.float64(values[i]) * np.float64(target[0, indices[i]])
    return total


@kernel
def _marked(column, marks):
    return marks[column >> 6] >> np.uint64(column & 63) & np.uint64(1)


@kernel
def sparse_distance(points, row, following, target, at, square, product):
    """Return how far a sparse point is from row `at` of `target`; as in `scoring.score_rows`.

    `following` is a row that will be asked for soon.
    """
    indptr, indices, values, squares = points[1], points[2], points[3], points[4]
    start, stop, ahead = indptr[row], indptr[row + 1], indptr[following]
    dot = sparse_dot(indices, values, start, stop, ahead, target, at)
    return distance_from_dot(dot, squares[row], square, product)


@kernel
def distance_from_dot(dot, square, other_square, product):
    """Return the same from a dot product and squared lengths, all float64, as float32."""
    if product:
        return np.float32(-dot)
    both = square + other_square
    far = both - 2.0 * dot
    # What rounding alone can come to is no distance: equal points are at none, however long.
    return np.float32(far if far > _ROUNDING * both else 0.0)


@kernel
def dense_square(target, at):
    """Return the float64 squared length of a dense row.

    Four sums, number j to sum j % 4, what is left of four to the first; added pairwise.
    """
    a, b, c, e = 0.0, 0.0, 0.0, 0.0
    j = 0
    while j + 4 <= target.shape[1]:
        a += np.float64(target[at, j]) * np.float64(target[at, j])
        b += np.float64(target[at, j + 1]) * np.float64(target[at, j + 1])
        c += np.float64(target[at, j + 2]) * np.float64(target[at, j + 2])
        e += np.float64(target[at, j + 3]) * np.float64(target[at, j + 3])
        j += 4
    while j < target.shape[1]:
        a += np.float64(target[at, j]) * np.float64(target[at, j])
        j += 1
    return (a + b) + (c + e)


@kernel
def sparse_square(indices, values, start, stop, dims):
    """Return the same to the bit of a row of `dims` columns that is not spread out."""
    a, b, c, e = 0.0, 0.0, 0.0, 0.0
    for i in range(start, stop):
        term = np.float64(values[i]) * np.float64(values[i])
        turn = indices[i] & 3 if indices[i] < dims & ~3 else 0
        if turn == 0:
            a += term
        elif turn == 1:
            b += term
        elif turn == 2:
            c += term
        else:
            e += term
    return (a + b) + (c + e)


@part
def spread(indices, values, start, stop, target):
    """Write stored values start to stop into row 0 of `target` (1, d) float32, zeros before."""
    for i in range(start, stop):
        target[0, indices[i]] = values[i]


@part
def clear(indices, start, stop, target):
    """Make zeros again of what `spread` wrote."""
    for i in range(start, stop):
        target[0, indices[i]] = np.float32(0)


@part
def mark(indices, start, stop, marks):
    """Set the bits of columns start to stop in `marks`: see `marked_dot`."""
    for i in range(start, stop):
        marks[indices[i] >> 6] |= np.uint64(1) << np.uint64(indices[i] & 63)


@part
def unmark(indices, start, stop, marks):
    """Clear the bits again."""
    for i in range(start, stop):
        marks[indices[i] >> 6] = np.uint64(0)
