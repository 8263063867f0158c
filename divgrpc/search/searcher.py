"""Calls the kernels: the arrays of a generation in their order, a plan, and memory to write to."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from divgrpc.kernels import (
    candidates as finding,
)
from divgrpc.kernels import (
    code_scan,
    dials,
    inverted_lists,
    near_copies,
    query,
    registers,
)
from divgrpc.kernels import (
    exact as scoring,
)
from divgrpc.kernels.batch import TOGETHER, nearest_together, scan_together
from divgrpc.kernels.greedy import CROWDED_PART
from divgrpc.kernels.projection import project_query
from divgrpc.parameters import POOL_WORK, SEARCH_GROWTH, BuildParameters
from divgrpc.search.answers import Answers, empty_answers, empty_answers_for
from divgrpc.search.arrays import as_queries, lay_out
from divgrpc.search.dials import METRICS, factor_of
from divgrpc.search.memory import MAX_PROBES, Scratch, flat
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import Candidates
from divgrpc.search.selectors import relevance, select_different
from divgrpc.storage.arrays import Array, release
from divgrpc.types import (
    EffectiveParameters,
    IntArray,
    Metric,
)
from divgrpc.vectors import Rows, SparseRows

# Points that there is room for where cells are searched, before any query needs more.
_FIRST_ROOM: Final = 1 << 12

# Rows of a batch are searched together from so many on, in so many dimensions at least, where what
# they share is more than so many bytes: vectors that leave a core's own cache, codes that leave all
# caches. Otherwise one by one is as fast or faster. What they keep is at most a part of the points,
# and so many bytes.
_ROWS: Final = 3
_DIMS: Final = 64
_VECTORS: Final = 2 << 20
_CODES: Final = 48 << 20
_PART: Final = 4
_ROOM: Final = 4 << 20
# A row's number and its distance.
_KEPT_BYTES: Final = 8


class Searcher:
    """Answers queries over the arrays of one generation; `parameters` are filled in."""

    def __init__(self, arrays: Mapping[str, Array], parameters: BuildParameters, dims: int) -> None:
        # All that the register names is held here.
        self._groups = groups = lay_out(arrays, dims)
        self._points, self._named, self._hashing = (
            groups[each] for each in ("points", "named", "hashing")
        )
        self._register = registers.register(registers.INDEX, flat(groups.values()))
        self.ids: IntArray = self._named[0]
        self._arrays = arrays
        self._parameters = parameters
        self.metric: Metric = parameters.metric
        self.dims = dims
        self._n_tables, self._n_bits = parameters.n_tables or 0, parameters.n_bits or 0
        self._local = threading.local()

    @property
    def points(self) -> Rows:
        """The points as rows, dense or sparse."""
        vectors, indptr, indices, values, _ = self._points
        return SparseRows(indptr, indices, values, self.dims) if len(indptr) else vectors

    def release(self) -> None:
        """Let go of the pages of mapped arrays."""
        for array in self._arrays.values():
            release(array)

    @property
    def ends_early(self) -> bool:
        """Whether long rows come first, so that an exact search need not see the others."""
        bounds = self._named[2]
        return len(bounds) > 0 and bool(bounds[len(bounds) // 2] < bounds[0] / 2)

    @property
    def max_probes(self) -> int:
        """How many buckets a search through tables can look at."""
        return len(self._groups["cells"][2]) or MAX_PROBES

    @property
    def cell_sizes(self) -> IntArray:
        """How many points each cell holds; none where there are no cells."""
        return np.diff(self._groups["cells"][4])

    @property
    def least_probes(self) -> int:
        """How many buckets it looks at in any case: one, or every table's home."""
        return self._n_tables or 1

    def plan(
        self,
        wanted: EffectiveParameters,
        *,
        probe_on: bool = False,
        most: int | None = None,
        again: int = 0,
    ) -> QueryPlan:
        """Return how to answer.

        With `probe_on` as many hashed points are found as the selector may have candidates: where
        probes find fewer, by more of them, then by a scan. Where fewer than k candidates of a row
        differ, the row is searched for `again` with greater limits, at most that many times. No
        more than `most` candidates are looked at.
        """
        at_least, points = self._enough(wanted) if probe_on else 0, self._hashing[2].shape[1]
        plan_of = partial(
            QueryPlan.of, metric=self.metric, points=points, at_least=at_least, most=most
        )
        # An exact search by lists takes three times as long for four times as many candidates.
        listed = wanted.search == "exact" and len(self._groups["postings"][0]) > 0
        plan, roomier = plan_of(wanted, grow=not listed), None
        limited = again > 0 and 0 < wanted.hash_limit < points
        if plan.limit >= 0 and plan.seen < plan.widest and (listed or limited):
            hash_limit = max(wanted.hash_limit, plan.widest) if limited else wanted.hash_limit
            roomier = plan_of(replace(wanted, hash_limit=hash_limit))
        larger = replace(
            wanted,
            hash_limit=SEARCH_GROWTH * wanted.hash_limit,
            candidates_limit=SEARCH_GROWTH * wanted.candidates_limit,
        )
        seen = min(larger.candidates_limit or points, larger.hash_limit or points, points)
        fits = max(seen, wanted.k) <= min(most or points, POOL_WORK // wanted.k)
        if not (limited and plan.limit >= 0 and fits):
            return replace(plan, roomier=roomier)
        wider = self.plan(larger, probe_on=probe_on, most=most, again=again - 1)
        if roomier is not None:
            roomier = replace(roomier, wider=wider)
        return replace(plan, roomier=roomier, wider=wider)

    def _enough(self, wanted: EffectiveParameters) -> int:
        """How many hashed points give the selector all the candidates that it may have.

        Probes are tuned on queries that look like points; a trained hyperplane does not, and finds
        its buckets nearly empty.
        """
        points = self._hashing[2].shape[1]
        candidates = wanted.candidates_limit or wanted.k
        return int(min(candidates, wanted.hash_limit or points, points))

    def answer(self, queries: Rows, plan: QueryPlan) -> Answers:
        """Answer rows that are prepared for the metric."""
        answers = self._answer(queries, plan)
        if plan.roomier is None and plan.wider is None:
            return answers
        # Of few rows a list is looked through in a tenth of the time that numpy takes.
        pools, copies, duplicates = answers.stats[3:].tolist()
        for row in range(len(queries)):
            next_plan = plan.wider if duplicates[row] else None
            if plan.roomier is not None and CROWDED_PART * copies[row] >= pools[row] > 0:
                next_plan = plan.roomier
            if next_plan is not None:
                answers.put(row, self.answer(queries[row : row + 1], next_plan))
        return answers

    def _answer(self, queries: Rows, plan: QueryPlan) -> Answers:
        wanted = plan.wanted
        answers = empty_answers_for(len(queries), wanted)
        if not plan.one_by_one:
            self._run(queries, plan, answers)
            return answers
        for row in range(len(queries)):
            # Kernels are compiled for whole arrays, not for parts of others.
            alone = empty_answers_for(1, wanted)
            self._run(queries[row : row + 1], plan, alone)
            if plan.of_kernel[7] == query.CANDIDATES:
                places = self._select(plan, alone)
            else:
                places = self._local.scratch.picked[: alone.counts[0]]
            if wanted.list_collapsed:
                self._list_copies(plan, places, alone)
            answers.put(row, alone)
        return answers

    def _select(self, plan: QueryPlan, alone: "Answers") -> IntArray:
        """Pick from the candidates that the scratch holds, and write the one row of answers.

        Returns the places of the picks among the candidates.
        """
        scratch: Scratch = self._local.scratch
        count, inverses = int(alone.counts[0]), self._named[1]
        rows, distances = scratch.rows[:count], scratch.distances[:count]
        among = Candidates(self._points, inverses, rows, distances, scratch.selection)
        pool, wanted = int(alone.stats[3, 0]), plan.wanted
        if wanted.diversity_auto:
            wanted = _at_own_dial(wanted, among.of(np.arange(pool)), plan.limit, self.metric, alone)
        picks, pool, copies, duplicates = select_different(
            among, pool, plan.limit, wanted, self.metric
        )
        if wanted.lose_at_most is not None:
            alone.dials[0], alone.reasons[0] = picks.dial, picks.reason
        found = len(picks.places)
        taken = rows[picks.places]
        alone.ids[0, :found] = self.ids[taken] if len(self.ids) else taken
        alone.scores[0, :found] = relevance(distances[picks.places], self.metric)
        alone.values[0, :found] = picks.values
        alone.ids[0, found:], alone.scores[0, found:], alone.values[0, found:] = -1, np.nan, np.nan
        alone.counts[0] = found
        alone.stats[3:, 0] = pool, copies, duplicates
        if len(alone.gaps):
            alone.gaps[0] = picks.gap
        return picks.places

    def _list_copies(self, plan: QueryPlan, places: IntArray, alone: "Answers") -> None:
        """List, for each place of the one row, the ids of the near-copies in the pool."""
        alone.copies.extend([np.empty(0, np.int64)] * plan.wanted.k)
        if plan.limit < 0:
            return
        rows, pool = self._local.scratch.rows, int(alone.stats[3, 0])
        owners = np.empty(pool, np.int64)
        near_copies.assign_copies(
            self._points, self._named[1], rows, pool, places, len(places), plan.limit, owners
        )
        for place in range(len(places)):
            copies = rows[np.flatnonzero(owners == place)]
            alone.copies[place] = self.ids[copies] if len(self.ids) else copies.astype(np.int64)

    def hashed(self, queries: Rows, wanted: EffectiveParameters) -> list[IntArray]:
        """Return the ids of the points that each query has hashed, in no order.

        They are at most `hash_limit`, where that is not 0.
        """
        limit = wanted.hash_limit or self._hashing[2].shape[1]
        answers = empty_answers(len(queries), limit)
        self._run(queries, QueryPlan.of_hashed(wanted, self.metric), answers)
        return [ids[:count] for ids, count in zip(answers.ids, answers.counts, strict=True)]

    def entries_listed(self, queries: Rows, wanted: int) -> IntArray:
        """Return how many entries of posting lists an exact search of each query reads, (nq,).

        `wanted` of the nearest are looked for; 0 where a search does not go by the lists, as
        `postings.worth_listing` has it.
        """
        starts = self._groups["postings"][0]
        few = inverted_lists.FEW * wanted <= self._hashing[2].shape[1]
        if not isinstance(queries, SparseRows) or not len(starts) or not few:
            return np.zeros(len(queries), np.int64)
        sizes = (starts[1:] - starts[:-1])[queries.indices]
        sums = np.concatenate(([0], np.cumsum(sizes)))[queries.indptr]
        entries = sums[1:] - sums[:-1]
        stored = len(self._points[2])
        return np.where(inverted_lists.FEW * entries < stored, entries, 0)

    def _run(self, queries: Rows, plan: QueryPlan, answers: Answers) -> None:
        sparse = isinstance(queries, SparseRows)
        kept = self._kept_together(plan, sparse=sparse) if len(queries) >= _ROWS else 0
        if kept:
            self._run_together(queries, plan, answers, kept)
            return
        asked, room, points = as_queries(queries), _FIRST_ROOM, self._hashing[2].shape[1]
        while room:
            scratch = self._scratch(plan, min(room, points))
            held = (self._register, scratch.register, plan.of_kernel)
            lacking = query.answer(*held, (0, len(queries), False), asked, answers.columns)
            # More than is asked for: the next query may well need a little more again.
            room = 2 * lacking

    def _run_together(self, queries: Rows, plan: QueryPlan, answers: Answers, kept: int) -> None:
        asked, scratch = as_queries(queries), self._scratch(plan, self._hashing[2].shape[1])
        scratch.make_together(TOGETHER, kept)
        held = (self._register, scratch.register, plan.of_kernel)
        for first in range(0, len(queries), TOGETHER):
            stop = min(first + TOGETHER, len(queries))
            if plan.of_kernel[0] == finding.EXACT:
                nearest_together(*held, asked, first, stop - first)
            else:
                for row in range(first, stop):
                    margins = scratch.margins[row - first]
                    project_query(asked, row, self._hashing, scratch.sketched, margins)
                scan_together(*held, stop - first)
            # There is room for all points, so that nothing lacks.
            query.answer(*held, (first, stop, True), asked, answers.columns)

    def exact_together(self, plan: QueryPlan, *, sparse: bool) -> int:
        """Return how many rows an exact search takes together at most, 1 for one by one.

        Many of those take little longer than one; of rows that a scan takes together each does.
        """
        exact = plan.of_kernel[0] == finding.EXACT and not plan.one_by_one
        return TOGETHER if exact and self._kept_together(plan, sparse=sparse) else 1

    def _kept_together(self, plan: QueryPlan, *, sparse: bool) -> int:
        """Return how many points a row keeps while rows are searched together; 0: one by one.

        What they get does not depend on it. `sparse`: whether the rows are.
        """
        search, hash_limit, step = plan.of_kernel[0], plan.of_kernel[4], plan.of_kernel[7]
        vectors, codes = self._points[0], self._hashing[2]
        if search == finding.EXACT:
            # Hashed points are all points then, of which none is nearest.
            dense = not sparse and step != query.HASHED
            pays = dense and self.dims >= _DIMS and vectors.nbytes > _VECTORS
            kept = 2 * plan.seen + scoring.BOUND_ROWS
        else:
            scans = search != finding.TABLES and 0 < hash_limit < codes.shape[1]
            whole = not len(self._groups["cells"][2]) and not self.ends_early
            pays = scans and whole and codes.nbytes > _CODES
            kept = 2 * hash_limit + code_scan.BLOCK
        few = _PART * kept <= codes.shape[1] and TOGETHER * kept * _KEPT_BYTES <= _ROOM
        return kept if pays and few else 0

    def _scratch(self, plan: QueryPlan, room: int) -> Scratch:
        """Return this thread's memory: with cells for `room` points, otherwise for all of them."""
        search, _, at_least, k, hash_limit = plan.of_kernel[:5]
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            words, hashed = len(self._hashing[2]), self._hashing[0].shape
            sparse = isinstance(self.points, SparseRows)
            scratch = Scratch.empty(0, self.dims, words, hashed, sparse=sparse)
            self._local.scratch = scratch
        n_cells, points = len(self._groups["cells"][2]), self._hashing[2].shape[1]
        by_cells = n_cells > 0 and (
            search == finding.TABLES or (search != finding.EXACT and 0 < hash_limit < points)
        )
        room = room if by_cells else points
        scratch.make_points(room)
        scratch.make_room(min(plan.seen, len(scratch.rows)), k)
        if by_cells:
            scratch.make_cells(n_cells)
        elif search == finding.TABLES:
            scratch.make_probing(self._n_tables, self._n_bits)
        if len(self._groups["postings"][0]):
            scratch.make_sums(points)
        if search != finding.EXACT and (search != finding.TABLES or at_least or by_cells):
            scratch.make_scanning(max(room, n_cells))
        return scratch


def _at_own_dial(
    wanted: EffectiveParameters, pool: Candidates, limit: float, metric: Metric, alone: Answers
) -> EffectiveParameters:
    """Return parameters with the dial of a query with these candidates, and note it."""
    step, reason, count = 0, dials.NO_CHOICE, len(pool)
    if count > wanted.k:
        candidates = (pool.points, pool.inverses, pool.rows, pool.costs)
        step = dials.fall_off_step(
            candidates,
            count,
            wanted.k,
            np.float32(limit),
            pool.scratch,
            factor_of(wanted),
            METRICS[metric],
        )
        reason = dials.FALL_OFF
    alone.dials[0], alone.reasons[0] = step / dials.STEPS, reason
    return replace(wanted, diversity=step / dials.STEPS)
