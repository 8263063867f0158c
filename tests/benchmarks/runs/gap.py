"""Quality of single queries on real points: the gap in J that is closed, and recall by metric."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, get_args

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import truth
from benchmarks.harness.datasets import REAL, Points, load
from benchmarks.harness.runner import (
    FAMILIES,
    Option,
    Options,
    Output,
    Table,
    benchmark,
    take_turns,
)
from divgrpc.index import Index
from divgrpc.metrics import gap_closed
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, HashFamily, IntArray, Metric, Search, Variant

_VARIANTS: Final[tuple[Variant, ...]] = ("corrected", "marginal")
# Numbers of candidates to try above the default limit.
_WIDER: Final = (500, 1_000, 2_000)
_EXHAUSTIVE: Final = "all points, marginal"


@dataclass(frozen=True, eq=False)
class _Contestant:
    index: Index
    k: int
    search: Search
    variant: Variant
    candidates: int | None = None

    def pick(self, queries: FloatArray, dial: float, number: int) -> IntArray:
        parameters = QueryParameters(
            k=self.k,
            diversity=dial,
            variant=self.variant,
            search=self.search,
            candidates_limit=self.candidates,
        )
        rows: IntArray = self.index.engine.answer(queries[number : number + 1], parameters).ids[0]
        return rows


@benchmark(
    "quality",
    k=Option(10, "results per query"),
    queries=Option(400, "queries reported"),
    tuning=Option(100, "queries to set dials with"),
    diversity=Option([0.1, 0.3, 0.5], "targets"),
    families=FAMILIES,
)
def quality(options: Options) -> Iterator[Output]:
    """Share of the gap in J that is closed and time per query, against exhaustive greedy selection.

    Every combination of family, search and variant answers at the dial that is best for J on other
    queries. Queries run one at a time on one thread, and combinations take turns. The same answers
    give the time and J. Ratios are computed within blocks of queries, with a bootstrap interval.
    """
    points = load(REAL, options.queries, options.tuning)
    indexes = {family: Index.build(points.base, hash_family=family) for family in options.families}
    contestants = dict(_contestants(indexes, options.k))
    with threadpool_limits(1):
        for diversity in options.diversity:
            yield Table(f"Gap closed at diversity {diversity:g}", points.described())
            yield from _at(points, contestants, options.k, diversity)


def _contestants(indexes: Mapping[HashFamily, Index], k: int) -> Iterator[tuple[str, _Contestant]]:
    """Yield all combinations of family, search and variant.

    The first index is also searched exactly and with wider limits.
    """
    first = next(iter(indexes.values()))
    for variant in _VARIANTS:
        yield f"any, exact, {variant}", _Contestant(first, k, "exact", variant)
    for family, index in indexes.items():
        family_built = str(index.info.parameters["hash_family"])
        name = f"auto ({family_built})" if family == "auto" else family
        for search in get_args(Search):
            # If `auto` stands for a search, this search is also listed under its own name.
            if search == "auto" or (search != "exact" and family != "auto"):
                kind = f"auto ({index.info.auto_search})" if search == "auto" else search
                for variant in _VARIANTS:
                    yield f"{name}, {kind}, {variant}", _Contestant(index, k, search, variant)
    for limit in _WIDER:
        if limit < first.rows:
            contestant = _Contestant(first, k, "scan", "marginal", limit)
            yield f"{next(iter(indexes))}, scan of {limit:,}, marginal", contestant


def _at(
    points: Points, contestants: Mapping[str, _Contestant], k: int, diversity: float
) -> Iterator[Output]:
    dials = {
        name: _best_dial(contestant, points, diversity) for name, contestant in contestants.items()
    }
    asks: dict[str, Callable[[int], IntArray]] = {
        _EXHAUSTIVE: lambda number: truth.greedy_of_one(
            points.base, points.queries[number], k, diversity
        )
    }
    for name, contestant in contestants.items():
        asks[name] = partial(contestant.pick, points.queries, dials[name])
    times = take_turns(asks, len(points.queries), k)

    def value(rows: IntArray) -> float:
        return truth.mean_objective(points.base, points.queries, rows, diversity)

    nearest = value(truth.nearest(points.base, points.queries, k)[0])
    best = value(times[_EXHAUSTIVE].rows)
    for name, answers in times.items():
        exact = "any, exact, corrected" if name.endswith("corrected") else "any, exact, marginal"
        faster, interval = times[exact].ratio(answers)
        objective = value(answers.rows)
        yield {
            "family, search, variant": name,
            "dial": dials.get(name, diversity),
            "J": objective,
            "gap closed": gap_closed(objective, nearest, best),
            "us/query": answers.microseconds,
            "x exhaustive": times[_EXHAUSTIVE].ratio(answers)[0],
            "x exact": faster,
            "95 %": interval,
        }


def _best_dial(contestant: _Contestant, points: Points, diversity: float) -> float:
    def value_at(dial: float) -> float:
        picks = [contestant.pick(points.tuning, dial, i) for i in range(len(points.tuning))]
        return truth.mean_objective(points.base, points.tuning, np.array(picks), diversity)

    return truth.best_dial(diversity, value_at)


_K: Final = 10
_SEARCHES: Final[tuple[Search, ...]] = ("auto", "scan", "tables")


@benchmark(
    "metrics",
    queries=Option(200, "queries reported"),
    families=FAMILIES,
)
def recall_by_metric(options: Options) -> Iterator[Output]:
    """Recall of every family under every metric, for vectors of very different lengths.

    Points and queries get lengths from 0.1 to 10, spread evenly in the logarithm. Recall is the
    share of the true ten nearest points among the results of `nearest` at default limits. Times are
    medians of single queries on one thread.
    """
    points = load(REAL, options.queries)
    random = np.random.default_rng(0)
    base, queries = (_stretched(rows, random) for rows in (points.base, points.queries))
    yield Table(f"Recall at {_K} by metric", points.described())
    for metric in get_args(Metric):
        for family in options.families:
            index = Index.build(base, metric=metric, hash_family=family)
            family_built = str(index.info.parameters["hash_family"])
            name = family if family == family_built else f"{family} ({family_built})"
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
            begin = time.perf_counter()
            answers.append(index.query(query, k=_K, selector="nearest", search=search).ids[0])
            seconds.append(time.perf_counter() - begin)
        figures[f"{search}: recall"] = truth.recall(answers, near)
        figures[f"{search}: us"] = statistics.median(seconds) * 1e6
    return figures
