"""Contestants at equal quality: what they pick, how much of a gap that closes, and the finalists.

A contestant finds candidates at some effort and picks k of them at some dial. The dial that serves
J best with so many candidates is set on exact neighbours of queries that are not reported, and is
the same for every contestant with that selector. Candidates start where exact ones just fail to
close the gap; effort rises until the gap is closed, as more only costs more.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, Self, TypeAlias

import numpy as np

from benchmarks.harness import truth
from benchmarks.harness.datasets import Points
from benchmarks.harness.libraries import Effort, Finder, Ladders, Picker
from benchmarks.harness.runner import Ask
from benchmarks.harness.truth import Neighbours, best_dial, mean_mmr, mean_objective
from divgrpc.index import Index
from divgrpc.metrics import gap_closed, h_score, judge, mean
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search, Selector

# J, or what MMR maximises; for MMR the dial is the target on both sides.
Objective: TypeAlias = Literal["J", "MMR"]
_CANDIDATES: Final = (25, 50, 75, 100, 150, 200, 300, 500, 1_000, 2_000, 4_000)
# Hashed points for each candidate, and shares of the probes that Build tuned.
_HASHED: Final = (1, 1.5, 2, 3, 4, 8, 16)
_PROBED: Final = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4)
# Numbers of candidates tried, the first of them too few.
_TRIED: Final = 5
# How much more of the gap other queries may close than those that dials are set on.
_MARGIN: Final = 0.01
# A configuration that takes this many times the fastest of its kind is not pursued.
_HOPELESS: Final = 3.0


@dataclass(frozen=True, eq=False)
class Pair:
    """A finder, and what picks of its candidates; a `twin` picks the same, faster."""

    finder: Finder
    picker: Picker
    k: int
    twin: Picker | None = None

    @property
    def tuned(self) -> Picker:
        """The picker, or its twin."""
        return self.twin or self.picker

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.finder.kind} + {self.picker.name}"

    @property
    def source(self) -> Finder:
        """The finder that was built."""
        return self.finder

    def ladders(self) -> Ladders:
        """Return the finder's."""
        return self.finder.ladders()

    def describe(self, effort: Effort, count: int) -> str:
        """Return the finder's words and the number of candidates."""
        return f"{self.finder.config}, {self.finder.describe(effort, count)}, {count:,} fetched"

    def pick(self, query: FloatArray, count: int, effort: Effort, dial: float) -> IntArray:
        """Return the k rows for a query (d,)."""
        return self.picker.pick(query, self.finder.nearest(query, count, effort), self.k, dial)


@dataclass(frozen=True, eq=False)
class Build:
    """An index of ours: its family and other options, seconds of building, bytes on top."""

    kind: str
    config: str
    index: Index
    seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Ours:
    """divgrpc in process: an index of some family, and a search."""

    name: str
    source: Build
    tuned: Picker
    k: int
    search: Search = "auto"
    selector: Selector = "greedy"

    def ladders(self) -> Ladders:
        """Return hashed points for each candidate upwards, or probes upwards for each of them."""
        info = self.source.index.info
        search = info.auto_search if self.search == "auto" else self.search
        if search == "exact":
            return [[(1.0,)]]
        if search != "tables":
            return [[(float(limit),) for limit in _HASHED]]
        probes = sorted({max(1, round(share * info.n_probes)) for share in _PROBED})
        return [[(float(limit), float(count)) for count in probes] for limit in _HASHED]

    def describe(self, effort: Effort, count: int) -> str:
        """Name the search, both limits, and the probes of tables."""
        auto_search = f"auto ({self.source.index.info.auto_search})"
        search = auto_search if self.search == "auto" else self.search
        limit = "" if "exact" in search else f" of {round(effort[0] * count):,}"
        probes_text = f"{effort[1]:,.0f} probes" if len(effort) > 1 else ""
        words = (self.source.config, search, f"{count:,}{limit}", probes_text)
        return ", ".join(filter(None, words))

    def pick(self, query: FloatArray, count: int, effort: Effort, dial: float) -> IntArray:
        """Return the k rows for a query (d,)."""
        parameters = self.parameters(count, effort, dial)
        rows: IntArray = self.source.index.engine.answer(query[None], parameters).ids[0]
        return rows

    @cache  # noqa: B019  # as long as the run
    def parameters(self, count: int, effort: Effort, dial: float) -> QueryParameters:
        """Return the query that `pick` asks."""
        return QueryParameters(
            k=self.k,
            diversity=dial,
            selector=self.selector,
            variant="marginal",
            search=self.search,
            candidates_limit=count,
            hash_limit=min(self.source.index.rows, round(effort[0] * count)),
            n_probes=int(effort[1]) if len(effort) > 1 else None,
        )


# Each has the `name` of its kind, the `source` that was built, and its `ladders`.
Contestant: TypeAlias = Pair | Ours


@dataclass(frozen=True, eq=False)
class Scale:
    """Queries (nq, d), and the objective of their nearest neighbours and of the exhaustive pick."""

    base: FloatArray
    queries: FloatArray
    diversity: float
    objective: Objective
    nearest: float = 0.0
    exhaustive: float = 0.0

    @classmethod
    def of(
        cls, base: FloatArray, queries: FloatArray, k: int, diversity: float, objective: Objective
    ) -> Self:
        """Measure both ends of the scale for k picks."""
        best = truth.greedy if objective == "J" else truth.mmr
        scale = cls(base, queries, diversity, objective)
        ends = truth.nearest(base, queries, k)[0], best(base, queries, k, diversity)
        return cls(base, queries, diversity, objective, *map(scale.value, ends))

    def value(self, rows: IntArray) -> float:
        """Return the mean objective of picks (nq, k), the lower the better."""
        measure = mean_objective if self.objective == "J" else mean_mmr
        return measure(self.base, self.queries, rows, self.diversity)

    def gap(self, rows: IntArray) -> float:
        """Return the gap that picks (nq, k) close."""
        return gap_closed(self.value(rows), self.nearest, self.exhaustive)


@dataclass(frozen=True, eq=False)
class Entry:
    """One configuration at its dial, and the time of a query.

    `source` has the seconds of building and the bytes on top of the vectors. `microseconds` are
    rough while J is measured.
    """

    name: str
    configuration: str
    source: Build | Finder | None
    count: int
    effort: Effort
    dial: float
    gap: float
    h: float
    microseconds: float
    ask: Ask = field(repr=False)


@dataclass(frozen=True, eq=False)
class Target:
    """The share of the gap to close for k picks; `pool` are exact candidates of tuning queries."""

    k: int
    share: float
    points: Points
    reported: Scale
    tuning: Scale
    pool: Neighbours
    _dials: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, points: Points, k: int, share: float, diversity: float, objective: Objective = "J"
    ) -> Self:
        """Measure both scales, and the exact neighbours of the tuning queries."""
        reported, tuning = (
            Scale.of(points.base, queries, k, diversity, objective)
            for queries in (points.queries, points.tuning)
        )
        most = max(count for count in _CANDIDATES if count <= max(k, len(points.base) // 2))
        pool = truth.nearest(points.base, points.tuning, most)
        return cls(k, share, points, reported, tuning, pool)

    def dial(self, picker: Picker, count: int) -> tuple[float, float]:
        """Return the dial for `count` exact candidates, and the gap it closes of tuning queries."""
        key = (picker.name, count)
        if key not in self._dials:
            gap = cache(lambda dial: self._tuned(picker, count, dial))
            dial = diversity = self.tuning.diversity
            if self.tuning.objective == "J":
                dial = best_dial(picker.centre(diversity, self.k), lambda dial: -gap(dial))
            self._dials[key] = (dial, gap(dial))
        return self._dials[key]

    def _tuned(self, picker: Picker, count: int, dial: float) -> float:
        rows = [
            picker.pick(query, (rows[:count], distances[:count]), self.k, dial)
            for query, rows, distances in zip(self.tuning.queries, *self.pool, strict=True)
        ]
        return self.tuning.gap(np.array(rows))

    def _counts(self, picker: Picker) -> list[int]:
        """Return numbers of candidates to try: from too few on, or the one that closes most."""
        fit = [count for count in _CANDIDATES if self.k <= count <= self.pool[0].shape[1]]
        gaps: list[float] = []
        for count in fit:
            gaps.append(self.dial(picker, count)[1])
            if gaps[-1] >= self.share - _MARGIN:
                first = max(0, len(gaps) - 2)
                return fit[first : first + _TRIED]
        return [fit[int(np.argmax(gaps))]]

    def entry(self, contestant: Contestant, count: int, effort: Effort) -> Entry | None:
        """Ask the reported queries; None where a query has fewer than k results."""
        queries, dial = self.reported.queries, self.dial(contestant.tuned, count)[0]

        def ask(number: int) -> IntArray:
            return contestant.pick(queries[number], count, effort, dial)

        begin = time.perf_counter()
        picks = [ask(number) for number in range(len(queries))]
        roughly = (time.perf_counter() - begin) / len(queries) * 1e6
        if min(map(len, picks)) < self.k or min(map(min, picks)) < 0:
            return None
        rows, words = np.array(picks), contestant.describe(effort, count)
        names = (contestant.name, words, contestant.source)
        figures = (self.reported.gap(rows), self._h(rows), roughly)
        return Entry(*names, count, effort, dial, *figures, ask)

    def over_all(
        self, name: str, rows: IntArray, dial: float, pick: Callable[[FloatArray], IntArray]
    ) -> Entry:
        """Return a pick among all points, whose `rows` (nq, k) are known."""
        queries, count = self.reported.queries, len(self.points.base)
        figures = (self.reported.gap(rows), self._h(rows), np.inf)
        ask: Ask = lambda number: pick(queries[number])  # noqa: E731
        return Entry(name, "", None, count, (), dial, *figures, ask)

    def _h(self, rows: IntArray) -> float:
        """Return h of picks (nq, k) for the reported queries; NaN where there are no labels."""
        if self.points.labels is None:
            return float("nan")
        return mean(h_score(judge(rows, self.points.categories, self.points.labels)))

    def entries(self, contestant: Contestant) -> Iterator[Entry]:
        """Yield configurations: effort rises until the gap is closed, or takes too long."""
        least = np.inf
        for count in self._counts(contestant.tuned):
            for ladder in contestant.ladders():
                for effort in ladder:
                    entry = self.entry(contestant, count, effort)
                    if entry is None:
                        continue
                    yield entry
                    if entry.gap >= self.share:
                        least = min(least, entry.microseconds)
                    if entry.gap >= self.share or entry.microseconds > _HOPELESS * least:
                        break


def finalists(tried: Sequence[Entry], share: float, most: int) -> tuple[float, list[Entry]]:
    """Return the gap that a contestant of ours and a pair close, and the entries to be timed.

    Of each name these are the `most` fastest that close it, or the one that closes most of it.
    """
    kinds = {entry.name: [item for item in tried if item.name == entry.name] for entry in tried}
    reach = {name: max(entry.gap for entry in kind) for name, kind in kinds.items()}
    pairs = [gap for name, gap in reach.items() if " + " in name]
    alone = [gap for name, gap in reach.items() if " + " not in name]
    share = min([share, *(max(side) for side in (pairs, alone) if side)])
    selection: list[Entry] = []
    for kind in kinds.values():
        closing = [entry for entry in kind if entry.gap >= share]
        fastest = sorted(closing, key=lambda entry: entry.microseconds)[:most]
        selection += fastest or [max(kind, key=lambda entry: entry.gap)]
    return share, selection
