"""Recall of every family under every metric, where lengths differ by a hundred times.

Points and queries get lengths from 0.1 to 10, even in the logarithm. Recall is the share of the
true ten nearest among the results of `nearest` at default limits; times are medians of single
queries on one thread.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Final, get_args

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import truth
from benchmarks.harness.datasets import REAL, load
from benchmarks.harness.runner import FAMILIES, Option, Options, Output
from benchmarks.harness.tables import Table
from divgrpc.index import Index
from divgrpc.types import FloatArray, Metric, Search

OPTIONS: Final = {"queries": Option(200, "queries reported"), "families": FAMILIES}
_K: Final = 10
_SEARCHES: Final[tuple[Search, ...]] = ("auto", "scan", "tables")


def rows(options: Options) -> Iterator[Output]:
    """Yield a row for each metric and family."""
    points = load(REAL, options.queries)
    random = np.random.default_rng(0)
    base, queries = (_stretched(rows, random) for rows in (points.base, points.queries))
    yield Table(f"Recall at {_K} by metric", points.described())
    for metric in get_args(Metric):
        for family in options.families:
            index = Index.build(base, metric=metric, hash_family=family)
            chosen = str(index.info.parameters["hash_family"])
            name = family if family == chosen else f"{family} ({chosen})"
            with threadpool_limits(1):
                yield {
                    "metric, family": f"{metric}, {name}",
                    "auto takes": index.info.auto_search,
                    **_searched(index, queries),
                }


def _stretched(rows: FloatArray, random: np.random.Generator) -> FloatArray:
    lengths = 10 ** random.uniform(-1, 1, (len(rows), 1))
    return np.ascontiguousarray(rows * lengths, np.float32)


def _searched(index: Index, queries: FloatArray) -> dict[str, float]:
    near = index.query(queries, k=_K, selector="nearest", search="exact").ids
    figures = {}
    for search in _SEARCHES:
        answers, seconds = [], []
        for query in queries:
            started = time.perf_counter()
            answers.append(index.query(query, k=_K, selector="nearest", search=search).ids[0])
            seconds.append(time.perf_counter() - started)
        figures[f"{search}: recall"] = truth.recall(answers, near)
        figures[f"{search}: us"] = statistics.median(seconds) * 1e6
    return figures
