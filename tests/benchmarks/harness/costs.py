"""CPU time of unary queries at servers with different options, which take turns."""

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from benchmarks.harness import load
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program, server
from benchmarks.harness.runner import Option, Options, Output, Table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2

POINTS: Final = Option(10_000, "points of 128 dimensions")
SECONDS: Final = Option(2.0, "seconds of a loop over gRPC")
ROUNDS: Final = Option(9, "loops of each server, which take turns")
IN_FLIGHT: Final = Option(16, "calls at a time")
NAME: Final = "measured"
_REQUESTS: Final = 400


class Variant(NamedTuple):
    """How a server is started and called; the server has an empty folder for files of its own.

    arguments: returns the options of the server, given the folder.
    goal: the most that the variant may cost, as a multiple of the first one; None if it has none.
    """

    arguments: Callable[[Path], list[str]]
    goal: float | None = None
    credentials: Callable[[Path], grpc.ChannelCredentials] | None = None
    metadata: tuple[tuple[str, str], ...] = ()


class _Target(NamedTuple):
    """A server that runs, and what its callers need."""

    program: Program
    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]


def compare(title: str, variants: Mapping[str, Variant], options: Options) -> Iterator[Output]:
    """Compare all variants with the first one.

    The servers run at the same time. A ratio compares two loops of one round; the table has the
    median, the least and the greatest ratio. CPU time is the sum of front and worker, for one call.
    """
    points = Manifold.of().points(options.points + _REQUESTS)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        targets = {
            name: _start(stack, Path(temporary) / str(number), variant, points[: options.points])
            for number, (name, variant) in enumerate(variants.items())
        }
        in_flight, rounds_count = str(options.in_flight), str(options.rounds)
        yield Table(title, {"in flight": in_flight, "rounds": rounds_count})
        requests = [_request(query) for query in points[options.points :]]
        rounds = [
            {name: asyncio.run(_cpu(target, requests, options)) for name, target in targets.items()}
            for _ in range(options.rounds)
        ]
    base = next(iter(variants))
    for name, variant in variants.items():
        ratios = [times[name] / times[base] for times in rounds]
        yield {
            "server with": name,
            "CPU us": statistics.median(times[name] for times in rounds),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "goal": None if variant.goal is None else f"<= {variant.goal}",
        }


def _start(stack: ExitStack, folder: Path, variant: Variant, points: FloatArray) -> _Target:
    """Build an index of the points, and start a server of it."""
    Index.build(points, path=folder / "data" / NAME)
    arguments = variant.arguments(folder)
    credentials = None if variant.credentials is None else variant.credentials(folder)
    program = stack.enter_context(server(folder, 1, *arguments))
    return _Target(program, credentials, variant.metadata)


def _request(query: FloatArray) -> bytes:
    rows = arrays.encode_dense(query[None])
    return query_pb2.QueryRequest(index=NAME, queries=rows).SerializeToString()


async def _cpu(target: _Target, requests: list[bytes], options: Options) -> float:
    """Return the CPU time of a call in microseconds, of front and worker together."""
    outcome = await load.unary(
        target.program,
        requests,
        options.in_flight,
        options.seconds,
        credentials=target.credentials,
        metadata=target.metadata,
    )
    return sum(outcome.cpu.values())
