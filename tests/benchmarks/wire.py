"""What the service costs: server CPU per call and latency, beside an empty echo and the bare query.

All programs are up at once and take turns in rounds, on the loopback address; a row's figures are
those of its quietest round, the one with the least CPU per call. Server CPU is that of fronts and
workers, from the scheduler. The access log is on. The echo answers messages of the Query's sizes;
its CPU plus that of the same query in process is the floor: what a service could cost at the least.
So with p50, one call at a time.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Row:
    """One program under one load, in its quietest round; microseconds per call."""

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
        requests = [_request(row) for row in points.queries]
        reply_bytes = asyncio.run(_check(index, points.queries, requests, programs))
        programs = {"echo": stack.enter_context(echo(reply_bytes)), **programs}
        show(f"{len(requests[0]):,} bytes a request, {reply_bytes:,} a reply\n")
        seen = asyncio.run(_take_turns(index, points.queries, requests, programs, arguments))
    rows = list(rows_of(seen))
    show(_drawn(rows))
    return {"data": points.described(), "rows": [asdict(row) for row in rows]}


def _request(vector: FloatArray) -> bytes:
    message = query_pb2.QueryRequest(index=_INDEX, queries=arrays.encode_dense(vector[None]))
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
) -> dict[tuple[str, int], list[Load]]:
    """Return what each program and number in flight saw, a `Load` a round."""
    seen: dict[tuple[str, int], list[Load]] = defaultdict(list)
    messages = [
        query_pb2.QueryStreamRequest(
            correlation_id=number, query=query_pb2.QueryRequest.FromString(request)
        ).SerializeToString()
        for number, request in enumerate(requests)
    ]
    many, seconds = arguments.in_flight, arguments.seconds
    for _ in range(arguments.rounds):
        seen["query in process", 1].append(_in_process(index, queries, seconds / 2))
        for name, program in programs.items():
            seen[name, 1].append(await load.unary(program, requests, 1, seconds / 2))
            seen[name, many].append(await load.unary(program, requests, many, seconds))
            if name != "echo":
                streamed = await load.stream(program, messages, many, seconds)
                seen[f"{name}, QueryStream", many].append(streamed)
    return seen


def _in_process(index: Index, queries: FloatArray, seconds: float) -> Load:
    """Ask the same queries in process, one at a time, as a `Load` whose CPU is all a worker's."""
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
        floor = above = None
        # An echo's stream is not measured, so a QueryStream has no floor.
        if len(best.cpu) > 1 and best.latency:
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
        )


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
            )
            for row in rows
        ],
    )


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
