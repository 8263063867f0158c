"""Calls the kernels with the arrays of a generation, a plan, and scratch memory."""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only, release
from divgrpc.columns.ids import ID_TEXTS
from divgrpc.columns.texts import ENDS
from divgrpc.hashing.lists import entries_listed
from divgrpc.kernels import code_scan, exact, pairwise, query, records, reports
from divgrpc.kernels.batch import BATCH_QUERIES, scan_batch, score_batch
from divgrpc.kernels.greedy import CROWDED_RATIO
from divgrpc.kernels.registers import record_of, register
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.parameters.query import POOL_WORK, SEARCH_GROWTH
from divgrpc.search.arrays import (
    NO_FILTER,
    Answers,
    empty_answers,
    pack_queries,
    with_lists,
    with_tiles,
)
from divgrpc.search.code_order import CodeOrder
from divgrpc.search.dials import METRICS
from divgrpc.search.explanations import Selection, explain
from divgrpc.search.memory import PROBES_MAX, Memory
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.refusals import WithinQuotas
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import Picks, relevance, select_different
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric
from divgrpc.vectors import Rows, SparseRows

# Initial number of points that the scratch memory of a search through cells can hold.
_CELL_ROOM_POINTS: Final = 1 << 12

# Query rows are searched together only if there are enough of them and the vectors (exact search)
# or codes (scans) do not fit into the caches. Otherwise searching row by row is at least as fast.
_BATCH_ROWS_MIN: Final = 3
_BATCH_DIMS_MIN: Final = 64
_BATCH_VECTOR_BYTES_MIN: Final = 2 << 20
_BATCH_CODE_BYTES_MIN: Final = 48 << 20
# Each row of a batch may keep at most 1 / _BATCH_POINTS_RATIO of all points. All rows of a full
# batch together may keep at most _BATCH_BYTES_MAX bytes.
_BATCH_POINTS_RATIO: Final = 4
_BATCH_BYTES_MAX: Final = 4 << 20
# If a query is far from the points that pass a filter, the cells nearest to it hold few of them. So
# a query reads cells with at least this share of the mean number of points that pass.
_FILTERED_SHARE: Final = 0.7
_NO_OWNERS: Final = np.empty(0, np.int64)
_NUMBERS: Final = itertools.count(1)
# Bytes that a kept point takes: four for its row number and four for its distance.
_KEPT_BYTES: Final = 8


class Searcher:
    """Answers queries over the arrays of one generation.

    All defaults of `parameters` must be filled in. `longest_first`: whether Build has sorted the
    points by length, longest first, as it sorts label factors.
    """

    has_lasting_rows = True  # a row is the same point in all searches
    has_one_thread = False  # threads may share a searcher

    def __init__(
        self,
        arrays: Mapping[str, Array],
        parameters: BuildParameters,
        dims: int,
        *,
        longest_first: bool = False,
    ) -> None:
        arrays = with_lists(with_tiles(arrays), dims)
        if longest_first:
            arrays["longest_first"] = read_only(np.ones(1, np.uint8))
        if "ids" in arrays and ID_TEXTS + ENDS not in arrays:
            arrays["result_ids"] = arrays["ids"]
        # `_index` keeps alive every array whose address is in `_register`.
        self._index = record_of(records.Index, arrays, {"d": dims, "m": dims})
        self._register = register(self._index)
        # The ids of results, empty if they are row numbers. Text ids are put in by the engine.
        self.ids: IntArray = self._index.result_ids
        self._arrays = arrays
        self._parameters = parameters
        self.metric: Metric = parameters.metric
        self.dims = dims
        self._n_points: int = self.points.shape[0]
        self._n_cells = len(self._index.cells.centres)
        self._order = CodeOrder(self._index.cells)
        self._n_tables, self._n_bits = parameters.n_tables or 0, parameters.n_bits or 0
        self._local = threading.local()
        # No other searcher of this process has this number.
        self.number = next(_NUMBERS)

    @property
    def points(self) -> Rows:
        """The points as rows, dense or sparse."""
        points = self._index.points
        if len(points.indptr):
            return SparseRows(points.indptr, points.indices, points.values, self.dims)
        return points.vectors

    @property
    def nonzeros(self) -> int | None:
        """The number of stored values of all points; None if points are dense."""
        points = self._index.points
        return len(points.values) if len(points.indptr) else None

    @property
    def point_records(self) -> records.Points:
        """The arrays of the points, for kernels."""
        return self._index.points

    @property
    def register(self) -> IntArray:
        """The register of the arrays, for kernels."""
        return self._register

    def release(self) -> None:
        """Allow the operating system to drop the pages of memory-mapped arrays."""
        for array in self._arrays.values():
            release(array)

    @property
    def scores_longest(self) -> bool:
        """Whether scans first score the longest points, to skip points too short to be near."""
        by_length = len(self._index.longest_first) > 0 and not self._n_cells
        return by_length and bool(exact.ends_early(self._index.length_bounds))

    @property
    def max_probes(self) -> int:
        """Maximum number of buckets or cells that a search can probe."""
        return self._n_cells or PROBES_MAX

    @property
    def least_probes(self) -> int:
        """Minimum number of probes: 1 with cells, otherwise one for each hash table."""
        return self._n_tables or 1

    def plan(
        self,
        parameters: EffectiveParameters,
        *,
        probe_on: bool = False,
        pool_limit: int | None = None,
        retries: int = 0,
        passing: int | None = None,
        rows: int | None = None,
        picks: bool = True,
    ) -> QueryPlan:
        """Return the plan of queries with these parameters.

        `probe_on`: if the probed buckets or cells hold fewer points than the maximum number of
        candidates, probe more; if all probed buckets hold too few, search all points. `retries`:
        maximum number of times that a query row is searched again with greater limits because fewer
        than k of its candidates remain without near-copies. `pool_limit`: maximum number of
        candidates that a pool (the candidates among which a selector picks) grows to. `passing`:
        number of points that pass the filter of the queries; None if there is no filter. `rows`:
        number of points, if it is not the number of rows. `picks`: whether results are picked;
        otherwise only candidates are found.
        """
        points = passing or rows or self._n_points
        # With inverted lists, four times as many candidates take three times as long to find. So a
        # pool grows in a second search; not within quotas, which routers search without lists.
        by_lists = picks and parameters.search == "exact" and len(self._index.lists.starts) > 0
        plan_of = partial(
            QueryPlan.of,
            metric=self.metric,
            points=points,
            min_points=self._enough_points(parameters, points, passing) if probe_on else 0,
            pool_limit=pool_limit,
            stored=rows or self._n_points,
            picks=picks,
        )
        plan, roomier, wider = plan_of(parameters, grow=not by_lists), None, None
        if plan.copy_limit < 0:
            return plan
        may_widen = retries > 0 and 0 < parameters.hash_limit < points
        if may_widen:
            larger = _with_larger_limits(parameters)
            candidates = min(larger.candidates_limit or points, larger.hash_limit, points)
            if max(candidates, larger.k) <= min(pool_limit or points, POOL_WORK // larger.k):
                again = partial(self.plan, larger, retries=retries - 1, pool_limit=pool_limit)
                wider = again(probe_on=probe_on, passing=passing, rows=rows, picks=picks)
        if plan.candidates_max < plan.pool_max and (by_lists or may_widen):
            hash_limit = max(parameters.hash_limit, plan.pool_max if may_widen else 0)
            roomier = replace(plan_of(replace(parameters, hash_limit=hash_limit)), wider=wider)
        return replace(plan, roomier=roomier, wider=wider)

    def farther(self, plan: QueryPlan, passing: int | None, rows: int) -> QueryPlan:
        """Return a plan of searches for many more candidates than `plan` finds."""
        parameters, growth = plan.parameters, SEARCH_GROWTH
        larger = replace(
            parameters,
            hash_limit=growth * parameters.hash_limit,
            candidates_limit=growth * parameters.candidates_limit,
        )
        return self.plan(larger, probe_on=True, passing=passing, rows=rows, picks=False)

    def _enough_points(
        self, parameters: EffectiveParameters, points: int, passing: int | None
    ) -> int:
        """Return the number of hashed points that give the selector its maximum of candidates.

        The number of probes that Build chose may find fewer points for queries that do not resemble
        points, such as normals of hyperplanes.
        """
        candidates = parameters.candidates_limit or parameters.k
        enough = min(candidates, parameters.hash_limit or points, points)
        if passing and self._n_cells:
            in_probes = parameters.n_probes * passing / self._n_cells
            enough = max(enough, int(_FILTERED_SHARE * in_probes))
        return enough

    def answer(self, queries: Rows, plan: QueryPlan, passing: PassingRows | None = None) -> Answers:
        """Answer queries whose rows are already prepared for the metric.

        `passing`: the points that pass a filter, at least one; None if there is no filter.
        """
        answers = self._answer(queries, plan, passing)
        if plan.roomier is None and plan.wider is None:
            return answers
        # For few rows, Python lists take a tenth of the time of numpy.
        pools, copies, duplicates = answers.stats[records.POOL_SIZE :].tolist()

        def answer_again(row: int) -> None:
            next_plan = plan.wider if duplicates[row] else None
            if plan.roomier is not None and CROWDED_RATIO * copies[row] >= pools[row] > 0:
                next_plan = plan.roomier
            if next_plan is not None:
                answers.put(row, self.answer(queries[row : row + 1], next_plan, passing))

        self.for_each(range(len(queries)), answer_again)
        return answers

    def for_each(self, rows: Iterable[int], answer: Callable[[int], object]) -> None:
        """Answer rows one by one."""
        for row in rows:
            answer(row)

    def _answer(self, queries: Rows, plan: QueryPlan, passing: PassingRows | None) -> Answers:
        answers = empty_answers(len(queries), plan.parameters.k, plan.parameters)
        if not plan.one_by_one:
            self._run(queries, plan, answers, passing)
            return answers
        is_only = len(queries) == 1

        def answer_row(row: int) -> None:
            # Kernels take contiguous arrays only, so one column of `answers` cannot be passed.
            single = answers if is_only else empty_answers(1, plan.parameters.k, plan.parameters)
            self._run(queries[row : row + 1], plan, single, passing)
            if plan.kernel.step == records.CANDIDATES:
                places = self._select(plan, single)
            else:
                places = self._local.memory.scratch.picks[: single.counts[0]]
            self._comment(plan, self._scratch_candidates(single), places, single)
            if not is_only:
                answers.put(row, single)

        self.for_each(range(len(queries)), answer_row)
        return answers

    def find_candidates(
        self, query: Rows, plan: QueryPlan, passing: PassingRows | None
    ) -> tuple[CandidateSet, Answers]:
        """Return the candidates of one query, nearest first, and the answer without results.

        `plan`: a plan without picks. The candidates are valid until this thread searches again.
        """
        single = empty_answers(1, plan.parameters.k, plan.parameters)
        self._run(query, plan, single, passing)
        return self._scratch_candidates(single, int(single.counts[0])), single

    def restore_candidates(
        self, plan: QueryPlan, rows: npt.NDArray[np.int32], distances: FloatArray
    ) -> CandidateSet:
        """Return candidates that an earlier search with the plan has found, as `candidates_of`."""
        if getattr(self._local, "memory", None) is None:
            self._memory(plan, _CELL_ROOM_POINTS, self._n_points)
        return self.candidates_of(rows, distances)

    def candidates_of(self, rows: npt.NDArray[np.int32], distances: FloatArray) -> CandidateSet:
        """Return the candidates in `rows` (m,) for a selection, with their distances from a query.

        They are valid until this thread searches again.
        """
        memory = self._local.memory
        if len(memory.scratch.selection.apart) < len(rows):
            memory.fit_selection(len(rows), 0)
            # A plan that fits the memory must be looked up again.
            self._local.plan = None
        return CandidateSet(self._index.points, rows, distances, memory.scratch.selection)

    def _scratch_candidates(self, single: Answers, count: int | None = None) -> CandidateSet:
        """Return the first `count` candidates of the last search; None stands for the pool."""
        scratch: records.Scratch = self._local.memory.scratch
        count = int(single.stats[records.POOL_SIZE, 0]) if count is None else count
        rows, distances = scratch.candidates.rows[:count], scratch.candidates.distances[:count]
        return CandidateSet(self._index.points, rows, distances, scratch.selection)

    def put_picks(
        self,
        plan: QueryPlan,
        candidates: CandidateSet,
        picks: Picks,
        single: Answers,
        *,
        shown: IntArray | None = None,
        quotas: WithinQuotas | None = None,
    ) -> None:
        """Write the picks from the candidates of one query into its answer.

        shown: (s,) row numbers of the points that were shown before. quotas: the quotas within
        which the picks were made, if the caller wants explanations.
        """
        self._write(candidates, picks, single)
        rows = None if shown is None else shown.astype(np.int32)
        self._comment(plan, candidates, picks.places, single, shown=rows, quotas=quotas)

    def keys_of(self, rows: npt.NDArray[np.integer[Any]]) -> IntArray:
        """Return the numbers (m,) by which points at the same distance are ordered."""
        ids = self._index.ids
        return ids[rows] if len(ids) else rows.astype(np.int64)

    def _write(self, candidates: CandidateSet, picks: Picks, single: Answers) -> None:
        k = len(picks.places)
        points = candidates.rows[picks.places]
        single.ids[0, :k] = self.ids[points] if len(self.ids) else points
        single.scores[0, :k] = relevance(candidates.costs[picks.places], self.metric)
        single.selection_scores[0, :k] = picks.values
        single.ids[0, k:] = -1
        single.scores[0, k:] = single.selection_scores[0, k:] = np.nan
        single.counts[0] = k

    def _select(self, plan: QueryPlan, single: Answers) -> IntArray:
        """Select from the candidates in scratch memory, and write the answer to one query.

        Returns the positions of the picks among the candidates.
        """
        pool = int(single.stats[records.POOL_SIZE, 0])
        candidates = self._scratch_candidates(single, int(single.counts[0]))
        parameters = plan.parameters
        if parameters.diversity_auto:
            parameters = replace(parameters, diversity=float(single.dials[0]))
        picks, pool, copies, duplicates = select_different(
            candidates, pool, plan.copy_limit, parameters, self.metric
        )
        if parameters.lose_at_most is not None:
            single.dials[0], single.reasons[0] = picks.dial, picks.reason
        self._write(candidates, picks, single)
        single.stats[records.POOL_SIZE :, 0] = pool, copies, duplicates
        if len(single.gaps):
            single.gaps[0] = picks.gap
        return picks.places

    def _comment(
        self,
        plan: QueryPlan,
        pool: CandidateSet,
        places: IntArray,
        single: Answers,
        *,
        shown: npt.NDArray[np.int32] | None = None,
        quotas: WithinQuotas | None = None,
    ) -> None:
        """Add to the answer to one query what the caller wants to know about its selection.

        `places`: positions of the results in the pool. `shown`, `quotas`: as in `Selection`.
        """
        parameters = plan.parameters
        if not parameters.has_fixed_dial:
            parameters = replace(parameters, diversity=float(single.dials[0]))
        if parameters.with_report and plan.kernel.step == records.CANDIDATES:
            self._report(pool, places, parameters, shown, single)
        if not (parameters.explain or parameters.list_collapsed):
            return
        copies, n_copies = int(single.stats[-1, 0]), int(single.stats[records.COPIES_COLLAPSED, 0])
        owners = self._copy_owners(plan, pool, places, n_copies)
        if parameters.list_collapsed:
            self._list_copies(pool, owners, single)
        if not parameters.explain:
            return
        selection = Selection(
            pool,
            places,
            len(places) - copies,
            plan.copy_limit,
            owners,
            parameters,
            self.metric,
            shown,
            quotas,
        )
        single.explanations.append(explain(selection, self.ids))

    def _report(
        self,
        pool: CandidateSet,
        places: IntArray,
        parameters: EffectiveParameters,
        shown: npt.NDArray[np.int32] | None,
        single: Answers,
    ) -> None:
        """Write a report on the results at `places` of the pool into the answer to one query."""
        plain = np.arange(min(parameters.k, len(pool)))
        if shown is not None and len(shown):
            # What was shown on earlier pages is no choice any more.
            plain = np.flatnonzero(~np.isin(pool.rows, shown))[: parameters.k]
        reports.report(
            self._register, pool.rows, pool.costs, places, plain, METRICS[self.metric],
            float(parameters.diversity), single.reports, single.plain_ids,
        )  # fmt: skip

    @staticmethod
    def _copy_owners(
        plan: QueryPlan, pool: CandidateSet, places: IntArray, copies: int
    ) -> IntArray:
        """Return the number of the result that each candidate in the pool is a near-copy of, or -1.

        The array is empty if nobody asks for near-copies, if none are collapsed, or if there are
        none: `copies` is their number.
        """
        # Most queries meet no near-copies.
        if plan.copy_limit < 0 or not plan.parameters.list_collapsed or not copies:
            return _NO_OWNERS
        owners, limit = np.empty(len(pool), np.int64), np.float32(plan.copy_limit)
        pairwise.assign_copies(
            pool.points, pool.rows, len(pool), places, len(places), limit, owners
        )
        return owners

    def _list_copies(self, pool: CandidateSet, owners: IntArray, single: Answers) -> None:
        """Append to `single.copies`, for each result, the ids of its near-copies in the pool."""
        single.copies.extend([_NO_OWNERS] * single.ids.shape[1])
        if not len(owners):
            return
        for place in np.unique(owners[owners >= 0]).tolist():
            copies = pool.rows[np.flatnonzero(owners == place)]
            single.copies[place] = self.ids[copies] if len(self.ids) else copies.astype(np.int64)

    def hashed(self, queries: Rows, parameters: EffectiveParameters) -> list[IntArray]:
        """Return the ids of the hashed points of each query, unsorted.

        At most `hash_limit` ids are returned for each query; 0 means no limit.
        """
        room = parameters.hash_limit or self._n_points
        answers = empty_answers(len(queries), room, parameters)
        self._run(queries, QueryPlan.of_hashed(parameters, self.metric), answers)
        return [ids[:count] for ids, count in zip(answers.ids, answers.counts, strict=True)]

    def exact_work(self, queries: Rows, n_nearest: int) -> tuple[IntArray, IntArray]:
        """Return the numbers of points and of list entries that exact search reads, (nq,) each.

        `n_nearest` is the number of points to find; it may exceed the number of points.
        """
        lists, nonzeros = self._index.lists, self.nonzeros or 0
        entries = entries_listed(lists, self._n_points, nonzeros, queries, n_nearest)
        if not (entries.any() or exact.ends_early(self._index.length_bounds)):
            return np.full(len(queries), self._n_points), entries
        # The selector is left at its default although its picks are not used, because with the
        # selector `nearest` the search would be for fewer candidates.
        limits = QueryParameters(k=1, candidates_limit=n_nearest, search="exact")
        answers = self.answer(queries, self.plan(limits.resolve(self._n_points, "exact")))
        return answers.stats[records.POINTS_SCORED].astype(np.int64), entries

    def _run(
        self, queries: Rows, plan: QueryPlan, answers: Answers, passing: PassingRows | None = None
    ) -> None:
        """Answer all query rows with the kernel `query.answer`, in batches if that is faster."""
        if len(queries) >= _BATCH_ROWS_MIN and passing is None:
            room = self._batch_room(plan, sparse=isinstance(queries, SparseRows))
            if room:
                self._run_together(queries, plan, answers, room)
                return
        arrays, results, room = pack_queries(queries), answers.results, _CELL_ROOM_POINTS
        span = (0, len(queries), False)
        index, passing_points = self._passing(plan, passing, len(queries))
        while room:
            memory = self._memory(plan, room, passing.count if passing else self._n_points)
            memory.set_passing(passing_points)
            needed_room = query.answer(index, memory.register, plan.fields, span, arrays, results)
            # Allocate twice what this query needs, because the next one may need a little more.
            room = 2 * needed_room

    def _passing(
        self, plan: QueryPlan, passing: PassingRows | None, queries: int
    ) -> tuple[IntArray, records.Passing]:
        """Return the register to search, and the points that pass as the search reads them."""
        if passing is None:
            return self._register, NO_FILTER
        search, is_limit = plan.kernel.search, 0 < plan.kernel.hash_limit < passing.count
        by_tables = search == records.TABLES
        if search == records.EXACT or not (by_tables or is_limit):
            return self._register, passing.by_row
        if self._n_cells:
            packed = passing.packed(self._index, self._order, queries)
            if packed is not None:
                return packed.register, packed.passing
        by_code = passing.by_code(self._order)
        if not (is_limit or self._n_cells):
            # If too few points are in the probed buckets, all points that pass are scored.
            by_code = by_code._replace(rows=passing.by_row.rows)
        return self._register, by_code

    def _run_together(self, queries: Rows, plan: QueryPlan, answers: Answers, room: int) -> None:
        """Search the query rows in batches; answer each batch with the kernel `query.answer`."""
        memory = self._memory(plan, self._n_points, self._n_points)
        memory.set_passing(NO_FILTER)
        memory.fit_batch(BATCH_QUERIES, room)
        arguments: tuple[Any, ...] = (self._register, memory.register, plan.fields)
        search = score_batch if plan.kernel.search == records.EXACT else scan_batch
        arrays, results = pack_queries(queries), answers.results
        for first in range(0, len(queries), BATCH_QUERIES):
            stop = min(first + BATCH_QUERIES, len(queries))
            search(*arguments, arrays, first, stop - first)
            # The scratch memory can hold all points, so the kernel always returns 0.
            query.answer(*arguments, (first, stop, True), arrays, results)

    def exact_together(self, plan: QueryPlan, *, sparse: bool) -> int:
        """Return the maximum number of query rows that an exact search answers together.

        A batch of exact searches takes little longer than one exact search. This does not hold for
        scans, so 1 is returned for them, and for rows that are answered one by one.
        """
        exact_search = plan.kernel.search == records.EXACT and not plan.one_by_one
        return BATCH_QUERIES if exact_search and self._batch_room(plan, sparse=sparse) else 1

    def _batch_room(self, plan: QueryPlan, *, sparse: bool) -> int:
        """Return the number of points that the memory of each query of a batch must hold.

        If queries are to be searched one by one, 0 is returned. `sparse`: whether queries are
        sparse.
        """
        kernel, index = plan.kernel, self._index
        if kernel.search == records.EXACT:
            # With the step HASH_ONLY, an exact search computes no distances.
            dense = not sparse and kernel.step != records.HASH_ONLY
            large = index.points.vectors.nbytes > _BATCH_VECTOR_BYTES_MIN
            pays = dense and self.dims >= _BATCH_DIMS_MIN and large
            room = 2 * plan.candidates_max + exact.BOUND_ROWS
        else:
            scan = kernel.search != records.TABLES and 0 < kernel.hash_limit < self._n_points
            whole = not self._n_cells and not self.scores_longest
            pays = scan and whole and index.hashing.codes.nbytes > _BATCH_CODE_BYTES_MIN
            room = 2 * kernel.hash_limit + code_scan.BLOCK_POINTS
        room_is_small = _BATCH_POINTS_RATIO * room <= self._n_points
        fits = BATCH_QUERIES * room * _KEPT_BYTES <= _BATCH_BYTES_MAX
        return room if pays and room_is_small and fits else 0

    def _memory(self, plan: QueryPlan, cell_room: int, n_open: int) -> Memory:
        """Return this thread's scratch memory, large enough for a plan.

        For a search through cells, the returned memory can hold `cell_room` points. `n_open`:
        number of points that a query may return.
        """
        local = self._local
        if getattr(local, "plan", None) is plan and cell_room <= local.cell_room:
            # Memory never shrinks, and most calls repeat a plan.
            last: Memory = local.memory
            return last
        kernel, index, memory = plan.kernel, self._index, getattr(local, "memory", None)
        if memory is None:
            sparse = len(index.points.indptr) > 0
            memory = Memory(self.dims, index.hashing.hyperplanes.shape, sparse=sparse)
            local.memory = memory
        by_tables, is_exact = kernel.search == records.TABLES, kernel.search == records.EXACT
        is_limit = 0 < kernel.hash_limit < n_open
        by_cells = self._n_cells > 0 and (by_tables or (not is_exact and is_limit))
        points = min(cell_room, self._n_points) if by_cells else self._n_points
        memory.fit_points(points)
        room = len(memory.scratch.candidates.rows)
        memory.fit_selection(min(plan.candidates_max, room), kernel.k)
        if by_cells:
            memory.fit_cells(self._n_cells)
        elif by_tables:
            memory.fit_probes(self._n_tables, self._n_bits)
        if len(index.lists.starts):
            memory.fit_lists(self._n_points)
        if not is_exact and (not by_tables or kernel.min_points or by_cells):
            memory.fit_scan(max(points, self._n_cells))
        local.plan, local.cell_room = plan, cell_room
        return memory


def _with_larger_limits(parameters: EffectiveParameters) -> EffectiveParameters:
    return replace(
        parameters,
        hash_limit=SEARCH_GROWTH * parameters.hash_limit,
        candidates_limit=SEARCH_GROWTH * parameters.candidates_limit,
    )
