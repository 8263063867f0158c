"""Warm-up loads all kernels before the first query.

`divgrpc.compilation` starts the processes that compile missing kernels. These processes call
`compile_kernels`, which runs or compiles every kernel on tiny data.
"""

import gc
import inspect
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc import compilation
from divgrpc.hashing.partition import learn
from divgrpc.index import Index
from divgrpc.kernels import (
    buckets,
    cache_files,
    cells,
    code_scan,
    exact,
    greedy,
    inverted_lists,
    jit,
    records,
)
from divgrpc.kernels.batch import scan_batch, score_batch
from divgrpc.kernels.registers import record_of
from divgrpc.labels import train
from divgrpc.labels.prediction import embed
from divgrpc.parameters import LabelParameters, QueryParameters
from divgrpc.platforms import end_with_parent
from divgrpc.search.arrays import pack_queries
from divgrpc.search.branches import Branches
from divgrpc.search.memory import Memory
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import ONE_BY_ONE, select
from divgrpc.vectors import as_rows

# Kernels that `query.answer` calls, in reverse order of the calls.
_CALLED_BY_ANSWER: Final = (
    greedy.pick,
    exact.score_rows,
    exact.score_all,
    exact.score_marked,
    exact.score_longest,
    inverted_lists.score_listed,
    code_scan.find_by_code,
    cells.find_in_cells,
    buckets.find_in_tables,
)


def warm_kernels() -> None:
    """Compile missing kernels, then load all kernels.

    Progress reports of the compilation go to the function that was passed to
    `divgrpc.compilation.report_to`, or otherwise to standard error.
    """
    compilation.ensure()
    # During a compilation, garbage collection would take a tenth of the time.
    is_on = gc.isenabled()
    gc.disable()
    try:
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


def compile_kernels(end: str, folder: str) -> None:
    """Compile kernels in a separate process, from the "first" or the "last" `end` of the list.

    The parent process looks for the compiled files in `folder`. This process prints an error to
    standard error and exits with status 1 in two cases: if it would write the files to another
    folder, or if `end` is "first" and some files could not be written.
    """
    # Only the parent uses this work, so this process must not outlive the parent.
    end_with_parent()
    if folder != str(cache_files.cache_folder()):
        raise SystemExit("another divgrpc is installed than the one that runs")
    compilation.disable()
    gc.disable()
    if end == "last":
        compile_other_end()
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
            for selector in ONE_BY_ONE:
                index.query(points[0], search="tables", selector=selector, k=2)
    _predict_and_train(points)
    _compile_together()


def compile_other_end() -> None:
    """Compile the last kernels of `_run_every_kernel`, while another process runs the first."""
    points = np.eye(8, dtype=np.float32)
    _compile_beside()
    learn(points, 4, np.random.default_rng(0))
    _predict_and_train(points)
    _compile_together(backwards=True)


def _predict_and_train(points: npt.NDArray[np.float32]) -> None:
    sparse_points = sparse.csr_array(points)
    for vectors in (points, sparse_points):
        embed(as_rows("documents", vectors, 8), points, points[0], unit=True)
    path, counts = np.arange(-1, 7), np.ones(8, np.uint32)
    Branches.of(path, path + 1, 8).pick(np.zeros((8, 1), np.int64), points[:, :1], counts, 1, 0.5)
    train(sparse_points, points, LabelParameters(rank=2, iterations=1))


def _compile_together(*, backwards: bool = False) -> None:
    """Compile the kernels that search many query rows at once.

    Queries on a small index never call these kernels. The second of two compiler processes compiles
    them in reverse order (`backwards`), so that both processes rarely compile the same kernel.
    """
    register, queries = np.empty((0, 3), np.int64), pack_queries(np.empty((1, 1), np.float32))
    plan = QueryPlan.of(QueryParameters().resolve(4, "exact"), "cosine", 4).fields
    for kernel in (score_batch, scan_batch)[:: -1 if backwards else 1]:
        kernel.compile(tuple(map(numba.typeof, (register, register, plan, queries, 0, 1))))


def _compile_beside() -> None:
    """Compile kernels that `query.answer` calls, in the second of two compiler processes.

    The first process compiles these kernels in the order of the calls, the second in reverse order.
    """
    index = record_of(records.Index, {}, {"d": 4, "m": 4})
    memory = Memory(4, (4, 64))
    memory.fit_points(4)
    memory.fit_selection(4, 1)
    arguments = _arguments(index, memory.scratch)
    for kernel in _CALLED_BY_ANSWER:
        names = inspect.signature(kernel.py_func).parameters
        kernel.compile(tuple(numba.typeof(arguments[name]) for name in names))
    candidates = memory.scratch.candidates
    candidates.rows[:], candidates.distances[:] = np.arange(4), 1
    vectors = np.eye(4, dtype=np.float32)
    vectors.setflags(write=False)
    points = index.points._replace(vectors=vectors)
    candidate_set = CandidateSet(points, *candidates, memory.scratch.selection)
    for selector in ONE_BY_ONE:
        parameters = QueryParameters(k=2, selector=selector).resolve(4, "exact")
        select(candidate_set, parameters, "cosine")


def _arguments(index: records.Index, scratch: records.Scratch) -> dict[str, Any]:
    """Map each parameter name of the kernels in `_CALLED_BY_ANSWER` to a value of its type."""
    one, distances = np.float32(1), scratch.candidates.distances
    numbers = ("count", "n_nearest", "n_scored", "stop")
    return dict.fromkeys(numbers, 0) | {
        **scratch._asdict(),
        **index._asdict(),
        **scratch.selection._asdict(),
        "bounds": index.length_bounds,
        "cell_scratch": scratch.cells,
        "columns": scratch.candidates.rows,
        "distances": distances,
        "gains": distances,
        "margins": scratch.code.margins,
        "objective": records.Objective(1, one, 0, product=False, copy_limit=one),
        "plan": QueryPlan.of(QueryParameters().resolve(4, "tables"), "cosine", 4).kernel,
        "pool": records.Pool(0, 0, 0),
        "query": records.Query(scratch.selection.dense, 0, 0.0, product=False),
        "rows": scratch.candidates.rows,
        "scratch": scratch.lists,
        "signs": scratch.code.signs,
        "values": distances,
        "vectors": index.points.vectors,
    }
