"""The hash family `cells` is a two-level k-means partition of the points (Lloyd 1982).

Points are clustered by their projections onto the first `width` hyperplanes. The directions of the
hyperplanes are rotated principal components, or span a random subspace of the space that the
principal components span. Because only projections are clustered, sparse points need not be made
dense, and the projections of a query serve both for its code and to find its cells. To learn C
cells, a sample of the points is divided into about sqrt(C) coarse cells. Each coarse cell is then
divided into a number of cells in proportion to its points.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import kmeans as kernels
from divgrpc.parallel import on_all_cores
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import draw_numbers

# n points are divided into _CELLS_PER_ROOT * sqrt(n) cells.
_CELLS_PER_ROOT: Final = 4
# The number of cells is limited so that a cell holds at least this many points on average. From
# _MANY_ROWS points on, cells are larger, because a query takes some time for each cell. With fewer
# points, small cells are better: estimated distances are more precise in them.
_CELL_POINTS_MIN: Final = 16
_MANY_ROWS: Final = 50_000
_LARGE_CELL_POINTS_MIN: Final = 100
# Number of iterations of Lloyd's algorithm.
_ITERATIONS: Final = 4
# Number of final rounds, in which points of the sample may move to cells of another coarse cell.
_REFINEMENTS: Final = 3
# Maximum number of float32 values in all centres together, and in the sample.
_CENTRE_NUMBERS_MAX: Final = 1 << 22
_SAMPLE_NUMBERS_MAX: Final = 1 << 24
# The sample that the partition is learned from has this many points for each cell.
_SAMPLE_PER_CELL: Final = 32
# Coarse cells are learned from about this many points of the sample for each coarse cell.
_SAMPLE_PER_COARSE: Final = 256
# Maximum number of points that are assigned to centres at a time.
_BLOCK_ROWS: Final = 8_192
# Maximum number of float32 products of points and centres in memory at a time: 8 MiB.
_PRODUCTS_AT_ONCE: Final = 1 << 21


@dataclass(frozen=True)
class Partition:
    """A two-level partition into T coarse cells and C cells, given by the centres of both.

    coarse: (T, m) float32 centres of the coarse cells.
    starts: (T + 1,) int64. Cells starts[t] to starts[t + 1] - 1 belong to coarse cell t.
    centres: (C, m) float32 centres of the cells.
    """

    coarse: FloatArray
    starts: IntArray
    centres: FloatArray

    @property
    def width(self) -> int:
        """The number m of projections that are the coordinates of a centre."""
        return int(self.coarse.shape[1])

    def assign(self, points: FloatArray) -> npt.NDArray[np.int32]:
        """Return the cell of each of `points` (n, m) float32, as (n,) int32.

        The cell of a point is the nearest of the cells in the COARSE_CELLS coarse cells that are
        nearest to the point.
        """
        numbers = np.zeros(len(points), np.int32)
        blocks = _blocks(len(points), len(self.coarse))
        for _ in on_all_cores(lambda block: self._assign(points[block], numbers[block]), blocks):
            pass
        return numbers

    @cached_property
    def _halves(self) -> tuple[FloatArray, FloatArray]:
        """Half the squared lengths of the coarse centres (T,) and of the centres (C,)."""
        return _half_squares(self.coarse), _half_squares(self.centres)

    def _assign(self, points: FloatArray, numbers: npt.NDArray[np.int32]) -> None:
        """Write the cell of each of `points` into `numbers`, one coarse cell after the other."""
        coarse_halves, halves = self._halves
        nearest = np.full((kernels.COARSE_CELLS, len(points)), -1, np.int32)
        gains = np.full(nearest.shape, -np.inf, np.float32)
        kernels.take_several(_products(self.coarse, points), coarse_halves, nearest, gains)
        starts, by_cell = kernels.group(nearest, len(self.coarse))
        gains[:] = -np.inf
        for top, (first, last) in enumerate(pairwise(starts.tolist())):
            cells = slice(self.starts[top], self.starts[top + 1])
            at_once = _rows_at_once(cells.stop - cells.start)
            for at in range(first, last, at_once):
                rows = by_cell[at : min(last, at + at_once)]
                products = _products(self.centres[cells], points[rows])
                kernels.take_nearest_of(
                    products, halves[cells], cells.start, rows, numbers, gains[0]
                )


def cell_count(rows: int, width: int) -> int:
    """Return the number of cells for `rows` points and centres of `width` dimensions."""
    least = _LARGE_CELL_POINTS_MIN if rows >= _MANY_ROWS else _CELL_POINTS_MIN
    cells = min(_CELLS_PER_ROOT * math.isqrt(rows), rows // least)
    return max(1, min(cells, _CENTRE_NUMBERS_MAX // width))


def sample_size(rows: int, width: int) -> int:
    """Return the number of points that the partition is learned from."""
    return max(
        1, min(rows, _SAMPLE_PER_CELL * cell_count(rows, width), _SAMPLE_NUMBERS_MAX // width)
    )


def learn(sample: FloatArray, n_cells: int, rng: np.random.Generator) -> Partition:
    """Learn a partition of about `n_cells` cells from `sample` (s, m) float32.

    The number of cells in a coarse cell is proportional to the number of its points, rounded, and
    at least one. A cell that loses all its points while it is learned is dropped.
    """
    n_coarse = max(1, math.isqrt(n_cells))
    # The coarse centres are few, so a part of the sample is enough for them.
    step = max(1, len(sample) // (_SAMPLE_PER_COARSE * n_coarse))
    coarse_sample = np.ascontiguousarray(sample[::step])
    coarse = _k_means(coarse_sample, draw_numbers(len(coarse_sample), n_coarse, rng))
    coarse_numbers = _nearest(sample, coarse)
    order = np.argsort(coarse_numbers, kind="stable")
    ends = np.searchsorted(coarse_numbers[order], np.arange(len(coarse) + 1))
    members = [order[start:stop] for start, stop in pairwise(ends)]
    # Draw the first centres in order and in one thread, so the result does not depend on threads.
    counts = [max(1, round(n_cells * len(rows) / len(sample))) for rows in members]
    firsts = [
        draw_numbers(len(rows), count, rng) for rows, count in zip(members, counts, strict=True)
    ]

    def part(top: int) -> FloatArray:
        # A coarse cell without sample points becomes one cell with the same centre.
        if not len(members[top]):
            return coarse[top : top + 1]
        return _k_means(sample[members[top]], firsts[top])

    parts = list(on_all_cores(part, range(len(coarse))))
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    partition = Partition(coarse, starts, np.concatenate(parts))
    for _ in range(_REFINEMENTS):
        partition = _refined(partition, sample)
    return partition


def order_by_cell(cells: npt.NDArray[np.int32], count: int) -> tuple[IntArray, IntArray]:
    """Return the order (n,) of points by cell, and the first place (count + 1,) of each cell.

    cells: (n,) the cell of each point. `count` is the number of cells.
    """
    starts = np.concatenate(([0], np.cumsum(np.bincount(cells, minlength=count))))
    return np.argsort(cells, kind="stable"), starts


def _refined(partition: Partition, sample: FloatArray) -> Partition:
    """Move each centre to the mean of the sample's points in its cell; return the new partition."""
    sums = np.empty_like(partition.centres)
    sizes = np.empty(len(sums), np.int64)
    kernels.add_up(sample, partition.assign(sample), sums, sizes)
    has_points = sizes[:, np.newaxis] > 0
    centres = np.divide(sums, sizes[:, np.newaxis], out=partition.centres.copy(), where=has_points)
    first_cells = partition.starts[:-1]
    members = np.add.reduceat(sizes, first_cells)[:, np.newaxis]
    means = np.add.reduceat(sums, first_cells, axis=0)
    coarse = np.divide(means, members, out=partition.coarse.copy(), where=members > 0)
    return Partition(coarse, partition.starts, centres)


def _k_means(points: FloatArray, start_rows: IntArray) -> FloatArray:
    """Run k-means from the points `start_rows` as first centres; return the centres (c, m) float32.

    Centres without points are dropped, so c may be less than the number of first centres.
    """
    centres = points[start_rows]
    for _ in range(_ITERATIONS if len(start_rows) > 1 else 1):
        sums, sizes = np.empty_like(centres), np.empty(len(centres), np.int64)
        kernels.add_up(points, _nearest(points, centres), sums, sizes)
        # Drop centres without points. If two centres are equal, the second one gets no points.
        has_points = sizes > 0
        centres = np.divide(sums[has_points], sizes[has_points, np.newaxis], dtype=np.float32)
    return centres


def _nearest(points: FloatArray, centres: FloatArray) -> npt.NDArray[np.int32]:
    """Return for each point the number of the nearest centre, (n,); ties go to the lower number."""
    numbers, halves = np.zeros(len(points), np.int32), _half_squares(centres)

    def assign(block: slice) -> None:
        gains = np.full(len(points[block]), -np.inf, np.float32)
        kernels.take_nearest(_products(centres, points[block]), halves, 0, numbers[block], gains)

    for _ in on_all_cores(assign, _blocks(len(points), len(centres))):
        pass
    return numbers


def _products(centres: FloatArray, points: FloatArray) -> FloatArray:
    """Return the inner products (c, n) of centres (c, m) and points (n, m), all finite."""
    # OpenBLAS may report an invalid value for finite numbers (numpy issue 24067).
    with np.errstate(invalid="ignore"):
        return np.asarray(centres @ points.T)


def _blocks(points: int, centres: int) -> list[slice]:
    """Return slices of the points, each small enough to be assigned to centres at once."""
    at_once = _rows_at_once(centres)
    return [slice(start, start + at_once) for start in range(0, points, at_once)]


def _rows_at_once(centres: int) -> int:
    return max(1, min(_BLOCK_ROWS, _PRODUCTS_AT_ONCE // centres))


def _half_squares(centres: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("ij,ij->i", centres, centres) / 2)
