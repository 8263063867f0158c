"""The benchmark of evaluations over gRPC."""

import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.datasets import topics
from benchmarks.harness.programs import Program, server
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from divgrpc.index import Index
from divgrpc.types import EvaluateRow, FloatArray, IntArray
from divgrpc_client import Client
from support.processes.running_server import cpu_seconds

_INDEX: Final = "bench"
_DATA: Final = "cifar100_dense256"
_WARM_UP: Final = 50
_SMALL_CALLS: Final = 21
# Seconds between two queries that are sent while an Evaluate call runs.
_PAUSE_SECONDS: Final = 0.005


@benchmark(
    "evaluate",
    workers=Option([1, 2], "workers"),
    queries=Option(1_000, "queries"),
    dials=Option(10, "dials of two selectors"),
    rounds=Option(3, "calls; the quietest is shown"),
)
def evaluate(options: Options) -> Iterator[Output]:
    """Time of Evaluate calls, and of queries to a server that runs one.

    "ratio" is the time of a call times the number of workers, divided by the time of its queries.
    The time of a call runs from sending the request to receiving the last row. The time of its
    queries is the sum of the query times in the rows. Each query is timed alone on one thread. A
    ratio of 1 means that nothing but queries took time. "CPU ratio" divides the CPU time of all
    processes by the time of the queries; other programs on the machine hardly change it. Of several
    rounds, the one with the lowest ratio is shown. A small call has one query and one setting. The
    first call starts a process, which later calls reuse.
    """
    [data] = topics.load([_DATA])
    # The pool holds rows that are not indexed, so they can serve as queries.
    order = np.random.default_rng(0).permutation(len(data.pool_categories))[: options.queries]
    queries, categories = np.asarray(data.pool[order], np.float32), data.pool_categories[order]
    title = f"Evaluate of {len(queries)} queries, {2 * options.dials} settings"
    yield Table(title, data.described())
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        Index.build(
            data.points,
            categories=data.labels.categories,
            subtopics=data.labels.subtopics,
            path=folder / "data" / _INDEX,
        )
        for workers in options.workers:
            with server(folder, workers) as program, Client(program.address, timeout=60) as client:
                for query in queries[:_WARM_UP]:
                    client.query(_INDEX, query)
                small = [_small(client, queries, categories) for _ in range(_SMALL_CALLS)]
                calls = [
                    _call(program, client, (queries, categories), workers, options.dials)
                    for _ in range(options.rounds)
                ]
                beside = _beside(client, (queries, categories), options.dials)
            yield {
                **min(calls, key=lambda row: float(row["ratio"])),
                "first small call s": small[0],
                "small call ms": 1e3 * statistics.median(small[1:]),
                **beside,
            }


def _call(
    program: Program, client: Client, queries: tuple[FloatArray, IntArray], workers: int, dials: int
) -> Row:
    before, begin = _cpu_seconds(program), time.perf_counter()
    answers = _evaluate(client, queries, dials)
    seconds, after = time.perf_counter() - begin, _cpu_seconds(program)
    settings = [row for row in answers if not row.by_fold]
    query_seconds = sum(row.microseconds.mean * row.queries for row in settings) / 1e6
    cpu = {role: after[role] - before[role] for role in after}
    return {
        "workers": workers,
        "call s": seconds,
        "its queries s": query_seconds,
        "ratio": seconds * workers / query_seconds,
        "CPU ratio": sum(cpu.values()) / query_seconds,
        **{f"CPU {role} s": value for role, value in cpu.items()},
    }


def _evaluate(
    client: Client, queries: tuple[FloatArray, IntArray], dials: int
) -> list[EvaluateRow]:
    return list(
        client.evaluate(
            _INDEX,
            *queries,
            selectors=["greedy", "mmr"],
            diversities=np.linspace(0.05, 0.95, dials).tolist(),
        )
    )


def _small(client: Client, queries: FloatArray, categories: IntArray) -> float:
    begin = time.perf_counter()
    list(client.evaluate(_INDEX, queries[:1], categories[:1], selectors=["nearest"], folds=0))
    return time.perf_counter() - begin


def _beside(client: Client, queries: tuple[FloatArray, IntArray], dials: int) -> Row:
    """Return percentiles of the time of single queries sent while an Evaluate call runs."""
    over = threading.Event()
    seconds: list[float] = []

    def query() -> None:
        for row in itertools.cycle(queries[0]):
            if over.wait(_PAUSE_SECONDS):
                return
            begin = time.perf_counter()
            client.query(_INDEX, row)
            seconds.append(time.perf_counter() - begin)

    thread = threading.Thread(target=query)
    thread.start()
    try:
        _evaluate(client, queries, dials)
    finally:
        over.set()
        thread.join()
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
    return {"query beside p50 ms": float(p50), "query beside p99 ms": float(p99)}


def _cpu_seconds(program: Program) -> dict[str, float]:
    # The threads of an evaluator end with the call, so the CPU time of the whole process is read.
    return program.cpu_seconds() | {"evaluator": sum(map(cpu_seconds, program.find("evaluator")))}
