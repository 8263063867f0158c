"""Sparse rows against one dense vector: sums in float64, in a fixed order.

Products of two float32 are exact in float64, so a squared distance from |x|^2 + |y|^2 - 2 x.y is
right to some 1e-16: near-duplicates keep their order, which float32 would lose.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel, part

# Of sums of some ten thousand float64 products, as a share of them.
_ROUNDING = 1e-14


@kernel
def sparse_dot(indices, values, start, stop, target, at):
    """Return the float64 dot product of stored values start to stop and row `at` of `target`.

    `indices` int32 and `values` float32; `target` (m, d) float32. Four sums, value i to sum i % 4,
    added pairwise.
    """
    a, b, c, e = 0.0, 0.0, 0.0, 0.0
    i = start
    while i + 4 <= stop:
        a += np.float64(values[i]) * np.float64(target[at, indices[i]])
        b += np.float64(values[i + 1]) * np.float64(target[at, indices[i + 1]])
        c += np.float64(values[i + 2]) * np.float64(target[at, indices[i + 2]])
        e += np.float64(values[i + 3]) * np.float64(target[at, indices[i + 3]])
        i += 4
    while i < stop:
        a += np.float64(values[i]) * np.float64(target[at, indices[i]])
        i += 1
    return (a + b) + (c + e)


@kernel
def marked_dot(indices, values, start, stop, target, marks):
    """Return the same to the bit, of row 0 of a `target` (1, d) that is zero where none is marked.

    `marks` (ceil(d / 64),) uint64 has a bit for each column. Of very many columns they stay in the
    processor's cache, where the target does not, and nearly all of a point's are passed over.
    """
    a, b, c, e = 0.0, 0.0, 0.0, 0.0
    in_fours = start + ((stop - start) & ~3)
    for i in range(start, stop):
        column = indices[i]
        if marks[column >> 6] >> np.uint64(column & 63) & np.uint64(1):
            term = np.float64(values[i]) * np.float64(target[0, column])
            turn = (i - start) & 3 if i < in_fours else 0
            if turn == 0:
                a += term
            elif turn == 1:
                b += term
            elif turn == 2:
                c += term
            else:
                e += term
    return (a + b) + (c + e)


@kernel
def sparse_distance(points, row, target, at, square, product):
    """Return how far a sparse point is from row `at` of `target`; as in `scoring.score_rows`."""
    indptr, indices, values, squares = points[1], points[2], points[3], points[4]
    dot = sparse_dot(indices, values, indptr[row], indptr[row + 1], target, at)
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


@part
def link(points, rows, count, links):
    """Put the stored values of rows[:count] into lists by column; returns whether they fit.

    `links`: heads (d,) int32, all -1 before; following and owners (m,) int32; weights (m,) float32.
    A column's list begins at its head and goes on by `following` until -1; an entry is of candidate
    owners[entry]. Where one picked row meets all candidates, its columns' lists are a fraction of
    their values.
    """
    _, indptr, indices, values, _ = points
    heads, following, owners, weights = links
    total = 0
    for i in range(count):
        total += indptr[rows[i] + 1] - indptr[rows[i]]
    if total > owners.shape[0]:
        return False
    entry = 0
    for i in range(count):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            column = indices[at]
            following[entry], heads[column] = heads[column], entry
            owners[entry], weights[entry] = i, values[at]
            entry += 1
    return True


@part
def unlink(points, rows, count, heads):
    """Leave all heads at -1 again."""
    indptr, indices = points[1], points[2]
    for i in range(count):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            heads[indices[at]] = -1


@part
def linked_dots(points, row, count, links, dots):
    """Write the dot products of one row with all linked candidates into `dots` (count,) float64.

    Each is a sum over the row's columns, first to last.
    """
    _, indptr, indices, values, _ = points
    heads, following, owners, weights = links
    dots[:count] = 0.0
    for at in range(indptr[row], indptr[row + 1]):
        value = np.float64(values[at])
        entry = heads[indices[at]]
        while entry >= 0:
            dots[owners[entry]] += value * np.float64(weights[entry])
            entry = following[entry]


@kernel
def dense_square(target, at):
    """Return the float64 squared length of a dense row: four sums, as in `sparse_dot`."""
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
