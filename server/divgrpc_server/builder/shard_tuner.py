"""Lets shard servers work on the tuning of a build: they find points and measure searches."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np

from divgrpc.build_rows import BuildRows, DividedRows, DividedSparseRows, block_rows
from divgrpc.builder.nearest import (
    NearestPoints,
    NearestSearch,
    NearPoints,
    Report,
    blocks_of,
    find_nearest,
    search_blocks,
)
from divgrpc.parallel import one_blas_thread
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import staged_finding, staged_shards
from divgrpc.sharding.best_points import FoundPoints
from divgrpc.sharding.divided_build import Elsewhere
from divgrpc.sharding.measuring import Question
from divgrpc.sharding.messages import Buffer, join
from divgrpc.sharding.staged_finding import BLOCKS_MAX, FIND, pack_search, unpack_points
from divgrpc.sharding.staged_shards import MEASURE, ShardFiles, pack_question
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import SparseRows
from divgrpc_server.builder.shard_work import ShardWork

# One core scans the codes of so many points in about 20 ms, and a message takes about 4 ms. With
# fewer, little is won by copies of the codes.
_ROWS_MIN: Final = 4_000_000
# Each message has the queries. With larger ones, a message takes as long as the search.
_QUERY_BYTES_MAX: Final = 8 << 20

_DividedRows = DividedRows | DividedSparseRows


class ShardTuner:
    """Works on the tuning for `DividedBuild`; see `divgrpc.sharding.divided_build.TuneIn`."""

    def __init__(self, work: ShardWork, stage: ArrayFolder) -> None:
        """Take what divides the work, and the staging folder of the build."""
        self._work, self._stage = work, stage

    @contextmanager
    def __call__(
        self,
        shards: Sequence[ShardFiles],
        shared: Collection[str],
        parameters: BuildParameters,
        points: BuildRows,
    ) -> Iterator[Elsewhere | None]:
        """In the block, have what asks shard servers; None for few points."""
        shape, step = points.shape, block_rows(points)
        if shape[0] < _ROWS_MIN:
            yield None
            return
        root = self._stage.folder.parent
        folders = [str(shard.folder.relative_to(root)) for shard in shards]
        with (
            staged_shards.offered(self._stage, shared, shards, parameters, shape[1]),
            staged_finding.offered(self._stage, shards, shape, parameters.metric, step),
        ):
            # Shard servers copy the codes while the true nearest points are searched for.
            no_question = join([])
            messages = [pack_question(folder, no_question) for folder in folders]
            self._work.prepare(MEASURE, dict(enumerate(messages)))
            yield Elsewhere(partial(self._ask, folders), self._find)

    def _ask(
        self, folders: Sequence[str], question: Question, shards: Sequence[int]
    ) -> list[list[FoundPoints]]:
        """Ask shards; see `AskShards`."""
        return self._work.ask(_MeasuringTask(folders, question), shards)

    def _find(
        self, search: NearestSearch, points: BuildRows, report: Report
    ) -> tuple[IntArray, FloatArray]:
        """Find nearest points; see `FindNearest`."""
        assert isinstance(points, _DividedRows)  # noqa: S101  # this build is divided
        if _bytes_of(search) > _QUERY_BYTES_MAX:
            return find_nearest(search, points, report)
        nearest, rows_done = NearestPoints(search), 0
        task = _FindingTask(self._stage.folder.name, search, points, nearest)
        items = blocks_of(range(len(points)), BLOCKS_MAX * task.step)
        with one_blas_thread():
            for rows, part in self._work.run(task, items):
                nearest.add(part)
                rows_done += len(rows)
                report(rows_done, len(points))
        return nearest.sorted()


def _bytes_of(search: NearestSearch) -> int:
    """Return the size of the queries of a search."""
    queries = search.queries
    if isinstance(queries, SparseRows):
        return queries.indptr.nbytes + queries.indices.nbytes + queries.values.nbytes
    return queries.nbytes


class _MeasuringTask:
    """Finds the points of shards that searches hash."""

    operation = MEASURE
    verb = "measure searches of"

    def __init__(self, folders: Sequence[str], question: Question) -> None:
        self._folders, self._question = folders, question

    def pack(self, shard: int) -> bytes:
        """See `Task`."""
        return pack_question(self._folders[shard], self._question.messages)

    def unpack(self, shard: int, reply: Buffer) -> list[FoundPoints]:
        """See `Task`."""
        return self._question.unpack(shard, reply)

    def work(self, shard: int) -> list[FoundPoints]:
        """See `Task`."""
        return self._question.work(shard)


class _FindingTask:
    """Finds the nearest of some rows; `step` is the number of rows of a block."""

    operation = FIND
    verb = "find"

    def __init__(
        self, folder: str, search: NearestSearch, points: _DividedRows, nearest: NearestPoints
    ) -> None:
        self._folder, self._search, self._points = folder, search, points
        self._nearest, self.step = nearest, block_rows(points)
        # What messages to places have left out.
        self._least: dict[range, FloatArray] = {}

    def pack(self, rows: range) -> bytes:
        """See `Task`."""
        starts = np.array([*range(rows.start, rows.stop, self.step), rows.stop])
        bounds = self._points.bounds_of(starts)
        least = self._least[rows] = self._nearest.least_from(rows.start)
        return pack_search(self._folder, self._search, rows, bounds, least)

    def unpack(self, rows: range, reply: Buffer) -> NearPoints:
        """See `Task`."""
        return unpack_points(reply, self._search, rows, self._least.pop(rows))

    def work(self, rows: range) -> NearPoints:
        """See `Task`."""
        blocks = blocks_of(rows, self.step)
        least = self._nearest.least_from(rows.start)
        return search_blocks(self._search, self._points, blocks, least)
