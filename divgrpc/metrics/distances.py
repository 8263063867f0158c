"""How far results lie from the query and from one another, and the objective J made of the two."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics.judging import Values
from divgrpc.types import IntArray, Metric

# A dense (n, d) array or a sparse matrix of scipy's, which is not imported here.
Rows = Any


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
    rows = np.asarray(rows, np.int64)
    if rows.ndim != 2 or not rows.shape[1]:
        raise InvalidArgumentError("rows", "rows must be (queries, k) with k at least 1")
    if len(rows) != queries.shape[0]:
        raise InvalidArgumentError("rows", f"rows must be of {queries.shape[0]} queries")
    values = np.full((3, len(rows)), np.nan)
    for number, own in enumerate(rows):
        chosen = own[own >= 0]
        if len(chosen):
            query = queries[number : number + 1]
            values[:, number] = _of_list(points[chosen], query, metric)
    return ListDistances(values[0], values[1], values[2], (rows >= 0).sum(axis=1), rows.shape[1])


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


def _of_list(chosen: Rows, query: Rows, metric: Metric) -> tuple[float, float, float]:
    chosen, query = chosen.astype(np.float64), query.astype(np.float64)
    products, near = _dense(chosen @ chosen.T), _dense(chosen @ query.T)[:, 0]
    squares, own = products.diagonal(), _dense(query @ query.T)[0, 0]
    if metric == "euclidean":
        apart = np.maximum(0.0, squares[:, None] + squares - 2 * products)
        to_query = np.maximum(0.0, squares + own - 2 * near)
    else:
        inverse = 1 / np.sqrt(np.where(squares > 0, squares, np.inf))
        cosines = products * inverse * inverse[:, None]
        apart = np.maximum(0.0, 1 - cosines)
        to_query = 2 - 2 * near * inverse / (np.sqrt(own) or np.inf)
        if metric == "cosine":
            apart = 2 * apart
        else:
            to_query = np.full_like(near, np.nan)
    pairs = apart[np.triu_indices(len(apart), 1)]
    if not len(pairs):
        return float(to_query.mean()), np.nan, np.nan
    return float(to_query.mean()), float(pairs.mean()), float(pairs.min())


def _dense(products: Rows) -> Values:
    """Return products as an array, whatever kind of rows they are of."""
    return np.asarray(products.toarray() if hasattr(products, "toarray") else products)
