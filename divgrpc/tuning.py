"""What a build measures on its own points: how many probes, and which search `auto` takes.

A sample of indexed points serves as queries, each left out of its own neighbours. Recall is the
share of its true ten nearest among the hashed points, at the default limits: the nearest of the
hashed points are all candidates, so a query with the selector `nearest` shows it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy import sparse

from divgrpc.parameters import QueryParameters
from divgrpc.searching import Searcher
from divgrpc.threads import on_all_cores
from divgrpc.types import (
    EffectiveParameters,
    FloatArray,
    IntArray,
    Search,
    SearchCost,
    Sought,
)
from divgrpc.vectors import Rows, SparseRows, block_rows, lengths, release_rows

Report = Callable[[int, int], None]

NEIGHBOURS: Final = 10
SAMPLE: Final = 64
_NOBODY: Final = -1
_ASKED_AT_ONCE: Final = 16
_LARGE: Final = 1_000_000
_TIMED_SECONDS: Final = 0.002
_TIMED_LEAST: Final = 3
_TIMED_AGAIN: Final = 3
# Seconds of a call from which on what else the machine does is little beside it.
_TIMED_LONG: Final = 0.001
_TIMED_POINTS: Final = 100_000
# More probes are hopeless once they are so many times those that found most, or find less than such
# a share of that.
_HOPELESS: Final = 4
_LESS: Final = 0.9
# Nor are probes told apart by less than such a part: the sample's recall is not as exact as that.
_RESOLUTION: Final = 32
_SEARCHES: Final[tuple[Search, ...]] = ("tables", "scan", "scan_hamming", "exact")
# From what finds everything to what depends most on queries that look like points. The Hamming scan
# is not among them: it reads what `scan` reads for a coarser answer. Where that is known to be good
# enough for what will be asked it takes the place of `scan`, and no clock decides: it counts bits
# once where `scan` does so four times.
_AUTO: Final[tuple[Search, ...]] = ("exact", "scan", "tables")
# Less than this is within what a clock shows twice for the same work.
_CLEARLY_FASTER: Final = 0.8


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found."""

    n_probes: int
    auto_search: Search
    search_costs: tuple[SearchCost, ...]
    # By so many queries.
    asked: int


def tune(
    searcher: Searcher,
    target_recall: float,
    seed: int,
    report: Report,
    queries: Rows | None = None,
) -> Tuned:
    """Choose the number of probes and the search for `auto`.

    `queries` are a sample of what will be asked of label factors; without, points are asked for.
    `report` gets rows done and rows in all, 0 for unknown, often enough to show life.

    Probes: the fewest that reach `target_recall`, to a 32nd of them; where the hash limit keeps
    every number below it, the one with the best recall. Search: the fastest of those that reach it;
    `exact` always does. A search that finds less on queries unlike the points must be clearly
    faster to be taken. Given `queries`, `scan_hamming` stands in for `scan` where it reaches that
    too.
    """
    sample = _Sample.draw(searcher, seed, report, queries)
    n_probes = _tune_probes(sample, target_recall)
    costs = sample.costs(n_probes)
    chosen = _choose(costs, target_recall)
    if queries is not None and chosen == "scan":
        hamming = next(cost for cost in costs if cost.search == "scan_hamming")
        chosen = "scan_hamming" if _reaches(hamming, target_recall) else chosen
    return Tuned(n_probes, chosen, costs, len(sample.queries))


def tune_dense(
    searcher: Searcher,
    target_recall: float,
    seed: int,
    report: Report,
    queries: FloatArray,
    *,
    n_probes: int,
) -> Tuned:
    """Choose the search for `auto` once more, by `queries` (m, d) float32 that are unlike points.

    Tables get the probes that `tune` found: of the further ones that `auto` makes where those find
    too few, the times say nothing.
    """
    sample = _Sample.draw(searcher, seed, report, queries)
    costs = sample.costs(n_probes)
    return Tuned(n_probes, _choose(costs, target_recall), costs, len(sample.queries))


def _choose(costs: tuple[SearchCost, ...], target_recall: float) -> Search:
    by_search = {cost.search: cost for cost in costs}
    best = by_search[_AUTO[0]]
    for search in _AUTO[1:]:
        cost = by_search[search]
        if (
            _reaches(cost, target_recall)
            and cost.microseconds < _CLEARLY_FASTER * best.microseconds
        ):
            best = cost
    return best.search


def _reaches(cost: SearchCost, target_recall: float) -> bool:
    # A recall is a mean of shares: what is 1 may have lost its last digit.
    return cost.recall >= min(target_recall, 1 - 1e-9)


def _tune_probes(sample: "_Sample", target: float) -> int:
    most, least = sample.searcher.max_probes, sample.searcher.least_probes

    def recall(probes: int) -> float:
        return sample.recall("tables", probes)

    probes, best = least, least
    while recall(probes) < target:
        best = probes if recall(probes) > recall(best) else best
        # Past the hash limit more probes bring more far points, and recall only falls.
        hopeless = probes >= _HOPELESS * best or recall(probes) < _LESS * recall(best)
        if probes == most or hopeless:
            return best
        probes = min(2 * probes, most)
    enough, few = probes, probes // 2
    while enough - few > max(1, enough // _RESOLUTION) and enough > least:
        middle = (enough + few) // 2
        enough, few = (middle, few) if recall(middle) >= target else (enough, middle)
    return enough


@dataclass(frozen=True)
class _Sample:
    searcher: Searcher
    queries: Rows
    report: Report
    recalls: dict[tuple[Search, int], float]
    own: IntArray
    neighbours: IntArray
    sought: Sought

    @classmethod
    def draw(cls, searcher: Searcher, seed: int, report: Report, given: Rows | None) -> "_Sample":
        points = searcher.points
        rng = np.random.default_rng((seed, 1))
        from_ = points if given is None else given
        rows = np.sort(rng.choice(len(from_), min(SAMPLE, len(from_)), replace=False))
        queries = from_[rows]
        # A point is its own nearest neighbour, and does not count.
        wanted = NEIGHBOURS + (given is None)
        nearest = _nearest_rows(searcher, queries, min(wanted, len(points)), report)
        if len(searcher.ids):
            nearest = searcher.ids[nearest]
        if given is not None:
            rows = np.full(len(rows), _NOBODY)
        elif len(searcher.ids):
            rows = searcher.ids[rows]
        searcher.release()
        sought: Sought = "dense" if given is None else "labels"
        if isinstance(points, SparseRows):
            sought = "sparse"
        return cls(searcher, queries, report, {}, rows, nearest, sought)

    def costs(self, n_probes: int) -> tuple[SearchCost, ...]:
        """Measure every search."""
        return tuple(
            SearchCost(search, self.recall(search, n_probes), self.microseconds(search, n_probes))
            for search in _SEARCHES
        )

    def recall(self, search: Search, n_probes: int) -> float:
        """Return the mean share of true neighbours found; 1 where a point has none."""
        everything = self._wanted(search).hash_limit >= len(self.searcher.points)
        if search == "exact" or (search != "tables" and everything):
            return 1.0
        if self.neighbours.shape[1] < 2:
            return 1.0
        if (search, n_probes) not in self.recalls:
            self.recalls[search, n_probes] = self._recall(search, n_probes)
        return self.recalls[search, n_probes]

    def _recall(self, search: Search, n_probes: int) -> float:
        wanted = self._wanted(search, n_probes)
        # Every thread has memory that grows with the points, and every query holds pages of them.
        large = len(self.searcher.points) > _LARGE
        at_once = 1 if large else _ASKED_AT_ONCE

        def shares(start: int) -> list[float]:
            part = slice(start, start + at_once)
            found = self.searcher.hashed(self.queries[part], wanted)
            self.searcher.release()
            rows = zip(self.own[part], self.neighbours[part], found, strict=True)
            return [_share(truth[truth != own][:NEIGHBOURS], ids) for own, truth, ids in rows]

        found: list[float] = []
        parts = range(0, len(self.own), at_once)
        for part in map(shares, parts) if large else on_all_cores(shares, parts):
            found += part
            self.report(len(self.searcher.points), 0)
        return float(np.mean(found))

    def microseconds(self, search: Search, n_probes: int) -> float:
        """Return the median time of one default query.

        Finding the hashed points is timed as it is, scoring as many and selecting from them on the
        first points, which lie side by side: a mapped index is not read to be timed.
        """
        wanted, searcher = self._wanted(search, n_probes), self.searcher
        points = len(searcher.points)
        if search == "exact":
            if searcher.ends_early:
                return round(self._exact_microseconds(searcher), 1)
            # A pass takes as long as there are points, and need not be made over all of them.
            count = min(points, _TIMED_POINTS)
            return round(self._exact_microseconds(searcher.of_first(count)) * points / count, 1)
        finding = self._median(lambda query: searcher.hashed(query, wanted))
        return round(finding + self.scoring, 1)

    @cached_property
    def scoring(self) -> float:
        """Microseconds to score as many points as a query hashes and select from them.

        A query of one point is taken off: what every call takes is in the time of finding already.
        """
        hashed = min(self._wanted("exact").hash_limit, len(self.searcher.points))
        many, one = (
            self._exact_microseconds(self.searcher.of_first(count)) for count in (hashed, 1)
        )
        return max(0.0, many - one)

    def _exact_microseconds(self, searcher: Searcher) -> float:
        plan = searcher.plan(self._wanted("exact"))
        return self._median(lambda query: searcher.answer(query, plan))

    def _median(self, call: Callable[[Rows], object]) -> float:
        times: list[float] = []
        begun = time.perf_counter()
        while len(times) < _TIMED_LEAST or time.perf_counter() - begun < _TIMED_SECONDS:
            query = self._query(len(times) % len(self.queries))
            # Once before it counts: what is mapped must be there when it does.
            again = _TIMED_AGAIN if _seconds(call, query) < _TIMED_LONG else 1
            # The least of a few: what else the machine does only adds.
            times.append(min(_seconds(call, query) for _ in range(again)))
            self.searcher.release()
            self.report(len(self.searcher.points), 0)
        return float(np.median(times)) * 1e6

    def _query(self, number: int) -> Rows:
        return self.queries[number : number + 1]

    def _wanted(self, search: Search, n_probes: int = 1) -> EffectiveParameters:
        rows, told = len(self.searcher.points), QueryParameters(search=search, n_probes=n_probes)
        return told.resolve(rows, "exact", 1, self.sought)


def _seconds(call: Callable[[Rows], object], query: Rows) -> float:
    begun = time.perf_counter()
    call(query)
    return time.perf_counter() - begun


def _share(wanted: IntArray, found: IntArray) -> float:
    return float((wanted[:, np.newaxis] == found).any(axis=1).mean())


def _nearest_rows(searcher: Searcher, queries: Rows, count: int, report: Report) -> IntArray:
    """Return the rows of the `count` nearest points to each query, (nq, count), unordered."""
    points = searcher.points
    centre = np.zeros(searcher.dims, np.float32)
    if isinstance(queries, SparseRows):
        # Never spread out: a sample of wide rows would be a gigabyte.
        back = sparse.csr_array(queries.matrix.T)
    elif isinstance(points, SparseRows):
        back = np.ascontiguousarray(queries.T)
    elif searcher.metric == "euclidean":
        # Far from the origin the differences between products would be lost in rounding.
        centre = queries.mean(axis=0)
        back = (queries - centre).T
    else:
        back = queries.T
    rows = np.empty((len(queries), 0), np.int64)
    gains = np.empty((len(queries), 0), np.float32)
    at_once = max(count, block_rows(points))
    for start in range(0, len(points), at_once):
        block = points[start : start + at_once]
        if not isinstance(block, SparseRows) and centre.any():
            block = block - centre
        products = (block @ back).T
        if searcher.metric == "euclidean":
            # Half a squared distance, less what all points have alike.
            products = products - np.square(lengths(block)) / 2
        # Past the first block few points are as near to any query as those it has.
        least = gains.min(axis=1, initial=np.inf if gains.shape[1] == count else -np.inf)
        near = np.flatnonzero((products >= least[:, np.newaxis]).any(axis=0))
        numbers = np.broadcast_to(start + near, (len(products), len(near)))
        gains = np.concatenate((gains, products[:, near]), axis=1)
        rows = np.concatenate((rows, numbers), axis=1)
        best = np.argpartition(-gains, count - 1, axis=1)[:, :count]
        gains = np.take_along_axis(gains, best, axis=1)
        rows = np.take_along_axis(rows, best, axis=1)
        release_rows(points)
        report(start + len(block), len(points))
    return rows
