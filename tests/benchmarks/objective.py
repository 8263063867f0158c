"""The objective J of whole runs, and the dials that serve it.

A selector that does not minimise J itself is asked with the dial that serves J best, found on
queries that are not reported: that is what equal quality means.
"""

from collections.abc import Callable

import numpy as np

from divgrpc import metrics
from divgrpc.metrics import list_distances
from divgrpc.types import FloatArray, IntArray

_ODDS = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2)


def mean_objective(
    base: FloatArray, queries: FloatArray, rows: IntArray, diversity: float
) -> float:
    """Return the mean of J over queries; `rows` (nq, k) are rows of `base`, none of them missing.

    Raises `ValueError` where a row holds the -1 of a missing result.
    """
    value = float(metrics.objective(list_distances(base, queries, rows), diversity).mean())
    if np.isnan(value):
        raise ValueError("J needs k results for every query")
    return value


def mean_mmr(base: FloatArray, queries: FloatArray, rows: IntArray, diversity: float) -> float:
    """Return what MMR maximises, summed over its steps and negated; mean over queries.

    A step gains (1 - diversity) times the product with the query less diversity times the largest
    product with an earlier pick; `rows` (nq, k) in order. No vector is scaled.
    """
    picked = base[rows]
    near = np.einsum("qkd,qd->qk", picked, queries).sum(axis=1)
    alike = picked @ picked.transpose(0, 2, 1)
    later = np.tril(np.ones(alike.shape[1:], bool), -1)
    closest = np.where(later, alike, -np.inf).max(axis=2)[:, 1:].sum(axis=1)
    return float(-((1 - diversity) * near - diversity * closest).mean())


def dials(diversity: float) -> list[float]:
    """Return the dials to try for a target: its odds, halved and doubled in small steps."""
    odds = diversity / (1 - diversity)
    return [float(odds * factor / (1 + odds * factor)) for factor in _ODDS]


def best_dial(diversity: float, value_at: Callable[[float], float]) -> float:
    """Return the dial with the least J; the smallest of equals."""
    return min(dials(diversity), key=lambda dial: (value_at(dial), dial))
