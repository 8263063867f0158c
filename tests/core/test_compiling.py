"""Where compiled kernels are kept, and that warm means warm."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt
import pytest
from numba.core import config

from divgrpc import warming
from divgrpc.kernels import compiling

_COUNT_COMPILATIONS = """
import sys, tempfile, pathlib
import numpy as np
from scipy import sparse
from divgrpc.index import Index
from divgrpc.warming import warm_kernels

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
    functions = {id(f): f for m in modules for f in vars(m).values() if hasattr(f, "signatures")}
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
from divgrpc.warming import compile_other_end, warm_kernels

def asked(of):
    modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
    functions = {id(f): f for m in modules for f in vars(m).values() if hasattr(f, "signatures")}
    return sum(sum(getattr(f.stats, of).values()) for f in functions.values())

if sys.argv[1:]:
    warm_kernels()
else:
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


def test_what_makes_arrays_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain kernel would never let go of their memory: it is not compiled."""
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path)

    def ones(n: int) -> int:
        return int(np.ones(n).size)

    assert compiling.allocating(ones)(3) == 3
    for plain in (compiling.kernel, compiling.part):
        with pytest.raises(TypeError, match="ones makes arrays: ones"):
            plain(ones)


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    """Kernels compile in memory where there is no place to keep them."""
    (tmp_path / "file").write_text("in the way")
    script = (
        "import numpy as np; from divgrpc.kernels import compiling, sampling\n"
        "compiling.mark_warm()\n"
        "kept = type(sampling.mix._cache).__name__\n"
        "print(int(sampling.mix(np.uint64(1234567))), compiling.is_warm(), kept)"
    )
    for place in ("/proc/nowhere", str(tmp_path / "file")):
        # Not beside the sources either: nothing there tells one version of them from another.
        assert run(script, DIVGRPC_KERNEL_CACHE=place) == "6457827717110365317 False NullCache"


def test_kernels_are_kept_apart_by_sources_and_processor(tmp_path: Path) -> None:
    """Another processor has another folder, and so has another place to keep them in."""
    script = "from divgrpc.kernels import compiling; print(compiling.cache_folder())"
    here = run(script, DIVGRPC_KERNEL_CACHE=str(tmp_path))
    assert Path(here).parent == tmp_path
    plain = run(script, DIVGRPC_KERNEL_CACHE=str(tmp_path), NUMBA_CPU_NAME="x86-64")
    assert plain != here
    home = run(script, DIVGRPC_KERNEL_CACHE="", XDG_CACHE_HOME=str(tmp_path / "home"))
    assert Path(home).is_absolute()


def test_what_cannot_be_read_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept files that fail to load are removed, once, and the kernels compiled again."""
    kept = tmp_path / "kernels"
    kept.mkdir()
    (kept / "garbage.nbi").write_text("not an index of kernels")
    runs = []

    def run_kernels() -> None:
        runs.append(kept.exists())
        if len(runs) == 1:
            raise EOFError("Ran out of input")
        kept.mkdir()

    monkeypatch.setattr(compiling, "cache_folder", lambda: kept)
    monkeypatch.setattr(warming, "_run_every_kernel", run_kernels)
    warming.warm_kernels()
    assert runs == [True, False]
    assert compiling.is_warm()
    assert [path.name for path in kept.iterdir()] == ["warm"]


def test_numbas_own_setting_is_left_alone() -> None:
    """Whoever uses numba beside us keeps their kernels where they did."""
    before = config.CACHE_DIR
    compiling.kernel(lambda: None)
    after = config.CACHE_DIR
    assert after == before


def test_a_constant_argument_is_no_type_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel called with 0, with 1 and with a variable is compiled once, as for any integer."""
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path)

    def callee(a: int, b: int) -> int:
        return a + b if b else a

    def caller_of(inner: Callable[[int, int], int]) -> Callable[[int], int]:
        return lambda n: inner(n, 0) + inner(n, 1) + inner(n, n)

    ours, plain = compiling.kernel(callee), numba.njit(callee)
    for inner, compiled in ((ours, 1), (plain, 3)):
        assert compiling.kernel(caller_of(inner))(5) == 5 + 6 + 10
        assert len(inner.signatures) == compiled


def test_a_part_is_compiled_into_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does what a kernel does, and no version of it stands alone."""
    monkeypatch.setattr(compiling, "cache_folder", lambda: tmp_path)

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
    for made, alone in ((compiling.kernel, 1), (compiling.part, 0)):
        inner, array = made(callee), np.array([7])
        caller = compiling.kernel(caller_of(inner))
        results.append(([caller(array, n) for n in (1, 2, 3)], array.tolist()))
        assert len(inner.signatures) == alone
    assert results[0] == results[1] == ([(1, 0), (2, 0), (10, 0)], [10])


def test_an_edit_of_any_kernel_moves_all_of_them(tmp_path: Path) -> None:
    """The library looks at the file of a function alone; our folder's name is of all of them."""
    copied = tmp_path / "kernels"
    shutil.copytree(Path(compiling.__file__).parent, copied)
    script = (
        "import sys; from pathlib import Path; from divgrpc.kernels import compiling\n"
        "compiling.__file__ = sys.argv[1]; print(compiling.cache_folder().name)"
    )
    place, edited = str(copied / "compiling.py"), copied / "scoring.py"
    before = run(script, place)
    assert before == compiling.cache_folder().name
    edited.write_text(edited.read_text() + "# A word.\n")
    after = run(script, place)
    (copied / "more.py").write_text("")
    assert len({before, after, run(script, place)}) == 3


def test_the_second_process_runs_no_file_of_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's numba.py where a server is started is not numba."""
    (tmp_path / "numba.py").write_text("open('run', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warming, "_OTHER_PROCESS", "import numba; open('imported', 'w')")
    with warming._other_beside():
        for _ in range(200):
            if (tmp_path / "imported").exists():
                break
            time.sleep(0.05)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["imported", "numba.py"]
