"""Configurations that compete in `peers`: what they pick, and how much of a gap that closes.

A contestant finds candidates at some effort and picks k of them at some dial. The dial that serves
J best with so many candidates is set on exact neighbours of queries that are not reported, and is
the same for everyone with that selector. Candidates start where exact ones just fail to close the
gap; effort rises until it is closed: more only costs more.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, Protocol, Self

import numpy as np

from benchmarks import truth
from benchmarks.datasets import Points
from benchmarks.finders import Effort, Finder
from benchmarks.objective import best_dial, mean_mmr, mean_objective
from benchmarks.rivals import Follower
from benchmarks.turns import Asking
from divgrpc.index import Index
from divgrpc.metrics import gap_closed, h_score, judge, mean
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search, Selector

# J, or what MMR itself maximises: then the dial is the target, on both sides.
Objective = Literal["J", "MMR"]
FETCHED: Final = (25, 50, 75, 100, 150, 200, 300, 500, 1_000, 2_000, 4_000)
# Hashed points for each candidate.
HASHED: Final = (1, 1.5, 2, 3, 4, 8, 16)
# Of the probes that Build tuned.
PROBED: Final = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4)
# Numbers of candidates tried, the first of them too few.
_TRIED: Final = 5
# Of the gap: what other queries may close more than those that dials are set on.
_MARGIN: Final = 0.01
# A configuration that takes so many times what the fastest of its kind does goes no further.
_HOPELESS: Final = 3.0


class Contestant(Protocol):
    """One way from a query to k picks, built once."""

    @property
    def name(self) -> str:
        """Of its kind."""

    @property
    def built(self) -> str:
        """What it stands on, by the name under which building was recorded."""

    @property
    def k(self) -> int:
        """How many it picks."""

    @property
    def tuned(self) -> Follower:
        """What dials are set with: what picks, or a faster one with the same picks."""

    def ladders(self) -> Sequence[Sequence[Effort]]:
        """Return efforts to try, each ladder upwards."""

    def describe(self, effort: Effort, count: int) -> str:
        """Return what stands in a table."""

    def pick(self, query: FloatArray, count: int, effort: Effort, dial: float) -> IntArray:
        """Return the k rows for a query (d,)."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A finder, and what picks of its candidates."""

    finder: Finder
    follower: Follower
    k: int
    twin: Follower | None = None

    @property
    def tuned(self) -> Follower:
        """What picks, or its twin."""
        return self.twin or self.follower

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.finder.kind} + {self.follower.name}"

    @property
    def built(self) -> str:
        """The finder's."""
        return f"{self.finder.kind}, {self.finder.told}"

    def ladders(self) -> Sequence[Sequence[Effort]]:
        """Return the finder's."""
        return self.finder.ladders()

    def describe(self, effort: Effort, count: int) -> str:
        """Say it as the finder does."""
        return f"{self.finder.told}, {self.finder.describe(effort, count)}, {count:,} fetched"

    def pick(self, query: FloatArray, count: int, effort: Effort, dial: float) -> IntArray:
        """Return the k rows for a query (d,)."""
        found = self.finder.nearest(query, count, effort)
        return self.follower.pick(query, found, self.k, dial)


@dataclass(frozen=True, eq=False)
class Ours:
    """divgrpc in process: an index of some family, built under a name, and a search."""

    name: str
    built: str
    index: Index
    tuned: Follower
    k: int
    search: Search = "auto"
    selector: Selector = "greedy"

    def ladders(self) -> Sequence[Sequence[Effort]]:
        """Hashed points for each candidate go up, or probes do for each number of them."""
        info = self.index.info
        search = info.auto_search if self.search == "auto" else self.search
        if search == "exact":
            return [[(1.0,)]]
        if search != "tables":
            return [[(float(hashed),) for hashed in HASHED]]
        probes = sorted({max(1, round(part * info.n_probes)) for part in PROBED})
        return [[(float(hashed), float(each)) for each in probes] for hashed in HASHED]

    def describe(self, effort: Effort, count: int) -> str:
        """Name the search, both limits, and the probes of tables."""
        searched = f"auto ({self.index.info.auto_search})" if self.search == "auto" else self.search
        hashed = f" of {round(effort[0] * count):,}" if "exact" not in searched else ""
        probed = f"{effort[1]:,.0f} probes" if len(effort) > 1 else ""
        built = self.built.removeprefix(self.name).removeprefix(", ")
        return ", ".join(filter(None, (built, searched, f"{count:,}{hashed}", probed)))

    def pick(self, query: FloatArray, count: int, effort: Effort, dial: float) -> IntArray:
        """Return the k rows for a query (d,)."""
        rows: IntArray = self.index.engine.answer(query[None], self.told(count, effort, dial)).ids[
            0
        ]
        return rows

    @cache  # noqa: B019  # as long as the run
    def told(self, count: int, effort: Effort, dial: float) -> QueryParameters:
        """Return the query that `pick` asks."""
        return QueryParameters(
            k=self.k,
            diversity=dial,
            selector=self.selector,
            variant="marginal",
            search=self.search,
            candidates_limit=count,
            hash_limit=min(self.index.rows, round(effort[0] * count)),
            n_probes=int(effort[1]) if len(effort) > 1 else None,
        )


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries (nq, d), and the objective of their nearest neighbours and of the exhaustive pick."""

    base: FloatArray
    queries: FloatArray
    diversity: float
    objective: Objective
    nearest: float
    exhaustive: float

    @classmethod
    def of(
        cls, base: FloatArray, queries: FloatArray, k: int, diversity: float, objective: Objective
    ) -> Self:
        """Take both ends of the scale for k picks."""
        best = truth.greedy if objective == "J" else truth.mmr
        told = (base, queries, diversity, objective)
        ends = truth.nearest(base, queries, k)[0], best(base, queries, k, diversity)
        return cls(*told, *(cls(*told, 0, 0).value(rows) for rows in ends))

    def value(self, rows: IntArray) -> float:
        """Return the mean objective of picks (nq, k), the lower the better."""
        measure = mean_objective if self.objective == "J" else mean_mmr
        return measure(self.base, self.queries, rows, self.diversity)

    def gap(self, rows: IntArray) -> float:
        """Return the gap that picks (nq, k) close."""
        return gap_closed(self.value(rows), self.nearest, self.exhaustive)


@dataclass(frozen=True, eq=False)
class Entry:
    """One configuration at its dial, and the time a query took while J was taken."""

    name: str
    configuration: str
    built: str
    count: int
    effort: Effort
    dial: float
    gap: float
    h: float
    roughly: float
    ask: Asking = field(repr=False)


@dataclass(frozen=True, eq=False)
class Target:
    """The gap that all have to close at `diversity` for k picks; `pool` are exact candidates."""

    k: int
    wanted: float
    points: Points
    reported: Asked
    tuning: Asked
    pool: truth.Found
    _dials: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, points: Points, k: int, wanted: float, at: tuple[float, Objective]) -> Self:
        """Take both ends, and the exact neighbours of the tuning queries."""
        asked = [
            Asked.of(points.base, queries, k, *at) for queries in (points.queries, points.tuning)
        ]
        most = max(count for count in FETCHED if count <= max(k, len(points.base) // 2))
        pool = truth.nearest(points.base, points.tuning, most)
        return cls(k, wanted, points, asked[0], asked[1], pool)

    def dial(self, follower: Follower, count: int) -> tuple[float, float]:
        """Return the dial for so many exact candidates, and the gap it closes of tuning queries."""
        key = (follower.name, count)
        if key not in self._dials:
            gap = cache(lambda dial: self._tuned(follower, count, dial))
            dial = diversity = self.tuning.diversity
            if self.tuning.objective == "J":
                dial = best_dial(follower.centre(diversity, self.k), lambda dial: -gap(dial))
            self._dials[key] = (dial, gap(dial))
        return self._dials[key]

    def _tuned(self, follower: Follower, count: int, dial: float) -> float:
        rows = [
            follower.pick(query, (rows[:count], far[:count]), self.k, dial)
            for query, rows, far in zip(self.tuning.queries, *self.pool, strict=True)
        ]
        return self.tuning.gap(np.array(rows))

    def counts(self, follower: Follower) -> list[int]:
        """Return how many candidates to try: from too few on, or what exact ones do most with."""
        fit = [count for count in FETCHED if self.k <= count <= self.pool[0].shape[1]]
        gaps: list[float] = []
        for count in fit:
            gaps.append(self.dial(follower, count)[1])
            if gaps[-1] >= self.wanted - _MARGIN:
                first = max(0, len(gaps) - 2)
                return fit[first : first + _TRIED]
        return [fit[int(np.argmax(gaps))]]

    def entry(self, contestant: Contestant, count: int, effort: Effort) -> Entry | None:
        """Ask the reported queries; None where fewer than k are found for one of them."""
        queries, dial = self.reported.queries, self.dial(contestant.tuned, count)[0]

        def ask(number: int) -> IntArray:
            return contestant.pick(queries[number], count, effort, dial)

        begun = time.perf_counter()
        picks = [ask(number) for number in range(len(queries))]
        taken = (time.perf_counter() - begun) / len(queries)
        if min(map(len, picks)) < self.k or min(map(min, picks)) < 0:
            return None
        rows = np.array(picks)
        told = contestant.describe(effort, count)
        gap, h = self.reported.gap(rows), self.h(rows)
        return Entry(
            contestant.name,
            told,
            contestant.built,
            count,
            effort,
            dial,
            gap,
            h,
            taken * 1e6,
            ask,
        )

    def over_all(
        self, name: str, rows: IntArray, dial: float, pick: Callable[[FloatArray], IntArray]
    ) -> Entry:
        """Return what picks among all points, whose `rows` (nq, k) are known."""
        gap, h, queries = self.reported.gap(rows), self.h(rows), self.reported.queries
        return Entry(
            name,
            "",
            "",
            len(self.points.base),
            (),
            dial,
            gap,
            h,
            np.inf,
            lambda number: pick(queries[number]),
        )

    def h(self, rows: IntArray) -> float:
        """Return h of picks (nq, k) for the reported queries; NaN where there are no labels."""
        if self.points.labels is None:
            return float("nan")
        return mean(h_score(judge(rows, self.points.asked, self.points.labels)))

    def entries(self, contestant: Contestant) -> Iterator[Entry]:
        """Yield configurations: effort rises until the gap is closed, or for too long."""
        least = np.inf
        for count in self.counts(contestant.tuned):
            for ladder in contestant.ladders():
                for effort in ladder:
                    entry = self.entry(contestant, count, effort)
                    if entry is None:
                        continue
                    yield entry
                    if entry.gap >= self.wanted:
                        least = min(least, entry.roughly)
                    if entry.gap >= self.wanted or entry.roughly > _HOPELESS * least:
                        break
