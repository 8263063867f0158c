"""Warm-up: all kernels loaded before the first query.

`divgrpc.compilation` starts the processes that compile missing kernels. They call
`compile_kernels`, which runs every kernel once on tiny data.
"""

import gc
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc import compilation
from divgrpc.hashing.partition import learn
from divgrpc.index import Index
from divgrpc.kernels import cache_files, jit
from divgrpc.labels import train
from divgrpc.labels.prediction import embed
from divgrpc.parameters import LabelParameters
from divgrpc.platforms import end_with_parent
from divgrpc.search.branches import Branches
from divgrpc.search.compilation import compile_beside, compile_together
from divgrpc.search.selectors import ONE_BY_ONE
from divgrpc.vectors import as_rows


def warm_kernels() -> None:
    """Compile the kernels that are missing, and load all of them.

    Reports of a compilation go to standard error, or to the function given to
    `divgrpc.compilation.report_to`.
    """
    compilation.ensure()
    # The garbage collector would take a tenth of a compilation's time.
    is_on = gc.isenabled()
    gc.disable()
    try:
        _run_every_kernel()
    finally:
        if is_on:
            gc.enable()
    if not cache_files.is_warm():
        # No other process could compile the kernels, so this one has.
        cache_files.mark_warm(jit.entry_files)


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of `warm_ahead`: the number of `kernels`, their size in all, and two times.

    `kept` is whether the compiled kernels are stored in `folder`. `processor` is the one that they
    are compiled for, as LLVM names it. `compile_seconds` is None if no kernel was missing.
    """

    folder: Path
    kept: bool
    kernels: int
    size_bytes: int
    processor: str
    compile_seconds: float | None
    load_seconds: float

    def as_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return asdict(self) | {"folder": str(self.folder)}


def warm_ahead(*, quiet: bool = False) -> Warmed:
    """Compile every kernel that is missing, load all of them, and remove unused ones.

    Unused kernels belong to other releases and no process has used them for 30 days. Progress goes
    to standard error, unless `quiet` is true.
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
    """Compile every kernel, from the "first" or the "last" `end` of the list on.

    This runs in a process of its own. `folder` is where its parent looks for the files. If they
    would go to another folder, or cannot be written, the process exits with 1 and prints the reason
    to standard error.
    """
    # Only the parent waits for the files, so this process must not outlive it.
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
            for selector in ONE_BY_ONE:
                index.query(points[0], search="tables", selector=selector, k=2)
    _predict_and_train(points)
    compile_together()


def compile_other_end() -> None:
    """Compile the kernels that come last in `_run_every_kernel`, which another process runs."""
    points = np.eye(8, dtype=np.float32)
    compile_beside()
    learn(points, 4, np.random.default_rng(0))
    _predict_and_train(points)
    compile_together(backwards=True)


def _predict_and_train(points: npt.NDArray[np.float32]) -> None:
    sparse_points = sparse.csr_array(points)
    for vectors in (points, sparse_points):
        embed(as_rows("documents", vectors, 8), points, points[0], unit=True)
    path, counts = np.arange(-1, 7), np.ones(8, np.uint32)
    Branches.of(path, path + 1, 8).pick(np.zeros((8, 1), np.int64), points[:, :1], counts, 1, 0.5)
    train(sparse_points, points, LabelParameters(rank=2, iterations=1))
