"""Adapters of the libraries with a wheel: graphs, inverted lists and codes of other projects.

An adapter is a function of unit rows (n, d) and a configuration. It builds an index and returns a
function that finds neighbours on one thread: of a query (d,), a number of results, and an effort.
Distances are squared. Where a library gives estimates alone, the adapter computes exact distances,
and their time counts.
"""

import importlib
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from benchmarks.harness import libraries
from benchmarks.harness.libraries import Effort, Finder, Graph, Ladders, build_faiss
from benchmarks.harness.truth import Neighbours
from divgrpc.types import FloatArray

# Finds the neighbours of a query (d,): with it, the number of results, and the effort.
Find: TypeAlias = Callable[[FloatArray, int, Effort], Neighbours]
Build: TypeAlias = Callable[[FloatArray, int], Find]

# Values to try: points that a graph visits and points to refine, as multiples of the results;
# lists to read; and how much further than the results NGT explores.
_VISITS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
_REFINED: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
_LISTS: Final = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_EPSILONS: Final = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3)
_THREADS: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@dataclass(eq=False)
class Rival:
    """A finder of a library; its effort is described by the names in `axes`."""

    kind: str
    config: str
    find: Find
    seconds: float
    axes: tuple[str, ...]
    steps: Ladders
    bytes: int = 0

    def ladders(self) -> Ladders:
        """Return efforts in ascending order of work."""
        return self.steps

    def describe(self, effort: Effort, count: int) -> str:  # noqa: ARG002  # as other finders
        """Describe the effort."""
        parts = zip(self.axes, effort, strict=True)
        return ", ".join(f"{axis} {value:g}" for axis, value in parts)

    def nearest(self, query: FloatArray, count: int, effort: Effort) -> Neighbours:
        """Return about `count` nearest points of a query (d,), and their squared distances."""
        return self.find(query, count, effort)


class Library(NamedTuple):
    """What a contestant needs: the module, its configurations, and how it is swept."""

    module: str
    build: Build
    word: str
    configurations: tuple[int, ...]
    axes: tuple[str, ...]
    steps: Ladders


def lists_of(rows: int) -> int:
    """Return the number of inverted lists: about 4 sqrt(rows), at most one for 39 points."""
    return max(1, min(rows // 39, 1 << round(float(np.log2(4 * rows**0.5)))))


def _exact(base: FloatArray, query: FloatArray, rows: Any, count: int) -> Neighbours:  # noqa: ANN401
    """Order rows by exact distance and return the nearest `count`."""
    rows = np.asarray(rows).ravel().astype(np.int64)
    near = base[rows] @ query
    order = np.argsort(-near, kind="stable")[:count]
    return rows[order], 2 - 2 * near[order]


def _symphony(base: FloatArray, degree: int) -> Find:
    import rabitqlib

    index: Any = rabitqlib.SymqgIndex(base.shape[1], degree, "l2")
    index.build(base, 200, num_threads=_THREADS)

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        ef = round(effort[0] * count)
        rows, distances = index.search(query[None], count, ef, num_threads=1)
        return rows[0].astype(np.int64), distances[0]

    return find


def _ivf_rabitq(base: FloatArray, bits: int) -> Find:
    import rabitqlib

    lists = lists_of(len(base))
    means: Any = rabitqlib.RaBitQKMeans(base.shape[1], lists, num_threads=_THREADS)
    means.train(base)
    index: Any = rabitqlib.IvfIndex(base.shape[1], len(base), lists, bits, "l2")
    index.build(base, means.centroids, means.assignments, num_threads=_THREADS)

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        rows, distances = index.search(query[None], count, int(effort[0]), num_threads=1)
        present = rows[0] < len(base)
        return rows[0][present].astype(np.int64), distances[0][present]

    return find


def _vsag(base: FloatArray, degree: int) -> Find:
    import pyvsag

    pyvsag.set_logger_off()
    parts = {"max_degree": degree, "ef_construction": 200, "build_thread_count": _THREADS}
    codes = {"base_quantization_type": "sq8", "precise_quantization_type": "fp32"}
    words = {"dtype": "float32", "metric_type": "l2", "dim": base.shape[1]}
    options = {**words, "index_param": {**codes, "use_reorder": True, **parts}}
    index: Any = pyvsag.Index("hgraph", json.dumps(options))
    index.build(base.ravel(), np.arange(len(base)), *base.shape)

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        search = f'{{"hgraph": {{"ef_search": {round(effort[0] * count)}}}}}'
        rows, distances = index.knn_search(query, count, search)
        return rows, distances

    return find


def _ngt(base: FloatArray, edges: int) -> Find:
    import ngtpy

    path = str(Path(tempfile.mkdtemp()) / "ngt")
    ngtpy.create(path, base.shape[1], distance_type="L2", edge_size_for_creation=edges)
    index: Any = ngtpy.Index(path, log_disabled=True)
    index.batch_insert(base, num_threads=_THREADS)

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        pairs = index.search(query, count, epsilon=effort[0])
        rows, distances = zip(*pairs, strict=True)
        return np.array(rows, np.int64), np.array(distances, np.float32) ** 2

    return find


def _voyager(base: FloatArray, links: int) -> Find:
    import voyager

    index: Any = voyager.Index(
        voyager.Space.InnerProduct, base.shape[1], M=links, ef_construction=200
    )
    index.add_items(base, num_threads=_THREADS)

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        ef = round(effort[0] * count)
        rows, distances = index.query(query, k=count, num_threads=1, query_ef=ef)
        return rows.astype(np.int64), 2 * distances

    return find


def _usearch(base: FloatArray, links: int) -> Find:
    from usearch.index import Index

    index: Any = Index(
        ndim=base.shape[1], metric="ip", dtype="f32", connectivity=links, expansion_add=128
    )
    index.add(np.arange(len(base), dtype=np.uint64), base, threads=_THREADS)

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        index.expansion_search = round(effort[0] * count)
        matches = index.search(query, count, threads=1)
        return matches.keys.astype(np.int64), 2 * matches.distances

    return find


def _scann(base: FloatArray, dims: int) -> Find:
    import scann

    lists, pybind = lists_of(len(base)), scann.scann_ops_pybind
    builder = pybind.builder(base, 10, "dot_product").set_n_training_threads(_THREADS)
    some = min(len(base), 250_000)
    tree = builder.tree(lists, max(1, lists // 8), training_sample_size=some)
    coded = tree.score_ah(dims, anisotropic_quantization_threshold=0.2)
    index: Any = coded.reorder(100).build()

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        rows, products = index.search(
            query,
            final_num_neighbors=count,
            pre_reorder_num_neighbors=round(effort[1] * count),
            leaves_to_search=min(lists, int(effort[0])),
        )
        return rows.astype(np.int64), 2 - 2 * products

    return find


def _turbovec(base: FloatArray, bits: int) -> Find:
    import turbovec

    index: Any = turbovec.TurboQuantIndex(dim=base.shape[1], bit_width=bits)
    sample = np.random.default_rng(0).choice(len(base), min(len(base), 2_048), replace=False)
    index.calibrate(base[np.sort(sample)])
    index.add(base)
    index.prepare()

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        rows = index.search(query[None], min(len(base), round(effort[0] * count)))[1]
        return _exact(base, query, rows, count)

    return find


def _svs(base: FloatArray, degree: int) -> Find:
    import svs

    parameters = svs.VamanaBuildParameters(alpha=1.2, graph_max_degree=degree, window_size=128)
    index: Any = svs.Vamana.build(parameters, base, svs.DistanceType.L2, num_threads=_THREADS)
    index.num_threads = 1

    def find(query: FloatArray, count: int, effort: Effort) -> Neighbours:
        window = round(effort[0] * count)
        if index.search_window_size != window:
            index.search_window_size = window
        rows, distances = index.search(query[None], count)
        return rows[0].astype(np.int64), distances[0]

    return find


def _ladder(values: Sequence[float]) -> Ladders:
    return [[(value,) for value in values]]


_GRAPH: Final = (("ef factor",), _ladder(_VISITS))
_INVERTED: Final = (("nprobe",), _ladder(_LISTS))
_LEAVES: Final = [[(float(lists), factor) for lists in _LISTS] for factor in (2.0, 4.0, 8.0)]
LIBRARIES: Final[Mapping[str, Library]] = {
    "SymphonyQG": Library("rabitqlib", _symphony, "degree", (32, 64), *_GRAPH),
    "IVF-RaBitQ": Library("rabitqlib", _ivf_rabitq, "bits", (5, 9), *_INVERTED),
    "vsag": Library("pyvsag", _vsag, "degree", (32, 64), *_GRAPH),
    "NGT": Library("ngtpy", _ngt, "edges", (10, 20), ("epsilon",), _ladder(_EPSILONS)),
    "voyager": Library("voyager", _voyager, "M", (16, 32), *_GRAPH),
    "usearch": Library("usearch.index", _usearch, "links", (16, 32), *_GRAPH),
    "ScaNN": Library("scann", _scann, "dims a code", (2,), ("leaves", "refined factor"), _LEAVES),
    "turbovec": Library("turbovec", _turbovec, "bits", (4,), ("refined",), _ladder(_REFINED)),
    "SVS": Library("svs", _svs, "degree", (32, 64), *_GRAPH),
}
_LINKS: Final = (16, 32)
NAMES: Final = ("hnswlib", *libraries.faiss_factories(1, 1), *LIBRARIES)


def module_of(name: str) -> str:
    """Return the module that a contestant imports."""
    if name in LIBRARIES:
        return LIBRARIES[name].module
    return "hnswlib" if name == "hnswlib" else "faiss"


def absence(name: str) -> str:
    """Return why a contestant cannot take part, or nothing."""
    module = module_of(name)
    if libraries.missing(module.partition(".")[0]):
        return "not installed"
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        return f"does not import: {error}"
    return ""


def finders(name: str, base: FloatArray) -> Iterator[Finder | Rival]:
    """Build the configurations of a contestant, one after another, on all cores."""
    if name == "hnswlib":
        yield from (Graph.build(base, links, 200) for links in _LINKS)
    elif name in LIBRARIES:
        library = LIBRARIES[name]
        for value in library.configurations:
            begin = time.perf_counter()
            find = library.build(base, value)
            seconds = time.perf_counter() - begin
            words = f"{library.word} {value}"
            yield Rival(name, words, find, seconds, library.axes, library.steps)
    else:
        yield from build_faiss(base, [name])
