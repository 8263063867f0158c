"""Benchmark of writes: what they cost, and what they cost the queries."""

import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.harness import load, truth
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program, echo, server
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark, take_turns
from benchmarks.harness.texts import texts
from divgrpc.collection import Collection
from divgrpc.index import Index
from divgrpc.types import FloatArray, IntArray
from divgrpc.writes.opening import open_engine
from divgrpc_client import Client
from divgrpc_protos import arrays
from divgrpc_protos.v1 import writes_pb2

# Dense or sparse rows.
Matrix: TypeAlias = FloatArray | sparse.csr_array

PARTS: Final = (
    *("queries", "renewals", "rates", "start", "runbook", "wire", "sparse", "tables", "merges"),
)
_K: Final = 10
_QUERIES: Final = 400
_BATCH: Final = 100
_RUNBOOK_ROUNDS: Final = 5
# Goals of queries: what they take, as a multiple of a query of an index that nobody writes to.
_GOALS: Final = {"nothing written": 1.02, "1 % written": 1.07, "10 % written": 1.30}
_DELETED_GOAL: Final = 1.20
_HOLD: Final = """
import os, sys, time
import numpy as np
from divgrpc.collection import Collection
collection = Collection.open(sys.argv[1], durability="process")
rows = np.load(sys.argv[2])
first = collection.rows
for start in range(0, len(rows), 1_000):
    part = rows[start : start + 1_000]
    collection.upsert(np.arange(first + start, first + start + len(part)), part)
print("written", flush=True)
time.sleep(600)
"""
# Merges a collection over and over, with a new row for each merge.
_MERGE: Final = """
import sys
import numpy as np
from divgrpc.collection import Collection
with Collection.open(sys.argv[1], durability="process") as collection:
    row = np.ones((1, collection.dims), np.float32)
    collection.upsert([0], row)
    collection.compact()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[2])):
        collection.upsert([number], row)
        collection.compact()
"""
_MERGES: Final = 20


@benchmark(
    "writes",
    long=True,
    points=Option([200_000], "points of 128 dimensions"),
    seconds=Option(3.0, "seconds of a loop over gRPC"),
    parts=Option(list(PARTS), "tables to make", PARTS),
)
def writes(options: Options) -> Iterator[Output]:
    """Rates of writes, and times of queries beside them.

    Queries take turns with the same queries of an index that nobody writes to, one at a time on one
    thread. Rates over gRPC are compared with an empty echo of the same messages, and rates in
    process with numpy, which copies the rows and logs them to a file, with a sync for each request.
    "Runbook" inserts, deletes and searches in rounds, and compares the recall with that of an index
    of the same points that is built anew.
    """
    for count in options.points:
        with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
            yield from _of_size(count, Path(temporary), options)


def _of_size(count: int, folder: Path, options: Options) -> Iterator[Output]:
    manifold = Manifold.of()
    points, queries = manifold.points(count + count // 5), manifold.queries(_QUERIES)
    base, later = points[:count], points[count:]
    facts = {"data": f"synthetic points, {count:,} x {points.shape[1]}"}
    index = Index.build(base, path=folder / "fixed")
    facts["index"] = index.info.summary
    shutil.copytree(folder / "fixed", folder / "living")
    parts: dict[str, Callable[[], Iterator[Output]]] = {
        "queries": partial(_query_tables, folder, index, later, queries, facts),
        "renewals": partial(_renewal_rows, folder, base, later, facts),
        "rates": partial(_rates, folder, later, facts),
        "start": partial(_start_rows, folder, later, facts),
        "runbook": partial(_runbook, folder, base, later, queries, facts),
        "wire": partial(_wire_rows, folder, later, options.seconds, facts),
        "sparse": partial(_sparse_rows, folder, count // 5),
        "tables": partial(_table_rows, folder, base, later, queries, facts),
        "merges": partial(_merge_rows, folder, later, facts),
    }
    for name in options.parts:
        yield from parts[name]()


def _query_tables(
    folder: Path, index: Index, later: FloatArray, queries: FloatArray, facts: dict[str, str]
) -> Iterator[Output]:
    yield Table("Queries of a collection beside those of an index without writes", facts)
    with Collection.open(folder / "living", durability="process") as collection:
        with _without_merges(collection):
            yield from _query_rows(index, collection, later, queries)
        yield Table("Merge", facts)
        yield _merge_row(collection)


class _without_merges:  # noqa: N801  # reads as a function
    """Keeps a collection from merging by itself."""

    def __init__(self, collection: Collection) -> None:
        self._committer: Any = collection.committer

    def __enter__(self) -> None:
        self._committer.merges_by_itself = False

    def __exit__(self, *_: object) -> None:
        self._committer.merges_by_itself = True


def _query_rows(
    index: Index, collection: Collection, later: FloatArray, queries: FloatArray
) -> Iterator[Row]:
    count = index.rows
    # Something was written once, but everything is merged.
    collection.upsert([0], index.get([0], with_vectors=True).vectors)
    collection.compact()
    yield _query_row("merged", index, collection, queries)
    yield from _unmerged_rows(index, collection, later, queries)
    collection.compact()
    collection.delete(np.arange(0, count, 10))
    yield _query_row("10 % deleted", index, collection, queries)


def _table_rows(
    folder: Path, base: FloatArray, later: FloatArray, queries: FloatArray, facts: dict[str, str]
) -> Iterator[Output]:
    by_tables = facts | {"index": "lsh_div, search='tables'"}
    yield Table("Queries of hash tables beside those of an index without writes", by_tables)
    index = Index.build(base, path=folder / "tables", hash_family="lsh_div")
    shutil.copytree(folder / "tables", folder / "written tables")
    with (
        Collection.open(folder / "written tables", durability="process") as collection,
        _without_merges(collection),
    ):
        yield from _unmerged_rows(index, collection, later, queries, search="tables")


def _sparse_rows(folder: Path, count: int) -> Iterator[Output]:
    """Compare exact queries of sparse texts, which read inverted lists."""
    base, later, queries = texts(count, 1), texts(count // 10, 2), texts(_QUERIES, 3)
    index = Index.build(base, path=folder / "texts")
    facts = {"data": f"made texts, {count:,} x {base.shape[1]:,}", "index": index.info.summary}
    yield Table("Exact queries of sparse points beside those of an index without writes", facts)
    for name, options in (("nearest", {"diversity": 0.0}), ("diverse", {})):
        shutil.rmtree(folder / "written texts", ignore_errors=True)
        shutil.copytree(folder / "texts", folder / "written texts")
        with (
            Collection.open(folder / "written texts", durability="process") as collection,
            _without_merges(collection),
        ):
            for row in _unmerged_rows(index, collection, later, queries, search="exact", **options):
                yield {"results": name, **row}


def _unmerged_rows(
    index: Index,
    collection: Collection,
    later: Matrix,
    queries: Matrix,
    **options: Any,  # noqa: ANN401  # of queries
) -> Iterator[Row]:
    count = index.rows
    room = later.shape[0]
    for name, share in (("1 % written", 0.01), ("10 % written", 0.1)):
        target = min(room, int(share * count))
        _write(collection, later[:target], count)
        yield _query_row(name, index, collection, queries, **options)


def _write(collection: Collection, rows: Matrix, first: int) -> None:
    for start in range(0, rows.shape[0], 1_000):
        part = rows[start : start + 1_000]
        collection.upsert(np.arange(first + start, first + start + part.shape[0]), part)


def _query_row(
    name: str,
    index: Index,
    collection: Collection,
    queries: Matrix,
    **options: Any,  # noqa: ANN401  # of queries
) -> Row:
    rows = [queries[number : number + 1] for number in range(queries.shape[0])]

    def ask(source: Index, number: int) -> IntArray:
        ids: IntArray = source.query(rows[number], k=_K, **options).ids[0]
        return ids

    with threadpool_limits(1):
        asks = {"index": partial(ask, index), "collection": partial(ask, collection)}
        times = take_turns(asks, len(rows), _K)
    ratio, interval = times["collection"].ratio(times["index"])
    goal = _DELETED_GOAL if "deleted" in name else _GOALS.get(name, 1.02)
    return {
        "state": name,
        "points": len(collection),
        "us": times["collection"].microseconds,
        "index us": times["index"].microseconds,
        "ratio": ratio,
        "95 %": interval,
        "goal": f"<= {goal:g}",
    }


def _merge_row(collection: Collection) -> Row:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((4_096, collection.dims)).astype(np.float32)
    collection.upsert(np.arange(10**9, 10**9 + 4_096), vectors)
    before, begin = time.process_time(), time.perf_counter()
    collection.compact()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - before
    writes_info = collection.info.writes
    return {
        "rows": len(collection),
        "s": seconds,
        "CPU s": cpu,
        "dead rows": None if writes_info is None else writes_info.rows_dead,
    }


def _renewal_rows(
    folder: Path, base: FloatArray, later: FloatArray, facts: dict[str, str]
) -> Iterator[Output]:
    """Vacuum and retrain a collection, while a thread writes single rows."""
    yield Table("New generations beside writes", facts)
    begin = time.perf_counter()
    Index.build(base, path=folder / "anew")
    yield {"work": "build", "s": time.perf_counter() - begin}
    with Collection.open(folder / "living", durability="interval") as collection:
        for name, renew in (
            ("vacuum", partial(collection.compact, vacuum=True)),
            ("retraining", collection.retrain),
        ):
            collection.delete(np.arange(1, 1_000))
            collection.upsert(np.arange(1, 1_000), base[1:1_000])
            yield {"work": name, **_write_beside(renew, collection, later)}


def _merge_rows(folder: Path, later: FloatArray, facts: dict[str, str]) -> Iterator[Output]:
    """Merge in a thread beside writes, and in another process, which has a copy of the index."""
    yield Table("Merges beside writes", facts)
    shutil.copytree(folder / "fixed", folder / "copy")
    other = subprocess.Popen(
        [sys.executable, "-c", _MERGE, folder / "copy", str(_MERGES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other, Collection.open(folder / "living", durability="process") as collection:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        for name, work in (
            ("nothing", partial(time.sleep, 1)),
            ("merges in a thread", partial(_merge_often, collection)),
            ("merges in another process", partial(other.communicate, b"begin\n")),
        ):
            merges = _MERGES if "merges" in name else 0
            yield {"beside": name, "merges": merges, **_write_beside(work, collection, later)}


def _merge_often(collection: Collection) -> None:
    for _ in range(_MERGES):
        collection.compact()


def _write_beside(work: Callable[[], object], collection: Collection, later: FloatArray) -> Row:
    """Write single rows until a thread has done the work, and measure how long each write takes."""
    waits: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        begin = time.perf_counter()
        future = thread.submit(work)
        while not future.done():
            waits.append(_seconds_of_upsert(collection, later[len(waits) % len(later)]))
        seconds = time.perf_counter() - begin
        future.result()
    return {
        "s": seconds,
        "writes": len(waits),
        "p50 ms": 1e3 * float(np.percentile(waits, 50)),
        "p99 ms": 1e3 * float(np.percentile(waits, 99)),
        "longest ms": 1e3 * max(waits),
    }


def _seconds_of_upsert(collection: Collection, row: FloatArray) -> float:
    begin = time.perf_counter()
    collection.upsert([2 * 10**9], row[np.newaxis])
    return time.perf_counter() - begin


def _rates(folder: Path, later: FloatArray, facts: dict[str, str]) -> Iterator[Output]:
    """Rows per second of a collection, and of numpy that copies and logs the same rows."""
    yield Table("Rows written in process", facts)
    for durability, size, limit in (
        ("process", 1, 2_000),
        ("process", _BATCH, 20_000),
        ("sync", 1, 200),
        ("sync", _BATCH, 10_000),
    ):
        rows = later[:limit]
        shutil.rmtree(folder / "rates", ignore_errors=True)
        shutil.copytree(folder / "fixed", folder / "rates")
        settings: Any = durability
        with Collection.open(folder / "rates", durability=settings) as collection:
            collection.upsert([0], rows[:1])
            rate = _rate(partial(_upsert, collection), rows, size)
        with (folder / "log").open("wb", buffering=0) as file:
            memory = np.empty_like(rows)
            copy = partial(_copy, file, memory, is_synced=durability == "sync")
            numpy = _rate(copy, rows, size)
        yield {
            "durability": durability,
            "rows a request": size,
            "rows/s": rate,
            "numpy rows/s": numpy,
            "ratio": rate / numpy,
            "goal": ">= .5" if size > 1 else "",
        }


def _upsert(collection: Collection, start: int, part: FloatArray) -> None:
    first = 10**9 + start
    collection.upsert(np.arange(first, first + len(part)), part)


def _copy(
    log: FileIO, memory: FloatArray, start: int, part: FloatArray, *, is_synced: bool
) -> None:
    """Copy rows into an array, and write them to a file."""
    memory[start : start + len(part)] = part
    log.write(part.tobytes())
    if is_synced:
        os.fdatasync(log.fileno())


def _rate(write: Callable[[int, FloatArray], None], rows: FloatArray, size: int) -> float:
    begin = time.perf_counter()
    for start in range(0, len(rows), size):
        write(start, rows[start : start + size])
    return len(rows) / (time.perf_counter() - begin)


def _start_rows(folder: Path, later: FloatArray, facts: dict[str, str]) -> Iterator[Output]:
    """Seconds to open an index, without writes and after kill -9 with many unmerged writes."""
    yield Table("Start after kill -9", facts)
    shutil.copytree(folder / "fixed", folder / "killed")
    np.save(folder / "later.npy", later[:16_000])
    words = [sys.executable, "-c", _HOLD, str(folder / "killed"), str(folder / "later.npy")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    times = {"index": [], "collection": [], "reader": []}  # type: dict[str, list[float]]
    for _ in range(3):
        begin = time.perf_counter()
        open_engine(folder / "fixed")
        times["index"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        open_engine(folder / "killed")
        times["reader"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        with Collection.open(folder / "killed") as collection:
            times["collection"].append(time.perf_counter() - begin)
            info = collection.info.writes
    unmerged = 0 if info is None else info.rows_unmerged
    fixed = statistics.median(times["index"])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        yield {
            "opened": name,
            "unmerged rows": 0 if name == "index" else unmerged,
            "s": middle,
            "s more": middle - fixed,
            "goal": "" if name == "index" else "<= 1.5 s more",
        }


def _runbook(
    folder: Path, base: FloatArray, later: FloatArray, queries: FloatArray, facts: dict[str, str]
) -> Iterator[Output]:
    """Insert, delete and search in rounds."""
    yield Table("Runbook: recall of the nearest ten", facts)
    shutil.copytree(folder / "fixed", folder / "runbook")
    alive = {row: base[row] for row in range(len(base))}
    step = len(later) // _RUNBOOK_ROUNDS
    rng = np.random.default_rng(2)
    with Collection.open(folder / "runbook", durability="process") as collection:
        for round_number in range(1, _RUNBOOK_ROUNDS + 1):
            part = later[(round_number - 1) * step : round_number * step]
            first = len(base) + (round_number - 1) * step
            _write(collection, part, first)
            alive |= {first + place: row for place, row in enumerate(part)}
            removed = rng.choice(np.array(sorted(alive)), step, replace=False)
            collection.delete(removed)
            for row in removed.tolist():
                del alive[row]
            ids = np.array(sorted(alive))
            vectors = np.stack([alive[row] for row in ids.tolist()])
            near = ids[truth.nearest(vectors, queries, _K)[0]]
            fresh = Index.build(vectors, ids=ids)
            recall, anew = (_recall(source, queries, near) for source in (collection, fresh))
            yield {
                "round": round_number,
                "points": len(ids),
                "recall": recall,
                "built anew": anew,
                "difference": recall - anew,
                "goal": ">= -.005",
            }


def _recall(index: Index, queries: FloatArray, near: IntArray) -> float:
    answers = index.query(queries, k=_K, selector="nearest", duplicate_threshold=1.0).ids
    return truth.recall(answers, near)


def _wire_rows(
    folder: Path, later: FloatArray, seconds: float, facts: dict[str, str]
) -> Iterator[Output]:
    """Call Upsert, and an echo with the same messages."""
    yield Table("Upserts over gRPC", facts)
    (folder / "server").mkdir()
    shutil.copytree(folder / "fixed", folder / "server" / "data" / "fixed")
    for durability in ("interval", "sync"):
        with (
            server(folder / "server", 1, "--durability", durability) as program,
            echo(16) as empty,
            Client(program.address) as client,
        ):
            client.upsert("fixed", [0], later[:1])
            for size in (1, _BATCH):
                requests = _messages(later, size)
                for in_flight in (1, 64):
                    rates = _loads(program, empty, requests, in_flight, seconds)
                    yield {
                        "durability": durability,
                        "rows a request": size,
                        "in flight": in_flight,
                        "calls/s": rates[0].per_second,
                        "rows/s": rates[0].per_second * size,
                        "p50 us": rates[0].latency[50],
                        "echo calls/s": rates[1].per_second,
                        "of echo": rates[0].per_second / rates[1].per_second,
                        "goal": ">= .7" if (size, durability) == (1, "interval") else "",
                    }


def _messages(rows: FloatArray, size: int) -> list[bytes]:
    messages = []
    for start in range(0, min(len(rows), 2_000 * size), size):
        part = rows[start : start + size]
        message = writes_pb2.UpsertRequest(
            index="fixed",
            ids=range(10**9 + start, 10**9 + start + len(part)),
            vectors=arrays.encode_dense(part),
        )
        messages.append(message.SerializeToString())
    return messages


def _loads(
    program: Program, empty: Program, requests: Sequence[bytes], in_flight: int, seconds: float
) -> tuple[load.Load, load.Load]:
    loop = partial(load.unary, requests=requests, in_flight=in_flight, seconds=seconds)
    return (
        asyncio.run(loop(program, method=load.UPSERT)),
        asyncio.run(loop(empty, method=load.QUERY)),
    )
