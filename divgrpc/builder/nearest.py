"""Finds the points nearest to each of some queries, by matrix products.

The points are searched in blocks. Points are ordered by their gain, and then by their row number,
so the nearest points of all blocks are the same whoever searches a block, and when. A search of a
block leaves out points that are farther than those that other blocks have, as far as it knows them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from divgrpc.build_rows import BuildRows, block_rows, release_rows
from divgrpc.parallel import on_all_cores, one_blas_thread
from divgrpc.types import FloatArray, IntArray, Metric
from divgrpc.vectors import Rows, SparseRows, lengths

_ROW_MAX: Final = np.iinfo(np.int64).max

# Called with the number of points done and the total number of points.
Report: TypeAlias = Callable[[int, int], None]


class NearPoints(NamedTuple):
    """Points near to each of some queries.

    rows: (m,) int64 row numbers of the points of all queries, one query after another.
    gains: (m,) float32, as in `NearestSearch`.
    ends: (nq,) int64, the end of the points of each query.
    """

    rows: IntArray
    gains: FloatArray
    ends: IntArray

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of the points of each query."""
        return pairwise([0, *self.ends.tolist()])


@dataclass(frozen=True, slots=True, eq=False)
class NearestSearch:
    """A search for the `count` points nearest to each of the `queries` (nq, d), at least 1.

    A gain measures how near a point is; larger is nearer. Under `euclidean`, it is minus half the
    squared distance, up to a constant for each query. Under other metrics, it is the inner product
    or, if `angular`, the cosine times the length of the query, which under `cosine` is the same.
    """

    queries: Rows
    count: int
    metric: Metric
    angular: bool = False

    def in_block(self, block: Rows, start: int, least: FloatArray) -> NearPoints:
        """Return the nearest points of a block, at most `count` for each query, unordered.

        block: (m, d), which begins with row number `start`.
        least: (nq,) float32; points with smaller gains are left out.
        """
        gains = self._gains(block)
        near = gains >= least[:, np.newaxis]
        query_numbers, columns = np.divmod(np.flatnonzero(near), len(block))
        ends = np.cumsum(np.bincount(query_numbers, minlength=len(gains)))
        return _nearest(NearPoints(start + columns, gains[near], ends), self.count)

    def _gains(self, block: Rows) -> FloatArray:
        """Return the gains (nq, m) of the points of a block."""
        queries = self.queries
        if self.metric == "euclidean":
            queries, block = _centred(queries, block)
        gains = _products(queries, block)
        if self.angular and self.metric == "inner_product":
            size = lengths(block)
            gains = np.divide(gains, size, out=np.zeros_like(gains), where=size > 0)
        if self.metric == "euclidean":
            # Leave out the term that is the same for all points.
            gains -= np.square(lengths(block)) / 2
        if np.isnan(gains.max(initial=-np.inf)):
            # Of products of huge values.
            gains[np.isnan(gains)] = -np.inf
        return gains


class NearestPoints:
    """Collects the points that searches of blocks have found, and keeps the nearest.

    Points with smaller gains than `least` (nq,) float32 are left out, because others are nearer.
    """

    def __init__(self, search: NearestSearch, least: FloatArray | None = None) -> None:
        """Begin with no points.

        least: (nq,) float32, the smallest gains that points may have; None for no limit.
        """
        if least is None:
            least = np.full(len(search.queries), -np.inf, np.float32)
        # The least gain of the nearest points, and the greatest row number of those that have it.
        self._bounds = least, np.full(len(least), _ROW_MAX)
        self._count, self._parts = search.count, list[NearPoints]()
        self._room = 2 * len(search.queries) * search.count
        # The number of points in all parts.
        self._size = 0

    def least_from(self, row: int) -> FloatArray:
        """Return the least gains (nq,) of points that may be among the nearest, from a row on.

        Of points with the same gain, the first are the nearest. So in blocks after them, points
        with the least gain are too far. Any thread may ask.
        """
        least, last_rows = self._bounds
        return np.where(last_rows < row, np.nextafter(least, np.float32(np.inf)), least)

    def add(self, part: NearPoints) -> None:
        """Add what `in_block` has returned for another block."""
        self._parts.append(part)
        self._size += len(part.rows)
        if self._size > self._room:
            self._drop_farther()

    def _drop_farther(self) -> None:
        part = self.unordered()
        self._parts, self._size = [part], len(part.rows)
        # Other threads read the old arrays.
        least, last_rows = (bound.copy() for bound in self._bounds)
        for number, (start, end) in enumerate(part.spans()):
            if end - start == self._count:
                gains = part.gains[start:end]
                least[number] = gains.min()
                last_rows[number] = part.rows[start:end][gains == least[number]].max()
        self._bounds = least, last_rows

    def unordered(self) -> NearPoints:
        """Return the nearest points so far, at most `count` for each query."""
        return _nearest(_joined(self._parts), self._count)

    def sorted(self) -> tuple[IntArray, FloatArray]:
        """Return rows and gains (nq, count) of the nearest points of all blocks, nearest first.

        All blocks together must have at least `count` points.
        """
        rows, gains, _ = self.unordered()
        shape = len(self._bounds[0]), self._count
        rows, gains = rows.reshape(shape), gains.reshape(shape)
        order = np.lexsort((rows, -gains), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(gains, order, axis=1)


# Returns what `NearestPoints.sorted` does for the points (n, d); n is at least `search.count`.
FindNearest: TypeAlias = Callable[[NearestSearch, BuildRows, Report], tuple[IntArray, FloatArray]]


def find_nearest(
    search: NearestSearch, points: BuildRows, report: Report
) -> tuple[IntArray, FloatArray]:
    """Find the nearest of `points` (n, d) on all cores; see `FindNearest`."""
    nearest = NearestPoints(search)

    def search_block(block: range) -> NearPoints:
        return search_blocks(search, points, [block], nearest.least_from(block.start))

    with one_blas_thread():
        blocks = blocks_of(range(len(points)), block_rows(points))
        for block, part in zip(blocks, on_all_cores(search_block, blocks), strict=True):
            nearest.add(part)
            report(block.stop, len(points))
    return nearest.sorted()


def blocks_of(rows: range, step: int) -> list[range]:
    """Return the blocks in which rows are searched, with `step` rows each."""
    return [rows[start : start + step] for start in range(0, len(rows), step)]


def search_blocks(
    search: NearestSearch, points: BuildRows, blocks: Sequence[range], least: FloatArray
) -> NearPoints:
    """Return the nearest points in some blocks of `points` (n, d), as `in_block` does for one."""
    nearest = NearestPoints(search, least)
    for block in blocks:
        rows = points[block.start : block.stop]
        nearest.add(search.in_block(rows, block.start, nearest.least_from(block.start)))
        release_rows(points)
    return nearest.unordered()


def _joined(parts: list[NearPoints]) -> NearPoints:
    """Return the points of all parts."""
    sizes = [np.diff(part.ends, prepend=0) for part in parts]
    query_numbers = [np.repeat(np.arange(len(size)), size) for size in sizes]
    order = np.argsort(np.concatenate(query_numbers), kind="stable")
    rows, gains = (np.concatenate([part[place] for part in parts])[order] for place in (0, 1))
    return NearPoints(rows, gains, np.cumsum(np.sum(sizes, axis=0)))


def _nearest(part: NearPoints, count: int) -> NearPoints:
    """Return the nearest `count` points of each query, or all if there are fewer."""
    if not (np.diff(part.ends, prepend=0) > count).any():
        return part
    places = [
        start + _places_of_nearest(part.rows[start:end], part.gains[start:end], count)
        for start, end in part.spans()
    ]
    ends, order = np.cumsum([len(group) for group in places]), np.concatenate(places)
    return NearPoints(part.rows[order], part.gains[order], ends)


def _places_of_nearest(rows: IntArray, gains: FloatArray, count: int) -> IntArray:
    """Return the places of the first `count` points by gain, largest first, and then by row."""
    if len(rows) <= count:
        return np.arange(len(rows))
    last = np.partition(gains, len(gains) - count)[len(gains) - count]
    ahead, ties = np.flatnonzero(gains > last), np.flatnonzero(gains == last)
    ties = ties[np.argsort(rows[ties])]
    return np.concatenate((ahead, ties[: count - len(ahead)]))


def _centred(queries: Rows, block: Rows) -> tuple[Rows, Rows]:
    """Return dense queries and points without the mean of the queries, and other rows unchanged.

    Rounding would otherwise hide small distances between points far from the origin.
    """
    if isinstance(queries, SparseRows) or isinstance(block, SparseRows):
        return queries, block
    centre = queries.mean(axis=0)
    return queries - centre, block - centre


def _products(queries: Rows, block: Rows) -> FloatArray:
    """Return the inner products (nq, m) of queries and points."""
    if isinstance(queries, SparseRows):
        # Queries stay sparse, because wide queries could take a gigabyte as dense rows.
        return np.ascontiguousarray((block @ sparse.csr_array(queries.matrix.T)).T)
    if isinstance(block, SparseRows):
        return np.ascontiguousarray((block @ np.ascontiguousarray(queries.T)).T)
    return np.asarray(queries @ block.T)
