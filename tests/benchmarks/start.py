"""From the command line to SERVING: with kernels kept and without, with no index and with fifty.

Rounds alternate between an empty data folder and one with many indexes, which are one index's files
linked under many names: a start reads none of their points. What the first query to an index costs,
which is then opened and its checksums compared, stands beside, and the second one. A cold start has
a kernel cache of its own, in a folder that was empty.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc.warming import warm_kernels
from divgrpc_client.client import Client
from running import RunningServer

WARM, COLD, MANY = "warm, no index", "cold, no index", "warm, {} indexes"
_WAIT_SECONDS = 120.0
_TARGETS = {WARM: 2.0, COLD: 20.0, MANY: 2.0}


@dataclass(frozen=True)
class Row:
    """Seconds from the start of the process until its health service says SERVING."""

    name: str
    starts: int
    least: float
    median: float
    target: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this run's options."""
    parser.add_argument("--rounds", type=int, default=5, help="warm starts of each (default 5)")
    parser.add_argument("--cold", type=int, default=1, help="cold starts (default 1)")
    parser.add_argument("--indexes", type=int, default=50, help="in the full folder (default 50)")
    parser.add_argument(
        "--points", type=int, default=1_000_000, help="of each index (default 1,000,000)"
    )
    parser.add_argument("--dims", type=int, default=32, help="of each point (default 32)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    many = MANY.format(arguments.indexes)
    show(f"\n## Start to SERVING; {many}, of {arguments.points:,} x {arguments.dims}\n")
    warm_kernels()
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        queries = _make(folder / "many", arguments)
        for turn in range(max(arguments.rounds, arguments.cold)):
            if turn < arguments.rounds:
                seconds[WARM].append(_start(folder / "none"))
                seconds[many].append(_start(folder / "many"))
            if turn < arguments.cold:
                cache = {"DIVGRPC_KERNEL_CACHE": str(folder / f"cache-{turn}")}
                seconds[COLD].append(_start(folder / "none", cache))
        opening = _first_queries(folder / "many", queries)
    rows = [*rows_of(seconds, many)]
    show(_drawn(rows))
    show(
        f"\nFirst query to an index {1e3 * opening[0]:,.1f} ms, second {1e3 * opening[1]:,.1f} ms."
    )
    return {"rows": [asdict(row) for row in rows], "first queries": opening}


def rows_of(seconds: dict[str, list[float]], many: str) -> Iterator[Row]:
    """Yield a row for each kind of start that there was."""
    for name, taken in seconds.items():
        target = _TARGETS[MANY if name == many else name]
        yield Row(name, len(taken), min(taken), float(np.median(taken)), target)


def _make(folder: Path, arguments: argparse.Namespace) -> FloatArray:
    """Build one index and link it under all names; returns a few queries."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((arguments.points, arguments.dims), np.float32)
    first = folder / "data" / _name(0)
    Index.build(points, path=first)
    for number in range(1, arguments.indexes):
        shutil.copytree(first, folder / "data" / _name(number), copy_function=os.link)
    return points[:2]


def _name(number: int) -> str:
    return f"index-{number}"


@contextmanager
def _serving(folder: Path, environment: dict[str, str] | None = None) -> Iterator[RunningServer]:
    """Run a server and yield it once its health service says SERVING."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    options = ("--data-dir", str(folder / "data"), "--workers", "1", "--fronts", "1")
    with RunningServer(folder, *options, environment=environment) as running:
        with running.channel() as channel:
            grpc.channel_ready_future(channel).result(_WAIT_SECONDS)
            stub = health_pb2_grpc.HealthStub(channel)
            for reply in stub.Watch(health_pb2.HealthCheckRequest(), timeout=_WAIT_SECONDS):
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    break
        yield running


def _start(folder: Path, environment: dict[str, str] | None = None) -> float:
    """Return the seconds that one start takes."""
    begun = time.perf_counter()
    with _serving(folder, environment):
        return time.perf_counter() - begun


def _first_queries(folder: Path, queries: FloatArray) -> tuple[float, float]:
    """Return the seconds of the first and of the second query to an index."""
    times = []
    with _serving(folder) as running, Client(running.target, timeout=_WAIT_SECONDS) as client:
        for query in queries:
            begun = time.perf_counter()
            client.query(_name(0), query)
            times.append(time.perf_counter() - begun)
    return times[0], times[1]


def _drawn(rows: Sequence[Row]) -> str:
    return table(
        ("start", "starts", "least s", "median s", "at most s"),
        [
            (
                row.name,
                str(row.starts),
                f"{row.least:.2f}",
                f"{row.median:.2f}",
                f"{row.target:.0f}",
            )
            for row in rows
        ],
    )
