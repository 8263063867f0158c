"""Past capacity: what comes in time, who is told to come back, and whether admin calls answer.

Capacity is what a closed loop gets. Then an open loop sends multiples of it, each call with a
deadline; goodput counts answers within it that came while calls were sent. Calls carry some rows
each, so that the worker, and not gRPC or the caller, is what there is too little of: caller, front
and worker share the machine. Rates take turns, and a row is the best of its rate. Health and
GetIndex are asked beside, on a connection of their own.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from grpc import aio
from grpc_health.v1 import health_pb2

from benchmarks import datasets, load
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
    """Measure, print the table, and return the rows for JSON."""
    points = datasets.load(_QUERIES, 0)
    each, deadline = arguments.rows, arguments.deadline
    show(f"\n## Overload: {each} queries a call, a deadline of {deadline:g} s, {points.name}\n")
    requests = [_request(points.queries[at : at + each]) for at in range(0, _QUERIES, each)]
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        Index.build(points.base, path=Path(temporary) / "data" / _INDEX)
        with server(Path(temporary), arguments.workers) as program:
            closed = asyncio.run(load.unary(program, requests, _IN_FLIGHT, arguments.seconds))
            show(f"{closed.per_second:,.0f} calls a second, {_IN_FLIGHT} in flight\n")
            seen = []
            for times in arguments.times * arguments.rounds:
                rate = times * closed.per_second
                found = asyncio.run(_offer(program, requests, rate, arguments))
                seen.append(_row(times, program, *found))
    # As elsewhere, what the machine does undisturbed.
    rows = [_best(row for row in seen if row.times_capacity == times) for times in arguments.times]
    show(_drawn(rows))
    peak = max(row.goodput for row in rows)
    shares = [(f"goodput at {row.times_capacity:g}", f"{row.goodput / peak:.2f}") for row in rows]
    show()
    show(
        table(("of its peak", "here", "wanted"), [(*share, f">= {_GOAL}") for share in shares[-1:]])
    )
    return {"data": points.described(), "rows": [asdict(row) for row in rows]}


def _request(rows: FloatArray) -> bytes:
    message = query_pb2.QueryRequest(index=_INDEX, queries=arrays.encode_dense(rows))
    return message.SerializeToString()


async def _offer(
    program: Program, requests: Sequence[bytes], rate: float, arguments: argparse.Namespace
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
        offered = await load.open_loop(
            program, requests, rate, arguments.seconds, timeout=arguments.deadline
        )
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
    refused = [name for name in offered.codes if name.startswith("RESOURCE_EXHAUSTED")]
    told = offered.codes[load.REFUSED_UNTIL]
    count = sum(offered.codes[name] for name in refused)
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
