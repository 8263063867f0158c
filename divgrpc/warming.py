"""Kernels made ready before the first query: compiled, or loaded as an earlier process left them.

A process compiles one kernel at a time. Where nothing is kept yet a second process begins at the
other end meanwhile, and the first finds ready what it comes to.
"""

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import numpy as np
from scipy import sparse

from divgrpc.building import IndexBuilder
from divgrpc.cells import learn
from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.kernels import compiling
from divgrpc.labels import train
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.predicting import embed
from divgrpc.searching import compile_beside, compile_together
from divgrpc.selecting import ONE_BY_ONE
from divgrpc.stores import MemoryStore
from divgrpc.types import FloatArray
from divgrpc.vectors import SparseRows, as_rows

_OTHER_PROCESS: Final = "from divgrpc.warming import compile_other_end; compile_other_end()"


def warm_kernels() -> None:
    """Compile every kernel, or load what an earlier process compiled.

    What is kept and cannot be read is removed and compiled anew.
    """
    try:
        alone = compiling.is_warm() or len(os.sched_getaffinity(0)) < 2 or not sys.executable
        with _uncollected(), contextlib.nullcontext() if alone else _other_beside():
            _run_every_kernel()
    except Exception:  # noqa: BLE001  # numba reads its cache by unpickling: anything can come of it
        compiling.forget()
        _run_every_kernel()
    compiling.mark_warm()


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


@contextlib.contextmanager
def _other_beside() -> Iterator[None]:
    """Let another process compile meanwhile; whatever it does not come to is compiled here."""
    try:
        other = subprocess.Popen(  # noqa: S603  # our own words
            (sys.executable, "-P", "-c", _OTHER_PROCESS),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield
        return
    with other:
        try:
            yield
        finally:
            other.kill()


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
    """Compile what `warm_kernels` comes to last, where another process runs it."""
    gc.disable()
    points = np.eye(8, dtype=np.float32)
    compile_beside()
    learn(points, 4, np.random.default_rng(0))
    _predict_and_train(points)
    compile_together(backwards=True)


def _predict_and_train(points: FloatArray) -> None:
    sparse_points = sparse.csr_array(points)
    for vectors in (points, sparse_points):
        embed(as_rows("documents", vectors, 8), points, points[0], unit=True)
    train(sparse_points, points, LabelParameters(rank=2, iterations=1))
