"""The benchmark of the cost of a call over gRPC."""

import asyncio
import itertools
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from benchmarks.harness import load
from benchmarks.harness.datasets import REAL, build_each
from benchmarks.harness.datasets import load as load_points
from benchmarks.harness.load import Load
from benchmarks.harness.programs import Program, echo, server
from benchmarks.harness.runner import FAMILIES, Option, Options, Output, Row, Table, benchmark
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2

_REQUESTS, _BATCH, _BATCHES_IN_FLIGHT = 400, 100, 4
_IN_PROCESS: Final = " in process"
_BATCH_NAME: Final = f"batch of {_BATCH}"
_STREAM_SUFFIX: Final = ", QueryStream"
_ECHO: Final = "echo"
# Goals for the server. _CPU_GOALS limits CPU divided by its floor, for each number of workers.
# _P50_GOAL is in microseconds above the floor of p50. _STREAM_GOAL limits the front CPU of a stream
# divided by the front CPU of unary calls. _BATCH_GOAL is the least rate of a batch divided by the
# rate in process.
_CPU_GOALS: Final = {1: 1.25, 2: 1.45}
_P50_GOAL, _STREAM_GOAL, _BATCH_GOAL = 250, 0.6, 0.95


@dataclass(frozen=True)
class Case:
    """A program, the way to call it, and the calls in flight; the echo belongs to no family."""

    family: str
    name: str
    in_flight: int


Loads: TypeAlias = "defaultdict[Case, list[Load]]"


class _Queries:
    """An index and its queries (nq, d), as requests of one row and as batches."""

    def __init__(self, family: str, index: Index, queries: FloatArray) -> None:
        def request(rows: FloatArray) -> query_pb2.QueryRequest:
            return query_pb2.QueryRequest(index=family, queries=arrays.encode_dense(rows))

        self.family, self.index, self.queries = family, index, queries
        self.batches = list(queries.reshape(-1, _BATCH, queries.shape[1]))
        single = [request(row[None]) for row in queries]
        self.requests = [message.SerializeToString() for message in single]
        self.batch_requests = [request(batch).SerializeToString() for batch in self.batches]
        self.messages = [
            query_pb2.QueryStreamRequest(correlation_id=number, query=message).SerializeToString()
            for number, message in enumerate(single)
        ]


@benchmark(
    "wire",
    families=FAMILIES,
    workers=Option([1, 2], "workers of each server"),
    in_flight=Option(64, "calls at a time"),
    seconds=Option(2.0, "seconds of one loop"),
    rounds=Option(5, "turns of each program"),
)
def wire(options: Options) -> Iterator[Output]:
    """CPU time per call and latency of the server, compared with an empty echo and with in process.

    All programs run at the same time on the loopback interface and take turns. A row is from its
    quietest round, which is the round with the least CPU per call. With a single call in flight, it
    is the round with the least p50, because the CPU then depends on how long the worker polls
    between calls.

    Server CPU is the sum over fronts and workers. The access log is on. The echo exchanges messages
    of the same sizes as Query. The floor of a call is the CPU of the echo plus the CPU of the same
    query in process. For one call in flight, p50 has a floor too. A batch is one call with many
    rows. "of in process" is its rate per second of worker CPU, divided by the rate of the same
    batch in process.
    """
    points = load_points(REAL, _REQUESTS)
    loads: Loads = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        indexes = build_each(points.base, options.families, folder / "built")
        queries = [_Queries(*item, points.queries) for item in indexes.items()]
        programs: dict[str, Program] = {}
        for workers in options.workers:
            shutil.copytree(folder / "built", folder / f"server-{workers}" / "data")
            name = f"{workers} worker{'s' if workers > 1 else ''}"
            programs[name] = stack.enter_context(server(folder / f"server-{workers}", workers))
        reply_bytes = asyncio.run(_check(queries, programs))
        empty = stack.enter_context(echo(reply_bytes))
        for _ in range(options.rounds):
            asyncio.run(_ask_echo(loads, empty, queries[0].requests, options))
            for item in queries:
                _ask_in_process(loads, item, options.seconds / 2)
                asyncio.run(_ask_programs(loads, item, programs, options))
    facts = {"bytes": f"{len(queries[0].requests[0]):,} a request, {reply_bytes:,} a reply"}
    yield Table("One query of k = 10 a call", {**points.described(), **facts})
    yield from rows_of(loads)


async def _check(queries: Sequence[_Queries], programs: Mapping[str, Program]) -> int:
    """Return the size of a reply; raise `RuntimeError` if its results differ from the core's."""
    size = 0
    for item, program in itertools.product(queries, programs.values()):
        [ids] = item.index.query(item.queries[:1]).ids
        size = await load.check(item.family, program, item.requests[0], ids)
    return size


async def _ask_echo(
    loads: Loads, program: Program, requests: Sequence[bytes], options: Options
) -> None:
    for in_flight, seconds in ((1, options.seconds / 2), (options.in_flight, options.seconds)):
        loop = await load.unary(program, requests, in_flight, seconds)
        loads[Case("", _ECHO, in_flight)].append(loop)


def _ask_in_process(loads: Loads, queries: _Queries, seconds: float) -> None:
    single = [row[None] for row in queries.queries]
    for name, batches in (("query", single), (_BATCH_NAME, queries.batches)):
        loads[Case(queries.family, f"{name}{_IN_PROCESS}", 1)].append(
            _in_process(queries.index, batches, seconds)
        )


async def _ask_programs(
    loads: Loads, queries: _Queries, programs: Mapping[str, Program], options: Options
) -> None:
    """Measure each server with one call at a time, many calls, a stream, and batches."""
    many, seconds = options.in_flight, options.seconds
    for name, program in programs.items():
        case = Case(queries.family, name, many)
        alone = await load.unary(program, queries.requests, 1, seconds / 2)
        loads[replace(case, in_flight=1)].append(alone)
        loads[case].append(await load.unary(program, queries.requests, many, seconds))
        stream = await load.stream(program, queries.messages, many, seconds, load.QUERY_STREAM)
        loads[replace(case, name=name + _STREAM_SUFFIX)].append(stream)
        batch_case = Case(queries.family, f"{name}, {_BATCH_NAME}", _BATCHES_IN_FLIGHT)
        loop = load.unary(program, queries.batch_requests, _BATCHES_IN_FLIGHT, seconds)
        loads[batch_case].append(await loop)


def _in_process(index: Index, batches: Sequence[FloatArray], seconds: float) -> Load:
    """Measure batches in process, as a `Load` whose CPU time counts as a worker's."""
    times: list[float] = []
    cpu, begin = time.process_time(), time.perf_counter()
    while time.perf_counter() < begin + seconds:
        start = time.perf_counter()
        index.query(batches[len(times) % len(batches)])
        times.append(time.perf_counter() - start)
    cpu_seconds, duration = time.process_time() - cpu, time.perf_counter() - begin
    p50, p99 = np.percentile(times, (50, 99)) * 1e6
    cpu_each = {"worker": cpu_seconds / len(times) * 1e6}
    return Load(len(times), len(times) / duration, cpu_each, {50: float(p50), 99: float(p99)})


def rows_of(loads: Mapping[Case, Sequence[Load]]) -> Iterator[Row]:
    """Yield a row for each case from its quietest round, family by family."""
    quietest = {
        case: min(rounds, key=_p50 if case.in_flight == 1 and rounds[0].latency else _cpu)
        for case, rounds in loads.items()
    }
    for case in sorted(quietest, key=lambda case: case.family):
        best = quietest[case]
        floor = above = share = front = goal = None
        is_served = len(best.cpu) > 1
        query = Case(case.family, f"query{_IN_PROCESS}", 1)
        if is_served and case.name.endswith(_BATCH_NAME):
            batch = loads[Case(case.family, _BATCH_NAME + _IN_PROCESS, 1)]
            share = min(map(_cpu, batch)) / best.cpu["worker"]
            goal = f"of in process >= {_BATCH_GOAL}"
        elif case.name.endswith(_STREAM_SUFFIX):
            unary = replace(case, name=case.name.removesuffix(_STREAM_SUFFIX))
            front = best.cpu["front"] / quietest[unary].cpu["front"]
            goal = f"front of unary <= {_STREAM_GOAL}"
        elif is_served:
            echo_case = Case("", _ECHO, case.in_flight)
            floor = min(map(_cpu, loads[echo_case])) + min(map(_cpu, loads[query]))
            goal = f"x floor <= {_CPU_GOALS[1 if case.name.startswith('1 ') else 2]}"
            if case.in_flight == 1:
                above = _p50(best) - _p50(quietest[echo_case]) - _p50(quietest[query])
                goal = f"p50 above floor <= {_P50_GOAL}"
        yield {
            "family, program": ", ".join(filter(None, (case.family, case.name))),
            "in flight": case.in_flight,
            "calls/s": best.per_second,
            "front us": best.cpu.get("front", 0.0),
            "workers us": best.cpu.get("worker", 0.0),
            "CPU us": _cpu(best),
            "x floor": _cpu(best) / floor if floor else None,
            "p50 us": best.latency.get(50),
            "p99 us": best.latency.get(99),
            "p50 above floor": above,
            "of in process": share,
            "front of unary": front,
            "goal": goal,
        }


def _cpu(load: Load) -> float:
    """Return the CPU time per call over all roles."""
    return sum(load.cpu.values())


def _p50(load: Load) -> float:
    return load.latency[50]
