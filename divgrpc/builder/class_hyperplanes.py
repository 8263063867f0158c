"""Makes dense queries from sparse points, so that a build can tune searches for such queries.

Users query sparse points with other points, or with linear models learned from many points. In the
paper the queries are normals of hyperplanes that separate one category from the rest. Such a dense
normal is unlike any point, so a search that is tuned with points as queries may miss the points
nearest to a normal.

If the points have categories, ridge regression learns such normals, each from half of a sample. The
dual problem is solved, because it is smaller when there are more columns than points (Saunders,
Gammerman and Vovk 1998). Without suitable categories, queries are means of points from broad
groups.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.build_rows import SparseBuildRows, mean_width, take
from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows, draw_numbers

QUERIES_MAX: Final = 64
# The sample has at most 2,048 points that store at most 2**22 values.
_SAMPLE_ROWS_MAX: Final = 2_048
_SAMPLE_NUMBERS_MAX: Final = 1 << 22
# All queries together have at most 2**24 values.
_QUERY_NUMBERS_MAX: Final = 1 << 24
# A query is made from a category or group only if it has at least this many points in the sample.
_CLASS_ROWS_MIN: Final = 10
# Up to 8 random halves of the sample are drawn. Each half gives up to 16 hyperplanes.
_HALVES_MAX: Final = 8
_CLASSES_PER_HALF: Final = 16
# One draw divides the sample into 4 broad groups. With narrower groups, the points nearest to a
# mean would be easier to find than those nearest to a point, so the measured recall would be too
# high.
_GROUPS_PER_DRAW: Final = 4
_MEAN_ROWS_MAX: Final = 30
# Columns with a value in more than 1/8 of the points are multiplied as dense columns, at most 2,048
# at a time.
_COMMON_COLUMN_SHARE: Final = 1 / 8
_DENSE_COLUMNS_PER_STEP: Final = 2_048


def dense_queries(
    points: SparseBuildRows, categories: npt.NDArray[np.integer] | None, seed: int
) -> tuple[FloatArray, str]:
    """Return dense queries (m, d) float32 for sparse `points` (n, d), and text describing them.

    If `categories` (n,) are given, the queries are `class_hyperplanes`. If `categories` is None, or
    if no normal can be learned from them, the queries are `group_means`.
    """
    if categories is not None:
        queries = class_hyperplanes(points, categories, seed)
        if len(queries):
            return queries, "hyperplanes that tell categories apart"
    return group_means(points, seed), "means of points from broad groups"


def class_hyperplanes(
    points: SparseBuildRows, categories: npt.NDArray[np.integer], seed: int
) -> FloatArray:
    """Return unit normals (m, d) float32; each separates one category of `points` from the rest.

    `points` are (n, d). `categories` (n,) has -1 for points without a category. At most
    `QUERIES_MAX` normals with at most 2**24 values in all are returned. A category is used only if
    at least ten points of a sample belong to it and ten do not. Without such a category the result
    is empty.
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
        # Drop a category with all points of this half of the sample, or with none. Both are rare.
        targets = targets[:, np.abs(targets.sum(axis=0)) < len(half)]
        parts.append(normals(sample[half], products[np.ix_(half, half)], targets))
        room -= len(part)
        if not room:
            break
    return np.concatenate(parts)


def group_means(points: SparseBuildRows, seed: int) -> FloatArray:
    """Return m means (m, d) float32 of at most 30 `points` (n, d) each, scaled to unit length.

    Each draw picks four random points of a sample as leaders. Every nonzero point of the sample
    joins the leader with which it has the largest cosine. So a draw gives four groups. At most
    `QUERIES_MAX` means with at most 2**24 values in all are returned. Groups of fewer than ten
    points are left out, so the result may be empty.
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


def _sample_rows(points: SparseBuildRows, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw the row numbers of a sample of the points, in ascending order."""
    count = min(_SAMPLE_ROWS_MAX, _SAMPLE_NUMBERS_MAX // mean_width(points))
    return draw_numbers(len(points), count, rng)


def _query_count(points: SparseBuildRows) -> int:
    """Return the maximum number of queries."""
    return min(QUERIES_MAX, max(1, _QUERY_NUMBERS_MAX // points.dims))


def _unit(rows: FloatArray) -> FloatArray:
    """Scale `rows` (m, d) to length 1, and drop rows of zeros, which have no direction."""
    sizes = np.linalg.norm(rows, axis=1)
    mask = sizes > 0
    return np.asarray(rows[mask] / sizes[mask, np.newaxis])


def _scaled(rows: Rows) -> SparseRows:
    """Divide all values by the largest absolute value, so squares of tiny data do not underflow.

    The directions of normals and means stay the same.
    """
    assert isinstance(rows, SparseRows)  # noqa: S101  # `take` keeps the kind of its rows
    largest = np.abs(rows.values).max(initial=0)
    return replace(rows, values=rows.values / (largest or np.float32(1)))


def inner_products(points: SparseRows) -> npt.NDArray[np.float64]:
    """Return the inner products (n, n) float64 of all pairs of `points` (n, d).

    A sparse product takes time for each pair of points that share a column. Columns that many
    points share are therefore multiplied as dense columns.
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

    A target is 1 for the points of a category and -1 for all other points. `products` (n, n) are
    the inner products of `points` (n, d). The penalty is the mean squared length of the points. No
    bias is fitted, because it would not change the ranking. All-zero points give an empty result.
    """
    # Only builds need this module, and each worker would spend a tenth of its start on it.
    from scipy.linalg import solve

    penalty = np.trace(products) / len(points) or 1.0
    weights = solve(products + penalty * np.eye(len(points)), targets, assume_a="pos")
    return _unit(np.ascontiguousarray((points.matrix.T @ weights.astype(np.float32)).T))
