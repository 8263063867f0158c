"""Warm-up loads all kernels before the first query.

`divgrpc.compilation` starts the processes that compile missing kernels. These processes call
`compile_kernels`, which runs or compiles every kernel on tiny data.
"""

import functools
import gc
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numba
import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc import compilation
from divgrpc.arrays import read_only
from divgrpc.diversifier import diversify
from divgrpc.hashing.lists import FULL_COLUMNS, STEPS, LaterListWriter, room_for_later_lists
from divgrpc.hashing.partition import learn
from divgrpc.index import Index
from divgrpc.kernels import cache_files, jit, records, reports
from divgrpc.kernels.batch import scan_batch, score_batch
from divgrpc.kernels.buckets import add_later
from divgrpc.kernels.exact import count_longest
from divgrpc.kernels.overflow import add_places
from divgrpc.kernels.registers import record_of
from divgrpc.labels import train
from divgrpc.labels.matrices import gram
from divgrpc.labels.prediction import embed
from divgrpc.parallel import on_this_thread
from divgrpc.parameters import LabelParameters, QueryParameters
from divgrpc.platforms import end_with_parent
from divgrpc.quotas.bounds import Bounds, QuotaColumn
from divgrpc.search.arrays import pack_queries
from divgrpc.search.branches import Branches
from divgrpc.search.explanations import Selection, explain
from divgrpc.search.memory import Memory
from divgrpc.search.plan import QueryPlan
from divgrpc.search.quota_selection import QuotaSelection
from divgrpc.search.refusals import WithinQuotas
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import ONE_BY_ONE, select
from divgrpc.search.stepwise import StepwiseSelection
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.cutting import cut
from divgrpc.sharding.measuring import ShardedSearcher
from divgrpc.sharding.router import Request, Router
from divgrpc.storage.generations import Generation
from divgrpc.types import Selector
from divgrpc.types.filters import HasId
from divgrpc.types.quotas import Quota
from divgrpc.vectors import SparseRows, as_rows

# Selectors that call all kernels of stepwise selection.
_STEPWISE: Final[tuple[Selector, ...]] = ("nearest", "mmr", "max_sum", "dpp")


@functools.cache
def warm_kernels() -> None:
    """Compile missing kernels, then load all kernels, in the first call of a process.

    In a process that was forked from another, kernels that the other process loaded stay loaded.
    Progress reports of the compilation go to the function that was passed to
    `divgrpc.compilation.report_to`, or otherwise to standard error.
    """
    compilation.ensure()
    # During a compilation, garbage collection would take a tenth of the time.
    is_on = gc.isenabled()
    gc.disable()
    try:
        # The work is tiny, and a process with threads could not be forked.
        with on_this_thread():
            _run_every_kernel()
    finally:
        if is_on:
            gc.enable()
    if not cache_files.is_warm():
        # No other process could compile the kernels, so `_run_every_kernel` compiled them.
        cache_files.mark_warm(jit.entry_files)


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of `warm_ahead`.

    `kept` says whether `folder` holds all compiled kernels. `kernels` is the number of kernels,
    `size_bytes` the total size of their files, and `processor` LLVM's name for the processor that
    they are compiled for. `compile_seconds` is None if no kernel was missing.
    """

    folder: Path
    kept: bool
    kernels: int
    size_bytes: int
    processor: str
    compile_seconds: float | None
    load_seconds: float

    def as_dict(self) -> dict[str, object]:
        """Return the fields as values that JSON can represent."""
        return asdict(self) | {"folder": str(self.folder)}


def warm_ahead(*, quiet: bool = False) -> Warmed:
    """Compile missing kernels, load all kernels, and remove unused compiled kernels.

    Compiled kernels of other releases are unused if no process has used them for 30 days. Progress
    is printed to standard error unless `quiet` is true.
    """
    if quiet:
        compilation.report_to(lambda _: None)
    missing = not cache_files.is_warm()
    start = time.monotonic()
    compilation.ensure()
    load_start = time.monotonic()
    warm_kernels()
    compilation.remove_unused()
    return Warmed(
        folder=cache_files.cache_folder(),
        kept=cache_files.is_warm(),
        kernels=len(cache_files.kernel_names()),
        size_bytes=sum(file.stat().st_size for file in cache_files.cache_folder().glob("*.kernel")),
        processor=cache_files.processor(),
        compile_seconds=load_start - start if missing else None,
        load_seconds=time.monotonic() - load_start,
    )


def compile_kernels(part: str, folder: str) -> None:
    """Compile "all" kernels, or the "rest" that queries do not call, in a separate process.

    The parent process looks for the compiled files in `folder`. This process prints an error to
    standard error and exits with status 1 in two cases: if it would write the files to another
    folder, or if `part` is "all" and some files could not be written.
    """
    # Only the parent uses this work, so this process must not outlive the parent.
    end_with_parent()
    if folder != str(cache_files.cache_folder()):
        raise SystemExit("another divgrpc is installed than the one that runs")
    compilation.disable()
    gc.disable()
    if part == "rest":
        compile_rest()
        return
    _run_every_kernel()
    if not cache_files.mark_warm(jit.entry_files):
        reasons = sorted(set(jit.write_errors.values()))
        raise SystemExit("; ".join(reasons) or "a file that was written cannot be read")


def _run_every_kernel() -> None:
    points = np.eye(8, dtype=np.float32)
    for vectors in (points, sparse.csr_array(points)):
        for index in (
            Index.build(vectors, hash_family="lsh_div", n_bits=2),
            Index.build(vectors, hash_family="cells", metric="euclidean"),
        ):
            index.query(points, search="tables")
            index.query(sparse.csr_array(points), search="tables")
            index.query(points[0], search="tables", lose_at_most=0.1, k=2)
            index.query(points[0], search="tables", paged=True, k=2)
            index.query(like=0, search="tables", paged=True, k=2)
            # So many queries with one filter copy the codes that pass.
            index.query(points, search="tables", filter=HasId((1, 2)), k=1)
            for selector in ONE_BY_ONE:
                index.query(points[0], search="tables", selector=selector, k=2)
            index.diagnose()
            _ask_shards(index)
    _add_rows()
    _predict_and_train(points)
    _select_stepwise(_candidates_of(read_only(points)))
    _select_within_quotas(_candidates_of(read_only(points)))
    _explain(_candidates_of(read_only(points)))
    _diversify(points)
    _compile_together()


def _ask_shards(index: Index) -> None:
    """Answer queries over two shards, and measure their searches."""
    engine = index.engine
    homes = np.arange(engine.rows) % 2
    pieces = cut(Generation(engine.manifest, engine.arrays), 2, homes)
    parts = list(pieces.parts)
    shards = [ShardCore(part) for part in parts]
    router = Router(pieces.manifest, pieces.shared, [shard.rows for shard in shards])
    points = np.eye(8, dtype=np.float32)

    def ask(name: str, shard: int, message: bytes) -> bytes:
        return shards[shard].ask(name, message)

    for search in ("exact", "scan", "tables"):
        for queries in (points[:1], sparse.csr_array(points[:1])):
            parameters = QueryParameters(k=2, search=search, hash_limit=3, candidates_limit=2)
            router.answer(Request(queries, parameters), ask)
    measured = ShardedSearcher(
        engine.searcher.points, [part.arrays for part in parts],
        [np.flatnonzero(homes == shard) for shard in range(2)], pieces.shared,
        engine.manifest.parameters,
    )  # fmt: skip
    scan = QueryParameters(k=1, search="scan", hash_limit=3).resolve(8, "scan")
    for queries in (points, as_rows("queries", sparse.csr_array(points), 8)):
        measured.hashed(queries, scan)
        measured.exact_work(queries, 1)


def compile_rest() -> None:
    """Compile the kernels of selectors, labels, k-means and batches, beside those of queries."""
    points = np.eye(8, dtype=np.float32)
    _diversify(points)
    learn(points, 4, np.random.default_rng(0))
    candidate_set = _candidates_of(read_only(points))
    for selector in ONE_BY_ONE:
        parameters = QueryParameters(k=2, selector=selector).resolve(8, "exact")
        select(candidate_set, parameters, "cosine")
    _predict_and_train(points.copy())
    _select_stepwise(candidate_set)
    _select_within_quotas(candidate_set)
    _explain(candidate_set)
    _compile_together()


def _candidates_of(vectors: npt.NDArray[np.float32]) -> CandidateSet:
    """Return all points as candidates."""
    count, dims = vectors.shape
    memory = Memory(dims, (dims, 64))
    memory.fit_points(count)
    memory.fit_selection(count, 2)
    candidates = memory.scratch.candidates
    candidates.rows[:], candidates.distances[:] = np.arange(count), 1
    index = record_of(records.Index, {}, {"d": dims, "m": dims})
    points = index.points._replace(vectors=vectors)
    return CandidateSet(points, *candidates, memory.scratch.selection)


def _add_rows() -> None:
    """Add a row to a cell, to a chain of a hash table and to inverted lists, as a write does."""
    no_tiles, row = tuple(np.full(1, -1, np.int32) for _ in range(5)), np.zeros(1, np.int32)
    overflow = (*no_tiles, np.ones(1, np.int64))
    add_places(read_only(row.copy()), read_only(row.copy()), 0, overflow, row)
    codes = read_only(np.zeros((1, 8), np.uint8))
    add_later(codes, 0, 2, np.full(2, -1, np.int32), np.empty((1, 2), np.int32))
    points = SparseRows.of(sparse.csr_array(np.ones((1, 1), np.float32)))
    columns = {STEPS: np.ones(1, np.float32), FULL_COLUMNS: np.zeros(1, np.int32)}
    arrays = columns | room_for_later_lists(1, 1, 1, columns[FULL_COLUMNS])
    LaterListWriter(arrays).add(points, 1)


def _select_stepwise(candidate_set: CandidateSet) -> None:
    for selector in _STEPWISE:
        parameters = QueryParameters(k=2, diversity=0.5, selector=selector).resolve(8, "exact")
        selection = StepwiseSelection(candidate_set, parameters, "cosine", np.arange(1))
        selection.pick(selection.best()[0])


def _select_within_quotas(candidate_set: CandidateSet) -> None:
    columns = (QuotaColumn.of(["a"] * len(candidate_set)),)
    bounds = Bounds.of((Quota("a", max_each=2),), columns, 2)
    for selector in _STEPWISE:
        parameters = QueryParameters(k=2, diversity=0.5, selector=selector).resolve(8, "exact")
        selection = QuotaSelection.of(candidate_set, bounds, parameters, "cosine", copy_limit=0.0)
        selection.select(2)


def _explain(candidate_set: CandidateSet) -> None:
    picks, no_rows = np.arange(2), np.empty(0, np.int64)
    columns = (QuotaColumn.of(["a"] * len(candidate_set)),)
    bounds = Bounds.of((Quota("a", max_each=1),), columns, 2)
    every = np.arange(len(candidate_set))
    quotas = WithinQuotas(
        bounds, bounds.arrays.lows, 2, np.empty(0, np.bool_), len(every), every, every + 1, picks
    )
    for selector in _STEPWISE:
        parameters = QueryParameters(k=2, diversity=0.5, selector=selector).resolve(8, "exact")
        selection = Selection(candidate_set, picks, 2, -1.0, no_rows, parameters, "euclidean")
        # The ids of an index are read-only.
        explain(selection, read_only(no_rows))
        explain(replace(selection, quotas=quotas), read_only(no_rows))


def _diversify(points: npt.NDArray[np.float32]) -> None:
    diversify(points, points[0], diversity="auto", duplicate_threshold=0.5, k=2)
    diversify(points, points[0], k=2)
    diversify(points, query=points[0], selector="mmr", k=2)


def _predict_and_train(points: npt.NDArray[np.float32]) -> None:
    sparse_points = sparse.csr_array(points)
    for vectors in (points, sparse_points):
        embed(as_rows("documents", vectors, 8), points, points[0], unit=True)
    path, counts = np.arange(-1, 7), np.ones(8, np.uint32)
    Branches.of(path, path + 1, 8).pick(np.zeros((8, 1), np.int64), points[:, :1], counts, 1, 0.5)
    train(sparse_points, points, LabelParameters(rank=2, iterations=1))
    # `train` makes rows dense if they store as large a share of their values as these points.
    gram(as_rows("documents", sparse.csr_array((1, 8), dtype=np.float32), 8))


def _compile_together() -> None:
    """Compile the kernels of reports, and those that search many query rows at once.

    Queries on a small index never call the latter.
    """
    register, queries = np.empty((0, 3), np.int64), pack_queries(np.empty((1, 1), np.float32))
    plan = QueryPlan.of(QueryParameters().resolve(4, "exact"), "cosine", 4).fields
    for kernel in (score_batch, scan_batch):
        kernel.compile(tuple(map(numba.typeof, (register, register, plan, queries, 0, 1))))
    rows, distances, places = (np.empty(0, kind) for kind in (np.int32, np.float32, np.int64))
    numbers, ids = np.empty((8, 1)), np.empty((1, 2), np.int64)
    arguments = (register, rows, distances, places, places, 0, 0.5, numbers, ids)
    reports.report.compile(tuple(map(numba.typeof, arguments)))
    point = read_only(np.ones((1, 1), np.float32))
    nearest, limits, scratch = (np.ones(2, np.float32) for _ in range(3))
    counts, n_scored = np.zeros((2, 1), np.int64)
    count_longest(
        point, 0, point, point[0], 1, nearest.reshape(1, 2), counts, limits, n_scored, scratch
    )
