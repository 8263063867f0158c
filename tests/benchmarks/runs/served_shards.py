"""Benchmark of a server whose index is on shards, beside one whose index is whole."""

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from benchmarks.harness.datasets import Manifold
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from divgrpc.types import FloatArray, QueryResult
from divgrpc_client import Client, RpcError
from support.data.divided_indexes import differences
from support.processes.running_server import (
    RunningServer,
    children,
    cpu_seconds,
    descendants,
    eventually,
)

_NAME: Final = "points"
_TIMEOUT_SECONDS: Final = 30.0
_START_SECONDS: Final = 240.0
# Lets a shard server fail, given the number of the round, until the round is over.
Break: TypeAlias = Callable[[int], AbstractContextManager[None]]


@benchmark(
    "served_shards",
    points=Option(100_000, "synthetic points"),
    queries=Option(200, "queries of a round"),
    shards=Option([2, 4], "numbers of shards"),
    rounds=Option(10, "rounds of queries in turn"),
    kills=Option(20, "servers that are killed"),
    stops=Option(20, "servers that are stopped"),
)
def served_shards(options: Options) -> Iterator[Output]:
    """Compare queries of a server with shards with those of a server whose index is whole.

    One query at a time. "p50" and "CPU" are those of the server with shards, divided by those of
    the other one, medians of rounds in turn. "CPU" is of all processes. "Equal" is the number of
    queries with the same bytes. Then shard servers with two replicas are killed, and others stand
    still (SIGSTOP), while a client without retries asks: "failed" and "wrong" are numbers of its
    calls.
    """
    points = Manifold.of().points(options.points + options.queries)
    base, queries = points[: options.points], points[options.points :]
    yield Table("A server with shards", {"points": f"{options.points:,}"})
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        whole = _Served(stack, Path(temporary), base, 1, 1)
        expected = [whole.ask(query) for query in queries]
        for shards in options.shards:
            with ExitStack() as inner:
                divided = _Served(inner, Path(temporary), base, shards, 1)
                yield {"shards": shards, **_compare(whole, divided, queries, expected, options)}
        with ExitStack() as inner:
            divided = _Served(inner, Path(temporary), base, options.shards[0], 2)
            yield Table("Shard servers that fail", {"replicas": "2"})
            for cause, count in (("killed", options.kills), ("stopped", options.stops)):
                break_server = divided.kill if cause == "killed" else divided.stop
                outcome = divided.ask_and_break(queries, expected, count, break_server)
                yield {"servers are": cause, **outcome}


class _Served:
    """A server with an index, and a client of it."""

    def __init__(
        self, stack: ExitStack, folder: Path, points: FloatArray, shards: int, replicas: int
    ) -> None:
        home = folder / f"{shards}-{replicas}"
        home.mkdir()
        words = ["--data-dir", str(home / "data"), "--workers", "1", "--no-access-log"]
        if shards > 1:
            words += ["--shards", str(shards), "--replicas", str(replicas)]
        self._server = stack.enter_context(RunningServer(home, *words))
        client = Client(self._server.target, timeout=_TIMEOUT_SECONDS, retries=False)
        self._client = stack.enter_context(client)
        self._client.build(_NAME, points, timeout=600)

    def ask(self, query: FloatArray) -> QueryResult:
        """Return the answer to a query."""
        return self._client.query(_NAME, query)

    def seconds(self, queries: FloatArray) -> tuple[float, float]:
        """Return the median time of a query, and the processor time of all processes per query."""
        before, times = self._cpu_seconds(), []
        for query in queries:
            start = time.perf_counter()
            self.ask(query)
            times.append(time.perf_counter() - start)
        return float(np.median(times)), (self._cpu_seconds() - before) / len(queries)

    def _cpu_seconds(self) -> float:
        pid = self._server.process.pid
        return sum(map(cpu_seconds, [pid, *descendants(pid)]))

    def ask_and_break(
        self, queries: FloatArray, expected: list[QueryResult], rounds: int, break_server: Break
    ) -> Row:
        """Ask all queries again and again, and let another shard server fail each time."""
        outcomes: Counter[str] = Counter()
        times = []
        for number in range(rounds):
            self._await_replicas()
            with break_server(number):
                for query, answer in zip(queries, expected, strict=True):
                    start, outcome = time.perf_counter(), "failed"
                    with suppress(RpcError):
                        outcome = "wrong" if _differ(self.ask(query), answer) else "right"
                    outcomes[outcome] += 1
                    times.append(time.perf_counter() - start)
        return {
            "rounds": rounds,
            "calls": outcomes.total(),
            "failed": outcomes["failed"],
            "wrong": outcomes["wrong"],
            "p50, ms": float(np.median(times)) * 1e3,
            "worst, ms": max(times) * 1e3,
        }

    def _await_replicas(self) -> None:
        """Wait until all replicas serve, so that only one server fails at a time."""
        eventually(lambda: not self._client.get_index(_NAME).degraded, _START_SECONDS)

    @contextmanager
    def kill(self, number: int) -> Iterator[None]:
        """Kill a shard server; another one takes its place."""
        os.kill(self._server_of(number), signal.SIGKILL)
        yield

    @contextmanager
    def stop(self, number: int) -> Iterator[None]:
        """Let all processes of a shard server stand still."""
        server = self._server_of(number)
        pids = [server, *children(server)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _server_of(self, number: int) -> int:
        """Return the process id of one of the shard servers that run, another one each time."""
        (engine,) = self._server.pids("engine")
        servers = children(engine)
        return servers[number % len(servers)]


def _compare(
    whole: _Served,
    divided: _Served,
    queries: FloatArray,
    expected: list[QueryResult],
    options: Options,
) -> Row:
    equal = sum(not _differ(divided.ask(q), a) for q, a in zip(queries, expected, strict=True))
    rounds = [(whole.seconds(queries), divided.seconds(queries)) for _ in range(options.rounds)]
    ratios = np.array([np.divide(two, one) for one, two in rounds])
    alone = np.median([two for _, two in rounds], axis=0)
    return {
        "equal": equal,
        "p50": float(np.median(ratios[:, 0])),
        "CPU": float(np.median(ratios[:, 1])),
        "p50, ms": float(alone[0]) * 1e3,
        "CPU, ms": float(alone[1]) * 1e3,
    }


def _differ(answer: QueryResult, expected: QueryResult) -> bool:
    return bool(set(differences(answer, expected)) - {"generation"})
