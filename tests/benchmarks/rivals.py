"""hnswlib, the graph index most people use, followed by pyversity: what one would put together.

Both are at their best: unit rows under the inner product, pyversity told that they are unit rows,
and its dial set for J. Its maximal sum of distances (MSD) has the marginal gain of J for its own
where its dial is 2 (1 - L) / (2 (1 - L) + L (k - 1)); MMR stands beside it.
"""

import importlib.util
import os
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from divgrpc.types import FloatArray, IntArray

Strategy = Literal["msd", "mmr"]
NAME: Final = "hnswlib"
STRATEGIES: Final[tuple[Strategy, ...]] = ("msd", "mmr")


def missing() -> list[str]:
    """Return which of the two are not installed."""
    return [name for name in ("hnswlib", "pyversity") if importlib.util.find_spec(name) is None]


@dataclass(frozen=True, eq=False)
class Graph:
    """An hnswlib index of unit rows, and what building it took with all cores."""

    name: str
    base: FloatArray
    index: Any
    seconds: float

    @classmethod
    def build(cls, base: FloatArray, links: int, ef_construction: int) -> "Graph":
        """Build a graph with `links` (M) links a point."""
        import hnswlib

        index = hnswlib.Index("ip", base.shape[1])
        begun = time.perf_counter()
        index.init_index(len(base), M=links, ef_construction=ef_construction, random_seed=0)
        index.add_items(base, num_threads=os.cpu_count())
        seconds = time.perf_counter() - begun
        return cls(f"M {links}, ef_construction {ef_construction}", base, index, seconds)

    @property
    def bytes(self) -> int:
        """What the graph occupies, its own copy of the vectors included."""
        return int(self.index.index_file_size())

    def nearest(self, query: FloatArray, count: int, ef: int) -> IntArray:
        """Return about the `count` nearest rows for a query (d,)."""
        if self.index.ef != ef:
            self.index.set_ef(ef)
        rows: IntArray = self.index.knn_query(query, k=count, num_threads=1)[0][0].astype(np.int64)
        return rows


def diversify(
    base: FloatArray, query: FloatArray, rows: IntArray, *, k: int, strategy: Strategy, dial: float
) -> IntArray:
    """Return which k of `rows` pyversity picks."""
    import pyversity

    embeddings = base[rows]
    chosen = pyversity.diversify(
        embeddings=embeddings,
        scores=embeddings @ query,
        k=k,
        strategy=pyversity.Strategy(strategy),
        diversity=dial,
        normalize=False,
    )
    picked: IntArray = rows[chosen.indices]
    return picked


def centre(strategy: Strategy, diversity: float, k: int) -> float:
    """Return the dial of a strategy to search around for a target of J."""
    if strategy == "mmr":
        return diversity
    return 2 * diversity / (2 * diversity + (1 - diversity) * (k - 1))
