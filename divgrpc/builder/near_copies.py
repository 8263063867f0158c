"""Build measures the default `duplicate_threshold`; two points within it are near-copies.

A fixed distance does not suit every index. Copies of one text may be farther apart than unrelated
points of another index, such as points on a map or in a tight cluster. But near-copies of a point
are separated from the point's other neighbours by a gap in the distances. The threshold is
therefore a squared distance T such that few points have a neighbour at a squared distance between T
and 2 T. If the distances have no such gap, T becomes so small that hardly any point has a neighbour
within T. A point with more than 60 neighbours within T is part of a cluster rather than one of
several copies, so T is refused if too many points are in clusters.

The usual limit for T is a twentieth of a weighted mean of the squared distances between points. If
the directions of points are evenly distributed, this limit corresponds to a cosine of 0.95. If at
least a quarter of the points have near-copies, the limit is twice as large. Under `cosine` and
`inner_product`, distances are between points scaled to unit length, and T is returned as a cosine.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.build_rows import BuildRows, take
from divgrpc.builder.nearest import FindNearest, NearestSearch, Report, find_nearest
from divgrpc.parameters import DEFAULT_DUPLICATE_COSINE, BuildParameters
from divgrpc.vectors import Rows, SparseRows, draw_numbers

# Neighbours are counted for 256 points. The mean squared distance is over pairs of 500 points.
_SAMPLE_ROWS: Final = 256
_SPREAD_ROWS: Final = 500
# There is a gap above T if at most this share of the points have a neighbour between T and 2 T.
_GAP_SHARE_MAX: Final = 0.1
# A point with over 60 neighbours within T is in a cluster. T is refused if over 75 % of points are.
_COPIES_MAX: Final = 60
_CLUSTER_SHARE_MAX: Final = 0.75
# For a point in a cluster, neighbours are counted among a sample of 4,096 points. The point counts
# as having a neighbour between T and 2 T if over 1.1 times as many points of the sample are within
# 2 T as within T.
_COUNTED_ROWS: Final = 4_096
_CLUSTER_GROWTH_MAX: Final = 1.1
# Thresholds are tried from the largest down, over 15 halvings in 4 steps for each halving.
_STEPS_PER_HALVING: Final = 4
_HALVINGS: Final = 15
# T may be up to twice the usual limit if at least 25 % of the points have a near-copy.
_OVER_USUAL_MAX: Final = 2
_COPIED_SHARE_MIN: Final = 0.25

Distances = npt.NDArray[np.float64]


def near_copy_threshold(
    points: BuildRows, parameters: BuildParameters, report: Report, find: FindNearest = find_nearest
) -> float:
    """Return the default `duplicate_threshold`: a cosine, or a squared distance for `euclidean`.

    `points` (n, d) have unit length under `cosine`. `report` is called with the number of rows done
    and the total number of rows. `find` finds the nearest points.
    """
    metric, angular = parameters.metric, parameters.metric != "euclidean"
    rng = np.random.default_rng((parameters.seed, 5))
    spread = _spread(_draw(points, _SPREAD_ROWS, rng), angular=angular)
    # The limit is rounded to three digits, because further digits depend on the order of a sum.
    usual = threshold = float(f"{(1 - DEFAULT_DUPLICATE_COSINE) * spread:.3g}")
    if usual:
        sample = _draw(points, _SAMPLE_ROWS, rng)
        count = min(_COPIES_MAX + 1, len(points))
        neighbours, _ = find(NearestSearch(sample, count, metric, angular), points, report)
        near = _distances(points, sample, neighbours, angular=angular)
        far = _between(sample, _draw(points, _COUNTED_ROWS, rng), angular=angular)
        threshold = _threshold(near, far, usual)
    return threshold if not angular else 1 - threshold / 2


def _threshold(near: Distances, far: Distances, usual: float) -> float:
    """Return the largest tried threshold that passes the checks of this module, or 0 if none does.

    `near` (m, c) are squared distances from m points to themselves and to their nearest neighbours.
    `far` (m, o) are squared distances from the same m points to a sample of all points. A threshold
    above `usual` passes only if many points have near-copies.
    """
    for step in range(_STEPS_PER_HALVING * _HALVINGS):
        threshold = float(f"{_OVER_USUAL_MAX * usual * 2 ** (-step / _STEPS_PER_HALVING):.3g}")
        # Each point counts as one neighbour of itself.
        inner, outer = _count_within(near, threshold), _count_within(near, 2 * threshold)
        in_cluster = inner > _COPIES_MAX
        inner_far, outer_far = _count_within(far, threshold), _count_within(far, 2 * threshold)
        cluster_grows = outer_far > _CLUSTER_GROWTH_MAX * inner_far
        fills_gap = np.where(in_cluster, cluster_grows, outer > inner)
        in_range = threshold <= usual or (inner > 1).mean() >= _COPIED_SHARE_MIN
        few_in_clusters = in_cluster.mean() <= _CLUSTER_SHARE_MAX
        if fills_gap.mean() <= _GAP_SHARE_MAX and in_range and few_in_clusters:
            return threshold
    return 0.0


def _count_within(distances: Distances, threshold: float) -> npt.NDArray[np.intp]:
    """Return for each row how many `distances` are at most `threshold`."""
    return np.asarray(np.count_nonzero(distances <= threshold, axis=1))


def _draw(points: BuildRows, count: int, rng: np.random.Generator) -> Rows:
    return take(points, draw_numbers(len(points), count, rng))


def _spread(rows: Rows, *, angular: bool) -> float:
    """Return the mean squared distance over pairs of rows, 0 if all rows are equal.

    Each squared distance is also its weight in the mean, so that near-copies count little.
    """
    distances = _between(rows, rows, angular=angular)
    if not distances.any():
        return 0.0
    return float((distances * distances).sum() / distances.sum())


def _distances(
    points: BuildRows, sample: Rows, neighbours: npt.NDArray[np.integer], *, angular: bool
) -> Distances:
    """Return squared distances (m, c) from the rows of `sample` to their `neighbours` (m, c)."""
    distances = np.empty(neighbours.shape)
    for number, places in enumerate(neighbours):
        row = sample[number : number + 1]
        distances[number] = _between(row, take(points, places), angular=angular)[0]
    return distances


def _between(rows: Rows, columns: Rows, *, angular: bool) -> Distances:
    """Return squared distances of `rows` and `columns`, scaled to unit length if `angular`."""
    if isinstance(rows, SparseRows) and isinstance(columns, SparseRows):
        matrices = [part.matrix.astype(np.float64) for part in (rows, columns)]
        products = np.asarray((matrices[0] @ matrices[1].T).toarray())
        squares = [np.asarray(matrix.multiply(matrix).sum(axis=1)) for matrix in matrices]
    else:
        arrays = [np.asarray(part, np.float64) for part in (rows, columns)]
        products = arrays[0] @ arrays[1].T
        squares = [np.square(array).sum(axis=1) for array in arrays]
    row_squares, column_squares = squares[0].reshape(-1, 1), squares[1].reshape(1, -1)
    if not angular:
        return np.asarray(np.maximum(0.0, row_squares + column_squares - 2 * products), np.float64)
    sizes = np.sqrt(row_squares * column_squares)
    cosines = np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)
    return np.asarray(np.maximum(0.0, 2 - 2 * cosines), np.float64)
