"""Answers queries within quotas: finds candidates for all values, selects, and sorts into groups.

The nearest candidates may all have the same few values. Further searches then find candidates with
other values: one search for each value with a least number of results, and searches that leave out
the values that have enough candidates. They go on until the candidates suffice for the quotas, or
the index has no further points that do. So feasibility is exact over the index.

For each result there are as many candidates of its value as there are for each result without
quotas, so that the selector has a choice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.columns.quotas import rules_of
from divgrpc.columns.reader import ValueNumbers
from divgrpc.kernels import records
from divgrpc.kernels.greedy import CROWDED_RATIO
from divgrpc.quotas.bounds import Bounds, QuotaColumn
from divgrpc.quotas.completions import Effort, Programme, Signatures
from divgrpc.search.arrays import Answers, empty_answers, no_answers
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.quota_outcomes import (
    GroupColumns,
    in_groups,
    infeasible,
    shortfalls_of,
    shortfalls_of_nothing,
    with_all_values,
)
from divgrpc.search.quota_population import Population, condition_of
from divgrpc.search.quota_selection import QuotaPicks, QuotaSelection, count_copies
from divgrpc.search.refusals import WithinQuotas
from divgrpc.search.searcher import Searcher
from divgrpc.types import FloatArray, IntArray, WarningInfo
from divgrpc.types.filters import Condition, Filter
from divgrpc.types.quotas import Quota, Quotas, QuotaShortfall
from divgrpc.vectors import Rows

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
# Maximum number of times that candidates are searched for which complete picks.
_COMPLETIONS_MAX: Final = 4
# Further searches for a choice of candidates, beside those that the quotas need.
_CHOICE_SEARCHES_MAX: Final = 4


@dataclass(frozen=True, eq=False)
class QuotaSource:
    """What a search within quotas reads of an index.

    searcher: the searcher.
    plan: the plan of a search of the points that a query may return.
    passing: these points; None if a query may return every point. every: the same, never None.
    numbers: returns the values of an attribute for given rows, as numbers.
    narrow: returns those of these points that pass a condition.
    population: returns these points with the values of the attributes of quotas.
    plan_of: returns the plan of a search of other points.
    farther: returns the plan of a search for more points than `plan` finds.
    """

    searcher: Searcher
    plan: QueryPlan
    passing: PassingRows | None
    every: PassingRows
    numbers: Callable[[str, IntArray], ValueNumbers]
    narrow: Callable[[Condition], PassingRows]
    population: Callable[[Sequence[Quota]], Population]
    plan_of: Callable[[PassingRows], QueryPlan]
    farther: Callable[[], QueryPlan]

    def columns(self, rules: tuple[Quota, ...], rows: IntArray) -> tuple[QuotaColumn, ...]:
        """Return the values of the attributes of quotas for given rows."""
        return tuple(QuotaColumn(*self.numbers(quota.attribute, rows)) for quota in rules)


class _Nearest(NamedTuple):
    """The candidates of one search, nearest first.

    rows, distances: (m,) int32 and float32; a selector picks from the first `pool`, and from more
        if near-copies crowd these.
    answer: the answer without results, with the statistics and the dial of the search.
    """

    rows: npt.NDArray[np.int32]
    distances: FloatArray
    answer: Answers

    @property
    def pool(self) -> int:
        """The number of candidates that a selector picks from."""
        return int(self.answer.stats[records.POOL_SIZE, 0])

    def at(self, places: IntArray | slice) -> "_Nearest":
        """Return the candidates at these places."""
        return self._replace(rows=self.rows[places], distances=self.distances[places])


class QuotaSearch:
    """Answers queries that have the same quotas and the same filter."""

    def __init__(self, source: QuotaSource, quotas: Quotas, k: int) -> None:
        """Take a source of points, and the number of results that the quotas are about."""
        self._source, self._quotas, self._k = source, quotas, k
        self._plan = source.plan
        group_by = quotas.group_by
        if group_by is None:
            self._rules = tuple(map(self._with_values, quotas.quotas))
        else:
            self._rules = (Quota(group_by.attribute, max_each=group_by.per_group),)

    def _with_values(self, quota: Quota) -> Quota:
        if not quota.min_each:
            return quota
        (column,) = self._source.population((quota,)).columns
        return with_all_values(quota, column)

    def answer(self, queries: Rows) -> tuple[Answers, dict[str, Any]]:
        """Answer queries; return also further fields of the result.

        Raises `ConditionFailedError` if no answer meets the quotas and they must not be relaxed.
        """
        parameters = self._plan.parameters
        answers = None
        if len(queries) > 1:
            answers = empty_answers(len(queries), parameters.k, parameters)
        shortfalls: list[QuotaShortfall] = []
        groups: list[GroupColumns] = []
        for row in range(len(queries)):
            query = _QuotaQuery(self._source, self._rules, self._quotas, self._k)
            single = query.answer(queries[row : row + 1])
            if answers is not None:
                answers.put(row, single)
            shortfalls += [replace(lack, row=row) for lack in query.shortfalls]
            groups.append(query.groups)
            if shortfalls and self._quotas.on_infeasible == "fail":
                raise infeasible(shortfalls)
        columns = quota_columns(len(queries), self._quotas, groups)
        if shortfalls:
            columns["quota_shortfalls"] = tuple(shortfalls)
        return single if answers is None else answers, columns


def may_drop_forbidden(quotas: Quotas) -> bool:
    """Whether quotas forbid values, and points that have them do not matter to other quotas."""
    forbids = False
    for quota in quotas.quotas:
        if quota.min_each:
            return False
        forbids = forbids or quota.max_each == 0
        if quota.rules:
            forbids = forbids or any(rule.max == 0 for rule in rules_of(quota))
    return forbids


def quota_columns(
    queries: int, quotas: Quotas, groups: Sequence[GroupColumns] = ()
) -> dict[str, Any]:
    """Return the fields of a result with the groups of each query; without any if none pass."""
    if quotas.group_by is None:
        return {}
    sizes = [size for part in groups for size in part.sizes]
    counts = [len(part.sizes) for part in groups] or [0] * queries
    return {
        "group_values": tuple(value for part in groups for value in part.values),
        "group_offsets": np.concatenate(([0], np.cumsum(np.array(sizes, np.int64)))),
        "group_counts": np.array(counts, np.uint32),
    }


def quota_warnings(columns: Mapping[str, Any]) -> tuple[WarningInfo, ...]:
    """Return a warning if the answers miss quotas."""
    if not columns.get("quota_shortfalls"):
        return ()
    # The sentence is about no row, so that it does not depend on how a batch is cut.
    sentence = "no results meet the quotas of some rows: quota_shortfalls says what is missing"
    return (WarningInfo("QUOTA_INFEASIBLE", sentence, "quotas"),)


class _QuotaQuery:
    """The state of one query: the candidates found so far, and the picks.

    shortfalls: what the picks lack. groups: their groups.
    """

    def __init__(
        self, source: QuotaSource, rules: tuple[Quota, ...], quotas: Quotas, k: int
    ) -> None:
        self._source, self._plan, self._k = source, source.plan, k
        self._rules, self._quotas = rules, quotas
        self._extra_rows = np.empty(0, np.int32)
        self._extra_distances = np.empty(0, np.float32)
        self._farther: _Nearest | None = None
        self._effort = Effort()
        # The pool before all candidates were dropped but those of some groups, and their places.
        self._whole: tuple[npt.NDArray[np.int32], FloatArray, Bounds] | None = None
        self._kept = np.empty(0, np.int64)
        self.shortfalls: list[QuotaShortfall] = []
        self.groups = GroupColumns((), ())

    def answer(self, query: Rows) -> Answers:
        """Answer one query."""
        self._query = query
        plan = self._plan
        if not self._source.every.count:
            self.shortfalls = shortfalls_of_nothing(self._rules, self._k)
            return no_answers(1, plan.parameters)
        while True:
            base = self._find(plan, self._source.passing)
            picks = self._pick_growing(base)
            duplicates, crowded = picks.fillers, CROWDED_RATIO * picks.copies >= self._size > 0
            following = plan.wider if duplicates else None
            if plan.roomier is not None and crowded:
                following = plan.roomier
            if following is None:
                break
            plan = following
        return self._finish(base, picks)

    def _find(self, plan: QueryPlan, passing: PassingRows | None) -> _Nearest:
        candidates, answer = self._source.searcher.find_candidates(self._query, plan, passing)
        # The next search of this thread overwrites the candidates.
        return _Nearest(candidates.rows.copy(), candidates.costs.copy(), answer)

    def _pick_growing(self, base: _Nearest) -> QuotaPicks:
        """Pick from the pool; double it while near-copies crowd it."""
        self._size = base.pool
        while True:
            self._complete_pool(base)
            picks = self._pick(base)
            if self._size >= len(base.rows) or CROWDED_RATIO * picks.copies < self._size:
                break
            self._size = min(2 * self._size, len(base.rows))
        return picks

    # The pool: the nearest candidates, and those that further searches found.

    def _merge(self, base: _Nearest) -> None:
        """Join the nearest candidates with the others, in the order of their distances."""
        self._whole = None
        rows, distances = base.rows[: self._size], base.distances[: self._size]
        if len(self._extra_rows):
            rows = np.concatenate((rows, self._extra_rows))
            distances = np.concatenate((distances, self._extra_distances))
            rows, firsts = np.unique(rows, return_index=True)
            distances = distances[firsts]
            order = np.lexsort((self._source.searcher.keys_of(rows), distances))
            rows, distances = rows[order], distances[order]
        self._rows, self._distances = rows, distances
        self._set_bounds()

    def _set_bounds(self) -> None:
        """Set the bounds of the pool."""
        rows = self._rows.astype(np.int64)
        if len(rows):
            columns = self._source.columns(self._rules, rows)
            self._bounds = Bounds.of(self._rules, columns, self._k, self._quotas.group_by)

    def _add(self, nearest: _Nearest) -> None:
        self._extra_rows = np.concatenate((self._extra_rows, nearest.rows))
        self._extra_distances = np.concatenate((self._extra_distances, nearest.distances))

    def _complete_pool(self, base: _Nearest) -> None:
        """Search for candidates until the pool suffices for the quotas, and offers a choice."""
        self._merge(base)
        if self._size >= self._source.every.count or not len(self._rows):
            # The pool has every point.
            return
        share = self._share(base)
        self._find_needed(base, share)
        if self._offers_choice(share):
            return
        self._find_farther(base, share)
        for _ in range(_CHOICE_SEARCHES_MAX):
            if not self._find_others(base, share):
                break
        while self._find_others(base, 1):
            pass

    def _offers_choice(self, share: int) -> bool:
        """Whether the pool suffices for the quotas, with `share` candidates for each result.

        Of candidates that suffice for `share` times the bounds, a selection within the bounds
        leaves out most.
        """
        arrays, available = self._bounds.arrays, self._bounds.available
        has_groups = not arrays.groups or np.count_nonzero(available) >= arrays.groups
        useful = np.minimum(available, share * arrays.highs)
        return bool(has_groups) and self._lack_of(share, useful) <= 0

    def _find_needed(self, base: _Nearest, share: int) -> None:
        """Search for values with a least number of results that have too few candidates."""
        arrays, available = self._bounds.arrays, self._bounds.available
        if not self._bounds.has_lows:
            return
        # If more values need results than there are results, some cannot get any.
        places = np.flatnonzero(available < share * arrays.lows)[: self._k]
        if self._search_values(places, share * arrays.lows[places]):
            self._merge(base)

    def _find_farther(self, base: _Nearest, share: int) -> None:
        """Search for more of the nearest points, and keep those whose values lack candidates."""
        arrays, available = self._bounds.arrays, self._bounds.available
        if self._lack_of(share, np.minimum(available, share * arrays.highs)) <= 0:
            return
        if self._farther is None:
            self._farther = self._find(self._source.farther(), self._source.passing)
        rows = self._farther.rows.astype(np.int64)
        if len(rows) <= len(base.rows):
            return
        bounds = Bounds.of(self._rules, self._source.columns(self._rules, rows), self._k)
        ranks = _ranks(bounds.arrays.values)
        allowed = ranks < share * bounds.arrays.highs[bounds.arrays.values]
        kept = np.flatnonzero(np.logical_and.reduceat(allowed, bounds.arrays.starts[:-1]))
        self._add(self._farther.at(kept[: 2 * share * self._k]))
        self._merge(base)

    def _lack_of(self, share: int, useful: IntArray) -> int:
        """Return how many useful candidates the quota that lacks most of them lacks."""
        starts = self._bounds.first
        sums = useful.sum() if len(starts) == 1 else np.add.reduceat(useful, starts).min()
        return share * self._k - int(sums)

    def _find_others(self, base: _Nearest, share: int) -> bool:
        """Search for points without the values that have enough candidates.

        Returns whether there may be more such points.
        """
        arrays, available = self._bounds.arrays, self._bounds.available
        enough = share * arrays.highs
        lack = self._lack_of(share, np.minimum(available, enough))
        missing_groups = arrays.groups - int(np.count_nonzero(available))
        if missing_groups > 0 and share == 1:
            enough, lack = np.minimum(enough, 1), max(lack, missing_groups)
        if lack <= 0:
            return False
        conditions = self._conditions(np.flatnonzero(available >= enough))
        passing = self._source.narrow(Filter(must_not=conditions))
        before = len(self._rows)
        if not passing.count:
            return False
        self._add(self._search(passing, max(lack, self._k)))
        self._merge(base)
        return len(self._rows) > before

    def _search_values(self, places: IntArray, required: IntArray) -> bool:
        """Search for points with the values at some places, if the pool does not have all of them.

        required: for each value, the number of candidates that are kept, if it is not 0.

        Returns whether there were such points.
        """
        parts = self._narrow_each([self._conditions([place])[0] for place in places.tolist()])
        available = self._bounds.available[places].tolist()
        searches = [
            (passing, least)
            for passing, count, least in zip(parts, available, required.tolist(), strict=True)
            if passing.count > count
        ]
        self._search_each(searches)
        return bool(searches)

    def _narrow_each(self, conditions: Sequence[Condition]) -> list[PassingRows]:
        """Return the points that pass each of some conditions."""
        return self._for_each(self._source.narrow, conditions)

    def _search_each(self, searches: Sequence[tuple[PassingRows, int]]) -> None:
        """Search for each number of points, at least 1, among those of each object."""
        for nearest in self._for_each(lambda search: self._search(*search), searches):
            self._add(nearest)

    def _for_each(self, call: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
        """Return the results of a call; shards are asked about all items in the same rounds."""
        results: list[ResultT] = []
        self._source.searcher.for_each(
            range(len(items)), lambda number: results.append(call(items[number]))
        )
        return results

    def _search(self, passing: PassingRows, required: int) -> _Nearest:
        plan = self._source.plan_of(passing)
        return self._find(plan, passing).at(slice(max(required, 1)))

    # Picks.

    def _pick(self, base: _Nearest) -> QuotaPicks:
        if self._quotas.group_by is not None:
            return self._fill_groups(base, self._select(base))
        has_all = self._bounds_hold_all()
        picks = self._select(base, is_exact=has_all)
        if has_all:
            return picks
        for _ in range(_COMPLETIONS_MAX):
            if self._meets(picks) and self._picks_with_choice(base, picks) == self._k:
                return picks
            if not self._find_completing(base, picks):
                break
            picks = self._select(base, is_exact=False)
        if self._meets(picks):
            return picks
        self._find_by_programme(base)
        return self._select(base)

    def _meets(self, picks: QuotaPicks) -> bool:
        if not len(self._rows):
            return self._k == 0
        counts = self._bounds.counts_of(picks.places)
        return len(picks.places) == self._k and bool((counts >= self._bounds.arrays.lows).all())

    def _bounds_hold_all(self) -> bool:
        """Whether the pool has every candidate that any selection within the quotas may need."""
        return (
            not len(self._rows) or self._bounds.is_matroid or self._size >= self._source.every.count
        )

    def _find_completing(self, base: _Nearest, picks: QuotaPicks) -> bool:
        """Search for points that picks have room for, with each value that they lack; whether any.

        Points may have several values, so candidates that count for values with room may also count
        for values without.
        """
        arrays, counts = self._bounds.arrays, self._bounds.counts_of(picks.places)
        room = self._picks_with_choice(base, picks)
        at_room = self._bounds.counts_of(picks.places[:room])
        full = Filter(must_not=self._conditions(np.flatnonzero(at_room >= arrays.highs)))
        before = len(self._rows)
        lacking = np.flatnonzero(counts < arrays.lows)[: self._k].tolist()
        conditions = [self._conditions([place]) for place in lacking]
        if room < self._k - len(lacking):
            conditions.append(())
        required = self._share(base) * self._k
        parts = self._narrow_each([replace(full, must=must) for must in conditions])
        self._search_each([(passing, required) for passing in parts if passing.count])
        self._merge(base)
        return len(self._rows) > before

    def _picks_with_choice(self, base: _Nearest, picks: QuotaPicks) -> int:
        """Return the number of picks after which the next one has too few candidates."""
        arrays, counts = self._bounds.arrays, np.zeros(len(self._bounds.arrays.lows), np.int64)
        for step, place in enumerate(picks.places.tolist()):
            counts[arrays.values[arrays.starts[place] : arrays.starts[place + 1]]] += 1
            is_full = (counts >= arrays.highs)[arrays.values]
            blocked = np.logical_or.reduceat(is_full, arrays.starts[:-1])
            if np.count_nonzero(~blocked) < self._share(base):
                return step + 1
        return len(picks.places)

    def _conditions(self, places: Iterable[int]) -> tuple[Condition, ...]:
        """Return for each attribute the condition that it has one of the values at some places."""
        values = [self._bounds.value(int(place)) for place in places]
        return tuple(
            condition_of(rule.attribute, of_quota)
            for quota, rule in enumerate(self._rules)
            if (of_quota := [value.value for value in values if value.quota == quota])
        )

    def _share(self, base: _Nearest) -> int:
        """Return how many candidates there are for each result."""
        return max(1, base.pool // self._plan.parameters.k)

    def _select(self, base: _Nearest, *, is_exact: bool = True) -> QuotaPicks:
        parameters = self._plan.parameters
        if not len(self._rows):
            reason = records.NO_CHOICE if parameters.lose_at_most is not None else 0
            return QuotaPicks(np.empty(0, np.int64), np.empty(0, np.float32), reason=reason)
        if parameters.diversity_auto:
            parameters = replace(parameters, diversity=float(base.answer.dials[0]))
        selection = QuotaSelection.of(
            self._source.searcher.candidates_of(self._rows, self._distances),
            self._bounds, parameters, self._source.searcher.metric,
            copy_limit=self._plan.copy_limit, base=min(self._size, len(self._rows)),
            is_exact=is_exact, effort=self._effort,
        )  # fmt: skip
        return selection.select(self._k)

    def _find_by_programme(self, base: _Nearest) -> None:
        """Find candidates of a selection that meets the quotas, over all points.

        If no selection meets the quotas, it is one of least shortfall.
        """
        population = self._source.population(self._rules)
        # The numbers of signatures, which decide between selections, are in the order of keys.
        order = np.argsort(population.keys)
        pool = self._source.columns(self._rules, self._rows.astype(np.int64))
        columns = tuple(
            column.take(order).joined(other)
            for column, other in zip(population.columns, pool, strict=True)
        )
        counts = np.concatenate((population.counts[order], np.zeros(len(self._rows), np.int64)))
        bounds = Bounds.of(self._rules, columns, self._k)
        signatures = Signatures.of(bounds.arrays, counts)
        programme = Programme(bounds.arrays, signatures, self._k, self._effort)
        selection = programme.complete(np.zeros(len(signatures.counts), np.int64))
        if selection is None:
            selection = programme.relax()[0]
        of_points, of_pool = np.split(signatures.of_points, [len(order)])
        lacking = np.flatnonzero(selection > np.bincount(of_pool, minlength=len(selection)))

        def select(signature: int) -> PassingRows:
            flags = np.zeros(len(order), np.bool_)
            flags[order[of_points == signature]] = True
            return population.select(flags)

        parts = self._for_each(select, lacking.tolist())
        self._search_each(list(zip(parts, selection[lacking].tolist(), strict=True)))
        if len(lacking):
            self._merge(base)

    def _fill_groups(self, base: _Nearest, picks: QuotaPicks) -> QuotaPicks:
        """Search for more points of the groups that are not full, and pick again among groups."""
        group_by = self._quotas.group_by
        assert group_by is not None  # noqa: S101  # the caller checks
        if not len(picks.places):
            return picks
        counts = self._bounds.counts_of(picks.places)
        opened = np.flatnonzero(counts)
        short = opened[counts[opened] < group_by.per_group]
        required = np.full(len(short), group_by.per_group)
        has_every_point = self._size >= self._source.every.count
        if has_every_point or not self._search_values(short, required):
            return picks
        rows = self._rows[picks.places]
        self._merge(base)
        values = self._bounds.arrays.values
        of_picks = values[np.isin(self._rows, rows)]
        self._keep(np.flatnonzero(np.isin(values, of_picks)))
        return self._select(base)

    def _keep(self, places: IntArray) -> None:
        """Drop all candidates but those at these places."""
        self._whole, self._kept = (self._rows, self._distances, self._bounds), places
        self._rows, self._distances = self._rows[places], self._distances[places]
        self._set_bounds()

    # The answer.

    def _finish(self, base: _Nearest, picks: QuotaPicks) -> Answers:
        parameters = self._plan.parameters
        if self._quotas.group_by is None:
            if not len(self._rows):
                self.shortfalls = shortfalls_of_nothing(self._rules, self._k)
            elif self._bounds.has_lows or len(picks.places) < self._k:
                self.shortfalls = shortfalls_of(self._bounds, picks, self._k)
        elif len(picks.places):
            picks, self.groups = in_groups(self._bounds, picks)
        single = base.answer
        single.stats[records.POOL_SIZE :, 0] = len(self._rows), picks.copies, picks.fillers
        if parameters.lose_at_most is not None:
            single.dials[0], single.reasons[0] = picks.dial, picks.reason
        rows, distances, bounds = self._whole or (self._rows, self._distances, None)
        quotas = None
        if parameters.explain and len(picks.places):
            places = np.arange(len(rows)) if self._whole is None else self._kept
            farthest = base.distances[: self._size][-1]
            quotas = WithinQuotas.of(
                picks, bounds or self._bounds, places, distances, farthest, places[: self._size]
            )
        if self._whole is not None:
            picks = replace(picks, places=self._kept[picks.places])
        candidates = self._source.searcher.candidates_of(rows, distances)
        limit = self._plan.copy_limit
        if self._whole is not None and limit >= 0:
            # The picks were made among the points of their groups, but stand for others too.
            copies = count_copies(candidates, picks.places, limit)
            single.stats[records.COPIES_COLLAPSED, 0] = copies
        self._source.searcher.put_picks(self._plan, candidates, picks, single, quotas=quotas)
        return single


def _ranks(values: IntArray) -> IntArray:
    """Return for each value (n,) how many equal values come before it."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = ascending[1:] != ascending[:-1]
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(values)), 0))
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - firsts
    return ranks
