"""Time from the command line to SERVING: kernels cached or not, no index or many.

Rounds alternate between an empty data folder and, for each family, one with many indexes, which are
hard links to the files of one. A cold start has a kernel cache of its own, in an empty folder. The
second table has the first query to an index, which then is opened and its checksums compared, and
the second one.
"""

import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.harness.runner import FAMILIES, Option, Options, Output
from benchmarks.harness.tables import Table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_client.client import Client
from support.running_server import RunningServer

OPTIONS: Final = {
    "families": FAMILIES,
    "rounds": Option(5, "warm starts of each"),
    "cold": Option(1, "cold starts"),
    "indexes": Option(50, "indexes in the full folder"),
    "points": Option(1_000_000, "points of each index"),
    "dims": Option(32, "dimensions"),
}
_COLD: Final = "cold, no index"
_WAIT_SECONDS: Final = 120.0
_WARM_GOAL, _COLD_GOAL = 2.0, 20.0


def rows(options: Options) -> Iterator[Output]:
    """Yield a table of starts, and one of first queries."""
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        queries = _build(folder, options)
        for turn in range(max(options.rounds, options.cold)):
            if turn < options.rounds:
                seconds["warm, no index"].append(_start(folder / "none"))
                for family in options.families:
                    name = f"warm, {options.indexes} indexes, {family}"
                    seconds[name].append(_start(folder / family))
            if turn < options.cold:
                cache = {"DIVGRPC_KERNEL_CACHE": str(folder / f"cache-{turn}")}
                seconds[_COLD].append(_start(folder / "none", cache))
        first = {family: _first_queries(folder / family, queries) for family in options.families}
    yield Table(f"Start to SERVING, indexes of {options.points:,} x {options.dims}")
    for name, times in seconds.items():
        yield {
            "start": name,
            "starts": len(times),
            "least s": min(times),
            "median s": float(np.median(times)),
            "goal s": _COLD_GOAL if name == _COLD else _WARM_GOAL,
        }
    yield Table("One query to an index")
    for family, pair in first.items():
        yield {"family": family, "first ms": 1e3 * pair[0], "second ms": 1e3 * pair[1]}


def _build(folder: Path, options: Options) -> FloatArray:
    """Build an index of each family and link it under all names; returns two queries."""
    random = np.random.default_rng(0)
    points = random.standard_normal((options.points, options.dims), np.float32)
    for family in options.families:
        data = folder / family / "data"
        Index.build(points, hash_family=family, path=data / _name(0))
        for number in range(1, options.indexes):
            shutil.copytree(data / _name(0), data / _name(number), copy_function=os.link)
    return points[:2]


def _name(number: int) -> str:
    return f"index-{number}"


@contextmanager
def _serving(folder: Path, environment: dict[str, str] | None = None) -> Iterator[RunningServer]:
    """Run a server and yield it when its health service says SERVING."""
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
    started = time.perf_counter()
    with _serving(folder, environment):
        return time.perf_counter() - started


def _first_queries(folder: Path, queries: FloatArray) -> tuple[float, float]:
    """Return the seconds of the first and of the second query to an index."""
    times = []
    with _serving(folder) as running, Client(running.target, timeout=_WAIT_SECONDS) as client:
        for query in queries:
            started = time.perf_counter()
            client.query(_name(0), query)
            times.append(time.perf_counter() - started)
    return times[0], times[1]
