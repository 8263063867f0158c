"""Benchmark of a front that gets more calls than it can serve."""

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from grpc import aio

from benchmarks.harness import load
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program, server
from benchmarks.harness.runner import Option, Options, Output, Table, benchmark
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_client import AsyncClient, RpcError
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2

_NAME: Final = "overloaded"
_POINTS, _REQUESTS = 10_000, 400
_DEADLINE_SECONDS: Final = 0.5
_IN_FLIGHT: Final = 64
_CAPACITY_SECONDS: Final = 1.0
# The value of --pending-calls, the caller, and the number of its connections.
_Case: TypeAlias = tuple[int, str, int]
# Makes a call, given its number, and returns the name of its status.
_Ask: TypeAlias = Callable[[int], Awaitable[str]]


class _Outcome(NamedTuple):
    """What became of the calls of a loop: calls by status, and the seconds it lasted."""

    statuses: Counter[str]
    seconds: float


@benchmark(
    "overload",
    pending=Option([20_000, 128, 64], "values of --pending-calls"),
    fronts=Option(1, "fronts of each server"),
    callers=Option(["raw", "client"], "a stub of gRPC, or the Python client", ("raw", "client")),
    connections=Option([1, 4], "connections of a caller"),
    factor=Option(2.0, "load, as a multiple of the capacity"),
    seconds=Option(1.5, "seconds of one loop"),
    rounds=Option(3, "loops of each kind, which take turns"),
)
def overload(options: Options) -> Iterator[Output]:
    """Share of the capacity that is answered in time while callers ask for more.

    A front and a worker share one core, and the caller has another one, so that the front is the
    bottleneck. The capacity is the rate of a closed loop with 64 calls in flight. An open loop then
    calls at `factor` times this rate, with a deadline of .5 s. Goodput is the rate of calls that
    are answered in time, divided by the capacity of the same round. All values are medians over
    rounds; the least and the greatest goodput are given too.
    """
    points = Manifold.of().points(_POINTS + _REQUESTS)
    queries = points[_POINTS:]
    cases = list(itertools.product(options.pending, options.callers, options.connections))
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        stack.callback(_pin, cores)
        _pin(cores[:1])
        programs = {
            pending: _start(
                stack, Path(temporary) / str(pending), points[:_POINTS], options.fronts, pending
            )
            for pending in options.pending
        }
        _pin(cores[1:] or cores)
        rounds = [
            {case: asyncio.run(_measure(programs, queries, case, options)) for case in cases}
            for _ in range(options.rounds)
        ]
    facts = {"load": f"{options.factor:g} times the capacity", "fronts": str(options.fronts)}
    yield Table("Goodput while a front has too many calls", facts)
    for case in cases:
        yield _row(case, [outcomes[case] for outcomes in rounds])


def _pin(cores: list[int]) -> None:
    """Let all threads of this process, and processes that it starts, run on these cores alone."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cores)


def _start(
    stack: ExitStack, folder: Path, points: FloatArray, fronts: int, pending: int
) -> Program:
    """Build an index of the points, and start a server of it."""
    Index.build(points, path=folder / "data" / _NAME)
    more = ("--pending-calls", str(pending), "--fronts", str(fronts))
    return stack.enter_context(server(folder, 1, *more))


async def _measure(
    programs: dict[int, Program], queries: FloatArray, case: _Case, options: Options
) -> tuple[float, _Outcome]:
    """Return the capacity in calls per second, and the outcome of an open loop."""
    pending, caller, connections = case
    program = programs[pending]
    requests = [_request(query) for query in queries]
    closed = await load.unary(
        program, requests, _IN_FLIGHT, _CAPACITY_SECONDS, channels=connections
    )
    connect = _stubs if caller == "raw" else _clients
    async with connect(program.address, queries, connections) as ask:
        outcome = await _open_loop(ask, options.factor * closed.per_second, options.seconds)
    return closed.per_second, outcome


def _request(query: FloatArray) -> bytes:
    rows = arrays.encode_dense(query[None])
    return query_pb2.QueryRequest(index=_NAME, queries=rows).SerializeToString()


@asynccontextmanager
async def _stubs(target: str, queries: FloatArray, connections: int) -> AsyncIterator[_Ask]:
    """Call over gRPC without retries, as clients in other languages do."""
    requests = [_request(query) for query in queries]
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                aio.insecure_channel(target, options=load.OWN_CONNECTION)
            )
            for _ in range(connections)
        ]
        methods: list[load.Call] = [channel.unary_unary(load.QUERY) for channel in channels]

        async def ask(number: int) -> str:
            try:
                request = requests[number % len(requests)]
                await methods[number % connections](request, timeout=_DEADLINE_SECONDS)
            except aio.AioRpcError as error:
                return error.code().name
            return "OK"

        yield ask


@asynccontextmanager
async def _clients(target: str, queries: FloatArray, connections: int) -> AsyncIterator[_Ask]:
    """Call with as many clients."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(target, timeout=_DEADLINE_SECONDS))
            for _ in range(connections)
        ]

        async def ask(number: int) -> str:
            try:
                await clients[number % connections].query(_NAME, queries[number % len(queries)])
            except RpcError as error:
                return error.code.name
            return "OK"

        yield ask


async def _open_loop(ask: _Ask, rate: float, seconds: float) -> _Outcome:
    """Make calls at `rate` per second, whether or not earlier calls were answered."""
    statuses: Counter[str] = Counter()

    async def one(number: int) -> None:
        statuses[await ask(number)] += 1

    start = time.perf_counter()
    tasks: list[asyncio.Task[None]] = []
    while (elapsed := time.perf_counter() - start) < seconds:
        due = int(elapsed * rate)
        tasks += [asyncio.ensure_future(one(number)) for number in range(len(tasks), due)]
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    return _Outcome(statuses, seconds)


def _row(case: _Case, rounds: list[tuple[float, _Outcome]]) -> dict[str, object]:
    pending, caller, connections = case
    goodputs = [loop.statuses["OK"] / loop.seconds / capacity for capacity, loop in rounds]
    offers = [loop.statuses.total() / loop.seconds / capacity for capacity, loop in rounds]
    shares: Counter[str] = Counter()
    for _, loop in rounds:
        shares += loop.statuses
    failures = {name: count for name, count in shares.most_common() if name != "OK"}
    return {
        "pending calls": str(pending),
        "caller": caller,
        "connections": connections,
        "capacity, calls/s": statistics.median(capacity for capacity, _ in rounds),
        "offered": statistics.median(offers),
        "goodput": statistics.median(goodputs),
        "least": min(goodputs),
        "most": max(goodputs),
        "failures": ", ".join(f"{name} {n / shares.total():.2f}" for name, n in failures.items()),
    }
