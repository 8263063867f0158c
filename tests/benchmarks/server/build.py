"""Build over gRPC of a million points, beside the same product and the same file by themselves.

"Hashing": the stage of that name, as its events reach the caller, beside the product of all points
with 256 hyperplanes on all cores. "The whole": from the first byte sent to the index serving,
beside reading the file, hashing it and writing points and codes, synced. All in the same round,
family after family; a figure is the best of its rounds, in process of one run.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.manifold import Manifold
from benchmarks.harness.runner import FAMILIES, Option, Options, Output
from benchmarks.harness.tables import Row, Table
from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily
from divgrpc_client import Client
from support.running_server import RunningServer

OPTIONS: Final = {
    "families": FAMILIES,
    "points": Option(1_000_000, "points"),
    "dims": Option(128, "dimensions"),
    "isotropic": Option(False, "independent normal numbers: no clusters, hardest to search"),
    "rounds": Option(3, "turns of each family"),
}
_BITS, _BLOCK_ROWS = 256, 4096
_HASHING_GOAL, _WHOLE_GOAL = 0.75, 3


def rows(options: Options) -> Iterator[Output]:
    """Yield a table of stages in seconds, with both goals."""
    count, dims = options.points, options.dims
    random = np.random.default_rng(0)
    planes = random.standard_normal((dims, _BITS), dtype=np.float32)
    alone: list[tuple[float, float]] = []
    builds: dict[HashFamily, list[dict[str, float]]] = {each: [] for each in options.families}
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        if options.isotropic:
            np.save(folder / "points.npy", random.standard_normal((count, dims), dtype=np.float32))
        else:
            Manifold.of(dims=dims).write(folder / "points.npy", count)
        for _ in range(options.rounds):
            alone.append(_alone(folder, planes))
            for family in options.families:
                builds[family].append(_build(folder, family))
        in_process = {family: _build_in_process(folder, family) for family in options.families}
    product, file = (min(seconds) for seconds in zip(*alone, strict=True))
    facts = {
        "the product alone": f"{product:.2f} s, goal: hashing at {_HASHING_GOAL} of its rate",
        "the file by itself": f"{file:.2f} s, goal: the whole in at most {_WHOLE_GOAL} times",
    }
    yield Table(f"Build of {count:,} x {dims} over gRPC, seconds", facts)
    for family, rounds in builds.items():
        yield row_of(family, rounds, in_process[family], product, file)


def row_of(
    family: str, rounds: list[dict[str, float]], in_process: float, product: float, file: float
) -> Row:
    """Return the stages of the quickest round; both goals take the quickest of their kind."""
    best = min(rounds, key=lambda stages: sum(stages.values()))
    whole = sum(best.values())
    return {
        "family": family,
        "in process": in_process,
        "over gRPC": whole,
        "hashing, of the product's rate": product / min(each["hashing"] for each in rounds),
        "whole, times the file": whole / file,
        **best,
    }


def _alone(folder: Path, planes: FloatArray) -> tuple[float, float]:
    """Return the seconds of the product, and of reading, hashing and writing."""
    os.sync()
    started = time.perf_counter()
    points = np.load(folder / "points.npy")
    read = time.perf_counter() - started
    product = _seconds(lambda: _hash(points, planes, keep=False))
    started = time.perf_counter()
    codes = _hash(points, planes, keep=True)
    hashed = time.perf_counter() - started
    return product, read + hashed + _seconds(lambda: _write(folder, points, codes))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _hash(points: FloatArray, planes: FloatArray, *, keep: bool) -> list[np.ndarray]:
    """Multiply block by block, and return the signs as bits where they are kept."""
    codes = []
    for start in range(0, len(points), _BLOCK_ROWS):
        margins = points[start : start + _BLOCK_ROWS] @ planes
        if keep:
            codes.append(np.packbits(margins >= 0, axis=1))
    return codes


def _write(folder: Path, points: FloatArray, codes: list[np.ndarray]) -> None:
    with (folder / "copy").open("wb") as file:
        for part in (points, *codes):
            file.write(part.data)
        file.flush()
        os.fsync(file.fileno())
    (folder / "copy").unlink()


def _build(folder: Path, family: HashFamily) -> dict[str, float]:
    """Build on a new server, and return the seconds of each stage, that of connecting first."""
    points = np.load(folder / "points.npy")
    begins: dict[str, float] = {}
    with (
        RunningServer(folder, "--data-dir", str(folder / "data")) as server,
        Client(server.target) as client,
    ):
        begins["connecting"] = time.perf_counter()
        client.build(
            "bench",
            points,
            hash_family=family,
            progress=lambda event: begins.setdefault(event.stage, time.perf_counter()),
        )
        ended = time.perf_counter()
    shutil.rmtree(folder / "data")
    ends = [*list(begins.values())[1:], ended]
    return {stage: end - begin for (stage, begin), end in zip(begins.items(), ends, strict=True)}


def _build_in_process(folder: Path, family: HashFamily) -> float:
    points = np.load(folder / "points.npy", mmap_mode="r")
    path = folder / "built" / family
    seconds = _seconds(lambda: Index.build(points, hash_family=family, path=path))
    shutil.rmtree(folder / "built")
    return seconds
