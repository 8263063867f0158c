"""The baseline: greedy over all points, in the running-product form.

On unit vectors the step argmin L d(q,r) - w sum over S of d(r,s) is argmax r . (L q - w sum of S),
with w = 2 (1 - L) / (k - 1) for `marginal` and w = (1 - L) / |S| for `corrected`. So a step is one
pass over the points with one vector, no sum is kept per point and nothing is gathered: k passes at
the speed of memory. Compiled with the flags of the product's own kernels, dense points with their
dot product. (The product's `exact` search with both limits at 0 sorts all points by distance first,
which makes it the weaker baseline.)

Sparse points have a second form, by columns: after the first pass a step adds up the products of
the last pick alone, from the lists of the points that hold its words. No engine for dense vectors
could do that; it is printed because it is the fastest exhaustive greedy that we know of.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.vector_sums import row_dot
from divgrpc.types import FloatArray, IntArray, Variant

Offsets = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
# Where each row or column begins, what it holds, and how much of it.
Lists = tuple[Offsets, Numbers, FloatArray]


@kernel
def _weight(marginal: bool, diversity: float, step: int, k: int) -> np.float32:
    if step == 0:
        return np.float32(0)
    return np.float32(2 * diversity / (k - 1) if marginal else diversity / step)


@kernel
def _among(picked: IntArray, count: int, row: int) -> bool:
    found = False
    for i in range(count):
        found |= picked[i] == row
    return found


@kernel
def _pick(vectors: FloatArray, towards: FloatArray, picked: IntArray, count: int) -> int:
    """Return the row with the largest product that is not among picked[:count]."""
    best, most = -1, np.float32(-np.inf)
    for row in range(vectors.shape[0]):
        value = row_dot(vectors, row, towards, 0)
        if value > most and not _among(picked, count, row):
            best, most = row, value
    return best


@kernel
def products_dense(vectors: FloatArray, query: FloatArray, products: FloatArray) -> None:
    for row in range(vectors.shape[0]):
        products[row] = row_dot(vectors, row, query, 0)


@allocating
def greedy_dense(
    vectors: FloatArray, query: FloatArray, diversity: float, marginal: bool, picked: IntArray
) -> None:
    towards, total = np.empty_like(query), np.zeros_like(query)
    for step in range(picked.shape[0]):
        weight = _weight(marginal, diversity, step, picked.shape[0])
        for i in range(vectors.shape[1]):
            towards[0, i] = np.float32(1 - diversity) * query[0, i] - weight * total[0, i]
        row = _pick(vectors, towards, picked, step)
        picked[step] = row
        for i in range(vectors.shape[1]):
            total[0, i] += vectors[row, i]


@allocating
def mmr_dense(vectors: FloatArray, query: FloatArray, diversity: float, picked: IntArray) -> None:
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


@kernel
def _sparse_dot(
    indices: Numbers, values: FloatArray, start: int, stop: int, target: FloatArray
) -> np.float32:
    """Return the product of a sparse row and a dense one in four sums: one waits for itself."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    i = start
    while i + 4 <= stop:
        a += values[i] * target[indices[i]]
        b += values[i + 1] * target[indices[i + 1]]
        c += values[i + 2] * target[indices[i + 2]]
        d += values[i + 3] * target[indices[i + 3]]
        i += 4
    while i < stop:
        a += values[i] * target[indices[i]]
        i += 1
    return (a + b) + (c + d)


@kernel
def products_by_rows(rows: Lists, query: FloatArray, products: FloatArray) -> None:
    indptr, indices, values = rows
    for row in range(products.shape[0]):
        products[row] = _sparse_dot(indices, values, indptr[row], indptr[row + 1], query)


@allocating
def greedy_by_rows(
    rows: Lists, query: FloatArray, diversity: float, marginal: bool, picked: IntArray
) -> None:
    indptr, indices, values = rows
    towards, total = np.empty_like(query), np.zeros_like(query)
    for step in range(picked.shape[0]):
        weight = _weight(marginal, diversity, step, picked.shape[0])
        for i in range(query.shape[0]):
            towards[i] = np.float32(1 - diversity) * query[i] - weight * total[i]
        best, most = -1, np.float32(-np.inf)
        for row in range(indptr.shape[0] - 1):
            value = _sparse_dot(indices, values, indptr[row], indptr[row + 1], towards)
            if value > most and not _among(picked, step, row):
                best, most = row, value
        picked[step] = best
        for i in range(indptr[best], indptr[best + 1]):
            total[indices[i]] += values[i]


@kernel
def add_products(both: tuple[Lists, Lists], row: int, products: FloatArray) -> None:
    """Add the products of one point with all, from the lists of those that hold its words."""
    (indptr, indices, values), (starts, holders, held) = both
    for i in range(indptr[row], indptr[row + 1]):
        for at in range(starts[indices[i]], starts[indices[i] + 1]):
            products[holders[at]] += values[i] * held[at]


@allocating
def greedy_by_columns(
    both: tuple[Lists, Lists],
    query: FloatArray,
    diversity: float,
    marginal: bool,
    picked: IntArray,
) -> None:
    near = np.empty(both[0][0].shape[0] - 1, np.float32)
    products_by_rows(both[0], query, near)
    near *= np.float32(1 - diversity)
    alike = np.zeros_like(near)
    for step in range(picked.shape[0]):
        weight = _weight(marginal, diversity, step, picked.shape[0])
        best, most = -1, np.float32(-np.inf)
        for row in range(near.shape[0]):
            value = near[row] - weight * alike[row]
            if value > most and not _among(picked, step, row):
                best, most = row, value
        picked[step] = best
        add_products(both, best, alike)


@dataclass(frozen=True, eq=False)
class Everything:
    """All points, dense (n, d) float32 or sparse, as the kernels take them; unit rows."""

    points: Any
    rows: Lists | None = None
    columns: Lists | None = None

    @classmethod
    def of(cls, points: Any) -> Self:  # noqa: ANN401  # scipy has no types
        """Take an array, or a csr_array of scipy's."""
        if not sparse.issparse(points):
            return cls(np.ascontiguousarray(points, np.float32))
        return cls(points, _parts(points), _parts(points.tocsc()))

    def greedy(
        self,
        query: FloatArray,
        k: int,
        diversity: float,
        variant: Variant = "marginal",
        *,
        by_columns: bool = False,
    ) -> IntArray:
        """Return the rows of the k picks (k,) for one unit query (d,), in order; k at least 2."""
        picked = np.empty(k, np.int64)
        marginal = variant == "marginal"
        if self.rows is None or self.columns is None:
            greedy_dense(self.points, query[None], diversity, marginal, picked)
        elif by_columns:
            greedy_by_columns((self.rows, self.columns), query, diversity, marginal, picked)
        else:
            greedy_by_rows(self.rows, query, diversity, marginal, picked)
        return picked

    def mmr(self, query: FloatArray, k: int, diversity: float) -> IntArray:
        """Return the rows (k,) that MMR picks of dense points for one unit query (d,), in order."""
        picked = np.empty(k, np.int64)
        mmr_dense(self.points, query[None], diversity, picked)
        return picked

    def products(self, query: FloatArray) -> FloatArray:
        """Return the product (n,) of every point and one query (d,)."""
        products = np.empty(self.points.shape[0], np.float32)
        if self.rows is None:
            products_dense(self.points, query[None], products)
        else:
            products_by_rows(self.rows, query, products)
        return products

    def products_with(self, row: int) -> FloatArray:
        """Return the product (n,) of every point and one of them."""
        if self.rows is None or self.columns is None:
            return self.products(self.points[row])
        products = np.zeros(self.points.shape[0], np.float32)
        add_products((self.rows, self.columns), row, products)
        return products


def _parts(matrix: Any) -> Lists:  # noqa: ANN401  # scipy has no types
    return (
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.float32),
    )
