"""Slow reference implementations of `divgrpc.labels`, dense and from the definitions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from divgrpc.types import IntArray
from reference.definitions import Floats


def leml_loss(x: Floats, y: Floats, v: Floats, h: Floats, weight: float) -> float:
    """Return half of the squared error plus half of the weighted squares of both factors."""
    rest = x.astype(float) @ v.astype(float) @ h.astype(float).T - y
    return float((rest**2).sum() + weight * ((v**2).sum() + (h**2).sum())) / 2


def solve_labels(x: Floats, y: Floats, v: Floats, weight: float) -> Floats:
    """Return the label factors that minimise the loss for a given feature map."""
    a = x.astype(float) @ v.astype(float)
    return np.asarray(np.linalg.solve(a.T @ a + weight * np.eye(a.shape[1]), a.T @ y).T)


def solve_features(x: Floats, y: Floats, h: Floats, weight: float) -> Floats:
    """Return the feature map that minimises the loss, from one linear system of d * r unknowns."""
    x, h = x.astype(float), h.astype(float)
    system = np.kron(x.T @ x, h.T @ h)
    system += weight * np.eye(len(system))
    solution = np.linalg.solve(system, (x.T @ y @ h).ravel())
    return np.asarray(solution.reshape(x.shape[1], h.shape[1]))


def embed(x: Floats, v: Floats, offset: Floats, *, unit: bool) -> Floats:
    """Return the embedding of one document, added up feature by feature."""
    x = x.astype(float)
    if unit:
        x = x / (x**2).sum() ** 0.5
    embedded = offset.astype(float)
    for feature in np.flatnonzero(x):
        embedded = embedded + x[feature] * v[feature].astype(float)
    return np.asarray(embedded)


def best(scores: Mapping[int, float], count: int) -> list[int]:
    """Return the labels with the greatest scores; of equal scores, the smaller comes first."""
    return sorted(scores, key=lambda label: (-scores[label], label))[:count]


def vote(
    neighbours: Sequence[int], weights: Sequence[float], labels: Sequence[set[int]]
) -> dict[int, float]:
    """Return each label's share of the votes, where neighbour i votes with weight `weights[i]`."""
    votes: dict[int, float] = defaultdict(float)
    for row, weight in zip(neighbours, weights, strict=True):
        for label in labels[row]:
            votes[label] += weight
    total = sum(weights)
    return {label: value / total for label, value in votes.items() if value > 0}


def sparse_product(
    indptr: IntArray, indices: npt.NDArray[np.int32], values: Floats, columns: Floats
) -> Floats:
    """Return sparse rows times columns in float32, adding the values in stored order."""
    product = np.zeros((len(indptr) - 1, columns.shape[1]), np.float32)
    for row in range(len(product)):
        for at in range(indptr[row], indptr[row + 1]):
            product[row] += values[at] * columns[indices[at]]
    return product


def gram(indptr: IntArray, indices: npt.NDArray[np.int32], values: Floats, columns: int) -> Floats:
    """Return the product of transposed sparse rows and these rows, row after row, in float32."""
    product = np.zeros((columns, columns), np.float32)
    for row in range(len(indptr) - 1):
        for at in range(indptr[row], indptr[row + 1]):
            for other in range(indptr[row], indptr[row + 1]):
                product[indices[at], indices[other]] += values[at] * values[other]
    return product


def transposed_product(
    indptr: IntArray, indices: npt.NDArray[np.int32], values: Floats, rows: Floats, columns: int
) -> Floats:
    """Return transposed sparse rows times `rows` in float32, adding the values in stored order."""
    product = np.zeros((columns, rows.shape[1]), np.float32)
    for row in range(len(indptr) - 1):
        for at in range(indptr[row], indptr[row + 1]):
            product[indices[at]] += values[at] * rows[row]
    return product


def column_sums(a: Floats, b: Floats) -> Floats:
    """Return the inner product of each column of `a` with the same column of `b`, in float64."""
    sums = np.zeros(a.shape[1])
    for row_a, row_b in zip(a.astype(float), b.astype(float), strict=True):
        sums += row_a * row_b
    return sums


def ridge_normal(x: Floats, targets: Floats) -> Floats:
    """Return the unit normal vector of a ridge regression, solved in the primal."""
    x = x.astype(float)
    weight = (x**2).sum() / len(x)
    normal = np.linalg.solve(x.T @ x + weight * np.eye(x.shape[1]), x.T @ targets)
    return np.asarray(normal / np.linalg.norm(normal))


def pick_apart(
    scores: Sequence[tuple[int, float]],
    parents: Mapping[int, int],
    label_count: int,
    k: int,
    diversity: float,
) -> list[tuple[int, float]]:
    """Return the labels that `hierarchy` picks from (label, score) pairs, with their values.

    `scores` come best first. `parents` holds every node that a root reaches, and the parent of a
    root is -1. The paths of all labels are extended to equal length. On each level where no picked
    label has the same ancestor, a label gains the factor of that level.
    """
    paths = {label: _path(label, parents) for label in parents if label < label_count}
    height = max((len(path) - 1 for path in paths.values()), default=0)
    for label, path in paths.items():
        path += [("below", label, level) for level in range(len(path), height + 1)]
    best, worst = scores[0][1], scores[-1][1]
    picks: list[tuple[int, float]] = []
    for _ in range(min(k, len(scores))):
        values = {}
        for label, score in scores:
            share = (score - worst) / (best - worst) if best > worst else 1.0
            before = [paths[pick] for pick, _ in picks if pick in paths]
            gain = Fraction(0)
            if picks and label in paths:
                gain = Fraction(1)
                if height > 1:
                    gain = sum(
                        (
                            Fraction(2 * (height - level), height * (height - 1))
                            for level in range(1, height + 1)
                            if paths[label][level] not in [path[level] for path in before]
                        ),
                        Fraction(0),
                    )
            values[label] = (1 - diversity) * share + diversity * float(gain)
        rest = [label for label, _ in scores if label not in dict(picks)]
        winner = max(rest, key=lambda label: (values[label], -rest.index(label)))
        picks.append((winner, values[winner]))
    return picks


def _path(node: int, parents: Mapping[int, int]) -> list[object]:
    """Return the path from the root to a node; if there are several roots, they share a parent."""
    path: list[object] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    several = list(parents.values()).count(-1) > 1
    return ["root", *path] if several else path
