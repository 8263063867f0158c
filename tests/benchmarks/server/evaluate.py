"""Time of Evaluate beside its queries: the overhead of the call.

The ratio is the time of a call, from the request to its last row, over the time of its queries, one
at a time on one thread as the rows report them, divided by the number of workers: 1 if nothing but
queries took time. The quietest of some rounds is shown, the one with the least ratio.
"""

import tempfile
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
from divgrpc.types import FloatArray, IntArray
from divgrpc_client import Client

OPTIONS: Final = {
    "workers": Option([1, 2], "workers"),
    "queries": Option(1_000, "queries"),
    "dials": Option(10, "dials of two selectors"),
    "rounds": Option(3, "calls, the quietest of which is shown"),
}
_INDEX: Final = "bench"
_DATA: Final = "cifar100_dense256"
_WARM_UP: Final = 50


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
                calls = [
                    _call(program, client, (queries, categories), workers, options.dials)
                    for _ in range(options.rounds)
                ]
            yield min(calls, key=lambda row: float(row["ratio"]))


def _call(
    program: Program,
    client: Client,
    queries: tuple[FloatArray, IntArray],
    workers: int,
    dials: int,
) -> Row:
    before, started = program.cpu_seconds(), time.perf_counter()
    answers = list(
        client.evaluate(
            _INDEX,
            *queries,
            selectors=["greedy", "mmr"],
            diversities=np.linspace(0.05, 0.95, dials).tolist(),
        )
    )
    seconds, after = time.perf_counter() - started, program.cpu_seconds()
    settings = [row for row in answers if not row.by_fold]
    query_seconds = sum(row.microseconds.mean * row.queries for row in settings) / 1e6
    return {
        "workers": workers,
        "call s": seconds,
        "its queries s": query_seconds,
        "ratio": seconds * workers / query_seconds,
        **{f"CPU {role} s": after[role] - before[role] for role in after},
    }
