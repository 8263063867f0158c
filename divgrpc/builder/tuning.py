"""Tuning chooses numbers of probes and hash limits, and measures the recall of every search.

One third of a sample of queries (`divgrpc.builder.sample`) is used for tuning, and the other two
thirds for measuring. A pool is the set of candidates of a query. For a pool of c candidates, recall
is the share of the c true nearest points that are among the hashed points, which are the points
that the search finds before it scores them. Recall is measured for each pool size in
`divgrpc.search.costs.POOLS`, with the hash limit tuned for that size. The index stores the lower
end of a confidence interval, so that later queries are unlikely to find less. Costs are counts of
work, not times.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.builder.measured import MeasuredSearcher
from divgrpc.builder.nearest import FindNearest, Report, find_nearest
from divgrpc.builder.sample import Sample
from divgrpc.parallel import on_all_cores
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.search.costs import POOLS, Shape, choose, nanoseconds, reaches
from divgrpc.types import IntArray, PoolCost, Search, SearchCost, Sought
from divgrpc.vectors import Rows, SparseRows

_Shares = npt.NDArray[np.float64]

# A batch has at most 16 queries, which find at most 2**20 points.
_BATCH_QUERIES_MAX: Final = 16
_BATCH_POINTS_MAX: Final = 1 << 20
# Number of queries used to measure a search that `auto` never uses.
_UNUSED_SEARCH_QUERIES: Final = 32
# With more points, queries run one at a time, because each query keeps pages of points in memory.
_PARALLEL_ROWS_MAX: Final = 1_000_000
# Each number of probes to try is this many times the number before.
_PROBES_GROWTH: Final = 2
# Trials of more probes stop when the number of probes reaches 4 times the number with the best
# recall so far, when the recall falls below 90 % of the best, or when a search hashes over 30 % of
# the points, because a scan is then faster.
_PROBES_OVER_BEST_MAX: Final = 4
_RECALL_OF_BEST_MIN: Final = 0.9
_SHARE_OF_POINTS_MAX: Final = 0.3
# The lower end of a one-sided 95 % confidence interval is this many standard errors below the mean.
_STANDARD_ERRORS: Final = 1.645
# The measuring queries may find less than the tuning queries. Then up to 4 hash limits are tried,
# beginning with the tuned one. If the recall of the measuring queries is at most 0.1 below the
# target, these multiples of the tuned number of probes are tried as well.
_RETRIED_LIMITS: Final = 4
_RETRIED_PROBE_FACTORS: Final = (1.0, 1.5, 2.2)
_RETRIED_RECALL_GAP_MAX: Final = 0.1
# A scan that may end early first scores this many rows per candidate (`kernels.exact.reach`).
_FIRST_ROWS_PER_CANDIDATE: Final = 8
# For a pool larger than the default pool, the default hash limit is at least 5/4 of the pool.
_LARGE_POOL_QUARTERS_MIN: Final = 5
# Hash limits to try, in quarters of the default limit. Limits above 4 times the default are tried
# only up to this share of the points: with more, an exact search is about as fast.
_LIMIT_QUARTERS: Final = (4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_HASHED_SHARE_MAX: Final = 0.25
_SEARCHES: Final[tuple[Search, ...]] = ("tables", "scan", "scan_hamming", "exact")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Results of tuning.

    `n_probes` and `auto_search` apply to default queries. `n_queries` is the size of the sample.
    """

    n_probes: int
    auto_search: Search
    search_costs: tuple[SearchCost, ...]
    n_queries: int


def tune(
    searcher: MeasuredSearcher,
    parameters: BuildParameters,
    report: Report,
    *,
    queries: Rows | None = None,
    find: FindNearest = find_nearest,
) -> Tuning:
    """Tune the number of probes and measure every search, for each number of candidates.

    `parameters` have all defaults filled in. `queries` (m, d) are a sample of future queries; if
    None, queries are made from points. `report` is called at least once for each batch of queries,
    with the number of rows done and the total number of rows (0 if unknown). `find` finds the true
    nearest points.

    The hash limit is the smallest of a few limits with which a scan reaches the target recall. The
    limits to try are 1 to 64 times the default limit. If no limit reaches the target, the
    default limit is chosen. The number of probes is approximately the smallest number that reaches
    the target. If no number reaches the target, the number with the best recall is chosen.
    """
    measurement = _Measurement(searcher, parameters, report, queries, find)
    costs = measurement.costs()
    pools = {cost.search: cost.pools[measurement.default_place] for cost in costs}
    auto = choose(
        pools,
        measurement.shape,
        parameters.target_recall,
        dense=measurement.dense,
        sought=measurement.sought,
    )
    return Tuning(pools["tables"].n_probes, auto, costs, len(measurement.sample))


def lower_bound(shares: _Shares) -> _Shares:
    """Return lower bounds (s,) of the means of the columns of `shares` (m, s).

    A bound is the lower end of a one-sided 95 % confidence interval or, if m is 1, the mean.
    """
    mean = shares.mean(axis=0)
    if len(shares) < 2:
        return np.asarray(mean)
    spread = shares.std(axis=0, ddof=1) / np.sqrt(len(shares))
    return np.asarray(np.maximum(0.0, mean - _STANDARD_ERRORS * spread))


class _Measurement:
    def __init__(
        self,
        searcher: MeasuredSearcher,
        parameters: BuildParameters,
        report: Report,
        queries: Rows | None,
        find: FindNearest,
    ) -> None:
        (self._rows, dims), nonzeros = searcher.points.shape, searcher.nonzeros
        self.shape = Shape.of(parameters, self._rows, dims, nonzeros)
        seed, most = parameters.seed, max(POOLS)
        self.sample = Sample.draw(searcher, seed, most, report, queries=queries, find=find)
        self._searcher = searcher
        self._report = report
        self._target = parameters.target_recall
        self.sought: Sought = "dense" if queries is None else "labels"
        if nonzeros is not None:
            self.sought = "sparse"
        self.dense = not isinstance(self.sample.queries, SparseRows)
        self._recalls: dict[tuple[Search, int, int, int], tuple[_Shares, _Shares]] = {}
        default = QueryParameters().resolve(self._rows, "scan", 1, self.sought).candidates_limit
        self.default_place = min(bisect.bisect_left(POOLS, default), len(POOLS) - 1)
        self._limits: list[int] = []
        for pool in POOLS:
            self._limits.append(self._default_limit(pool))

    def costs(self) -> tuple[SearchCost, ...]:
        """Measure every search for every number of candidates."""
        _, held_out = self.sample.parts
        for place in range(len(POOLS)):
            self._limits[place] = self._tune_limit(place)
        probes = self._tune_probes()
        # `auto` uses scan_hamming only for labels, so for points few queries measure it.
        sample = held_out if self.sought == "labels" else held_out[:_UNUSED_SEARCH_QUERIES]
        pools = {
            "exact": self._exact(held_out),
            "scan": self._scan("scan", held_out),
            "scan_hamming": self._scan("scan_hamming", sample),
            "tables": [self._tables(place, count) for place, count in enumerate(probes)],
        }
        return tuple(self._search_cost(search, tuple(pools[search])) for search in _SEARCHES)

    def _search_cost(self, search: Search, pools: tuple[PoolCost, ...]) -> SearchCost:
        default = pools[self.default_place]
        microseconds = nanoseconds(search, default, self.shape, dense=self.dense) / 1_000
        return SearchCost(search, default.recall, round(microseconds, 1), pools)

    def _exact(self, numbers: IntArray) -> list[PoolCost]:
        """Count the points and list entries that exact searches read, on average over queries."""
        costs: list[PoolCost] = []
        for pool in POOLS:
            points, entries = self._searcher.exact_work(self.sample.queries[numbers], pool)
            counts = (float(points.mean()), 0.0, 0.0, float(entries.mean()))
            costs.append(self._pool(len(costs), 0, 1.0, counts))
        self._report_life()
        return costs

    def _scan(self, search: Search, numbers: IntArray) -> list[PoolCost]:
        costs: list[PoolCost] = []
        lists = self._searcher.max_probes if self.shape.cells else 0
        for place, pool in enumerate(POOLS):
            recall = self._bound(self._scan_shares(search, place, numbers), numbers)[place]
            points = min(self._limits[place], self._rows)
            if self._searcher.scores_longest:
                points += _FIRST_ROWS_PER_CANDIDATE * pool
            counts = (points, self._rows + lists, lists, 0)
            costs.append(self._pool(place, 0, recall, counts))
        return costs

    def _scan_shares(self, search: Search, place: int, numbers: IntArray) -> _Shares:
        if self._limits[place] >= self._rows:
            return np.ones((len(numbers), len(POOLS)))
        return self._recall(search, 0, self._limits[place], numbers)[0]

    def _tables(self, place: int, n_probes: int) -> PoolCost:
        """Measure a search through tables or cells with the tuned number of probes, for one pool.

        If the recall of the measuring queries is a little below the target, more probes are tried.
        """
        _, numbers = self.sample.parts
        for factor in _RETRIED_PROBE_FACTORS:
            probes = min(self._searcher.max_probes, math.ceil(factor * n_probes))
            shares, points = self._recall("tables", probes, self._limits[place], numbers)
            recall = float(self._bound(shares, numbers)[place])
            if recall < self._target - _RETRIED_RECALL_GAP_MAX or reaches(recall, self._target):
                break
        mean_points = float(points.mean())
        # Without a hash limit, a search returns every entry that it reads.
        _, counts = self._recall("tables", probes, 0, numbers[:_BATCH_QUERIES_MAX])
        entries = float(counts.mean())
        if self.shape.cells:
            codes = self._searcher.max_probes + entries
            return self._pool(place, probes, recall, (mean_points, codes, probes, 0))
        return self._pool(place, probes, recall, (mean_points, 0, probes, entries))

    def _bound(self, shares: _Shares, numbers: IntArray) -> _Shares:
        """Return the smaller of the bounds for queries that are points and for other queries.

        Both are lower bounds of the mean of `shares`, as in `lower_bound`.
        """
        between = self.sample.between[numbers]
        kinds = [shares[kind] for kind in (between, ~between) if kind.any()]
        return np.asarray(np.min([lower_bound(kind) for kind in kinds], axis=0))

    def _pool(
        self, place: int, n_probes: int, recall: float, counts: tuple[float, float, float, float]
    ) -> PoolCost:
        """Return the cost of a pool; `counts` are points, codes, lists and list entries read."""
        points, codes, lists, entries = (round(float(count), 1) for count in counts)
        return PoolCost(
            candidates=POOLS[place],
            hash_limit=self._limits[place],
            n_probes=n_probes,
            recall=round(float(recall), 4),
            points_scored=points,
            codes_read=codes,
            lists_read=lists,
            entries_read=entries,
        )

    def _tune_limit(self, place: int) -> int:
        """Return the smallest hash limit with which a scan reaches the target, or the default.

        The limits to try are those of `_LIMIT_QUARTERS`. The tuning queries choose one of them. If
        the measuring queries do not reach the target with this limit, the next limits are tried
        with the measuring queries.
        """
        default = self._limits[place]
        most = max(4 * default, int(_HASHED_SHARE_MAX * self._rows))
        limits = [default * quarters // 4 for quarters in _LIMIT_QUARTERS]
        limits = [limit for limit in limits if limit <= most]
        tuning, held_out = self.sample.parts

        def reached(limit: int, numbers: IntArray = tuning) -> bool:
            if limit >= self._rows:
                return True
            shares = self._recall("scan", 0, limit, numbers)[0]
            return reaches(float(self._bound(shares, numbers)[place]), self._target)

        # The first limit usually suffices. If the largest limit does not suffice, no limit does.
        first = 0
        if not reached(default):
            if not reached(limits[-1]):
                return default
            first = bisect.bisect_left(limits, True, lo=1, hi=len(limits) - 1, key=reached)
        choices = limits[first : first + _RETRIED_LIMITS]
        return next((limit for limit in choices if reached(limit, held_out)), limits[first])

    def _tune_probes(self) -> list[int]:
        """Return the number of probes for each pool, chosen with the tuning queries.

        Searches run without a hash limit, so that one search serves all pools. The measured recall
        is then reduced by what the hash limit of each pool would lose. With tables, a hash limit
        keeps a random part of the points. With cells, a hash limit keeps the points with the
        nearest codes, which loses no more than a scan of all codes with the same limit.
        """
        tuning, _ = self.sample.parts
        losses = np.zeros((len(tuning), len(POOLS)))
        if self.shape.cells:
            for place in range(len(POOLS)):
                losses[:, place] = 1 - self._scan_shares("scan", place, tuning)[:, place]
        limits = np.array(self._limits)
        curves = [_Curve(self._target) for _ in POOLS]
        probes, most = self._searcher.least_probes, self._searcher.max_probes
        while True:
            shares, points = self._recall("tables", probes, 0, tuning)
            if self.shape.cells:
                shares = np.maximum(0, shares - losses)
            else:
                shares = shares * np.minimum(1, limits / np.maximum(1, points)[:, np.newaxis])
            bounds, means = self._bound(shares, tuning), shares.mean(axis=0)
            for curve, bound, mean in zip(curves, bounds.tolist(), means.tolist(), strict=True):
                curve.add(probes, bound, mean)
            is_last = probes == most or points.mean() > _SHARE_OF_POINTS_MAX * self._rows
            if is_last or all(curve.choice for curve in curves):
                return [curve.choice or curve.best[1] for curve in curves]
            probes = min(most, max(probes + 1, _PROBES_GROWTH * probes))

    def _recall(
        self, search: Search, n_probes: int, hash_limit: int, numbers: IntArray
    ) -> tuple[_Shares, _Shares]:
        """Return recalls (m, s) of m queries for s pools, and counts (m,) of hashed points.

        A `hash_limit` of 0 means no limit. Results are cached.
        """
        key = (search, n_probes, hash_limit, int(numbers.sum()))
        if key not in self._recalls:
            self._recalls[key] = self._search(search, n_probes, hash_limit, numbers)
        return self._recalls[key]

    def _search(
        self, search: Search, n_probes: int, hash_limit: int, numbers: IntArray
    ) -> tuple[_Shares, _Shares]:
        query = QueryParameters(search=search, n_probes=n_probes or None, hash_limit=hash_limit)
        effective = query.resolve(self._rows, "exact", 1, self.sought)
        # A thread needs memory for each point, and each query keeps pages of the points in memory.
        large = self._rows > _PARALLEL_ROWS_MAX
        points_max = min(hash_limit or self._rows, self._rows)
        batch = 1 if large else max(1, min(_BATCH_QUERIES_MAX, _BATCH_POINTS_MAX // points_max))

        def measure(start: int) -> list[tuple[_Shares, int]]:
            part = numbers[start : start + batch]
            return self.sample.measure(self._searcher, effective, part, POOLS)

        starts: Sequence[int] = range(0, len(numbers), batch)
        results: list[tuple[_Shares, int]] = []
        in_turn = large or self._searcher.has_one_thread
        for part in map(measure, starts) if in_turn else on_all_cores(measure, starts):
            results += part
            self._report_life()
        recalls, counts = zip(*results, strict=True)
        return np.stack(recalls), np.array(counts, float)

    def _default_limit(self, pool: int) -> int:
        """Return the default hash limit, usually four times the pool; less for a large pool.

        Only queries with a high dial (value of `diversity`) have a large pool by default. The last
        candidates of a large pool change few picks.
        """
        if pool > POOLS[self.default_place]:
            return max(_LARGE_POOL_QUARTERS_MIN * pool // 4, self._limits[self.default_place])
        query = QueryParameters(candidates_limit=pool)
        return query.resolve(self._rows, "scan", 1, self.sought).hash_limit

    def _report_life(self) -> None:
        self._report(self._rows, 0)


class _Curve:
    """Collects recalls for increasing numbers of probes, and chooses a number of probes.

    `choice` is the chosen number of probes, or 0 before a choice. `best` is the largest mean recall
    so far, and the number of probes that reached it. If more probes do not help, this number is
    chosen.
    """

    def __init__(self, target: float) -> None:
        self._target = target - 1e-9
        self._before = (0, 0.0)
        self.best = (-1.0, 0)
        self.choice = 0

    def add(self, probes: int, bound: float, mean: float) -> None:
        """Add the lower `bound` and the `mean` of the recall with `probes` probes."""
        if self.choice:
            return
        probes_before, bound_before = self._before
        best_mean, best_probes = self.best
        if bound >= self._target:
            self.choice = probes
            if probes_before and bound_before < bound:
                # Interpolate recall linearly in the logarithm of the number of probes.
                share = (self._target - bound_before) / (bound - bound_before)
                estimate = math.ceil(probes_before * (probes / probes_before) ** share)
                self.choice = min(probes, max(probes_before + 1, estimate))
        elif mean > best_mean:
            self.best = (mean, probes)
        elif (
            probes >= _PROBES_OVER_BEST_MAX * best_probes or mean < _RECALL_OF_BEST_MIN * best_mean
        ):
            self.choice = best_probes
        self._before = (probes, bound)
