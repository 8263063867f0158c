"""Measures searches of points that are divided among shards, before there is an index of them.

Tuning a `ShardedSearcher` gives the same numbers as tuning a whole index. The queries are hashed
here. The shards find the points that a search hashes, by messages, and the best of them are the
hashed points of all shards. What an exact search reads follows from the points, which are read
block by block.

Shards answer in this process, or elsewhere with the same bytes (`AskShards`). A search without a
limit is always answered here: it compares no codes, and its points would fill large messages.
"""

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only, release
from divgrpc.build_rows import BuildRows, SparseBuildRows, release_rows
from divgrpc.errors import invalid
from divgrpc.hashing.length_bounds import bounded_rows, length_bounds
from divgrpc.hashing.lists import blocks_of, create_lists
from divgrpc.kernels import exact, normalise, records, replies, shards
from divgrpc.kernels.inverted_lists import LISTED_POINTS_MAX
from divgrpc.kernels.registers import record_of, register
from divgrpc.parallel import on_all_cores
from divgrpc.parameters import BuildParameters
from divgrpc.platforms import count_cores
from divgrpc.search.arrays import NO_FILTER, pack_queries, with_points
from divgrpc.search.memory import PROBES_MAX, Memory
from divgrpc.search.plan import QueryPlan
from divgrpc.search.searcher import Searcher
from divgrpc.sharding import layouts
from divgrpc.sharding.best_points import BestPoints, FoundPoints
from divgrpc.sharding.core import CODE_ARRAYS, ShardCore
from divgrpc.sharding.finding import share_of
from divgrpc.sharding.messages import MESSAGE_FIELD, Buffer, divide, join
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, Metric
from divgrpc.vectors import Rows, SparseRows

_NO_IDS: Final = np.empty(0, np.int64)
_NO_CODES: Final = np.empty(0, np.float32)
_NO_CELLS: Final = np.empty(0, np.int32)


class _Query(NamedTuple):
    """A hashed query: its margins, the cells to read, and how shards find points for it."""

    margins: FloatArray
    cells: npt.NDArray[np.int32]
    bases: FloatArray
    how: int


class _Tools(NamedTuple):
    """What each thread has for itself."""

    memory: Memory
    cores: dict[int, ShardCore]  # the shards that have points, by number
    best: BestPoints


class Question(NamedTuple):
    """A message to some shards, and how to read a reply to it that another machine has sent.

    messages: what `ShardCore.ask` takes for the operation "measure".
    queries: the number of queries. limit: the maximum number of points for each of them.
    has_codes: whether the reply has the distances by code.
    numbers, cores: by shard, the row numbers of its points, and what answers in this thread.
    """

    messages: bytes
    queries: int
    limit: int
    has_codes: bool
    numbers: Sequence[IntArray]
    cores: Mapping[int, ShardCore]

    def work(self, shard: int) -> list[FoundPoints]:
        """Return the points that a shard finds for each query, without another machine."""
        return _points_in(self.cores[shard].ask("measure", self.messages))

    def unpack(self, shard: int, reply: Buffer) -> list[FoundPoints]:
        """Return the points in a reply; raises `InvalidArgumentError` for one that does not fit."""
        parts, numbers = _points_in(reply), self.numbers[shard]
        if len(parts) != self.queries:
            raise invalid(MESSAGE_FIELD, f"is about {len(parts)} queries and not {self.queries}")
        for ids, codes in parts:
            if len(ids) > self.limit or len(codes) != self.has_codes * len(ids):
                raise invalid(MESSAGE_FIELD, "has other points than it was asked for")
            is_within = not len(ids) or numbers[0] <= ids.min() <= ids.max() <= numbers[-1]
            if not is_within or np.isnan(codes).any():
                raise invalid(MESSAGE_FIELD, "has points that the shard does not have")
        return parts


class AskShards(Protocol):
    """Asks shards elsewhere."""

    def __call__(self, question: Question, shards: Sequence[int]) -> list[list[FoundPoints]]:
        """Return for each shard what `question.work` returns, in the order of `shards`."""


class ShardedSearcher:
    """Searches points on shards, for `divgrpc.builder.tuning.tune`; threads may share it.

    Points have row numbers in the order of the upload, which may exceed 2**31.
    """

    # The labels of an index, which Build sorts, are not divided.
    scores_longest = False

    def __init__(
        self,
        points: BuildRows,
        parts: Sequence[Mapping[str, Array]],
        numbers: Sequence[IntArray],
        shared: Mapping[str, Array],
        parameters: BuildParameters,
        *,
        ask_elsewhere: AskShards | None = None,
    ) -> None:
        """Take the points, and the arrays of each shard.

        points: (n, d) as in `MeasuredSearcher`.
        parts: the arrays of the points of each shard, as `divgrpc.sharding.cutting.cut` makes them.
        numbers: (m,) int64 for each shard, the row numbers of its points, which ascend.
        shared: the arrays that all shards share. `cell_starts` counts the points of all shards.
        parameters: all defaults are filled in.
        ask_elsewhere: asks shards, which otherwise answer in this process.
        """
        self._points = points
        self._rows, self._dims = points.shape
        self.metric: Metric = parameters.metric
        self._parts, self._numbers, self._parameters = parts, numbers, parameters
        self._shared = {name: read_only(array) for name, array in shared.items()}
        self._index = record_of(records.Index, self._shared, {"d": self._dims, "m": self._dims})
        self._register = register(self._index)
        self._ask_elsewhere = ask_elsewhere
        self._n_cells = len(self._index.cells.centres)
        self._has_terms = any("scan_terms" in part for part in parts)
        self._nonzeros: int | None = None
        if isinstance(points, SparseBuildRows):
            self._nonzeros = sum(len(part["values"]) for part in parts)
        arrays = (*self._shared.values(), *numbers, *(a for part in parts for a in part.values()))
        # A part may have the shared arrays, too.
        self._arrays = list({id(array): array for array in arrays}.values())
        self._local = threading.local()

    @property
    def points(self) -> BuildRows:
        """All points (n, d), in the order of the upload."""
        return self._points

    @property
    def nonzeros(self) -> int | None:
        """The number of stored values of all points; None if points are dense."""
        return self._nonzeros

    @property
    def max_probes(self) -> int:
        """Maximum number of buckets or cells that a search can probe."""
        return self._n_cells or PROBES_MAX

    @property
    def least_probes(self) -> int:
        """Minimum number of probes: 1 with cells, otherwise one for each hash table."""
        return self._parameters.n_tables or 1

    @property
    def has_one_thread(self) -> bool:
        """Whether one thread alone may search, the one that reports progress."""
        return self._ask_elsewhere is not None

    def release(self) -> None:
        """Allow the operating system to drop the pages of memory-mapped arrays."""
        release_rows(self._points)
        for array in self._arrays:
            release(array)

    # Hashed points.

    def hashed(self, queries: Rows, parameters: EffectiveParameters) -> list[IntArray]:
        """Return the row numbers (m,) of the hashed points of each query, unsorted.

        At most `hash_limit` numbers are returned for each query; 0 means no limit. Of points that
        tie in a scan, a random sample is taken; `sampling` must be `uniform`.
        """
        limit, search = parameters.hash_limit, parameters.search
        if search == "exact" or (search != "tables" and not 0 < limit < self._rows):
            return [np.arange(min(limit or self._rows, self._rows))] * len(queries)
        plan, memory = QueryPlan.of_hashed(parameters, self.metric), self._tools.memory
        rows = [self._hash(queries, number, plan, memory) for number in range(len(queries))]
        results = [_NO_IDS] * len(rows)
        for how in {query.how for query in rows}:
            places = [place for place, query in enumerate(rows) if query.how == how]
            for first in range(0, len(places), layouts.MEASURED_QUERIES_MAX):
                group = places[first : first + layouts.MEASURED_QUERIES_MAX]
                ids_of_group = self._find(plan, how, [rows[place] for place in group])
                for place, ids in zip(group, ids_of_group, strict=True):
                    results[place] = ids
        return results

    @property
    def _tools(self) -> _Tools:
        """What this thread has for itself."""
        if not hasattr(self._local, "tools"):
            sparse = self.nonzeros is not None
            memory = Memory(self._dims, self._index.hashing.hyperplanes.shape, sparse=sparse)
            memory.fit_cells(self._n_cells)
            memory.fit_scan(self._n_cells)
            self._local.tools = _Tools(memory, self._make_cores(), BestPoints())
        tools: _Tools = self._local.tools
        return tools

    def _make_cores(self) -> dict[int, ShardCore]:
        """Return the shards that have points; the row numbers of the points are their ids."""
        cores = {}
        for shard, (part, numbers) in enumerate(zip(self._parts, self._numbers, strict=True)):
            arrays = self._shared | dict(part)
            arrays = {name: arrays[name] for name in CODE_ARRAYS & arrays.keys()}
            arrays["ids"] = read_only(numbers)
            if len(numbers):
                cores[shard] = ShardCore.of_codes(arrays, self._parameters, self._dims)
        return cores

    def _hash(self, queries: Rows, number: int, plan: QueryPlan, memory: Memory) -> _Query:
        """Return query row `number` with its margins, and with the cells to read."""
        n_cells, in_cells = shards.hash_query(
            self._register, memory.register, plan.fields, pack_queries(queries), number,
            read_only(NO_FILTER.cells), self._n_cells > 0,
        )  # fmt: skip
        cells, margins = memory.scratch.cells, memory.scratch.code.margins.copy()
        if not self._n_cells:
            how = layouts.TABLES if plan.kernel.search == records.TABLES else layouts.SCAN
            return _Query(margins, _NO_CELLS, _NO_CODES, how)
        how = layouts.CELLS
        if 0 < plan.kernel.hash_limit < in_cells:
            how = layouts.CELLS_BY_CODE
        return _Query(
            margins, cells.numbers[:n_cells].copy(), cells.distances[:n_cells].copy(), how
        )

    def _find(self, plan: QueryPlan, how: int, queries: Sequence[_Query]) -> list[IntArray]:
        """Return the hashed points of queries; shards find points for all of them in the way `how`.

        As in `divgrpc.sharding.finding`, each shard is asked for its share of a limit, and seldom
        for more.
        """
        limit = 0 if how == layouts.CELLS else plan.kernel.hash_limit
        best, rule, shards = self._tools.best, self._rule(plan, how), [*self._tools.cores]
        most = limit and share_of(limit, len(shards))
        parts = self._ask(_message(plan, how, most, queries), how, most, len(queries), shards)
        results = []
        for number, query in enumerate(queries):
            answers = [part[number] for part in parts]
            ids, short = best.keep(plan, rule, answers, most)
            if short and most < limit:
                message = _message(plan, how, limit, [query])
                parts_again = self._ask(message, how, limit, 1, [shards[place] for place in short])
                for place, (answer,) in zip(short, parts_again, strict=True):
                    answers[place] = answer
                ids, _ = best.keep(plan, rule, answers, limit)
            results.append(ids)
        return results

    def _ask(
        self, message: bytes, how: int, limit: int, count: int, shards: Sequence[int]
    ) -> list[list[FoundPoints]]:
        """Return the points that each of some shards finds for the `count` queries of a message."""
        has_codes = how in {layouts.CELLS_BY_CODE, layouts.SCAN}
        cores, messages = self._tools.cores, join([message])
        question = Question(messages, count, limit, has_codes, self._numbers, cores)
        if self._ask_elsewhere is None or not limit:
            return [question.work(shard) for shard in shards]
        return self._ask_elsewhere(question, shards)

    def _rule(self, plan: QueryPlan, how: int) -> int:
        """Return how the best points are chosen, as `BestPoints.keep` takes it."""
        if how == layouts.TABLES:
            return replies.BY_PROBE
        has_estimates = self._has_terms and plan.kernel.search != records.SCAN_HAMMING
        by_estimate = how == layouts.CELLS_BY_CODE or has_estimates
        return replies.BY_ESTIMATE if by_estimate else replies.BY_SCORE

    # Exact searches.

    def exact_work(self, queries: Rows, n_nearest: int) -> tuple[IntArray, IntArray]:
        """Return the numbers of points and of list entries that exact search reads, (nq,) each.

        `n_nearest` is the number of points to find; it may exceed the number of points.
        """
        if isinstance(queries, SparseRows) and self._listed is not None:
            return self._listed.exact_work(queries, n_nearest)
        points = np.full(len(queries), self._rows)
        if not isinstance(queries, SparseRows) and exact.ends_early(read_only(self._length_bounds)):
            points = self._count_longest(queries, min(n_nearest, self._rows))
        return points, np.zeros(len(queries), np.int64)

    @cached_property
    def _length_bounds(self) -> FloatArray:
        """Bounds of the lengths of dense points under inner_product, as `records.Index` has."""
        if self.metric != "inner_product" or isinstance(self._points, SparseBuildRows):
            return _NO_CODES
        return length_bounds(self._points)

    @cached_property
    def _listed(self) -> Searcher | None:
        """An exact search of all points by inverted lists; None if an index has no lists.

        Which points it scores depends on the steps to which all values are rounded. The lists of
        the shards have steps of their own. Only `LISTED_POINTS_MAX` points have lists, so that they
        and the points themselves fit into memory.
        """
        if self.nonzeros is None or not 0 < self._rows <= LISTED_POINTS_MAX:
            return None
        arrays: dict[str, Array] = {}

        def create(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
            arrays[name] = np.zeros(shape, dtype)
            return arrays[name]

        points = self._points[:]
        assert isinstance(points, SparseRows)  # noqa: S101  # they have nonzeros
        squares = create("squares", np.float64, (self._rows,))
        normalise.squares_sparse(read_only(points.indptr), read_only(points.values), squares)
        create_lists(blocks_of(points), self._rows, self._dims, create)
        return Searcher(with_points(arrays, points), self._parameters, self._dims)

    def _count_longest(self, queries: FloatArray, n_nearest: int) -> IntArray:
        """Return how many points `exact.score_longest` scores for each query, (nq,)."""
        parts = np.array_split(queries, min(len(queries), count_cores()))
        searches = [_Longest.of(part, n_nearest) for part in parts]
        step, bounds = bounded_rows(self._points), read_only(self._length_bounds)
        for start in range(0, self._rows, step):
            block = read_only(np.asarray(self._points[start : start + step]))
            list(
                on_all_cores(
                    partial(_Longest.go_on, block=block, start=start, bounds=bounds), searches
                )
            )
            release_rows(self._points)
            if all((search.n_scored <= start).all() for search in searches):
                break
        return np.concatenate([search.n_scored for search in searches])


class _Longest(NamedTuple):
    """Searches that `exact.count_longest` makes; it describes the arrays."""

    queries: FloatArray
    n_nearest: int
    nearest: FloatArray
    counts: IntArray
    limits: FloatArray
    n_scored: IntArray

    @classmethod
    def of(cls, queries: FloatArray, n_nearest: int) -> "_Longest":
        """Begin the searches for `n_nearest` points."""
        count = len(queries)
        return cls(
            read_only(np.ascontiguousarray(queries)), n_nearest,
            np.empty((count, 2 * n_nearest), np.float32), np.zeros(count, np.int64),
            np.full(count, np.inf, np.float32), np.zeros(count, np.int64),
        )  # fmt: skip

    def go_on(self, block: FloatArray, start: int, bounds: FloatArray) -> None:
        """Go on with the points of a block, the first of which has the row number `start`."""
        exact.count_longest(
            block, start, self.queries, bounds, *self[1:], np.empty(len(block), np.float32)
        )


def _points_in(packed: Buffer) -> list[FoundPoints]:
    """Return the points in the reply to one `MEASURE_REQUEST`, for each query.

    Raises `InvalidArgumentError` for a reply that is malformed.
    """
    replies_packed = divide(packed)
    if len(replies_packed) != 1:
        raise invalid(MESSAGE_FIELD, f"holds {len(replies_packed)} replies and not one")
    columns = layouts.MEASURE_REPLY.unpack(replies_packed[0])
    ids, codes, ends = columns["ids"], columns["codes"], columns["ends"]
    starts = np.concatenate(([0], ends))
    # Differences of ends could overflow.
    if (
        (starts[1:] < starts[:-1]).any()
        or starts[-1] != len(ids)
        or len(codes) not in (0, len(ids))
    ):
        raise invalid(MESSAGE_FIELD, "must have the end of the points of each query")
    spans = pairwise(starts.tolist())
    return [FoundPoints(ids[start:stop], codes[start:stop]) for start, stop in spans]


def _message(plan: QueryPlan, how: int, limit: int, queries: Sequence[_Query]) -> bytes:
    """Return a `MEASURE_REQUEST` for at most `limit` of the points that a plan hashes."""
    kernel, numbers = plan.kernel, np.zeros(layouts.MEASURE_NUMBERS, np.int64)
    numbers[layouts.HOW], numbers[layouts.PROBES] = how, kernel.n_probes
    numbers[layouts.HAMMING] = kernel.search == records.SCAN_HAMMING
    numbers[layouts.LIMIT] = limit
    numbers[layouts.MEASURE_SEED] = kernel.seed.astype(np.int64)
    columns: dict[str, Array] = {
        "numbers": numbers,
        "margins": np.stack([query.margins for query in queries]),
    }
    if how in {layouts.CELLS, layouts.CELLS_BY_CODE}:
        columns["cells"] = np.concatenate([query.cells for query in queries])
        columns["bases"] = np.concatenate([query.bases for query in queries])
        columns["ends"] = np.cumsum([len(query.cells) for query in queries], dtype=np.int64)
    return layouts.MEASURE_REQUEST.pack(columns)
