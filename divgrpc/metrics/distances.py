"""How far results lie from the query and from one another, and the objective J made of the two."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics.judging import Values
from divgrpc.types import IntArray, Metric

T = TypeVar("T")

# A dense (n, d) array or a sparse matrix of scipy's, which is not imported here.
Rows = Any
# Numbers held at a time: of the rows that lists name, and of the products of pairs.
_NUMBERS: Final = 2**20
# Multiplications at a time, and products of sparse rows: some milliseconds.
_MULTIPLICATIONS: Final = 2**26
_SPARSE_PRODUCTS: Final = 2**17
# Rows of sparse lists that are multiplied with one another at a time: most products are not wanted.
_SPARSE_ROWS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class ListDistances:
    """Distances of nq result lists, in the metric's own terms (`list_distances`); each (nq,).

    `to_query`: their mean distance to the query; `mean` and `least`: the mean and the least over
    unordered pairs of results (ILAD and ILMD), NaN for fewer than two; `found` int64: how many
    results there are, of `k` places.
    """

    to_query: Values
    mean: Values
    least: Values
    found: IntArray
    k: int


def list_distances(
    points: Rows, queries: Rows, rows: IntArray, metric: Metric = "cosine"
) -> ListDistances:
    """Measure the lists `rows` (nq, k): rows of `points` (n, d), -1 where there is none.

    Under `cosine` and `euclidean` distances are squared, those of unit vectors (0 to 4) or of the
    vectors as they are. Under `inner_product` the distance of two points is 1 - cosine, as
    selectors have it, and that to the query is NaN: it depends on the candidates. A vector of zeros
    has a cosine of 0 with any other.
    """
    return to_end(list_distances_stepwise(points, queries, rows, metric))


def list_distances_stepwise(
    points: Rows, queries: Rows, rows: IntArray, metric: Metric
) -> Generator[None, None, ListDistances]:
    """Do what `list_distances` does, with a pause every few milliseconds, however long a list."""
    rows = np.asarray(rows, np.int64)
    if rows.ndim != 2 or not rows.shape[1]:
        raise InvalidArgumentError("rows", "rows must be (queries, k) with k at least 1")
    if len(rows) != queries.shape[0]:
        raise InvalidArgumentError("rows", f"rows must be of {queries.shape[0]} queries")
    k, dims = rows.shape[1], points.shape[1]
    most = _SPARSE_ROWS // k if _is_sparse(points) else _NUMBERS // (k * max(k, dims))
    at_once = min(max(1, most), _SPARSE_ROWS)
    values = np.empty((3, len(rows)))
    for start in range(0, len(rows), at_once):
        own = slice(start, start + at_once)
        values[:, own] = yield from _of_lists(points, queries[own], rows[own], metric)
    return ListDistances(values[0], values[1], values[2], (rows >= 0).sum(axis=1), k)


def to_end(steps: Generator[None, None, T]) -> T:
    """Go through all steps without a pause, and return what the last one returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def objective(distances: ListDistances, diversity: float) -> Values:
    """Return J of each list: (1 - diversity) times `to_query` less diversity times `mean`.

    Eq. 1 with both sums made means; lower is better. NaN for a list that is short of k results: J
    of fewer points is better for being fewer. Where k is 1 there are no pairs and their part is 0.
    NaN under `inner_product`, whose distance to the query is not fixed.
    """
    if not 0 <= diversity <= 1:
        raise InvalidArgumentError(
            "diversity", f"diversity must be between 0 and 1, got {diversity}"
        )
    apart = distances.mean if distances.k > 1 else np.zeros_like(distances.mean)
    value = (1 - diversity) * distances.to_query - diversity * apart
    return np.where(distances.found == distances.k, value, np.nan)


def _of_lists(
    points: Rows, queries: Rows, rows: IntArray, metric: Metric
) -> Generator[None, None, Values]:
    """Return (3, g): mean distance to the query, mean and least between results, of g lists."""
    there = rows >= 0
    chosen = points[np.maximum(rows, 0).ravel()].astype(np.float64)
    queries = queries.astype(np.float64)
    squares = _squares(chosen).reshape(rows.shape)
    count = there.sum(axis=1)
    near = _near(chosen, queries, rows.shape)
    to_query = _distances(near, squares, _squares(queries)[:, None], metric)
    total, least = np.zeros(len(rows)), np.full(len(rows), np.inf)
    for start, products in _products(chosen, rows.shape):
        own = slice(start, start + products.shape[1])
        apart = _distances(products, squares[:, own, None], squares[:, None], metric)
        # Each pair once: with those that come later in the list.
        later = (
            np.arange(rows.shape[1]) > np.arange(own.start, own.start + products.shape[1])[:, None]
        )
        pairs = later & there[:, own, None] & there[:, None]
        total += np.where(pairs, apart, 0.0).sum(axis=(1, 2))
        least = np.minimum(least, np.where(pairs, apart, np.inf).min(axis=(1, 2)))
        yield
    pairs_of = count * (count - 1) // 2
    measured = (count > 0) & (metric != "inner_product")
    values = np.stack(
        [
            np.where(there, to_query, 0.0).sum(axis=1) / np.maximum(count, 1),
            total / np.maximum(pairs_of, 1),
            least,
        ]
    )
    return np.where([measured, pairs_of > 0, pairs_of > 0], values, np.nan)


def _distances(products: Values, a: Values, b: Values, metric: Metric) -> Values:
    """Return the distances of pairs of vectors, from their products and their squared lengths."""
    if metric == "euclidean":
        return np.maximum(0.0, a + b - 2 * products)
    lengths = np.sqrt(a) * np.sqrt(b)
    apart = np.maximum(0.0, 1 - products / np.where(lengths > 0, lengths, np.inf))
    return 2 * apart if metric == "cosine" else apart


def _products(chosen: Rows, shape: tuple[int, int]) -> Iterator[tuple[int, Values]]:
    """Yield places and the products (g, some, k) of those places' rows with all of their lists."""
    lists, k = shape
    if _is_sparse(chosen):
        step = k if lists > 1 else max(1, _SPARSE_PRODUCTS // k)
        for start in range(0, k, step):
            some = chosen if lists > 1 else chosen[start : start + step]
            products = _dense(some @ chosen.T).reshape(lists, -1, lists, k)
            yield start, products[np.arange(lists), :, np.arange(lists)]
        return
    stacked = chosen.reshape(lists, k, -1)
    step = max(1, _MULTIPLICATIONS // stacked.size)
    for start in range(0, k, step):
        yield start, stacked[:, start : start + step] @ stacked.transpose(0, 2, 1)


def _near(chosen: Rows, queries: Rows, shape: tuple[int, int]) -> Values:
    """Return the products (g, k) of each list's rows with its query."""
    lists, k = shape
    if _is_sparse(chosen) or _is_sparse(queries):
        products = _dense(chosen @ queries.T).reshape(lists, k, lists)
        return np.asarray(products[np.arange(lists), :, np.arange(lists)])
    return np.asarray(np.einsum("gkd,gd->gk", chosen.reshape(lists, k, -1), queries))


def _squares(rows: Rows) -> Values:
    squares = rows.multiply(rows) if _is_sparse(rows) else rows * rows
    return np.asarray(squares.sum(axis=1), np.float64).ravel()


def _is_sparse(rows: Rows) -> bool:
    return hasattr(rows, "tocsr")


def _dense(products: Rows) -> Values:
    """Return products as an array, whatever kind of rows they are of."""
    return np.asarray(products.toarray() if hasattr(products, "toarray") else products)
