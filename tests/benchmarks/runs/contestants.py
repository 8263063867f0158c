"""Contestants of comparisons at equal quality, and how much of the gap in J they close.

J is the objective of greedy. The gap is between J of the nearest points and J of greedy over all
points.

A contestant finds candidates at some effort (`harness.libraries`) and picks k of them at some dial
(a value that weights diversity). For each selector and number of candidates, the best dial for J is
chosen on exact nearest neighbours of tuning queries, which are not reported. All contestants with
this selector use this dial.

Numbers of candidates are tried in ascending order, starting with the greatest one that cannot close
the target share of the gap even with exact candidates. For each number, the effort is raised until
the target is reached, because more effort only takes more time.
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
from divgrpc.metrics import gap_closed
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search, Selector

# The objective of a comparison: J, or the objective that MMR maximises. With J the dial is tuned.
# With MMR the dial equals the diversity on all sides.
Objective: TypeAlias = Literal["J", "MMR"]
_CANDIDATES: Final = (25, 50, 75, 100, 150, 200, 300, 500, 1_000, 2_000, 4_000)
# Values to try: hashed points per candidate, and probes as multiples of the number that Build
# tuned.
_HASH_FACTORS: Final = (1, 1.5, 2, 3, 4, 8, 16, 32, 64)
_PROBE_FACTORS: Final = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4)
# How many numbers of candidates to try, including the first, which is too small.
_TRIALS: Final = 5
# A number of candidates counts as large enough if tuning queries fall short of the target share by
# at most this, because reported queries may close more of the gap.
_MARGIN: Final = 0.01
# A ladder ends at a configuration that takes this many times as long as the fastest one that
# reached the target.
_HOPELESS: Final = 3.0


@dataclass(frozen=True, eq=False)
class Pair:
    """A finder, and a picker that selects among the candidates that it finds."""

    source: Finder
    picker: Picker
    k: int

    @property
    def name(self) -> str:
        """The names of the finder and the picker."""
        return f"{self.source.kind} + {self.picker.name}"

    def ladders(self) -> Ladders:
        """Return the ladders of the finder."""
        return self.source.ladders()

    def describe(self, effort: Effort, count: int) -> str:
        """Describe the finder, its effort and the number of candidates."""
        return f"{self.source.config}, {self.source.describe(effort, count)}, {count:,} fetched"

    def pick(self, query: FloatArray, count: int, effort: Effort, dial: float) -> IntArray:
        """Return the k rows that are picked for a query (d,)."""
        return self.picker.pick(query, self.source.nearest(query, count, effort), self.k, dial)


@dataclass(frozen=True, eq=False)
class Build:
    """One of our indexes: family, options, build time, and bytes in addition to the vectors."""

    kind: str
    config: str
    index: Index
    seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Ours:
    """divgrpc in process; `picker` picks the same points from exact candidates."""

    name: str
    source: Build
    picker: Picker
    k: int
    search: Search = "auto"
    selector: Selector = "greedy"

    def ladders(self) -> Ladders:
        """Return ladders of hashed points per candidate; tables also vary the number of probes."""
        info = self.source.index.info
        search = info.auto_search if self.search == "auto" else self.search
        if search == "exact":
            return [[(1.0,)]]
        if search != "tables":
            return [[(float(limit),) for limit in _HASH_FACTORS]]
        probes = sorted({max(1, round(share * info.n_probes)) for share in _PROBE_FACTORS})
        return [[(float(limit), float(count)) for count in probes] for limit in _HASH_FACTORS]

    def describe(self, effort: Effort, count: int) -> str:
        """Describe the search, both limits and, for tables, the number of probes."""
        auto_search = f"auto ({self.source.index.info.auto_search})"
        search = auto_search if self.search == "auto" else self.search
        limit = "" if "exact" in search else f" of {round(effort[0] * count):,}"
        probes_text = f"{effort[1]:,.0f} probes" if len(effort) > 1 else ""
        words = (self.source.config, search, f"{count:,}{limit}", probes_text)
        return ", ".join(filter(None, words))

    def pick(self, query: FloatArray, count: int, effort: Effort, dial: float) -> IntArray:
        """Return the k rows that are picked for a query (d,)."""
        parameters = self.parameters(count, effort, dial)
        rows: IntArray = self.source.index.engine.answer(query[None], parameters).ids[0]
        return rows

    @cache  # noqa: B019  # as long as the run
    def parameters(self, count: int, effort: Effort, dial: float) -> QueryParameters:
        """Return the parameters of the query in `pick`."""
        return QueryParameters(
            k=self.k,
            diversity=dial,
            selector=self.selector,
            variant="marginal",
            search=self.search,
            candidates_limit=count,
            hash_limit=min(self.source.index.rows, round(effort[0] * count)),
            n_probes=int(effort[1]) if len(effort) > 1 else None,
            # No other contestant collapses near-copies.
            keep_duplicates=True,
        )


Contestant: TypeAlias = Pair | Ours


@dataclass(frozen=True, eq=False)
class Scale:
    """The mean objectives of the nearest points, and of the selection among all points."""

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
        """Measure the objective of the nearest points and of the exhaustive selection."""
        best = truth.greedy if objective == "J" else truth.mmr
        scale = cls(base, queries, diversity, objective)
        ends = truth.nearest(base, queries, k)[0], best(base, queries, k, diversity)
        return cls(base, queries, diversity, objective, *map(scale.value, ends))

    def value(self, rows: IntArray) -> float:
        """Return the mean objective of picks (nq, k); lower is better."""
        measure = mean_objective if self.objective == "J" else mean_mmr
        return measure(self.base, self.queries, rows, self.diversity)

    def gap(self, rows: IntArray) -> float:
        """Return the share of the gap that picks (nq, k) close."""
        return gap_closed(self.value(rows), self.nearest, self.exhaustive)


@dataclass(frozen=True, eq=False)
class Entry:
    """A configuration at its dial, with its quality and a rough time of a query."""

    name: str
    configuration: str
    source: Build | Finder | None
    count: int
    effort: Effort
    dial: float
    gap: float
    microseconds: float
    ask: Ask = field(repr=False)


@dataclass(frozen=True, eq=False)
class Target:
    """The share of the gap to close with k picks.

    `scale` has the mean objectives of the reported queries, and `tuning` has the same for the
    tuning queries. `pool` has the nearest points of the tuning queries. `dials` has the best
    dial and its gap for each picker and number of candidates, as they are found.
    """

    k: int
    share: float
    points: Points
    scale: Scale
    tuning: Scale
    pool: Neighbours
    dials: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, points: Points, k: int, share: float, diversity: float, objective: Objective = "J"
    ) -> Self:
        """Measure the gaps of both sets of queries, and find neighbours of the tuning queries."""
        scale, tuning = (
            Scale.of(points.base, queries, k, diversity, objective)
            for queries in (points.queries, points.tuning)
        )
        most = max(count for count in _CANDIDATES if count <= max(k, len(points.base) // 2))
        pool = truth.nearest(points.base, points.tuning, most)
        return cls(k, share, points, scale, tuning, pool)

    def dial(self, picker: Picker, count: int) -> tuple[float, float]:
        """Return the best dial for `count` exact candidates, and its gap on tuning queries."""
        key = (picker.name, count)
        if key not in self.dials:
            gap = cache(lambda dial: self._tuned(picker, count, dial))
            dial = diversity = self.tuning.diversity
            if self.tuning.objective == "J":
                dial = best_dial(picker.centre(diversity, self.k), lambda dial: -gap(dial))
            self.dials[key] = (dial, gap(dial))
        return self.dials[key]

    def _tuned(self, picker: Picker, count: int, dial: float) -> float:
        rows = [
            picker.pick(query, (rows[:count], distances[:count]), self.k, dial)
            for query, rows, distances in zip(self.tuning.queries, *self.pool, strict=True)
        ]
        return self.tuning.gap(np.array(rows))

    def _counts(self, picker: Picker) -> list[int]:
        """Return the numbers of candidates to try, from the greatest that is too small upwards."""
        fit = [count for count in _CANDIDATES if self.k <= count <= self.pool[0].shape[1]]
        gaps: list[float] = []
        for count in fit:
            gaps.append(self.dial(picker, count)[1])
            if gaps[-1] >= self.share - _MARGIN:
                first = max(0, len(gaps) - 2)
                return fit[first : first + _TRIALS]
        return [fit[int(np.argmax(gaps))]]

    def entry(self, contestant: Contestant, count: int, effort: Effort) -> Entry | None:
        """Answer the reported queries; return None if a query has fewer than k results."""
        queries, dial = self.scale.queries, self.dial(contestant.picker, count)[0]

        def ask(number: int) -> IntArray:
            return contestant.pick(queries[number], count, effort, dial)

        begin = time.perf_counter()
        picks = [ask(number) for number in range(len(queries))]
        roughly = (time.perf_counter() - begin) / len(queries) * 1e6
        if min(map(len, picks)) < self.k or min(map(min, picks)) < 0:
            return None
        rows, words = np.array(picks), contestant.describe(effort, count)
        names = (contestant.name, words, contestant.source)
        figures = (self.scale.gap(rows), roughly)
        return Entry(*names, count, effort, dial, *figures, ask)

    def over_all(
        self, name: str, rows: IntArray, dial: float, pick: Callable[[FloatArray], IntArray]
    ) -> Entry:
        """Return the entry of a selection among all points that picked `rows` (nq, k)."""
        queries, count = self.scale.queries, len(self.points.base)
        figures = (self.scale.gap(rows), np.inf)
        ask: Ask = lambda number: pick(queries[number])  # noqa: E731
        return Entry(name, "", None, count, (), dial, *figures, ask)

    def entries(self, contestant: Contestant) -> Iterator[Entry]:
        """Yield configurations; effort rises until one reaches the target or is too slow."""
        least = np.inf
        for count in self._counts(contestant.picker):
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


def finalists(entries: Sequence[Entry], share: float, most: int) -> tuple[float, list[Entry]]:
    """Return the share of the gap to compare at, and the entries to be timed.

    If our best contestant or the best `Pair` cannot close the share, the share is lowered until
    both can. For each name, the `most` fastest entries that close this share are timed. If no entry
    of a name closes the share, the entry that closes most is timed.
    """
    kinds = {entry.name: [item for item in entries if item.name == entry.name] for entry in entries}
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
