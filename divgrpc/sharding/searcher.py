"""Finds the points of one shard, as a router asks for them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.kernels import records, shards
from divgrpc.kernels.records import NO_COPIES, Plan
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import NO_FILTER, empty_answers, pack_queries
from divgrpc.search.code_order import CodeOrder
from divgrpc.search.dials import METRICS
from divgrpc.search.memory import Memory
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.searcher import Searcher
from divgrpc.sharding import layouts
from divgrpc.sharding.best_points import FoundPoints
from divgrpc.sharding.hashed_query import HashedQuery
from divgrpc.types import EffectiveParameters, FloatArray, IntArray
from divgrpc.vectors import Rows

_NO_CODES: Final = np.empty(0, np.float32)
_NO_TAGS: Final = np.empty(0, np.int32)
# What the kernel of a whole query needs to know beside its plan.
_PARAMETERS: Final = EffectiveParameters(
    k=1, diversity=0.0, selector="nearest", variant="corrected", search="exact", hash_limit=0,
    candidates_limit=0, max_distance=None, sampling="uniform", seed=0, rounding="exchange",
    n_probes=0,
)  # fmt: skip

# Maximum number of plans that are kept.
_KEPT_PLANS: Final = 1_024


class ShardHits(NamedTuple):
    """Points of a shard, the best in the order of the search first, until it searches again.

    rows: (m,) int32 rows.
    distances: (m,) float32 distances from the query.
    codes: (m,) float32 distances by code; empty if the search did not compare codes.
    tags: (m,) int32 numbers of the probes that found the points; empty without tables, and if the
        router needs none of them.
    total: number of points that the search finds. It returns only the best of them.
    n_probes: number of buckets that were probed.
    """

    rows: npt.NDArray[np.int32]
    distances: FloatArray
    codes: FloatArray
    tags: npt.NDArray[np.int32]
    total: int
    n_probes: int = 0


class ShardSearcher(Searcher):
    """Searches the arrays of a shard, given the margins of a query and the cells to read."""

    def __init__(
        self, arrays: Mapping[str, Array], parameters: BuildParameters, dims: int, rows: int
    ) -> None:
        """Take the arrays of `rows` points of `dims` dimensions.

        They may lack the vectors of the points. Then only `hash_points` may be called.
        """
        super().__init__(arrays, parameters, dims)
        self._n_points = rows

    @property
    def order(self) -> CodeOrder:
        """The order of the codes."""
        return self._order

    def _plan(self, **fields: Any) -> QueryPlan:  # noqa: ANN401  # of a plan
        """Return a plan that only finds points."""
        return _plan_of(METRICS[self.metric], self._n_points, **fields)

    def nearest(self, query: Rows, passing: PassingRows | None, most: int) -> ShardHits:
        """Find the nearest points, at most `most`.

        passing: the points that pass a filter; None stands for all points.
        """
        open_points = self._n_points if passing is None else passing.count
        plan = self._plan(candidates_limit=min(most, open_points))
        single = empty_answers(1, 1)
        self._run(query, plan, single, passing)
        candidates = self._local.memory.scratch.candidates
        count = int(single.counts[0])
        rows, distances = candidates.rows[:count], candidates.distances[:count]
        return ShardHits(rows, distances, _NO_CODES, _NO_TAGS, open_points)

    def in_cells(
        self,
        query: HashedQuery,
        passing: PassingRows | None,
        most: int,
        *,
        by_code: bool,
        hamming: bool,
    ) -> ShardHits:
        """Find the points of the cells of a query that are nearest, by code or by distance.

        If the query has all cells, they are in the order of their numbers.
        """
        by_place = NO_FILTER if passing is None else passing.by_code(self._order)
        plan, count, total = self._find_in_cells(
            query, by_place, most, by_code=by_code, hamming=hamming
        )
        if not count:
            return NO_POINTS
        hits = self._scored(query.row, plan, count, count, total)
        if by_code:
            return hits
        return _nearest(hits, self.keys_of(hits.rows), min(most, count), count)

    def _find_in_cells(
        self,
        query: HashedQuery,
        by_place: records.Passing,
        most: int,
        *,
        by_code: bool,
        hamming: bool,
    ) -> tuple[QueryPlan, int, int]:
        """Write points of cells into scratch memory; see `shards.find_by_cells`.

        Returns the plan, the number of points that are written, and of those in the cells.
        """
        plan = self._plan(
            search=records.TABLES, scan=records.SCAN_HAMMING if hamming else records.SCAN,
            hash_limit=most,
        )  # fmt: skip
        memory = self._fit(plan, by_place)
        counts = shards.find_by_cells(
            self._register, memory.register, plan.fields, query.margins, query.cells, query.bases,
            by_code,
        )  # fmt: skip
        return plan, *counts

    def by_scan(
        self,
        query: HashedQuery,
        passing: PassingRows | None,
        most: int,
        *,
        hamming: bool,
        uniform: bool,
        seed: int,
    ) -> ShardHits:
        """Find the points that are nearest by code.

        uniform: whether points at the same distance by code are ordered by priorities with `seed`;
        otherwise they are ordered by their distances.
        """
        by_row = NO_FILTER if passing is None else passing.by_code(self._order)
        open_points = self._n_points if passing is None else passing.count
        most = min(most, open_points)
        plan, tie_start, count = self._find_by_scan(
            query, by_row, most, hamming=hamming, uniform=uniform, seed=seed
        )
        return self._scored(query.row, plan, most, count, open_points, tie_start)

    def _find_by_scan(
        self,
        query: HashedQuery,
        by_row: records.Passing,
        most: int,
        *,
        hamming: bool,
        uniform: bool,
        seed: int,
    ) -> tuple[QueryPlan, int, int]:
        """Write the points nearest by code into scratch memory; see `shards.find_by_scan`.

        most: at most the number of points that pass.

        Returns the plan, the start of ties, and the number of points.
        """
        search = records.SCAN_HAMMING if hamming else records.SCAN
        plan = self._plan(
            search=search, hash_limit=most, uniform=uniform, seed=np.uint64(seed & (2**64 - 1))
        )
        memory = self._fit(plan, by_row)
        counts = shards.find_by_scan(self._register, memory.register, plan.fields, query.margins)
        return plan, *counts

    def in_tables(
        self,
        query: HashedQuery,
        passing: PassingRows | None,
        probes: int,
        *,
        least: int,
        enough: int,
        most: int,
        seed: int,
    ) -> ShardHits:
        """Find the points of the probed buckets, in the order of the probes.

        probes: the least number of buckets. More are probed until `least` points are found; none
        are probed after `enough` points have been found, if it is above 0.
        most: if it is above 0 and no more buckets are probed, a sample of so many points is
        returned, which `seed` draws.
        """
        by_row = NO_FILTER if passing is None else passing.by_code(self._order)
        # No further bucket has a point when all have been hits.
        least = min(least, self._n_points if passing is None else passing.count)
        plan = self._plan(
            search=records.TABLES, n_probes=probes, min_points=least, hash_limit=most,
            seed=np.uint64(seed & (2**64 - 1)),
        )  # fmt: skip
        memory = self._fit(plan, by_row)
        memory.fit_tags()
        count, total, n_probes = shards.find_by_tables(
            self._register, memory.register, plan.fields, query.margins, enough
        )
        hits = self._scored(query.row, plan, count, count, total)
        # The search probes at least these buckets, unless it ends before them at `enough` points.
        needs_tags = enough > 0 or n_probes > max(1, probes)
        tags = memory.scratch.probes.tags[:count] if needs_tags else _NO_TAGS
        return hits._replace(codes=_NO_CODES, tags=tags, n_probes=int(n_probes))

    def hash_points(
        self, query: HashedQuery, how: int, limit: int, *, probes: int, hamming: bool, seed: int
    ) -> FoundPoints:
        """Return the points that a search hashes.

        how: CELLS to TABLES of `layouts`.
        limit: maximum number of points, at least 1; with TABLES, 0 stands for all. With CELLS there
            is no limit.

        Points at the same distance by code are ordered by priorities with `seed`, or by id.
        """
        by_code = how in {layouts.CELLS_BY_CODE, layouts.SCAN}
        if how == layouts.TABLES:
            plan = self._plan(
                search=records.TABLES, n_probes=probes, hash_limit=limit,
                seed=np.uint64(seed & (2**64 - 1)),
            )  # fmt: skip
            memory = self._fit(plan, NO_FILTER)
            count, _, _ = shards.find_by_tables(
                self._register, memory.register, plan.fields, query.margins, 0
            )
            return FoundPoints(self.keys_of(memory.scratch.candidates.rows[:count]), _NO_CODES)
        if how == layouts.SCAN:
            _, _, count = self._find_by_scan(
                query, NO_FILTER, min(limit, self._n_points), hamming=hamming, uniform=True,
                seed=seed,
            )  # fmt: skip
        else:
            _, count, _ = self._find_in_cells(
                query, NO_FILTER, limit, by_code=by_code, hamming=hamming
            )
        rows, codes = self._local.memory.scratch.candidates
        return FoundPoints(self.keys_of(rows[:count]), codes[: count if by_code else 0].copy())

    def _fit(self, plan: QueryPlan, passing: records.Passing) -> Memory:
        memory = self._memory(plan, self._n_points, self._n_points)
        memory.set_passing(passing)
        return memory

    def _scored(  # noqa: PLR0917  # one argument per number
        self, query: Rows, plan: QueryPlan, most: int, count: int, total: int, tie_start: int = 0
    ) -> ShardHits:
        """Score the first `count` points in scratch memory, and return `most` of them.

        total: the number of points that the search finds.
        tie_start: if there are more than `most`, the place of the first of those that tie for the
            last places.
        """
        memory: Memory = self._local.memory
        distances = np.empty(max(1, count), np.float32)
        shards.score_found(
            self._register, memory.register, plan.fields, pack_queries(query), tie_start, count,
            most, distances,
        )  # fmt: skip
        rows, codes = memory.scratch.candidates
        return ShardHits(rows[:most], distances[:most], codes[:most], _NO_TAGS, total)


@lru_cache(_KEPT_PLANS)
def _plan_of(
    metric: int,
    n_points: int,
    scan: int | None = None,
    **fields: Any,  # noqa: ANN401  # of a plan
) -> QueryPlan:
    """Return a plan that only finds points, kept because most questions repeat one.

    scan: the search for the kernel, if memory is needed for another one.
    """
    kernel = Plan(
        search=records.EXACT, n_probes=0, min_points=0, k=1, hash_limit=0, candidates_limit=0,
        max_distance=np.float32(np.inf), step=records.CANDIDATES, relevance=np.float32(1),
        rule=records.CORRECTED_RULE, uniform=True, seed=np.uint64(0),
        product=metric == METRICS["inner_product"], metric=metric, copy_limit=NO_COPIES,
        pool_limit=0, dial_choice=records.BY_CALLER, dial_factor=0.0, n_points=n_points, dial=0.0,
    )._replace(**fields)  # fmt: skip
    kernel_plan = kernel if scan is None else kernel._replace(search=scan)
    return QueryPlan(_PARAMETERS, kernel, tuple(kernel_plan), kernel.candidates_limit, True)


def nearest_places(ids: IntArray, distances: FloatArray, count: int) -> npt.NDArray[np.int32]:
    """Return the places (count,) of the nearest points, in any order if these are all.

    ids, distances: (m,), at least `count` points. Ties go to the smaller id.
    """
    if count == len(ids):
        return np.arange(count, dtype=np.int32)
    places = np.empty(count, np.int32)
    shards.find_nearest(ids, distances, places)
    return places


def _nearest(hits: ShardHits, ids: IntArray, most: int, count: int) -> ShardHits:
    """Return the `most` nearest points."""
    places = nearest_places(ids, hits.distances, most)
    return ShardHits(hits.rows[places], hits.distances[places], _NO_CODES, _NO_TAGS, count)


# What a search finds if no point passes.
NO_POINTS: Final = ShardHits(_NO_TAGS, _NO_CODES, _NO_CODES, _NO_TAGS, 0)
