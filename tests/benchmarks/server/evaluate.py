"""Time of Evaluate beside its queries, of small calls, and of queries while a call goes on.

The ratio is the time of a call, from the request to its last row, over the time of its queries, one
at a time on one thread as the rows report them, divided by the number of workers: 1 if nothing but
queries took time. The quietest of some rounds is shown, the one with the least ratio. A small call
has one query at one setting. The first call starts a process, and later calls use it again.
"""

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
from benchmarks.harness.runner import Option, Options, Output
from benchmarks.harness.tables import Row, Table
from divgrpc.index import Index
from divgrpc.types import EvaluateRow, FloatArray, IntArray
from divgrpc_client import Client
from support.running_server import cpu_seconds

OPTIONS: Final = {
    "workers": Option([1, 2], "workers"),
    "queries": Option(1_000, "queries"),
    "dials": Option(10, "dials of two selectors"),
    "rounds": Option(3, "calls, the quietest of which is shown"),
}
_INDEX: Final = "bench"
_DATA: Final = "cifar100_dense256"
_WARM_UP: Final = 50
_SMALL_CALLS: Final = 21
# Between two queries beside a call.
_PAUSE_SECONDS: Final = 0.005


def rows(options: Options) -> Iterator[Output]:
    """Yield a row for each number of workers."""
    [data] = topics.load([_DATA])
    # The pool holds no indexed point.
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
            with (
                server(folder, workers) as program,
                Client(program.address, timeout=60) as client,
            ):
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
    program: Program,
    client: Client,
    queries: tuple[FloatArray, IntArray],
    workers: int,
    dials: int,
) -> Row:
    before, started = _cpu_seconds(program), time.perf_counter()
    answers = _evaluate(client, queries, dials)
    seconds, after = time.perf_counter() - started, _cpu_seconds(program)
    settings = [row for row in answers if not row.by_fold]
    query_seconds = sum(row.microseconds.mean * row.queries for row in settings) / 1e6
    return {
        "workers": workers,
        "call s": seconds,
        "its queries s": query_seconds,
        "ratio": seconds * workers / query_seconds,
        **{f"CPU {role} s": after[role] - before[role] for role in after},
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
    started = time.perf_counter()
    list(client.evaluate(_INDEX, queries[:1], categories[:1], selectors=["nearest"], folds=0))
    return time.perf_counter() - started


def _beside(client: Client, queries: tuple[FloatArray, IntArray], dials: int) -> Row:
    """Return percentiles of the time of queries of one row while a call goes on."""
    over = threading.Event()
    seconds: list[float] = []

    def query() -> None:
        for row in itertools.cycle(queries[0]):
            if over.wait(_PAUSE_SECONDS):
                return
            started = time.perf_counter()
            client.query(_INDEX, row)
            seconds.append(time.perf_counter() - started)

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
    # Threads of an evaluator end with the call, so the process is asked for the time of all.
    return program.cpu_seconds() | {"evaluator": sum(map(cpu_seconds, program.find("evaluator")))}
