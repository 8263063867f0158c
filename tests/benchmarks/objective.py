"""The objective J, and how much of its gap a contestant closes.

J = L mean |q - x|^2 - (1 - L) mean over unordered pairs |x - x'|^2 of the k chosen unit vectors,
L = 1 - diversity; lower is better. The gap is from plain nearest neighbours (0) to the marginal
greedy over all points (1). A selector that does not minimise J itself is asked with the dial that
serves J best, found on queries that are not reported: that is what equal quality means.
"""

from collections.abc import Callable

import numpy as np

from divgrpc.types import FloatArray, IntArray

_ODDS = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2)


def objective(base: FloatArray, queries: FloatArray, rows: IntArray, diversity: float) -> float:
    """Return the mean of J over queries; `rows` (nq, k) are rows of `base`, k at least 2.

    Raises `ValueError` where a row holds the -1 of a missing result: J of fewer points is better
    for being fewer.
    """
    if rows.min() < 0:
        raise ValueError("J needs k results for every query")
    relevance = 1 - diversity
    chosen = base[rows].astype(np.float64)
    k = rows.shape[1]
    to_query = 2 - 2 * np.einsum("qkd,qd->qk", chosen, queries.astype(np.float64))
    total = chosen.sum(axis=1)
    # Over ordered pairs of unit vectors, sum of 2 - 2 x.x' is 2 k^2 - 2 |sum of x|^2.
    among = (2 * k * k - 2 * np.einsum("qd,qd->q", total, total)) / (k * (k - 1))
    return float((relevance * to_query.mean(axis=1) - diversity * among).mean())


def gap_closed(value: float, nearest: float, exhaustive: float) -> float:
    """Return 1 for a J as good as the exhaustive greedy's, 0 for that of nearest neighbours."""
    if nearest == exhaustive:
        return float("nan")
    return (nearest - value) / (nearest - exhaustive)


def dials(diversity: float) -> list[float]:
    """Return the dials to try for a target: its odds, halved and doubled in small steps."""
    odds = diversity / (1 - diversity)
    return [float(odds * factor / (1 + odds * factor)) for factor in _ODDS]


def best_dial(diversity: float, value_at: Callable[[float], float]) -> float:
    """Return the dial with the least J; the smallest of equals."""
    return min(dials(diversity), key=lambda dial: (value_at(dial), dial))
