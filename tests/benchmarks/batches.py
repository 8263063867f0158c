"""Rows asked in one call against the same rows one by one, in process, one thread.

An exact search of dense points, and a scan of more codes than caches hold, read what they read for
16 rows at a time; other searches go row by row. A batch is also answered in pieces as a worker of a
server cuts it. All ways are asked in turns, and the run ends where their ids differ.
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
from divgrpc.warmup import warm_kernels
from divgrpc_server.worker.batches import Pace

_SIZES: Final = (2, 4, 16, 64)


@dataclass(frozen=True)
class Row:
    """What a row takes, microseconds: one by one, in a batch of so many, and of one in pieces."""

    points: int
    family: str
    search: str
    rows: int
    alone: float
    together: float
    pieces: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument(
        "--points",
        nargs="+",
        default=["10000", REAL, "300000", "1700000"],
        metavar="N",
        help=f"made points, or {REAL} (default 10000 {REAL} 300000 1700000)",
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
        searches: dict[str, Search] = {
            index.engine.resolve(QueryParameters(search=own), points.queries).search: own
        }
        if family == arguments.families[-1]:
            searches.setdefault("exact", "exact")
        for name, search in searches.items():
            asked = QueryParameters(k=arguments.k, search=search)
            for size in _SIZES:
                times = _in_turns(index, asked, points.queries, size, arguments.batches)
                yield Row(len(points.base), family, name, size, *times)


def _in_turns(
    index: Index, asked: QueryParameters, queries: FloatArray, size: int, batches: int
) -> list[float]:
    """Return what a row takes each way, in microseconds; raises where answers differ."""
    ways = (_one_by_one, _in_a_batch, _in_pieces)
    askings = {way: partial(way, index, asked, queries, size) for way in ways}
    timed = take_turns(askings, batches, size * asked.k)
    if any((timed[way].rows != timed[_one_by_one].rows).any() for way in ways):
        raise RuntimeError("a batch was answered otherwise than its rows")
    return [timed[way].microseconds / size for way in ways]


def _one_by_one(
    index: Index, asked: QueryParameters, queries: FloatArray, size: int, batch: int
) -> IntArray:
    rows = range(batch * size, (batch + 1) * size)
    return np.concatenate(
        [index.engine.answer(queries[row : row + 1], asked).ids[0] for row in rows]
    )


def _in_a_batch(
    index: Index, asked: QueryParameters, queries: FloatArray, size: int, batch: int
) -> IntArray:
    return index.engine.answer(queries[batch * size : (batch + 1) * size], asked).ids.ravel()


def _in_pieces(
    index: Index, asked: QueryParameters, queries: FloatArray, size: int, batch: int
) -> IntArray:
    rows = queries[batch * size : (batch + 1) * size]
    pace, found, done = Pace(rows, asked.selector), [], 0
    if pace.stop() < size:
        pace.search_together(index.engine.exact_together(rows, asked))
    while done < size:
        with pace.step() as stop:
            found.append(index.engine.answer(rows[done:stop], asked).ids.ravel())
        done = stop
    return np.concatenate(found)


def _drawn(rows: list[Row]) -> str:
    return table(
        ("family, search", "rows", "us/row one by one", "in a batch", "of one by one", "in pieces"),
        [
            (
                f"{row.family}, {row.search}",
                str(row.rows),
                f"{row.alone:,.0f}",
                f"{row.together:,.0f}",
                f"{row.together / row.alone:.2f}",
                f"{row.pieces / row.alone:.2f}",
            )
            for row in rows
        ],
    )
