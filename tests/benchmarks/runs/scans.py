"""Benchmark of the scan of codes by itself."""

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba.core.registry import cpu_target

from benchmarks.harness import libraries
from benchmarks.harness.runner import (
    Ask,
    Option,
    Options,
    Output,
    Row,
    Table,
    benchmark,
    take_turns,
)
from divgrpc.hashing import codes as coding
from divgrpc.kernels import code_scan
from divgrpc.kernels.look_ups import register_bytes
from divgrpc.types import FloatArray, IntArray

_QUERIES: Final = 80
_NS_PER_US: Final = 1_000


@benchmark(
    "scans",
    points=Option([50_000, 300_000, 1_000_000], "codes"),
    bits=Option([128, 256], "bits of a code"),
    k=Option(400, "nearest codes to find"),
)
def scan_times(options: Options) -> Iterator[Output]:
    """Time for each code of a scan that finds the nearest k, compared with faiss' FastScan.

    Codes are random and have as many bits in both libraries. Both take turns on one thread, each
    with one query at a time: from the query's margins (divgrpc) or the query (faiss) to the nearest
    k. faiss looks up 8-bit distances, divgrpc sums of four-bit levels. With the environment
    variables NUMBA_CPU_NAME=haswell, NUMBA_CPU_FEATURES= and FAISS_OPT_LEVEL=AVX2, both libraries
    leave AVX-512 unused.
    """
    target = cpu_target.target_context.codegen().magic_tuple()
    facts = {
        "kernels compiled for": f"{target[1]}, look-ups of {register_bytes(*target)} bytes",
        "faiss": os.environ.get("FAISS_OPT_LEVEL", "its own choice"),
    }
    yield Table(f"Scans for the nearest {options.k}", facts)
    for count in options.points:
        for bits in options.bits:
            yield _row(count, bits, options.k)


def _row(count: int, bits: int, k: int) -> Row:
    rng = np.random.default_rng(bits)
    queries = rng.standard_normal((_QUERIES, bits)).astype(np.float32)
    asks: dict[str, Ask] = {
        "scores": _ours(count, bits, 1, queries, k, estimates=False),
        "estimates": _ours(count, bits, 1, queries, k),
        "four bits a margin": _ours(count, bits, 4, queries, k),
    }
    if not libraries.missing("faiss"):
        asks["faiss"] = _fast_scan(count, bits, queries, k)
    times = take_turns(asks, len(queries), k)
    row: dict[str, Any] = {"points": count, "bits": bits}
    for name, timed in times.items():
        row[f"{name}, ns a point"] = timed.microseconds * _NS_PER_US / count
    if "faiss" in times:
        ratio, interval = times["scores"].ratio(times["faiss"])
        row |= {"divgrpc / faiss": ratio, "95 %": interval}
    return row


def _ours(
    count: int, bits: int, depth: int, queries: FloatArray, k: int, *, estimates: bool = True
) -> Ask:
    """Return a scan of random codes that have `depth` bits for each of bits / depth margins."""
    rng = np.random.default_rng(depth)
    shape = coding.tiles_shape(count, bits)
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    offsets, factors = rng.random((2, count)).astype(np.float32)
    terms = coding.pack_terms(offsets, factors)[: count if estimates else 0]
    for array in (codes, terms):
        array.setflags(write=False)
    margins = bits // depth
    tables = np.empty((margins // 4, 16), np.uint8)
    blocks = -(-count // code_scan.BLOCK_POINTS)
    minima = np.empty(blocks * code_scan.BLOCK_GROUPS, np.float32)
    distances, rows = np.empty(count, np.float32), np.empty(count, np.int32)

    def ask(query: int) -> IntArray:
        levels = code_scan.levels_of(queries[query, :margins], False, False, codes, tables)
        levels = levels._replace(unit=np.float32(levels.unit))
        code_scan.scan_codes(codes, terms, levels, count, distances, minima)
        code_scan.take_least(distances, minima, count, k, rows)
        return rows[:k].astype(np.int64)

    return ask


def _fast_scan(count: int, bits: int, queries: FloatArray, k: int) -> Ask:
    """Return faiss' scan of random points in codes of four bits for each dimension."""
    import faiss

    faiss.omp_set_num_threads(1)
    dims = bits // 4
    points: npt.NDArray[np.float32] = np.random.default_rng(0).random((count, dims), np.float32)
    index = faiss.IndexPQFastScan(dims, dims, 4)
    index.train(points[:20_000])
    index.add(points)

    def ask(query: int) -> IntArray:
        nearest: IntArray = index.search(queries[query : query + 1, :dims], k)[1][0]
        return nearest

    return ask
