"""Other libraries' ways to a query's nearest points: hnswlib and faiss.

Each is built with all cores, then searched on one thread. An effort says how much a search looks
at. Efforts form ladders: a ladder rises until neighbours are good enough, as more only costs more.
"""

import math
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from benchmarks.harness.truth import Neighbours
from divgrpc.types import FloatArray

Effort: TypeAlias = tuple[float, ...]
Ladders: TypeAlias = Sequence[Sequence[Effort]]

# What a graph looks at, and what is refined by exact distances, for each candidate.
_FACTORS: Final = (1.0, 1.5, 2.0, 4.0, 8.0)
_REFINED: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
_LSH_REFINED: Final = (4.0, 16.0, 64.0)
_PROBES: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_LSH_BITS: Final = 2


@dataclass(eq=False)
class Graph:
    """hnswlib's index of unit rows, under the inner product.

    `kind` is its name in comparisons, `config` what it was built with, `seconds` the time of
    building with all cores, and `bytes` its memory on top of one copy of the vectors.
    """

    config: str
    index: Any
    seconds: float
    bytes: int
    kind: str = "hnswlib"

    @classmethod
    def build(cls, base: FloatArray, links: int, ef_construction: int) -> "Graph":
        """Build a graph with `links` (M) links a point."""
        import hnswlib

        index = hnswlib.Index("ip", base.shape[1])
        started = time.perf_counter()
        index.init_index(len(base), M=links, ef_construction=ef_construction, random_seed=0)
        index.add_items(base, num_threads=os.cpu_count())
        seconds = time.perf_counter() - started
        size = int(index.index_file_size()) - base.nbytes
        return cls(f"M {links}, ef_construction {ef_construction}", index, seconds, size)

    def ladders(self) -> Ladders:
        """Return one: ef, as a multiple of the candidates."""
        return [[(factor,) for factor in _FACTORS]]

    def describe(self, effort: Effort, count: int) -> str:
        """Name ef."""
        return f"ef {round(effort[0] * count):,}"

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Neighbours:
        """Return about the `count` nearest for a query (d,)."""
        ef = round(effort[0] * count)
        if self.index.ef != ef:
            self.index.set_ef(ef)
        rows, distances = self.index.knn_query(query, k=count, num_threads=1)
        return rows[0].astype(np.int64), 2 * distances[0]


@dataclass(eq=False)
class Faiss:
    """An index of faiss under squared distances: flat lists, codes that are refined, or a graph.

    `axes` say what an effort's numbers set: "ef" as a multiple of the candidates, "nprobe", and
    "k_factor" of the refinement by the vectors themselves.
    """

    kind: str
    config: str
    index: Any
    seconds: float
    bytes: int
    axes: tuple[str, ...]
    lists: int
    _inner: Any = field(init=False)
    _set: tuple[float, ...] = field(init=False, default=(-1.0,))

    def __post_init__(self) -> None:
        import faiss

        inner = self.index.base_index if "k_factor" in self.axes else self.index
        self._inner = faiss.downcast_index(inner)

    def ladders(self) -> Ladders:
        """Return probes upwards for each factor of the refinement, or one ladder."""
        probes = [float(probes) for probes in _PROBES if probes <= self.lists]
        if self.axes == ("nprobe",):
            return [[(count,) for count in probes]]
        if self.axes == ("nprobe", "k_factor"):
            return [[(count, factor) for count in probes] for factor in _REFINED]
        if self.kind == "faiss LSH":
            return [[(factor,) for factor in _LSH_REFINED]]
        return [[(factor,) for factor in (_FACTORS if self.axes == ("ef",) else _REFINED)]]

    def describe(self, effort: Effort, count: int) -> str:
        """Name what is set."""
        parts = dict(zip(self.axes, effort, strict=True))
        if "ef" in parts:
            return f"ef {round(parts['ef'] * count):,}"
        return ", ".join(f"{axis} {value:g}" for axis, value in parts.items())

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Neighbours:
        """Return about the `count` nearest for a query (d,)."""
        if self._set != (count, *effort):
            for axis, value in zip(self.axes, effort, strict=True):
                if axis == "ef":
                    self._inner.hnsw.efSearch = round(value * count)
                elif axis == "nprobe":
                    self._inner.nprobe = int(value)
                else:
                    self.index.k_factor = value
            self._set = (count, *effort)
        distances, rows = self.index.search(query[None], count)
        known = rows[0] >= 0
        return rows[0][known], distances[0][known]


Finder: TypeAlias = Graph | Faiss


def faiss_factories(rows: int, dims: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the kinds of faiss as its factory names them, fit for the data, and their axes.

    Products have one part a dimension, or as near as they come to what faiss' guidelines take at
    128 dimensions; lists are some four roots of n, and never fewer than 39 points each.
    """
    most = max(1, rows // 39)
    lists = min(most, 1 << round(math.log2(4 * rows**0.5)))
    coarse = min(most, 1024)
    whole, half = (math.gcd(dims, parts) for parts in (128, 64))
    refined = ("nprobe", "k_factor")
    return {
        "faiss HNSW": ("HNSW32,Flat", ("ef",)),
        "faiss IVF": (f"IVF{lists},Flat", ("nprobe",)),
        "faiss IVF-RaBitQ": (f"IVF{lists},RaBitQ,RFlat", refined),
        "faiss PQ": (f"PQ{whole}x4fs,RFlat", ("k_factor",)),
        "faiss IVF-PQ": (f"IVF{coarse},PQ{half}x4fs,RFlat", refined),
        "faiss LSH": (f"LSH{_LSH_BITS * dims}r,RFlat", ("k_factor",)),
    }


def build_faiss(base: FloatArray, kinds: Collection[str]) -> Iterator[Faiss]:
    """Build these kinds of faiss with all cores, and leave it with one thread."""
    import faiss

    factories = faiss_factories(*base.shape)
    for kind, (config, axes) in ((kind, factories[kind]) for kind in kinds):
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        started = time.perf_counter()
        index: Any = faiss.index_factory(base.shape[1], config)
        index.train(base)
        index.add(base)
        seconds = time.perf_counter() - started
        faiss.omp_set_num_threads(1)
        inner = faiss.downcast_index(index.base_index if "k_factor" in axes else index)
        lists = int(getattr(inner, "nlist", 0))
        # What is refined holds the vectors once, in the refinement.
        yield Faiss(kind, config, index, seconds, _size(index) - base.nbytes, axes, lists)


def _size(index: Any) -> int:  # noqa: ANN401  # faiss has no types
    """Return the bytes of an index when written, without keeping them."""
    import faiss

    total = 0

    def count(part: bytes) -> int:
        nonlocal total
        total += len(part)
        return len(part)

    library: Any = faiss
    library.write_index(index, library.PyCallbackIOWriter(count))
    return total
