"""Searches shards as `Searcher` searches one index: gathers candidates, and selects from them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.kernels import records, shards
from divgrpc.kernels.dials import DIAL_STEPS
from divgrpc.kernels.greedy import CROWDED_RATIO
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import NO_FILTER, Answers, pack_queries
from divgrpc.search.memory import Memory
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.searcher import Searcher
from divgrpc.sharding.finding import Candidates, Finder, PassingSomewhere
from divgrpc.sharding.hashed_query import HashedQuery
from divgrpc.sharding.rounds import Transcript
from divgrpc.types import IntArray
from divgrpc.vectors import Rows

# Number of points and of sparse values that a searcher can gather at first.
_ROOM_POINTS: Final = 1 << 10
_ROOM_VALUES: Final = 1 << 16
# What selectors read of the points.
_POINT_ARRAYS: Final = ("vectors", "indptr", "indices", "values", "squares", "inverse_lengths")
_NO_DISTANCES: Final = np.empty(0, np.float32)
_NO_CELLS: Final = np.empty(0, np.int32)


class _Buffers:
    """Arrays into which the points of a query are written, in the form of an index.

    The kernels take their addresses once, so they stay the same until more room is needed.
    """

    def __init__(self, dims: int, names: Sequence[str], points: int, values: int) -> None:
        shapes: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            "ids": ((points,), np.int64),
            "vectors": ((points, dims), np.float32),
            "indptr": ((points + 1,), np.int64),
            "indices": ((values,), np.int32),
            "values": ((values,), np.float32),
            "squares": ((points,), np.float64),
            "inverse_lengths": ((points,), np.float32),
        }
        self.points, self.values = points, values
        self._arrays: dict[str, Array] = {name: np.zeros(*shapes[name]) for name in ("ids", *names)}

    @property
    def arrays(self) -> dict[str, Array]:
        """Read-only views, for kernels."""
        return {name: read_only(array) for name, array in self._arrays.items()}

    def put(self, ids: IntArray, points: Mapping[str, Array]) -> None:
        """Write points into the first rows."""
        self._arrays["ids"][: len(ids)] = ids
        for name, column in points.items():
            self._arrays[name][: len(column)] = column


class GatheringSearcher(Searcher):
    """Answers queries over the points of all shards; one thread may use it."""

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
        self._point_names = [name for name in _POINT_ARRAYS if name in names]
        self._has_terms, self._has_lists = "scan_terms" in names, "list_starts" in names
        self._row_bytes = row_bytes
        self.transcript = Transcript()
        self._fit(dims, _ROOM_POINTS, _ROOM_VALUES)

    def _fit(self, dims: int, points: int, values: int) -> None:
        """Make room for so many points."""
        self._buffers = _Buffers(dims, self._point_names, points, values)
        super().__init__(self._shared | self._buffers.arrays, self._build, dims)

    def _run(
        self, queries: Rows, plan: QueryPlan, answers: Answers, passing: PassingRows | None = None
    ) -> None:
        """Answer all query rows from the candidates of the shards.

        Raises `UnansweredError` if replies of shards are missing.
        """
        finder = Finder(
            self._rows, self.transcript, plan, passing, has_terms=self._has_terms,
            row_bytes=self._row_bytes,
        )  # fmt: skip
        hashed = [self._hash(queries, row, plan, passing) for row in range(len(queries))]
        candidate_sets = [finder.find(query, finder.first_vectors) for query in hashed]
        self.transcript.check()
        for row, candidates in enumerate(candidate_sets):
            assert candidates is not None  # noqa: S101  # no reply is missing
            self._select_from(candidates, row, plan, answers, finder.first_vectors)
            while wider := _wider_pool(candidates, row, plan, answers):
                grown = finder.find(hashed[row], wider)
                if grown is None:
                    break
                self._select_from(grown, row, _with_pool(plan, row, answers, wider), answers, wider)
        self.transcript.check()

    def _hash(
        self, queries: Rows, row: int, plan: QueryPlan, passing: PassingRows | None
    ) -> HashedQuery:
        """Return a query row with its margins, and with the cells to read."""
        kernel, query = plan.kernel, queries[row : row + 1]
        if kernel.search == records.EXACT:
            return HashedQuery(query, _NO_DISTANCES, _NO_CELLS, _NO_DISTANCES, -1)
        open_points = sum(self._rows) if passing is None else passing.count
        is_limit = 0 < kernel.hash_limit < open_points
        has_cells = self._n_cells > 0 and (kernel.search == records.TABLES or is_limit)
        memory = self._own_memory(plan)
        counts = passing.cells if isinstance(passing, PassingSomewhere) else NO_FILTER.cells
        n_cells, in_cells = shards.hash_query(
            self._register, memory.register, plan.fields, pack_queries(query), 0,
            read_only(counts), has_cells,
        )  # fmt: skip
        scratch_cells, margins = memory.scratch.cells, memory.scratch.code.margins.copy()
        numbers, bases = (
            scratch_cells.numbers[:n_cells].copy(),
            scratch_cells.distances[:n_cells].copy(),
        )
        return HashedQuery(query, margins, numbers, bases, in_cells if has_cells else -1)

    def _own_memory(self, plan: QueryPlan) -> Memory:
        """Return scratch memory, large enough for a plan and the points in the buffers."""
        memory: Memory | None = getattr(self._local, "memory", None)
        if memory is None:
            sparse = len(self._index.points.indptr) > 0
            memory = Memory(self.dims, self._index.hashing.hyperplanes.shape, sparse=sparse)
            self._local.memory = memory
        room = self._buffers.points
        memory.fit_points(room)
        memory.fit_selection(min(plan.candidates_max, room), plan.kernel.k)
        if self._n_cells:
            memory.fit_cells(self._n_cells)
            memory.fit_scan(self._n_cells)
        return memory

    def _select_from(
        self, candidates: Candidates, row: int, plan: QueryPlan, answers: Answers, most: int
    ) -> None:
        """Select from the nearest `most` candidates, and write the answer to a query row."""
        count = min(most, len(candidates.ids))
        values = len(candidates.points.get("values", ()))
        if count > self._buffers.points or values > self._buffers.values:
            points, values = max(2 * count, _ROOM_POINTS), max(2 * values, _ROOM_VALUES)
            self._fit(self.dims, points, values)
        self._buffers.put(candidates.ids[:count], candidates.points)
        memory = self._own_memory(plan)
        scratch = memory.scratch.candidates
        scratch.rows[:count] = np.arange(count)
        scratch.distances[:count] = candidates.distances[:count]
        shards.select_gathered(
            self._register, memory.register, plan.fields, row, count, candidates.n_hashed,
            answers.results,
        )  # fmt: skip
        answers.stats[records.BUCKETS_PROBED, row] = candidates.n_probes
        answers.stats[records.POINTS_SCORED, row] = candidates.n_scored


def _wider_pool(candidates: Candidates, row: int, plan: QueryPlan, answers: Answers) -> int:
    """Return the size to which near-copies make the pool of a query row grow, 0 if it stays.

    `kernels.greedy.pick` has the same rule.
    """
    size, copies = answers.stats[[records.POOL_SIZE, records.COPIES_COLLAPSED], row].tolist()
    if plan.kernel.step != records.GREEDY or CROWDED_RATIO * copies < size:
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
