"""Speed at equal quality: divgrpc in process beside what others find and pick with.

hnswlib, the indexes of faiss and exact products, each followed by a selector: our own compiled one,
pyversity's or LangChain's; and greedy and MMR over all points, compiled. Every configuration is
tried at its best dial; of those that close the gap the fastest of each kind are timed in turns, one
query at a time on one thread. Building uses all cores on all sides. Where one side does not close
so much of the gap, the target is what both do. MMR is also compared at its own objective and dial.
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import product
from typing import Final

from threadpoolctl import threadpool_limits

from benchmarks import choosing, datasets, finders, peers_tables, rivals, truth
from benchmarks.choosing import EXACT, GREEDY, MMR, Built, Row
from benchmarks.datasets import Points
from benchmarks.entries import Contestant, Entry, Objective, Ours, Pair, Target
from benchmarks.exhaustive import Everything
from benchmarks.families import FAMILIES, add_families, searches
from benchmarks.finders import Finder, Flat, Graph
from benchmarks.tables import facts, show
from benchmarks.turns import take_turns
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index
from divgrpc.kernels import records
from divgrpc.types import HashFamily
from divgrpc.warmup import warm_kernels

# Of each kind, those that were the fastest while the gap was taken.
_FINALISTS: Final = 2
# Ours take a moment, in which a disturbance would show; a graph takes long.
_BUILDS: Final = 3
_BUILDS_SECONDS: Final = 3.0
# For a block of queries, of which there are eight: all points of a million take a fifth of one.
_PATIENCE: Final = 0.5
# Of the ten nearest, for which a build tunes its probes.
_RECALLS: Final = (0.9, 0.99)
_EF: Final = (10, 20, 50, 100, 200, 400, 800)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument(
        "--points",
        nargs="+",
        default=[datasets.REAL],
        help='"real" for the data set, or how many to make; 10000 300000 1000000 (default real)',
    )
    parser.add_argument("--k", type=int, default=10, help="results per query (default 10)")
    parser.add_argument("--queries", type=int, default=400, help="queries reported (default 400)")
    parser.add_argument("--tuning", type=int, default=100, help="queries for dials (default 100)")
    parser.add_argument("--diversity", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    parser.add_argument("--gap", type=float, default=0.97, help="to be closed (default 0.97)")
    add_families(parser)
    kinds = list(finders.faiss_factories(1, 1))
    parser.add_argument("--faiss", nargs="*", default=kinds, choices=kinds, help="(default all)")
    parser.add_argument("--links", type=int, nargs="*", default=[8, 16, 32], help="M of hnswlib")
    parser.add_argument("--ef-construction", type=int, nargs="+", default=[100, 200])


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print tables for each set of points, and return the rows for JSON."""
    warm_kernels()
    return {"k": arguments.k, "sets": [_on(each, arguments) for each in arguments.points]}


def _on(told: str, arguments: argparse.Namespace) -> dict[str, object]:
    asked = (arguments.queries, arguments.tuning)
    points = datasets.told(told, *asked)
    show(f"\n## Peers: k = {arguments.k} on {points.name}\n")
    show(facts(points.described()) + "\n")
    for name in finders.missing():
        show(f"{name} is not installed and does not take part")
    field = _Field.build(points, arguments)
    show(peers_tables.construction(field.built) + "\n")
    recall = _recall(points, field.graphs)
    entries: list[Entry] = []
    rows: list[Row] = []
    targets: list[tuple[float, Objective]] = [(each, "J") for each in arguments.diversity]
    targets.append((sorted(arguments.diversity)[len(arguments.diversity) // 2], "MMR"))
    for at in targets:
        target = Target.of(points, arguments.k, arguments.gap, at)
        with threadpool_limits(1):
            tried = [each for who in field.contestants(at[1]) for each in target.entries(who)]
            rows += _fastest(target, tried, field)
        entries += tried
    ratios = choosing.ratios(rows, FAMILIES)
    show("How many times the speed of others, at equal quality\n")
    show(peers_tables.ratios_drawn(ratios) + "\n")
    fronts = {by: choosing.front(entries, by) for by in ("gap", "h")}
    for by, front in fronts.items():
        show(f"Who closes more in less time, all of those tried, by {by}\n")
        show(peers_tables.front_drawn(front) + "\n")
    return {
        "data": points.described(),
        "recall": recall,
        "built": {name: asdict(each) for name, each in field.built.items()},
        "rows": [asdict(row) for row in rows],
        "ratios": [asdict(row) for row in ratios],
        "fronts": fronts,
    }


@dataclass(frozen=True, eq=False)
class _Field:
    """Everything built over the same points, and what building took."""

    points: Points
    k: int
    indexes: Mapping[str, Index]
    finders: Sequence[Finder]
    built: Mapping[str, Built]

    @classmethod
    def build(cls, points: Points, arguments: argparse.Namespace) -> "_Field":
        """Build ours, then theirs, one after the other with all cores."""
        indexes, built = _indexes(points, arguments.families)
        absent = finders.missing()
        theirs: list[Finder] = [Flat(points.base)]
        if "hnswlib" not in absent:
            theirs += [
                Graph.build(points.base, links, ef_construction)
                for links in arguments.links
                for ef_construction in arguments.ef_construction
            ]
        if "faiss" not in absent:
            theirs += finders.build_faiss(points.base, arguments.faiss)
        for each in theirs:
            built[f"{each.kind}, {each.told}"] = Built(each.seconds, each.bytes)
        return cls(points, arguments.k, indexes, theirs, built)

    @property
    def graphs(self) -> list[Graph]:
        """Those of hnswlib."""
        return [each for each in self.finders if isinstance(each, Graph)]

    def contestants(self, objective: Objective) -> list[Contestant]:
        """Return everyone who competes for an objective."""
        absent, base = finders.missing(), self.points.base
        first = next(iter(self.indexes.values()))
        own = rivals.Ours.over(first, records.MARGINAL) if objective == "J" else self.mmr
        ours = partial(Ours, tuned=own, k=self.k, selector=own.selector)
        everyone: list[Contestant] = [
            ours(name.split(",")[0], name, index, search=search)
            for name, index in self.indexes.items()
            for search in searches(name.split(",")[0])
        ]
        everyone.append(ours(EXACT, "", first, search="exact"))
        for finder in self.finders:
            if not isinstance(finder, Flat):
                everyone.append(Pair(finder, own, self.k))
            elif "langchain_core" not in absent:
                everyone.append(Pair(finder, rivals.LangChain(base), self.k, self.mmr))
        for graph in self.graphs if "pyversity" not in absent else ():
            everyone.append(Pair(graph, rivals.Pyversity(base, "mmr"), self.k, self.mmr))
            if objective == "J":
                everyone.append(Pair(graph, rivals.Pyversity(base, "msd"), self.k))
        return everyone

    @cached_property
    def mmr(self) -> rivals.Ours:
        """Our MMR: others' pick the same, and more slowly."""
        return rivals.Ours.over(next(iter(self.indexes.values())), records.MMR)


def _indexes(
    points: Points, families: Sequence[HashFamily]
) -> tuple[dict[str, Index], dict[str, Built]]:
    indexes: dict[str, Index] = {}
    built: dict[str, Built] = {}
    for family, recall in product(families, _RECALLS):
        name = f"{family}, recall {recall}"
        build = partial(Index.build, points.base, hash_family=family, target_recall=recall)
        times: list[float] = []
        try:
            while len(times) < _BUILDS and sum(times) < _BUILDS_SECONDS:
                begun = time.perf_counter()
                indexes[name] = build()
                times.append(time.perf_counter() - begun)
        except UnsupportedError as error:
            show(f"{family}: {error}")
            continue
        size = sum(array.bytes for array in indexes[name].info.arrays)
        built[name] = Built(statistics.median(times), size - points.base.nbytes)
    return indexes, built


def _recall(points: Points, graphs: Sequence[Graph]) -> list[dict[str, object]]:
    """Show how hard the points are: recall of hnswlib's graphs, by ef."""
    exact = truth.nearest(points.base, points.queries, 10)[0]
    curves: list[dict[str, object]] = []
    for graph in graphs:
        recalls = {ef: choosing.recall(graph, points.queries, exact, ef) for ef in _EF}
        curves.append({"graph": graph.told, "recall": recalls})
    if curves:
        show("Recall of the ten nearest by hnswlib, at ef\n")
        show(peers_tables.recall_drawn(curves) + "\n")
    return curves


def _fastest(target: Target, tried: Sequence[Entry], field: _Field) -> list[Row]:
    """Time the fastest that close the gap, print and return their rows."""
    asked = target.reported
    wanted, finalists = choosing.finalists(tried, target.wanted, _FINALISTS)
    finalists += _everything(target, field.mmr)
    show(f"{asked.objective} at diversity {asked.diversity}: fastest of each kind to close ")
    show(f"{wanted:.3f} of the gap; below, those that close less\n")
    askings = {entry: entry.ask for entry in finalists}
    timed = take_turns(askings, len(asked.queries), target.k, _PATIENCE)
    found = [
        Row(
            objective=asked.objective,
            diversity=asked.diversity,
            wanted=wanted,
            name=entry.name,
            configuration=entry.configuration,
            dial=entry.dial,
            gap=entry.gap,
            h=None if math.isnan(entry.h) else entry.h,
            microseconds=timed[entry].microseconds,
            build_seconds=field.built.get(entry.built, Built()).seconds,
            bytes=field.built.get(entry.built, Built()).bytes,
        )
        for entry in finalists
    ]
    rows = choosing.best(found)
    show(peers_tables.drawn(rows) + "\n")
    return rows


def _everything(target: Target, mmr: rivals.Ours) -> Iterator[Entry]:
    """Yield greedy and MMR over all points, MMR for J at its dial for the most candidates."""
    asked, k, everything = target.reported, target.k, Everything.of(target.points.base)
    dial = asked.diversity
    if asked.objective == "J":
        rows = truth.greedy(asked.base, asked.queries, k, dial)
        yield target.over_all(GREEDY, rows, dial, lambda row: everything.greedy(row, k, dial))
        dial = target.dial(mmr, target.pool[0].shape[1])[0]
    rows = truth.mmr(asked.base, asked.queries, k, dial)
    yield target.over_all(MMR, rows, dial, lambda row: everything.mmr(row, k, dial))
