"""Speed at equal quality: divgrpc in process beside hnswlib followed by pyversity.

Every configuration of both sides is tried at its best dial; of those that close the gap the fastest
of each kind are timed in turns, one query at a time on one thread. Building uses all cores on both
sides. Where nobody closes so much of the gap, the target is what both sides reach.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from threadpoolctl import threadpool_limits

from benchmarks import datasets, rivals
from benchmarks.entries import EXACT, Asked, Entry, Target, ours, theirs
from benchmarks.exhaustive import Everything
from benchmarks.gain import FAMILIES
from benchmarks.rivals import Graph
from benchmarks.tables import facts, show, table
from benchmarks.turns import take_turns
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index
from divgrpc.warming import warm_kernels

# Of each kind, those that were the fastest while J was taken.
_FINALISTS: Final = 3
# Ours take under a second, in which a moment's disturbance would show; a graph takes many.
_BUILDS: Final = 3


@dataclass(frozen=True)
class Built:
    """What building took with all cores, and what came of it."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Row:
    """The fastest of one kind at one target; `faster` and `built_faster` than the fastest rival."""

    diversity: float
    wanted: float
    name: str
    configuration: str
    dial: float
    gap: float
    microseconds: float
    build_seconds: float
    bytes: int
    faster: float | None = None
    built_faster: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--k", type=int, default=10, help="results per query (default 10)")
    parser.add_argument("--queries", type=int, default=400, help="queries reported (default 400)")
    parser.add_argument("--tuning", type=int, default=100, help="queries for dials (default 100)")
    parser.add_argument("--diversity", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    parser.add_argument("--gap", type=float, default=0.97, help="to be closed (default 0.97)")
    parser.add_argument("--links", type=int, nargs="+", default=[8, 16, 32], help="M of hnswlib")
    parser.add_argument("--ef-construction", type=int, nargs="+", default=[100, 200])


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table for each target, and return the rows for JSON."""
    points = datasets.load(arguments.queries, arguments.tuning)
    show(f"\n## Peers: k = {arguments.k} on {points.name}\n")
    show(facts(points.described()) + "\n")
    warm_kernels()
    indexes, built = _indexes(points)
    graphs = [] if rivals.missing() else _graphs(points, arguments)
    built |= {graph.name: Built(graph.seconds, graph.bytes) for graph in graphs}
    show(_construction(built) + "\n")
    everything = Everything.of(points.base)
    rows: list[Row] = []
    with threadpool_limits(1):
        for diversity in arguments.diversity:
            reported, tuning = (
                Asked.of(everything, queries, arguments.k, diversity)
                for queries in (points.queries, points.tuning)
            )
            target = Target(arguments.k, diversity, arguments.gap, reported, tuning)
            rows += _at(target, indexes, graphs, built)
    return {"data": points.described(), "k": arguments.k, "rows": [asdict(row) for row in rows]}


def _indexes(points: datasets.Points) -> tuple[dict[str, Index], dict[str, Built]]:
    indexes: dict[str, Index] = {}
    built: dict[str, Built] = {}
    for family in FAMILIES:
        times = []
        try:
            for _ in range(_BUILDS):
                begun = time.perf_counter()
                indexes[family] = Index.build(points.base, hash_family=family)
                times.append(time.perf_counter() - begun)
        except UnsupportedError as error:
            show(f"{family}: {error}")
            continue
        size = sum(array.bytes for array in indexes[family].info.arrays)
        built[family] = Built(statistics.median(times), size)
    indexes[EXACT] = next(iter(indexes.values()))
    # Nothing but the vectors is wanted, so nothing has to be built.
    built[EXACT] = Built(0.0, points.base.nbytes)
    return indexes, built


def _graphs(points: datasets.Points, arguments: argparse.Namespace) -> list[Graph]:
    return [
        Graph.build(points.base, links, ef_construction)
        for links in arguments.links
        for ef_construction in arguments.ef_construction
    ]


def _at(
    target: Target,
    indexes: Mapping[str, Index],
    graphs: Sequence[Graph],
    built: Mapping[str, Built],
) -> list[Row]:
    """Try everyone, time the fastest that close the gap, print and return their rows."""
    entries, rival = list(ours(indexes, target)), list(theirs(graphs, target))
    wanted = target.wanted
    for side in (entries, rival):
        if side:
            wanted = min(wanted, max(entry.gap for entry in side))
    show(f"diversity {target.diversity}: fastest of each kind to close {wanted:.3f} of the gap\n")
    finalists = _finalists([*entries, *rival], wanted)
    asked = {entry: entry.ask for entry in finalists}
    timed = take_turns(asked, len(target.reported.queries), target.k)
    fastest: dict[str, Entry] = {}
    for entry in sorted(finalists, key=lambda entry: timed[entry].microseconds):
        fastest.setdefault(entry.name, entry)
    rows = [
        Row(
            diversity=target.diversity,
            wanted=wanted,
            name=entry.name,
            configuration=entry.configuration,
            dial=entry.dial,
            gap=entry.gap,
            microseconds=timed[entry].microseconds,
            build_seconds=built[entry.built].seconds,
            bytes=built[entry.built].bytes,
        )
        for entry in fastest.values()
    ]
    rows = _compared(rows)
    show(_drawn(rows) + "\n")
    if rivals.missing():
        show(f"without a rival: {' and '.join(rivals.missing())} not installed\n")
    return rows


def _finalists(entries: Iterable[Entry], wanted: float) -> list[Entry]:
    """Return the few of each kind that close the gap fastest, as far as is known."""
    found: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.roughly):
        kind = found.setdefault(entry.name, [])
        if entry.gap >= wanted and len(kind) < _FINALISTS:
            kind.append(entry)
    return [entry for kind in found.values() for entry in kind]


def _compared(rows: Sequence[Row]) -> list[Row]:
    """Return ours with how much faster they are than the fastest rival."""
    rival = min(
        (row for row in rows if row.name.startswith(rivals.NAME)),
        key=lambda row: row.microseconds,
        default=None,
    )
    if rival is None:
        return list(rows)
    return [
        row
        if row.name.startswith(rivals.NAME)
        else replace(
            row,
            faster=rival.microseconds / row.microseconds,
            built_faster=rival.build_seconds / row.build_seconds if row.build_seconds else None,
        )
        for row in rows
    ]


def _construction(built: Mapping[str, Built]) -> str:
    return table(
        ("index", "built in s", "MB"),
        [
            (name, f"{each.seconds:.2f}", f"{each.bytes / 1e6:.1f}")
            for name, each in built.items()
            if name != EXACT
        ],
    )


def _drawn(rows: Sequence[Row]) -> str:
    heads = ("contestant: candidates", "dial", "gap closed", "us/query", "x rival")
    return table(
        (*heads, "built in s", "x rival", "MB"),
        [
            (
                f"{row.name}: {row.configuration}",
                f"{row.dial:.3f}",
                f"{row.gap:.3f}",
                f"{row.microseconds:,.0f}",
                f"{row.faster:.1f}" if row.faster else "",
                f"{row.build_seconds:.2f}" if row.build_seconds else "",
                f"{row.built_faster:.1f}" if row.built_faster else "",
                f"{row.bytes / 1e6:.1f}",
            )
            for row in rows
        ],
    )
