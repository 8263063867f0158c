"""Ways of others to a query's nearest points: hnswlib, faiss, and a product with all points.

Each is built with all cores, then searched on one thread. What a search looks at is its effort: a
ladder rises until neighbours are good enough, since more only costs more. A number of candidates
times the factor of its effort is what a graph looks at, or what a code's candidates are re-scored.
"""

import importlib.util
import math
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from divgrpc.types import FloatArray, IntArray

Effort = tuple[float, ...]
# The rows of candidates (m,) and their squared distances from the query, nearest first.
Found = tuple[IntArray, FloatArray]

_FACTORS: Final = (1.0, 1.5, 2.0, 4.0, 8.0)
_REFINED: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
_LSH_REFINED: Final = (4.0, 16.0, 64.0)
# Steps as fine as ours.
_PROBES: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_LSH_BITS: Final = 2
_ANY: Final[Effort] = ()


class Finder(Protocol):
    """Something built over n unit rows that finds nearest ones; `bytes` are on top of vectors."""

    @property
    def kind(self) -> str:
        """What it is: the best of a kind stands for it."""

    @property
    def told(self) -> str:
        """What it was built with."""

    @property
    def seconds(self) -> float:
        """What building took with all cores."""

    @property
    def bytes(self) -> int:
        """What it occupies on top of one copy of the vectors."""

    def ladders(self) -> Sequence[Sequence[Effort]]:
        """Return efforts to try, each ladder upwards."""

    def describe(self, effort: Effort, count: int) -> str:
        """Return what stands in a table for an effort with `count` candidates."""

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Found:
        """Return about the `count` nearest for a query (d,)."""


@dataclass(frozen=True, eq=False)
class Graph:
    """hnswlib's index of unit rows, under the inner product."""

    told: str
    index: Any
    seconds: float
    bytes: int
    kind: str = "hnswlib"

    @classmethod
    def build(cls, base: FloatArray, links: int, ef_construction: int) -> "Graph":
        """Build a graph with `links` (M) links a point."""
        import hnswlib

        index = hnswlib.Index("ip", base.shape[1])
        begun = time.perf_counter()
        index.init_index(len(base), M=links, ef_construction=ef_construction, random_seed=0)
        index.add_items(base, num_threads=os.cpu_count())
        seconds = time.perf_counter() - begun
        above = int(index.index_file_size()) - base.nbytes
        return cls(f"M {links}, ef_construction {ef_construction}", index, seconds, above)

    def ladders(self) -> Sequence[Sequence[Effort]]:
        """One: ef, as a multiple of what is fetched."""
        return [[(factor,) for factor in _FACTORS]]

    def describe(self, effort: Effort, count: int) -> str:
        """Name ef."""
        return f"ef {round(effort[0] * count):,}"

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Found:
        """Return about the `count` nearest for a query (d,)."""
        ef = round(effort[0] * count)
        if self.index.ef != ef:
            self.index.set_ef(ef)
        rows, far = self.index.knn_query(query, k=count, num_threads=1)
        return rows[0].astype(np.int64), 2 * far[0]


@dataclass(eq=False)
class Faiss:
    """An index of faiss under squared distances: flat lists, codes that are refined, or a graph.

    `axes` say what an effort's numbers set: "ef" as a multiple of what is fetched, "nprobe", and
    "k_factor" of the refinement by the vectors themselves.
    """

    kind: str
    told: str
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

    def ladders(self) -> Sequence[Sequence[Effort]]:
        """Probes go up for each factor of the refinement; otherwise there is one ladder."""
        probes = [float(probes) for probes in _PROBES if probes <= self.lists]
        if self.axes == ("nprobe",):
            return [[(each,) for each in probes]]
        if self.axes == ("nprobe", "k_factor"):
            return [[(each, factor) for each in probes] for factor in _REFINED]
        if self.kind == "faiss LSH":
            return [[(factor,) for factor in _LSH_REFINED]]
        return [[(factor,) for factor in (_FACTORS if self.axes == ("ef",) else _REFINED)]]

    def describe(self, effort: Effort, count: int) -> str:
        """Name what is set."""
        parts = dict(zip(self.axes, effort, strict=True))
        if "ef" in parts:
            return f"ef {round(parts['ef'] * count):,}"
        return ", ".join(f"{axis} {value:g}" for axis, value in parts.items())

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Found:
        """Return about the `count` nearest for a query (d,)."""
        wanted = (count, *effort)
        if self._set != wanted:
            self._tell(count, effort)
            self._set = wanted
        far, rows = self.index.search(query[None], count)
        found = rows[0]
        if found[-1] < 0:
            return found[found >= 0], far[0][found >= 0]
        return found, far[0]

    def _tell(self, count: int, effort: Effort) -> None:
        for axis, value in zip(self.axes, effort, strict=True):
            if axis == "ef":
                self._inner.hnsw.efSearch = round(value * count)
            elif axis == "nprobe":
                self._inner.nprobe = int(value)
            else:
                self.index.k_factor = value


@dataclass(frozen=True, eq=False)
class Flat:
    """All points by one product of numpy's BLAS."""

    base: FloatArray
    told: str = "all points"
    kind: str = "exact numpy"
    seconds: float = 0.0
    bytes: int = 0

    def ladders(self) -> Sequence[Sequence[Effort]]:
        """There is nothing to choose."""
        return [[_ANY]]

    def describe(self, effort: Effort, count: int) -> str:  # noqa: ARG002  # the protocol's
        """Say that there is nothing."""
        return self.told

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Found:  # noqa: ARG002
        """Return the `count` nearest for a query (d,)."""
        near = self.base @ query
        count = min(count, len(near))
        rows = np.argpartition(-near, count - 1)[:count]
        rows = rows[np.argsort(-near[rows], kind="stable")]
        return rows, 2 - 2 * near[rows]


def missing() -> list[str]:
    """Return what is not installed: a finder, or what stands behind it."""
    names = ("hnswlib", "faiss", "pyversity", "langchain_core")
    return [name for name in names if importlib.util.find_spec(name) is None]


def faiss_factories(rows: int, dims: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the kinds of faiss as its factory names them, fit for the data, and their axes.

    Products have one part a dimension, or as near as they come to what faiss' own guidelines take
    at 128 dimensions; lists are some four roots of n, and never fewer than 39 points each.
    """
    most = max(1, rows // 39)
    lists = min(most, 1 << round(math.log2(4 * rows**0.5)))
    coarse = min(most, 1024)
    whole, half = (_divisor(dims, parts) for parts in (128, 64))
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
    for kind, (told, axes) in ((kind, factories[kind]) for kind in kinds):
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        begun = time.perf_counter()
        index: Any = faiss.index_factory(base.shape[1], told)
        index.train(base)
        index.add(base)
        seconds = time.perf_counter() - begun
        faiss.omp_set_num_threads(1)
        inner = faiss.downcast_index(index.base_index if "k_factor" in axes else index)
        lists = int(getattr(inner, "nlist", 0))
        # What is refined holds the vectors once, in the refinement.
        yield Faiss(kind, told, index, seconds, _size(index) - base.nbytes, axes, lists)


def _size(index: Any) -> int:  # noqa: ANN401  # faiss has no types
    """Return what an index occupies when written, without holding that."""
    import faiss

    total = 0

    def count(some: bytes) -> int:
        nonlocal total
        total += len(some)
        return len(some)

    library: Any = faiss
    library.write_index(index, library.PyCallbackIOWriter(count))
    return total


def _divisor(dims: int, most: int) -> int:
    """Return the largest power of two that divides both."""
    return math.gcd(dims, most)
