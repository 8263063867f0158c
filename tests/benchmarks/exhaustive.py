"""The baseline: marginal greedy over all points, in the running-product form.

On unit vectors the step argmin L d(q,r) - w sum over S of d(r,s), w = 2 (1 - L) / (k - 1), is
argmax r . (L q - w sum of S). So a step is one pass over the points with one vector, no sum is kept
per point and nothing is gathered: k passes at the speed of memory. Compiled with the flags and the
dot product of the product's own kernels. (The product's `exact` search with both limits at 0 sorts
all points by distance first, which makes it the weaker baseline.)
"""

import numpy as np

from divgrpc.kernels.compiling import kernel
from divgrpc.kernels.lanes import row_dot
from divgrpc.types import FloatArray, IntArray


@kernel
def _pick(vectors: FloatArray, towards: FloatArray, picked: IntArray, count: int) -> int:
    """Return the row with the largest product that is not among picked[:count]."""
    best, most = -1, np.float32(-np.inf)
    for row in range(vectors.shape[0]):
        value = row_dot(vectors, row, towards, 0)
        if value > most:
            new = True
            for i in range(count):
                new = new and picked[i] != row
            if new:
                best, most = row, value
    return best


@kernel
def exhaustive_greedy(
    vectors: FloatArray, queries: FloatArray, query: int, diversity: float, picked: IntArray
) -> None:
    """Write the rows of the picks for one query row into `picked` (k,) int64, k at least 2."""
    k = picked.shape[0]
    weight = np.float32(2 * diversity / (k - 1))
    towards = np.empty((1, vectors.shape[1]), np.float32)
    towards[0] = queries[query] * np.float32(1 - diversity)
    for step in range(k):
        row = _pick(vectors, towards, picked, step)
        picked[step] = row
        for i in range(vectors.shape[1]):
            towards[0, i] -= weight * vectors[row, i]
