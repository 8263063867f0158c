"""Benchmark of the memory that a build takes whose points are divided among shards."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import watching
from benchmarks.harness.runner import Option, Options, Output, Table, benchmark

_MEBIBYTE: Final = 2**20
# Builds a small index first, which loads everything that a build needs.
_PROGRAM: Final = """
import sys, time
from pathlib import Path
import numpy as np
from divgrpc.builder.builder import IndexBuilder
from divgrpc.parameters import BuildParameters
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.storage.generations import staging

folder, file, shards = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def build(name, points):
    with staging(folder / name, replace=False) as stage:
        options = {"points": DividedBuild(stage, shards)} if shards > 1 else {}
        builder = IndexBuilder(stage, BuildParameters(), **options)
        builder.append_all(points)
        builder.build()

build("small", np.load(file, mmap_mode="r")[:2000].copy())
print(flush=True)
sys.stdin.readline()
start = time.perf_counter()
build("points", np.load(file, mmap_mode="r"))
print(time.perf_counter() - start, flush=True)
sys.stdin.readline()
"""


@benchmark(
    "divided_builds",
    points=Option(200_000, "synthetic points"),
    dims=Option(128, "dimensions"),
    shards=Option([1, 2, 4, 16], "numbers of shards"),
)
def divided_builds(options: Options) -> Iterator[Output]:
    """Build an index on shards in a process of its own, and measure the memory of the process.

    "Peak" is by how much its memory without file pages rises over that before the build, which has
    everything loaded. "Of the points" is the peak divided by the size of all vectors.
    """
    size = options.points * options.dims * np.dtype(np.float32).itemsize
    title = {"points": f"{options.points:,} x {options.dims}", "MiB": f"{size / _MEBIBYTE:.0f}"}
    yield Table("Builds that are divided among shards", title)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        file = Path(temporary) / "points.npy"
        np.save(file, Manifold.of(dims=options.dims).points(options.points))
        for shards in options.shards:
            folder = Path(temporary) / str(shards)
            folder.mkdir()
            peak, seconds = _build(folder, file, shards)
            yield {
                "shards": shards,
                "peak, MiB": round(peak / _MEBIBYTE),
                "of the points": round(peak / size, 2),
                "seconds": round(seconds, 1),
            }


def _build(folder: Path, file: Path, shards: int) -> tuple[int, float]:
    """Return the bytes by which the memory of a build rises, and its seconds."""
    command = [sys.executable, "-c", _PROGRAM, str(folder), str(file), str(shards)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        process.stdout.readline()
        with watching(process.pid) as memory:
            process.stdin.write("\n")
            process.stdin.flush()
            seconds = float(process.stdout.readline())
        process.stdin.write("\n")
    return memory.rise("unbacked"), seconds
