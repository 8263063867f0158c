"""Rows asked in one call against the same rows one by one, in process, one thread.

An exact search of dense points, and a scan of more codes than caches hold, read what they read for
16 rows at a time; other searches go row by row. Both sides of a row are asked in turns, and it ends
the run where an answer differs.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.datasets import REAL, Points, told
from benchmarks.families import add_families
from benchmarks.sweeps import hashed
from benchmarks.tables import facts, show, table
from benchmarks.turns import take_turns
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search
from divgrpc.warming import warm_kernels

_SIZES: Final = (2, 4, 16, 64)


@dataclass(frozen=True)
class Row:
    """What a row takes of a batch of so many, microseconds, and one by one."""

    points: int
    family: str
    search: str
    rows: int
    alone: float
    together: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument(
        "--points",
        nargs="+",
        default=["10000", REAL, "300000", "2000000"],
        metavar="N",
        help=f"made points, or {REAL} (default 10000 {REAL} 300000 2000000)",
    )
    add_families(parser)
    parser.add_argument("--batches", type=int, default=4, help="of each size (default 4)")
    parser.add_argument("--k", type=int, default=10, help="(default 10)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table for each data set, and return the rows for JSON."""
    show(f"\n## Batches: k = {arguments.k}, diversity .3, in process, one thread\n")
    warm_kernels()
    rows: list[Row] = []
    with threadpool_limits(1):
        for which in arguments.points:
            points = told(which, arguments.batches * _SIZES[-1], 0)
            show(facts(points.described()) + "\n")
            some = list(_measure(points, arguments))
            show(_drawn(some) + "\n")
            rows += some
    return {"rows": [asdict(row) for row in rows]}


def _measure(points: Points, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield each family by its own search, and the last one by an exact search too."""
    for family in arguments.families:
        index = Index.build(points.base, hash_family=family)
        own: Search = "auto" if family == "auto" else hashed(index, family, points.queries)
        taken = {index.resolve(QueryParameters(search=own), points.queries).search: own}
        if family == arguments.families[-1]:
            taken.setdefault("exact", "exact")
        for name, search in taken.items():
            asked = QueryParameters(k=arguments.k, search=search)
            for size in _SIZES:
                alone, together = _in_turns(index, asked, points.queries, size, arguments.batches)
                yield Row(len(points.base), family, name, size, alone, together)


def _in_turns(
    index: Index, asked: QueryParameters, queries: FloatArray, size: int, batches: int
) -> tuple[float, float]:
    """Return the microseconds of a row one by one and in a batch; raises where answers differ."""
    ways = {way: partial(way, index, asked, queries, size) for way in (_one_by_one, _in_a_batch)}
    timed = take_turns(ways, batches, size * asked.k)
    alone, together = timed[_one_by_one], timed[_in_a_batch]
    if not np.array_equal(alone.rows, together.rows):
        raise RuntimeError("a batch was answered otherwise than its rows")
    return alone.microseconds / size, together.microseconds / size


def _one_by_one(
    index: Index, asked: QueryParameters, queries: FloatArray, size: int, batch: int
) -> IntArray:
    rows = range(batch * size, (batch + 1) * size)
    return np.concatenate([index.answer(queries[row : row + 1], asked).ids[0] for row in rows])


def _in_a_batch(
    index: Index, asked: QueryParameters, queries: FloatArray, size: int, batch: int
) -> IntArray:
    return index.answer(queries[batch * size : (batch + 1) * size], asked).ids.ravel()


def _drawn(rows: list[Row]) -> str:
    return table(
        ("family, search", "rows", "us/row one by one", "in a batch", "of one by one"),
        [
            (
                f"{row.family}, {row.search}",
                str(row.rows),
                f"{row.alone:,.0f}",
                f"{row.together:,.0f}",
                f"{row.together / row.alone:.2f}",
            )
            for row in rows
        ],
    )
