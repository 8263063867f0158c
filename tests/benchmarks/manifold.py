"""Made points that are hard to search: power-law clusters on a curved manifold of 24 dimensions.

Clusters follow a power law in size and overlap. A point is a place near its cluster's centre in 24
latent dimensions, bent into `dims` by two random layers with a tanh between, plus a little noise
in every direction, of unit length. Isotropic blobs are too easy: there a query's neighbours are
those of one cluster, and any index finds them. How hard these are shows hnswlib's recall against
ef, which goes with every figure.

Rows come in blocks, each from a random stream of its own: the first n are the same whatever n is,
and no more than some blocks are in memory at a time. Clusters are the sub-topics; the nearest of 20
anchors among their centres is their category.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc.types import FloatArray, IntArray

DIMS: Final = 128
LATENT: Final = 24
_HIDDEN: Final = 96
_CLUSTERS: Final = 2_000
_CATEGORIES: Final = 20
# Of the n-th largest cluster: n to the minus this.
_POWER: Final = 0.8
# Of a cluster in latent dimensions, where centres are normal; how far the bend goes; of the noise.
_SPREAD: Final = 0.7
_BEND: Final = 1.5
_NOISE: Final = 0.08
_BLOCK: Final = 1 << 14

# Rows of unit length (n, dims) float32, and the cluster of each (n,).
Drawn = tuple[FloatArray, IntArray]


@dataclass(frozen=True, eq=False)
class Manifold:
    """Where points are drawn from; `categories` (clusters,) of each cluster."""

    seed: int
    centres: FloatArray
    layers: tuple[FloatArray, FloatArray]
    shares: FloatArray
    categories: IntArray

    @classmethod
    def of(cls, seed: int = 0, dims: int = DIMS) -> Self:
        """Draw the manifold itself."""
        random = np.random.default_rng([seed, 2])
        centres = random.standard_normal((_CLUSTERS, LATENT), np.float32)
        layers = (
            random.standard_normal((LATENT, _HIDDEN), np.float32) * (_BEND / LATENT**0.5),
            random.standard_normal((_HIDDEN, dims), np.float32) / _HIDDEN**0.5,
        )
        shares = np.arange(1, _CLUSTERS + 1) ** -_POWER
        anchors = centres[random.choice(_CLUSTERS, _CATEGORIES, replace=False)]
        far = ((centres[:, None] - anchors[None]) ** 2).sum(axis=2)
        inner, outer = (layer.astype(np.float32) for layer in layers)
        return cls(seed, centres, (inner, outer), shares / shares.sum(), far.argmin(axis=1))

    def points(self, count: int) -> Drawn:
        """Return the first `count` points, in memory."""
        rows = np.empty((count, self.layers[1].shape[1]), np.float32)
        return rows, self._fill(rows, 0)

    def queries(self, count: int) -> Drawn:
        """Return the first `count` queries: as the points are, from another stream."""
        rows = np.empty((count, self.layers[1].shape[1]), np.float32)
        return rows, self._fill(rows, 1)

    def write(self, path: Path, count: int) -> FloatArray:
        """Write the first `count` points as a .npy file, block by block, and return it mapped."""
        shape = (count, self.layers[1].shape[1])
        rows = np.lib.format.open_memmap(path, "w+", np.float32, shape)
        self._fill(rows, 0)
        rows.flush()
        mapped: FloatArray = np.load(path, mmap_mode="r")
        return mapped

    def _fill(self, rows: FloatArray, stream: int) -> IntArray:
        """Fill all rows from a stream and return their clusters."""
        clusters = np.empty(len(rows), np.int64)

        def fill(begin: int) -> None:
            some = slice(begin, min(begin + _BLOCK, len(rows)))
            drawn, theirs = self._block(stream, begin // _BLOCK)
            rows[some], clusters[some] = drawn[: some.stop - begin], theirs[: some.stop - begin]

        with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(fill, range(0, len(rows), _BLOCK)):
                pass
        return clusters

    def _block(self, stream: int, number: int) -> Drawn:
        random = np.random.default_rng([self.seed, stream, number])
        clusters = random.choice(len(self.shares), _BLOCK, p=self.shares)
        place = random.standard_normal((_BLOCK, LATENT), np.float32)
        place *= np.float32(_SPREAD)
        place += self.centres[clusters]
        inner, outer = self.layers
        hidden = place @ inner
        np.tanh(hidden, out=hidden)
        rows = random.standard_normal((_BLOCK, outer.shape[1]), np.float32)
        rows *= np.float32(_NOISE)
        rows += hidden @ outer
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows, clusters


def blocks(rows: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """Yield rows a block at a time, each with the number of its first."""
    for begin in range(0, len(rows), 4 * _BLOCK):
        yield begin, rows[begin : begin + 4 * _BLOCK]
