"""A sample of the dense queries that sparse points get, made from the points themselves.

Sparse points are asked with points like them, or with what was learned from many: the paper's own
queries are hyperplanes that tell a category from the rest. Those are nothing like points, so a
search that finds the neighbours of points may lose theirs, and the other way round. Where points
have categories, some hyperplanes are learned by ridge regression, in its dual form for there are
more columns than points (Saunders, Gammerman and Vovk 1998): each from a half of a sample. Where
they have none, the queries are means of a few points from broad groups.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import linalg

from divgrpc.types import FloatArray
from divgrpc.vectors import Rows, SparseRows, mean_width, take

COUNT: Final = 64
_POINTS: Final = 2_048
# Numbers that the sample stores, and that all hyperplanes have.
_SAMPLED_NUMBERS: Final = 1 << 22
_LEARNED_NUMBERS: Final = 1 << 24
# A category of fewer points of the sample is not asked for: half of them say too little.
_FEWEST: Final = 10
_HALVES: Final = 8
_AT_ONCE: Final = 16
# Groups that a draw divides the sample into, and points of a mean at most. Means of narrow groups
# are found more easily than points are, and foretell too much.
_GROUPS: Final = 4
_MEAN_OF: Final = 30
# A column that more of the points hold is common.
_COMMON: Final = 1 / 8
_COLUMNS_AT_ONCE: Final = 2_048


def dense_queries(
    points: SparseRows, categories: npt.NDArray[np.integer] | None, seed: int
) -> tuple[FloatArray, str]:
    """Return `separators` of the categories (n,), or `group_means` without, and what they are."""
    if categories is not None:
        learned = separators(points, categories, seed)
        if len(learned):
            return learned, "hyperplanes that tell categories apart"
    return group_means(points, seed), "means of points from broad groups"


def separators(points: SparseRows, categories: npt.NDArray[np.integer], seed: int) -> FloatArray:
    """Return unit normals (m, d) float32, each of a category of `points` (n, d) against the rest.

    `categories` (n,) are -1 for none. m is at most `COUNT`, less where there are few categories or
    so many columns that the normals would hold more than 2^24 numbers; 0 where no category can be
    told from others.
    """
    rng = np.random.default_rng((seed, 2))
    rows = _drawn(points, rng)
    classes = categories[rows]
    known, sizes = np.unique(classes[classes >= 0], return_counts=True)
    asked = known[(sizes >= _FEWEST) & (len(rows) - sizes >= _FEWEST)]
    learned = [np.empty((0, points.dims), np.float32)]
    room = _room(points)
    if not len(asked):
        return learned[0]
    sample = _scaled(take(points, rows))
    products = inner_products(sample)
    for _ in range(_HALVES):
        half = np.sort(rng.permutation(len(rows))[: -(-len(rows) // 2)])
        chosen = rng.permutation(asked)[: min(_AT_ONCE, room)]
        targets = np.where(classes[half, np.newaxis] == chosen, 1.0, -1.0)
        # Of those that the half tells apart: rarely it has none of a category, or no others.
        targets = targets[:, np.abs(targets.sum(axis=0)) < len(half)]
        learned.append(normals(sample[half], products[np.ix_(half, half)], targets))
        room -= len(chosen)
        if not room:
            break
    return np.concatenate(learned)


def group_means(points: SparseRows, seed: int) -> FloatArray:
    """Return unit means (m, d) float32, each of at most 30 `points` (n, d) of one group.

    A group has the points whose cosine with one point is greater than with three others. m is at
    most `COUNT`, less where there are many columns or few points; 0 where no group has ten points.
    """
    rng = np.random.default_rng((seed, 6))
    sample = _scaled(take(points, _drawn(points, rng))).matrix
    lengths = np.sqrt(np.asarray(sample.multiply(sample).sum(axis=1)).ravel())
    sample = sample[lengths > 0]
    means: list[npt.NDArray[np.floating]] = []
    for _ in range(-(-_room(points) // _GROUPS)):
        if sample.shape[0] < _GROUPS * _FEWEST:
            break
        leaders = rng.choice(sample.shape[0], _GROUPS, replace=False)
        products = (sample @ sample[leaders].T).toarray() / lengths[lengths > 0][leaders]
        groups = products.argmax(axis=1)
        for group in range(_GROUPS):
            members = rng.permutation(np.flatnonzero(groups == group))[:_MEAN_OF]
            if len(members) >= _FEWEST:
                means.append(np.asarray(sample[members].mean(axis=0)).ravel())
    return _unit(np.array(means[: _room(points)], np.float32).reshape(-1, points.dims))


def _drawn(points: SparseRows, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the rows of a sample of the points, ascending."""
    most = min(_POINTS, _SAMPLED_NUMBERS // mean_width(points))
    return np.sort(rng.choice(len(points), min(most, len(points)), replace=False))


def _room(points: SparseRows) -> int:
    """Return how many queries there may be."""
    return min(COUNT, max(1, _LEARNED_NUMBERS // points.dims))


def _unit(rows: FloatArray) -> FloatArray:
    """Return rows (m, d) of length 1, without those that have no direction."""
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows[sizes[:, 0] > 0]
    rows /= sizes[sizes[:, 0] > 0]
    return rows


def _scaled(rows: Rows) -> SparseRows:
    """Return rows whose largest number is 1: no normal changes, and no square is too small."""
    assert isinstance(rows, SparseRows)  # noqa: S101  # what is taken of sparse points
    largest = np.abs(rows.values).max(initial=0)
    return replace(rows, values=rows.values / (largest or np.float32(1)))


def inner_products(points: SparseRows) -> npt.NDArray[np.float64]:
    """Return the products (n, n) float64 of `points` (n, d) with one another.

    A sparse product takes a step for every two rows that share a column, so columns that many hold
    are multiplied as dense ones.
    """
    matrix = points.matrix
    holders = np.bincount(points.indices, minlength=points.dims)
    common = holders > len(points) * _COMMON
    rare = matrix.copy()
    rare.data[common[rare.indices]] = 0
    rare.eliminate_zeros()
    products: npt.NDArray[np.float64] = (rare @ rare.T).toarray().astype(np.float64)
    columns = np.flatnonzero(common)
    by_column = matrix.tocsc()
    for start in range(0, len(columns), _COLUMNS_AT_ONCE):
        part = by_column[:, columns[start : start + _COLUMNS_AT_ONCE]].toarray()
        products += part @ part.T
    return products


def normals(
    points: SparseRows, products: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]
) -> FloatArray:
    """Return unit normals (m, d) float32 that ridge regression learns of `targets` (n, m), 1 or -1.

    `products` (n, n) are those of `points` (n, d) with one another; where all points are zeros
    there are no normals. The penalty is the mean square length. The bias is 0: it changes no order.
    """
    penalty = np.trace(products) / len(points) or 1.0
    weights = linalg.solve(products + penalty * np.eye(len(points)), targets, assume_a="pos")
    # Of four million columns a few normals are many megabytes.
    # Nothing is learned of points at the origin.
    return _unit(np.ascontiguousarray((points.matrix.T @ weights.astype(np.float32)).T))
