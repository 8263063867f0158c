"""Configurations of both sides that compete in `peers`: what they pick, and what gap that closes.

Candidates fetched rise until the gap is closed far enough: more only cost more. A configuration is
tried at the dial that serves J best on queries that are not reported.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Self

import numpy as np

from benchmarks import rivals
from benchmarks.exhaustive import Everything
from benchmarks.objective import best_dial, mean_objective
from benchmarks.rivals import Graph, Strategy
from benchmarks.turns import Asking
from divgrpc.index import Index
from divgrpc.metrics import gap_closed
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray

FETCHED: Final = (50, 75, 100, 150, 200, 300, 500, 1_000, 2_000, 4_000)
# Hashed points for each candidate.
HASHED: Final = (1, 2, 4, 8, 16)
# ef for each neighbour that is fetched.
EF: Final = (1.0, 1.5, 2.0, 4.0)
EXACT: Final = "exact pass"
# Of the gap: what other queries may close more than those that dials are set on.
_MARGIN: Final = 0.02

# From queries (nq, d), the number of one and a dial to the rows of its k picks.
Pick = Callable[[FloatArray, int, float], IntArray]


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries (nq, d), and J of their nearest neighbours and of the exhaustive greedy."""

    base: FloatArray
    queries: FloatArray
    diversity: float
    nearest: float
    exhaustive: float

    @classmethod
    def of(cls, everything: Everything, queries: FloatArray, k: int, diversity: float) -> Self:
        """Take both ends of the scale for k picks."""
        base = everything.points
        nearest = np.array([_nearest(base, query, k) for query in queries])
        greedy = np.array([everything.greedy(query, k, diversity) for query in queries])
        ends = (mean_objective(base, queries, rows, diversity) for rows in (nearest, greedy))
        return cls(base, queries, diversity, *ends)

    def gap(self, pick: Pick, dial: float) -> float:
        """Return the gap that picks at that dial close."""
        rows = np.array([pick(self.queries, number, dial) for number in range(len(self.queries))])
        value = mean_objective(self.base, self.queries, rows, self.diversity)
        return gap_closed(value, self.nearest, self.exhaustive)


@dataclass(frozen=True, eq=False)
class Target:
    """The gap that both sides have to close at `diversity` for k picks."""

    k: int
    diversity: float
    wanted: float
    reported: Asked
    tuning: Asked

    def dial(self, pick: Pick, middle: float) -> float:
        """Return the dial near `middle` that closes most of the gap of the tuning queries."""
        return best_dial(middle, lambda dial: -self.tuning.gap(pick, dial))

    def entry(self, pick: Pick, dial: float, name: str, configuration: str, built: str) -> "Entry":
        """Ask the reported queries and return what came of it."""
        begun = time.perf_counter()
        gap = self.reported.gap(pick, dial)
        taken = (time.perf_counter() - begun) / len(self.reported.queries)
        queries = self.reported.queries

        def ask(number: int) -> IntArray:
            return pick(queries, number, dial)

        return Entry(name, configuration, built, dial, gap, taken * 1e6, ask)


@dataclass(frozen=True, eq=False)
class Entry:
    """One configuration at its dial, and the time a query took while J was taken."""

    name: str
    configuration: str
    built: str
    dial: float
    gap: float
    roughly: float
    ask: Asking


def ours(indexes: Mapping[str, Index], target: Target) -> Iterator[Entry]:
    """Yield configurations of every family, and of the exact search."""
    for name, index in indexes.items():
        for hashed in HASHED if name != EXACT else (1,):
            for fetched in FETCHED:
                if hashed * fetched > index.rows:
                    break
                entry = _our_entry(name, index, fetched, hashed * fetched, target)
                yield entry
                if entry.gap >= target.wanted:
                    break


def _our_entry(name: str, index: Index, fetched: int, hashed: int, target: Target) -> Entry:
    @cache
    def parameters_at(dial: float) -> QueryParameters:
        return QueryParameters(
            k=target.k,
            diversity=dial,
            variant="marginal",
            search="exact" if name == EXACT else "auto",
            candidates_limit=fetched,
            hash_limit=hashed,
        )

    def pick(queries: FloatArray, number: int, dial: float) -> IntArray:
        result = index.answer(queries[number : number + 1], parameters_at(dial))
        rows: IntArray = result.ids[0]
        return rows

    told = f"{fetched:,}" if name == EXACT else f"{fetched:,} of {hashed:,} hashed"
    return target.entry(pick, target.dial(pick, target.diversity), name, told, name)


def theirs(graphs: Sequence[Graph], target: Target) -> Iterator[Entry]:
    """Yield configurations of every graph and strategy.

    Dials are set on exact neighbours, whatever the graph; where those do not close the gap with so
    many fetched, no graph is tried.
    """
    for strategy in rivals.STRATEGIES:
        fetched = dict(_promising(strategy, target))
        for graph in graphs:
            for ef in EF:
                for count, dial in fetched.items():
                    entry = _their_entry(graph, strategy, (count, round(ef * count)), dial, target)
                    yield entry
                    if entry.gap >= target.wanted:
                        break


def _promising(strategy: Strategy, target: Target) -> Iterator[tuple[int, float]]:
    """Yield how many to fetch, and the dial, where exact neighbours close the gap or nearly."""
    base, k = target.tuning.base, target.k
    nearest = {
        number: _nearest(base, query, FETCHED[-1])
        for number, query in enumerate(target.tuning.queries)
    }
    for count in FETCHED:
        # A graph asked for most of its points does not find so many.
        if 2 * count > len(base):
            break

        def pick(queries: FloatArray, number: int, dial: float, count: int = count) -> IntArray:
            rows = nearest[number][:count]
            return rivals.diversify(base, queries[number], rows, k=k, strategy=strategy, dial=dial)

        dial = target.dial(pick, rivals.centre(strategy, target.diversity, k))
        if target.tuning.gap(pick, dial) >= target.wanted - _MARGIN:
            yield count, dial


def _their_entry(
    graph: Graph, strategy: Strategy, reach: tuple[int, int], dial: float, target: Target
) -> Entry:
    count, ef = reach

    def pick(queries: FloatArray, number: int, dial: float) -> IntArray:
        query = queries[number]
        rows = graph.nearest(query, count, ef)
        return rivals.diversify(graph.base, query, rows, k=target.k, strategy=strategy, dial=dial)

    told = f"{graph.name}, ef {ef:,}, {count:,} fetched"
    return target.entry(pick, dial, f"{rivals.NAME} + {strategy.upper()}", told, graph.name)


def _nearest(base: FloatArray, query: FloatArray, count: int) -> IntArray:
    order: IntArray = np.argsort(-(base @ query), kind="stable")[:count]
    return order
