"""Points and queries of benchmarks: CIFAR-100 features, digits, or synthetic points.

The digits replace CIFAR-100 if no folder of data sets is configured.

Synthetic points are made to be hard to search. Isotropic clusters would be too easy, because any
index finds the neighbours within a cluster. Here the clusters overlap on a curved manifold, and
their sizes follow a power law. A point is drawn near the centre of its cluster in 24 latent
dimensions. Two random layers with a tanh in between map it to `dims` dimensions. A little noise is
added, and the point is scaled to unit length.

Points are drawn in blocks, and each block has its own random stream. The first n points are
therefore the same for any number of points.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc.index import Index
from divgrpc.metrics import JudgedLabels, precision_at
from divgrpc.types import FloatArray, HashFamily, IntArray, Search
from divgrpc_lab.data import documents, topics
from divgrpc_lab.data.documents import Split
from divgrpc_lab.data.synthetic import LabelledDocuments

DIMS: Final = 128
LATENT: Final = 24
_HIDDEN_DIMS: Final = 96
_CLUSTERS: Final = 2_000
# The share of the n-th largest cluster is proportional to n to the power of -_POWER.
_POWER: Final = 0.8
# _SPREAD is the standard deviation of a cluster in latent dimensions. _BEND is the scale of the
# inner layer; greater values bend the manifold more. _NOISE is the standard deviation of the noise.
_SPREAD: Final = 0.7
_BEND: Final = 1.5
_NOISE: Final = 0.08
_BLOCK: Final = 1 << 14


@dataclass(frozen=True, eq=False)
class Manifold:
    """The distribution that synthetic points are drawn from.

    centres: (clusters, LATENT), the centres of the clusters in latent dimensions. layers: the
    weights of the two layers, (LATENT, hidden) and (hidden, dims). shares: (clusters,), the
    probability of each cluster. noise: the standard deviation of the noise of a coordinate.
    """

    seed: int
    centres: FloatArray
    layers: tuple[FloatArray, FloatArray]
    shares: FloatArray
    noise: float = _NOISE

    @classmethod
    def of(cls, seed: int = 0, dims: int = DIMS, noise: float | None = None) -> Self:
        """Draw the centres and the layers of a manifold; noise None is that of the benchmarks."""
        random = np.random.default_rng([seed, 2])
        centres = random.standard_normal((_CLUSTERS, LATENT), np.float32)
        layers = (
            random.standard_normal((LATENT, _HIDDEN_DIMS), np.float32) * (_BEND / LATENT**0.5),
            random.standard_normal((_HIDDEN_DIMS, dims), np.float32) / _HIDDEN_DIMS**0.5,
        )
        shares = np.arange(1, _CLUSTERS + 1) ** -_POWER
        inner, outer = (layer.astype(np.float32) for layer in layers)
        level = _NOISE if noise is None else noise
        return cls(seed, centres, (inner, outer), shares / shares.sum(), level)

    def points(self, count: int) -> FloatArray:
        """Return the first `count` points (count, dims), of unit length, in memory."""
        return self._fill(np.empty((count, self.dims), np.float32), 0)

    def queries(self, count: int) -> FloatArray:
        """Return the first `count` queries, drawn like points but from another random stream."""
        return self._fill(np.empty((count, self.dims), np.float32), 1)

    def write(self, path: Path, count: int) -> FloatArray:
        """Write the first `count` points to a .npy file block by block, and return its memmap."""
        rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, self.dims))
        self._fill(rows, 0)
        rows.flush()
        rows_on_disk: FloatArray = np.load(path, mmap_mode="r")
        return rows_on_disk

    @property
    def dims(self) -> int:
        """Number of dimensions of points and queries."""
        return len(self.layers[1].T)

    def clusters(self, random: np.random.Generator) -> IntArray:
        """Draw the cluster of each point of a block."""
        return random.choice(len(self.shares), _BLOCK, p=self.shares)

    def _fill(self, rows: FloatArray, stream: int) -> FloatArray:

        def fill(begin: int) -> None:
            some = rows[begin : begin + _BLOCK]
            some[:] = self._block(np.random.default_rng([self.seed, stream, begin]))[: len(some)]

        with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(fill, range(0, len(rows), _BLOCK)):
                pass
        return rows

    def _block(self, random: np.random.Generator) -> FloatArray:
        place = random.standard_normal((_BLOCK, LATENT), np.float32)
        place *= np.float32(_SPREAD)
        place += self.centres[self.clusters(random)]
        inner, outer = self.layers
        layer = place @ inner
        np.tanh(layer, out=layer)
        rows = random.standard_normal((_BLOCK, self.dims), np.float32)
        rows *= np.float32(self.noise)
        rows += layer @ outer
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows


def blocks(rows: Any) -> Iterator[tuple[int, Any]]:  # noqa: ANN401  # scipy has no types
    """Yield blocks of rows, each with the number of its first row."""
    for begin in range(0, rows.shape[0], 4 * _BLOCK):
        yield begin, rows[begin : begin + 4 * _BLOCK]


__all__ = ["Split", "documents", "topics"]

REAL: Final = "real"


@dataclass(frozen=True)
class Points:
    """Rows of unit length for a benchmark.

    base: (n, d), the points to index.
    queries: (nq, d), the queries that are measured and reported.
    tuning: queries on which dials are chosen.
    """

    name: str
    sha256: str
    base: FloatArray
    queries: FloatArray
    tuning: FloatArray

    def described(self) -> dict[str, str]:
        """Return the facts about the data that tables show."""
        return {
            "data": f"{self.name}, {self.base.shape[0]:,} x {self.base.shape[1]}",
            "data sha256": self.sha256,
            "queries": f"{len(self.queries)} reported, {len(self.tuning)} for tuning",
        }


def load(source: str, query_count: int, tuning: int = 0) -> Points:
    """Return the points and queries of `source`: `REAL`, or a number of synthetic points."""
    end = query_count + tuning
    if source != REAL:
        manifold = Manifold.of()
        queries, points = manifold.queries(end), manifold.points(int(source))
        parts = points, queries[:query_count], queries[query_count:]
        return Points("synthetic points", f"seed {manifold.seed}", *parts)
    [data] = topics.load(["cifar100_dense256"])
    base, pool = np.ascontiguousarray(data.points), data.pool
    parts = base, pool[:query_count], pool[query_count:end]
    return Points(data.name, data.sha256, *parts)


def build_each(
    points: FloatArray, families: Sequence[HashFamily], folder: Path
) -> dict[HashFamily, Index]:
    return {
        family: Index.build(points, hash_family=family, path=folder / family) for family in families
    }


def searches(family: str) -> tuple[Search, ...]:
    """Return the searches to measure for a family; for the family `auto` only the search `auto`."""
    return ("auto",) if family == "auto" else ("tables", "scan")


def precisions(split: Split | LabelledDocuments, labels: IntArray) -> dict[str, float]:
    """Return P@1, P@3 and P@5 of labels (nq, 5) in percent."""
    means = precision_at(JudgedLabels.of(labels, split.truth)).mean(axis=0)
    return {f"P@{k}": float(100 * means[k - 1]) for k in (1, 3, 5)}
