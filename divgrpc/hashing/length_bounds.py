"""Bounds of the lengths of points, for `divgrpc.kernels.exact.score_longest`."""

import numpy as np

from divgrpc.build_rows import BuildRows, DividedRows, block_rows, release_rows
from divgrpc.kernels.exact import BOUND_ROWS
from divgrpc.types import FloatArray


def bounded_rows(points: BuildRows) -> int:
    """Return how many of `points` to read at once, a multiple of `BOUND_ROWS`."""
    return max(1, block_rows(points) // BOUND_ROWS) * BOUND_ROWS


def length_bounds(points: FloatArray | DividedRows) -> FloatArray:
    """Return an upper bound on the lengths of each block of points and all points after it.

    points: (n, d). A block has `BOUND_ROWS` points.
    """
    longest = []
    step = bounded_rows(points)
    for first in range(0, len(points), step):
        rows = points[first : first + step]
        for start in range(0, len(rows), BOUND_ROWS):
            block = rows[start : start + BOUND_ROWS].astype(np.float64)
            longest.append(np.einsum("ij,ij->i", block, block).max() ** 0.5)
        release_rows(points)
    suffix_maxima = np.maximum.accumulate(longest[::-1])[::-1].astype(np.float32)
    return np.nextafter(suffix_maxima, np.float32(np.inf))
