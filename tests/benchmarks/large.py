"""Cost against the number of points, up to ten millions: made ones, kept on disk and mapped.

A query's cost is that of its 50 nearest: with some shares of the probes that Build tuned the search
is widened until 50 candidates hold 0.95 of them on the mean, or all that was tried has failed; the
fastest that holds them counts. Then queries are timed one at a time on one thread, in turns with
the index that `auto` makes of 100,000 points, so that their ratio is one of the same minutes. faiss
IVF, its lists some four roots of n, has no selector to run and gets the fewest probes that hold as
many. At the end the exponent of cost against n is fitted.

*On top* is everything but the vectors: codes, tables or cells, external ids, and what two workers'
queries write into; *memory* is the most that the build held in which no file stands behind.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import finders, footprint, truth
from benchmarks.families import add_families, searches
from benchmarks.finders import Faiss
from benchmarks.manifold import Manifold, blocks
from benchmarks.tables import show, table
from benchmarks.turns import Asking, take_turns
from divgrpc.index import Index
from divgrpc.kernels.registers import arrays_of
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, HashFamily, IntArray, Search
from divgrpc.warmup import warm_kernels

_CANDIDATES: Final = 50
_HASHED: Final = (1, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256)
# Of the probes that Build tuned.
_PROBED: Final = (0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
_WORKERS: Final = 2
_REFERENCE: Final = 100_000
_PATIENCE: Final = 3.0
# Queries by which the fastest of several widths is told.
_FEW: Final = 60
# External ids, which no row's number could stand for.
_FIRST_ID: Final = 7
_TRAINED: Final = 1_000_000


@dataclass(frozen=True)
class Width:
    """How widely an index is searched, and the recall of that; 0 probes where there are none."""

    probes: int
    hashed: int
    recall: float


@dataclass(frozen=True)
class Row:
    """One search over one index; bytes as a share of the vectors', memory in bytes."""

    points: int
    name: str
    probes: int
    hashed: int
    recall: float
    reached: bool
    microseconds: float
    than_reference: float
    build_seconds: float
    build_memory: int
    on_top: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    sizes = [10_000, 100_000, 1_000_000, 10_000_000]
    parser.add_argument("--points", type=int, nargs="+", default=sizes, help="(default to 10 M)")
    add_families(parser)
    parser.add_argument("--k", type=int, default=10, help="results per query (default 10)")
    parser.add_argument("--queries", type=int, default=200, help="queries asked (default 200)")
    parser.add_argument("--recall", type=float, default=0.95, help="to be reached (default .95)")
    parser.add_argument(
        "--target-recall", type=float, default=0.99, help="that Build tunes for (default .99)"
    )
    parser.add_argument("--folder", type=Path, help="for up to 17 GB (default: a temporary one)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table as it grows and the exponents, and return the rows for JSON."""
    show(f"\n## Large: k = {arguments.k} of {_CANDIDATES} candidates, 128 dimensions\n")
    warm_kernels()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="divgrpc-large-", dir=arguments.folder) as temporary:
        large = _Large(Path(temporary), arguments)
        show(_line(None))
        for count in arguments.points:
            for row in large.of(count):
                rows.append(row)
                show(_line(row))
    slopes = exponents(rows)
    show("\nCost grows with n to the power of, where all sizes reach the recall\n")
    show(table(("search", "exponent"), [(name, f"{each:.2f}") for name, each in slopes.items()]))
    return {"rows": [asdict(row) for row in rows], "exponents": slopes}


class _Large:
    """The folder, the queries, and the index that others are compared with."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder, self._told, self._manifold = folder, arguments, Manifold.of()
        self._queries = self._manifold.queries(arguments.queries)
        points = self._manifold.points(_REFERENCE)
        index = Index.build(points, hash_family="auto", target_recall=arguments.target_recall)
        near = truth.nearest(points, self._queries, _CANDIDATES)[0]
        self._reference = self._asking(index, "auto", self._fastest(index, "auto", near, 0))

    def of(self, count: int) -> Iterator[Row]:
        """Yield rows for so many points; what was built is gone afterwards."""
        points = self._manifold.write(self._folder / "points.npy", count)
        near = truth.nearest(points, self._queries, _CANDIDATES)[0]
        families = [each for each in self._told.families if each != "auto"]
        for family in (*families, "auto"):
            folder = self._folder / family
            with footprint.watching(os.getpid()) as peak:
                before, begun = footprint.held(os.getpid()).unbacked, time.perf_counter()
                index = self._build(points, family, folder)
                seconds = time.perf_counter() - begun
            built = (seconds, peak.unbacked.total.unbacked - before)
            with threadpool_limits(1):
                yield from self._searched(index, family, near, built)
                if family == "auto" and "faiss" not in finders.missing():
                    yield self._beside(points, near)
            del index
            shutil.rmtree(folder)

    def _build(self, points: FloatArray, family: HashFamily, folder: Path) -> Index:
        ids = np.arange(_FIRST_ID, len(points) + _FIRST_ID)
        told = {"hash_family": family, "target_recall": self._told.target_recall}
        return Index.build(points, ids=ids, path=folder / "index", **told)

    def _searched(
        self, index: Index, family: str, near: IntArray, built: tuple[float, int]
    ) -> Iterator[Row]:
        for search in searches(family):
            width = self._fastest(index, search, near, _FIRST_ID)
            asked = {"this": self._asking(index, search, width), "reference": self._reference}
            timed = take_turns(asked, len(self._queries), self._told.k, _PATIENCE)
            this, other = (timed[each].microseconds for each in asked)
            reached = width.recall >= self._told.recall
            told = (width.probes, width.hashed, width.recall, reached, this, this / other)
            yield Row(index.rows, f"{family}, {search}", *told, *built, on_top(index))

    def _fastest(self, index: Index, search: Search, near: IntArray, first_id: int) -> Width:
        """Return the fastest width that reaches the recall, or the one that comes nearest."""
        probed = [0]
        if search == "tables" or (search == "auto" and index.info.auto_search == "tables"):
            probed = sorted({max(1, round(share * index.info.n_probes)) for share in _PROBED})
        widths = [self._widen(index, search, near, first_id, probes) for probes in probed]
        enough = [width for width in widths if width.recall >= self._told.recall]
        if not enough:
            return max(widths, key=lambda width: width.recall)
        asked = {width: self._asking(index, search, width) for width in enough}
        timed = take_turns(asked, min(_FEW, len(self._queries)), self._told.k, _PATIENCE)
        return min(enough, key=lambda width: timed[width].microseconds)

    def _widen(
        self, index: Index, search: Search, near: IntArray, first_id: int, probes: int
    ) -> Width:
        """Return hashed points that are enough for the nearest (nq, 50), with so many probes."""
        found, hashed = 0.0, _CANDIDATES
        for factor in _HASHED:
            hashed = min(index.rows, round(factor * _CANDIDATES))
            told = QueryParameters(
                k=_CANDIDATES,
                selector="nearest",
                search=search,
                candidates_limit=_CANDIDATES,
                hash_limit=hashed,
                n_probes=probes or None,
            )
            ids = index.engine.answer(self._queries, told).ids - first_id
            before, found = found, truth.recall(ids, near)
            # Where probes are too few, their buckets hold no more points.
            if found >= self._told.recall or 0 < found == before:
                break
        return Width(probes, hashed, found)

    def _asking(self, index: Index, search: Search, width: Width) -> Asking:
        told = QueryParameters(
            k=self._told.k,
            search=search,
            candidates_limit=_CANDIDATES,
            hash_limit=width.hashed,
            n_probes=width.probes or None,
        )
        queries = self._queries

        def ask(number: int) -> IntArray:
            rows: IntArray = index.engine.answer(queries[number : number + 1], told).ids[0]
            return rows

        return ask

    def _beside(self, points: FloatArray, near: IntArray) -> Row:
        """Build lists of faiss in blocks, and widen and time them in the same way."""
        begun = time.perf_counter()
        finder = _lists(points)
        seconds = time.perf_counter() - begun

        @cache
        def recall(probes: int) -> float:
            asked = (finder.nearest(each, _CANDIDATES, (probes,))[0] for each in self._queries)
            return truth.recall(asked, near)

        ladder = [int(probes) for (probes,) in finder.ladders()[0]]
        probes = fewest(lambda probes: recall(probes) >= self._told.recall, ladder)
        asked: dict[str, Asking] = {
            "this": lambda number: self._few(finder, number, probes),
            "reference": self._reference,
        }
        timed = take_turns(asked, len(self._queries), self._told.k, _PATIENCE)
        this, other = (timed[each].microseconds for each in asked)
        reached, top = recall(probes) >= self._told.recall, finder.bytes / points.nbytes
        told = (probes, 0, recall(probes), reached, this, this / other, seconds, 0, top)
        return Row(len(points), finder.told, *told)

    def _few(self, finder: Faiss, number: int, probes: float) -> IntArray:
        """Return the first k of the 50 candidates, without a selector."""
        rows = finder.nearest(self._queries[number], _CANDIDATES, (probes,))[0]
        return rows[: self._told.k]


def fewest(reaches: Callable[[int], bool], ladder: Sequence[int]) -> int:
    """Return the fewest that reach what is wanted, or the last of the ladder where none does."""
    few = 0
    for enough in ladder:
        if reaches(enough):
            break
        few = enough
    else:
        return ladder[-1]
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if reaches(middle) else (middle, enough)
    return enough


def _lists(points: FloatArray) -> Faiss:
    """Build faiss' flat lists; no more than some blocks are in memory beside them."""
    import faiss

    told, axes = finders.faiss_factories(*points.shape)["faiss IVF"]
    faiss.omp_set_num_threads(os.cpu_count() or 1)
    index: Any = faiss.index_factory(points.shape[1], told)
    index.train(np.ascontiguousarray(points[:: max(1, len(points) // _TRAINED)]))
    for _, block in blocks(points):
        index.add(np.ascontiguousarray(block))
    faiss.omp_set_num_threads(1)
    # Each vector has its number beside it, and its list a centre.
    above = 8 * len(points) + 4 * index.nlist * points.shape[1]
    return Faiss("faiss IVF", told, index, 0.0, above, axes, index.nlist)


def on_top(index: Index) -> float:
    """Return everything but the vectors, two workers' scratch included, as a share of those."""
    arrays = {array.name: array.bytes for array in index.info.arrays}
    vectors = arrays.pop("vectors")
    searcher: Any = index.engine._searcher
    # Views are not counted: another array has their bytes.
    held = arrays_of(searcher._local.memory.scratch)
    scratch = sum(array.nbytes for array in held if array.base is None)
    return (sum(arrays.values()) + _WORKERS * scratch) / vectors


def exponents(rows: Sequence[Row]) -> dict[str, float]:
    """Fit log cost to log n for each search that reached the recall at two sizes or more, and all.

    A family stands here too by the faster of its searches at each size.
    """
    costs: dict[str, dict[int, float]] = defaultdict(dict)
    missed = {row.name for row in rows if not row.reached}
    for row in rows:
        family = row.name.split(",")[0]
        for name in (row.name, f"{family}, the faster"):
            if row.reached and name not in missed and not family.startswith("IVF"):
                known = costs[name].get(row.points, np.inf)
                costs[name][row.points] = min(known, row.microseconds)
    sizes = {row.points for row in rows}
    return {
        name: float(np.polyfit(np.log(list(found)), np.log(list(found.values())), 1)[0])
        for name, found in sorted(costs.items())
        if len(found) == len(sizes) > 1
    }


_HEADS: Final = (
    ("points", 10),
    ("search", 18),
    ("probes", 6),
    ("hashed", 6),
    ("recall", 6),
    ("us/query", 9),
    ("x auto of 100,000", 17),
    ("built in s", 10),
    ("memory MB", 9),
    ("on top", 7),
)


def _line(row: Row | None) -> str:
    """Draw a line as soon as it is known: a run takes an hour; without a row the heads."""
    lines: list[list[str]]
    if row is None:
        rules = ["-" * (width - 1) + ":" for _, width in _HEADS]
        lines = [[name for name, _ in _HEADS], rules]
    else:
        cells = [
            f"{row.points:,}",
            row.name,
            f"{row.probes:,}" if row.probes else "",
            f"{row.hashed:,}" if row.hashed else "",
            f"{row.recall:.3f}" + ("" if row.reached else "!"),
            f"{row.microseconds:,.0f}",
            f"{row.than_reference:.2f}",
            f"{row.build_seconds:.1f}",
            f"{row.build_memory / 1e6:,.0f}" if row.build_memory else "",
            f"{row.on_top:.1%}",
        ]
        lines = [cells]
    widths = [width for _, width in _HEADS]
    return "\n".join("| " + " | ".join(map(str.rjust, cells, widths)) + " |" for cells in lines)
