"""The benchmark that simulates a hundred million points from costs measured with fewer points."""

import math
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

from benchmarks.harness import programs, truth
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from divgrpc.hashing.partition import cell_count, sample_size
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.platforms import count_cores
from divgrpc.types import FloatArray, Progress, Search

_Numbers: TypeAlias = npt.NDArray[np.float64]

_SIMULATED_POINTS: Final = 100_000_000
_SIMULATED_CORES: Final = 16
_EFFICIENCY: Final = 0.7
_RECALL_GOAL, _P50_US_GOAL, _BUILD_MINUTES_GOAL, _MEMORY_GB_GOAL = 0.95, 2_000, 20, 64
_SIZES_MIN: Final = 3
_CANDIDATES: Final = 50
_HASH_LIMIT: Final = 200
# The settings that are timed: multiples of the least number of probes, and hash limits.
_PROBE_FACTORS: Final = (0.5, 1.0, 2.0)
_LIMITS: Final = (100, 200, 400, 800)
_ROUNDS: Final = 5
# Units of work of a query. Each has its cost in nanoseconds.
_UNITS: Final = ("query", "code of a centre", "cell read", "code read", "point scored")
# Arrays with an entry for each point. Arrays named cell_* have an entry for each cell.
_ARRAYS_OF_POINTS: Final = ("vectors", "codes", "scan_terms", "ids", "cell_rows")
# External ids begin at this number, so that no id equals its row number.
_FIRST_ID: Final = 7


@dataclass(frozen=True)
class Size:
    """What was measured with a number of points.

    probes: the least number of probes that reaches the recall. recall: its recall. ceiling: the
    recall if all cells are read. work: (s, units) median work of a query in each setting, with the
    least number of probes and `_HASH_LIMIT` in row `place`. times_ns: (s,) median CPU time of a
    query. stages: CPU seconds of all threads, and of the calling thread alone, for each stage of
    the build. array_bytes: bytes of each array
    of the index. peak_bytes: rise of the memory without file pages during the build.
    """

    rows: int
    cells: int
    width: int
    probes: int
    recall: float
    ceiling: float
    work: _Numbers
    times_ns: _Numbers
    place: int
    stages: Mapping[str, tuple[float, float]]
    array_bytes: Mapping[str, int]
    peak_bytes: float


@benchmark(
    "growth",
    long=True,
    points=Option([100_000, 300_000, 1_000_000], "points, three sizes or more"),
    queries=Option(200, "queries asked"),
    folder=Option(None, "folder for large files, a temporary one otherwise", kind=Path),
)
def growth(options: Options) -> Iterator[Output]:
    """Simulate 100 million points x 128 on 16 cores and 64 GB from measured costs.

    Indexes of `cells` are built for several numbers of points. For each, the least number of probes
    is found with which 200 hashed points contain 95 % of the 50 nearest points on average. Around
    it, twelve settings are timed on one thread by CPU time, with k = 10 of 50 candidates. The time
    of a query is the least of five rounds, and a setting counts with its median query.
    Non-negative least squares of the relative errors give the cost of each unit of work.

    The largest size is first predicted from the smaller ones, so that the error of the model is
    visible. Then 100 million points are predicted from all sizes. The assumptions:

    - The number of cells is the one that Build computes. Probes grow as a power of the number of
      points. The cells read for a probe, and the points of a read cell relative to the mean cell,
      stay as they are on average. The recall with all cells read is linear in the logarithm of the
      number of points.
    - A unit of work costs the same at every size. `p50 with the error` multiplies the prediction by
      the measured time of the largest size over its predicted time, if that is above 1.
    - Assigning points to cells takes time in proportion to n sqrt(cells); learning cells, sample x
      sqrt(cells); every other stage of the build, a constant plus a part in proportion to n.
    - The work of the calling thread of a build is serial. Its share of a stage stays as it is at
      the largest size. The rest of a stage is divided by 16 cores at an efficiency of 0.7.
      Shares of CPU time, unlike seconds, do not depend on the load of other programs. The disk
      keeps up.
    - Memory is that of all arrays of the index. The peak of the build excludes file pages.
    """
    counts = sorted(set(options.points))
    if len(counts) < _SIZES_MIN:
        raise SystemExit(f"growth needs at least {_SIZES_MIN} numbers of points")
    manifold = Manifold.of()
    queries = manifold.queries(options.queries)
    with (
        tempfile.TemporaryDirectory(prefix="divgrpc-growth-", dir=options.folder) as folder,
        threadpool_limits(1),
    ):
        trials = [_Trial(Path(folder) / str(count), manifold, count, queries) for count in counts]
        # The sizes take turns, so that a slow minute affects all of them.
        for _ in range(_ROUNDS):
            for trial in trials:
                trial.time()
        sizes = [trial.size() for trial in trials]
    yield Table(f"Measured with {options.queries} queries, {_HASH_LIMIT} hashed points")
    yield from map(_measured, sizes)
    yield Table("Cost of each unit of work of a query")
    costs = zip(_UNITS, unit_costs(sizes[:-1]), unit_costs(sizes), strict=True)
    for unit, smaller, every in costs:
        yield {"unit": unit, "ns, smaller sizes": float(smaller), "ns, all sizes": float(every)}
    yield Table(f"Stages of the build of {_SIMULATED_POINTS:,} points")
    yield from _stages(sizes)
    yield Table(f"{_SIMULATED_POINTS:,} points x {manifold.dims}, simulated")
    yield from comparison(sizes)


class _Trial:
    """An index of `count` points in a folder, and the settings that are timed on it."""

    def __init__(self, folder: Path, manifold: Manifold, count: int, queries: FloatArray) -> None:
        self._queries, self._stages = queries, _Stages()
        folder.mkdir()
        points = manifold.write(folder / "points.npy", count)
        ids = np.arange(_FIRST_ID, count + _FIRST_ID)
        with programs.watching(os.getpid()) as memory, threadpool_limits(count_cores()):
            self._stages.start()
            path, note = folder / "index", self._stages.note
            self._index = Index.build(
                points, ids=ids, path=path, hash_family="cells", progress=note
            )
            self._stages.end()
        self._peak_bytes = memory.rise("unbacked")
        self._near = truth.nearest(points, queries, _CANDIDATES)[0] + _FIRST_ID
        del points
        # The index holds the points too. Without their file, more of the index stays in memory.
        (folder / "points.npy").unlink()
        self._arrays = {array.name: array for array in self._index.info.arrays}
        self._cells = self._arrays["cell_centres"].shape[0]
        self._probes = least(lambda probes: self._recall(probes) >= _RECALL_GOAL, self._cells)
        counts = sorted({max(1, round(factor * self._probes)) for factor in _PROBE_FACTORS})
        self._settings = list(product(counts, _LIMITS))
        self._times_ns = np.full((len(self._settings), len(queries)), np.inf)

    def time(self) -> None:
        """Ask all queries one at a time in each setting, and keep the least CPU time of each."""
        for row, setting in enumerate(self._settings):
            plan = _plan(*setting)
            for number in range(len(self._queries)):
                query = self._queries[number : number + 1]
                begin = time.process_time_ns()
                self._index.engine.answer(query, plan)
                spent = time.process_time_ns() - begin
                self._times_ns[row, number] = min(self._times_ns[row, number], spent)

    def size(self) -> Size:
        """Return everything that was measured."""
        return Size(
            rows=self._index.rows,
            cells=self._cells,
            width=self._arrays["cell_centres"].shape[1],
            probes=self._probes,
            recall=self._recall(self._probes),
            ceiling=self._recall(self._cells, "scan"),
            work=np.array([self._work(*setting) for setting in self._settings], float),
            times_ns=np.median(self._times_ns, axis=1),
            place=self._settings.index((self._probes, _HASH_LIMIT)),
            stages=self._stages.seconds,
            array_bytes={name: array.bytes for name, array in self._arrays.items()},
            peak_bytes=self._peak_bytes,
        )

    def _recall(self, probes: int, search: Search = "tables") -> float:
        plan = _plan(probes, _HASH_LIMIT, search=search, k=_CANDIDATES, selector="nearest")
        return truth.recall(self._index.engine.answer(self._queries, plan).ids, self._near)

    def _work(self, probes: int, limit: int) -> list[float]:
        """Return the median work of a query by `_UNITS`."""
        answer = self._index.engine.answer
        stats = answer(self._queries, _plan(probes, limit)).stats
        # Without a limit, a query hashes all points of the cells that it reads.
        points = answer(self._queries, _plan(probes, 0)).stats.points_hashed
        counts = stats.buckets_probed, np.where(points > limit, points, 0), stats.points_scored
        return [1, self._cells, *(float(np.median(count)) for count in counts)]


class _Stages:
    """CPU seconds of the stages of a build; the time after a report is of the report's stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        self._stage, self._begin = "", (0.0, 0.0)

    def start(self) -> None:
        self._begin = time.process_time(), time.thread_time()

    def note(self, progress: Progress) -> None:
        # The first report comes after the first rows of its stage.
        self._stage = self._stage or progress.stage
        self.end()
        self._stage = progress.stage

    def end(self) -> None:
        now, (cpu, serial) = (time.process_time(), time.thread_time()), self.seconds[self._stage]
        self.seconds[self._stage] = cpu + now[0] - self._begin[0], serial + now[1] - self._begin[1]
        self._begin = now


def _plan(
    probes: int, limit: int, search: Search = "tables", k: int = 10, **options: str
) -> QueryParameters:
    values = {"candidates_limit": _CANDIDATES, "hash_limit": limit, "k": k, **options}
    return QueryParameters(search=search, n_probes=probes, **values)  # type: ignore[arg-type]


def least(reaches: Callable[[int], bool], most: int) -> int:
    """Return the least number from 1 to `most` that reaches, or `most`, for a growing figure."""
    high = 1
    while high < most and not reaches(high):
        high *= 2
    low, high = high // 2, min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def fit(work: _Numbers, totals: _Numbers) -> _Numbers:
    """Return the cost (u,) of each unit, at least 0, from work (s, u) and total costs (s,) above 0.

    The costs minimise the sum of the squared relative errors of the totals.
    """
    shares = work / totals[:, np.newaxis]
    scale = np.maximum(shares.max(axis=0), np.finfo(float).tiny)
    return np.asarray(nnls(shares / scale, np.ones(len(totals)))[0] / scale)


def unit_costs(sizes: Sequence[Size]) -> _Numbers:
    """Return the fitted nanoseconds (units,) of each unit of work of a query."""
    return fit(
        np.concatenate([size.work for size in sizes]),
        np.concatenate([size.times_ns for size in sizes]),
    )


def _work_of_stage(stage: str, rows: int, width: int) -> list[float]:
    root = math.sqrt(cell_count(rows, width))
    if stage == "cells":
        return [sample_size(rows, width) * root]
    return [rows, rows * root] if stage == "hashing" else [1, rows]


def stage_seconds(sizes: Sequence[Size], rows: int) -> dict[str, float]:
    """Return the predicted CPU seconds of each stage of a build of `rows` points."""
    width, seconds = sizes[-1].width, {}
    for stage in sizes[-1].stages:
        work = np.array([_work_of_stage(stage, size.rows, width) for size in sizes], float)
        totals = np.array([size.stages[stage][0] for size in sizes])
        seconds[stage] = float(fit(work, totals) @ _work_of_stage(stage, rows, width))
    return seconds


def _seconds_on_cores(size: Size, stage: str, cpu: float) -> float:
    """Return the seconds of a stage with `cpu` CPU seconds on the simulated cores."""
    total, serial = size.stages[stage]
    share = min(1.0, serial / total)
    return cpu * (share + (1 - share) / (_SIMULATED_CORES * _EFFICIENCY))


def _stages(sizes: Sequence[Size]) -> Iterator[Row]:
    largest = sizes[-1]
    before = stage_seconds(sizes[:-1], largest.rows)
    for stage, cpu in stage_seconds(sizes, _SIMULATED_POINTS).items():
        total, serial = largest.stages[stage]
        yield {
            "stage": stage,
            f"{largest.rows:,}, predicted CPU s": before[stage],
            "measured CPU s": total,
            "serial": serial / total,
            "simulated CPU s": cpu,
            f"on {_SIMULATED_CORES} cores, s": _seconds_on_cores(largest, stage, cpu),
        }


def _power(sizes: Sequence[Size], rows: int) -> float:
    """Return the probes with `rows` points, by the power law that fits the sizes best."""
    logs = np.log([(size.rows, size.probes) for size in sizes])
    return float(np.exp(np.polyval(np.polyfit(logs[:, 0], logs[:, 1], 1), math.log(rows))))


def predict(sizes: Sequence[Size], rows: int) -> dict[str, float]:
    """Return the predicted figures of an index of `rows` points, by name."""
    cells = cell_count(rows, sizes[-1].width)
    probes = min(cells, _power(sizes, rows))
    logs = [math.log(size.rows) for size in sizes]
    line = np.polyfit(logs, [size.ceiling for size in sizes], 1)
    cells_read = probes * statistics.fmean(size.work[size.place, 2] / size.probes for size in sizes)
    fill = statistics.fmean(
        size.work[size.place, 3] / size.work[size.place, 2] / (size.rows / size.cells)
        for size in sizes
    )
    work = np.array([1, cells, cells_read, cells_read * fill * rows / cells, _HASH_LIMIT])
    seconds = stage_seconds(sizes, rows)
    wall = sum(_seconds_on_cores(sizes[-1], stage, cpu) for stage, cpu in seconds.items())
    peaks = np.array([size.peak_bytes for size in sizes])
    spans = np.array([(1, size.rows) for size in sizes], float)
    return {
        "cells": cells,
        "probes": probes,
        "recall with all cells read": min(1.0, float(np.polyval(line, math.log(rows)))),
        "codes read": float(work[3]),
        "p50, us": float(unit_costs(sizes) @ work) / 1e3,
        "build, CPU s": sum(seconds.values()),
        f"build on {_SIMULATED_CORES} cores, minutes": wall / 60,
        "index, GB": _index_bytes(sizes[-1], rows, cells) / 1e9,
        "peak of the build, GB": float(fit(spans, peaks) @ (1, rows)) / 1e9,
    }


def _index_bytes(size: Size, rows: int, cells: int) -> float:
    total = 0.0
    for name, count in size.array_bytes.items():
        if name in _ARRAYS_OF_POINTS:
            total += count * rows / size.rows
        else:
            total += count * (cells / size.cells if name.startswith("cell_") else 1)
    return total


def comparison(sizes: Sequence[Size]) -> Iterator[Row]:
    """Yield each figure: predicted and measured for the largest size, and simulated."""
    largest = sizes[-1]
    before, after = predict(sizes[:-1], largest.rows), predict(sizes, _SIMULATED_POINTS)
    figures: dict[str, float] = {
        "cells": largest.cells,
        "probes": largest.probes,
        "recall with all cells read": largest.ceiling,
        "codes read": float(largest.work[largest.place, 3]),
        "p50, us": float(largest.times_ns[largest.place]) / 1e3,
        "build, CPU s": sum(cpu for cpu, _ in largest.stages.values()),
        "index, GB": sum(largest.array_bytes.values()) / 1e9,
        "peak of the build, GB": largest.peak_bytes / 1e9,
    }
    goals: dict[str, tuple[str, float]] = {
        "recall with all cells read": (">=", _RECALL_GOAL),
        "p50, us": ("<=", _P50_US_GOAL),
        f"build on {_SIMULATED_CORES} cores, minutes": ("<=", _BUILD_MINUTES_GOAL),
        "index, GB": ("<=", _MEMORY_GB_GOAL),
        "peak of the build, GB": ("<=", _MEMORY_GB_GOAL),
    }
    goals["p50 with the error, us"] = goals["p50, us"]
    error = max(1.0, figures["p50, us"] / before["p50, us"])
    after["p50 with the error, us"] = error * after["p50, us"]
    for name, value in after.items():
        sign, goal = goals.get(name, ("", math.nan))
        yield {
            "figure": name,
            f"{largest.rows:,}, predicted": before.get(name),
            "measured": figures.get(name),
            f"{_SIMULATED_POINTS:,}": value,
            "goal": f"{sign} {goal:g}" if sign else None,
            "reached": (value >= goal if sign == ">=" else value <= goal) if sign else None,
        }


def _measured(size: Size) -> Row:
    work = size.work[size.place]
    return {
        "points": size.rows,
        "cells": size.cells,
        "probes": size.probes,
        "recall": size.recall,
        "reached": size.recall >= _RECALL_GOAL,
        "with all cells": size.ceiling,
        "cells read": float(work[2]),
        "codes read": float(work[3]),
        "p50, us": float(size.times_ns[size.place]) / 1e3,
        "build, CPU s": sum(cpu for cpu, _ in size.stages.values()),
    }
