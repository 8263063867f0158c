"""Over the wire at equal quality: divgrpc beside a service written by hand around hnswlib.

All close as much of the gap in J, each at the settings that were the fastest in process. One server
of ours has an index of every family; it and the other have as many processes that compute or talk
to callers. They are up at once and asked in turns: so many calls in flight for the server's CPU per
call, then an open loop at half the other's top rate, in which latency counts from when a call was
due. A figure is that of the quietest round. A family that does not close as much is not compared,
nor is the p99 of one that does not answer that rate, or that the caller could not offer it.
"""

import argparse
import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import choosing, datasets, finders, load, rivals
from benchmarks.datasets import Points
from benchmarks.entries import Contestant, Entry, Ours, Pair, Target
from benchmarks.families import add_families, build_each, searches
from benchmarks.finders import Graph
from benchmarks.load import Load, Offered
from benchmarks.processes import Program, by_hand, server
from benchmarks.tables import facts, optional, show, table
from divgrpc.warmup import warm_kernels
from divgrpc_client.messages import requests
from divgrpc_client.messages.options import QueryOptions
from divgrpc_protos.v1 import query_pb2

_THEIRS: Final = "by hand"
# Connections, so that every process of a port gets some.
_CHANNELS: Final = 16
# Seconds that a call may take.
_PATIENCE: Final = 10.0
# Of the calls of an open loop, those that have to be answered in its time for its p99 to count.
_ANSWERED: Final = 0.95


@dataclass(frozen=True, eq=False)
class Service:
    """What answers as an entry does in process: a program, and a request for each query."""

    entry: Entry
    program: Program
    requests: Sequence[bytes]


@dataclass(frozen=True)
class Row:
    """One service at its settings; microseconds, of CPU per call.

    `times` are its calls for each second of server CPU, in times those of the service written by
    hand, and `of_p99` what its p99 is of that one's; None where one of the two does not close the
    gap, or does not answer.
    """

    name: str
    configuration: str
    gap: float
    calls_per_second: float
    cpu: float
    rate: float
    p50: float
    p99: float
    times: float | None
    of_p99: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--points", default=datasets.REAL, help='"real", or how many to make')
    parser.add_argument("--k", type=int, default=10, help="results per query (default 10)")
    parser.add_argument("--queries", type=int, default=400, help="queries asked (default 400)")
    parser.add_argument("--tuning", type=int, default=100, help="queries for dials (default 100)")
    parser.add_argument("--diversity", type=float, default=0.3, help="of the target (default 0.3)")
    parser.add_argument("--gap", type=float, default=0.97, help="to be closed (default 0.97)")
    add_families(parser)
    parser.add_argument("--links", type=int, nargs="+", default=[16, 32], help="M of hnswlib")
    parser.add_argument("--ef-construction", type=int, nargs="+", default=[100])
    parser.add_argument("--in-flight", type=int, default=64, help="calls at a time (default 64)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one loop (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="turns each takes (default 3)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    points = datasets.told(arguments.points, arguments.queries, arguments.tuning)
    show(f"\n## Service: k = {arguments.k} on {points.name}\n")
    show(facts(points.described()) + "\n")
    absent = [name for name in ("hnswlib", "pyversity") if name in finders.missing()]
    if absent:
        show(f"nothing to compare with: {' and '.join(absent)} not installed")
        return {"data": points.described(), "rows": []}
    warm_kernels()
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        ours = _ways(points, folder / "data", arguments)
        graphs = [
            Graph.build(points.base, links, ef_construction)
            for links in arguments.links
            for ef_construction in arguments.ef_construction
        ]
        wanted, chosen = _settings(points, ours, graphs, arguments)
        services = _start(points, chosen, folder, stack)
        asyncio.run(_check(services))
        seen = asyncio.run(_take_turns(services, arguments))
    rows = rows_of(seen, [each.entry for each in services], wanted)
    show(f"closing {wanted:.3f} of the gap in J at diversity {arguments.diversity}\n")
    show(_drawn(rows))
    return {"data": points.described(), "wanted": wanted, "rows": [asdict(row) for row in rows]}


def _ways(points: Points, folder: Path, arguments: argparse.Namespace) -> list[Ours]:
    """Build an index of each family, in a folder of its name, and return all ways to search it."""
    indexes = build_each(points.base, arguments.families, folder)
    tuned = rivals.Ours.over(next(iter(indexes.values())))
    return [
        Ours(family, family, index, tuned, arguments.k, search)
        for family, index in indexes.items()
        for search in searches(family)
    ]


def _settings(
    points: Points, ours: Sequence[Ours], graphs: Sequence[Graph], arguments: argparse.Namespace
) -> tuple[float, dict[Entry, Contestant]]:
    """Return the gap to close and the fastest of each kind that does, ours before theirs."""
    target = Target.of(points, arguments.k, arguments.gap, (arguments.diversity, "J"))
    pyversity = rivals.Pyversity(points.base, "msd")
    everyone: list[Contestant] = [*ours]
    everyone += [Pair(graph, pyversity, arguments.k) for graph in graphs]
    with threadpool_limits(1):
        tried = {entry: each for each in everyone for entry in target.entries(each)}
    wanted, chosen = choosing.finalists([*tried], arguments.gap, 1)
    return wanted, {entry: tried[entry] for entry in chosen}


def _start(
    points: Points, chosen: Mapping[Entry, Contestant], folder: Path, stack: ExitStack
) -> list[Service]:
    """Start both programs, and return what to ask of them."""
    program = stack.enter_context(server(folder, 1))
    services = []
    for entry, contestant in chosen.items():
        if isinstance(contestant, Pair) and isinstance(contestant.finder, Graph):
            contestant.finder.index.save_index(str(folder / "graph"))
            np.save(folder / "vectors.npy", points.base)
            ef = round(entry.effort[0] * entry.count)
            told = by_hand(folder, 2, ef=ef, fetched=entry.count, dial=entry.dial)
            program = stack.enter_context(told)
        services.append(Service(entry, program, _requests(points, entry, contestant)))
    return services


def _requests(points: Points, entry: Entry, contestant: Contestant) -> list[bytes]:
    """Return a request for each query; who was written by hand reads the vector and k alone."""
    options: QueryOptions = {"k": contestant.k}
    if isinstance(contestant, Ours):
        told = asdict(contestant.told(entry.count, entry.effort, entry.dial))
        given = {name: value for name, value in told.items() if value is not None}
        options = cast("QueryOptions", given)
    fields = requests.query_fields(entry.name, options)
    return [
        requests.query(fields, points.queries, number, number + 1).SerializeToString()
        for number in range(len(points.queries))
    ]


async def _check(services: Sequence[Service]) -> None:
    """See that all answer over the wire as in process."""
    for each in services:
        reply = await load.one(each.program, each.requests[0])
        ids = list(query_pb2.QueryResponse.FromString(reply).ids)
        if ids != each.entry.ask(0).tolist():
            raise RuntimeError(f"{each.entry.name}: the service's answer is not that in process")


async def _take_turns(
    services: Sequence[Service], arguments: argparse.Namespace
) -> list[tuple[Sequence[Load], Sequence[Offered]]]:
    """Return what each service saw: closed loops in turns, then open ones at one rate."""
    busy: dict[Service, list[Load]] = defaultdict(list)
    calm: dict[Service, list[Offered]] = defaultdict(list)
    seconds = arguments.seconds
    for _ in range(arguments.rounds):
        for each in services:
            told = (each.program, each.requests, arguments.in_flight, seconds)
            busy[each].append(await load.unary(*told, channels=_CHANNELS))
    rate = max(seen.per_second for seen in busy[services[-1]]) / 2
    for _ in range(arguments.rounds):
        for each in services:
            offered = load.open_loop(
                each.program,
                each.requests,
                rate,
                seconds,
                timeout=_PATIENCE,
                channels=_CHANNELS,
            )
            calm[each].append(await offered)
    return [(busy[each], calm[each]) for each in services]


def rows_of(
    seen: Sequence[tuple[Sequence[Load], Sequence[Offered]]],
    entries: Sequence[Entry],
    wanted: float,
) -> list[Row]:
    """Return a row for each entry, from its closed and open loops; the last is of the others."""
    busy = [min(loads, key=lambda load: sum(load.cpu.values())) for loads, _ in seen]
    calm = [min(loops, key=lambda loop: loop.latency[99]) for _, loops in seen]
    cpu = [sum(load.cpu.values()) for load in busy]
    closing = [entry.gap >= wanted for entry in entries]
    answering = [
        closes and loop.goodput >= _ANSWERED * loop.rate and not loop.void
        for closes, loop in zip(closing, calm, strict=True)
    ]
    return [
        Row(
            name=entry.name,
            configuration=entry.configuration,
            gap=entry.gap,
            calls_per_second=busy[number].per_second,
            cpu=cpu[number],
            rate=calm[number].goodput,
            p50=calm[number].latency[50],
            p99=calm[number].latency[99],
            times=cpu[-1] / cpu[number] if closing[number] and closing[-1] else None,
            of_p99=calm[number].latency[99] / calm[-1].latency[99]
            if answering[number] and answering[-1]
            else None,
        )
        for number, entry in enumerate(entries)
    ]


def _drawn(rows: Sequence[Row]) -> str:
    heads = (
        "service",
        "gap closed",
        "calls/s",
        "CPU us",
        "times per CPU",
        "then at calls/s",
        "p50 us",
        "p99 us",
        "of its p99",
    )
    return table(
        heads,
        [
            (
                f"{row.name}: {row.configuration}",
                f"{row.gap:.3f}",
                f"{row.calls_per_second:,.0f}",
                f"{row.cpu:.0f}",
                optional(row.times, ".2f"),
                f"{row.rate:,.0f}",
                f"{row.p50:,.0f}",
                f"{row.p99:,.0f}",
                optional(row.of_p99, ".2f"),
            )
            for row in rows
        ],
    )
