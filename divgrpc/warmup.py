"""Warm-up loads all kernels before the first query.

`divgrpc.compilation` starts the processes that compile missing kernels. These processes call
`compile_kernels`, which runs or compiles every kernel on tiny data.
"""

import gc
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc import compilation
from divgrpc.arrays import read_only
from divgrpc.hashing.partition import learn
from divgrpc.index import Index
from divgrpc.kernels import cache_files, jit, records
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
from divgrpc.types.filters import HasId
from divgrpc.vectors import as_rows


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
            # So many queries with one filter copy the codes that pass.
            index.query(points, search="tables", filter=HasId((1, 2)), k=1)
            for selector in ONE_BY_ONE:
                index.query(points[0], search="tables", selector=selector, k=2)
    _predict_and_train(points)
    _compile_together()


def compile_rest() -> None:
    """Compile the kernels of selectors, labels, k-means and batches, beside those of queries."""
    points = np.eye(8, dtype=np.float32)
    learn(points, 4, np.random.default_rng(0))
    memory = Memory(8, (8, 64))
    memory.fit_points(8)
    memory.fit_selection(8, 2)
    candidates, index = memory.scratch.candidates, record_of(records.Index, {}, {"d": 8, "m": 8})
    candidates.rows[:], candidates.distances[:] = np.arange(8), 1
    vectors = read_only(points)
    candidate_set = CandidateSet(
        index.points._replace(vectors=vectors), *candidates, memory.scratch.selection
    )
    for selector in ONE_BY_ONE:
        parameters = QueryParameters(k=2, selector=selector).resolve(8, "exact")
        select(candidate_set, parameters, "cosine")
    _predict_and_train(points.copy())
    _compile_together()


def _predict_and_train(points: npt.NDArray[np.float32]) -> None:
    sparse_points = sparse.csr_array(points)
    for vectors in (points, sparse_points):
        embed(as_rows("documents", vectors, 8), points, points[0], unit=True)
    path, counts = np.arange(-1, 7), np.ones(8, np.uint32)
    Branches.of(path, path + 1, 8).pick(np.zeros((8, 1), np.int64), points[:, :1], counts, 1, 0.5)
    train(sparse_points, points, LabelParameters(rank=2, iterations=1))


def _compile_together() -> None:
    """Compile the kernels that search many query rows at once.

    Queries on a small index never call these kernels.
    """
    register, queries = np.empty((0, 3), np.int64), pack_queries(np.empty((1, 1), np.float32))
    plan = QueryPlan.of(QueryParameters().resolve(4, "exact"), "cosine", 4).fields
    for kernel in (score_batch, scan_batch):
        kernel.compile(tuple(map(numba.typeof, (register, register, plan, queries, 0, 1))))
