"""What is true of queries: their nearest points, and what greedy and MMR pick among all points.

For many queries at once, by products of matrices, which is what makes millions of points bearable.
Nothing here is timed: `exhaustive` has the same picks, one query at a time.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from benchmarks.manifold import blocks
from divgrpc.types import FloatArray, IntArray

# Rows (nq, m) and their squared distances, nearest first.
Found = tuple[IntArray, FloatArray]
# Of what MMR holds for some queries at a time.
_HELD_BYTES: Final = 2**28


def nearest(base: FloatArray, queries: FloatArray, count: int) -> Found:
    """Return the `count` nearest of `base` (n, d) for each of `queries` (nq, d), all unit rows."""
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


def recall(found: Iterable[IntArray], near: IntArray) -> float:
    """Return the share of the nearest (nq, m) that was found, however many rows that was."""
    shares = [np.isin(wanted, rows).mean() for rows, wanted in zip(found, near, strict=True)]
    return float(np.mean(shares))


def greedy(base: FloatArray, queries: FloatArray, k: int, diversity: float) -> IntArray:
    """Return what the `marginal` greedy picks (nq, k) among all of `base`; k at least 2."""
    picked = np.full((len(queries), k), -1, np.int64)
    total = np.zeros_like(queries)
    for step in range(k):
        weight = np.float32(2 * diversity / (k - 1))
        towards = np.float32(1 - diversity) * queries - weight * total
        most = np.full(len(queries), -np.inf, np.float32)
        for begin, block in blocks(base):
            values = towards @ block.T
            _leave_out(values, picked[:, :step] - begin)
            at = values.argmax(axis=1)
            value = np.take_along_axis(values, at[:, None], 1)[:, 0]
            picked[:, step] = np.where(value > most, at + begin, picked[:, step])
            most = np.maximum(value, most)
        total += base[picked[:, step]]
    return picked


def mmr(base: FloatArray, queries: FloatArray, k: int, diversity: float) -> IntArray:
    """Return what MMR (Carbonell & Goldstein 1998) picks (nq, k) among all of `base`."""
    picked = np.full((len(queries), k), -1, np.int64)
    some = max(1, _HELD_BYTES // (4 * len(base)))
    for begin in range(0, len(queries), some):
        near = queries[begin : begin + some] @ base.T
        near *= np.float32(1 - diversity)
        alike: FloatArray = np.zeros_like(near)
        for step in range(k):
            values = near - alike
            mine = picked[begin : begin + some]
            _leave_out(values, mine[:, :step])
            mine[:, step] = values.argmax(axis=1)
            products = base[mine[:, step]] @ base.T
            products *= np.float32(diversity)
            alike = products if step == 0 else np.maximum(alike, products, out=alike)
    return picked


def _leave_out(values: FloatArray, picked: IntArray) -> None:
    """Make sure that what was picked, by its place in (nq, n) `values` if there, is not again."""
    queries, steps = np.nonzero((picked >= 0) & (picked < values.shape[1]))
    values[queries, picked[queries, steps]] = -np.inf
