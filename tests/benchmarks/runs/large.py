"""The benchmark of large indexes."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import libraries, programs, truth
from benchmarks.harness.datasets import Manifold, searches
from benchmarks.harness.libraries import Effort, build_faiss
from benchmarks.harness.runner import (
    FAMILIES,
    Ask,
    Option,
    Options,
    Output,
    Row,
    Table,
    benchmark,
    take_turns,
)
from divgrpc.index import Index
from divgrpc.kernels.registers import arrays_of
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search

_CANDIDATES: Final = 50
# Values to try: hashed points per candidate, and probes as multiples of the number that Build
# tuned.
_HASH_FACTORS: Final = (1, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256)
_PROBE_FACTORS: Final = (0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
_WORKERS: Final = 2
_REFERENCE: Final = 100_000
_PATIENCE: Final = 3.0
# External ids begin at this number, so that no id equals its row number.
_FIRST_ID: Final = 7


class _Width(NamedTuple):
    """The probes (0 without buckets) and hash_limit of a search, its recall, and its seconds."""

    probes: int
    limit: int
    recall: float
    seconds: float = 0.0


@benchmark(
    "large",
    long=True,
    points=Option([10_000, 100_000, 1_000_000, 10_000_000], "points"),
    families=FAMILIES,
    k=Option(10, "results per query"),
    queries=Option(200, "queries asked"),
    recall=Option(0.95, "recall to reach"),
    target_recall=Option(0.99, "recall that Build tunes for"),
    folder=Option(None, "folder for large files, a temporary one otherwise", kind=Path),
)
def large(options: Options) -> Iterator[Output]:
    """Growth of the cost with the number of points, up to ten million synthetic points, and faiss.

    The cost of a query is the cost of finding its 50 nearest points. For several numbers of probes
    around the number that Build tuned, the number of hashed points is raised until the 50
    candidates contain 95 % of the 50 nearest points on average. The fastest of these settings
    counts. Queries are timed one at a time on one thread. They alternate with queries to an index
    of 100,000 points built with `auto`, so that both times of a ratio come from the same minutes.

    faiss IVF has about 4 sqrt(n) inverted lists and runs no selector. It gets the smallest number
    of probes that reaches the same recall.

    "On top" counts all bytes except the vectors: codes, tables or cells, external ids, and the
    scratch memory of two workers. "memory MB" is the peak memory of the build without file pages.
    """
    with tempfile.TemporaryDirectory(prefix="divgrpc-large-", dir=options.folder) as temporary:
        bench = _Bench(Path(temporary), options)
        for count in options.points:
            yield Table(f"{count:,} points, k = {options.k} of {_CANDIDATES} candidates")
            yield from bench.rows(count)


class _Bench:
    """The state of the benchmark: its folder, its queries, and the reference index."""

    def __init__(self, folder: Path, options: Options) -> None:
        self._folder, self._options, self._manifold = folder, options, Manifold.of()
        self._queries = self._manifold.queries(options.queries)
        points = self._manifold.points(_REFERENCE)
        index = Index.build(points, hash_family="auto", target_recall=options.target_recall)
        near = truth.nearest(points, self._queries, _CANDIDATES)[0]
        self._reference = self._ask(index, "auto", self._fastest(index, "auto", near))

    def rows(self, count: int) -> Iterator[Row]:
        """Yield the rows for `count` points, and delete the files afterwards."""
        points = self._manifold.write(self._folder / "points.npy", count)
        ids = np.arange(_FIRST_ID, count + _FIRST_ID)
        near = truth.nearest(points, self._queries, _CANDIDATES)[0]
        near_ids = near + _FIRST_ID
        for family in self._options.families:
            folder = self._folder / family
            with programs.watching(os.getpid()) as memory:
                begin_time = time.perf_counter()
                index = Index.build(
                    points,
                    ids=ids,
                    path=folder / "index",
                    hash_family=family,
                    target_recall=self._options.target_recall,
                )
                seconds = time.perf_counter() - begin_time
            building = {"built in s": seconds, "memory MB": memory.rise("unbacked") / 1e6}
            with threadpool_limits(1):
                for search in searches(family):
                    width = self._fastest(index, search, near_ids)
                    name, ask = f"{family}, {search}", self._ask(index, search, width)
                    yield {**self._row(name, width, ask), **building, "on top": on_top(index)}
            del index
            shutil.rmtree(folder)
        if not libraries.missing("faiss"):
            with threadpool_limits(1):
                yield self._faiss(points, near)

    def _row(self, name: str, width: _Width, ask: Ask) -> Row:
        asks = {"this": ask, "reference": self._reference}
        times = take_turns(asks, len(self._queries), self._options.k, _PATIENCE)
        return {
            "search": name,
            "probes": width.probes or None,
            "hashed": width.limit or None,
            "recall": width.recall,
            "reached": width.recall >= self._options.recall,
            "us/query": times["this"].microseconds,
            f"x auto of {_REFERENCE:,}": times["this"].ratio(times["reference"])[0],
        }

    def _fastest(self, index: Index, search: Search, near: IntArray) -> _Width:
        """Return the fastest width that reaches the recall of `near` (nq, 50), or the best one."""
        counts, n_probes = [0], index.info.n_probes
        if (index.info.auto_search if search == "auto" else search) == "tables":
            counts = sorted({max(1, round(share * n_probes)) for share in _PROBE_FACTORS})
        widths = [self._widen(index, search, near, probes) for probes in counts]
        sufficient = [width for width in widths if width.recall >= self._options.recall]
        if sufficient:
            return min(sufficient, key=lambda width: width.seconds)
        return max(widths, key=lambda width: width.recall)

    def _widen(self, index: Index, search: Search, near: IntArray, probes: int) -> _Width:
        """Return the width at `probes` with enough hashed points to reach the recall."""
        width = _Width(probes, 0, 0.0)
        for factor in _HASH_FACTORS:
            limit = min(index.rows, round(factor * _CANDIDATES))
            parameters = _parameters(search, probes, limit, k=_CANDIDATES, selector="nearest")
            begin = time.perf_counter()
            ids = index.engine.answer(self._queries, parameters).ids
            seconds, before = time.perf_counter() - begin, width.recall
            width = _Width(probes, limit, truth.recall(ids, near), seconds)
            # If recall no longer rises, the probed buckets hold no further points.
            if width.recall >= self._options.recall or 0 < width.recall == before:
                break
        return width

    def _ask(self, index: Index, search: Search, width: _Width) -> Ask:
        parameters = _parameters(search, width.probes, width.limit, k=self._options.k)

        def ask(number: int) -> IntArray:
            query = self._queries[number : number + 1]
            rows: IntArray = index.engine.answer(query, parameters).ids[0]
            return rows

        return ask

    def _faiss(self, points: FloatArray, near: IntArray) -> Row:
        """Measure faiss IVF; its results are the first k candidates."""
        [finder] = build_faiss(points, ["faiss IVF"])
        effort: Effort = ()
        recall = 0.0
        for effort in finder.ladders()[0]:
            answers = (finder.nearest(query, _CANDIDATES, effort)[0] for query in self._queries)
            recall = truth.recall(answers, near)
            if recall >= self._options.recall:
                break

        def ask(number: int) -> IntArray:
            rows = finder.nearest(self._queries[number], _CANDIDATES, effort)[0]
            return rows[: self._options.k]

        row = self._row(finder.config, _Width(int(effort[0]), 0, recall), ask)
        return {**row, "built in s": finder.seconds, "on top": finder.bytes / points.nbytes}


def _parameters(search: Search, probes: int, limit: int, **options: Any) -> QueryParameters:  # noqa: ANN401  # as in the class
    return QueryParameters(
        search=search,
        candidates_limit=_CANDIDATES,
        hash_limit=limit,
        n_probes=probes or None,
        **options,
    )


def on_top(index: Index) -> float:
    """Return the bytes of all data except the vectors, divided by the bytes of the vectors.

    The scratch memory of two workers is included. The index must have answered a query in this
    thread.
    """
    arrays = {array.name: array.bytes for array in index.info.arrays}
    vectors = arrays.pop("vectors")
    searcher: Any = index.engine._searcher
    # Only arrays that own their memory count, because views of them share it.
    memory = arrays_of(searcher._local.memory.scratch)
    scratch = sum(array.nbytes for array in memory if array.base is None)
    return float((sum(arrays.values()) + _WORKERS * scratch) / vectors)
