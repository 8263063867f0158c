"""The sample of queries with which Build tunes and measures searches.

For each query the sample also holds the true nearest points. If the caller gives no queries, half
of the queries are points of the index. Such a point is not counted among its own neighbours. The
other half are halfway between two near points if possible, so that the results also hold for
queries that are not in the index. One third of the queries tune searches, and the other two thirds
measure them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.build_rows import take
from divgrpc.builder.measured import MeasuredSearcher
from divgrpc.builder.nearest import FindNearest, NearestSearch, Report, find_nearest
from divgrpc.types import EffectiveParameters, FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows, draw_numbers, lengths

# Number of queries in a sample. Every third query (_TUNING_PERIOD) tunes, and the others measure.
SAMPLE_QUERIES = 192
_TUNING_PERIOD = 3
# Number of additional neighbours to find, because they may tie with the last requested neighbour.
_TIES_MAX = 100
_NO_ROW = -1
# A query halfway between two points is made from a point and the nearest of 256 random points.
_PARTNERS = 256
# Gains that differ by at most this relative amount count as equal, because of rounding.
_TIE_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries and the row numbers `truth` (m, t) int64 of their nearest points, nearest first.

    `gains` (m, t) float32 are those of `NearestSearch`. `between` (m,) bool is false for the
    queries that were drawn as points, and true for all others.
    """

    queries: Rows
    truth: IntArray
    gains: FloatArray
    between: npt.NDArray[np.bool_]

    @classmethod
    def draw(
        cls,
        searcher: MeasuredSearcher,
        seed: int,
        most: int,
        report: Report,
        *,
        queries: Rows | None = None,
        find: FindNearest = find_nearest,
    ) -> "Sample":
        """Draw queries; find for each query the `most` nearest points and some that may tie.

        Queries are drawn from `queries` (m, d) if given, and otherwise made from the points.
        `report` is called with the number of points done and the total number of points. `find`
        finds the nearest points.
        """
        points = searcher.points
        rng = np.random.default_rng((seed, 1))
        source = points if queries is None else queries
        rows = rng.choice(len(source), min(SAMPLE_QUERIES, len(source)), replace=False)
        # The row numbers of the queries that are points, because a point is not its own neighbour.
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
        truth, gains = find(NearestSearch(sample, count, searcher.metric), points, report)
        gains = np.where(truth == own_rows[:, np.newaxis], -np.inf, gains)
        order = np.lexsort((truth, -gains), axis=1)
        if (own_rows != _NO_ROW).any():
            # The query's own row is now last, because its gain is -inf.
            order = order[:, : max(0, count - 1)]
        searcher.release()
        return cls(
            sample,
            np.take_along_axis(truth, order, axis=1),
            np.take_along_axis(gains, order, axis=1),
            own_rows == _NO_ROW,
        )

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.queries)

    @property
    def parts(self) -> tuple[IntArray, IntArray]:
        """The indices of queries that tune, and of queries that measure.

        If the sample has only one query, this query does both.
        """
        numbers = np.arange(len(self))
        if len(self) == 1:
            return numbers, numbers
        return numbers[::_TUNING_PERIOD], numbers[numbers % _TUNING_PERIOD != 0]

    def measure(
        self,
        searcher: MeasuredSearcher,
        parameters: EffectiveParameters,
        numbers: IntArray,
        sizes: tuple[int, ...],
    ) -> list[tuple[npt.NDArray[np.float64], int]]:
        """Search with the queries of indices `numbers`; return recalls and a count for each query.

        The recalls (s,) belong to the s `sizes`. A recall is the share of the `size` nearest points
        that are among the hashed points of the query, which the search finds before it scores
        points. The count is the number of hashed points.
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
        """Return for each of the `sizes` the share of the nearest points that `marks` (n,) selects.

        Points that tie with the last of the nearest points also count, up to a share of 1. If there
        are no nearest points, the share is 1.
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
    queries: Rows,
    rows: IntArray,
    *,
    mask: npt.NDArray[np.bool_],
    searcher: MeasuredSearcher,
    seed: int,
) -> Rows:
    """Move the queries in `mask` halfway to a near point; query i is the point rows[i]."""
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
    # Opposite vectors have no direction between them. So, except under euclidean, a query is moved
    # only towards a point with which it has a positive inner product.
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
