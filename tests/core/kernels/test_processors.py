"""Kernels compiled for registers of different widths give the same bytes.

Sums over rows, the only explicitly vectorised code, are compiled for each kind of processor.
Compiling all kernels takes most of a minute, so they are compiled for one more processor only: the
oldest, without AVX, fused multiplication or population count. The environment variable
DIVGRPC_PROCESSORS names other processors, as `make processors` does. numpy and its BLAS are limited
to the instructions of that processor too.
"""

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numba
import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import binding
from scipy import sparse

from divgrpc.index import Index
from divgrpc.kernels import jit
from divgrpc.types import FloatArray, HashFamily, Metric
from support.processes.command_line import run_script

# A row's sum is computed in strides of four blocks, then blocks, then entries. DIMS fills two
# strides, one block and six entries, so that it covers all of them.
ROWS, DIMS, QUERIES = 400, 150, 4
FAMILIES: list[HashFamily] = ["lsh_sdiv", "cells"]
# For each kind of processor, the CPU feature that it must have, and the registers that kernels
# should use on it.
PROCESSORS = {
    "skylake-avx512": ("avx512vl", "zmm"),
    "haswell": ("avx2", "ymm"),
    "x86-64": ("sse2", "xmm"),
}
# For each older processor, the CPU feature that it must have, and the names by which BLAS and numpy
# select its instructions. x86-64-v2 dates from 2008. x86-64-v3 dates from 2013 and adds AVX2 and
# fused multiplication.
OLDER = {
    "x86-64": ("sse2", "Prescott", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"),
    "x86-64-v2": ("sse4.2", "Nehalem", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"),
    "x86-64-v3": ("avx2", "Haswell", "X86_V4 AVX512_ICL AVX512_SPR"),
}
# The digest of the sums of `_SUM_ROWS`, recorded on a processor with AVX-512.
SUMS = "7880eb21242c89660a513958ee4299c66ab8504f1981f5fd04c7f4f6a8244e4f"
PROCESSOR_NAMES = os.environ.get("DIVGRPC_PROCESSORS", "x86-64").split()

_ANSWER_EVERYTHING = """
import hashlib, itertools, sys
from pathlib import Path
import numpy as np
from scipy import sparse
from divgrpc.index import Index
from divgrpc.types.filters import HasId

queries = np.load(sys.argv[2])
SEARCHES = ("tables", "scan", "scan_hamming", "exact", "auto")
RULES = [("nearest", "corrected"), ("greedy", "corrected"), ("greedy", "marginal")]
RULES += [("mmr", "printed"), ("rerank", "printed"), ("max_sum", "printed"), ("dpp", "printed")]
RULES += [("qp_relax", "printed"), ("qp_relax", "corrected")]
for folder in sorted(Path(sys.argv[1]).iterdir()):
    index = Index.open(folder)
    for array_type, search in itertools.product((np.array, sparse.csr_array), SEARCHES):
        digest = hashlib.sha256()
        ids = [record.id for page in index.scroll() for record in page]
        for number, (selector, variant) in enumerate(RULES):
            share = (None, 2, 9)[(number + SEARCHES.index(search)) % 3]
            condition = None if share is None else HasId(tuple(ids[::share]))
            result = index.query(
                array_type(queries), k=9, search=search, selector=selector, variant=variant,
                hash_limit=60, candidates_limit=40, sampling="nearest", filter=condition,
            )
            for column in (result.ids, result.scores, result.selection_scores, result.counts):
                digest.update(column.tobytes())
            for column in (result.stats.points_hashed, result.stats.buckets_probed):
                digest.update(column.tobytes())
        print(folder.name, array_type.__name__, search, digest.hexdigest())
"""

_CHOOSE = """
import hashlib, json
import numpy as np
from divgrpc.index import Index

rng = np.random.default_rng(0)
fall = np.exp(-np.arange(96) / 30)
centres = rng.standard_normal((60, 96)) * fall
points = centres[rng.integers(0, 60, 6_000)] + 0.5 * rng.standard_normal((6_000, 96)) * fall
for family in ("auto", "lsh_sdiv", "pca_hash", "cells"):
    components = 24 if family == "lsh_sdiv" else None
    index = Index.build(points, hash_family=family, n_components=components)
    choices = [
        index.query(points[:1], k=5, candidates_limit=size).parameters
        for size in (10, 50, 200, 1_000)
    ]
    print(json.dumps({
        "family": index.info.parameters["hash_family"],
        "auto": [(choice.search, choice.hash_limit) for choice in choices],
        "recalls": [pool.recall for cost in index.info.search_costs for pool in cost.pools],
        "planes": hashlib.sha256(index.engine._arrays["hyperplanes"].tobytes()).hexdigest(),
    }))
"""

_SUM_ROWS = """
import hashlib
import numba, numpy as np
from divgrpc.kernels.byte_copies import far_at_most, make_copies
from divgrpc.kernels.records import NO_COPIES, Points
from divgrpc.kernels.vector_sums import gathered_dot, row_distance, row_distances, row_dot, row_dots

@numba.njit
def sums(left, right, order):
    several = row_dots(left, (0, 1, 2), right, 1) + row_distances(left, (2, 1, 0), right, 1)
    alone = row_dot(left, 0, right, 0), row_distance(left, 0, right, 0)
    return several + alone, gathered_dot(order, left[0], 0, len(order), 0, right, 0)

digest = hashlib.sha256()
for cols in range(1, 200):
    rng = np.random.default_rng(cols)
    left, right = rng.standard_normal((2, 3, cols)).astype(np.float32)
    digest.update(np.hstack(sums(left, right, rng.permutation(cols).astype(np.int32))).tobytes())
    points, bounds = Points(left, *[np.empty(0)] * 5), np.empty(3, np.float32)
    rows, picks, copies = np.arange(3, dtype=np.int32), np.arange(2), make_copies(points, 3)
    for step in range(2):
        far_at_most(left, rows, 3, picks, step, NO_COPIES, copies, bounds)
        digest.update(bounds.tobytes())
(assembly,) = sums.inspect_asm().values()
print(next(register for register in ("zmm", "ymm", "xmm", ".4s") if register in assembly))
print(digest.hexdigest())
"""


def drawn(rows: int, seed: int) -> FloatArray:
    """Draw points around eight centres, with lengths that differ by a factor of 100, half zeros."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((8, DIMS))[rng.integers(0, 8, rows)]
    points = (points + rng.standard_normal((rows, DIMS))) * 10 ** rng.uniform(0, 2, (rows, 1))
    points[rng.random(points.shape) < 0.5] = 0
    return points.astype(np.float32)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processors")
    for family in FAMILIES:
        for metric in get_args(Metric):
            for kind, array_type in (("dense", np.array), ("sparse", sparse.csr_array)):
                name = f"{family}-{metric}-{kind}".replace("_", "-")
                path = folder / "indexes" / name
                Index.build(
                    array_type(drawn(ROWS, 1)), hash_family=family, metric=metric, path=path
                )
    np.save(folder / "queries.npy", drawn(QUERIES, 2))
    return folder


def run_as(processor: str | None, script: str, *arguments: Path) -> list[str]:
    """Return the lines that a script prints with kernels compiled for a processor or this one."""
    environment: dict[str, str] = {}
    if processor is not None:
        environment = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    if processor in OLDER:
        _, blas, without = OLDER[processor]
        environment |= {"OPENBLAS_CORETYPE": blas, "NPY_DISABLE_CPU_FEATURES": without}
    return run_script(script, *arguments, **environment)[0].splitlines()


@pytest.fixture(scope="module")
def own_sums() -> list[str]:
    return run_as(None, _SUM_ROWS)


def test_sums_have_the_recorded_bytes(own_sums: list[str]) -> None:
    """The processor of this machine may be of another architecture."""
    assert own_sums[1] == SUMS


@pytest.mark.parametrize("processor", PROCESSORS)
def test_sums_are_bitwise_equal_for_every_register_width(
    own_sums: list[str], processor: str
) -> None:
    feature, registers = PROCESSORS[processor]
    if not binding.get_host_cpu_features().get(feature):
        pytest.skip(f"this machine has no {feature}")
    output = run_as(processor, _SUM_ROWS)
    assert output == [registers, *own_sums[1:]]


def answers(data_folder: Path, processor: str | None) -> list[str]:
    places = data_folder / "indexes", data_folder / "queries.npy"
    return run_as(processor, _ANSWER_EVERYTHING, *places)


@pytest.fixture(scope="module")
def own_answers(data_folder: Path) -> list[str]:
    return answers(data_folder, None)


@pytest.fixture(scope="module", params=PROCESSOR_NAMES)
def older_answers(data_folder: Path, request: pytest.FixtureRequest) -> list[str]:
    if not binding.get_host_cpu_features().get(OLDER[request.param][0]):
        pytest.skip(f"this machine is older than {request.param}")
    return answers(data_folder, request.param)


def test_an_older_processor_gives_bitwise_equal_answers(
    own_answers: list[str], older_answers: list[str]
) -> None:
    assert len(older_answers) == 12 * 2 * 5
    # Different searches often give the same answer. Different indexes give different answers.
    assert len({line.split()[-1] for line in older_answers}) > 24
    assert older_answers == own_answers


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the BLAS kernels are those of x86")
def test_auto_chooses_the_same_with_the_blas_of_another_processor() -> None:
    """Components differ in their last digits, which hardly changes recall and changes no choice."""
    older, newer = (
        [json.loads(line) for line in run_script(_CHOOSE, OPENBLAS_CORETYPE=blas)[0].splitlines()]
        for blas in ("Prescott", "Nehalem")
    )
    assert {build["family"] for build in older} > {"lsh_sdiv", "pca_hash", "cells"}
    assert [build["planes"] for build in older] != [build["planes"] for build in newer]
    for older_build, newer_build in zip(older, newer, strict=True):
        assert older_build["family"] == newer_build["family"]
        assert older_build["auto"] == newer_build["auto"]
        assert older_build["recalls"] == pytest.approx(newer_build["recalls"], abs=0.005)
    searches = {search for build in older for search, _ in build["auto"]}
    assert searches >= {"exact", "scan", "tables"}


_COUNT_COMPILATIONS = """
import sys, tempfile, pathlib
import numpy as np
from scipy import sparse
from divgrpc.collection import Collection
from divgrpc.index import Index
from divgrpc.types.filters import HasId
from divgrpc.types.quotas import GroupBy, Quota
from divgrpc.warmup import warm_kernels

def signature_counts():
    modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
    values = [value for module in modules for value in vars(module).values()]
    functions = {id(f): f for f in values if hasattr(f, "nopython_signatures")}
    return {f.__name__: len(f.signatures) for f in functions.values()}

warm_kernels()
before = signature_counts()
assert before["answer"] == 1, before
dense = np.random.default_rng(0).standard_normal((120, 12))
folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))
builds = [{}, {"ids": range(120)}, {"n_bits": 12}, {"zero_vectors": "skip"}]
builds += [{"categories": range(120)}, {"hash_family": "pca_hash"}, {"hash_family": "auto"}]
for family in ("lsh_div", "cells"):
    for metric in ("cosine", "euclidean", "inner_product"):
        builds.append({"hash_family": family, "metric": metric, "n_components": 4})
builds.append({"centred": True, "hyperplanes": "gaussian", "metric": "euclidean"})
number = 0
for options in builds:
    for points in (dense, sparse.csr_array(dense)):
        number += 1
        # Half of the dense and half of the sparse indexes are in files.
        path = folder / f"i{number}" if number % 4 < 2 else None
        index = Index.build(points, path=path, **options)
        for search in ("auto", "tables", "scan", "scan_hamming", "exact"):
            for queries in (dense[:3], sparse.csr_array(dense[:3])):
                for variant in ("corrected", "printed", "marginal"):
                    index.query(queries, search=search, variant=variant, hash_limit=40)
                index.query(queries, search=search, selector="mmr", sampling="nearest", k=3)
                index.query(queries, search=search, hash_limit=40, exclude_ids=[1, 2, 3])
                index.query(like=[1, 2], search=search, filter=HasId((1, 2, 5, 9)))
                index.query(queries, search=search, selector="nearest", seed=1, hash_limit=0)
                for selector in ("rerank", "max_sum", "dpp", "qp_relax"):
                    index.query(queries, search=search, selector=selector, candidates_limit=0)
        for selector in ("greedy", "mmr", "rerank", "max_sum", "dpp"):
            index.query(dense[0], selector=selector, explain=True, with_report=True)
            index.query(like=0, selector=selector, paged=True)
            page = index.query(dense[0], selector=selector, paged=True)
            index.query(dense[0], selector=selector, page_token=page.next_page_token)
            if options.get("metric") != "inner_product":
                index.query(dense[0], search=search, max_distance=1)
brands, limits = {"brand": ["a", "b", "c"] * 40}, [{"group_by": GroupBy("brand", 2, 2)}]
limits += [{"quotas": [Quota("brand", max_each=2)]}, {"quotas": [Quota("brand", min_each=1)]}]
for family in ("lsh_div", "cells"):
    for points in (dense, sparse.csr_array(dense)):
        number += 1
        options = {"hash_family": family, "attributes": brands}
        with Collection.build(points, path=folder / f"i{number}", **options) as collection:
            collection.upsert([0], points[:1], attributes={"brand": ["b"]})
            for selector in ("greedy", "mmr", "rerank", "max_sum", "dpp"):
                for limit in limits:
                    collection.query(dense[0], selector=selector, k=4, explain=True, **limit)
            collection.compact()
after = signature_counts()
print({name: count for name, count in after.items() if count != before.get(name)})
"""


_COUNT_MISSES = """
import sys
from divgrpc import compilation
from divgrpc.warmup import compile_rest, warm_kernels

def total(counter):
    modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
    values = [value for module in modules for value in vars(module).values()]
    functions = {id(f): f for f in values if hasattr(f, "nopython_signatures")}
    return sum(sum(getattr(f.stats, counter).values()) for f in functions.values())

if sys.argv[1:]:
    warm_kernels()
else:
    compilation.disable()
    compile_rest()
    print(total("cache_hits") > 10, total("cache_misses"))
"""


def test_no_kernel_is_compiled_after_warm_kernels(tmp_path: Path) -> None:
    assert run_script(_COUNT_COMPILATIONS, tmp_path)[0] == "{}"


def test_the_second_compiler_process_compiles_the_signatures_of_the_first() -> None:
    """Kernels compiled for other argument types than the first process uses would never be used."""
    run_script(_COUNT_MISSES, "first")
    assert run_script(_COUNT_MISSES)[0] == "True 0"


def test_only_allocating_kernels_may_create_arrays() -> None:
    """A kernel that is not marked as allocating would leak the memory of its arrays."""

    def ones(n: int) -> int:
        return int(np.ones(n).size)

    assert jit.allocating(ones)(3) == 3
    for plain in (jit.kernel, jit.part):
        with pytest.raises(TypeError, match="ones makes arrays: ones"):
            plain(ones)


def test_kernels_without_reference_counts_may_not_return_arrays() -> None:
    """Their callers would free an array that Python still uses."""

    def same(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return numbers

    def pair(numbers: npt.NDArray[np.int64]) -> tuple[int, tuple[npt.NDArray[np.int64], int]]:
        return len(numbers), (numbers, 1)

    numbers = np.arange(3)
    assert jit.part(same)(numbers).tolist() == [0, 1, 2]
    for function in (same, pair):
        with pytest.raises(TypeError, match=f"{function.__name__} returns an array"):
            jit.kernel(function)(numbers)


def test_constant_arguments_do_not_compile_a_kernel_again() -> None:
    def callee(a: int, b: int) -> int:
        return a + b if b else a

    def caller_of(inner: Callable[[int, int], int]) -> Callable[[int], int]:
        return lambda n: inner(n, 0) + inner(n, 1) + inner(n, n)

    kernel, plain = jit.kernel(callee), numba.njit(callee)
    for inner, dispatcher, signature_count in ((kernel, kernel.callee(), 1), (plain, plain, 3)):
        assert jit.kernel(caller_of(inner))(5) == 5 + 6 + 10
        assert len(dispatcher.signatures) == signature_count


def test_a_part_is_inlined_into_its_caller() -> None:
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
    for decorator, alone in ((jit.kernel, 1), (jit.part, 0)):
        inner, array = decorator(callee), np.array([7])
        caller = jit.kernel(caller_of(inner))
        results.append(([caller(array, n) for n in (1, 2, 3)], array.tolist()))
        assert (len(inner.signatures), len(inner.callee().signatures)) == (0, alone)
    assert results[0] == results[1] == ([(1, 0), (2, 0), (10, 0)], [10])
