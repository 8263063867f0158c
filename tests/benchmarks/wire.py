"""What the service costs: server CPU per call and latency, beside an empty echo and the bare query.

All programs are up at once and take turns in rounds, on the loopback address; a row's figures are
those of its quietest round, the one with the least CPU per call. Server CPU is that of fronts and
workers, from the scheduler. The access log is on. The echo answers messages of the Query's sizes;
its CPU plus that of the same query in process is the floor: what a service could cost at the least.
So with p50, one call at a time. A batch is one call of many rows, beside the same batch in process.
What is asked in process is also asked while another process asks single queries, which shows how
much two processes slow one another on this machine, whatever they are.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks import datasets, load
from benchmarks.load import Load
from benchmarks.processes import Program, echo, server
from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc.warming import warm_kernels
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2

_INDEX = "bench"
_REQUESTS = 400
_BATCH = 100
_BATCHES_IN_FLIGHT = 4
_BATCHED = f"batch of {_BATCH}"
_BESIDE = ", two processes"
_START_SECONDS = 60
# Goals: CPU in times the floor by workers, p50 above it in microseconds, front CPU in times a unary
# call's, and a batch's rate, the least that will do, in times that in process.
_CPU_GOALS = {1: 1.25, 2: 1.45}
_P50_GOAL = 250
_STREAM_GOAL = 0.6
_BATCH_GOAL = 0.95


@dataclass(frozen=True)
class Row:
    """One program under one load, in its quietest round; microseconds per call.

    `of_in_process`: rows that a worker answers in a second of its CPU, of those in process.
    """

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
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
        index = Index.build(points.base, path=Path(temporary) / "built" / _INDEX)
        programs: dict[str, Program] = {}
        for workers in arguments.workers:
            folder = Path(temporary) / f"server-{workers}"
            shutil.copytree(Path(temporary) / "built", folder / "data")
            name = f"divgrpc, {workers} worker{'s' if workers > 1 else ''}"
            programs[name] = stack.enter_context(server(folder, workers))
        requests = [_request(row[None]) for row in points.queries]
        reply_bytes = asyncio.run(_check(index, points.queries, requests, programs))
        programs = {"echo": stack.enter_context(echo(reply_bytes)), **programs}
        show(f"{len(requests[0]):,} bytes a request, {reply_bytes:,} a reply\n")
        other = stack.enter_context(_another(Path(temporary) / "built" / _INDEX, points.queries))
        turns = _take_turns(index, points.queries, requests, programs, arguments, other=other)
        seen = asyncio.run(turns)
    rows = list(rows_of(seen))
    show(_drawn(rows))
    show()
    show(table(("goal", "here", "wanted"), list(_goals(rows, arguments.in_flight))))
    return {"data": points.described(), "rows": [asdict(row) for row in rows]}


def _request(rows: FloatArray) -> bytes:
    message = query_pb2.QueryRequest(index=_INDEX, queries=arrays.encode_dense(rows))
    return message.SerializeToString()


async def _check(
    index: Index, queries: FloatArray, requests: Sequence[bytes], programs: dict[str, Program]
) -> int:
    """Return the size of a reply, after seeing that every server gives the core's answer."""
    size = 0
    for program in programs.values():
        reply = await load.one(program, requests[0])
        ids = list(query_pb2.QueryResponse.FromString(reply).ids)
        if ids != index.query(queries[:1]).ids[0].tolist():
            raise RuntimeError("the server's answer is not the core's")
        size = len(reply)
    return size


async def _take_turns(
    index: Index,
    queries: FloatArray,
    requests: Sequence[bytes],
    programs: dict[str, Program],
    arguments: argparse.Namespace,
    *,
    other: Event,
) -> dict[tuple[str, int], list[Load]]:
    """Return what each program and number in flight saw, a `Load` a round."""
    seen: dict[tuple[str, int], list[Load]] = defaultdict(list)
    messages = [
        query_pb2.QueryStreamRequest(
            correlation_id=number, query=query_pb2.QueryRequest.FromString(request)
        ).SerializeToString()
        for number, request in enumerate(requests)
    ]
    batches = [queries[at : at + _BATCH] for at in range(0, len(queries) - _BATCH + 1, _BATCH)]
    batch_requests = [_request(batch) for batch in batches]
    many, seconds = arguments.in_flight, arguments.seconds
    for _ in range(arguments.rounds):
        for name, asked in (("query", [row[None] for row in queries]), (_BATCHED, batches)):
            seen[f"{name} in process", 1].append(_in_process(index, asked, seconds / 2))
            other.set()
            seen[f"{name} in process{_BESIDE}", 1].append(_in_process(index, asked, seconds / 2))
            other.clear()
        for name, program in programs.items():
            seen[name, 1].append(await load.unary(program, requests, 1, seconds / 2))
            seen[name, many].append(await load.unary(program, requests, many, seconds))
            if name != "echo":
                streamed = await load.stream(program, messages, many, seconds)
                seen[f"{name}, QueryStream", many].append(streamed)
                batched = load.unary(program, batch_requests, _BATCHES_IN_FLIGHT, seconds)
                seen[f"{name}, {_BATCHED}", _BATCHES_IN_FLIGHT].append(await batched)
    return seen


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


def rows_of(seen: dict[tuple[str, int], list[Load]]) -> Iterator[Row]:
    """Yield a row for each program and number in flight, from the rounds it was seen in."""
    quietest = {key: min(loads, key=_cpu) for key, loads in seen.items()}
    query = quietest["query in process", 1]
    for (name, in_flight), best in quietest.items():
        floor = above = share = None
        served = len(best.cpu) > 1
        if served and name.endswith(_BATCHED):
            share = _cpu(quietest[f"{_BATCHED} in process", 1]) / best.cpu["worker"]
        elif served and best.latency:  # an echo's stream is not measured, so a stream has no floor
            echoed = quietest["echo", in_flight]
            floor = _cpu(echoed) + _cpu(query)
            if in_flight == 1:
                above = best.latency[50] - echoed.latency[50] - query.latency[50]
        yield Row(
            name=name,
            in_flight=in_flight,
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
    found = {(row.name, row.in_flight): row for row in rows}
    for (name, in_flight), row in found.items():
        if row.p50_above_floor is not None:
            yield f"{name}: p50 above floor, us", f"{row.p50_above_floor:.0f}", f"<= {_P50_GOAL}"
        elif row.than_floor is not None and in_flight == many:
            goal = _CPU_GOALS[1 if "1 worker" in name else 2]
            yield f"{name}: CPU of floor", f"{row.than_floor:.2f}", f"<= {goal}"
        elif row.of_in_process is not None:
            yield f"{name}: rate of in process", f"{row.of_in_process:.2f}", f">= {_BATCH_GOAL}"
        elif name.endswith("QueryStream"):
            unary = found[name.removesuffix(", QueryStream"), many]
            share = row.cpu_front / unary.cpu_front
            yield f"{name}: front CPU of unary", f"{share:.2f}", f"<= {_STREAM_GOAL}"


def _cpu(load: Load) -> float:
    """Return the CPU of a call, of all roles."""
    return sum(load.cpu.values())


def _drawn(rows: Sequence[Row]) -> str:
    heads = (
        "program",
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
                row.name,
                str(row.in_flight),
                f"{row.calls_per_second:,.0f}",
                f"{row.cpu_front:.0f}",
                f"{row.cpu_workers:.0f}",
                f"{row.cpu_total:.0f}",
                _optional(row.than_floor, ".2f"),
                _optional(row.p50, ",.0f"),
                _optional(row.p99, ",.0f"),
                _optional(row.p50_above_floor, ",.0f"),
                _optional(row.of_in_process, ".2f"),
            )
            for row in rows
        ],
    )


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
