"""Time of each selector alone, beside pyversity's and LangChain's of the same method.

All pick from the same candidates, nearest first, whose relevance is known, in turns on one thread.
Other libraries get the candidates' vectors side by side; ours read them where they lie in an index.
LangChain computes the relevance itself; `pip install langchain-core` lets it take part. "Same
picks" is the share of queries in which both picked the same points.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import others
from benchmarks.harness.datasets import REAL, load
from benchmarks.harness.runner import Option, Options, Output
from benchmarks.harness.tables import Row, Table
from benchmarks.harness.turns import Ask, take_turns
from divgrpc.index import Index
from divgrpc.kernels import greedy as selection
from divgrpc.kernels import records
from divgrpc.kernels.records import Objective
from divgrpc.parameters import QueryParameters
from divgrpc.search.memory import Memory
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import ONE_BY_ONE, select
from divgrpc.types import EffectiveParameters, FloatArray, IntArray

OPTIONS: Final = {
    "k": Option(10, "picks"),
    "queries": Option(200, "queries asked"),
    "candidates": Option([100, 1_000], "candidates"),
}
_DIVERSITY: Final = 0.3
# Selectors of ours, and the rivals with the same method.
_RIVALS: Final[Mapping[str, tuple[str, ...]]] = {
    "greedy, marginal": ("pyversity msd",),
    "max_sum": ("pyversity msd",),
    "mmr": ("pyversity mmr", "langchain mmr"),
    "dpp": ("pyversity dpp",),
}


def rows(options: Options) -> Iterator[Output]:
    """Yield a table for each number of candidates."""
    points = load(REAL, options.queries)
    index = Index.build(points.base, hash_family="lsh_div")
    for count in options.candidates:
        yield Table(f"Selectors, {options.k} of {count:,} candidates", points.described())
        with threadpool_limits(1):
            yield from _among(index, points.queries, count, options.k)


def _among(index: Index, queries: FloatArray, count: int, k: int) -> Iterator[Row]:
    nearest = index.query(queries, k=count, selector="nearest", search="exact", hash_limit=0)
    ours = _ours(index, nearest.ids, 2 - 2 * nearest.scores, k)
    timed = take_turns({**ours, **_theirs(index, queries, nearest.ids, k)}, len(queries), k)
    for name in ours:
        row = {"selector": name, "us": timed[name].microseconds}
        rivals = [rival for rival in _RIVALS.get(name, ()) if rival in timed]
        if not rivals:
            yield row
        for rival in rivals:
            ratio, interval = timed[rival].ratio(timed[name])
            picks = (np.sort(timed[each].rows, axis=1) for each in (name, rival))
            yield row | {
                "rival": rival,
                "rival us": timed[rival].microseconds,
                "times as fast": ratio,
                "95 %": interval,
                "same picks": float(np.equal(*picks).all(axis=1).mean()),
            }


def _ours(index: Index, ids: IntArray, distances: FloatArray, k: int) -> dict[str, Ask]:
    searcher: Any = index.engine._searcher
    count = ids.shape[1]
    memory = Memory(index.dims, 4, (index.dims, 256))
    memory.fit_selection(count, k)
    scratch = memory.scratch
    candidates = [
        CandidateSet(searcher._index.points, rows, far, scratch.selection)
        for rows, far in zip(ids.astype(np.int32), distances.astype(np.float32), strict=True)
    ]

    def one_by_one(effective: EffectiveParameters, query: int) -> IntArray:
        picked: IntArray = ids[query, select(candidates[query], effective, "cosine").places]
        return picked

    def greedy(rule: int, query: int) -> IntArray:
        among, picked, gains = candidates[query], scratch.picked[:k], np.empty(k, np.float32)
        relevance, keep_all = np.float32(1 - _DIVERSITY), records.NO_COPIES
        objective = Objective(k, relevance, rule, product=False, copy_limit=keep_all)
        output = (among.scratch, np.empty(0, np.int8), picked, gains)
        selection.greedy(among.points, among.rows, among.costs, count, objective, *output)
        chosen: IntArray = ids[query, picked]
        return chosen

    asks: dict[str, Ask] = {
        "greedy": partial(greedy, records.CORRECTED),
        "greedy, marginal": partial(greedy, records.MARGINAL),
        "mmr": partial(greedy, records.MMR),
    }
    for selector in ONE_BY_ONE:
        parameters = QueryParameters(k=k, selector=selector, diversity=_DIVERSITY)
        asks[selector] = partial(one_by_one, parameters.resolve(index.rows, "exact"))
    return asks


def _theirs(index: Index, queries: FloatArray, ids: IntArray, k: int) -> dict[str, Ask]:
    vectors: Any = index.engine._searcher.points
    gathered = [np.ascontiguousarray(vectors[rows]) for rows in ids]
    scores = [rows @ query for rows, query in zip(gathered, queries, strict=True)]
    asks: dict[str, Ask] = {}

    def pyversity(strategy: str, query: int) -> IntArray:
        dial = others.msd_dial(_DIVERSITY, k) if strategy == "msd" else _DIVERSITY
        places = others.pyversity(strategy, gathered[query], scores[query], k, dial)
        picked: IntArray = ids[query, places]
        return picked

    def langchain(query: int) -> IntArray:
        places = others.langchain_mmr(queries[query], gathered[query], k, _DIVERSITY)
        picked: IntArray = ids[query, places]
        return picked

    if not others.missing("pyversity"):
        asks |= {f"pyversity {each}": partial(pyversity, each) for each in ("msd", "mmr", "dpp")}
    if not others.missing("langchain_core"):
        asks["langchain mmr"] = langchain
    return asks
