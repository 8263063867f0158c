"""Each selector alone, beside pyversity's and LangChain's where they have the same method.

All get the same candidates, nearest first, with their relevance computed, and are asked in turns on
one thread. The rivals get the candidates' vectors side by side, and pyversity is told that they are
unit rows where it lets one say so; ours read them where they lie in an index. LangChain computes
the relevance itself and is not part of the project's environment: `pip install langchain-core`
lets it take part.
"""

import argparse
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import datasets, rivals
from benchmarks.tables import show, table
from benchmarks.turns import Asking, Timed, take_turns
from divgrpc.index import Index
from divgrpc.kernels import greedy as selection
from divgrpc.kernels import records
from divgrpc.kernels.records import Objective
from divgrpc.parameters import QueryParameters
from divgrpc.search.memory import Memory
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import ONE_BY_ONE, select
from divgrpc.types import EffectiveParameters, FloatArray, IntArray
from divgrpc.warmup import warm_kernels

_DIVERSITY: Final = 0.3
# Which of ours, by which of the rivals'.
_SAME: Final[Mapping[str, tuple[str, ...]]] = {
    "greedy, marginal": ("pyversity msd",),
    "max_sum": ("pyversity msd",),
    "mmr": ("pyversity mmr", "langchain mmr"),
    "dpp": ("pyversity dpp",),
}


@dataclass(frozen=True)
class Row:
    """One selector on so many candidates, and one rival's time where there is one.

    `same` is the share of queries in which both picked the same points.
    """

    candidates: int
    selector: str
    microseconds: float
    rival: str | None = None
    rival_microseconds: float | None = None
    faster: float | None = None
    same: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--k", type=int, default=10, help="picks (default 10)")
    parser.add_argument("--queries", type=int, default=200, help="queries asked (default 200)")
    parser.add_argument("--candidates", type=int, nargs="+", default=[100, 1000])


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    points = datasets.load(arguments.queries, 0)
    show(f"\n## Selectors alone: k = {arguments.k} on {points.name}, {points.base.shape[1]} dims\n")
    warm_kernels()
    index = Index.build(points.base, hash_family="lsh_div")
    rows: list[Row] = []
    with threadpool_limits(1):
        for count in arguments.candidates:
            rows += _among(index, points.queries, count, arguments.k)
    show(_drawn(rows))
    for name in missing():
        show(f"\n{name} is not installed and does not take part")
    return {"data": points.described(), "k": arguments.k, "rows": [asdict(row) for row in rows]}


def missing() -> list[str]:
    """Return which rivals are not installed."""
    names = ("pyversity", "langchain_core")
    return [name for name in names if importlib.util.find_spec(name) is None]


def _among(index: Index, queries: FloatArray, count: int, k: int) -> list[Row]:
    nearest = index.query(queries, k=count, selector="nearest", search="exact", hash_limit=0)
    askings: dict[str, Asking] = dict(_ours(index, nearest.ids, 2 - 2 * nearest.scores, k))
    askings |= _rivals(index, queries, nearest.ids, k)
    timed = take_turns(askings, len(queries), k)
    rows = []
    for name, ours in timed.items():
        if " " in name.split(",")[0]:
            continue
        against = [rival for rival in _SAME.get(name, ()) if rival in timed]
        rows += [_row(count, name, ours, rival, timed[rival]) for rival in against]
        if not against:
            rows.append(Row(count, name, ours.microseconds))
    return rows


def _row(count: int, name: str, ours: Timed, rival: str, theirs: Timed) -> Row:
    same = np.sort(ours.rows, axis=1) == np.sort(theirs.rows, axis=1)
    return Row(
        count,
        name,
        ours.microseconds,
        rival,
        theirs.microseconds,
        theirs.microseconds / ours.microseconds,
        float(same.all(axis=1).mean()),
    )


def _ours(index: Index, ids: IntArray, distances: FloatArray, k: int) -> dict[str, Asking]:
    searcher: Any = index.engine._searcher
    count = ids.shape[1]
    memory = Memory(index.dims, 4, (index.dims, 256))
    memory.fit_selection(count, k)
    scratch = memory.scratch
    candidates = [
        CandidateSet(searcher._index.points, rows, far, scratch.selection)
        for rows, far in zip(ids.astype(np.int32), distances.astype(np.float32), strict=True)
    ]

    def one_by_one(wanted: EffectiveParameters, query: int) -> IntArray:
        picked: IntArray = ids[query, select(candidates[query], wanted, "cosine").places]
        return picked

    def greedy(rule: int, query: int) -> IntArray:
        among, picked, gains = candidates[query], scratch.picked[:k], np.empty(k, np.float32)
        relevance, keep_all = np.float32(1 - _DIVERSITY), records.NO_COPIES
        objective = Objective(k, relevance, rule, product=False, copy_limit=keep_all)
        room = (among.scratch, np.empty(0, np.int8), picked, gains)
        selection.greedy(among.points, among.rows, among.costs, count, objective, *room)
        chosen: IntArray = ids[query, picked]
        return chosen

    found: dict[str, Asking] = {
        "greedy": partial(greedy, records.CORRECTED),
        "greedy, marginal": partial(greedy, records.MARGINAL),
        "mmr": partial(greedy, records.MMR),
    }
    for selector in ONE_BY_ONE:
        asked = QueryParameters(k=k, selector=selector, diversity=_DIVERSITY)
        found[selector] = partial(one_by_one, asked.resolve(index.rows, "exact"))
    return found


def _rivals(index: Index, queries: FloatArray, ids: IntArray, k: int) -> dict[str, Asking]:
    vectors: Any = index.engine._searcher.points
    gathered = [np.ascontiguousarray(vectors[rows]) for rows in ids]
    scores = [rows @ query for rows, query in zip(gathered, queries, strict=True)]
    absent, found = missing(), dict[str, Asking]()
    if "pyversity" not in absent:
        for strategy in ("msd", "mmr", "dpp"):
            asked = _pyversity(strategy, k)
            found[f"pyversity {strategy}"] = partial(_asked, asked, ids, gathered, scores)
    if "langchain_core" not in absent:
        from langchain_core.vectorstores.utils import maximal_marginal_relevance

        def langchain(query: int) -> IntArray:
            picked = maximal_marginal_relevance(
                queries[query], list(gathered[query]), 1 - _DIVERSITY, k
            )
            chosen: IntArray = ids[query, picked]
            return chosen

        found["langchain mmr"] = langchain
    return found


def _asked(
    pick: Callable[[FloatArray, FloatArray], IntArray],
    ids: IntArray,
    gathered: list[FloatArray],
    scores: list[FloatArray],
    query: int,
) -> IntArray:
    picked: IntArray = ids[query, pick(gathered[query], scores[query])]
    return picked


def _pyversity(strategy: str, k: int) -> Callable[[FloatArray, FloatArray], IntArray]:
    import pyversity

    dial = rivals.centre("msd", _DIVERSITY, k) if strategy == "msd" else _DIVERSITY
    told = {} if strategy == "dpp" else {"normalize": False}

    def pick(embeddings: FloatArray, scores: FloatArray) -> IntArray:
        chosen = pyversity.diversify(
            embeddings=embeddings,
            scores=scores,
            k=k,
            strategy=pyversity.Strategy(strategy),
            diversity=dial,
            **told,
        )
        picked: IntArray = chosen.indices
        return picked

    return pick


def _drawn(rows: list[Row]) -> str:
    heads = ["candidates, selector", "us", "rival", "rival us", "times as fast", "same picks"]
    return table(
        heads,
        [
            (
                f"{row.candidates:,}, {row.selector}",
                f"{row.microseconds:,.0f}",
                row.rival or "",
                f"{row.rival_microseconds:,.0f}" if row.rival_microseconds else "",
                f"{row.faster:.1f}" if row.faster else "",
                f"{row.same:.2f}" if row.same is not None else "",
            )
            for row in rows
        ],
    )
