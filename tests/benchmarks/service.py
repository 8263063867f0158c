"""Over the wire at equal quality: divgrpc beside a service written by hand around hnswlib.

Both close as much of the gap in J, each at the settings that were the fastest in process, and both
have as many processes that compute or talk to callers. They are up at once and take turns: so many
calls in flight for the server's CPU per call, then an open loop at half the other's top rate, in
which latency counts from when a call was due. A figure is that of the quietest round.
"""

import argparse
import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import choosing, datasets, finders, load, rivals
from benchmarks.datasets import Points
from benchmarks.entries import Contestant, Entry, Ours, Pair, Target
from benchmarks.finders import Graph
from benchmarks.load import Load, Offered
from benchmarks.processes import Program, by_hand, server
from benchmarks.tables import facts, show, table
from divgrpc.index import Index
from divgrpc.warming import warm_kernels
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2

_INDEX: Final = "bench"
_OURS, _THEIRS = "divgrpc", "by hand"
# Connections, so that every process of a port gets some.
_CHANNELS: Final = 16
# Seconds that a call may take.
_PATIENCE: Final = 10.0


@dataclass(frozen=True)
class Row:
    """One service at equal quality; microseconds, of CPU per call."""

    name: str
    configuration: str
    gap: float
    calls_per_second: float
    cpu: float
    rate: float
    p50: float
    p99: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--points", default=datasets.REAL, help='"real", or how many to make')
    parser.add_argument("--k", type=int, default=10, help="results per query (default 10)")
    parser.add_argument("--queries", type=int, default=400, help="queries asked (default 400)")
    parser.add_argument("--tuning", type=int, default=100, help="queries for dials (default 100)")
    parser.add_argument("--diversity", type=float, default=0.3, help="of the target (default 0.3)")
    parser.add_argument("--gap", type=float, default=0.97, help="to be closed (default 0.97)")
    parser.add_argument("--links", type=int, nargs="+", default=[16, 32], help="M of hnswlib")
    parser.add_argument("--ef-construction", type=int, nargs="+", default=[100])
    parser.add_argument("--in-flight", type=int, default=64, help="calls at a time (default 64)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one loop (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="turns each takes (default 3)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table and the ratios, and return the rows for JSON."""
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
        index = Index.build(points.base, hash_family="auto", path=folder / "data" / _INDEX)
        graphs = {
            graph.told: graph
            for links in arguments.links
            for ef_construction in arguments.ef_construction
            for graph in (Graph.build(points.base, links, ef_construction),)
        }
        ours, theirs = _settings(points, index, list(graphs.values()), arguments)
        graph = next(each for told, each in graphs.items() if theirs.built.endswith(told))
        graph.index.save_index(str(folder / "graph"))
        np.save(folder / "vectors.npy", points.base)
        told = {"ef": round(theirs.effort[0] * theirs.count), "fetched": theirs.count}
        programs = {
            _OURS: stack.enter_context(server(folder, 1)),
            _THEIRS: stack.enter_context(by_hand(folder, 2, dial=theirs.dial, **told)),
        }
        requests = {name: _requests(points, ours, arguments.k) for name in programs}
        asyncio.run(_check(programs, requests, {_OURS: ours, _THEIRS: theirs}))
        seen = asyncio.run(_take_turns(programs, requests, arguments))
    rows = _rows(seen, {_OURS: ours, _THEIRS: theirs})
    show(_drawn(rows) + "\n")
    mine, other = rows
    ratios = {"calls per CPU": other.cpu / mine.cpu, "p99": mine.p99 / other.p99}
    show(f"{ratios['calls per CPU']:.2f} times the calls per second of server CPU,")
    show(f"{ratios['p99']:.2f} of its p99 at half its top rate")
    return {"data": points.described(), "rows": [asdict(row) for row in rows], "ratios": ratios}


def _settings(
    points: Points, index: Index, graphs: Sequence[Graph], arguments: argparse.Namespace
) -> list[Entry]:
    """Return the fastest of ours, then of theirs, that closes the gap."""
    target = Target.of(points, arguments.k, arguments.gap, (arguments.diversity, "J"))
    pyversity = rivals.Pyversity(points.base, "msd")
    ours = Ours(_OURS, _OURS, index, rivals.Ours.over(index), arguments.k)
    everyone: list[Contestant] = [ours, *(Pair(graph, pyversity, arguments.k) for graph in graphs)]
    with threadpool_limits(1):
        tried = [entry for each in everyone for entry in target.entries(each)]
    return choosing.finalists(tried, arguments.gap, 1)[1]


def _requests(points: Points, ours: Entry, k: int) -> list[bytes]:
    """Return a request for each query; who was written by hand reads the vector and k alone."""
    return [
        query_pb2.QueryRequest(
            index=_INDEX,
            queries=arrays.encode_dense(row[None]),
            k=k,
            diversity=ours.dial,
            variant=query_pb2.VARIANT_MARGINAL,
            candidates_limit=ours.count,
            hash_limit=round(ours.effort[0] * ours.count),
            n_probes=int(ours.effort[1]) if len(ours.effort) > 1 else None,
        ).SerializeToString()
        for row in points.queries
    ]


async def _check(
    programs: Mapping[str, Program],
    requests: Mapping[str, Sequence[bytes]],
    entries: Mapping[str, Entry],
) -> None:
    """See that both answer over the wire as in process."""
    for name, program in programs.items():
        reply = await load.one(program, requests[name][0])
        ids = list(query_pb2.QueryResponse.FromString(reply).ids)
        if ids != entries[name].ask(0).tolist():
            raise RuntimeError(f"{name}: the service's answer is not that in process")


async def _take_turns(
    programs: Mapping[str, Program],
    requests: Mapping[str, Sequence[bytes]],
    arguments: argparse.Namespace,
) -> tuple[dict[str, list[Load]], dict[str, list[Offered]]]:
    """Return what each service saw: closed loops in turns, then open ones at one rate."""
    busy: dict[str, list[Load]] = defaultdict(list)
    calm: dict[str, list[Offered]] = defaultdict(list)
    for _ in range(arguments.rounds):
        for name, program in programs.items():
            told = (program, requests[name], arguments.in_flight, arguments.seconds)
            busy[name].append(await load.unary(*told, channels=_CHANNELS))
    rate = max(each.per_second for each in busy[_THEIRS]) / 2
    for _ in range(arguments.rounds):
        for name, program in programs.items():
            offered = await load.open_loop(
                program,
                requests[name],
                rate,
                arguments.seconds,
                timeout=_PATIENCE,
                channels=_CHANNELS,
            )
            calm[name].append(offered)
    return busy, calm


def _rows(
    seen: tuple[Mapping[str, Sequence[Load]], Mapping[str, Sequence[Offered]]],
    entries: Mapping[str, Entry],
) -> list[Row]:
    rows = []
    for name, entry in entries.items():
        busy = min(seen[0][name], key=lambda each: sum(each.cpu.values()))
        calm = min(seen[1][name], key=lambda each: each.latency[99])
        rows.append(
            Row(
                name=name,
                configuration=entry.configuration,
                gap=entry.gap,
                calls_per_second=busy.per_second,
                cpu=sum(busy.cpu.values()),
                rate=calm.goodput,
                p50=calm.latency[50],
                p99=calm.latency[99],
            )
        )
    return rows


def _drawn(rows: Sequence[Row]) -> str:
    heads = ("service", "gap closed", "calls/s", "CPU us", "then at calls/s", "p50 us", "p99 us")
    return table(
        heads,
        [
            (
                f"{row.name}: {row.configuration}",
                f"{row.gap:.3f}",
                f"{row.calls_per_second:,.0f}",
                f"{row.cpu:.0f}",
                f"{row.rate:,.0f}",
                f"{row.p50:,.0f}",
                f"{row.p99:,.0f}",
            )
            for row in rows
        ],
    )
