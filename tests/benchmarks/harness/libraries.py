"""The libraries to compare with (hnswlib, faiss and pyversity), and our selectors.

A finder returns candidates for a query. Finders are built on all cores and searched on one thread.
An effort is a tuple of settings that decide how much work a search does, such as ef or nprobe.
Efforts are tried in ladders, in ascending order of work, until the results are good enough.

A selector picks k of the candidates. All selectors get favourable settings. They know that rows
have unit length, and their dials (the values that weight diversity) are set so that they do well in
J, the objective of greedy. At a known dial (`msd_dial`), pyversity's MSD has the same gains as J.
MMR has no such dial, so dials around the target diversity are tried.
"""

import importlib.util
import math
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from benchmarks.harness.datasets import blocks
from benchmarks.harness.truth import Neighbours
from divgrpc.index import Index
from divgrpc.kernels import greedy, records
from divgrpc.kernels.records import Objective, Points
from divgrpc.search.memory import Memory
from divgrpc.types import FloatArray, IntArray, Selector

Effort: TypeAlias = tuple[float, ...]
Ladders: TypeAlias = Sequence[Sequence[Effort]]

# Factors to try, as multiples of the number of candidates: the points that a graph visits, and the
# points that are refined by exact distances.
_FACTORS: Final = (1.0, 1.5, 2.0, 4.0, 8.0)
_REFINEMENT_FACTORS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
_PROBES: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_TRAINING_POINTS: Final = 1_000_000


class _Finder:
    """The base of `Graph` and `Faiss`: axes of parameters, and the number of inverted lists."""

    axes: tuple[str, ...] = ("ef",)
    lists: int = 0

    def ladders(self) -> Ladders:
        """Return a ladder of values of the first axis for each value of the other axis, if any."""
        values: dict[str, Sequence[float]] = {
            "ef": _FACTORS,
            "nprobe": [probes for probes in _PROBES if probes <= self.lists],
            "k_factor": _REFINEMENT_FACTORS,
        }
        first, *outer_values = (values[axis] for axis in self.axes)
        return [[(value, *rest) for value in first] for rest in product(*outer_values)]

    def describe(self, effort: Effort, count: int) -> str:
        """Describe the values of the axes."""
        parts = dict(zip(self.axes, effort, strict=True))
        if "ef" in parts:
            return f"ef {round(parts['ef'] * count):,}"
        return ", ".join(f"{axis} {value:g}" for axis, value in parts.items())


@dataclass(eq=False)
class Graph(_Finder):
    """An hnswlib index of unit rows; `bytes` does not count one copy of the vectors."""

    config: str
    index: Any
    seconds: float
    bytes: int
    kind: str = "hnswlib"

    @classmethod
    def build(cls, base: FloatArray, links: int, ef_construction: int) -> "Graph":
        """Build a graph; `links` is the parameter M."""
        import hnswlib

        index = hnswlib.Index("ip", base.shape[1])
        begin = time.perf_counter()
        index.init_index(len(base), M=links, ef_construction=ef_construction, random_seed=0)
        index.add_items(base, num_threads=os.cpu_count())
        seconds = time.perf_counter() - begin
        size = int(index.index_file_size()) - base.nbytes
        return cls(f"M {links}, ef_construction {ef_construction}", index, seconds, size)

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Neighbours:
        """Return about `count` nearest points of a query (d,), and their squared distances."""
        ef = round(effort[0] * count)
        if self.index.ef != ef:
            self.index.set_ef(ef)
        rows, distances = self.index.knn_query(query, k=count, num_threads=1)
        return rows[0].astype(np.int64), 2 * distances[0]


@dataclass(eq=False)
class Faiss(_Finder):
    """A faiss index with squared distances: an inverted file, refined codes, or a graph.

    axes: the parameter that each number of an effort sets. "ef" is given as a multiple of the
        number of candidates. "nprobe" is the number of lists to search. "k_factor" is the number of
        points, as a multiple of the candidates, that are refined by exact distances.
    """

    kind: str
    config: str
    index: Any
    seconds: float
    bytes: int
    axes: tuple[str, ...]
    lists: int
    _set: Effort = ()

    @cached_property
    def _inner(self) -> Any:  # noqa: ANN401  # faiss has no types
        import faiss

        return faiss.downcast_index(
            self.index.base_index if "k_factor" in self.axes else self.index
        )

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Neighbours:
        """Return at most `count` nearest points of a query (d,), and their squared distances."""
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
        present = rows[0] >= 0
        return rows[0][present], distances[0][present]


Finder: TypeAlias = Graph | Faiss


def faiss_factories(rows: int, dims: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return for each kind of faiss index its factory string and its axes (see `Faiss`).

    The strings depend on the data. The number of parts of a product quantiser is the greatest
    common divisor of `dims` and the number in faiss' guidelines for 128 dimensions. IVF has about 4
    sqrt(rows) inverted lists and IVF-PQ has 1,024, but at most one list per 39 points.
    """
    most = max(1, rows // 39)
    lists = min(most, 1 << round(math.log2(4 * rows**0.5)))
    coarse = min(most, 1024)
    whole, half = (math.gcd(dims, parts) for parts in (128, 64))
    return {
        "faiss HNSW": ("HNSW32,Flat", ("ef",)),
        "faiss IVF": (f"IVF{lists},Flat", ("nprobe",)),
        "faiss PQ": (f"PQ{whole}x4fs,RFlat", ("k_factor",)),
        "faiss IVF-PQ": (f"IVF{coarse},PQ{half}x4fs,RFlat", ("nprobe", "k_factor")),
    }


def build_faiss(base: FloatArray, kinds: Collection[str]) -> Iterator[Faiss]:
    """Build indexes of faiss on all cores, block by block; `base` (n, d) may be a memmap."""
    import faiss

    factories = faiss_factories(*base.shape)
    for kind, (config, axes) in ((kind, factories[kind]) for kind in kinds):
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        begin = time.perf_counter()
        index: Any = faiss.index_factory(base.shape[1], config)
        index.train(np.ascontiguousarray(base[:: -(-len(base) // _TRAINING_POINTS)]))
        for _, block in blocks(base):
            index.add(np.ascontiguousarray(block))
        seconds = time.perf_counter() - begin
        faiss.omp_set_num_threads(1)
        inner = faiss.downcast_index(index.base_index if "k_factor" in axes else index)
        lists = int(getattr(inner, "nlist", 0))
        # Every kind stores the vectors once, even with refinement. This copy is subtracted.
        yield Faiss(kind, config, index, seconds, _size(index) - base.nbytes, axes, lists)


def _size(index: Any) -> int:  # noqa: ANN401  # faiss has no types
    """Return the size in bytes of a serialised index, without storing it."""
    import faiss

    total = 0

    def count(part: bytes) -> int:
        nonlocal total
        total += len(part)
        return len(part)

    library: Any = faiss
    library.write_index(index, library.PyCallbackIOWriter(count))
    return total


def missing(*names: str) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def msd_dial(diversity: float, k: int) -> float:
    """Return the dial at which pyversity's MSD has the gains of J at `diversity`."""
    return 2 * diversity / (2 * diversity + (1 - diversity) * (k - 1))


def pyversity(
    strategy: str, vectors: FloatArray, scores: FloatArray, k: int, dial: float
) -> IntArray:
    """Return the places that pyversity picks of m candidates: `vectors` (m, d), `scores` (m,)."""
    import pyversity as library

    options = {} if strategy == "dpp" else {"normalize": False}
    places: IntArray = library.diversify(
        embeddings=vectors,
        scores=scores,
        k=k,
        strategy=library.Strategy(strategy),
        diversity=dial,
        **options,
    ).indices
    return places


@dataclass(frozen=True, eq=False)
class OurPicker:
    """Our compiled greedy or MMR selector over a dense index; `rule` is the kernel's rule."""

    points: Points
    memory: Memory
    rule: int = records.MARGINAL_RULE

    @classmethod
    def over(cls, index: Index, rule: int = records.MARGINAL_RULE) -> "OurPicker":
        """Make a selector over the points of a dense index."""
        searcher: Any = index.engine._searcher
        return cls(searcher._index.points, Memory(index.dims, (index.dims, 256)), rule)

    @property
    def selector(self) -> Selector:
        """The value of the parameter `selector` for the same method."""
        return "mmr" if self.rule == records.MMR_RULE else "greedy"

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"our {self.selector}"

    def centre(self, diversity: float, k: int) -> float:  # noqa: ARG002  # as Pyversity's
        """Return the dial to start from: the target itself, because our dial is that of J."""
        return diversity

    def pick(self, query: FloatArray, candidates: Neighbours, k: int, dial: float) -> IntArray:  # noqa: ARG002
        """Return k of the candidates (rows and squared distances, (m,) each) in picked order."""
        rows, costs = candidates
        self.memory.fit_selection(len(rows), k)
        scratch = self.memory.scratch
        places, gains = scratch.picks[:k], np.empty(k, np.float32)
        relevance, keep_all = np.float32(1 - dial), records.NO_COPIES
        objective = Objective(k, relevance, self.rule, product=False, copy_limit=keep_all)
        points = (self.points, rows.astype(np.int32), costs, len(rows))
        no_copies = np.empty(0, np.int8)
        greedy.greedy(*points, objective, scratch.selection, False, no_copies, places, gains)
        picks: IntArray = rows[places].astype(np.int64)
        return picks


@dataclass(frozen=True, eq=False)
class Pyversity:
    """pyversity's MSD or MMR."""

    base: FloatArray
    strategy: Literal["msd", "mmr"]

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"pyversity {self.strategy.upper()}"

    def centre(self, diversity: float, k: int) -> float:
        """Return the dial to start from: for MSD the equivalent of J's dial, for MMR the target."""
        return msd_dial(diversity, k) if self.strategy == "msd" else diversity

    def pick(self, query: FloatArray, candidates: Neighbours, k: int, dial: float) -> IntArray:  # noqa: ARG002
        """Return k of the candidates, as `OurPicker` does; their distances give the relevance."""
        rows, costs = candidates
        places = pyversity(
            self.strategy, self.base[rows], (1 - costs / 2).astype(np.float32), k, dial
        )
        picks: IntArray = rows[places]
        return picks


Picker: TypeAlias = OurPicker | Pyversity
