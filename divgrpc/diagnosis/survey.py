"""Counts near-copies of a sample of points among all points, and answers queries with the sample.

A survey first passes once over all points, and counts the near-copies of every sampled point at
every threshold. It then uses some of the sampled points as queries, once for each setting of the
defaults. The work is divided into blocks, which several threads can do at the same time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy import sparse

from divgrpc.build_rows import mean_width
from divgrpc.columns.values import unknown_attribute
from divgrpc.diagnosis.findings import Answered, Counted, Randomness, diagnosis_of
from divgrpc.engine import Engine
from divgrpc.errors import UnfitIndexError, invalid
from divgrpc.kernels.copy_counts import count_dense, count_different, count_sparse
from divgrpc.parallel import on_all_cores
from divgrpc.parameters import DEFAULT_DIVERSITY, QueryParameters
from divgrpc.parameters.diagnose import DiagnoseParameters
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import copy_limit_of
from divgrpc.types import IntArray, Progress
from divgrpc.types.diagnosis import Diagnosis
from divgrpc.types.filters import Filter
from divgrpc.vectors import Rows, SparseRows

COUNTING: Final = "counting near-copies"
ANSWERING: Final = "answering queries"
# Cosines at which near-copies are counted, beside the default threshold.
COSINES: Final = (0.8, 0.85, 0.9, 0.95, 0.97, 0.99)
# Maximum number of sampled points that are used as queries.
_QUERIES_MAX: Final = 256
# Number of queries in a block.
_BLOCK_QUERIES: Final = 16
# A block of points has about this many terms of distances, which take some 0.1 s.
_BLOCK_TERMS: Final = 2**28
_BLOCK_ROWS_MIN: Final = 256
_BLOCK_ROWS_MAX: Final = 65_536


class Block(NamedTuple):
    """A part of the work: points `start` to `stop` - 1, or such queries of a setting."""

    stage: str
    start: int
    stop: int
    setting: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The points that a survey is about, and those that it samples.

    rows: (n,) int64, the rows of all points, ascending.
    peers: (m,) int64, the rows of the sampled points, ascending.
    queries: (q,) int64, the rows of those that are queries, ascending.
    """

    rows: IntArray
    peers: IntArray
    queries: IntArray

    @classmethod
    def draw(cls, passing: PassingRows, parameters: DiagnoseParameters) -> "Sample":
        """Draw the sampled points, and the queries among them."""
        rows = np.flatnonzero(passing.flags)
        rng = np.random.default_rng((parameters.seed, 6))
        picks = rows[rng.permutation(len(rows))[: parameters.sample]]
        return cls(rows, np.sort(picks), np.sort(picks[:_QUERIES_MAX]))


class Survey:
    """A checked diagnosis of an open index. Several threads may call `work` at the same time."""

    def __init__(
        self, engine: Engine, parameters: DiagnoseParameters, condition: Filter | None
    ) -> None:
        """Check the call against the index, and draw the sample.

        condition: a filter that `as_filter` has checked, or None.

        Raises `InvalidArgumentError` with the field attributes or filter, and `UnfitIndexError` if
        no point has a vector.
        """
        declared = engine.manifest.attributes
        for name in parameters.attributes:
            if name not in {attribute.name for attribute in declared}:
                raise unknown_attribute(name, declared)
        self._engine, self._parameters = engine, parameters
        self._passing = engine.passing(condition)
        visible = engine.searched_rows(self._passing)
        if not visible.count and condition is not None:
            raise invalid("filter", "passes no point that has a vector")
        if not visible.count:
            raise UnfitIndexError("index", "no point has a vector, so there is nothing to diagnose")
        self._sample = sample = Sample.draw(visible, parameters)
        self._points = engine.searcher.point_records
        # Not `divgrpc.vectors.take`, which would drop rows that are only in memory.
        vectors = engine.searcher.points[sample.peers]
        self._random = Randomness.of(vectors, engine.metric)
        self._columns = _columns(vectors) if isinstance(vectors, SparseRows) else None
        self._thresholds = thresholds(engine, self._random)
        limits = [copy_limit_of(threshold, engine.metric) for threshold in self._thresholds]
        self._limits = np.array(limits, np.float32)
        self._counts = np.zeros((len(sample.peers), len(limits)), np.int64)
        self._settings = _settings(engine.manifest.duplicate_threshold)
        self._answered = {name: Answered.empty(len(sample.queries)) for name in self._settings}
        self._query_vectors = engine.searcher.points[sample.queries]
        self.blocks = list(self._cut(vectors))
        self._start_seconds = time.monotonic()
        self._lock = threading.Lock()
        self._done: dict[str, int] = {COUNTING: 0, ANSWERING: 0}
        self._next = iter(self.blocks)

    @property
    def progress(self) -> Progress:
        """The progress of the current stage, in points or in queries."""
        totals = {COUNTING: len(self._sample.rows)}
        totals[ANSWERING] = len(self._settings) * len(self._sample.queries)
        stage = COUNTING if self._done[COUNTING] < totals[COUNTING] else ANSWERING
        count, seconds = self._done[stage], time.monotonic() - self._start_seconds
        is_counting = stage == COUNTING and count
        seconds_left = seconds * (totals[stage] - count) / count if is_counting else None
        return Progress(stage, count, totals[stage], seconds_left)

    def work(self) -> Iterator[None]:
        """Do blocks until no block is left, and yield after each block.

        After an error no thread starts another block.
        """
        while (block := self._take()) is not None:
            try:
                self.do(block)
            except BaseException:
                self._next = iter(())
                raise
            yield

    def do(self, block: Block) -> None:
        """Do one block."""
        if block.stage == COUNTING:
            self._count(self._sample.rows[block.start : block.stop])
        else:
            self._answer(block)
        with self._lock:
            self._done[block.stage] += block.stop - block.start

    def rows(self) -> list[Diagnosis]:
        """Return the diagnosis, once all blocks are done."""
        engine, sample = self._engine, self._sample
        values = engine.attribute_values(sample.peers, self._parameters.attributes)
        counted = Counted(self._thresholds, self._counts, len(sample.rows), values)
        from_queries = self._random.from_queries(self._query_vectors)
        return [diagnosis_of(engine, counted, self._answered, self._random, from_queries)]

    def run(self, progress: Callable[[Progress], object] | None) -> Diagnosis:
        """Do all blocks on all cores, and return the diagnosis."""
        report = progress or (lambda _: None)
        report(self.progress)
        for _ in on_all_cores(self.do, self.blocks):
            report(self.progress)
        return self.rows()[0]

    def _take(self) -> Block | None:
        with self._lock:
            return next(self._next, None)

    def _cut(self, vectors: Rows) -> Iterator[Block]:
        """Yield the blocks: those of points, then those of queries."""
        count, queries = len(self._sample.rows), len(self._sample.queries)
        most = _BLOCK_TERMS // (len(vectors) * mean_width(vectors))
        step = min(max(most, _BLOCK_ROWS_MIN), _BLOCK_ROWS_MAX)
        for start in range(0, count, step):
            yield Block(COUNTING, start, min(start + step, count))
        for setting in self._settings:
            for start in range(0, queries, _BLOCK_QUERIES):
                yield Block(ANSWERING, start, min(start + _BLOCK_QUERIES, queries), setting)

    def _count(self, rows: IntArray) -> None:
        """Count which of `rows` (r,) are near-copies of the sampled points."""
        counts = np.zeros_like(self._counts)
        fixed = (self._points, rows, self._sample.peers)
        if self._columns is None:
            count_dense(*fixed, self._limits, counts)
        else:
            count_sparse(*fixed, self._columns, self._limits, counts)
        with self._lock:
            self._counts += counts

    def _answer(self, block: Block) -> None:
        """Answer some queries at one setting, and measure the results."""
        engine, part = self._engine, slice(block.start, block.stop)
        rows, queries = self._sample.queries[part], self._query_vectors[part]
        result = engine.answer_like(rows, self._settings[block.setting], self._passing)
        places = engine.rows_of(result.ids)
        counts = (places >= 0).sum(axis=1)
        different, threshold = counts.copy(), engine.manifest.duplicate_threshold
        if threshold is not None:
            limit = np.float32(copy_limit_of(threshold, engine.metric))
            count_different(self._points, places, limit, different)
        distances = engine.distances_of_rows(queries, places)
        to_query = distances.to_query
        if engine.metric == "inner_product":
            scores = np.where(places >= 0, result.scores, 0.0)
            to_query = np.where(counts > 0, -scores.sum(axis=1) / np.maximum(1, counts), np.nan)
        self._answered[block.setting].put(part, counts, different, to_query, distances.mean)


def thresholds(engine: Engine, random: Randomness) -> list[float]:
    """Return the thresholds at which near-copies are counted, the loosest first.

    They are cosines or, under `euclidean`, the squared distances that have these cosines if the
    points spread in all directions. The default threshold of the index is one of them.
    """
    values, default = list(COSINES), engine.manifest.duplicate_threshold
    if engine.metric == "euclidean":
        values = [float(f"{(1 - cosine) * random.between:.3g}") for cosine in COSINES]
    if default is not None and default not in values:
        values.append(default)
    return sorted(set(values), reverse=engine.metric == "euclidean")


def _settings(threshold: float | None) -> dict[str, QueryParameters]:
    """Return the parameters of the queries at each setting; `plain` are the nearest points."""
    settings = {
        "plain": QueryParameters(diversity=0.0),
        "diversity": QueryParameters(diversity=DEFAULT_DIVERSITY, keep_duplicates=True),
    }
    if threshold is not None:
        collapsed = QueryParameters(diversity=0.0, duplicate_threshold=threshold)
        settings |= {"duplicate_threshold": collapsed, "both": QueryParameters()}
    return settings


def _columns(vectors: SparseRows) -> tuple[IntArray, ...]:
    """Return the values of sparse rows by column, as `count_sparse` takes them."""
    by_column = sparse.csc_array(vectors.matrix)
    by_column.sort_indices()
    return (
        np.asarray(by_column.indptr, np.int64),
        np.asarray(by_column.indices, np.int32),
        np.asarray(by_column.data, np.float32),
    )
