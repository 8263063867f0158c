"""Hyperplanes learned from the points themselves: a sample of the dense queries sparse points get.

Sparse points are asked with points like them, or with what was learned from many: the paper's own
queries are hyperplanes that tell a category from the rest. Those are nothing like points, so a
search that finds the neighbours of points may lose theirs, and the other way round. Where points
have categories, some hyperplanes are learned by ridge regression, in its dual form for there are
more columns than points (Saunders, Gammerman and Vovk 1998): each from a half of a sample.
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
# A column that more of the points hold is common.
_COMMON: Final = 1 / 8
_COLUMNS_AT_ONCE: Final = 2_048


def separators(points: SparseRows, categories: npt.NDArray[np.integer], seed: int) -> FloatArray:
    """Return unit normals (m, d) float32, each of a category of `points` (n, d) against the rest.

    `categories` (n,) are -1 for none. m is at most `COUNT`, less where there are few categories or
    so many columns that the normals would hold more than 2^24 numbers; 0 where no category can be
    told from others.
    """
    rng = np.random.default_rng((seed, 2))
    most = min(_POINTS, _SAMPLED_NUMBERS // mean_width(points))
    rows = np.sort(rng.choice(len(points), min(most, len(points)), replace=False))
    classes = categories[rows]
    known, sizes = np.unique(classes[classes >= 0], return_counts=True)
    asked = known[(sizes >= _FEWEST) & (len(rows) - sizes >= _FEWEST)]
    learned = [np.empty((0, points.dims), np.float32)]
    room = min(COUNT, max(1, _LEARNED_NUMBERS // points.dims))
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
    found: FloatArray = np.ascontiguousarray((points.matrix.T @ weights.astype(np.float32)).T)
    sizes = np.linalg.norm(found, axis=1, keepdims=True)
    # Nothing is learned of points at the origin.
    found = found[sizes[:, 0] > 0]
    found /= sizes[sizes[:, 0] > 0]
    return found
