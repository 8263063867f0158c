"""Slow, obvious twins of `divgrpc.labels`: everything dense, from the definitions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from divgrpc.types import IntArray
from reference import Floats


def leml_loss(x: Floats, y: Floats, v: Floats, h: Floats, weight: float) -> float:
    """Return half the squared error and half the weighted squares of both factors."""
    rest = x.astype(float) @ v.astype(float) @ h.astype(float).T - y
    return float((rest**2).sum() + weight * ((v**2).sum() + (h**2).sum())) / 2


def solve_labels(x: Floats, y: Floats, v: Floats, weight: float) -> Floats:
    """Return the label factors that are best for a feature map."""
    a = x.astype(float) @ v.astype(float)
    return np.asarray(np.linalg.solve(a.T @ a + weight * np.eye(a.shape[1]), a.T @ y).T)


def solve_features(x: Floats, y: Floats, h: Floats, weight: float) -> Floats:
    """Return the feature map that is best for label factors: one system of d times r unknowns."""
    x, h = x.astype(float), h.astype(float)
    system = np.kron(x.T @ x, h.T @ h)
    system += weight * np.eye(len(system))
    solved = np.linalg.solve(system, (x.T @ y @ h).ravel())
    return np.asarray(solved.reshape(x.shape[1], h.shape[1]))


def embed(x: Floats, v: Floats, offset: Floats, *, unit: bool) -> Floats:
    """Return what stands for one document, feature by feature."""
    x = x.astype(float)
    if unit:
        x = x / (x**2).sum() ** 0.5
    embedded = offset.astype(float)
    for feature in np.flatnonzero(x):
        embedded = embedded + x[feature] * v[feature].astype(float)
    return np.asarray(embedded)


def best(scores: Mapping[int, float], count: int) -> list[int]:
    """Return the labels of the greatest scores, of equals the smaller."""
    return sorted(scores, key=lambda label: (-scores[label], label))[:count]


def vote(
    neighbours: Sequence[int], weights: Sequence[float], labels: Sequence[set[int]]
) -> dict[int, float]:
    """Return each label's share of the votes, from what every neighbour weighs."""
    votes: dict[int, float] = defaultdict(float)
    for row, weight in zip(neighbours, weights, strict=True):
        for label in labels[row]:
            votes[label] += weight
    total = sum(weights)
    return {label: value / total for label, value in votes.items() if value > 0}


def sparse_product(
    indptr: IntArray, indices: npt.NDArray[np.int32], values: Floats, columns: Floats
) -> Floats:
    """Return sparse rows times columns in float32, value by value in their order."""
    product = np.zeros((len(indptr) - 1, columns.shape[1]), np.float32)
    for row in range(len(product)):
        for at in range(indptr[row], indptr[row + 1]):
            product[row] += values[at] * columns[indices[at]]
    return product


def column_sums(a: Floats, b: Floats) -> Floats:
    """Return the product of each column of one with that of the other, row by row in float64."""
    sums = np.zeros(a.shape[1])
    for mine, other in zip(a.astype(float), b.astype(float), strict=True):
        sums += mine * other
    return sums


def ridge_normal(x: Floats, told: Floats) -> Floats:
    """Return the unit normal of a ridge regression, in as many unknowns as there are columns."""
    x = x.astype(float)
    weight = (x**2).sum() / len(x)
    found = np.linalg.solve(x.T @ x + weight * np.eye(x.shape[1]), x.T @ told)
    return np.asarray(found / np.linalg.norm(found))
