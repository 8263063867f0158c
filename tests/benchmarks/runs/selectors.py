"""Benchmarks of selectors and of batches in process."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import libraries
from benchmarks.harness.datasets import REAL, Points, load
from benchmarks.harness.libraries import OurPicker
from benchmarks.harness.runner import (
    FAMILIES,
    Ask,
    Option,
    Options,
    Output,
    Row,
    Table,
    Timed,
    benchmark,
    take_turns,
)
from divgrpc.index import Index
from divgrpc.kernels import records
from divgrpc.parameters import QueryParameters
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import ONE_BY_ONE, select
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Search
from divgrpc_server.worker.batches import Pace

_DIVERSITY: Final = 0.3
# Our selectors, each with the selectors of other libraries that use the same method.
_RIVALS: Final[Mapping[str, tuple[str, ...]]] = {
    "greedy, marginal": ("pyversity msd",),
    "max_sum": ("pyversity msd",),
    "mmr": ("pyversity mmr",),
    "dpp": ("pyversity dpp",),
}


@benchmark(
    "selectors",
    k=Option(10, "picks"),
    queries=Option(200, "queries asked"),
    candidates=Option([100, 1_000], "candidates"),
)
def selector_times(options: Options) -> Iterator[Output]:
    """Time of each selector alone, compared with the same method of pyversity.

    All selectors pick from the same candidates, which are sorted by distance and whose relevance is
    known. They take turns on one thread. Other libraries get the vectors of the candidates as a
    contiguous array, while our selectors read them from the index. "Same picks" is the share of
    queries for which both selectors picked the same points.
    """
    points = load(REAL, options.queries)
    index = Index.build(points.base, hash_family="lsh_div")
    for count in options.candidates:
        yield Table(f"Selectors, {options.k} of {count:,} candidates", points.described())
        with threadpool_limits(1):
            yield from _among(index, points.queries, count, options.k)


def _among(index: Index, queries: FloatArray, count: int, k: int) -> Iterator[Row]:
    nearest = index.query(queries, k=count, selector="nearest", search="exact", hash_limit=0)
    ids = nearest.ids.astype(np.int64)
    selector_asks = _ours(index, ids, 2 - 2 * nearest.scores, k)
    times = take_turns(
        {**selector_asks, **_theirs(index, queries, ids, k)},
        len(queries),
        k,
    )
    for name in selector_asks:
        row = {"selector": name, "us": times[name].microseconds}
        rivals = [rival for rival in _RIVALS.get(name, ()) if rival in times]
        if not rivals:
            yield row
        for rival in rivals:
            ratio, interval = times[rival].ratio(times[name])
            picks = (np.sort(times[item].rows, axis=1) for item in (name, rival))
            yield row | {
                "rival": rival,
                "rival us": times[rival].microseconds,
                "times as fast": ratio,
                "95 %": interval,
                "same picks": float(np.equal(*picks).all(axis=1).mean()),
            }


def _ours(index: Index, ids: IntArray, distances: FloatArray, k: int) -> dict[str, Ask]:
    pickers = {
        "greedy": OurPicker.over(index, records.CORRECTED_RULE),
        "greedy, marginal": OurPicker.over(index),
        "mmr": OurPicker.over(index, records.MMR_RULE),
    }
    points, memory = pickers["greedy"].points, pickers["greedy"].memory
    memory.fit_selection(ids.shape[1], k)
    rows, costs = ids.astype(np.int32), distances.astype(np.float32)

    def greedy(picker: OurPicker, query: int) -> IntArray:
        return picker.pick(rows[query], (ids[query], costs[query]), k, _DIVERSITY)

    def one_by_one(effective: EffectiveParameters, query: int) -> IntArray:
        among = CandidateSet(points, rows[query], costs[query], memory.scratch.selection)
        picks: IntArray = ids[query, select(among, effective, "cosine").places]
        return picks

    asks: dict[str, Ask] = {name: partial(greedy, picker) for name, picker in pickers.items()}
    for selector in ONE_BY_ONE:
        parameters = QueryParameters(k=k, selector=selector, diversity=_DIVERSITY)
        asks[selector] = partial(one_by_one, parameters.resolve(index.rows, "exact"))
    return asks


def _theirs(index: Index, queries: FloatArray, ids: IntArray, k: int) -> dict[str, Ask]:
    vectors: Any = index.engine._searcher.points
    vectors_of = [np.ascontiguousarray(vectors[rows]) for rows in ids]
    scores = [rows @ query for rows, query in zip(vectors_of, queries, strict=True)]
    asks: dict[str, Ask] = {}

    def pyversity(strategy: str, query: int) -> IntArray:
        dial = libraries.msd_dial(_DIVERSITY, k) if strategy == "msd" else _DIVERSITY
        places = libraries.pyversity(strategy, vectors_of[query], scores[query], k, dial)
        picks: IntArray = ids[query, places]
        return picks

    if not libraries.missing("pyversity"):
        asks |= {f"pyversity {item}": partial(pyversity, item) for item in ("msd", "mmr", "dpp")}
    return asks


BATCH_SIZES: Final = (2, 4, 16, 64)


@benchmark(
    "batches",
    points=Option(["10000", REAL, "300000", "1700000"], f"synthetic points, or {REAL}"),
    families=FAMILIES,
    batches=Option(4, "batches of each size"),
    k=Option(10, "results per query"),
)
def batch_times(options: Options) -> Iterator[Output]:
    """Time of a batch of rows, compared with the same rows one by one, in process on one thread.

    An exact search of dense points reads the points once for 16 rows, and so does a scan whose
    codes do not fit the caches. All other searches handle rows one by one. A batch is also answered
    in slices, as a server's worker divides it. The different ways take turns. The benchmark ends
    with an error if their results differ.
    """
    for source in options.points:
        points = load(source, options.batches * BATCH_SIZES[-1])
        yield Table(f"Batches, k = {options.k}: {points.name}", points.described())
        with threadpool_limits(1):
            yield from _rows(points, options)


def _rows(points: Points, options: Options) -> Iterator[Row]:
    """Yield the rows of each family with its search, then the last family's with exact search."""
    for family in options.families:
        index = Index.build(points.base, hash_family=family)
        search: Search = "auto" if family == "auto" else "tables" if family == "cells" else "scan"
        parameters = QueryParameters(search=search)
        searches: dict[str, Search] = {
            index.engine.resolve(parameters, points.queries).search: search
        }
        if family == options.families[-1]:
            searches.setdefault("exact", "exact")
        for name, search in searches.items():
            parameters = QueryParameters(k=options.k, search=search)
            for size in BATCH_SIZES:
                times = compare(index, parameters, points.queries, size, options.batches)
                alone, batch, slices = times.values()
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
    """Time batches of `size` rows in all ways; raises `RuntimeError` if the results differ."""
    ways = {"one by one": _one_by_one, "batch": _batch, "slices": _slices}

    def ask(way: Callable[..., IntArray], batch: int) -> IntArray:
        return way(index, parameters, queries[batch * size : (batch + 1) * size])

    asks = {name: partial(ask, way) for name, way in ways.items()}
    times = take_turns(asks, batches, size * parameters.k)
    first = times["one by one"].rows
    if any((item.rows != first).any() for item in times.values()):
        raise RuntimeError("a batch has other answers than its rows one by one")
    return times


def _one_by_one(index: Index, parameters: QueryParameters, rows: FloatArray) -> IntArray:
    return np.concatenate([index.engine.answer(row[None], parameters).ids[0] for row in rows])


def _batch(index: Index, parameters: QueryParameters, rows: FloatArray) -> IntArray:
    return index.engine.answer(rows, parameters).ids.astype(np.int64).ravel()


def _slices(index: Index, parameters: QueryParameters, rows: FloatArray) -> IntArray:
    pace, answers, answered_rows = Pace(rows, parameters.selector), [], 0
    if pace.stop() < len(rows):
        pace.set_shared_rows(index.engine.exact_together(rows, parameters))
    while answered_rows < len(rows):
        with pace.step() as stop:
            answers.append(index.engine.answer(rows[answered_rows:stop], parameters).ids.ravel())
        answered_rows = stop
    return np.concatenate(answers)
