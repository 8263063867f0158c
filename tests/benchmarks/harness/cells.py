"""Cells of the comparison with other libraries: their points, sweeps, and results kept on disk.

A cell is a set of points. Each contestant is measured in a process of its own, so that a library
that ends its process ends nobody else's. Its results are kept in a file, by cell and instruction
set. A later call measures only what is not kept.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from benchmarks.harness.datasets import REAL, Manifold, Points, load
from benchmarks.harness.libraries import Effort, Ladders
from benchmarks.harness.truth import recall
from divgrpc.types import FloatArray, IntArray
from divgrpc_lab.records import commit, machine

RECALLS: Final = (0.9, 0.95, 0.99)
# A ladder ends at the highest recall, at an effort this many times as slow as the fastest that
# reached it, or where more work has twice in a row found hardly any more.
_HOPELESS: Final = 2.0
_SATURATED: Final = 2
_MORE: Final = 0.0005
_ROUNDS: Final = 2
_WARM_UP: Final = 5
_YARDSTICK: Final = (4_096, 256)
# The noise of the harder generator, in units of the standard deviation of a coordinate.
_HARD_NOISE: Final = 0.25
# How each rival is kept from AVX-512; the others choose at run time and offer no switch.
SWITCHES: Final = {"FAISS_OPT_LEVEL": "avx2"}

Results: TypeAlias = dict[str, Any]


class Cell(NamedTuple):
    """A set of points: their number, dimensions, and the noise of the generator."""

    rows: int
    dims: int = 128
    noise: float | None = None

    def load(self, queries: int, tuning: int) -> Points:
        """Return the points and queries of this cell."""
        if not self.rows:
            return load(REAL, queries, tuning)
        manifold = Manifold.of(dims=self.dims, noise=self.noise)
        some, base = manifold.queries(queries + tuning), manifold.points(self.rows)
        name = "synthetic points" if self.noise is None else "harder synthetic points"
        return Points(name, f"seed {manifold.seed}", base, some[:queries], some[queries:])


CELLS: Final = {
    "10k": Cell(10_000),
    "real": Cell(0),
    "384": Cell(50_000, 384),
    "1536": Cell(50_000, 1_536),
    "300k": Cell(300_000),
    "300k-hard": Cell(300_000, noise=_HARD_NOISE),
    "1m": Cell(1_000_000),
    "1m-hard": Cell(1_000_000, noise=_HARD_NOISE),
}


@dataclass(frozen=True)
class Point:
    """A step of a sweep: microseconds of CPU per query, and recall of the k nearest."""

    k: int
    config: str
    effort: Effort
    recall: float
    us: float


def cpu_us(ask: Callable[[int], IntArray], queries: int) -> tuple[list[IntArray], float]:
    """Return all answers, and the median CPU time in us: of the process, so of all its threads."""
    answers: list[IntArray] = []
    medians: list[float] = []
    for _ in range(_ROUNDS):
        for number in range(min(_WARM_UP, queries)):
            ask(number)
        answers, times = [], []
        for number in range(queries):
            begin = time.process_time_ns()
            answers.append(ask(number))
            times.append(time.process_time_ns() - begin)
        medians.append(float(np.median(times)) / 1e3)
    return answers, min(medians)


def sweep(
    search: Callable[[FloatArray, int, Effort], IntArray],
    config: str,
    ladders: Ladders,
    queries: FloatArray,
    near: IntArray,
) -> Iterator[Point]:
    """Yield the points of a sweep for the k of `near` (nq, k); see `_HOPELESS` for its ends."""
    k, least = near.shape[1], np.inf
    for ladder in ladders:
        last, idle = -1.0, 0
        for effort in ladder:
            answers, us = cpu_us(lambda i, e=effort: search(queries[i], k, e), len(queries))  # type: ignore[misc]
            point = Point(k, config, effort, recall(_filled(answers, k), near), us)
            yield point
            if point.recall >= max(RECALLS):
                least = min(least, us)
            idle = idle + 1 if point.recall - last < _MORE else 0
            if point.recall >= max(RECALLS) or us > _HOPELESS * least or idle >= _SATURATED:
                break
            last = point.recall


def _filled(answers: Iterable[IntArray], k: int) -> Iterator[IntArray]:
    """Yield rows of k numbers; those that a contestant did not find are -1."""
    for rows in answers:
        yield np.concatenate([rows[:k], np.full(max(0, k - len(rows)), -1)])


def best(points: Iterable[Point], k: int, least: float) -> Point | None:
    """Return the fastest point of a sweep with at least this recall of the k nearest."""
    fit = (point for point in points if point.k == k and point.recall >= least)
    return min(fit, key=lambda point: point.us, default=None)


def yardstick() -> float:
    """Return the CPU time in us of a fixed product, to compare machines and runs by."""
    random = np.random.default_rng(0)
    left = random.standard_normal(_YARDSTICK, np.float32)
    right = np.ascontiguousarray(left[0])
    return cpu_us(lambda _: left @ right, 200)[1]


def instructions() -> str:
    """Return the name of the instruction set that kernels are compiled for."""
    return os.environ.get("NUMBA_CPU_NAME") or "all"


def _processor() -> str:
    """Return the model of the processor, whatever number of cores a run may use."""
    return machine().partition(",")[0]


@dataclass(frozen=True)
class Shelf:
    """The kept results of a cell: FOLDER/CELL/INSTRUCTIONS/CONTESTANT.json.

    Results of other settings, such as another number of queries, count as absent.
    """

    folder: Path
    cell: str
    settings: str = ""

    def path(self, name: str) -> Path:
        """Return the file of a contestant."""
        return self.folder / self.cell / instructions() / f"{name.replace(' ', '-')}.json"

    def read(self, name: str) -> Results | None:
        """Return the kept results of a contestant of this machine, if there are any."""
        path = self.path(name)
        if not path.exists():
            return None
        record: Results = json.loads(path.read_text(encoding="utf-8"))
        record["points"] = [
            Point(**{**item, "effort": tuple(item["effort"])}) for item in record["points"]
        ]
        of_ours = record["machine"] == _processor() and record["settings"] == self.settings
        return record if of_ours else None

    def write(self, name: str, run: str, record: Results) -> None:
        """Keep results; a file is complete or absent."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        points = [asdict(point) for point in record["points"]]
        place = {"machine": _processor(), "settings": self.settings}
        code = {"run": run, "commit": commit()}
        facts = {"contestant": name, **code, **place, "yardstick": yardstick()}
        part = path.with_suffix(".part")
        part.write_text(
            json.dumps({**facts, **record, "points": points}, indent=1), encoding="utf-8"
        )
        part.replace(path)


def measure_apart(work: Callable[..., None], words: Sequence[Any], limit: float) -> str:
    """Run `work` in a process of its own; return why it failed, or nothing."""
    if instructions() != "all":
        os.environ.update(SWITCHES)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=tuple(words))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return f"took more than {limit:,.0f} s"
    code = process.exitcode or 0
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with status {code}" if code else ""


def three_fastest(record: Iterable[tuple[str, Results]]) -> list[str]:
    """Return the three contestants with the least time for the nearest 50 at recall .95."""
    times = {
        name: point.us
        for name, results in record
        if (point := best(results["points"], 50, 0.95)) is not None
    }
    return sorted(times, key=lambda name: times[name])[:3]
