"""What Evaluate costs beside its queries: how busy the workers are, and how soon it is done.

The ratio is the time that a call took, from the request to its last row, over the time that its
queries took in the workers, one at a time, divided by the number of workers: 1 if nothing but
queries took time. Times are those that the rows report. The quietest of some rounds is shown, the
one with the least ratio.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.processes import Program, server
from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray, IntArray
from divgrpc.warmup import warm_kernels
from divgrpc_client import Client
from divgrpc_lab.data import topics
from divgrpc_lab.data.topics import Topics

_INDEX = "bench"
_DATA = "cifar100_dense256"


@dataclass(frozen=True)
class Row:
    """One call: `seconds` of it, of its queries, and of the CPU of fronts and of workers."""

    workers: int
    settings: int
    queries: int
    seconds: float
    query_seconds: float
    front_seconds: float
    worker_seconds: float

    @property
    def ratio(self) -> float:
        """How much longer the call took than its queries, shared by the workers."""
        return self.seconds * self.workers / self.query_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="(default 1 2)")
    parser.add_argument("--queries", type=int, default=1_000, help="(default 1000)")
    parser.add_argument("--dials", type=int, default=10, help="of two selectors (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="calls, the best shown (default 3)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    [data] = topics.load([_DATA])
    queries, asked = _queries(data, arguments.queries)
    show(f"\n## Evaluate: {len(queries)} queries, {2 * arguments.dials} settings, on {data.name}\n")
    warm_kernels()
    rows = []
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        Index.build(
            data.points,
            categories=data.labels.categories,
            subtopics=data.labels.subtopics,
            path=folder / "data" / _INDEX,
        )
        for workers in arguments.workers:
            with ExitStack() as stack:
                program = stack.enter_context(server(folder, workers))
                rows.append(_best(program, queries, asked, workers, arguments))
    show(_drawn(rows))
    told = [asdict(row) | {"ratio": row.ratio} for row in rows]
    return {"data": data.described(), "rows": told}


def _queries(data: Topics, count: int) -> tuple[FloatArray, IntArray]:
    """Return rows of the pool, which holds no indexed point, and their categories."""
    chosen = np.random.default_rng(0).permutation(len(data.pool_categories))[:count]
    rows: FloatArray = np.asarray(data.pool[chosen], np.float32)
    return rows, data.pool_categories[chosen]


def _best(
    program: Program,
    queries: FloatArray,
    asked: IntArray,
    workers: int,
    arguments: argparse.Namespace,
) -> Row:
    with Client(program.address, timeout=60) as client:
        for row in queries[:50]:
            client.query(_INDEX, row)
        rounds = [_one(program, client, (queries, asked), workers, arguments.dials)]
        while len(rounds) < arguments.rounds:
            rounds.append(_one(program, client, (queries, asked), workers, arguments.dials))
    return min(rounds, key=lambda row: row.ratio)


def _one(
    program: Program,
    client: Client,
    given: tuple[FloatArray, IntArray],
    workers: int,
    dials: int,
) -> Row:
    before, begun = program.cpu_seconds(), time.perf_counter()
    rows = list(
        client.evaluate(
            _INDEX,
            *given,
            selectors=["greedy", "mmr"],
            diversities=np.linspace(0.05, 0.95, dials).tolist(),
        )
    )
    seconds, after = time.perf_counter() - begun, program.cpu_seconds()
    settings = [row for row in rows if not row.by_fold]
    spent = {role: after[role] - before[role] for role in after}
    return Row(
        workers=workers,
        settings=len(settings),
        queries=len(given[0]),
        seconds=seconds,
        query_seconds=sum(row.microseconds.mean * row.queries for row in settings) / 1e6,
        front_seconds=spent["front"],
        worker_seconds=spent["worker"],
    )


def _drawn(rows: list[Row]) -> str:
    heads = ("workers", "call s", "its queries s", "x their share", "CPU front s", "CPU workers s")
    return table(
        heads,
        [
            (
                str(row.workers),
                f"{row.seconds:.2f}",
                f"{row.query_seconds:.2f}",
                f"{row.ratio:.2f}",
                f"{row.front_seconds:.2f}",
                f"{row.worker_seconds:.2f}",
            )
            for row in rows
        ],
    )
