"""The queries on which Build tunes and measures, and their true nearest points.

Half of the queries are points, and a point does not count among its own neighbours. The others lie
halfway between a point and a near one, so that results on the sample hold for queries that are not
indexed. One query in three tunes, the other two measure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.search.searcher import Searcher
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric
from divgrpc.vectors import Rows, SparseRows, block_rows, draw_numbers, lengths, release_rows, take

Report = Callable[[int, int], None]

# Queries of a sample; every third tunes, the others measure.
SAMPLE_QUERIES = 192
_TUNING_PERIOD = 3
# Neighbours fetched beyond the largest pool, because they may tie with its last candidate.
_TIES_MAX = 100
_NO_ROW = -1
# A query lies between a point and the nearest of this many other points.
_PARTNERS = 256
# Points are equally near if their products with the query differ by this share or less (rounding).
_TIE_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries and their nearest rows `truth` (m, t) int64, nearest first.

    `gains` (m, t) float32 are larger for nearer points: the product, or under `euclidean` half the
    negated squared distance, up to a constant per query. `between` (m,) bool marks the queries that
    lie between points.
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
        """Draw queries, and find the `most` nearest rows of each and those that tie with the last.

        Queries are drawn from `queries` (m, d) if given, or else made from the points.
        """
        points = searcher.points
        rng = np.random.default_rng((seed, 1))
        source = points if queries is None else queries
        rows = rng.choice(len(source), min(SAMPLE_QUERIES, len(source)), replace=False)
        # The row of a query that is a point, which is no neighbour of itself.
        own_rows = np.full(len(rows), _NO_ROW)
        if queries is None:
            order = np.argsort(rows)
            sample = take(points, rows[order])[np.argsort(order)]
            is_point = np.arange(len(rows)) % (2 * _TUNING_PERIOD) < _TUNING_PERIOD
            own_rows = np.where(is_point, rows, _NO_ROW)
            sample = _move_halfway(sample, rows, mask=~is_point, searcher=searcher, seed=seed)
        else:
            sample = queries[rows]
        count = min(most + _TIES_MAX + 1, len(points))
        truth, gains = nearest_rows(points, sample, count, searcher.metric, report)
        gains = np.where(truth == own_rows[:, np.newaxis], -np.inf, gains)
        order = np.lexsort((truth, -gains), axis=1)
        if (own_rows != _NO_ROW).any():
            # The row of the query itself is now the last.
            order = order[:, : max(0, count - 1)]
        searcher.release()
        return cls(
            sample,
            np.take_along_axis(truth, order, axis=1),
            np.take_along_axis(gains, order, axis=1),
            own_rows == _NO_ROW,
        )

    def __len__(self) -> int:
        """Return how many queries there are."""
        return len(self.queries)

    @property
    def parts(self) -> tuple[IntArray, IntArray]:
        """The numbers of the queries that tune and that measure; a single query does both."""
        numbers = np.arange(len(self))
        if len(self) == 1:
            return numbers, numbers
        return numbers[::_TUNING_PERIOD], numbers[numbers % _TUNING_PERIOD != 0]

    def measure(
        self,
        searcher: Searcher,
        parameters: EffectiveParameters,
        numbers: IntArray,
        sizes: tuple[int, ...],
    ) -> list[tuple[npt.NDArray[np.float64], int]]:
        """Hash the queries `numbers`; return the recall of each, and its number of hashed points.

        The recall (s,) is the share of the nearest points that are hashed, for each of s `sizes`.
        """
        hashed_rows = searcher.hashed(self.queries[numbers], parameters)
        searcher.release()
        marks, results = np.zeros(len(searcher.points), np.bool_), []
        for number, rows in zip(numbers.tolist(), hashed_rows, strict=True):
            marks[rows] = True
            results.append((self._shares(number, marks, sizes), len(rows)))
            marks[rows] = False
        return results

    def _shares(
        self, number: int, marks: npt.NDArray[np.bool_], sizes: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """Return the share of the nearest `size` points with a mark (n,), for all `sizes`.

        A point that ties with the last of them may replace it. The share of no points is 1.
        """
        truth, gains = self.truth[number], self.gains[number]
        shares = np.ones(len(sizes))
        hits = np.concatenate(([0], np.cumsum(marks[truth])))
        for place, size in enumerate(sizes):
            count = min(size, len(truth))
            if count:
                last = gains[count - 1]
                ties = int(np.count_nonzero(gains >= last - _TIE_TOLERANCE * abs(last)))
                shares[place] = min(hits[ties], count) / count
        return shares


def _move_halfway(
    queries: Rows, rows: IntArray, *, mask: npt.NDArray[np.bool_], searcher: Searcher, seed: int
) -> Rows:
    """Return `queries`, the points `rows`; those in the `mask` go halfway to a near point."""
    points, metric = searcher.points, searcher.metric
    rng = np.random.default_rng((seed, 4))
    partners = draw_numbers(len(points), _PARTNERS, rng)
    near = take(points, partners)
    factor = sparse.csr_array(near.matrix.T) if isinstance(near, SparseRows) else near.T
    products = np.asarray(queries @ factor)
    if metric == "euclidean":
        products = products - np.square(lengths(near)) / 2
    products = np.where(rows[:, np.newaxis] == partners, -np.inf, products)
    nearest = products.argmax(axis=1)
    best = products[np.arange(len(rows)), nearest]
    # Opposite directions have no direction between them.
    mask = mask & (np.isfinite(best) if metric == "euclidean" else best > 0)
    share = np.where(mask, 0.5, 0.0).astype(np.float32)[:, np.newaxis]
    if isinstance(queries, SparseRows) and isinstance(near, SparseRows):
        halfway = queries.matrix.multiply(1 - share) + near.matrix[nearest].multiply(share)
        sums = SparseRows.of(sparse.csr_array(halfway, dtype=np.float32))
        if metric != "cosine":
            return sums
        scale = np.repeat(lengths(sums), np.diff(sums.indptr))
        return SparseRows(sums.indptr, sums.indices, sums.values / scale, sums.dims)
    between = (1 - share) * np.asarray(queries) + share * np.asarray(near)[nearest]
    if metric == "cosine":
        scale = np.where(mask, lengths(between), np.float32(1))
        between /= scale[:, np.newaxis]
    return np.ascontiguousarray(between, np.float32)


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

    With `angular` the nearest have the greatest cosine, under `inner_product` too.
    """
    centre, factor = _right_factor(points, queries, metric)
    rows = np.empty((len(queries), 0), np.int64)
    gains = np.empty((len(queries), 0), np.float32)
    rows_in_block = max(count, block_rows(points))
    for start in range(0, len(points), rows_in_block):
        block = points[start : start + rows_in_block]
        if not isinstance(block, SparseRows) and centre.any():
            block = block - centre
        products = (block @ factor).T
        if angular and metric == "inner_product":
            size = lengths(block)
            products = np.divide(products, size, out=np.zeros_like(products), where=size > 0)
        if metric == "euclidean":
            # Half the negated squared distance, without the part that all points share.
            products = products - np.square(lengths(block)) / 2
        # After the first block few points come nearer to any query than its best so far.
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


def _right_factor(points: Rows, queries: Rows, metric: Metric) -> tuple[FloatArray, Any]:
    """Return the vector to subtract from points, and the matrix to multiply them by."""
    centre = np.zeros(points.shape[1], np.float32)
    if isinstance(queries, SparseRows):
        # Kept sparse, because a dense sample of wide rows would take a gigabyte.
        return centre, sparse.csr_array(queries.matrix.T)
    if isinstance(points, SparseRows):
        return centre, np.ascontiguousarray(queries.T)
    if metric == "euclidean":
        # Far from the origin rounding would hide the differences between products.
        centre = queries.mean(axis=0)
        return centre, (queries - centre).T
    return centre, queries.T
