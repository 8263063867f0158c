"""Hyperplanes learned from the points themselves: a sample of the dense queries sparse points get.

Sparse points are asked with points like them, or with what was learned from many: the paper's own
queries are hyperplanes that tell a category from the rest. Those are nothing like points, so a
search that finds the neighbours of points may lose theirs, and the other way round. Where points
have categories, some hyperplanes are learned by ridge regression, in its dual form for there are
more columns than points (Saunders, Gammerman and Vovk 1998): each from a half of a sample.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import linalg

from divgrpc.types import FloatArray
from divgrpc.vectors import SparseRows, mean_width, release_rows

COUNT: Final = 64
_POINTS: Final = 2_048
# Numbers that the sample stores, and that all hyperplanes have.
_SAMPLED_NUMBERS: Final = 1 << 22
_LEARNED_NUMBERS: Final = 1 << 24
# A category of fewer points of the sample is not asked for: half of them say too little.
_FEWEST: Final = 10
_HALVES: Final = 8
_AT_ONCE: Final = 16


def separators(points: SparseRows, categories: npt.NDArray[np.integer], seed: int) -> FloatArray:
    """Return unit normals (m, d) float32, each of a category of `points` (n, d) against the rest.

    `categories` (n,) are -1 for none. m is at most `COUNT`, less where there are few categories or
    so many columns that the normals would hold more than 2^24 numbers; 0 where no category can be
    told from others.
    """
    rng = np.random.default_rng((seed, 2))
    most = min(_POINTS, _SAMPLED_NUMBERS // mean_width(points))
    rows = np.sort(rng.choice(len(points), min(most, len(points)), replace=False))
    sample, classes = points[rows], categories[rows]
    release_rows(points)
    known, sizes = np.unique(classes[classes >= 0], return_counts=True)
    asked = known[(sizes >= _FEWEST) & (sizes < len(rows))]
    room = min(COUNT, max(1, _LEARNED_NUMBERS // points.dims))
    learned = [np.empty((0, points.dims), np.float32)]
    products = (sample @ sample.matrix.T).astype(np.float64)
    for _ in range(_HALVES if len(asked) else 0):
        half = np.sort(rng.permutation(len(rows))[: -(-len(rows) // 2)])
        chosen = rng.permutation(asked)[: min(_AT_ONCE, room)]
        told = np.where(classes[half, np.newaxis] == chosen, 1.0, -1.0)
        learned.append(normals(sample[half], products[np.ix_(half, half)], told))
        room -= len(chosen)
    return np.concatenate(learned)


def normals(
    points: SparseRows, products: npt.NDArray[np.float64], told: npt.NDArray[np.float64]
) -> FloatArray:
    """Return the unit normals that ridge regression learns of `told` (n, m), 1 or -1: m at most.

    `products` (n, n) are those of `points` (n, d) with one another. The penalty is their mean
    square length. The bias is 0: it changes no order.
    """
    penalty = np.trace(products) / len(points) or 1.0
    weights = linalg.solve(products + penalty * np.eye(len(points)), told, assume_a="pos")
    # Of four million columns a few normals are many megabytes.
    found: FloatArray = np.ascontiguousarray((points.matrix.T @ weights.astype(np.float32)).T)
    sizes = np.linalg.norm(found, axis=1, keepdims=True)
    # Nothing is learned of points at the origin.
    found = found[sizes[:, 0] > 0]
    found /= sizes[sizes[:, 0] > 0]
    return found
