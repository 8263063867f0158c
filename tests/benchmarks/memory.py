"""Memory: what a large upload adds to the server's processes, and whether workers share an index.

A server with a data directory takes an upload of about 4 GB while the private memory of supervisor,
fronts, workers and builder is summed up twenty times a second. Then every worker answers by every
kind of search, so that all arrays are touched, and the mappings of the index are added up.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, get_args

import numpy as np

from benchmarks import footprint
from benchmarks.footprint import Held, Moment, Peak
from benchmarks.tables import facts, show, table
from divgrpc.types import FloatArray, Progress, Search
from divgrpc_client import Client
from support.running_server import RunningServer, eventually

_INDEX: Final = "memory"
_BLOCK: Final = 2**16
_PATIENCE: Final = 600.0
_MB: Final = 1e6


@dataclass(frozen=True)
class Upload:
    """Bytes above the idle level at the peak; seconds from the first byte to served."""

    bytes: int
    seconds: float
    samples: int
    private: int
    unbacked: int


@dataclass(frozen=True)
class Sharing:
    """Workers that all have queried: PSS of the index, what one copy is, what each holds itself."""

    workers: int
    copy: int
    pss: int
    private_each: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--rows", type=int, default=4_000_000, help="(default 4,000,000)")
    parser.add_argument("--dims", type=int, default=256, help="(default 256)")
    parser.add_argument("--workers", type=int, default=4, help="(default 4)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print, and return both parts for JSON."""
    rows, dims = arguments.rows, arguments.dims
    show(f"\n## Memory: {rows:,} x {dims} float32, {arguments.workers} workers\n")
    with tempfile.TemporaryDirectory(prefix="divgrpc-memory-") as temporary:
        folder = Path(temporary)
        # The upload, the vectors that are kept, and as much again for the rest.
        if shutil.disk_usage(folder).free < 3 * 4 * rows * dims:
            raise SystemExit(f"too little room in {folder.parent} for three copies of the points")
        vectors = _points(folder / "points.npy", rows, dims)
        options = ("--data-dir", str(folder / "data"), "--workers", str(arguments.workers))
        with (
            RunningServer(folder, *options, "--log-format", "json") as server,
            Client(server.target, timeout=_PATIENCE) as client,
        ):
            client.wait_until_ready(timeout=_PATIENCE)
            uploaded = _upload(server, client, vectors)
            shared = _share(server, client, vectors, folder / "data" / _INDEX)
    return {"upload": asdict(uploaded), "sharing": asdict(shared)}


def _points(path: Path, rows: int, dims: int) -> FloatArray:
    """Write points around a thousand centres to a file, block by block, and map it."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1_000, dims), dtype=np.float32)
    written = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dims))
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        near = rng.standard_normal((count, dims), dtype=np.float32)
        written[start : start + count] = centres[rng.integers(1_000, size=count)] + near
    written.flush()
    points: FloatArray = np.load(path, mmap_mode="r")
    return points


def _upload(server: RunningServer, client: Client, vectors: FloatArray) -> Upload:
    pid = server.process.pid
    idle = Moment(held=footprint.by_role(pid))
    stages: dict[str, float] = {}
    begun = time.monotonic()

    def note(progress: Progress) -> None:
        stages.setdefault(progress.stage, time.monotonic() - begun)

    with footprint.watching(pid) as peak:
        client.build(_INDEX, vectors, progress=note)
    seconds = time.monotonic() - begun
    show(_drawn(idle, peak) + "\n")
    rise = peak.private.total.private - idle.total.private
    unbacked = peak.unbacked.total.unbacked - idle.total.unbacked
    when = [f"after {moment.seconds:.0f} s" for moment in (peak.private, peak.unbacked)]
    show(
        facts(
            {
                "uploaded": f"{vectors.nbytes / _MB:,.0f} MB, served after {seconds:.0f} s",
                "stages begun after": ", ".join(f"{stages[name]:.0f} s {name}" for name in stages),
                "private memory rose by": f"{rise / _MB:,.0f} MB, {when[0]}",
                "without pages of files": f"{unbacked / _MB:,.0f} MB, {when[1]}",
                "samples": str(peak.samples),
            }
        )
        + "\n"
    )
    return Upload(vectors.nbytes, seconds, peak.samples, rise, unbacked)


def _drawn(idle: Moment, peak: Peak) -> str:
    moments = (idle, peak.private, peak.unbacked)
    roles = sorted({role for moment in moments for role in moment.held})
    lines = []
    for role in roles:
        held = [moment.held.get(role, Held()) for moment in moments]
        numbers = (held[0].private, held[1].private, held[0].unbacked, held[2].unbacked)
        lines.append((role, *(f"{number / _MB:,.0f}" for number in numbers)))
    heads = ("MB held by", "private, idle", "at the peak", "without files, idle", "at its peak")
    return table(heads, lines)


def _share(server: RunningServer, client: Client, vectors: FloatArray, folder: Path) -> Sharing:
    workers = server.pids("worker")
    before = sum((footprint.held(pid) for pid in workers), Held())

    def all_have_it() -> bool:
        _ask_by_every_search(client, vectors, len(workers))
        return all(footprint.mapped(pid, folder)["Size"] for pid in workers)

    eventually(all_have_it, _PATIENCE)
    # Having it mapped is not having it touched: once more for the one that came last.
    _ask_by_every_search(client, vectors, len(workers))
    maps = [footprint.mapped(pid, folder) for pid in workers]
    after = sum((footprint.held(pid) for pid in workers), Held())
    copy, pss = max(each["Size"] for each in maps), sum(each["Pss"] for each in maps)
    each = (after.unbacked - before.unbacked) // len(workers)
    show(
        facts(
            {
                "one copy of the index": f"{copy / _MB:,.0f} MB in files",
                "resident in each": ", ".join(f"{each['Rss'] / _MB:,.0f}" for each in maps) + " MB",
                "PSS of all workers": f"{pss / _MB:,.0f} MB, {pss / copy:.3f} of a copy",
                "a worker's own scratch": f"{each / _MB:,.0f} MB",
            }
        )
        + "\n"
    )
    return Sharing(len(workers), copy, pss, each)


def _ask_by_every_search(client: Client, vectors: FloatArray, workers: int) -> None:
    """Ask as many at a time as there are workers, twice, by each search."""

    def ask(number: int, search: Search) -> None:
        client.query(_INDEX, vectors[number : number + 1], search=search)

    with ThreadPoolExecutor(workers) as pool:
        for search in _searches():
            list(pool.map(ask, range(2 * workers), [search] * (2 * workers)))


def _searches() -> Iterator[Search]:
    yield from get_args(Search)
