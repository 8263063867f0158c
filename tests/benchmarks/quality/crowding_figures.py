"""Figures of answers to queries to a crowd, beside exact search over all of its points."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from scipy import sparse

from benchmarks.harness import truth
from divgrpc import metrics
from divgrpc.index import Index
from divgrpc.types import EffectiveParameters, FloatArray, IntArray
from support.crowded_points import Crowd, Queries

# Products of queries and points that are held at a time.
_BLOCK_PRODUCTS: Final = 1 << 26
# A gap is no gap where it is less than this share of J.
_LEAST_GAP: Final = 0.01


@dataclass(frozen=True, eq=False)
class Truth:
    """One kind of queries to a crowd, and what exact search over all its points finds.

    `nearest` (nq, m) rows, nearest first, and their cosines `near` (nq, m); `distinct` (nq, k): the
    nearest rows of different items, -1 where there are fewer items.
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
        blocks: list[tuple[IntArray, FloatArray, IntArray]] = []
        step = max(1, _BLOCK_PRODUCTS // crowd.points.shape[0])
        for start in range(0, queries.rows.shape[0], step):
            products = _dense(queries.rows[start : start + step] @ crowd.points.T)
            rows = _largest(products, count)
            near = np.take_along_axis(products, rows, 1)
            blocks.append((rows, near, best_of_items(products, k)))
        nearest, near, distinct = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return cls(crowd, kind, queries, k, nearest, near, distinct)

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
            queries = _dense(self.queries.rows)
            rows = truth.greedy(self.crowd.points, queries, self.k, diversity)
            self._greedy[diversity] = self.distances(rows)
        return self._greedy[diversity]

    def recall(self, rows: IntArray) -> float:
        """Return the share of the m nearest points among candidates `rows` (nq, m), -1 for none.

        A candidate as near as the m-th nearest point counts as one of them: copies that are exact
        may stand for one another.
        """
        products = np.empty(rows.shape, np.float32)
        for i, row in enumerate(rows):
            candidates = self.crowd.points[np.maximum(row, 0)]
            products[i] = _dense(candidates @ _dense(self.queries.rows[[i]])[0])
        count = min(rows.shape[1], self.near.shape[1])
        # Sums in another order differ in the last digits.
        enough = (products >= self.near[:, [count - 1]] - 1e-5) & (rows >= 0)
        return float(enough.sum(axis=1).mean() / count)


@dataclass(frozen=True)
class Recalls:
    """Recalls of the candidates that a selector sees, each measured once for the same search."""

    index: Index
    truth: Truth
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def of(self, parameters: EffectiveParameters) -> float:
        """Return the recall of the nearest `candidates_limit` among the candidates.

        The candidates are what plain nearest neighbours finds in the same search under the same
        limits, with nothing collapsed.
        """
        most = self.truth.nearest.shape[1]
        limit = min(parameters.candidates_limit or most, most)
        key = (limit, parameters.search, parameters.hash_limit, parameters.n_probes)
        if key not in self._known:
            result = self.index.query(
                self.truth.queries.rows,
                k=limit,
                selector="nearest",
                diversity=0.0,
                search=parameters.search,
                candidates_limit=limit,
                hash_limit=parameters.hash_limit,
                sampling=parameters.sampling,
                n_probes=parameters.n_probes or None,
            )
            self._known[key] = self.truth.recall(result.ids)
        return self._known[key]


def figures(truth: Truth, rows: IntArray, diversity: float) -> dict[str, float | None]:
    """Return the figures of answers (nq, k), means over queries, with J at that `diversity`.

    "distinct": distinct items in k places; "of topic": those of the topic that was asked for;
    "relevant": the share of places with such a point; "of best" and "of nearest": the mean cosine
    as a share of the best k distinct items' and of plain neighbours'; "gap closed": the part of the
    gap in J between plain neighbours and greedy over all points, None where it is under 1 % of J.
    """
    judged = metrics.judge(rows, truth.queries.asked, truth.crowd.labels)
    items = np.where(rows >= 0, truth.crowd.items[rows], -1)
    distances = truth.distances(rows)
    relevance, plain, best = (
        1 - metrics.mean(lists.to_query) / 2 for lists in (distances, truth.plain, truth.best)
    )
    values, low, high = (
        metrics.objective(lists, diversity)
        for lists in (distances, truth.plain, truth.greedy(diversity))
    )
    gap = float(np.nanmean(low - high)) > _LEAST_GAP * abs(float(np.nanmean(high)))
    return {
        "distinct": _distinct(items, rows >= 0),
        "of topic": _distinct(items, judged.relevant),
        "relevant": float(judged.relevant.mean()),
        "of best": relevance / best,
        "of nearest": relevance / plain,
        "h": metrics.mean(metrics.h_score(judged)),
        "J": metrics.mean(values),
        "gap closed": metrics.gap_closed(values, low, high) if gap else None,
    }


def _distinct(items: IntArray, counted: np.typing.NDArray[np.bool_]) -> float:
    """Return the mean number of distinct items in the places of a list that count."""
    pairs = zip(items, counted, strict=True)
    return float(np.mean([len(np.unique(row[places])) for row, places in pairs]))


def _best_of_items(items: IntArray) -> Callable[[FloatArray, int], IntArray]:
    """Return a function from products (nq, n) to the best rows (nq, k) of different items."""
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


def _dense(rows: Any) -> FloatArray:  # noqa: ANN401  # scipy has no types
    """Return an array, whatever kind of rows they are."""
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float32)
