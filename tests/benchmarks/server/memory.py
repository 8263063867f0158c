"""Memory that a large upload adds to the server's processes, and what workers share.

A server with a data directory takes an upload of about 4 GB while the private memory of supervisor,
fronts, workers and builder is summed up twenty times a second. Then every worker answers by every
kind of search, so that all arrays are touched, and the mappings of the index are added up.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, get_args

import numpy as np

from benchmarks.harness import footprint
from benchmarks.harness.footprint import Held, total
from benchmarks.harness.runner import Option, Options, Output
from benchmarks.harness.tables import Row, Table
from divgrpc.types import FloatArray, Search
from divgrpc_client import Client
from support.running_server import RunningServer, eventually

OPTIONS: Final = {
    "rows": Option(4_000_000, "rows uploaded"),
    "dims": Option(256, "dimensions"),
    "workers": Option(4, "workers"),
}
_INDEX: Final = "memory"
_BLOCK_ROWS: Final = 2**16
_PATIENCE_SECONDS: Final = 600.0
_MB: Final = 1e6


def rows(options: Options) -> Iterator[Output]:
    """Yield tables of memory by role, of the upload, and of what workers share."""
    size = 4 * options.rows * options.dims
    with tempfile.TemporaryDirectory(prefix="divgrpc-memory-") as temporary:
        folder = Path(temporary)
        # The upload, the vectors that are kept, and as much again for the rest.
        if shutil.disk_usage(folder).free < 3 * size:
            raise SystemExit(f"too little room in {folder.parent} for three copies of the points")
        vectors = _points(folder / "points.npy", options.rows, options.dims)
        arguments = ("--data-dir", str(folder / "data"), "--workers", str(options.workers))
        with (
            RunningServer(folder, *arguments, "--log-format", "json") as server,
            Client(server.target, timeout=_PATIENCE_SECONDS) as client,
        ):
            client.wait_until_ready(timeout=_PATIENCE_SECONDS)
            yield from _upload(server, client, vectors)
            yield Table("One index in all workers")
            yield _share(server, client, vectors, folder / "data" / _INDEX)


def _points(path: Path, rows: int, dims: int) -> FloatArray:
    """Write points around a thousand centres to a file, block by block, and map it."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((1_000, dims), dtype=np.float32)
    written = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dims))
    for start in range(0, rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, rows - start)
        near = random.standard_normal((count, dims), dtype=np.float32)
        written[start : start + count] = centres[random.integers(1_000, size=count)] + near
    written.flush()
    points: FloatArray = np.load(path, mmap_mode="r")
    return points


def _upload(server: RunningServer, client: Client, vectors: FloatArray) -> Iterator[Output]:
    pid = server.process.pid
    idle = footprint.by_role(pid)
    started = time.monotonic()
    with footprint.watching(pid) as peak:
        client.build(_INDEX, vectors)
    seconds = time.monotonic() - started
    yield Table("MB held by each role")
    samples = (idle, peak.private, peak.unbacked)
    for role in sorted({role for roles in samples for role in roles}):
        held = [roles.get(role, Held()) for roles in samples]
        yield {
            "role": role,
            "private, idle": held[0].private / _MB,
            "at the peak": held[1].private / _MB,
            "without files, idle": held[0].unbacked / _MB,
            "at its peak": held[2].unbacked / _MB,
        }
    yield Table("The upload")
    yield {
        "uploaded MB": vectors.nbytes / _MB,
        "served after s": seconds,
        "private MB more": (total(peak.private).private - total(idle).private) / _MB,
        "without files MB more": (total(peak.unbacked).unbacked - total(idle).unbacked) / _MB,
        "samples": peak.samples,
    }


def _share(server: RunningServer, client: Client, vectors: FloatArray, folder: Path) -> Row:
    workers = server.pids("worker")
    before = sum((footprint.held(pid) for pid in workers), Held())

    def all_have_it() -> bool:
        _ask_by_every_search(client, vectors, len(workers))
        return all(footprint.mapped(pid, folder)["Size"] for pid in workers)

    eventually(all_have_it, _PATIENCE_SECONDS)
    # A mapped index is not a touched one: once more for the worker that came last.
    _ask_by_every_search(client, vectors, len(workers))
    maps = [footprint.mapped(pid, folder) for pid in workers]
    after = sum((footprint.held(pid) for pid in workers), Held())
    copy, pss = max(each["Size"] for each in maps), sum(each["Pss"] for each in maps)
    return {
        "workers": len(workers),
        "one copy MB": copy / _MB,
        "least resident MB": min(each["Rss"] for each in maps) / _MB,
        "PSS of all MB": pss / _MB,
        "copies": pss / copy,
        "scratch of each MB": (after.unbacked - before.unbacked) / len(workers) / _MB,
    }


def _ask_by_every_search(client: Client, vectors: FloatArray, workers: int) -> None:
    """Ask as many at a time as there are workers, twice, by each search."""

    def ask(number: int, search: Search) -> None:
        client.query(_INDEX, vectors[number : number + 1], search=search)

    with ThreadPoolExecutor(workers) as pool:
        for search in get_args(Search):
            list(pool.map(ask, range(2 * workers), [search] * (2 * workers)))
