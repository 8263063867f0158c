"""What the service costs: server CPU per call and latency, beside an empty echo and the bare query.

All programs are up at once and take turns in rounds, on the loopback address; a row's figures are
those of its quietest round, the one with the least CPU per call; with one call in flight the least
p50, as a worker that stays awake then uses CPU for nothing. Server CPU is that of fronts and
workers, from the scheduler. The access log is on. The echo answers messages of the Query's sizes;
its CPU plus that of the same query in process is the floor: what a service could cost at the least.
So with p50, one call at a time. A batch is one call of many rows, beside the same batch in process.
What is asked in process is also asked while another process asks the last family, which shows how
much two processes slow one another on this machine, whatever they are. Every server has an index of
each family, asked in turns; a family is compared with its own queries in process.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Self, TypeAlias

from benchmarks import datasets, load
from benchmarks.families import add_families, build_each
from benchmarks.load import Load
from benchmarks.processes import Program, echo, server
from benchmarks.tables import optional, show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc.warmup import warm_kernels
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2

_REQUESTS = 400
_BATCH = 100
_BATCHES_IN_FLIGHT = 4
_QUERY, _IN_PROCESS = "query", " in process"
_BATCHED = f"batch of {_BATCH}"
_BESIDE = ", two processes"
_STREAMED = ", QueryStream"
_ECHO = "echo"
_START_SECONDS = 60
# Goals: CPU in times the floor by workers, p50 above it in microseconds, front CPU in times a unary
# call's, and a batch's rate, the least that will do, in times that in process.
_CPU_GOALS = {1: 1.25, 2: 1.45}
_P50_GOAL = 250
_STREAM_GOAL = 0.6
_BATCH_GOAL = 0.95


@dataclass(frozen=True)
class Case:
    """What was asked at once of which program, in what way; the echo is of no family."""

    family: str
    name: str
    in_flight: int


@dataclass(frozen=True)
class Row:
    """One program under one load, in its quietest round; microseconds per call.

    `of_in_process`: rows that a worker answers in a second of its CPU, of those in process.
    """

    family: str
    name: str
    in_flight: int
    calls_per_second: float
    cpu_front: float
    cpu_workers: float
    cpu_total: float
    than_floor: float | None
    p50: float | None
    p99: float | None
    p50_above_floor: float | None
    of_in_process: float | None = None


Seen: TypeAlias = "defaultdict[Case, list[Load]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    add_families(parser)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="(default 1 2)")
    parser.add_argument("--in-flight", type=int, default=64, help="calls at a time (default 64)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one loop (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns each takes (default 5)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    points = datasets.load(_REQUESTS, 0)
    show(f"\n## Wire: one query of k = 10 a call, defaults otherwise, on {points.name}\n")
    warm_kernels()
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        asked = [
            Asked.of(family, index, points.queries)
            for family, index in build_each(
                points.base, arguments.families, folder / "built"
            ).items()
        ]
        programs: dict[str, Program] = {}
        for workers in arguments.workers:
            shutil.copytree(folder / "built", folder / f"server-{workers}" / "data")
            name = f"{workers} worker{'s' if workers > 1 else ''}"
            programs[name] = stack.enter_context(server(folder / f"server-{workers}", workers))
        reply_bytes = asyncio.run(_check(asked, programs))
        empty = stack.enter_context(echo(reply_bytes))
        show(f"{len(asked[0].requests[0]):,} bytes a request, {reply_bytes:,} a reply\n")
        last = folder / "built" / asked[-1].family
        other = stack.enter_context(_another(last, points.queries))
        seen: Seen = defaultdict(list)
        for _ in range(arguments.rounds):
            asyncio.run(_ask_echo(seen, empty, asked[0].requests, arguments))
            for each in asked:
                _ask_in_process(seen, each, arguments.seconds / 2, other)
                asyncio.run(_ask_programs(seen, each, programs, arguments))
    rows = list(rows_of(seen))
    show(_drawn(rows))
    show()
    show(table(("goal", "here", "wanted"), list(_goals(rows, arguments.in_flight))))
    return {"data": points.described(), "rows": [asdict(row) for row in rows]}


@dataclass(frozen=True, eq=False)
class Asked:
    """An index, and the same queries for a call in process, a call and a stream; in batches too."""

    family: str
    index: Index
    queries: FloatArray
    requests: Sequence[bytes]
    messages: Sequence[bytes]
    batches: Sequence[FloatArray]
    batch_requests: Sequence[bytes]

    @classmethod
    def of(cls, family: str, index: Index, queries: FloatArray) -> Self:
        """Ask the rows of queries (nq, d), and so many whole batches as there are."""

        def request(rows: FloatArray) -> query_pb2.QueryRequest:
            return query_pb2.QueryRequest(index=family, queries=arrays.encode_dense(rows))

        batches = [queries[at : at + _BATCH] for at in range(0, len(queries) - _BATCH + 1, _BATCH)]
        single = [request(row[None]) for row in queries]
        messages = [
            query_pb2.QueryStreamRequest(correlation_id=number, query=each)
            for number, each in enumerate(single)
        ]
        return cls(
            family,
            index,
            queries,
            [each.SerializeToString() for each in single],
            [each.SerializeToString() for each in messages],
            batches,
            [request(batch).SerializeToString() for batch in batches],
        )


async def _check(asked: Sequence[Asked], programs: Mapping[str, Program]) -> int:
    """Return the size of a reply, after seeing that every server gives the core's answers."""
    size = 0
    for each, program in itertools.product(asked, programs.values()):
        reply = await load.one(program, each.requests[0])
        ids = list(query_pb2.QueryResponse.FromString(reply).ids)
        if ids != each.index.query(each.queries[:1]).ids[0].tolist():
            raise RuntimeError(f"{each.family}: the server's answer is not the core's")
        size = len(reply)
    return size


async def _ask_echo(
    seen: Seen, program: Program, requests: Sequence[bytes], arguments: argparse.Namespace
) -> None:
    many, seconds = arguments.in_flight, arguments.seconds
    seen[Case("", _ECHO, 1)].append(await load.unary(program, requests, 1, seconds / 2))
    seen[Case("", _ECHO, many)].append(await load.unary(program, requests, many, seconds))


def _ask_in_process(seen: Seen, asked: Asked, seconds: float, other: Event) -> None:
    """Ask queries and batches, alone and beside the other process, a `Load` of each."""
    single = [row[None] for row in asked.queries]
    for name, queries in ((_QUERY, single), (_BATCHED, asked.batches)):
        case = Case(asked.family, f"{name}{_IN_PROCESS}", 1)
        seen[case].append(_in_process(asked.index, queries, seconds))
        other.set()
        beside = replace(case, name=case.name + _BESIDE)
        seen[beside].append(_in_process(asked.index, queries, seconds))
        other.clear()


async def _ask_programs(
    seen: Seen, asked: Asked, programs: Mapping[str, Program], arguments: argparse.Namespace
) -> None:
    """Ask each server one call at a time, many, on a stream, and in batches."""
    many, seconds = arguments.in_flight, arguments.seconds
    for name, program in programs.items():
        case = Case(asked.family, name, many)
        alone = await load.unary(program, asked.requests, 1, seconds / 2)
        seen[replace(case, in_flight=1)].append(alone)
        seen[case].append(await load.unary(program, asked.requests, many, seconds))
        streamed = await load.stream(program, asked.messages, many, seconds)
        seen[replace(case, name=name + _STREAMED)].append(streamed)
        batched = Case(asked.family, f"{name}, {_BATCHED}", _BATCHES_IN_FLIGHT)
        seen[batched].append(
            await load.unary(program, asked.batch_requests, _BATCHES_IN_FLIGHT, seconds)
        )


@contextmanager
def _another(folder: Path, queries: FloatArray) -> Iterator[Event]:
    """Run a process that asks an index one query after another as long as the event is set."""
    context = multiprocessing.get_context("spawn")
    asking, ready = context.Event(), context.Event()
    told = (folder, queries, asking, ready)
    process = context.Process(target=_ask_while, args=told, daemon=True)
    process.start()
    try:
        if not ready.wait(_START_SECONDS):
            raise TimeoutError("the process that asks beside this one has not begun")
        yield asking
    finally:
        process.terminate()
        process.join()


def _ask_while(folder: Path, queries: FloatArray, asking: Event, ready: Event) -> None:
    index = Index.open(folder)
    index.query(queries[:1])
    ready.set()
    for row in itertools.cycle(queries):
        asking.wait()
        index.query(row[None])


def _in_process(index: Index, queries: Sequence[FloatArray], seconds: float) -> Load:
    """Ask the same in process, one at a time, as a `Load` whose CPU is all a worker's."""
    times: list[float] = []
    cpu, begun = time.process_time(), time.perf_counter()
    while time.perf_counter() < begun + seconds:
        started = time.perf_counter()
        index.query(queries[len(times) % len(queries)])
        times.append(time.perf_counter() - started)
    spent, taken = time.process_time() - cpu, time.perf_counter() - begun
    order = sorted(times)
    latency = {p: order[int(len(order) * p / 100)] * 1e6 for p in (50.0, 99.0)}
    used = {"worker": spent / len(times) * 1e6}
    return Load(len(times), len(times) / taken, used, latency)


def rows_of(seen: Mapping[Case, Sequence[Load]]) -> Iterator[Row]:
    """Yield a row for each case, from the rounds it was seen in, family by family."""
    quietest = {
        case: min(loads, key=_p50 if case.in_flight == 1 and loads[0].latency else _cpu)
        for case, loads in seen.items()
    }
    for case in sorted(quietest, key=lambda case: case.family):
        best = quietest[case]
        floor = above = share = None
        served = len(best.cpu) > 1
        query = Case(case.family, _QUERY + _IN_PROCESS, 1)
        if served and case.name.endswith(_BATCHED):
            batch = seen[Case(case.family, _BATCHED + _IN_PROCESS, 1)]
            share = min(map(_cpu, batch)) / best.cpu["worker"]
        elif served and best.latency:  # an echo has no stream, so a stream has no floor
            echo_case = Case("", _ECHO, case.in_flight)
            floor = min(map(_cpu, seen[echo_case])) + min(map(_cpu, seen[query]))
            if case.in_flight == 1:
                above = _p50(best) - _p50(quietest[echo_case]) - _p50(quietest[query])
        yield Row(
            family=case.family,
            name=case.name,
            in_flight=case.in_flight,
            calls_per_second=best.per_second,
            cpu_front=best.cpu.get("front", 0.0),
            cpu_workers=best.cpu.get("worker", 0.0),
            cpu_total=_cpu(best),
            than_floor=_cpu(best) / floor if floor else None,
            p50=best.latency.get(50),
            p99=best.latency.get(99),
            p50_above_floor=above,
            of_in_process=share,
        )


def _goals(rows: Sequence[Row], many: int) -> Iterator[tuple[str, str, str]]:
    """Yield what is wanted, what was found and the bound of it."""
    found = {(row.family, row.name, row.in_flight): row for row in rows}
    for (family, name, in_flight), row in found.items():
        whose = f"{family}, {name}"
        if row.p50_above_floor is not None:
            yield f"{whose}: p50 above floor, us", f"{row.p50_above_floor:.0f}", f"<= {_P50_GOAL}"
        elif row.than_floor is not None and in_flight == many:
            goal = _CPU_GOALS[1 if name.startswith("1 ") else 2]
            yield f"{whose}: CPU of floor", f"{row.than_floor:.2f}", f"<= {goal}"
        elif row.of_in_process is not None:
            yield f"{whose}: rate of in process", f"{row.of_in_process:.2f}", f">= {_BATCH_GOAL}"
        elif name.endswith(_STREAMED):
            unary = found[family, name.removesuffix(_STREAMED), many]
            share = row.cpu_front / unary.cpu_front
            yield f"{whose}: front CPU of unary", f"{share:.2f}", f"<= {_STREAM_GOAL}"


def _cpu(load: Load) -> float:
    """Return the CPU of a call, of all roles."""
    return sum(load.cpu.values())


def _p50(load: Load) -> float:
    return load.latency[50]


def _drawn(rows: Sequence[Row]) -> str:
    heads = (
        "family, program",
        "in flight",
        "calls/s",
        "front us",
        "workers us",
        "CPU us",
        "x floor",
        "p50 us",
        "p99 us",
        "p50 above floor",
        "of in process",
    )
    return table(
        heads,
        [
            (
                ", ".join(filter(None, (row.family, row.name))),
                str(row.in_flight),
                f"{row.calls_per_second:,.0f}",
                f"{row.cpu_front:.0f}",
                f"{row.cpu_workers:.0f}",
                f"{row.cpu_total:.0f}",
                optional(row.than_floor, ".2f"),
                optional(row.p50, ",.0f"),
                optional(row.p99, ",.0f"),
                optional(row.p50_above_floor, ",.0f"),
                optional(row.of_in_process, ".2f"),
            )
            for row in rows
        ],
    )
