"""Benchmark of the cost of a query over shards, beside a bare fan-out over gRPC."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import grpc
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import programs
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from benchmarks.harness.services import METHOD
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding.rounds import Exchange, Round
from divgrpc.sharding.router import Request
from divgrpc.types import FloatArray
from divgrpc_client import Client
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2
from support.data.divided_indexes import DividedIndex
from support.processes.running_server import RunningServer, children

_NAME: Final = "points"
_QUERIES: Final = 100
# What the server may cost, as a multiple of the fan-out and the work in process.
_GOAL: Final = 1.3
_BUILD_SECONDS: Final = 600


@benchmark(
    "shard_costs",
    points=Option(100_000, "synthetic points of 128 dimensions"),
    shards=Option([4], "numbers of shards"),
    rounds=Option(11, "rounds of queries in turn"),
)
def shard_costs(options: Options) -> Iterator[Output]:
    """Compare the cost of a query over shards with the least that gRPC and the kernels need.

    The floor is a service that asks as many echoes for each call, with messages of the same sizes,
    plus the work of the router and of a shard in one process. Both are called one query at a time,
    in turn. "Router" is the CPU time of front and worker of the server that routes, divided by its
    floor; "shard" that of all shard servers; "p50" and "p99" are of the time of a call, with the
    slowest shard in their floor. All processes share the cores of one machine.
    """
    points = Manifold.of().points(options.points + _QUERIES)
    base, queries = points[: options.points], points[options.points :]
    index = Index.build(base)
    yield Table("Cost of a query over shards", {"points": f"{options.points:,}"})
    for shards in options.shards:
        work = _Work(DividedIndex(index.engine, shards), queries)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="divgrpc-bench-")))
            server = stack.enter_context(_server(folder, base, shards))
            sizes = work.message_bytes, work.reply_bytes
            floor = stack.enter_context(programs.fan_out(*sizes, shards))
            rounds = [
                (_measure(server, queries), _measure(floor, queries), work.measure())
                for _ in range(options.rounds)
            ]
        yield {"shards": shards, "bytes": work.reply_bytes, **_row(rounds)}


class _Cost(NamedTuple):
    """Seconds of a query: processor time of the router and of all shards, p50, and p99."""

    router: float
    shard: float
    p50: float
    p99: float


class _Work:
    """The work of the router and of the shards for each query, in one process."""

    def __init__(self, pieces: DividedIndex, queries: FloatArray) -> None:
        self._pieces = pieces
        self._requests = [Request(query[None], QueryParameters()) for query in queries]
        self._exchanges = [self._ask(request) for request in self._requests]
        steps = [step for exchanges in self._exchanges for step in exchanges]
        requests = sum(len(m) for step in steps for m in step.round.messages.values())
        replies = sum(len(reply) for step in steps for reply in step.replies.values())
        messages = len(pieces.shards) * len(queries)
        self.message_bytes, self.reply_bytes = requests // messages, replies // messages

    def _ask(self, request: Request) -> list[Exchange]:
        exchanges: list[Exchange] = []
        while isinstance(step := self._pieces.router.go_on(request, exchanges), Round):
            exchanges.append(Exchange(step, self._replies(step)))
        return exchanges

    def _replies(self, step: Round) -> dict[int, bytes]:
        shards = self._pieces.shards
        return {shard: shards[shard].ask(step.name, m) for shard, m in step.messages.items()}

    def measure(self) -> _Cost:
        """Return the medians of a query; p50 and p99 have the slowest shard alone."""
        pairs = zip(self._requests, self._exchanges, strict=True)
        with threadpool_limits(1):
            times = [self._times(request, exchanges) for request, exchanges in pairs]
        router, shard, p50 = np.median(times, axis=0)
        return _Cost(router, shard, p50, float(np.percentile([one[2] for one in times], 99)))

    def _times(self, request: Request, exchanges: list[Exchange]) -> tuple[float, float, float]:
        """Return the seconds of the router, of all shards, and of the router and the slowest."""
        route = self._pieces.router
        router = _seconds(lambda: route.begin(request))
        router += sum(
            _seconds(partial(route.go_on, request, exchanges[: place + 1]))
            for place in range(len(exchanges))
        )
        shard = slowest = 0.0
        for step, _ in exchanges:
            seconds = [
                _seconds(partial(self._pieces.shards[one].ask, step.name, message))
                for one, message in step.messages.items()
            ]
            shard, slowest = shard + sum(seconds), slowest + max(seconds)
        return router, shard, router + slowest


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextmanager
def _server(folder: Path, points: FloatArray, shards: int) -> Iterator[Program]:
    """Run a server with shards and an index, and yield it with the processes of both roles."""
    words = ["--data-dir", str(folder / "data"), "--workers", "1", "--no-access-log"]
    with RunningServer(folder, *words, "--shards", str(shards)) as running:
        with Client(running.target, timeout=_BUILD_SECONDS) as client:
            client.build(_NAME, points)
            client.query(_NAME, points[:1])
        (engine,) = running.pids("engine")
        router = (*running.pids("front"), *running.pids("worker"))
        shard_pids = [pid for supervisor in children(engine) for pid in children(supervisor)]
        yield Program(running.target, {"router": router, "shard": tuple(shard_pids)})


def _measure(program: Program, queries: FloatArray) -> _Cost:
    requests = [
        query_pb2.QueryRequest(index=_NAME, queries=arrays.encode_dense(query[None]))
        for query in queries
    ]
    messages = [request.SerializeToString() for request in requests]
    with grpc.insecure_channel(program.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        call(messages[0])
        before = program.cpu_seconds()
        times = [_seconds(partial(call, message)) for message in messages]
        after = program.cpu_seconds()
    router, shard = ((after[role] - before[role]) / len(messages) for role in ("router", "shard"))
    return _Cost(router, shard, float(np.median(times)), float(np.percentile(times, 99)))


def _row(rounds: list[tuple[_Cost, _Cost, _Cost]]) -> Row:
    """Return the medians of the ratios, and of the times in microseconds."""
    costs = np.array(rounds)
    floors = costs[:, 1] + costs[:, 2]
    ratios = np.median(costs[:, 0] / floors, axis=0)
    micros = np.median(costs, axis=0) * 1e6
    row = dict(zip(_Cost._fields, map(float, ratios), strict=True))
    row["goal"] = _GOAL
    for place, name in enumerate(_Cost._fields):
        parts = zip(("", " fan-out", " work"), micros[:, place], strict=True)
        row |= {f"{name}{part} us": float(value) for part, value in parts}
    return row
