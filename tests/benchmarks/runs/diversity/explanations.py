"""Explanations and reports: what they add to a query, and whether picks can be computed anew."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.harness.datasets import Manifold, topics
from benchmarks.harness.runner import Output, Row, Table
from divgrpc.index import Index
from divgrpc.metrics import recompute_picks
from divgrpc.parameters import QueryParameters
from divgrpc.search.selectors import select_different
from divgrpc.types import FloatArray

_SIZES: Final = (10, 100)
_ROUNDS: Final = 3
_PICKS_GOAL: Final = 10_000


def rows(small: bool) -> Iterator[Output]:  # as all parts have it
    """Yield the tables of costs and of picks that were computed anew."""
    manifold = Manifold.of()
    count, query_count = (3_000, 5) if small else (1_000_000, 200)
    sets: list[tuple[str, FloatArray, FloatArray]] = [
        (f"{count:,} points", manifold.points(count), manifold.queries(query_count))
    ]
    if not small:
        # 500 points are queries, and are left out.
        real = topics.load(("cifar100_dense256",))
        sets += [(data.name, data.points[500:], data.points[:500:5]) for data in real]
    yield Table(
        "Time that explanations and reports add",
        {"goals": "explain at most 1 of selection, report at most .05 of a query"},
    )
    for name, points, queries in sets:
        index = Index.build(points)
        for k in _SIZES:
            yield {"set": name, "k": k, **_costs(index, queries, k)}
    yield Table("Picks computed anew from their explanations")
    yield _recomputed(*sets[0], 20 if small else _PICKS_GOAL)


def _costs(index: Index, queries: FloatArray, k: int) -> Row:
    """Return medians of the CPU times of single queries, with what each option adds."""
    options: dict[str, dict[str, Any]] = {
        "query": {},
        "list": {"list_collapsed": True},
        "explain": {"explain": True},
        "report": {"with_report": True},
    }
    times: dict[str, list[float]] = {name: [] for name in (*options, "selection")}
    select = _selection(index, k)
    for _ in range(_ROUNDS):
        for number, query in enumerate(queries):
            # What runs just after a selection takes longer, so each option has its turn there.
            turn = number % len(options)
            for name, option in [*options.items()][turn:] + [*options.items()][:turn]:
                # The pages that a query reads are in the caches for all options alike.
                index.query(query, k=k, **option)
                times[name].append(_seconds(partial(index.query, query, k=k, **option)))
            times["selection"].append(select(query))
    us = {name: 1e6 * median(seconds) for name, seconds in times.items()}
    return {
        "query us": us["query"],
        "selection us": us["selection"],
        "list_collapsed adds us": us["list"] - us["query"],
        "explain adds us": us["explain"] - us["query"],
        "of selection": (us["explain"] - us["query"]) / us["selection"],
        "report adds us": us["report"] - us["query"],
        "of query": (us["report"] - us["query"]) / us["query"],
    }


def _selection(index: Index, k: int) -> Callable[[FloatArray], float]:
    """Return a function that measures the selection from the candidates of a query."""
    engine = index.engine
    effective = engine.resolve(QueryParameters(k=k))
    limited = QueryParameters(
        k=k, hash_limit=effective.hash_limit, candidates_limit=effective.candidates_limit
    )
    plan = engine.plan_candidates(limited, effective.duplicate_threshold, dense=True)
    searcher = engine.searcher

    def measure(query: FloatArray) -> float:
        row = (query / np.linalg.norm(query))[np.newaxis].astype(np.float32)
        candidates, _ = searcher.find_candidates(row, plan, None)
        pool = len(candidates)
        return _seconds(
            lambda: select_different(
                candidates, pool, plan.copy_limit, plan.parameters, searcher.metric
            )
        )

    return measure


def _recomputed(name: str, points: FloatArray, queries: FloatArray, least: int) -> Row:
    """Return how many picks the function `recompute_picks` confirms."""
    index = Index.build(points[:20_000])
    picks = confirmed = 0
    rng = np.random.default_rng(0)
    while picks < least:
        query = queries[rng.integers(len(queries))] + 0.1 * rng.normal(size=queries.shape[1])
        result = index.query(query.astype(np.float32), explain=True)
        values, rivals = recompute_picks(
            result, 0, "cosine", query, vectors=points[result.ids[0].astype(np.int64)],
            displaced_vectors=points[result.explanations[0].displaced_ids.astype(np.int64)],
        )  # fmt: skip
        scores = result.selection_scores[0, : len(values)]
        same = (np.abs(values - scores) < 1e-4) & (rivals < values + 1e-4)
        picks, confirmed = picks + len(values), confirmed + int(same.sum())
    return {"set": name, "picks": picks, "confirmed": confirmed, "goal": picks}


def _seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
