"""The exhaustive baselines: greedy and MMR over all points, one query at a time.

On unit vectors the step argmin L d(q,r) - w sum over S of d(r,s) is argmax r . (L q - w sum of S),
with w = 2 (1 - L) / (k - 1) for the variant `marginal`. A step is one pass over the points with one
vector: k passes at the speed of memory. Kernels have the flags of the product's. (The product's
`exact` search with both limits at 0 sorts all points by distance first, which makes it the weaker
baseline.)
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.vector_sums import row_dot
from divgrpc.types import FloatArray, IntArray


@kernel
def _among(picked: IntArray, count: int, row: int) -> bool:
    found = False
    for i in range(count):
        found |= picked[i] == row
    return found


@kernel
def _pick(vectors: FloatArray, target: FloatArray, picked: IntArray, count: int) -> int:
    """Return the row with the largest product that is not among picked[:count]."""
    best, most = -1, np.float32(-np.inf)
    for row in range(vectors.shape[0]):
        value = row_dot(vectors, row, target, 0)
        if value > most and not _among(picked, count, row):
            best, most = row, value
    return best


@allocating
def greedy_kernel(
    vectors: FloatArray, query: FloatArray, diversity: float, picked: IntArray
) -> None:
    target, total = np.empty_like(query), np.zeros_like(query)
    weight = np.float32(2 * diversity / (picked.shape[0] - 1))
    for step in range(picked.shape[0]):
        for i in range(vectors.shape[1]):
            target[0, i] = np.float32(1 - diversity) * query[0, i] - weight * total[0, i]
        row = _pick(vectors, target, picked, step)
        picked[step] = row
        for i in range(vectors.shape[1]):
            total[0, i] += vectors[row, i]


@allocating
def mmr_kernel(vectors: FloatArray, query: FloatArray, diversity: float, picked: IntArray) -> None:
    near = np.empty(vectors.shape[0], np.float32)
    closest = np.full(vectors.shape[0], -np.inf, np.float32)
    relevance, penalty = np.float32(1 - diversity), np.float32(diversity)
    for step in range(picked.shape[0]):
        best, most = -1, np.float32(-np.inf)
        for row in range(vectors.shape[0]):
            if step == 0:
                near[row] = value = relevance * row_dot(vectors, row, query, 0)
            else:
                alike = row_dot(vectors, row, vectors, picked[step - 1])
                closest[row] = max(closest[row], alike)
                value = near[row] - penalty * closest[row]
            if value > most and not _among(picked, step, row):
                best, most = row, value
        picked[step] = best


def greedy(base: FloatArray, query: FloatArray, k: int, diversity: float) -> IntArray:
    """Return the rows of k picks (k,) of unit rows (n, d) for a unit query (d,); k at least 2."""
    picked = np.empty(k, np.int64)
    greedy_kernel(base, query[None], diversity, picked)
    return picked


def mmr(base: FloatArray, query: FloatArray, k: int, diversity: float) -> IntArray:
    """Return the rows (k,) that MMR picks of unit rows (n, d) for a unit query (d,), in order."""
    picked = np.empty(k, np.int64)
    mmr_kernel(base, query[None], diversity, picked)
    return picked
