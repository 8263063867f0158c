"""qp_relax over all points of a set of the paper's size, without pre-selection, on one thread.

The paper took 700 to 1,100 s a query. Points are those of
`divgrpc_lab.data.visual_words`, at half the size and at the whole, so that growth can be
seen; queries are held-out images, which are sparse, and hyperplanes learned from them, which are
dense. Seconds are the thread's own, so that others on the machine do not count. Memory is what the
process held at its peak during a first query above what it held
before, the index not counted.
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from threadpoolctl import threadpool_limits

from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.search import relaxation
from divgrpc.warmup import warm_kernels
from divgrpc_lab.data.hyperplanes import hyperplane_queries
from divgrpc_lab.data.visual_words import IMAGES, POOL, WORDS, VisualWords, visual_words

_WHOLE: Final[dict[str, Any]] = {"search": "exact", "hash_limit": 0, "candidates_limit": 0}
_GRADIENT: Final = relaxation._Problem.gradient


@dataclass(frozen=True)
class Row:
    """All queries of one kind for k picks, at every dial: the median of seconds and the worst.

    `gap` is the largest duality gap, a share of the objective's range; `passes` the most times that
    the gradient was taken at all points.
    """

    images: int
    queries: str
    k: int
    seconds: float
    worst: float
    gap: float
    passes: int


@dataclass(frozen=True)
class Memory:
    """Bytes of the points' values and columns, and what a query held beside the index."""

    images: int
    data: int
    extra: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    sizes = [IMAGES // 2, IMAGES]
    parser.add_argument(
        "--images", type=int, nargs="+", default=sizes, help="(default %(default)s)"
    )
    parser.add_argument("--words", type=int, default=WORDS, help="(default %(default)s)")
    parser.add_argument("--queries", type=int, default=1, help="of each kind (default 1)")
    parser.add_argument("--k", type=int, nargs="+", default=[10, 20, 30])
    parser.add_argument("--diversity", type=float, nargs="+", default=[0.1, 0.3, 0.5, 0.7, 0.9])


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the tables, and return their rows for JSON."""
    show(f"\n## qp_relax over all points: {arguments.words:,} visual words, one thread\n")
    warm_kernels()
    rows: list[Row] = []
    held: list[Memory] = []
    for images in arguments.images:
        pool = max(1, images * POOL // IMAGES)
        made = visual_words(images, pool, arguments.words, seed=0)
        points = made.indexed.rows
        index = Index.build(points, hash_family="lsh_div", n_tables=1)
        with threadpool_limits(1):
            extra = _extra(index, made.pool.rows[:1], max(arguments.k))
            held.append(Memory(images, points.data.nbytes + points.indices.nbytes, extra))
            rows += _timed(index, made, arguments)
    show(_drawn(rows))
    show("\n" + _drawn_memory(held))
    return {"rows": [asdict(row) for row in rows], "memory": [asdict(each) for each in held]}


def _timed(index: Index, made: VisualWords, arguments: argparse.Namespace) -> Iterator[Row]:
    pool = made.pool
    learned = hyperplane_queries(pool.rows, pool.categories, 1, seed=0).queries
    kinds = {"sparse": pool.rows, "dense": learned}
    for (name, queries), k in product(kinds.items(), arguments.k):
        seconds, gaps, passes = [], [], []
        for number, dial in product(range(arguments.queries), arguments.diversity):
            query = queries[number : number + 1]
            with patch.object(
                relaxation._Problem, "gradient", autospec=True, side_effect=_GRADIENT
            ) as counted:
                begun = time.thread_time()
                found = index.query(query, k=k, diversity=dial, selector="qp_relax", **_WHOLE)
                seconds.append(time.thread_time() - begun)
            gaps.append(float(found.duality_gaps[0]))
            passes.append(counted.call_count)
        middle = sorted(seconds)[len(seconds) // 2]
        yield Row(index.rows, name, k, middle, max(seconds), max(gaps), max(passes))


def _extra(index: Index, query: Any, k: int) -> int:  # noqa: ANN401  # scipy's
    """Return the bytes that a first query holds at most, at an even dial."""
    # What earlier work left is given back, and the system forgets the process's peak.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    index.query(query, k=k, diversity=0.5, selector="qp_relax", **_WHOLE)
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise ValueError(f"the system does not say {field}")


def _drawn(rows: list[Row]) -> str:
    heads = ("images, queries", "k", "s/query", "worst", "largest gap", "passes")
    return table(
        heads,
        [
            (
                f"{row.images:,}, {row.queries}",
                str(row.k),
                f"{row.seconds:.2f}",
                f"{row.worst:.2f}",
                f"{row.gap:.1e}",
                str(row.passes),
            )
            for row in rows
        ],
    )


def _drawn_memory(held: list[Memory]) -> str:
    return table(
        ("images", "points MB", "beside them MB", "bytes an image"),
        [
            (
                f"{each.images:,}",
                f"{each.data / 1e6:,.0f}",
                f"{each.extra / 1e6:,.0f}",
                f"{each.extra / each.images:,.0f}",
            )
            for each in held
        ],
    )
