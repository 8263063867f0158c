"""Where compiled kernels are kept, and that warm means warm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import config

from divgrpc import index
from divgrpc.kernels import compiling

_COUNT_COMPILATIONS = """
import sys, tempfile, pathlib
import numpy as np
import divgrpc.kernels as kernels
from divgrpc.index import Index, warm_kernels

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
    functions = {id(f): f for m in modules for f in vars(m).values() if hasattr(f, "signatures")}
    return {f.__name__: len(f.signatures) for f in functions.values()}

warm_kernels()
before = compiled()
assert before["answer"] == 1, before
points = np.random.default_rng(0).standard_normal((300, 12))
folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))
for number, given in enumerate((
    {}, {"ids": range(300)}, {"n_bits": 12}, {"zero_vectors": "skip"}, {"hash_family": "lsh_div"},
    {"centred": True, "hyperplanes": "gaussian"}, {"categories": range(300), "n_components": 4},
)):
    kept = Index.build(points, path=folder / f"i{number}", **given)
    for each in (kept, Index.build(points, **given), Index.open(folder / f"i{number}")):
        for search in ("auto", "tables", "scan", "scan_hamming", "exact"):
            for variant in ("corrected", "printed", "marginal"):
                each.query(points[:3], search=search, variant=variant, hash_limit=40)
            each.query(points[0], search=search, selector="nearest", sampling="nearest", k=3)
            each.query(points[0], search=search, max_distance=1, seed=2**64 - 1, hash_limit=0)
after = compiled()
print({name: count for name, count in after.items() if count != before.get(name)})
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


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    """Kernels compile in memory where there is no place to keep them."""
    (tmp_path / "file").write_text("in the way")
    script = (
        "import numpy as np; from divgrpc.kernels import compiling, sampling\n"
        "compiling.mark_warm()\n"
        "print(int(sampling.mix(np.uint64(1234567))), compiling.is_warm())"
    )
    for place in ("/proc/nowhere", str(tmp_path / "file")):
        assert run(script, DIVGRPC_KERNEL_CACHE=place) == "6457827717110365317 False"


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
    monkeypatch.setattr(index, "_run_every_kernel", run_kernels)
    index.warm_kernels()
    assert runs == [True, False]
    assert compiling.is_warm()
    assert [path.name for path in kept.iterdir()] == ["warm"]


def test_numbas_own_setting_is_left_alone() -> None:
    """Whoever uses numba beside us keeps their kernels where they did."""
    before = config.CACHE_DIR
    compiling.kernel(lambda: None)
    after = config.CACHE_DIR
    assert after == before
