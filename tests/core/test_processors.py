"""Kernels compiled for wide registers, narrow ones and the narrowest: the same bytes.

One process per kind of processor answers from one set of stored indexes, and says what its kernels
are made of. A process compiles all kernels anew, which takes most of the time.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from llvmlite import binding
from scipy import sparse

from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, Metric

# Two strides of four blocks, a block, and six more: every part of a row's sum.
ROWS, DIMS, QUERIES = 400, 150, 12
FAMILIES: list[HashFamily] = ["lsh_sdiv", "cells"]
# What a processor must have to run the kernels, and the registers that they are to use.
PROCESSORS = {
    "skylake-avx512": ("avx512vl", "zmm"),
    "haswell": ("avx2", "ymm"),
    "x86-64": ("sse2", "xmm"),
}

_ANSWER_EVERYTHING = """
import hashlib, itertools, sys
from pathlib import Path
import numba, numpy as np
from scipy import sparse
from divgrpc.index import Index
from divgrpc.kernels.lanes import row_dot

dot = numba.njit("float32(float32[:, ::1], float32[:, ::1])")(lambda a, b: row_dot(a, 0, b, 0))
(assembly,) = dot.inspect_asm().values()
print(next(register for register in ("zmm", "ymm", "xmm") if register in assembly))
asked = np.load(sys.argv[2])
SEARCHES = ("tables", "scan", "scan_hamming", "exact", "auto")
RULES = [("nearest", "corrected"), ("greedy", "corrected"), ("greedy", "marginal")]
RULES += [("mmr", "printed"), ("rerank", "printed"), ("max_sum", "printed"), ("dpp", "printed")]
RULES += [("qp_relax", "printed"), ("qp_relax", "corrected")]
for folder in sorted(Path(sys.argv[1]).iterdir()):
    index = Index.open(folder)
    for given, search in itertools.product((np.array, sparse.csr_array), SEARCHES):
        told = hashlib.sha256()
        for selector, variant in RULES:
            found = index.query(
                given(asked), k=9, search=search, selector=selector, variant=variant,
                hash_limit=60, candidates_limit=40, sampling="nearest",
            )
            for column in (found.ids, found.scores, found.selection_scores, found.counts):
                told.update(column.tobytes())
            told.update(found.stats.points_hashed.tobytes() + found.stats.buckets_probed.tobytes())
        print(folder.name, given.__name__, search, told.hexdigest())
"""


def drawn(rows: int, seed: int) -> FloatArray:
    """Draw points around a few centres, of lengths that vary by 100, half of their entries zero."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((8, DIMS))[rng.integers(0, 8, rows)]
    points = (points + rng.standard_normal((rows, DIMS))) * 10 ** rng.uniform(0, 2, (rows, 1))
    points[rng.random(points.shape) < 0.5] = 0
    return points.astype(np.float32)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of indexes, one of each metric, kind of points and way to partition them."""
    folder = tmp_path_factory.mktemp("processors")
    for family in FAMILIES:
        for metric in get_args(Metric):
            for kind, made in (("dense", np.array), ("sparse", sparse.csr_array)):
                name = f"{family}-{metric}-{kind}".replace("_", "-")
                path = folder / "indexes" / name
                Index.build(made(drawn(ROWS, 1)), hash_family=family, metric=metric, path=path)
    np.save(folder / "queries.npy", drawn(QUERIES, 2))
    return folder


def answers(stored: Path, processor: str | None) -> list[str]:
    """Return the registers used, then each answer's digest, of kernels compiled for a processor."""
    compiled = {"DIVGRPC_KERNEL_CACHE": str(stored / f"kernels-{processor}")}
    if processor is None:
        compiled = {}
    else:
        compiled |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    script = [sys.executable, "-c", _ANSWER_EVERYTHING]
    places = [str(stored / "indexes"), str(stored / "queries.npy")]
    done = subprocess.run(
        script + places, env=os.environ | compiled, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def own_answers(stored: Path) -> list[str]:
    """Return what the kernels of this machine answer."""
    told = answers(stored, None)
    assert len(told) == 1 + 12 * 2 * 5
    # Searches often agree, and a query is the same dense or sparse; indexes all differ.
    assert len({line.split()[-1] for line in told[1:]}) > 24
    return told


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_processor_gives_the_same_bytes(
    stored: Path, own_answers: list[str], processor: str
) -> None:
    """AVX-512, AVX2 and SSE: every search, metric, selector and kind of vectors, bit for bit."""
    needed, registers = PROCESSORS[processor]
    if not binding.get_host_cpu_features().get(needed):
        pytest.skip(f"this machine has no {needed}")
    told = answers(stored, processor)
    assert told[0] == registers
    assert told[1:] == own_answers[1:]
