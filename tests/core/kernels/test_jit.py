"""What the decorators of kernels do, and that nothing is compiled after warming."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt
import pytest

from divgrpc.kernels import jit

_COUNT_COMPILATIONS = """
import sys, tempfile, pathlib
import numpy as np
from scipy import sparse
from divgrpc.index import Index
from divgrpc.warmup import warm_kernels

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
    values = [value for module in modules for value in vars(module).values()]
    functions = {id(f): f for f in values if hasattr(f, "nopython_signatures")}
    return {f.__name__: len(f.signatures) for f in functions.values()}

warm_kernels()
before = compiled()
assert before["answer"] == 1, before
dense = np.random.default_rng(0).standard_normal((300, 12))
folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))
builds = [{}, {"ids": range(300)}, {"n_bits": 12}, {"zero_vectors": "skip"}]
builds += [{"categories": range(300)}, {"hash_family": "pca_hash"}, {"hash_family": "auto"}]
for family in ("lsh_div", "cells"):
    for metric in ("cosine", "euclidean", "inner_product"):
        builds.append({"hash_family": family, "metric": metric, "n_components": 4})
builds.append({"centred": True, "hyperplanes": "gaussian", "metric": "euclidean"})
number = 0
for given in builds:
    for points in (dense, sparse.csr_array(dense)):
        number += 1
        kept = Index.build(points, path=folder / f"i{number}", **given)
        for each in (kept, Index.build(points, **given), Index.open(folder / f"i{number}")):
            for search in ("auto", "tables", "scan", "scan_hamming", "exact"):
                for asked in (dense[:3], sparse.csr_array(dense[:3])):
                    for variant in ("corrected", "printed", "marginal"):
                        each.query(asked, search=search, variant=variant, hash_limit=40)
                    each.query(asked, search=search, selector="mmr", sampling="nearest", k=3)
                    each.query(asked, search=search, selector="nearest", seed=1, hash_limit=0)
                    for selector in ("rerank", "max_sum", "dpp", "qp_relax"):
                        each.query(asked, search=search, selector=selector, candidates_limit=0)
                if given.get("metric") != "inner_product":
                    each.query(dense[0], search=search, max_distance=1)
after = compiled()
print({name: count for name, count in after.items() if count != before.get(name)})
"""


_COUNT_MISSES = """
import sys
from divgrpc import compilation
from divgrpc.warmup import compile_other_end, warm_kernels

def asked(of):
    modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
    values = [value for module in modules for value in vars(module).values()]
    functions = {id(f): f for f in values if hasattr(f, "nopython_signatures")}
    return sum(sum(getattr(f.stats, of).values()) for f in functions.values())

if sys.argv[1:]:
    warm_kernels()
else:
    compilation.disable()
    compile_other_end()
    print(asked("cache_hits") > 10, asked("cache_misses"))
"""


def run(script: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_compiled_after_warming(tmp_path: Path) -> None:
    """Whatever is built, opened or asked afterwards runs what `warm_kernels` compiled or loaded."""
    assert run(_COUNT_COMPILATIONS, str(tmp_path)) == "{}"


def test_the_second_process_compiles_what_the_first_wants() -> None:
    """To the types of all arguments: other ones would be compiled for nobody."""
    run(_COUNT_MISSES, "first")
    assert run(_COUNT_MISSES) == "True 0"


def test_what_makes_arrays_says_so() -> None:
    """A plain kernel would never let go of their memory: it is not compiled."""

    def ones(n: int) -> int:
        return int(np.ones(n).size)

    assert jit.allocating(ones)(3) == 3
    for plain in (jit.kernel, jit.part):
        with pytest.raises(TypeError, match="ones makes arrays: ones"):
            plain(ones)


def test_a_constant_argument_is_no_type_of_its_own() -> None:
    """A kernel called with 0, with 1 and with a variable is compiled once, as for any integer."""

    def callee(a: int, b: int) -> int:
        return a + b if b else a

    def caller_of(inner: Callable[[int, int], int]) -> Callable[[int], int]:
        return lambda n: inner(n, 0) + inner(n, 1) + inner(n, n)

    ours, plain = jit.kernel(callee), numba.njit(callee)
    for inner, compiled in ((ours, 1), (plain, 3)):
        assert jit.kernel(caller_of(inner))(5) == 5 + 6 + 10
        assert len(inner.signatures) == compiled


def test_a_part_is_compiled_into_its_caller() -> None:
    """It does what a kernel does, and no version of it stands alone."""

    def callee(a: npt.NDArray[np.int64], n: int) -> int:
        if n > 2:
            return int(a[0])
        a[0] += n
        return n

    def caller_of(
        inner: Callable[[npt.NDArray[np.int64], int], int],
    ) -> Callable[[npt.NDArray[np.int64], int], tuple[int, int]]:
        return lambda a, n: (inner(a, n), inner(a, 0))

    results = []
    for made, alone in ((jit.kernel, 1), (jit.part, 0)):
        inner, array = made(callee), np.array([7])
        caller = jit.kernel(caller_of(inner))
        results.append(([caller(array, n) for n in (1, 2, 3)], array.tolist()))
        assert len(inner.signatures) == alone
    assert results[0] == results[1] == ([(1, 0), (2, 0), (10, 0)], [10])
