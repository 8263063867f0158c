"""Benchmarks of server starts, of builds over gRPC, and of their memory."""

import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args

import numpy as np

from benchmarks.harness import programs
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.runner import FAMILIES, Option, Options, Output, Row, Table, benchmark
from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, Search
from divgrpc_client import Client
from support.processes.running_server import RunningServer, eventually

_COLD: Final = "cold, no index"
_WAIT_SECONDS: Final = 120.0
_WARM_GOAL, _COLD_GOAL = 1.2, 8.0


@benchmark(
    "start",
    families=FAMILIES,
    rounds=Option(5, "warm starts of each"),
    cold=Option(1, "cold starts"),
    indexes=Option(50, "indexes in the full folder"),
    points=Option(1_000_000, "points of each index"),
    dims=Option(32, "dimensions"),
)
def start(options: Options) -> Iterator[Output]:
    """Time from the command line to SERVING, with and without cached kernels and indexes.

    Each round starts the server once with an empty data folder and once for each family with a
    folder of many indexes, which are hard links to the files of a single index. A cold start uses a
    new, empty kernel cache. The second table has the time of the first query to an index, which
    opens the index and compares checksums, and the time of the second query.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        queries = _build_linked(folder, options)
        for turn in range(max(options.rounds, options.cold)):
            if turn < options.rounds:
                seconds["warm, no index"].append(_start(folder / "none"))
                for family in options.families:
                    name = f"warm, {options.indexes} indexes, {family}"
                    seconds[name].append(_start(folder / family))
            if turn < options.cold:
                cache = {"DIVGRPC_KERNEL_CACHE": str(folder / f"cache-{turn}")}
                seconds[_COLD].append(_start(folder / "none", cache))
        first = {family: _first_queries(folder / family, queries) for family in options.families}
    yield Table(f"Start to SERVING, indexes of {options.points:,} x {options.dims}")
    for name, times in seconds.items():
        yield {
            "start": name,
            "starts": len(times),
            "least s": min(times),
            "median s": float(np.median(times)),
            "goal s": _COLD_GOAL if name == _COLD else _WARM_GOAL,
        }
    yield Table("One query to an index")
    for family, pair in first.items():
        yield {"family": family, "first ms": 1e3 * pair[0], "second ms": 1e3 * pair[1]}


def _build_linked(folder: Path, options: Options) -> FloatArray:
    random = np.random.default_rng(0)
    points = random.standard_normal((options.points, options.dims), np.float32)
    for family in options.families:
        data = folder / family / "data"
        Index.build(points, hash_family=family, path=data / _name(0))
        for number in range(1, options.indexes):
            shutil.copytree(data / _name(0), data / _name(number), copy_function=os.link)
    return points[:2]


def _name(number: int) -> str:
    return f"index-{number}"


@contextmanager
def _serving(folder: Path, environment: dict[str, str] | None = None) -> Iterator[RunningServer]:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    options = ("--data-dir", str(folder / "data"), "--workers", "1", "--fronts", "1")
    with RunningServer(folder, *options, environment=environment) as running:
        with Client(running.target) as client:
            client.wait_until_ready(timeout=_WAIT_SECONDS)
        yield running


def _start(folder: Path, environment: dict[str, str] | None = None) -> float:
    begin_time = time.perf_counter()
    with _serving(folder, environment):
        return time.perf_counter() - begin_time


def _first_queries(folder: Path, queries: FloatArray) -> tuple[float, float]:
    times = []
    with _serving(folder) as running, Client(running.target, timeout=_WAIT_SECONDS) as client:
        for query in queries:
            begin_time = time.perf_counter()
            client.query(_name(0), query)
            times.append(time.perf_counter() - begin_time)
    return times[0], times[1]


_BITS, _HASHED_ROWS = 256, 4096
_HASHING_GOAL, _WHOLE_GOAL = 0.75, 3


@benchmark(
    "build",
    families=FAMILIES,
    points=Option(1_000_000, "points"),
    dims=Option(128, "dimensions"),
    isotropic=Option(False, "independent normal numbers: no clusters, hardest to search"),
    rounds=Option(3, "turns of each family"),
)
def build(options: Options) -> Iterator[Output]:
    """Time of a build over gRPC, compared with its matrix product and its file operations alone.

    "Hashing" is the time of the stage of that name, as the caller sees it in the progress events.
    It is compared with the product of all points with 256 hyperplanes on all cores. "The whole" is
    the time from the start of the call until the index is serving. It is compared with reading the
    file, hashing it, and writing and syncing points and codes. Every round measures all families in
    turn. Both comparisons use the best of all rounds. The build in process is measured once.
    """
    count, dims = options.points, options.dims
    random = np.random.default_rng(0)
    planes = random.standard_normal((dims, _BITS), dtype=np.float32)
    alone: list[tuple[float, float]] = []
    builds: dict[HashFamily, list[dict[str, float]]] = {family: [] for family in options.families}
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
    """Return the stages of the fastest round; the figures with goals are the best of all rounds."""
    best = min(rounds, key=lambda stages: sum(stages.values()))
    whole = sum(best.values())
    return {
        "family": family,
        "in process": in_process,
        "over gRPC": whole,
        "hashing, of the product's rate": product / min(family["hashing"] for family in rounds),
        "whole, times the file": whole / file,
        **best,
    }


def _alone(folder: Path, planes: FloatArray) -> tuple[float, float]:
    """Return the seconds of the product alone, and of reading, hashing and writing the file."""
    os.sync()
    begin_time = time.perf_counter()
    points = np.load(folder / "points.npy")
    read = time.perf_counter() - begin_time
    product = _seconds(lambda: _hash(points, planes, keep=False))
    begin_time = time.perf_counter()
    codes = _hash(points, planes, keep=True)
    hash_seconds = time.perf_counter() - begin_time
    return product, read + hash_seconds + _seconds(lambda: _write(folder, points, codes))


def _seconds(work: Callable[[], object]) -> float:
    begin_time = time.perf_counter()
    work()
    return time.perf_counter() - begin_time


def _hash(points: FloatArray, planes: FloatArray, *, keep: bool) -> list[np.ndarray]:
    """Multiply the points by the hyperplanes block by block, and return the sign bits if `keep`."""
    codes = []
    for start in range(0, len(points), _HASHED_ROWS):
        margins = points[start : start + _HASHED_ROWS] @ planes
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
    """Build on a new server, and return the seconds of each stage; the first is connecting."""
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
        end = time.perf_counter()
    shutil.rmtree(folder / "data")
    ends = [*list(begins.values())[1:], end]
    return {stage: end - begin for (stage, begin), end in zip(begins.items(), ends, strict=True)}


def _build_in_process(folder: Path, family: HashFamily) -> float:
    points = np.load(folder / "points.npy", mmap_mode="r")
    path = folder / "built" / family
    seconds = _seconds(lambda: Index.build(points, hash_family=family, path=path))
    shutil.rmtree(folder / "built")
    return seconds


_INDEX: Final = "memory"
_PATIENCE_SECONDS: Final = 600.0
_MB: Final = 1e6


@benchmark(
    "memory",
    rows=Option(4_000_000, "rows uploaded"),
    dims=Option(256, "dimensions"),
    workers=Option(4, "workers"),
)
def memory(options: Options) -> Iterator[Output]:
    """Memory that a large upload adds to the server's processes, and memory that workers share.

    An upload of about 4 GB is sent to a server with a data directory. Meanwhile the private memory
    of supervisor, fronts, workers and builder is summed twenty times a second. Then every worker
    answers queries with every search, so that all arrays are touched, and the memory mappings of
    the index are summed over the workers.
    """
    size = 4 * options.rows * options.dims
    with tempfile.TemporaryDirectory(prefix="divgrpc-memory-") as temporary:
        folder = Path(temporary)
        # The disk must have space for the upload, the stored vectors, and about as much for
        # everything else.
        if shutil.disk_usage(folder).free < 3 * size:
            raise SystemExit(f"too little room in {folder.parent} for three copies of the points")
        vectors = Manifold.of(dims=options.dims).write(folder / "points.npy", options.rows)
        arguments = ("--data-dir", str(folder / "data"), "--workers", str(options.workers))
        with (
            RunningServer(folder, *arguments, "--log-format", "json") as server,
            Client(server.target, timeout=_PATIENCE_SECONDS) as client,
        ):
            client.wait_until_ready(timeout=_PATIENCE_SECONDS)
            yield Table("The upload")
            yield _upload(server, client, vectors)
            yield Table("One index in all workers")
            yield _share(server, client, vectors, folder / "data" / _INDEX)


def _upload(server: RunningServer, client: Client, vectors: FloatArray) -> Row:
    begin_time = time.monotonic()
    with programs.watching(server.process.pid) as memory:
        client.build(_INDEX, vectors)
    return {
        "uploaded MB": vectors.nbytes / _MB,
        "served after s": time.monotonic() - begin_time,
        "private MB more": memory.rise("private") / _MB,
        "without files MB more": memory.rise("unbacked") / _MB,
        "samples": memory.samples,
    }


def _share(server: RunningServer, client: Client, vectors: FloatArray, folder: Path) -> Row:
    workers = server.pids("worker")
    before = sum((programs.held(pid) for pid in workers), Counter())

    def all_have_it() -> bool:
        _ask_by_every_search(client, vectors, len(workers))
        return all(programs.mapped(pid, folder)["Size"] for pid in workers)

    eventually(all_have_it, _PATIENCE_SECONDS)
    # A worker maps the index before it touches the arrays. The second round of queries lets the
    # last worker touch them too.
    _ask_by_every_search(client, vectors, len(workers))
    maps = [programs.mapped(pid, folder) for pid in workers]
    after = sum((programs.held(pid) for pid in workers), Counter())
    copy, pss = max(family["Size"] for family in maps), sum(family["Pss"] for family in maps)
    return {
        "workers": len(workers),
        "one copy MB": copy / _MB,
        "least resident MB": min(family["Rss"] for family in maps) / _MB,
        "PSS of all MB": pss / _MB,
        "copies": pss / copy,
        "scratch of each MB": (after["unbacked"] - before["unbacked"]) / len(workers) / _MB,
    }


def _ask_by_every_search(client: Client, vectors: FloatArray, workers: int) -> None:
    """Send as many concurrent queries as there are workers, twice for each search."""

    def ask(number: int, search: Search) -> None:
        client.query(_INDEX, vectors[number : number + 1], search=search)

    with ThreadPoolExecutor(workers) as pool:
        for search in get_args(Search):
            list(pool.map(ask, range(2 * workers), [search] * (2 * workers)))
