"""From the command line to SERVING: with kernels kept and without, with no index and with fifty.

Rounds alternate between an empty data folder and, for each family, one with many indexes, which are
one index's files linked under many names: a start reads none of their points. What the first query
to an index costs, which is then opened and its checksums compared, stands beside, and the second
one. A cold start has a kernel cache of its own, in a folder that was empty.
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

from benchmarks.families import add_families
from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc.warmup import warm_kernels
from divgrpc_client.client import Client
from support.running_server import RunningServer

WARM, COLD, MANY = "warm, no index", "cold, no index", "warm, {} indexes, {}"
_WAIT_SECONDS = 120.0
_WARM_TARGET, _COLD_TARGET = 2.0, 20.0


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
    add_families(parser)
    parser.add_argument("--rounds", type=int, default=5, help="warm starts of each (default 5)")
    parser.add_argument("--cold", type=int, default=1, help="cold starts (default 1)")
    parser.add_argument("--indexes", type=int, default=50, help="in the full folder (default 50)")
    parser.add_argument(
        "--points", type=int, default=1_000_000, help="of each index (default 1,000,000)"
    )
    parser.add_argument("--dims", type=int, default=32, help="of each point (default 32)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    shape = f"{arguments.points:,} x {arguments.dims}"
    show(f"\n## Start to SERVING; {arguments.indexes} indexes, of {shape}\n")
    warm_kernels()
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        queries = _make(folder, arguments)
        for turn in range(max(arguments.rounds, arguments.cold)):
            if turn < arguments.rounds:
                seconds[WARM].append(_start(folder / "none"))
                for family in arguments.families:
                    many = MANY.format(arguments.indexes, family)
                    seconds[many].append(_start(folder / family))
            if turn < arguments.cold:
                cache = {"DIVGRPC_KERNEL_CACHE": str(folder / f"cache-{turn}")}
                seconds[COLD].append(_start(folder / "none", cache))
        opening = {
            family: _first_queries(folder / family, queries) for family in arguments.families
        }
    rows = [*rows_of(seconds)]
    show(_drawn(rows) + "\n")
    told = [(family, *(f"{1e3 * each:,.1f}" for each in two)) for family, two in opening.items()]
    show(table(("one query to an index", "first ms", "second ms"), told))
    return {"rows": [asdict(row) for row in rows], "first queries": opening}


def rows_of(seconds: dict[str, list[float]]) -> Iterator[Row]:
    """Yield a row for each kind of start that there was."""
    for name, taken in seconds.items():
        target = _COLD_TARGET if name == COLD else _WARM_TARGET
        yield Row(name, len(taken), min(taken), float(np.median(taken)), target)


def _make(folder: Path, arguments: argparse.Namespace) -> FloatArray:
    """Build an index of each family and link it under all names; returns a few queries."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((arguments.points, arguments.dims), np.float32)
    for family in arguments.families:
        data = folder / family / "data"
        Index.build(points, hash_family=family, path=data / _name(0))
        for number in range(1, arguments.indexes):
            shutil.copytree(data / _name(0), data / _name(number), copy_function=os.link)
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
