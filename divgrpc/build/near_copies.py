"""The default `duplicate_threshold`, measured by Build.

No fixed distance will do. Copies of one text may lie farther apart than points that have nothing to
do with each other in another index, as on a map, or in a tight cluster. What sets near-copies apart
is a gap: next to a point lie its copies, then for a while nothing, then the other points. So the
limit is a squared distance T such that few points have a neighbour between T and 2 T. Where
neighbours lie at all distances, such a limit is so small that hardly a point has a neighbour within
it. A group of more than 60 points is no group of copies but a cluster, and most points must not be
in clusters.

The usual limit is a twentieth of the mean squared distance of two points: a cosine of 0.95 where
points lie in all directions. Where copies are many and the gap lies farther out, it is twice that.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.build.sample import nearest_rows
from divgrpc.parameters import DEFAULT_DUPLICATE_COSINE, BuildParameters
from divgrpc.vectors import Rows, SparseRows, take

# Points whose neighbours are counted, and points whose distances say how far apart two are.
_POINTS: Final = 256
_SPREAD_POINTS: Final = 500
# The share of the points that may have a neighbour between T and 2 T.
_GAINING: Final = 0.1
# Neighbours of a point within T that make it one of a cluster, and the share of such points.
_CLUSTER: Final = 60
_CLUSTERED: Final = 0.75
# Points in a cluster have too many neighbours to count. They are counted in a sample of all points,
# and such a point has neighbours between T and 2 T if 2 T holds this many times as many as T.
_COUNTED: Final = 4_096
_GROWTH: Final = 1.1
# Limits that are tried: so many for each halving of the largest, and so many halvings.
_STEPS: Final = 4
_HALVINGS: Final = 15
# A limit may be so many times the usual one where this share of the points has a near-copy.
_LARGEST: Final = 2
_COPIED: Final = 0.25

Distances = npt.NDArray[np.float64]


def near_copy_threshold(
    points: Rows, parameters: BuildParameters, report: Callable[[int, int], None]
) -> float:
    """Return the default `duplicate_threshold`: a cosine, under `euclidean` a squared distance.

    `points` (n, d) are unit rows under `cosine`.
    """
    metric, angular = parameters.metric, parameters.metric != "euclidean"
    rng = np.random.default_rng((parameters.seed, 5))
    spread = _spread(_drawn(points, _SPREAD_POINTS, rng), angular=angular)
    # Few digits: the last ones depend on the order of a sum.
    usual = limit = float(f"{(1 - DEFAULT_DUPLICATE_COSINE) * spread:.3g}")
    if usual:
        sample = _drawn(points, _POINTS, rng)
        count = min(_CLUSTER + 1, len(points))
        neighbours, _ = nearest_rows(points, sample, count, metric, report, angular=angular)
        far = _distances(points, sample, neighbours, angular=angular)
        others = _between(sample, _drawn(points, _COUNTED, rng), angular=angular)
        limit = _limit(far, others, usual)
    return limit if not angular else 1 - limit / 2


def _limit(far: Distances, others: Distances, usual: float) -> float:
    """Return the largest limit with a gap above it; 0 where there is none.

    `far` (m, c): squared distances of points from themselves and their nearest neighbours; `others`
    (m, o) from some of all points.
    """
    for step in range(_STEPS * _HALVINGS):
        limit = float(f"{_LARGEST * usual * 2 ** (-step / _STEPS):.3g}")
        # Every point is near itself.
        near, wider = _within(far, limit), _within(far, 2 * limit)
        in_cluster = near > _CLUSTER
        more = _within(others, 2 * limit) > _GROWTH * _within(others, limit)
        gaining = np.where(in_cluster, more, wider > near)
        enough = limit <= usual or (near > 1).mean() >= _COPIED
        if gaining.mean() <= _GAINING and enough and in_cluster.mean() <= _CLUSTERED:
            return limit
    return 0.0


def _within(far: Distances, limit: float) -> npt.NDArray[np.intp]:
    """Return how many distances of each row are at most the limit."""
    return np.asarray(np.count_nonzero(far <= limit, axis=1))


def _drawn(points: Rows, most: int, rng: np.random.Generator) -> Rows:
    return take(points, np.sort(rng.choice(len(points), min(most, len(points)), replace=False)))


def _spread(rows: Rows, *, angular: bool) -> float:
    """Return the mean squared distance of two rows, 0 where all are equal.

    It is weighted by itself, so that near-copies count little, however many there are.
    """
    far = _between(rows, rows, angular=angular)
    return float((far * far).sum() / far.sum()) if far.any() else 0.0


def _distances(
    points: Rows, sample: Rows, neighbours: npt.NDArray[np.integer], *, angular: bool
) -> Distances:
    """Return the squared distances (m, c) of each row of the sample from its neighbours (m, c)."""
    result = np.empty(neighbours.shape)
    for number, places in enumerate(neighbours):
        row = sample[number : number + 1]
        result[number] = _between(row, take(points, places), angular=angular)[0]
    return result


def _between(left: Rows, right: Rows, *, angular: bool) -> Distances:
    """Return the squared distances of all rows from all rows; `angular`: of them as unit rows."""
    if isinstance(left, SparseRows) and isinstance(right, SparseRows):
        matrix, other = left.matrix.astype(np.float64), right.matrix.astype(np.float64)
        products = np.asarray((matrix @ other.T).toarray())
        squares = np.asarray(matrix.multiply(matrix).sum(axis=1))
        others = np.asarray(other.multiply(other).sum(axis=1))
    else:
        one, many = np.asarray(left, np.float64), np.asarray(right, np.float64)
        products = one @ many.T
        squares, others = np.square(one).sum(axis=1), np.square(many).sum(axis=1)
    squares, others = squares.reshape(-1, 1), others.reshape(1, -1)
    if not angular:
        return np.asarray(np.maximum(0.0, squares + others - 2 * products), np.float64)
    sizes = np.sqrt(squares * others)
    cosines = np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)
    return np.asarray(np.maximum(0.0, 2 - 2 * cosines), np.float64)
