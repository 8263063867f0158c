"""Benchmark of the cost of metrics and of access lines for a unary call."""

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.harness import load
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program, server
from benchmarks.harness.runner import Option, Options, Output, Table, benchmark
from divgrpc.index import Index
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2

_NAME: Final = "watched"
# The first server is what the others are compared with.
_SERVERS: Final = {
    "neither": ("--no-access-log",),
    "access lines": (),
    "access lines and metrics": ("--metrics", "127.0.0.1:0"),
}
_BASE: Final = "neither"
# The most that access lines and metrics may cost, as a ratio of CPU time.
_GOAL: Final = 1.05
_REQUESTS: Final = 400


@benchmark(
    "metrics",
    points=Option(10_000, "points of 128 dimensions"),
    seconds=Option(2.0, "seconds of a loop over gRPC"),
    rounds=Option(9, "loops of each server, which take turns"),
    in_flight=Option(16, "calls at a time"),
)
def metrics(options: Options) -> Iterator[Output]:
    """CPU time of a unary query with access lines and metrics, and without.

    The servers run at the same time, and their loops take turns. A ratio compares two loops of one
    round; the table has its median, least and greatest value.
    """
    points = Manifold.of().points(options.points + _REQUESTS)
    queries = points[options.points :]
    requests = [
        query_pb2.QueryRequest(
            index=_NAME, queries=arrays.encode_dense(query[None])
        ).SerializeToString()
        for query in queries
    ]
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        programs: dict[str, Program] = {}
        for number, (name, more) in enumerate(_SERVERS.items()):
            folder = Path(temporary) / str(number)
            index = Index.build(points[: options.points], path=folder / "data" / _NAME)
            programs[name] = stack.enter_context(server(folder, 1, *more))
        facts = {
            "index": index.info.summary,
            "in flight": str(options.in_flight),
            "rounds": str(options.rounds),
        }
        yield Table("Cost of access lines and metrics", facts)
        rounds = [asyncio.run(_round(programs, requests, options)) for _ in range(options.rounds)]
    for name in _SERVERS:
        ratios = [times[name] / times[_BASE] for times in rounds]
        yield {
            "server with": name,
            "CPU us": statistics.median(times[name] for times in rounds),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "goal": f"<= {_GOAL}" if "metrics" in name else None,
        }


async def _round(
    programs: dict[str, Program], requests: list[bytes], options: Options
) -> dict[str, float]:
    """Return the CPU time of a call in microseconds, of front and worker, for each server."""
    times = {}
    for name, program in programs.items():
        outcome = await load.unary(program, requests, options.in_flight, options.seconds)
        times[name] = sum(outcome.cpu.values())
    return times
