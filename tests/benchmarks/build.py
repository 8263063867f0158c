"""Build over gRPC of a million points, beside the same product and the same file by themselves.

Hashing: the stage of that name, as its events reach the caller, beside the product of all points
with 256 hyperplanes on all cores; that of cells has fewer, and also finds each point's cell. The
whole: from the first byte sent to the index serving, beside reading the file, hashing it and
writing points and codes, synced. All in the same round, one family after another, onto nothing; a
figure is the best of its rounds, in process of one run. What a family does besides, finding
directions or cells and tuning its search, is no part of what it is measured against.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.families import add_families
from benchmarks.manifold import Manifold
from benchmarks.tables import optional, show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily
from divgrpc_client import Client
from support.running_server import RunningServer

_BITS = 256
_AT_ONCE = 4096
_HASHING_GOAL = 0.75
_WHOLE_GOAL = 3


@dataclass(frozen=True)
class Local:
    """Seconds that the product takes, and the file by itself, in one round."""

    product: float
    read: float
    hashed: float
    written: float

    @property
    def whole(self) -> float:
        """What the file takes."""
        return self.read + self.hashed + self.written


@dataclass(frozen=True)
class Built:
    """Seconds of one build over gRPC; `stages` in order."""

    family: HashFamily
    whole: float
    stages: dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    add_families(parser)
    parser.add_argument("--points", type=int, default=1_000_000, help="(default 1,000,000)")
    parser.add_argument("--dims", type=int, default=128, help="(default 128)")
    parser.add_argument(
        "--isotropic", action="store_true", help="normal numbers: no clusters, hardest to search"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns each takes (default 3)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the tables, and return the rounds for JSON."""
    count, dims = arguments.points, arguments.dims
    made = "independent normal numbers" if arguments.isotropic else "made points on a manifold"
    show(f"\n## Build: {count:,} x {dims} {made} over gRPC, onto disk\n")
    rng = np.random.default_rng(0)
    planes = rng.standard_normal((dims, _BITS), dtype=np.float32)
    local: list[Local] = []
    builds: list[Built] = []
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        if arguments.isotropic:
            np.save(folder / "points.npy", rng.standard_normal((count, dims), dtype=np.float32))
        else:
            Manifold.of(dims=dims).write(folder / "points.npy", count)
        for _ in range(arguments.rounds):
            local.append(_alone(folder, planes))
            builds += [_build(folder, family) for family in arguments.families]
        in_process = {family: _build_in_process(folder, family) for family in arguments.families}
    product, alone = (min(getattr(each, of) for each in local) for of in ("product", "whole"))
    show(f"the product alone {product:.2f} s, the file by itself {alone:.2f} s\n")
    best = [
        min((each for each in builds if each.family == family), key=lambda each: each.whole)
        for family in arguments.families
    ]
    show(_drawn(best, in_process) + "\n")
    show(table(("goal", "here", "wanted"), list(goals(builds, product, alone))))
    return {
        "in_process": in_process,
        "local": [asdict(each) for each in local],
        "builds": [asdict(each) for each in builds],
    }


def goals(builds: Sequence[Built], product: float, alone: float) -> Iterator[tuple[str, str, str]]:
    """Yield what is wanted of each family, what was found and the bound of it."""
    for family in dict.fromkeys(each.family for each in builds):
        mine = [each for each in builds if each.family == family]
        hashing = product / min(each.stages["hashing"] for each in mine)
        whole = min(each.whole for each in mine) / alone
        yield f"{family}: hashing, of the product's rate", f"{hashing:.2f}", f">= {_HASHING_GOAL}"
        yield f"{family}: the whole, times the file by itself", f"{whole:.2f}", f"<= {_WHOLE_GOAL}"


def _alone(folder: Path, planes: FloatArray) -> Local:
    os.sync()
    begun = time.perf_counter()
    points = np.load(folder / "points.npy")
    read = time.perf_counter() - begun
    product = _seconds(lambda: _hash(points, planes, keep=False))
    begun = time.perf_counter()
    codes = _hash(points, planes, keep=True)
    hashed = time.perf_counter() - begun
    written = _seconds(lambda: _write(folder, points, codes))
    return Local(product, read, hashed, written)


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _hash(points: FloatArray, planes: FloatArray, *, keep: bool) -> list[np.ndarray]:
    """Multiply block by block, and return the signs as bits where they are kept."""
    codes = []
    for start in range(0, len(points), _AT_ONCE):
        margins = points[start : start + _AT_ONCE] @ planes
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


def _build(folder: Path, family: HashFamily) -> Built:
    """Build on a new server, and return the seconds of the whole and of each stage."""
    points = np.load(folder / "points.npy")
    begins: dict[str, float] = {}
    with (
        RunningServer(folder, "--data-dir", str(folder / "data")) as server,
        Client(server.target) as client,
    ):
        begun = time.perf_counter()
        client.build(
            "bench",
            points,
            hash_family=family,
            progress=lambda told: begins.setdefault(told.stage, time.perf_counter()),
        )
        ended = time.perf_counter()
    shutil.rmtree(folder / "data")
    moments = [*begins.values(), ended]
    stages = {
        stage: after - at for (stage, at), after in zip(begins.items(), moments[1:], strict=True)
    }
    return Built(family, ended - begun, {"connecting": moments[0] - begun, **stages})


def _build_in_process(folder: Path, family: HashFamily) -> float:
    points = np.load(folder / "points.npy", mmap_mode="r")
    path = folder / "built" / family
    seconds = _seconds(lambda: Index.build(points, hash_family=family, path=path))
    shutil.rmtree(folder / "built")
    return seconds


def _drawn(best: Sequence[Built], in_process: Mapping[HashFamily, float]) -> str:
    stages = list(dict.fromkeys(stage for each in best for stage in each.stages))
    return table(
        ("s", "Index.build in process", "over gRPC", *stages),
        [
            (
                each.family,
                f"{in_process[each.family]:.2f}",
                f"{each.whole:.2f}",
                *(optional(each.stages.get(stage), ".2f") for stage in stages),
            )
            for each in best
        ],
    )
