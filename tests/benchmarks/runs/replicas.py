"""Benchmark of read-only servers of one folder, one of which is killed."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.harness.datasets import Manifold
from benchmarks.harness.runner import Option, Options, Output, Table, benchmark
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_client import AsyncClient, RpcError
from support.processes.running_server import RunningServer

_NAME: Final = "replicated"
_POINTS, _QUERIES = 10_000, 400
_TIMEOUT_SECONDS: Final = 30.0


class _Outcome(NamedTuple):
    """What became of the calls of a loop: calls by status, and the seconds that each took."""

    statuses: Counter[str]
    seconds: list[float]


@benchmark(
    "replicas",
    calls=Option(10_000, "calls of a loop"),
    servers=Option(3, "read-only servers"),
    in_flight=Option(8, "calls at a time"),
)
def replicas(options: Options) -> Iterator[Output]:
    """Count the calls that fail while one of several read-only servers is killed.

    A Python client calls the servers in turn, first with its retries and then without. All
    processes of one server are killed by SIGKILL when a third of the calls are made.
    """
    points = Manifold.of().points(_POINTS + _QUERIES)
    facts = {"read-only servers": str(options.servers), "calls in flight": str(options.in_flight)}
    yield Table("Calls while one of several replicas is killed", facts)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        data = Path(temporary) / "data"
        Index.build(points[:_POINTS], path=data / _NAME)
        for retries in (True, False):
            outcome = _measure(data, points[_POINTS:], options, retries=retries)
            yield _row(outcome, retries=retries)


def _measure(data: Path, queries: FloatArray, options: Options, *, retries: bool) -> _Outcome:
    with ExitStack() as stack:
        servers = []
        for number in range(options.servers):
            folder = data.parent / f"{retries}-{number}"
            folder.mkdir()
            words = ("--data-dir", str(data), "--read-only", "--workers", "1", "--no-access-log")
            servers.append(stack.enter_context(RunningServer(folder, *words)))
        return asyncio.run(_loop(servers, queries, options, retries=retries))


async def _loop(
    servers: list[RunningServer], queries: FloatArray, options: Options, *, retries: bool
) -> _Outcome:
    """Make the calls, and kill a server when a third of them are made."""
    outcome, numbers = _Outcome(Counter(), []), iter(range(options.calls))
    target = "ipv4:" + ",".join(server.target for server in servers)
    async with AsyncClient(target, timeout=_TIMEOUT_SECONDS, retries=retries) as client:

        async def ask() -> None:
            for number in numbers:
                if number == options.calls // 3:
                    servers[0].kill_all()
                start, status = time.perf_counter(), "OK"
                try:
                    await client.query(_NAME, queries[number % len(queries)])
                except RpcError as error:
                    status = error.code.name
                outcome.statuses[status] += 1
                outcome.seconds.append(time.perf_counter() - start)

        await client.query(_NAME, queries[0])
        await asyncio.gather(*(ask() for _ in range(options.in_flight)))
    return outcome


def _row(outcome: _Outcome, *, retries: bool) -> dict[str, object]:
    median, late, worst = np.percentile(outcome.seconds, (50, 99, 100)) * 1e3
    failures = {name: n for name, n in outcome.statuses.items() if name != "OK"}
    return {
        "retries": "yes" if retries else "no",
        "calls": outcome.statuses.total(),
        "failed": sum(failures.values()),
        "failures": ", ".join(f"{name} {n}" for name, n in failures.items()),
        "p50, ms": float(median),
        "p99, ms": float(late),
        "worst, ms": float(worst),
    }
