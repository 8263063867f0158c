"""Queries that Build asks itself, and what they should find.

Half of the queries are points, each left out of its own neighbours. The others lie halfway between
a point and another near it, so that what holds for the sample holds for queries that are not
indexed. Of every three queries one serves to tune and two to measure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.search.searcher import Searcher
from divgrpc.types import FloatArray, IntArray, Metric
from divgrpc.vectors import Rows, SparseRows, block_rows, lengths, release_rows, take

Report = Callable[[int, int], None]

# Queries of a sample: a third of them tune, the others measure.
SAMPLE = 192
_TUNING = 3
# Past the last number of candidates that is measured, points that may tie with it.
_TIES = 100
_NOBODY = -1
# A query lies between a point and the nearest of this many others.
_PARTNERS = 256
# Points whose products with the query differ by no larger share are equally near: rounding.
_EQUAL = 1e-6


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries and their nearest rows `truth` (m, t), nearest first, with `gains` (m, t) float32.

    `between` (m,): which of the queries lie between points.

    A gain is larger for nearer points: the product, or under `euclidean` half the squared distance
    from the nearest possible, negated, up to a constant per query.
    """

    queries: Rows
    truth: IntArray
    gains: FloatArray
    between: npt.NDArray[np.bool_]

    @classmethod
    def draw(
        cls,
        searcher: Searcher,
        seed: int,
        most: int,
        report: Report,
        *,
        queries: Rows | None = None,
    ) -> "Sample":
        """Draw queries and find the `most` nearest of each, and what ties.

        `queries` are drawn from, where they are known; without them points are.
        """
        points = searcher.points
        rng = np.random.default_rng((seed, 1))
        source = points if queries is None else queries
        rows = rng.choice(len(source), min(SAMPLE, len(source)), replace=False)
        own = np.full(len(rows), _NOBODY)
        if queries is None:
            order = np.argsort(rows)
            asked = take(points, rows[order])[np.argsort(order)]
            own = np.where(np.arange(len(rows)) % (2 * _TUNING) < _TUNING, rows, _NOBODY)
            asked = _moved_halfway(asked, rows, moved=own == _NOBODY, searcher=searcher, seed=seed)
        else:
            asked = queries[rows]
        wanted = min(most + _TIES + 1, len(points))
        truth, gains = nearest_rows(points, asked, wanted, searcher.metric, report)
        gains = np.where(truth == own[:, np.newaxis], -np.inf, gains)
        order = np.lexsort((truth, -gains), axis=1)
        if (own != _NOBODY).any():
            # A point's own row is now the last.
            order = order[:, : max(0, wanted - 1)]
        searcher.release()
        return cls(
            asked,
            np.take_along_axis(truth, order, axis=1),
            np.take_along_axis(gains, order, axis=1),
            own == _NOBODY,
        )

    def __len__(self) -> int:
        """Return how many queries there are."""
        return len(self.queries)

    @property
    def parts(self) -> tuple[IntArray, IntArray]:
        """The numbers of the queries that tune, and of those that measure; one query does both."""
        numbers = np.arange(len(self))
        if len(self) == 1:
            return numbers, numbers
        return numbers[::_TUNING], numbers[numbers % _TUNING != 0]

    def shares(
        self, number: int, hashed: npt.NDArray[np.bool_], sizes: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """Return the shares of the nearest that are `hashed` (n,), for each of `sizes`.

        Points as near as the last that counts may stand for it. 1 where there are no points.
        """
        truth, gains = self.truth[number], self.gains[number]
        shares = np.ones(len(sizes))
        hits = np.concatenate(([0], np.cumsum(hashed[truth])))
        for place, size in enumerate(sizes):
            count = min(size, len(truth))
            if count:
                last = gains[count - 1]
                ties = int(np.count_nonzero(gains >= last - _EQUAL * abs(last)))
                shares[place] = min(hits[ties], count) / count
        return shares


def _moved_halfway(
    asked: Rows, rows: IntArray, *, moved: npt.NDArray[np.bool_], searcher: Searcher, seed: int
) -> Rows:
    """Return `asked`, the points `rows`, those that are `moved` halfway to another near them."""
    points, metric = searcher.points, searcher.metric
    rng = np.random.default_rng((seed, 4))
    others = np.sort(rng.choice(len(points), min(_PARTNERS, len(points)), replace=False))
    near = take(points, others)
    products = _products(asked, near)
    if metric == "euclidean":
        products = products - np.square(lengths(near)) / 2
    products = np.where(rows[:, np.newaxis] == others, -np.inf, products)
    partner = products.argmax(axis=1)
    best = products[np.arange(len(rows)), partner]
    # Opposite points have nothing between them.
    moved = moved & (np.isfinite(best) if metric == "euclidean" else best > 0)
    share = np.where(moved, 0.5, 0.0).astype(np.float32)[:, np.newaxis]
    if isinstance(asked, SparseRows) and isinstance(near, SparseRows):
        halfway = asked.matrix.multiply(1 - share) + near.matrix[partner].multiply(share)
        sums = SparseRows.of(sparse.csr_array(halfway, dtype=np.float32))
        if metric != "cosine":
            return sums
        scale = np.repeat(lengths(sums), np.diff(sums.indptr))
        return SparseRows(sums.indptr, sums.indices, sums.values / scale, sums.dims)
    between = (1 - share) * np.asarray(asked) + share * np.asarray(near)[partner]
    if metric == "cosine":
        scale = np.where(moved, lengths(between), np.float32(1))
        between /= scale[:, np.newaxis]
    return np.ascontiguousarray(between, np.float32)


def _products(left: Rows, right: Rows) -> npt.NDArray[np.floating]:
    if isinstance(right, SparseRows):
        return np.asarray(left @ sparse.csr_array(right.matrix.T))
    return np.asarray(left @ right.T)


def nearest_rows(
    points: Rows,
    queries: Rows,
    count: int,
    metric: Metric,
    report: Report,
    *,
    angular: bool = False,
) -> tuple[IntArray, FloatArray]:
    """Return rows and gains of the `count` nearest points to each query, (nq, count), unordered.

    `angular`: the nearest are those of the greatest cosine, under `inner_product` too.
    """
    centre, back = _other_side(points, queries, metric)
    scaled = angular and metric == "inner_product"
    rows = np.empty((len(queries), 0), np.int64)
    gains = np.empty((len(queries), 0), np.float32)
    at_once = max(count, block_rows(points))
    for start in range(0, len(points), at_once):
        block = points[start : start + at_once]
        if not isinstance(block, SparseRows) and centre.any():
            block = block - centre
        products = (block @ back).T
        if scaled:
            size = lengths(block)
            products = np.divide(products, size, out=np.zeros_like(products), where=size > 0)
        if metric == "euclidean":
            # Half a squared distance, less what all points have alike.
            products = products - np.square(lengths(block)) / 2
        # Past the first block few points are as near to any query as those it has.
        least = gains.min(axis=1, initial=np.inf if gains.shape[1] == count else -np.inf)
        near = np.flatnonzero((products >= least[:, np.newaxis]).any(axis=0))
        numbers = np.broadcast_to(start + near, (len(products), len(near)))
        gains = np.concatenate((gains, products[:, near]), axis=1)
        rows = np.concatenate((rows, numbers), axis=1)
        best = np.argpartition(-gains, count - 1, axis=1)[:, :count]
        gains = np.take_along_axis(gains, best, axis=1)
        rows = np.take_along_axis(rows, best, axis=1)
        release_rows(points)
        report(start + len(block), len(points))
    return rows, gains


def _other_side(points: Rows, queries: Rows, metric: Metric) -> tuple[FloatArray, Any]:
    """Return what to take from points, and what to multiply them by then."""
    centre = np.zeros(points.shape[1], np.float32)
    if isinstance(queries, SparseRows):
        # Never spread out: a sample of wide rows would be a gigabyte.
        return centre, sparse.csr_array(queries.matrix.T)
    if isinstance(points, SparseRows):
        return centre, np.ascontiguousarray(queries.T)
    if metric == "euclidean":
        # Far from the origin the differences between products would be lost in rounding.
        centre = queries.mean(axis=0)
        return centre, (queries - centre).T
    return centre, queries.T
