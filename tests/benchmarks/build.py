"""Build over gRPC of a million points, beside the same product and the same file by themselves.

Hashing: the stage of that name, as its events reach the caller, beside the product of all points
with as many hyperplanes on all cores. The whole: from the first byte sent to the index serving,
beside reading the file, hashing it and writing points and codes, synced. Both in the same round;
a figure is the best of its rounds.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import show, table
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_client import Client
from running import RunningServer

_BITS = 256
_AT_ONCE = 4096
_HASHING_GOAL = 0.75
_WHOLE_GOAL = 3


@dataclass(frozen=True)
class Round:
    """Seconds of one round; `stages` of the build over gRPC, in order."""

    product: float
    read: float
    hashed: float
    written: float
    whole: float
    stages: dict[str, float]

    @property
    def local(self) -> float:
        """What the file takes by itself."""
        return self.read + self.hashed + self.written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--points", type=int, default=1_000_000, help="(default 1,000,000)")
    parser.add_argument("--dims", type=int, default=128, help="(default 128)")
    parser.add_argument("--rounds", type=int, default=3, help="turns each takes (default 3)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the tables, and return the rounds for JSON."""
    count, dims = arguments.points, arguments.dims
    show(f"\n## Build: {count:,} points of {dims} dimensions over gRPC, onto disk\n")
    rng = np.random.default_rng(0)
    planes = rng.standard_normal((dims, _BITS), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        np.save(folder / "points.npy", rng.standard_normal((count, dims), dtype=np.float32))
        rounds = [_round(folder, planes) for _ in range(arguments.rounds)]
        in_process = _seconds(lambda: _build_in_process(folder))
    show(_drawn(rounds, in_process))
    hashing = min(each.product for each in rounds) / min(each.stages["hashing"] for each in rounds)
    whole = min(each.whole for each in rounds) / min(each.local for each in rounds)
    goals = [
        ("hashing, of the product's rate", f"{hashing:.2f}", f">= {_HASHING_GOAL}"),
        ("the whole, times the file by itself", f"{whole:.2f}", f"<= {_WHOLE_GOAL}"),
    ]
    show()
    show(table(("goal", "here", "wanted"), goals))
    return {"in_process": in_process, "rounds": [asdict(each) for each in rounds]}


def _round(folder: Path, planes: FloatArray) -> Round:
    os.sync()
    begun = time.perf_counter()
    points = np.load(folder / "points.npy")
    read = time.perf_counter() - begun
    product = _seconds(lambda: _hash(points, planes, keep=False))
    begun = time.perf_counter()
    codes = _hash(points, planes, keep=True)
    hashed = time.perf_counter() - begun
    written = _seconds(lambda: _write(folder, points, codes))
    whole, stages = _build(folder, points)
    return Round(product, read, hashed, written, whole, stages)


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


def _build(folder: Path, points: FloatArray) -> tuple[float, dict[str, float]]:
    """Build on a new server, and return the seconds of the whole and of each stage."""
    begins: dict[str, float] = {}
    with (
        RunningServer(folder, "--data-dir", str(folder / "data")) as server,
        Client(server.target) as client,
    ):
        begun = time.perf_counter()
        client.build(
            "bench",
            points,
            replace=True,
            progress=lambda told: begins.setdefault(told.stage, time.perf_counter()),
        )
        ended = time.perf_counter()
    moments = [*begins.values(), ended]
    stages = {
        stage: after - at for (stage, at), after in zip(begins.items(), moments[1:], strict=True)
    }
    return ended - begun, {"connecting": moments[0] - begun, **stages}


def _build_in_process(folder: Path) -> None:
    Index.build(np.load(folder / "points.npy", mmap_mode="r"), path=folder / "built" / "bench")


def _drawn(rounds: list[Round], in_process: float) -> str:
    best = min(rounds, key=lambda each: each.whole)
    rows = [
        ("the product alone", f"{min(each.product for each in rounds):.2f}"),
        ("the file by itself", f"{min(each.local for each in rounds):.2f}"),
        ("Index.build in process", f"{in_process:.2f}"),
        ("over gRPC", f"{best.whole:.2f}"),
        *((f"of it {stage}", f"{seconds:.2f}") for stage, seconds in best.stages.items()),
    ]
    return table(("", "s"), rows)
