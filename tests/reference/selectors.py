"""Slow reference implementations of the selectors of `divgrpc.search.selectors`."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import optimize

from divgrpc.types import EffectiveParameters, FloatArray
from reference import definitions
from reference.definitions import Floats, Points

# A candidate that adds less than LEAST of volume counts as a copy of the picks.
LEAST = 1e-5
Shares = npt.NDArray[np.float64]


def select(
    points: Points, query: Floats, rows: Sequence[int], parameters: EffectiveParameters
) -> list[tuple[int, float]]:
    """Return the picked rows and the value of each pick, lowest first; not for `qp_relax`."""
    near = definitions.nearest_rows(points, query, rows)
    k = min(parameters.k, len(near))
    if parameters.selector == "rerank":
        length = k + int(parameters.diversity * (len(near) - k))
        alone = replace(parameters, selector="max_sum", diversity=1.0)
        return select(points, query, near[:length], alone)
    if parameters.selector == "dpp":
        return dpp(points, query, near, k, 1 - parameters.diversity)
    if parameters.selector == "max_sum":
        return max_sum(points, query, near, k, 1 - parameters.diversity)
    return definitions.greedy(points, query, rows, parameters)


def length(points: Points, row: int, other_row: int) -> float:
    """Return the square root of the difference of two points; negative differences count as 0."""
    return math.sqrt(max(0.0, definitions.apart(points, row, other_row)))


def lengths(points: Points, query: Floats, rows: Sequence[int]) -> dict[int, float]:
    """Return the square roots of the candidates' costs, because costs are squared distances."""
    costs = definitions.costs(points, query, rows)
    return costs if points.metric == "inner_product" else {r: c**0.5 for r, c in costs.items()}


def max_sum(
    points: Points, query: Floats, near: Sequence[int], k: int, relevance: float
) -> list[tuple[int, float]]:
    """Pick by the greedy algorithm of Borodin, Lee and Ye."""
    costs = lengths(points, query, near)
    weight = 2 * (1 - relevance) / (k - 1) if k > 1 else 0.0
    picks: list[tuple[int, float]] = []
    for _ in range(k):
        values = {
            row: relevance / 2 * costs[row]
            - weight * sum(length(points, row, pick) for pick, _ in picks)
            for row in near
            if row not in dict(picks)
        }
        picks.append(min(values.items(), key=lambda item: item[1]))
    return picks


def likeness(
    points: Points, query: Floats, rows: Sequence[int]
) -> tuple[dict[int, float], npt.NDArray[np.float64]]:
    """Return costs and similarity matrix of the candidates for a determinantal point process."""
    costs = definitions.costs(points, query, rows)
    apart = np.array(
        [[0.0 if a == b else definitions.apart(points, a, b) for b in rows] for a in rows]
    )
    if points.metric == "cosine":
        return costs, 1 - apart / 2
    if points.metric == "inner_product":
        return costs, 1 - apart
    mean = sum(costs.values()) / len(costs) or 1.0
    return {row: cost / mean for row, cost in costs.items()}, 1 / (1 + apart / mean)


def dpp(
    points: Points, query: Floats, near: Sequence[int], k: int, relevance: float
) -> list[tuple[int, float]]:
    """Pick by determinants, each from scratch; a pick that adds no volume is then left out."""
    costs, alike = likeness(points, query, near)
    volume: list[int] = []
    picks: list[tuple[int, float]] = []
    for _ in range(k):
        before = np.linalg.det(alike[np.ix_(volume, volume)])
        volumes = {
            i: np.linalg.det(alike[np.ix_([*volume, i], [*volume, i])]) / before
            for i, row in enumerate(near)
            if row not in dict(picks)
        }
        values = {
            i: relevance * costs[near[i]] - (1 - relevance) * math.log(max(share, LEAST))
            for i, share in volumes.items()
        }
        best = min(values, key=lambda i: values[i])
        picks.append((near[best], values[best]))
        if volumes[best] > LEAST:
            volume.append(best)
    return picks


def spread_sum(
    points: Points, query: Floats, near: Sequence[int], picks: Sequence[int], relevance: float
) -> float:
    """Return the sum that `max_sum` maximises; the farthest candidate has relevance 0."""
    costs, k = lengths(points, query, near), len(picks)
    pairs = sum(length(points, a, b) for a, b in combinations(picks, 2))
    nearness = sum(max(costs.values()) - costs[row] for row in picks)
    return relevance * nearness + (2 * (1 - relevance) / (k - 1) * pairs if k > 1 else 0.0)


def eq_1(prices: Shares, apart: Shares, shares: Shares, beta: float) -> float:
    """Return the value of Eq. 1 of the paper for these shares.

    `prices` (m,) are lambda times the costs, and `apart` (m, m) are the distances of pairs.
    """
    return float(prices @ shares - beta * shares @ apart @ shares)


def relaxed(prices: Shares, apart: Shares, k: int, beta: float) -> Shares:
    """Minimise Eq. 1 with scipy's general solver, over shares from 0 to 1 whose sum is k."""
    scale = float(np.abs(prices).max() + 2 * beta * k * np.abs(apart).max()) or 1.0
    solution = optimize.minimize(
        lambda a: eq_1(prices, apart, a, beta) / scale,
        np.full(len(prices), k / len(prices)),
        jac=lambda a: (prices - 2 * beta * apart @ a) / scale,
        method="SLSQP",
        bounds=[(0, 1)] * len(prices),
        constraints={"type": "eq", "fun": lambda a: a.sum() - k, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    return np.asarray(solution.x)


def best_selection(prices: Shares, apart: Shares, k: int, beta: float) -> tuple[list[int], float]:
    """Return the selection with the lowest value of Eq. 1 and that value, by trying all."""

    def value(picks: Sequence[int]) -> float:
        shares = np.zeros(len(prices))
        shares[list(picks)] = 1
        return eq_1(prices, apart, shares, beta)

    best = min(combinations(range(len(prices)), k), key=value)
    return list(best), value(best)


def pick_by_sums(
    far: FloatArray,
    places: Iterable[int],
    k: int,
    value: Callable[[int, np.floating, int], np.floating],
) -> list[tuple[int, np.floating]]:
    """Pick up to `k` of `places` one by one; return each pick with its value.

    Each step picks the place of smallest `value(place, apart, step)`, where `apart` is the sum of
    its distances from the earlier picks. Sums have the type of `far` (m, m), the distances. They
    are added in the order of picking. If values are equal, the first place is picked.
    """
    picks: list[tuple[int, np.floating]] = []
    rest = list(places)
    while rest and len(picks) < k:
        values = []
        for place in rest:
            apart = far.dtype.type(0)
            for pick, _ in picks:
                apart += far[place, pick]
            values.append(value(place, apart, len(picks)))
        best = values.index(min(values))
        picks.append((rest.pop(best), values[best]))
    return picks
