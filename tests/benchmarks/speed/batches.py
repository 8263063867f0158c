"""Rows asked in one call beside the same rows one by one, in process, one thread.

An exact search of dense points, and a scan of more codes than caches hold, read the points once for
16 rows; other searches go row by row. A batch is also answered in slices as a worker of a server
cuts it. All ways are asked in turns, and the run ends with an error where their ids differ.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness.datasets import REAL, Points, hashed_search, load
from benchmarks.harness.runner import FAMILIES, Option, Options, Output
from benchmarks.harness.tables import Row, Table
from benchmarks.harness.turns import Timed, take_turns
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search
from divgrpc_server.worker.batches import Pace

OPTIONS: Final = {
    "points": Option(["10000", REAL, "300000", "1700000"], f"synthetic points, or {REAL}"),
    "families": FAMILIES,
    "batches": Option(4, "batches of each size"),
    "k": Option(10, "results per query"),
}
SIZES: Final = (2, 4, 16, 64)


def rows(options: Options) -> Iterator[Output]:
    """Yield a table for each data set."""
    for which in options.points:
        points = load(which, options.batches * SIZES[-1])
        yield Table(f"Batches, k = {options.k}: {points.name}", points.described())
        with threadpool_limits(1):
            yield from _rows(points, options)


def _rows(points: Points, options: Options) -> Iterator[Row]:
    """Yield each family by its search, and the last one by an exact search too."""
    for family in options.families:
        index = Index.build(points.base, hash_family=family)
        search = hashed_search(index, family, points.queries)
        parameters = QueryParameters(search=search)
        searches: dict[str, Search] = {
            index.engine.resolve(parameters, points.queries).search: search
        }
        if family == options.families[-1]:
            searches.setdefault("exact", "exact")
        for name, search in searches.items():
            parameters = QueryParameters(k=options.k, search=search)
            for size in SIZES:
                timed = compare(index, parameters, points.queries, size, options.batches)
                alone, batch, slices = timed.values()
                yield {
                    "family, search": f"{family}, {name}",
                    "rows": size,
                    "us/row one by one": alone.microseconds / size,
                    "in a batch": batch.microseconds / size,
                    "of one by one": batch.ratio(alone)[0],
                    "95 %": batch.ratio(alone)[1],
                    "in slices": slices.ratio(alone)[0],
                }


def compare(
    index: Index, parameters: QueryParameters, queries: FloatArray, size: int, batches: int
) -> dict[str, Timed]:
    """Time batches of `size` rows each way; raises RuntimeError where answers differ."""
    ways = {"one by one": _one_by_one, "batch": _batch, "slices": _slices}

    def ask(way: Callable[..., IntArray], batch: int) -> IntArray:
        return way(index, parameters, queries[batch * size : (batch + 1) * size])

    asks = {name: partial(ask, way) for name, way in ways.items()}
    timed = take_turns(asks, batches, size * parameters.k)
    first = timed["one by one"].rows
    if any((each.rows != first).any() for each in timed.values()):
        raise RuntimeError("a batch has other answers than its rows one by one")
    return timed


def _one_by_one(index: Index, parameters: QueryParameters, rows: FloatArray) -> IntArray:
    return np.concatenate([index.engine.answer(row[None], parameters).ids[0] for row in rows])


def _batch(index: Index, parameters: QueryParameters, rows: FloatArray) -> IntArray:
    return index.engine.answer(rows, parameters).ids.ravel()


def _slices(index: Index, parameters: QueryParameters, rows: FloatArray) -> IntArray:
    pace, answers, done = Pace(rows, parameters.selector), [], 0
    if pace.stop() < len(rows):
        pace.set_shared_rows(index.engine.exact_together(rows, parameters))
    while done < len(rows):
        with pace.step() as stop:
            answers.append(index.engine.answer(rows[done:stop], parameters).ids.ravel())
        done = stop
    return np.concatenate(answers)
