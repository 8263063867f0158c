"""Searches shards as `Searcher` searches one index: gathers candidates, and selects from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.errors import DivgrpcError
from divgrpc.kernels import records, shards
from divgrpc.kernels.dials import DIAL_STEPS
from divgrpc.kernels.greedy import CROWDED_RATIO
from divgrpc.kernels.registers import record_of, register
from divgrpc.kernels.replies import gather_points
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import NO_FILTER, Answers, empty_answers, pack_queries
from divgrpc.search.memory import Memory
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.refusals import WithinQuotas
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.searcher import Searcher
from divgrpc.search.selectors import Picks
from divgrpc.sharding.finding import (
    Finder,
    PassingSomewhere,
    check_bytes,
    check_rows,
    columns_of,
    rows_together,
)
from divgrpc.sharding.hashed_query import HashedQuery
from divgrpc.sharding.held_points import HeldPoints
from divgrpc.sharding.layouts import VECTOR_BYTES_MAX
from divgrpc.sharding.merging import COUNT_MAX, Candidates, Form, Merger
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.pool_growth import PoolGrowth
from divgrpc.sharding.rounds import ShardFaultError, Transcript, UnansweredError
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows

# Number of points and of sparse values that a searcher can gather at first.
_ROOM_POINTS: Final = 1 << 10
_ROOM_VALUES: Final = 1 << 16
# Number of hashed queries that a searcher keeps.
_KEPT_QUERIES: Final = 32
_NO_DISTANCES: Final = np.empty(0, np.float32)
NO_ATTRIBUTES: Final = np.empty(0, np.int32)
_NO_CELLS: Final = np.empty(0, np.int32)


class Buffers:
    """Arrays into which the points of a query are written, in the form of an index.

    The kernels take their addresses once, so they stay the same until more room is needed.
    """

    def __init__(self, form: Form, points: int, values: int) -> None:
        self.points, self.values = points, values
        sizes = {"n": points, "d": form.dims}
        if form.is_sparse:
            sizes |= {"sparse": points, "ends": points + 1, "nonzeros": values}
        else:
            sizes["dense"] = points
        if form.has_inverse_lengths:
            sizes["lengths"] = points
        self._rows = record_of(records.PointRows, None, sizes)
        self._register = register(self._rows)

    @property
    def arrays(self) -> dict[str, Array]:
        """Read-only views, for kernels."""
        arrays = self._rows._asdict()
        return {name: read_only(array) for name, array in arrays.items() if len(array)}

    def sparse(self, count: int) -> dict[str, Array]:
        """Return the sparse vectors of the first points."""
        starts = self._rows.indptr[: count + 1]
        values = int(starts[-1])
        columns = {"indices": self._rows.indices[:values], "values": self._rows.values[:values]}
        return {"indptr": starts, **columns}

    def put(self, candidates: Candidates, count: int) -> None:
        """Write the first candidates; raises `ShardFaultError` for an impossible value."""
        sources = candidates.sources
        fault = gather_points(
            sources.registers, candidates.ids[:count], candidates.owners, candidates.places,
            self._register,
        )  # fmt: skip
        if fault >= 0:
            shard = sources.shards[candidates.owners[fault]]
            raise ShardFaultError(shard, "message has an impossible value of a vector")


class GatheringSearcher(Searcher):
    """Answers queries over the points of all shards; one thread may use it.

    `find_candidates` and `hold` hold points until the next transcript is set. Rows are then numbers
    of points that are held.
    """

    has_lasting_rows = False

    def __init__(
        self,
        shared: Mapping[str, Array],
        parameters: BuildParameters,
        dims: int,
        rows: Sequence[int],
        names: Sequence[str],
        *,
        row_bytes: int,
    ) -> None:
        """Take what all shards share.

        rows: number of points of each shard.
        names: names of the arrays of the points, such as "vectors", and of their codes.
        row_bytes: as in `Finder`.
        """
        self._shared, self._rows, self._build = dict(shared), tuple(rows), parameters
        self._form = Form(dims, "indptr" in names, "inverse_lengths" in names)
        self._has_terms, self._row_bytes = "scan_terms" in names, row_bytes
        self._merger = Merger(self._form)
        self._hashed: dict[tuple[Any, ...], HashedQuery] = {}
        self._growth = PoolGrowth()
        # Maximum number of candidates of each row whose vectors are asked for at first.
        self._vectors_max = 0
        # It must not refer to this searcher: files of a replaced index would stay mapped until the
        # cycle is collected.
        self._held = HeldPoints(
            dims, lambda points: Searcher({**shared, **points}, parameters, dims)
        )
        # Numbers of attributes whose values are wanted with the points that are found.
        self.attributes = NO_ATTRIBUTES
        self.transcript = Transcript()
        self._fit(_ROOM_POINTS, _ROOM_VALUES)

    @property
    def transcript(self) -> Transcript:
        """The replies that are known for the current call."""
        return self._transcript

    @transcript.setter
    def transcript(self, transcript: Transcript) -> None:
        """Begin a call, or a part of it, with these replies."""
        self._transcript = transcript
        self._held.clear()
        self._values: list[tuple[int, Buffer]] = []

    def take_values(self) -> list[tuple[int, Buffer]]:
        """Return messages with values of `attributes`, each with its shard, that came meanwhile."""
        values, self._values = self._values, []
        return values

    def _fit(self, points: int, values: int) -> None:
        """Make room for so many points."""
        self._buffers = Buffers(self._form, points, values)
        super().__init__(self._shared | self._buffers.arrays, self._build, self._form.dims)

    def _answer(self, queries: Rows, plan: QueryPlan, passing: PassingRows | None) -> Answers:
        open_points = sum(self._rows) if passing is None else passing.count
        check_rows(len(queries), plan.kernel, open_points, self._row_bytes)
        self._vectors_max = VECTOR_BYTES_MAX // max(1, self._row_bytes * len(queries))
        return super()._answer(queries, plan, passing)

    def rows_together(self, plan: QueryPlan, open_points: int) -> int:
        """Return how many query rows shards may send points for at once, at least 1.

        open_points: number of points that may be hits.
        """
        return rows_together(plan.kernel, open_points, self._row_bytes)

    def find_candidates(
        self, query: Rows, plan: QueryPlan, passing: PassingRows | None
    ) -> tuple[CandidateSet, Answers]:
        """Return the candidates of one query, and the answer without results; hold them.

        If searches that wait for replies may get as many vectors as a router takes in a round,
        this raises `UnansweredError`.
        """
        open_points = sum(self._rows) if passing is None else passing.count
        if self.transcript.count_missing("find") >= self.rows_together(plan, open_points):
            self.transcript.check()
        single = empty_answers(1, plan.parameters.k, plan.parameters)
        self._run(query, plan, single, passing)
        count = int(single.counts[0])
        distances = self._local.memory.scratch.candidates.distances[:count].copy()
        points = {name: array[:count] for name, array in self._buffers.arrays.items()}
        if self._form.is_sparse:
            points |= self._buffers.sparse(count)
        rows = self.hold(points.pop("ids"), points)
        return self.candidates_of(rows, distances), single

    def hold(self, ids: IntArray, points: Mapping[str, Array]) -> npt.NDArray[np.int32]:
        """Hold points, and return their rows (m,).

        points: the vectors of the points with these ids (m,), by the names of `FETCH_REPLY`.
        """
        rows = self._held.add(ids, points)
        check_bytes(len(self._held), self._row_bytes)
        return rows

    def candidates_of(self, rows: npt.NDArray[np.int32], distances: FloatArray) -> CandidateSet:
        """Return candidates that are held."""
        candidates = super().candidates_of(rows, distances)
        return replace(candidates, points=self._held.searcher.point_records)

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
        """Write the picks from candidates that are held into the answer to one query."""
        searcher = self._held.searcher
        searcher.put_picks(plan, candidates, picks, single, shown=shown, quotas=quotas)

    def keys_of(self, rows: npt.NDArray[np.integer[Any]]) -> IntArray:
        """Return the keys (m,) of points that are held."""
        return self._held.searcher.keys_of(rows)

    def _run(
        self, queries: Rows, plan: QueryPlan, answers: Answers, passing: PassingRows | None = None
    ) -> None:
        """Answer all query rows from the candidates of the shards.

        Raises `UnansweredError` if replies of shards are missing.
        """
        finder = Finder(
            self._rows, self.transcript, self._merger, plan, passing, has_terms=self._has_terms,
            row_bytes=self._row_bytes, attributes=self.attributes, growth=self._growth.factor(plan),
            vectors_max=self._vectors_max,
        )  # fmt: skip
        hashed = self._hash(queries, plan, passing)
        # Other rows may lack replies too. What is asked for these rows goes with their messages.
        candidate_sets = [finder.find(query, finder.first_vectors) for query in hashed]
        is_complete = None not in candidate_sets
        if not is_complete:
            self.transcript.check()
        self._values += finder.values
        for row, candidates in enumerate(candidate_sets):
            assert candidates is not None  # noqa: S101  # no reply is missing
            size = finder.first_vectors
            self._select_from(candidates, row, plan, answers, size)
            while wider := _wider_pool(candidates, row, plan, answers):
                size, grown = wider, finder.find(hashed[row], wider)
                if grown is None:
                    is_complete = False
                    break
                self._select_from(grown, row, _with_pool(plan, row, answers, size), answers, size)
            self._growth.note(plan, finder.first_vectors, size)
        if not is_complete:
            self.transcript.check()

    def for_each(self, rows: Iterable[int], answer: Callable[[int], object]) -> None:
        """Answer rows one by one, such that all of them ask in the same round."""
        for row in rows:
            try:
                answer(row)
            except UnansweredError:
                continue
            except DivgrpcError:
                # An earlier row may raise another error first.
                if self.transcript.is_complete:
                    raise
                break
        self.transcript.check()

    def _hash(
        self, queries: Rows, plan: QueryPlan, passing: PassingRows | None
    ) -> list[HashedQuery]:
        """Return each query row with its margins, and with the cells to read.

        A router answers a query by several computations, so the latest queries are kept.
        """
        restriction = [column.tobytes() for column in columns_of(passing).values()]
        restriction.append(self.attributes.tobytes())
        hashed = []
        for row in range(len(queries)):
            query = queries[row : row + 1]
            key = (plan.fields, *restriction, *_bytes_of(query))
            known = self._hashed.get(key)
            if known is None:
                known = self._hash_row(query, plan, passing)
                if len(self._hashed) >= _KEPT_QUERIES:
                    self._hashed.clear()
                self._hashed[key] = known
            hashed.append(known)
        return hashed

    def _hash_row(self, query: Rows, plan: QueryPlan, passing: PassingRows | None) -> HashedQuery:
        kernel = plan.kernel
        if kernel.search == records.EXACT:
            return HashedQuery(query, _NO_DISTANCES, _NO_CELLS, _NO_DISTANCES, -1, {})
        open_points = sum(self._rows) if passing is None else passing.count
        is_limit = 0 < kernel.hash_limit < open_points
        has_cells = self._n_cells > 0 and (kernel.search == records.TABLES or is_limit)
        memory = self._own_memory(plan)
        counts = passing.cells if isinstance(passing, PassingSomewhere) else NO_FILTER.cells
        n_cells, in_cells = shards.hash_query(
            self._register, memory.register, plan.fields, pack_queries(query), 0,
            read_only(counts), has_cells,
        )  # fmt: skip
        cells, margins = memory.scratch.cells, memory.scratch.code.margins.copy()
        numbers, bases = cells.numbers[:n_cells].copy(), cells.distances[:n_cells].copy()
        in_cells = in_cells if has_cells else -1
        return HashedQuery(query, margins, numbers, bases, in_cells, {})

    def _own_memory(self, plan: QueryPlan) -> Memory:
        """Return scratch memory, large enough for a plan and the points in the buffers."""
        local = self._local
        memory: Memory | None = getattr(local, "memory", None)
        if memory is not None and local.plan is plan:
            return memory
        if memory is None:
            sparse = len(self._index.points.indptr) > 0
            memory = Memory(self.dims, self._index.hashing.hyperplanes.shape, sparse=sparse)
            local.memory = memory
        room = self._buffers.points
        memory.fit_points(room)
        memory.fit_selection(min(plan.candidates_max, room), plan.kernel.k)
        if self._n_cells:
            memory.fit_cells(self._n_cells)
            memory.fit_scan(self._n_cells)
        local.plan = plan
        return memory

    def _select_from(
        self, candidates: Candidates, row: int, plan: QueryPlan, answers: Answers, most: int
    ) -> None:
        """Select from the nearest `most` candidates, and write the answer to a query row."""
        count = min(most, len(candidates.ids))
        values = candidates.values_max if self._form.is_sparse else 0
        if count > self._buffers.points or values > self._buffers.values:
            self._fit(max(2 * count, _ROOM_POINTS), max(2 * values, _ROOM_VALUES))
        self._buffers.put(candidates, count)
        memory = self._own_memory(plan)
        shards.select_gathered(
            self._register, memory.register, plan.fields, row, candidates.distances[:count],
            min(candidates.n_hashed, COUNT_MAX), answers.results,
        )  # fmt: skip
        answers.stats[records.BUCKETS_PROBED, row] = candidates.n_probes
        answers.stats[records.POINTS_SCORED, row] = candidates.n_scored


def _bytes_of(query: Rows) -> tuple[bytes, ...]:
    """Return bytes that tell a query from others."""
    if isinstance(query, SparseRows):
        return query.indices.tobytes(), query.values.tobytes()
    return (query.tobytes(),)


def _wider_pool(candidates: Candidates, row: int, plan: QueryPlan, answers: Answers) -> int:
    """Return the size to which near-copies make the pool of a query row grow, 0 if it stays.

    `kernels.greedy.pick` has the same rule.
    """
    if plan.kernel.step != records.GREEDY:
        return 0
    size = int(answers.stats[records.POOL_SIZE, row])
    if CROWDED_RATIO * int(answers.stats[records.COPIES_COLLAPSED, row]) < size:
        return 0
    widest = int(np.count_nonzero(candidates.distances <= plan.kernel.max_distance))
    return min(2 * size, widest) if 0 < size < widest else 0


def _with_pool(plan: QueryPlan, row: int, answers: Answers, size: int) -> QueryPlan:
    """Return the plan with a pool of `size` candidates, and with the dial that was chosen."""
    kernel = plan.kernel._replace(candidates_limit=size, pool_limit=size)
    if kernel.dial_choice == records.BY_FALL_OFF:
        dial = np.float32(round(answers.dials[row] * DIAL_STEPS)) / np.float32(DIAL_STEPS)
        kernel = kernel._replace(
            dial_choice=records.BY_CALLER, relevance=np.float32(np.float32(1) - dial)
        )
    return replace(plan, kernel=kernel, fields=tuple(kernel))
