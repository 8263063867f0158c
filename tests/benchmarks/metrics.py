"""Recall of every family under every metric, on vectors whose lengths differ by a hundred times.

Points and queries get lengths from 0.1 to 10, even in the logarithm. Recall is the share of the
true ten nearest, as an exact pass has them, among the results of `nearest` at default limits; times
are medians of single queries on one thread.
"""

import argparse
import statistics
import time
from dataclasses import asdict, dataclass
from typing import get_args

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import datasets, truth
from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, Metric, Search
from divgrpc.warmup import warm_kernels

_K = 10
_SEARCHES: tuple[Search, ...] = ("auto", "scan", "tables")


@dataclass(frozen=True)
class Row:
    """One family under one metric; recall and microseconds by search."""

    metric: str
    family: str
    auto: str
    recall: dict[Search, float]
    microseconds: dict[Search, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--queries", type=int, default=200, help="queries reported (default 200)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    points = datasets.load(arguments.queries, 0)
    rng = np.random.default_rng(0)
    base, queries = (_stretched(rows, rng) for rows in (points.base, points.queries))
    show(f"\n## Metrics: recall at {_K} on {points.name}, lengths from 0.1 to 10\n")
    warm_kernels()
    rows = []
    for metric in get_args(Metric):
        for family in get_args(HashFamily):
            index = Index.build(base, metric=metric, hash_family=family)
            with threadpool_limits(1):
                rows.append(_measured(index, family, queries))
    show(_drawn(rows))
    return {"data": points.described(), "rows": [asdict(row) for row in rows]}


def _stretched(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    lengths = 10 ** rng.uniform(-1, 1, (len(rows), 1))
    return np.ascontiguousarray(rows * lengths, np.float32)


def _measured(index: Index, family: str, queries: FloatArray) -> Row:
    near = index.query(queries, k=_K, selector="nearest", search="exact").ids
    recall, microseconds = {}, {}
    for search in _SEARCHES:
        found, times = np.empty_like(near), []
        for number in range(len(queries)):
            begun = time.perf_counter()
            result = index.query(
                queries[number : number + 1], k=_K, selector="nearest", search=search
            )
            times.append(time.perf_counter() - begun)
            found[number] = result.ids[0]
        recall[search] = truth.recall(found, near)
        microseconds[search] = statistics.median(times) * 1e6
    chosen = str(index.info.parameters["hash_family"])
    name = family if family == chosen else f"{family} ({chosen})"
    metric = str(index.info.parameters["metric"])
    return Row(metric, name, index.info.auto_search, recall, microseconds)


def _drawn(rows: list[Row]) -> str:
    heads = ["metric, family", "auto takes"]
    heads += [f"{search}: {what}" for search in _SEARCHES for what in ("recall", "us")]
    return table(
        heads,
        [
            (
                f"{row.metric}, {row.family}",
                row.auto,
                *(
                    text
                    for search in _SEARCHES
                    for text in (f"{row.recall[search]:.3f}", f"{row.microseconds[search]:,.0f}")
                ),
            )
            for row in rows
        ],
    )
