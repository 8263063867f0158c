"""Made points that are hard to search: power-law clusters on a curved manifold of 24 dimensions.

Clusters follow a power law in size and overlap. A point is a place near its cluster's centre in 24
latent dimensions, bent into `dims` by two random layers with a tanh between, plus a little noise
in every direction, of unit length. Isotropic blobs are too easy: there a query's neighbours are
those of one cluster, and any index finds them. How hard these are shows hnswlib's recall against
ef, which goes with every figure.

Rows come in blocks, each from a random stream of its own: the first n are the same whatever n is,
and no more than some blocks are in memory at a time.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc.types import FloatArray, IntArray

DIMS: Final = 128
LATENT: Final = 24
_HIDDEN: Final = 96
_CLUSTERS: Final = 2_000
# Of the n-th largest cluster: n to the minus this.
_POWER: Final = 0.8
# Of a cluster in latent dimensions, where centres are normal; how far the bend goes; of the noise.
_SPREAD: Final = 0.7
_BEND: Final = 1.5
_NOISE: Final = 0.08
_BLOCK: Final = 1 << 14


@dataclass(frozen=True, eq=False)
class Manifold:
    """Where points are drawn from: centres (clusters, LATENT), two layers, shares of clusters."""

    seed: int
    centres: FloatArray
    layers: tuple[FloatArray, FloatArray]
    shares: FloatArray

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
        inner, outer = (layer.astype(np.float32) for layer in layers)
        return cls(seed, centres, (inner, outer), shares / shares.sum())

    def points(self, count: int) -> FloatArray:
        """Return the first `count` points (count, dims), of unit length, in memory."""
        return self._fill(np.empty((count, self.dims), np.float32), 0)

    def queries(self, count: int) -> FloatArray:
        """Return the first `count` queries: as the points are, from another stream."""
        return self._fill(np.empty((count, self.dims), np.float32), 1)

    def write(self, path: Path, count: int) -> FloatArray:
        """Write the first `count` points as a .npy file, block by block, and return it mapped."""
        rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, self.dims))
        self._fill(rows, 0)
        rows.flush()
        mapped: FloatArray = np.load(path, mmap_mode="r")
        return mapped

    @property
    def dims(self) -> int:
        """Of points and queries."""
        return len(self.layers[1].T)

    def clusters(self, random: np.random.Generator) -> IntArray:
        """Draw the clusters of a block."""
        return random.choice(len(self.shares), _BLOCK, p=self.shares)

    def _fill(self, rows: FloatArray, stream: int) -> FloatArray:
        """Fill all rows from a stream, and return them."""

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
        hidden = place @ inner
        np.tanh(hidden, out=hidden)
        rows = random.standard_normal((_BLOCK, self.dims), np.float32)
        rows *= np.float32(_NOISE)
        rows += hidden @ outer
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows


def blocks(rows: Any) -> Iterator[tuple[int, Any]]:  # noqa: ANN401  # scipy has no types
    """Yield rows a block at a time, each with the number of its first."""
    for begin in range(0, rows.shape[0], 4 * _BLOCK):
        yield begin, rows[begin : begin + 4 * _BLOCK]
