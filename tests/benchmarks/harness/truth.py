"""Exact nearest points, exhaustive greedy and MMR selection, and the objective J.

There are two implementations. The functions for many queries use matrix products, so that millions
of points are feasible; these functions are never timed. The compiled kernels for one query are the
exhaustive baselines that benchmarks time.

A step of greedy picks argmin L d(q,r) - w sum over S of d(r,s), where d is the squared distance, S
the earlier picks, L = 1 - diversity, and w = 2 (1 - L) / (k - 1) for the variant `marginal`. On
unit vectors this equals argmax r . (L q - w sum of S). A selection therefore takes k passes over
the points at memory speed. (The product's `exact` search with both limits at 0 is slower, because
it first sorts all points by distance.)
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import numpy as np
from scipy import sparse

from benchmarks.harness.datasets import blocks
from divgrpc import metrics
from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.vector_sums import row_dot
from divgrpc.types import FloatArray, IntArray

# A dense array (n, d) or a scipy csr_array, which has no type hints.
Points: TypeAlias = Any
# Row numbers (nq, m), nearest first, and their squared distances (nq, m).
Neighbours: TypeAlias = tuple[IntArray, FloatArray]
_ODDS: Final = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2)


def nearest(base: FloatArray, queries: FloatArray, count: int) -> Neighbours:
    """Return the `count` nearest unit rows (n, d) of queries (nq, d), and squared distances."""
    count = min(count, len(base))
    rows, products = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for begin, block in blocks(base):
        near = queries @ block.T
        some = min(count, len(block))
        at = np.argpartition(-near, some - 1, axis=1)[:, :some]
        rows = np.concatenate((rows, at + begin), axis=1)
        products = np.concatenate((products, np.take_along_axis(near, at, 1)), axis=1)
        order = np.lexsort((rows, -products), axis=1)[:, :count]
        rows = np.take_along_axis(rows, order, 1)
        products = np.take_along_axis(products, order, 1)
    return rows, 2 - 2 * products


def recall(answers: Iterable[IntArray], near: IntArray) -> float:
    return float(
        np.mean([np.isin(row, rows).mean() for rows, row in zip(answers, near, strict=True)])
    )


def greedy(base: Points, queries: FloatArray, k: int, diversity: float) -> IntArray:
    """Return the rows (nq, k) that `marginal` greedy picks of unit rows (n, d); k is at least 2."""
    weight = np.float32(2 * diversity / (k - 1))
    rows = []
    for query in queries:
        near = np.float32(1 - diversity) * (base @ query)
        picks: list[int] = []
        for _ in range(k):
            near[picks] = -np.inf
            picks.append(int(near.argmax()))
            pick = base[picks[-1:]]
            near -= weight * (base @ (pick.toarray() if sparse.issparse(pick) else pick)[0])
        rows.append(picks)
    return np.array(rows)


def mmr(base: FloatArray, queries: FloatArray, k: int, diversity: float) -> IntArray:
    """Return the rows (nq, k) that MMR (Carbonell & Goldstein 1998) picks among all of `base`."""
    return np.array([mmr_of_one(base, query, k, diversity) for query in queries])


def mean_objective(
    base: FloatArray, queries: FloatArray, rows: IntArray, diversity: float
) -> float:
    """Return the mean of J of row numbers (nq, k); raises `ValueError` if one is missing (-1)."""
    distances = metrics.list_distances(base, queries, rows)
    value = float(metrics.objective(distances, diversity).mean())
    if np.isnan(value):
        raise ValueError("J needs k results for every query")
    return value


def mean_mmr(base: FloatArray, queries: FloatArray, rows: IntArray, diversity: float) -> float:
    """Return the mean negated objective of MMR over all queries; lower is better.

    The objective is the sum of the gains of all steps. A step gains (1 - diversity) times the inner
    product with the query, minus diversity times the greatest inner product with an earlier pick.
    `rows` (nq, k) are in the order of selection. Vectors are used as they are, without
    normalisation.
    """
    picks = base[rows]
    near = np.einsum("qkd,qd->qk", picks, queries).sum(axis=1)
    alike = picks @ picks.transpose(0, 2, 1)
    later = np.tril(np.ones(alike.shape[1:], bool), -1)
    closest = np.where(later, alike, -np.inf).max(axis=2)[:, 1:].sum(axis=1)
    return float(-((1 - diversity) * near - diversity * closest).mean())


def dials(diversity: float) -> list[float]:
    """Return the dials to try for a target; their odds are multiples of the target's odds."""
    odds = diversity / (1 - diversity)
    return [float(odds * factor / (1 + odds * factor)) for factor in _ODDS]


def best_dial(diversity: float, value_at: Callable[[float], float]) -> float:
    """Return the dial with the lowest value, such as J; of equal values, the smallest dial."""
    return min(dials(diversity), key=lambda dial: (value_at(dial), dial))


@kernel
def _among(picks: IntArray, count: int, row: int) -> bool:
    is_present = False
    for i in range(count):
        is_present |= picks[i] == row
    return is_present


@kernel
def _pick(vectors: FloatArray, target: FloatArray, picks: IntArray, count: int) -> int:
    """Return the row with the greatest product with `target` that is not in picks[:count]."""
    best, most = -1, np.float32(-np.inf)
    for row in range(vectors.shape[0]):
        value = row_dot(vectors, row, target, 0)
        if value > most and not _among(picks, count, row):
            best, most = row, value
    return best


@allocating
def greedy_kernel(
    vectors: FloatArray, query: FloatArray, diversity: float, picks: IntArray
) -> None:
    target, total = np.empty_like(query), np.zeros_like(query)
    weight = np.float32(2 * diversity / (picks.shape[0] - 1))
    for step in range(picks.shape[0]):
        for i in range(vectors.shape[1]):
            target[0, i] = np.float32(1 - diversity) * query[0, i] - weight * total[0, i]
        row = _pick(vectors, target, picks, step)
        picks[step] = row
        for i in range(vectors.shape[1]):
            total[0, i] += vectors[row, i]


@allocating
def mmr_kernel(vectors: FloatArray, query: FloatArray, diversity: float, picks: IntArray) -> None:
    near = np.empty(vectors.shape[0], np.float32)
    closest = np.full(vectors.shape[0], -np.inf, np.float32)
    relevance, penalty = np.float32(1 - diversity), np.float32(diversity)
    for step in range(picks.shape[0]):
        best, most = -1, np.float32(-np.inf)
        for row in range(vectors.shape[0]):
            if step == 0:
                near[row] = value = relevance * row_dot(vectors, row, query, 0)
            else:
                alike = row_dot(vectors, row, vectors, picks[step - 1])
                closest[row] = max(closest[row], alike)
                value = near[row] - penalty * closest[row]
            if value > most and not _among(picks, step, row):
                best, most = row, value
        picks[step] = best


def greedy_of_one(base: FloatArray, query: FloatArray, k: int, diversity: float) -> IntArray:
    """Return the rows (k,) that greedy picks of unit rows (n, d) for a unit query (d,); k >= 2."""
    picks = np.empty(k, np.int64)
    greedy_kernel(base, query[None], diversity, picks)
    return picks


def mmr_of_one(base: FloatArray, query: FloatArray, k: int, diversity: float) -> IntArray:
    """Return the rows (k,) that MMR picks of unit rows (n, d) for a unit query (d,), in order."""
    picks = np.empty(k, np.int64)
    mmr_kernel(base, query[None], diversity, picks)
    return picks
