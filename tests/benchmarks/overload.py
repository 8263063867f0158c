"""Past capacity: what comes in time, who is told to come back, and whether admin calls answer.

Capacity is what a closed loop gets. Then an open loop sends multiples of it, each call with a
deadline; goodput counts answers within it that came while calls were sent. First calls carry some
rows each, so that the worker, and not gRPC or the caller, is what there is too little of, while
caller, front and worker share the machine. Then a call is one query and the server has one core,
the caller the others, so that most of what there is too little of is gRPC's, in the front; and so
again with few calls pending in gRPC. Rates take turns, and a row is the best of its rate. Health
and GetIndex are asked beside, on a connection of their own.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from grpc import aio
from grpc_health.v1 import health_pb2

from benchmarks import datasets, light, load
from benchmarks.load import Offered
from benchmarks.processes import Program, peak_bytes, server
from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_protos import arrays
from divgrpc_protos.v1 import index_pb2, query_pb2

_INDEX = "bench"
_QUERIES = 400
_IN_FLIGHT = 16
_PROBE_SECONDS = 0.05
_HEALTH = "/grpc.health.v1.Health/Check"
_GET_INDEX = "/divgrpc.v1.DiverseIndex/GetIndex"
_GOAL = 0.9
_PENDING = 64
# As what a call ends that was refused: by the front, or by gRPC before the front had seen it.
_REFUSED = ("RESOURCE_EXHAUSTED", load.REFUSED_UNTIL, "CANCELLED")


@dataclass(frozen=True)
class Row:
    """One rate; `health` and `admin` are the slowest answers, in milliseconds as p50 and p99."""

    times_capacity: float
    offered: float
    goodput: float
    refused: float
    told_when: float
    p50: float
    p99: float
    health: float
    admin: float
    front_mib: float
    lateness: float


@dataclass(frozen=True)
class _Case:
    """Calls of so many rows; on `one_core` is the server, its callers on the others."""

    name: str
    title: str
    rows: int
    one_core: bool = True
    options: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    times = [0.5, 1.0, 2.0]
    parser.add_argument("--times", type=float, nargs="+", default=times, help="of capacity")
    parser.add_argument("--rows", type=int, default=10, help="of one call (default 10)")
    parser.add_argument("--workers", type=int, default=1, help="(default 1)")
    parser.add_argument("--deadline", type=float, default=0.5, help="seconds of a call (.5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each rate (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="turns each takes (default 3)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the tables, and return the rows for JSON."""
    points = datasets.load(_QUERIES, 0)
    few = ("--pending-calls", str(_PENDING))
    cases = (
        _Case("workers", f"{arguments.rows} queries a call", arguments.rows, one_core=False),
        _Case("front", "one query a call, the server on one core", 1),
        _Case("pending", f"the same with {' '.join(few)}", 1, options=few),
    )
    found: dict[str, object] = {"data": points.described()}
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        Index.build(points.base, path=folder / "data" / _INDEX)
        for case in cases:
            show(f"\n## Overload: {case.title}, deadline {arguments.deadline:g} s, {points.name}\n")
            rows = _measured(folder, points.queries, arguments, case)
            found[case.name] = [asdict(row) for row in rows]
    return found


def _measured(
    folder: Path, queries: FloatArray, arguments: argparse.Namespace, case: _Case
) -> list[Row]:
    """Print and return a row for each rate."""
    each, cores = case.rows, os.sched_getaffinity(0)
    requests = [_request(queries[at : at + each]) for at in range(0, _QUERIES, each)]
    ours = {min(cores)} if case.one_core else cores
    send = light.open_loop if case.one_core else load.open_loop
    seen = []
    with (
        _kept_on(ours),
        server(folder, arguments.workers, *case.options) as program,
        _kept_on((cores - ours) or cores),
    ):
        closed = asyncio.run(load.unary(program, requests, _IN_FLIGHT, arguments.seconds))
        show(f"{closed.per_second:,.0f} calls a second, {_IN_FLIGHT} in flight\n")
        for times in arguments.times * arguments.rounds:
            calls = partial(send, program, requests, times * closed.per_second, arguments.seconds)
            offer = _offer(program, partial(calls, timeout=arguments.deadline))
            seen.append(_row(times, program, *asyncio.run(offer)))
    # As elsewhere, what the machine does undisturbed.
    rows = [_best(row for row in seen if row.times_capacity == times) for times in arguments.times]
    show(_drawn(rows))
    last, peak = rows[-1], max(row.goodput for row in rows)
    goal = (f"goodput at {last.times_capacity:g}", f"{last.goodput / peak:.2f}", f">= {_GOAL}")
    show()
    show(table(("of its peak", "here", "wanted"), [goal]))
    return rows


@contextmanager
def _kept_on(cores: Set[int]) -> Iterator[None]:
    """Keep the threads of this process, and what it starts meanwhile, on some cores."""
    before = os.sched_getaffinity(0)
    _keep_on(cores)
    try:
        yield
    finally:
        _keep_on(before)


def _keep_on(cores: Set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it may have ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def _request(rows: FloatArray) -> bytes:
    message = query_pb2.QueryRequest(index=_INDEX, queries=arrays.encode_dense(rows))
    return message.SerializeToString()


async def _offer(
    program: Program, calls: Callable[[], Awaitable[Offered]]
) -> tuple[Offered, list[float], list[float]]:
    """Return what the open loop saw, and the seconds that health and admin calls took."""
    index = index_pb2.GetIndexRequest(index=_INDEX).SerializeToString()
    check = health_pb2.HealthCheckRequest().SerializeToString()
    async with aio.insecure_channel(program.address, load.OWN_CONNECTION) as channel:
        asked: list[tuple[Callable[..., Awaitable[bytes]], bytes, list[float]]] = [
            (channel.unary_unary(_HEALTH), check, []),
            (channel.unary_unary(_GET_INDEX), index, []),
        ]
        probes = [asyncio.ensure_future(_probe(*each)) for each in asked]
        offered = await calls()
        for probe in probes:
            probe.cancel()
            with suppress(asyncio.CancelledError):
                await probe  # raises what an answer that did not come raised
    return offered, asked[0][2], asked[1][2]


async def _probe(
    method: Callable[..., Awaitable[bytes]], request: bytes, seconds: list[float]
) -> None:
    """Ask again and again, and note how long answers take."""
    while True:
        begun = time.perf_counter()
        await method(request, timeout=10)
        seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(_PROBE_SECONDS)


def _row(
    times: float, program: Program, offered: Offered, health: list[float], admin: list[float]
) -> Row:
    calls = offered.codes.total()
    told = offered.codes[load.REFUSED_UNTIL]
    count = sum(offered.codes[name] for name in _REFUSED)
    return Row(
        times_capacity=times,
        offered=offered.rate,
        goodput=offered.goodput,
        refused=count / calls,
        told_when=told / count if count else 1.0,
        p50=offered.latency[50] / 1e3,
        p99=offered.latency[99] / 1e3,
        health=max(health) * 1e3,
        admin=max(admin) * 1e3,
        front_mib=sum(map(peak_bytes, program.roles["front"])) / 2**20,
        lateness=offered.lateness / 1e3,
    )


def _best(rows: Iterable[Row]) -> Row:
    return max(rows, key=lambda row: row.goodput)


def _drawn(rows: Sequence[Row]) -> str:
    heads = (
        "times capacity",
        "offered/s",
        "in time/s",
        "refused",
        "of them told when to return",
        "p50 ms",
        "p99 ms",
        "slowest health ms",
        "slowest GetIndex ms",
        "front MiB",
        "caller late ms",
    )
    return table(
        heads,
        [
            (
                f"{row.times_capacity:g}",
                f"{row.offered:,.0f}",
                f"{row.goodput:,.0f}",
                f"{row.refused:.0%}",
                f"{row.told_when:.0%}",
                f"{row.p50:,.0f}",
                f"{row.p99:,.0f}",
                f"{row.health:,.0f}",
                f"{row.admin:,.0f}",
                f"{row.front_mib:,.0f}",
                f"{row.lateness:,.0f}",
            )
            for row in rows
        ],
    )
