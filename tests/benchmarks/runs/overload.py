"""The benchmark of a server that gets more calls than it can answer."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from grpc import aio
from grpc_health.v1 import health_pb2

from benchmarks.harness import load
from benchmarks.harness.datasets import REAL
from benchmarks.harness.datasets import load as load_points
from benchmarks.harness.load import Offered
from benchmarks.harness.programs import Program, peak_bytes, server
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_protos import arrays
from divgrpc_protos.v1 import index_pb2, query_pb2

_INDEX: Final = "bench"
_QUERIES, _IN_FLIGHT, _PENDING = 400, 16, 64
_PROBE_SECONDS: Final = 0.05
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_GET_INDEX: Final = "/divgrpc.v1.DiverseIndex/GetIndex"
# Statuses of calls that the front refused, or that gRPC refused before the front saw them.
_REFUSED: Final = ("RESOURCE_EXHAUSTED", load.REFUSED_UNTIL, "CANCELLED")


@dataclass(frozen=True)
class _Case:
    title: str
    rows: int
    one_core: bool = True
    options: tuple[str, ...] = ()


@benchmark(
    "overload",
    times=Option([0.5, 1.0, 2.0], "multiples of capacity"),
    rows=Option(10, "rows of one call in the case workers, 16 kB at most"),
    workers=Option(1, "workers"),
    deadline=Option(0.5, "seconds of a call"),
    seconds=Option(3.0, "seconds of each rate"),
    rounds=Option(3, "turns of each rate"),
)
def overload(options: Options) -> Iterator[Output]:
    """Behaviour past capacity: goodput, refusals, and times of health and admin calls.

    Capacity is the rate that a closed loop reaches. An open loop then sends multiples of this rate,
    in which each call has a deadline. Goodput counts the answers that arrive within the deadline
    and before sending ends.

    There are three cases. In "workers", a call has several rows, so that workers are the
    bottleneck, and the caller, front and worker share all cores. In "front", a call is one query,
    the server has a single core, and the caller has the others, so that gRPC in the front is the
    bottleneck. "pending" is the same with a low limit of calls pending in gRPC.

    The rates take turns, and a row is the best round at its rate. Health and GetIndex are called at
    the same time on a separate connection. "told when" is the share of refused calls whose response
    says when to try again.
    """
    points = load_points(REAL, _QUERIES)
    few = ("--pending-calls", str(_PENDING))
    cases = (
        _Case(f"workers: {options.rows} queries a call", options.rows, one_core=False),
        _Case("front: one query a call, the server on one core", 1),
        _Case(f"pending: the same with {' '.join(few)}", 1, options=few),
    )
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        Index.build(points.base, path=folder / "data" / _INDEX)
        for case in cases:
            title = f"Overload of the {case.title}, deadline {options.deadline:g} s"
            yield Table(title, points.described())
            yield from _rows(folder, points.queries, options, case)


def _rows(folder: Path, queries: FloatArray, options: Options, case: _Case) -> list[Row]:
    cores = os.sched_getaffinity(0)
    requests = [_request(queries[at : at + case.rows]) for at in range(0, _QUERIES, case.rows)]
    server_cores = {min(cores)} if case.one_core else cores
    every: list[Row] = []
    with (
        _on_cores(server_cores),
        server(folder, options.workers, *case.options) as program,
        _on_cores((cores - server_cores) or cores),
    ):
        closed = asyncio.run(load.unary(program, requests, _IN_FLIGHT, options.seconds))
        for times in options.times * options.rounds:
            rate = times * closed.per_second
            calls = partial(load.open_loop, program, requests, rate, options.seconds)
            offer = _offer(program, partial(calls, timeout=options.deadline))
            every.append({"times capacity": times, **_row(program, *asyncio.run(offer))})
    best = [
        max(
            (row for row in every if row["times capacity"] == times),
            key=lambda row: float(row["in time/s"]),
        )
        for times in options.times
    ]
    peak = max(row["in time/s"] for row in best)
    return [{**row, "of peak": row["in time/s"] / peak} for row in best]


@contextmanager
def _on_cores(cores: Set[int]) -> Iterator[None]:
    """Restrict the threads of this process, and processes started in the block, to some cores."""
    before = os.sched_getaffinity(0)
    _move(cores)
    try:
        yield
    finally:
        _move(before)


def _move(cores: Set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it may have ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def _request(rows: FloatArray) -> bytes:
    message = query_pb2.QueryRequest(index=_INDEX, queries=arrays.encode_dense(rows))
    return message.SerializeToString()


async def _offer(
    program: Program, calls: Callable[[], Awaitable[Offered]]
) -> tuple[Offered, list[float], list[float]]:
    """Return the results of an open loop, and the seconds of health and admin calls during it."""
    index = index_pb2.GetIndexRequest(index=_INDEX).SerializeToString()
    check = health_pb2.HealthCheckRequest().SerializeToString()
    health: list[float] = []
    admin: list[float] = []
    async with aio.insecure_channel(program.address, load.OWN_CONNECTION) as channel:
        probes = [
            asyncio.ensure_future(_probe(channel.unary_unary(_HEALTH), check, health)),
            asyncio.ensure_future(_probe(channel.unary_unary(_GET_INDEX), index, admin)),
        ]
        offered = await calls()
        for probe in probes:
            probe.cancel()
            with suppress(asyncio.CancelledError):
                await probe  # raises the error of an answer that did not come
    return offered, health, admin


async def _probe(
    method: Callable[..., Awaitable[bytes]], request: bytes, seconds: list[float]
) -> None:
    while True:
        begin = time.perf_counter()
        await method(request, timeout=10)
        seconds.append(time.perf_counter() - begin)
        await asyncio.sleep(_PROBE_SECONDS)


def _row(program: Program, offered: Offered, health: list[float], admin: list[float]) -> Row:
    refusals = sum(offered.codes[name] for name in _REFUSED)
    return {
        "offered/s": offered.rate,
        "in time/s": offered.goodput,
        "refused": refusals / offered.codes.total(),
        "told when": offered.codes[load.REFUSED_UNTIL] / refusals if refusals else None,
        "p50 ms": offered.latency[50] / 1e3,
        "p99 ms": offered.latency[99] / 1e3,
        "slowest health ms": max(health) * 1e3,
        "slowest GetIndex ms": max(admin) * 1e3,
        "front MiB": sum(map(peak_bytes, program.roles["front"])) / 2**20,
        "caller late ms": offered.lateness / 1e3,
    }
