"""Sparse rows against one dense vector: sums in float64, in a fixed order.

Products of two float32 are exact in float64, so a squared distance from |x|^2 + |y|^2 - 2 x.y is
right to some 1e-16: near-duplicates keep their order, which float32 would lose.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel


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
def sparse_distance(points, row, target, at, square, product):
    """Return how far a sparse point is from row `at` of `target`; as in `scoring.score_rows`."""
    indptr, indices, values, squares = points[1], points[2], points[3], points[4]
    dot = sparse_dot(indices, values, indptr[row], indptr[row + 1], target, at)
    if product:
        return np.float32(-dot)
    return np.float32(max(0.0, squares[row] + square - 2.0 * dot))


@kernel
def dense_square(target, at):
    """Return the float64 squared length of a dense row, added first to last."""
    total = 0.0
    for j in range(target.shape[1]):
        total += np.float64(target[at, j]) * np.float64(target[at, j])
    return total


@kernel
def spread(indices, values, start, stop, target):
    """Write stored values start to stop into row 0 of `target` (1, d) float32, zeros before."""
    for i in range(start, stop):
        target[0, indices[i]] = values[i]


@kernel
def clear(indices, start, stop, target):
    """Make zeros again of what `spread` wrote."""
    for i in range(start, stop):
        target[0, indices[i]] = np.float32(0)
