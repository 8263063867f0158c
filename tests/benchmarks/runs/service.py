"""The comparison with a hand-written service over gRPC."""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import libraries, load
from benchmarks.harness.datasets import REAL, Points, build_each, searches
from benchmarks.harness.datasets import load as load_points
from benchmarks.harness.libraries import Graph, OurPicker, Pyversity
from benchmarks.harness.load import Load
from benchmarks.harness.programs import Program, by_hand, server
from benchmarks.harness.runner import FAMILIES, Option, Options, Output, Row, Table, benchmark
from benchmarks.runs.contestants import Build, Contestant, Entry, Ours, Pair, Target, finalists
from divgrpc_client.load import Call, Report, Settings, constant, run_load

# Number of connections, which is large enough that every process behind a port gets some.
_CHANNELS: Final = 16
# The p99 of an open loop counts only if at least this share of its calls is answered in time.
_ANSWER_SHARE_MIN: Final = 0.95
# The results of the closed and of the open loops of a service.
Loops: TypeAlias = tuple[Sequence[Load], Sequence[Report]]


@dataclass(frozen=True, eq=False)
class Service:
    """A running program, its entry in process, which gives the same answers, and its calls."""

    entry: Entry
    program: Program
    call: Call


@benchmark(
    "service",
    points=Option(REAL, f"{REAL}, or synthetic points"),
    k=Option(10, "results per query"),
    queries=Option(400, "queries asked"),
    tuning=Option(100, "queries to set dials with"),
    diversity=Option(0.3, "target"),
    gap=Option(0.97, "share of the gap to close"),
    families=FAMILIES,
    links=Option([16, 32], "M of hnswlib"),
    ef_construction=Option([100], "ef_construction of hnswlib"),
    in_flight=Option(64, "calls at a time"),
    seconds=Option(3.0, "seconds of one loop"),
    rounds=Option(3, "turns of each service"),
)
def service(options: Options) -> Iterator[Output]:
    """Speed at equal quality over gRPC: divgrpc and a hand-written service around hnswlib.

    Both sides close the same share of the gap in J, with the settings that were the fastest in
    process. A single divgrpc server has an index of every family. Both sides have the same number
    of processes, run at the same time and take turns.

    A closed loop measures the server's CPU time per call. Then an open loop at half the rate that
    the hand-written service can reach measures latency, from the moment when a call was due. Each
    figure is from the quietest round. A family that does not close the share is not compared. The
    p99s are not compared if a service did not answer at this rate, or if the caller could not send
    at it.
    """
    absent = libraries.missing("hnswlib", "pyversity")
    if absent:
        yield f"nothing to compare with: {' and '.join(absent)} not installed"
        return
    points = load_points(options.points, options.queries, options.tuning)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        share, selection = _settings(points, folder / "data", options)
        services = _start(points, selection, folder, stack)
        for item in services:
            [request] = replace(item.call, vectors=points.queries[:1]).messages(seed=0)
            asyncio.run(load.check(item.entry.name, item.program, request, item.entry.ask(0)))
        loops = _take_turns(services, options)
    title = f"Closing {share:.3f} of the gap in J at diversity {options.diversity:g}"
    yield Table(title, points.described())
    yield from rows_of(loops, [service.entry for service in services], share)


def _settings(
    points: Points, folder: Path, options: Options
) -> tuple[float, dict[Entry, Contestant]]:
    """Return the share of the gap to close, and the fastest entry of each kind, ours first."""
    indexes, k = build_each(points.base, options.families, folder), options.k
    picker = OurPicker.over(next(iter(indexes.values())))
    contestants: list[Contestant] = [
        Ours(family, Build(family, "", index), picker, k, search)
        for family, index in indexes.items()
        for search in searches(family)
    ]
    pyversity = Pyversity(points.base, "msd")
    for links, ef_construction in product(options.links, options.ef_construction):
        graph = Graph.build(points.base, links, ef_construction)
        contestants.append(Pair(graph, pyversity, k))
    target = Target.of(points, k, options.gap, options.diversity)
    with threadpool_limits(1):
        contestant_by_entry = {
            entry: item for item in contestants for entry in target.entries(item)
        }
    share, selection = finalists([*contestant_by_entry], options.gap, 1)
    return share, {entry: contestant_by_entry[entry] for entry in selection}


def _start(
    points: Points, selection: Mapping[Entry, Contestant], folder: Path, stack: ExitStack
) -> list[Service]:
    program = stack.enter_context(server(folder, 1))
    services = []
    for entry, contestant in selection.items():
        if isinstance(contestant, Pair) and isinstance(contestant.source, Graph):
            contestant.source.index.save_index(str(folder / "graph"))
            np.save(folder / "vectors.npy", points.base)
            ef = round(entry.effort[0] * entry.count)
            rival = by_hand(folder, 2, ef=ef, candidates=entry.count, dial=entry.dial)
            program = stack.enter_context(rival)
        services.append(Service(entry, program, _call(points, entry, contestant)))
    return services


def _call(points: Points, entry: Entry, contestant: Contestant) -> Call:
    """Return the calls to a service; the hand-written one reads only the vector and k."""
    options: dict[str, Any] = {"k": contestant.k}
    if isinstance(contestant, Ours):
        parameters = asdict(contestant.parameters(entry.count, entry.effort, entry.dial))
        options = {name: value for name, value in parameters.items() if value is not None}
    return Call(entry.name, points.queries, options)


def _take_turns(services: Sequence[Service], options: Options) -> list[Loops]:
    """Run the services in turns, closed loops first and then open loops at equal rates."""
    closed: dict[Service, list[Load]] = defaultdict(list)
    reports: dict[Service, list[Report]] = defaultdict(list)
    for _ in range(options.rounds):
        for item in services:
            arguments = (item.call.messages(seed=0), options.in_flight, options.seconds)
            loop = load.unary(item.program, *arguments, channels=_CHANNELS)
            closed[item].append(asyncio.run(loop))
    rate = max(loop.per_second for loop in closed[services[-1]]) / 2
    settings = Settings(channels=_CHANNELS)
    for _ in range(options.rounds):
        for item in services:
            schedule = constant(rate, options.seconds)
            reports[item].append(run_load(item.program.address, [item.call], schedule, settings))
    return [(closed[item], reports[item]) for item in services]


def rows_of(loops: Sequence[Loops], entries: Sequence[Entry], share: float) -> Iterator[Row]:
    """Yield a row for each entry from its loops; the last entry is the hand-written service.

    "times per CPU" is the number of calls per second of server CPU, divided by the same number for
    the hand-written service. "of its p99" is the p99 divided by the p99 of the hand-written
    service. Both are None if one of the two services does not close the gap. "of its p99" is also
    None if one does not answer at the offered rate.
    """
    closed = [min(loads, key=lambda load: sum(load.cpu.values())) for loads, _ in loops]
    reports = [min(reports, key=lambda report: report["latency"]["p99"]) for _, reports in loops]
    cpu = [sum(load.cpu.values()) for load in closed]
    closing = [entry.gap >= share for entry in entries]
    answering = [
        closes and report["rate"] >= _ANSWER_SHARE_MIN * report["offered"] and not report["void"]
        for closes, report in zip(closing, reports, strict=True)
    ]
    last = reports[-1]["latency"]["p99"]
    for i, entry in enumerate(entries):
        latency = reports[i]["latency"]
        yield {
            "service": f"{entry.name}: {entry.configuration}",
            "gap closed": entry.gap,
            "calls/s": closed[i].per_second,
            "CPU us": cpu[i],
            "times per CPU": cpu[-1] / cpu[i] if closing[i] and closing[-1] else None,
            "then at calls/s": reports[i]["rate"],
            "p50 us": latency["p50"],
            "p99 us": latency["p99"],
            "of its p99": latency["p99"] / last if answering[i] and answering[-1] else None,
        }
