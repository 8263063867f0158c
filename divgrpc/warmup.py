"""Kernels made ready before the first query: compiled by other processes, then loaded.

`divgrpc.compilation` starts those processes; what they run is here.
"""

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from divgrpc import compilation
from divgrpc.build.builder import IndexBuilder
from divgrpc.engine import Engine
from divgrpc.hashing.partition import learn
from divgrpc.index import Index
from divgrpc.kernels import cache_files, jit
from divgrpc.labels import train
from divgrpc.labels.prediction import embed
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.platforms import end_with_parent
from divgrpc.search.branches import Branches
from divgrpc.search.compilation import compile_beside, compile_together
from divgrpc.search.selectors import ONE_BY_ONE
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import FloatArray
from divgrpc.unused_kernels import remove_unused
from divgrpc.vectors import SparseRows, as_rows


def warm_kernels() -> None:
    """Load every kernel, and have those compiled before that are not kept yet.

    Says so on standard error where anything is compiled, or where `compilation.report_to` has it.
    """
    compilation.ensure()
    with _uncollected():
        _run_every_kernel()
    if not cache_files.is_warm():
        # Where no other process could compile them, this one has.
        cache_files.mark_warm(jit.needed)


@dataclass(frozen=True, slots=True)
class Warmed:
    """What `warm_ahead` did: `kernels` of `size_bytes` altogether, for a `processor`.

    They are in `folder` if they are `kept`. `compile_seconds` is None where none was missing.
    """

    folder: Path
    kept: bool
    kernels: int
    size_bytes: int
    processor: str
    compile_seconds: float | None
    load_seconds: float

    def as_dict(self) -> dict[str, object]:
        """Return the same for JSON."""
        return asdict(self) | {"folder": str(self.folder)}


def warm_ahead(*, quiet: bool = False) -> Warmed:
    """Compile every kernel that is missing, load all of them, and say what that came to.

    Folders of other releases that are no longer used are removed. Progress goes to standard error,
    unless `quiet`.
    """
    if quiet:
        compilation.report_to(lambda _: None)
    missing = not cache_files.is_warm()
    begun = time.monotonic()
    compilation.ensure()
    compiled = time.monotonic()
    warm_kernels()
    remove_unused()
    return Warmed(
        folder=cache_files.cache_folder(),
        kept=cache_files.is_warm(),
        kernels=len(cache_files.kernel_names()),
        size_bytes=sum(file.stat().st_size for file in cache_files.cache_folder().glob("*.kernel")),
        processor=cache_files.processor(),
        compile_seconds=compiled - begun if missing else None,
        load_seconds=time.monotonic() - compiled,
    )


def compile_kernels(end: str, folder: str) -> None:
    """Compile every kernel from the "first" or the "last" of the list on, as a process of its own.

    `folder` is where whoever started this process looks for the files. Exits with 1, and the reason
    on standard error, where they would be elsewhere or cannot be kept.
    """
    # Nobody waits for the files any more once that process has died.
    end_with_parent()
    if folder != str(cache_files.cache_folder()):
        raise SystemExit("another divgrpc is installed than the one that runs")
    compilation.leave_to_others()
    gc.disable()
    if end == "last":
        compile_other_end()
        return
    _run_every_kernel()
    if not cache_files.mark_warm(jit.needed):
        reasons = sorted(set(jit.unkept.values()))
        raise SystemExit("; ".join(reasons) or "a file that was written cannot be read")


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: a compiler makes much that is kept, and looks take a tenth."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _run_every_kernel() -> None:
    points = np.eye(8, dtype=np.float32)
    few_bits = BuildParameters(hash_family="lsh_div", n_bits=2)
    cells = BuildParameters(hash_family="cells", metric="euclidean")
    for vectors in (points, sparse.csr_array(points)):
        for parameters in (few_bits, cells):
            builder = IndexBuilder(MemoryStore(), parameters)
            builder.append(vectors, ids=np.arange(8))
            index = Index(Engine(builder.build()))
            index.query(points, search="tables")
            index.query(SparseRows.of(sparse.csr_array(points)), search="tables")
            for selector in ONE_BY_ONE:
                index.query(points[0], search="tables", selector=selector, k=2)
    _predict_and_train(points)
    compile_together()


def compile_other_end() -> None:
    """Compile what `_run_every_kernel` comes to last, where another process runs it."""
    points = np.eye(8, dtype=np.float32)
    compile_beside()
    learn(points, 4, np.random.default_rng(0))
    _predict_and_train(points)
    compile_together(backwards=True)


def _predict_and_train(points: FloatArray) -> None:
    sparse_points = sparse.csr_array(points)
    for vectors in (points, sparse_points):
        embed(as_rows("documents", vectors, 8), points, points[0], unit=True)
    path, counts = np.arange(-1, 7), np.ones(8, np.uint32)
    Branches.of(path, path + 1, 8).pick(np.zeros((8, 1), np.int64), points[:, :1], counts, 1, 0.5)
    train(sparse_points, points, LabelParameters(rank=2, iterations=1))
