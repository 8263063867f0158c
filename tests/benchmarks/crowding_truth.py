"""What is true of queries to a crowd: nearest points, the best distinct items, the best J."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks import truth
from benchmarks.exhaustive import Everything
from divgrpc import metrics
from divgrpc.types import FloatArray, IntArray
from support.crowded_points import Crowd, Queries

# Products of queries and points that are held at a time.
_NUMBERS = 1 << 26


@dataclass(frozen=True, eq=False)
class Truth:
    """One kind of queries to a crowd, and what exact search over all its points finds.

    `nearest` (nq, m) rows, nearest first, and their cosines `near` (nq, m); `distinct` (nq, k): the
    nearest rows of which no two are copies of one item, -1 where there are fewer items.
    """

    crowd: Crowd
    kind: str
    queries: Queries
    k: int
    nearest: IntArray
    near: FloatArray
    distinct: IntArray
    _greedy: dict[float, metrics.ListDistances] = field(default_factory=dict)

    @classmethod
    def of(cls, crowd: Crowd, kind: str, queries: Queries, k: int, count: int) -> "Truth":
        """Search all points for the nearest `count` and the best `k` items of every query."""
        count = min(count, crowd.points.shape[0])
        best_of_items = _best_of_items(crowd.items)
        nearest: list[IntArray] = []
        near: list[FloatArray] = []
        distinct: list[IntArray] = []
        step = max(1, _NUMBERS // crowd.points.shape[0])
        for start in range(0, queries.rows.shape[0], step):
            products = _products(queries.rows[start : start + step], crowd.points)
            nearest.append(_largest(products, count))
            near.append(np.take_along_axis(products, nearest[-1], 1))
            distinct.append(best_of_items(products, k))
        columns = (np.concatenate(nearest), np.concatenate(near), np.concatenate(distinct))
        return cls(crowd, kind, queries, k, *columns)

    @cached_property
    def plain(self) -> metrics.ListDistances:
        """Distances of plain nearest neighbours."""
        return self.distances(self.nearest[:, : self.k])

    @cached_property
    def best(self) -> metrics.ListDistances:
        """Distances of the nearest distinct items."""
        return self.distances(self.distinct)

    def distances(self, rows: IntArray) -> metrics.ListDistances:
        """Measure answers (nq, k), -1 where there is none."""
        return metrics.list_distances(self.crowd.points, self.queries.rows, rows)

    def greedy(self, diversity: float) -> metrics.ListDistances:
        """Distances of what `marginal` greedy picks among all points: the best J that we know."""
        if diversity not in self._greedy:
            self._greedy[diversity] = self.distances(self._search_greedy(diversity))
        return self._greedy[diversity]

    def _search_greedy(self, diversity: float) -> IntArray:
        points, queries = self.crowd.points, self.queries.rows
        if not sparse.issparse(points):
            return truth.greedy(points, _dense(queries), self.k, diversity)
        everything = Everything.of(points)
        return np.array(
            [everything.greedy(row, self.k, diversity, by_columns=True) for row in _dense(queries)]
        )

    def recall(self, rows: IntArray) -> float:
        """Return the share of the m nearest points among candidates `rows` (nq, m), -1 for none.

        A candidate as near as the m-th nearest point counts as one of them: copies that are exact
        may stand for one another.
        """
        found = _products_with(self.crowd.points, self.queries.rows, rows)
        least = self.near[:, min(rows.shape[1], self.near.shape[1]) - 1]
        # Sums in another order differ in the last digits.
        enough = (found >= least[:, None] - 1e-5) & (rows >= 0)
        return float(enough.sum(axis=1).mean() / min(rows.shape[1], self.near.shape[1]))


def _best_of_items(items: IntArray) -> Callable[[FloatArray, int], IntArray]:
    """Return what takes products (nq, n) to the best rows (nq, k) of different items."""
    order = np.argsort(items, kind="stable")
    starts = np.flatnonzero(np.diff(items[order], prepend=-1))
    number = np.zeros(len(items), np.int64)
    number[starts[1:]] = 1
    number = number.cumsum()

    def best(products: FloatArray, k: int) -> IntArray:
        by_item = products[:, order]
        most = np.maximum.reduceat(by_item, starts, axis=1)
        rows = np.full((len(products), k), -1)
        for i, chosen in enumerate(_largest(most, min(k, len(starts)))):
            at = np.flatnonzero(np.isin(number, chosen) & (by_item[i] == most[i][number]))
            # The first of equals, which has the smallest row.
            first = dict(zip(number[at][::-1], order[at][::-1], strict=True))
            rows[i, : len(chosen)] = [first[item] for item in chosen]
        return rows

    return best


def _largest(products: FloatArray, count: int) -> IntArray:
    """Return the columns (nq, count) of the largest products, ties to the smaller column."""
    at = np.argpartition(-products, count - 1, axis=1)[:, :count]
    at.sort(axis=1)
    order = np.argsort(-np.take_along_axis(products, at, 1), axis=1, kind="stable")
    return np.take_along_axis(at, order, 1)


def _products(queries: Any, points: Any) -> FloatArray:  # noqa: ANN401  # scipy has no types
    products = queries @ points.T
    return _dense(products)


def _products_with(points: Any, queries: Any, rows: IntArray) -> FloatArray:  # noqa: ANN401  # scipy has no types
    """Return the products (nq, m) of each query with its own rows."""
    found = np.empty(rows.shape, np.float32)
    for i in range(len(rows)):
        own = points[np.maximum(rows[i], 0)]
        found[i] = _dense(own @ _dense(queries[[i]])[0])
    return found


def _dense(rows: Any) -> FloatArray:  # noqa: ANN401  # scipy has no types
    """Return an array, whatever kind of rows they are."""
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float32)
