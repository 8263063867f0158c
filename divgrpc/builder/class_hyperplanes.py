"""Dense queries for sparse points, made from the points, so that a build can tune for them.

The queries of sparse points are points, or models learned from many points. In the paper they are
hyperplanes that separate one category from the rest. Such a hyperplane is nothing like a point, so
a search that finds the neighbours of points may miss its neighbours.

If the points have categories, ridge regression learns some hyperplanes, each from half of a sample.
It solves the dual problem, because there are more columns than points (Saunders, Gammerman and Vovk
1998). If they have none, the queries are means of a few points from broad groups.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import linalg

from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows, draw_numbers, mean_width, take

QUERIES_MAX: Final = 64
# The sample: at most 2,048 points, and at most 2**22 stored numbers.
_SAMPLE_ROWS_MAX: Final = 2_048
_SAMPLE_NUMBERS_MAX: Final = 1 << 22
# All hyperplanes together hold at most 2**24 numbers.
_QUERY_NUMBERS_MAX: Final = 1 << 24
# A category or group with fewer points in the sample makes no query.
_CLASS_ROWS_MIN: Final = 10
# Up to 8 random halves of the sample are drawn; each teaches up to 16 hyperplanes.
_HALVES_MAX: Final = 8
_CLASSES_PER_HALF: Final = 16
# One draw divides the sample into 4 groups. Narrower groups would not do: their means are easier to
# find than points, so the measured recall would be too high.
_GROUPS_PER_DRAW: Final = 4
_MEAN_ROWS_MAX: Final = 30
# Columns that more than 1/8 of the points hold are multiplied as dense columns, 2,048 at a time.
_COMMON_COLUMN_SHARE: Final = 1 / 8
_DENSE_COLUMNS_PER_STEP: Final = 2_048


def dense_queries(
    points: SparseRows, categories: npt.NDArray[np.integer] | None, seed: int
) -> tuple[FloatArray, str]:
    """Return dense queries (m, d) float32 for sparse `points` (n, d), and words that name them.

    With `categories` (n,) they are `class_hyperplanes`. Without, or if no category can be learned,
    they are `group_means`.
    """
    if categories is not None:
        queries = class_hyperplanes(points, categories, seed)
        if len(queries):
            return queries, "hyperplanes that tell categories apart"
    return group_means(points, seed), "means of points from broad groups"


def class_hyperplanes(
    points: SparseRows, categories: npt.NDArray[np.integer], seed: int
) -> FloatArray:
    """Return unit normals (m, d) float32; each separates one category of `points` from the rest.

    `points` are (n, d), `categories` (n,), -1 for none. There are at most `QUERIES_MAX` normals,
    and at most 2**24 numbers in all of them. There are none if no category has ten points in the
    sample, or if every category leaves fewer than ten to the others.
    """
    rng = np.random.default_rng((seed, 2))
    rows = _sample_rows(points, rng)
    classes = categories[rows]
    names, sizes = np.unique(classes[classes >= 0], return_counts=True)
    learnable = names[(sizes >= _CLASS_ROWS_MIN) & (len(rows) - sizes >= _CLASS_ROWS_MIN)]
    parts = [np.empty((0, points.dims), np.float32)]
    room = _query_count(points)
    if not len(learnable):
        return parts[0]
    sample = _scaled(take(points, rows))
    products = inner_products(sample)
    for _ in range(_HALVES_MAX):
        half = np.sort(rng.permutation(len(rows))[: -(-len(rows) // 2)])
        part = rng.permutation(learnable)[: min(_CLASSES_PER_HALF, room)]
        targets = np.where(classes[half, np.newaxis] == part, 1.0, -1.0)
        # A half rarely has no point of a category, or none of the others; then nothing is learned.
        targets = targets[:, np.abs(targets.sum(axis=0)) < len(half)]
        parts.append(normals(sample[half], products[np.ix_(half, half)], targets))
        room -= len(part)
        if not room:
            break
    return np.concatenate(parts)


def group_means(points: SparseRows, seed: int) -> FloatArray:
    """Return unit means (m, d) float32, each of at most 30 `points` (n, d) from one group.

    Four random points lead the groups of one draw. A point belongs to the leader with which it has
    the greatest cosine. There are at most `QUERIES_MAX` means, and at most 2**24 numbers in all of
    them. There are none if no group has ten points.
    """
    rng = np.random.default_rng((seed, 6))
    sample = _scaled(take(points, _sample_rows(points, rng))).matrix
    lengths = np.sqrt(np.asarray(sample.multiply(sample).sum(axis=1)).ravel())
    sample, lengths = sample[lengths > 0], lengths[lengths > 0]
    means: list[npt.NDArray[np.floating]] = []
    for _ in range(-(-_query_count(points) // _GROUPS_PER_DRAW)):
        if sample.shape[0] < _GROUPS_PER_DRAW * _CLASS_ROWS_MIN:
            break
        leaders = rng.choice(sample.shape[0], _GROUPS_PER_DRAW, replace=False)
        products = (sample @ sample[leaders].T).toarray() / lengths[leaders]
        groups = products.argmax(axis=1)
        for group in range(_GROUPS_PER_DRAW):
            members = rng.permutation(np.flatnonzero(groups == group))[:_MEAN_ROWS_MAX]
            if len(members) >= _CLASS_ROWS_MIN:
                means.append(np.asarray(sample[members].mean(axis=0)).ravel())
    stack = np.array(means[: _query_count(points)], np.float32)
    return _unit(stack.reshape(-1, points.dims))


def _sample_rows(points: SparseRows, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw the rows of a sample of the points, ascending."""
    count = min(_SAMPLE_ROWS_MAX, _SAMPLE_NUMBERS_MAX // mean_width(points))
    return draw_numbers(len(points), count, rng)


def _query_count(points: SparseRows) -> int:
    """Return the greatest number of queries."""
    return min(QUERIES_MAX, max(1, _QUERY_NUMBERS_MAX // points.dims))


def _unit(rows: FloatArray) -> FloatArray:
    """Return `rows` (m, d) scaled to length 1, without rows of zeros, which have no direction."""
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows[sizes[:, 0] > 0]
    rows /= sizes[sizes[:, 0] > 0]
    return rows


def _scaled(rows: Rows) -> SparseRows:
    """Divide sparse rows by their largest number: squares do not vanish, normals do not change."""
    assert isinstance(rows, SparseRows)  # noqa: S101  # `take` keeps the kind of its rows
    largest = np.abs(rows.values).max(initial=0)
    return replace(rows, values=rows.values / (largest or np.float32(1)))


def inner_products(points: SparseRows) -> npt.NDArray[np.float64]:
    """Return the inner products (n, n) float64 of all pairs of `points` (n, d).

    A sparse product takes a step for every two rows that share a column. Common columns are
    therefore multiplied as dense ones.
    """
    matrix = points.matrix
    holders = np.bincount(points.indices, minlength=points.dims)
    common = holders > len(points) * _COMMON_COLUMN_SHARE
    rare = matrix.copy()
    rare.data[common[rare.indices]] = 0
    rare.eliminate_zeros()
    products: npt.NDArray[np.float64] = (rare @ rare.T).toarray().astype(np.float64)
    columns = np.flatnonzero(common)
    by_column = matrix.tocsc()
    for start in range(0, len(columns), _DENSE_COLUMNS_PER_STEP):
        part = by_column[:, columns[start : start + _DENSE_COLUMNS_PER_STEP]].toarray()
        products += part @ part.T
    return products


def normals(
    points: SparseRows, products: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]
) -> FloatArray:
    """Return unit normals (m, d) float32 that ridge regression learns for `targets` (n, m).

    A target is 1 for the points of a category and -1 for the others. `products` (n, n) are the
    inner products of `points` (n, d). The penalty is the mean squared length. There is no bias,
    because it would not change the order of the points. If all points are zeros there are no
    normals.
    """
    penalty = np.trace(products) / len(points) or 1.0
    weights = linalg.solve(products + penalty * np.eye(len(points)), targets, assume_a="pos")
    return _unit(np.ascontiguousarray((points.matrix.T @ weights.astype(np.float32)).T))
