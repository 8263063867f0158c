"""Distances from results to the query and between results, and the objective J."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from divgrpc.errors import invalid
from divgrpc.metrics.judging import Values
from divgrpc.types import IntArray, Metric

# A dense array (n, d) or a scipy sparse matrix, which this module must not import.
Rows = Any
# A block of several result lists has at most this many components of dense vectors, and at most
# this many inner products: 8 MiB each.
_BLOCK_NUMBERS: Final = 2**20
# Inner products of dense rows are computed in steps of at most this many multiplications.
_STEP_MULTIPLICATIONS: Final = 2**26
# Inner products of sparse rows are computed in steps of at most this many products.
_STEP_SPARSE_PRODUCTS: Final = 2**17
# Maximum number of sparse rows in a block of several lists. Sparse rows are multiplied with all
# rows of their block, including rows of other lists, so larger blocks would waste work.
_BLOCK_SPARSE_ROWS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class ListDistances:
    """Distances of nq result lists, as `list_distances` defines them; arrays are (nq,).

    to_query: mean distance from the results to the query, NaN if a list has no results.
    mean, least: mean and minimum distance over unordered pairs of results (ILAD and ILMD). NaN for
        fewer than two results.
    found: int64, the number of results in each list.
    k: number of places in a list, filled or empty.
    """

    to_query: Values
    mean: Values
    least: Values
    found: IntArray
    k: int


def list_distances(
    points: Rows, queries: Rows, rows: IntArray, metric: Metric = "cosine"
) -> ListDistances:
    """Measure the distances of result lists.

    points: (n, d) dense or sparse.
    queries: (nq, d) dense or sparse.
    rows: (nq, k) row numbers of `points`, -1 for a place without a result.
    metric: `cosine` gives squared distances between unit vectors, 0 to 4. `euclidean` gives squared
        distances. Under `inner_product` the distance between points is 1 - cosine, as in selectors.
        The distance to the query is then NaN, because selectors scale this distance relative to all
        candidates, and the candidates are unknown here.

    The cosine of a zero vector with any vector counts as 0. Raises `InvalidArgumentError`, with the
    field rows, if `rows` has another shape or k is 0.
    """
    rows = np.asarray(rows, np.int64)
    if rows.ndim != 2 or not rows.shape[1]:
        raise invalid("rows", "must be (queries, k) with k at least 1")
    if len(rows) != queries.shape[0]:
        raise invalid("rows", f"must be of {queries.shape[0]} queries")
    found, places = (rows >= 0).sum(axis=1), rows.shape[1]
    # The time grows with the square of the length, and k may be far above the number of points.
    rows = rows[:, : 1 + np.flatnonzero((rows >= 0).any(axis=0)).max(initial=0)]
    k, dims = rows.shape[1], points.shape[1]
    lists = _BLOCK_SPARSE_ROWS // k if _is_sparse(points) else _BLOCK_NUMBERS // (k * max(k, dims))
    lists = min(max(1, lists), _BLOCK_SPARSE_ROWS)
    values = np.empty((3, len(rows)))
    for start in range(0, len(rows), lists):
        block = slice(start, start + lists)
        values[:, block] = _measure_block(points, queries[block], rows[block], metric)
    return ListDistances(values[0], values[1], values[2], found, places)


def objective(distances: ListDistances, diversity: float) -> Values:
    """Return the objective J (nq,) of each list; lower is better.

    J = (1 - diversity) * to_query - diversity * mean. This is equation 1 of the paper with means
    instead of sums. For k = 1 the second term is 0. J is NaN for a list with fewer than k results,
    because a shorter list could have a better J. J is always NaN under `inner_product`.

    Raises `InvalidArgumentError`, with the field diversity, unless `diversity` is from 0 to 1.
    """
    if not 0 <= diversity <= 1:
        raise invalid("diversity", f"must be between 0 and 1, got {diversity}")
    spread = distances.mean if distances.k > 1 else np.zeros_like(distances.mean)
    value = (1 - diversity) * distances.to_query - diversity * spread
    return np.where(distances.found == distances.k, value, np.nan)


def pair_distances(products: Values, metric: Metric = "cosine") -> Values:
    """Return the distances (n, n) of all pairs of n vectors, as `list_distances` defines them.

    products: (n, n) float64, inner products of all pairs.
    """
    squares = np.diagonal(products)
    return _distances(products, squares[:, None], squares, metric)


def _measure_block(points: Rows, queries: Rows, rows: IntArray, metric: Metric) -> Values:
    """Return the distances of g result lists as an array (3, g).

    The rows of the array are the mean distance to the query, the mean distance between results, and
    the minimum distance between results.
    """
    valid = rows >= 0
    vectors = points[np.maximum(rows, 0).ravel()].astype(np.float64)
    queries = queries.astype(np.float64)
    squares = _squares(vectors).reshape(rows.shape)
    count = valid.sum(axis=1)
    products = _query_products(vectors, queries, rows.shape)
    to_query = _distances(products, squares, _squares(queries)[:, None], metric)
    total, least = np.zeros(len(rows)), np.full(len(rows), np.inf)
    places = np.arange(rows.shape[1])
    for start, products in _pair_products(vectors, rows.shape):
        block = slice(start, start + products.shape[1])
        distances = _distances(products, squares[:, block, None], squares[:, None], metric)
        # Count each unordered pair once by taking only pairs whose second place is after the first.
        pairs = (places > places[block, None]) & valid[:, block, None] & valid[:, None]
        total += np.where(pairs, distances, 0.0).sum(axis=(1, 2))
        least = np.minimum(least, np.where(pairs, distances, np.inf).min(axis=(1, 2)))
    pair_count = count * (count - 1) // 2
    has_query_distance = (count > 0) & (metric != "inner_product")
    values = np.stack(
        [
            np.where(valid, to_query, 0.0).sum(axis=1) / np.maximum(count, 1),
            total / np.maximum(pair_count, 1),
            least,
        ]
    )
    return np.where([has_query_distance, pair_count > 0, pair_count > 0], values, np.nan)


def _distances(products: Values, a: Values, b: Values, metric: Metric) -> Values:
    """Return distances of pairs of vectors from their inner products.

    `a` and `b` hold the squared lengths of the first and the second vector of each pair.
    """
    if metric == "euclidean":
        return np.maximum(0.0, a + b - 2 * products)
    lengths = np.sqrt(a) * np.sqrt(b)
    distances = np.maximum(0.0, 1 - products / np.where(lengths > 0, lengths, np.inf))
    return 2 * distances if metric == "cosine" else distances


def _pair_products(vectors: Rows, shape: tuple[int, int]) -> Iterator[tuple[int, Values]]:
    """Yield the inner products of all pairs of rows within each list, a few places at a time.

    Each item is (start, products). `products` (g, s, k) are the inner products of the rows at
    places start to start + s - 1 of each list with all k rows of the same list. `vectors` holds the
    rows of g lists of k places, and `shape` is (g, k).
    """
    lists, k = shape
    if _is_sparse(vectors):
        step = k if lists > 1 else max(1, _STEP_SPARSE_PRODUCTS // k)
        for start in range(0, k, step):
            block = vectors if lists > 1 else vectors[start : start + step]
            products = _dense(block @ vectors.T).reshape(lists, -1, lists, k)
            yield start, products[np.arange(lists), :, np.arange(lists)]
        return
    stack = vectors.reshape(lists, k, -1)
    step = max(1, _STEP_MULTIPLICATIONS // stack.size)
    for start in range(0, k, step):
        yield start, stack[:, start : start + step] @ stack.transpose(0, 2, 1)


def _query_products(vectors: Rows, queries: Rows, shape: tuple[int, int]) -> Values:
    """Return the inner products (g, k) of the rows of each list with the query of the list."""
    lists, k = shape
    if _is_sparse(vectors) or _is_sparse(queries):
        products = _dense(vectors @ queries.T).reshape(lists, k, lists)
        return np.asarray(products[np.arange(lists), :, np.arange(lists)])
    return np.asarray(np.einsum("gkd,gd->gk", vectors.reshape(lists, k, -1), queries))


def _squares(rows: Rows) -> Values:
    squares = rows.multiply(rows) if _is_sparse(rows) else rows * rows
    return np.asarray(squares.sum(axis=1), np.float64).ravel()


def _is_sparse(rows: Rows) -> bool:
    return hasattr(rows, "tocsr")


def _dense(products: Rows) -> Values:
    """Return a dense or sparse matrix of products as a dense array."""
    return np.asarray(products.toarray() if hasattr(products, "toarray") else products)
