"""Benchmark of WriteStream beside Upsert."""

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.harness import load
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program, server
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc_client import Client
from divgrpc_protos import arrays
from divgrpc_protos.v1 import writes_pb2

_SIZES: Final = (1, 10, 100)
_MESSAGES: Final = 2_000
# Names of two indexes: unary calls write to the first, and streams write to the second.
_UNARY, _STREAM = "unary", "stream"


@benchmark(
    "write-streams",
    long=True,
    points=Option([50_000], "points of 128 dimensions"),
    seconds=Option(2.0, "seconds of a loop over gRPC"),
    rounds=Option(3, "loops of each kind, which take turns"),
    in_flight=Option(64, "writes without an answer at a time"),
)
def write_streams(options: Options) -> Iterator[Output]:
    """Rates of upserts on one WriteStream, and of as many unary calls at a time.

    The loops take turns, on two equal indexes of one server. Figures are medians of the rounds, in
    messages that are serialised beforehand.
    """
    for count in options.points:
        with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
            yield from _of_size(count, Path(temporary), options)


def _of_size(count: int, folder: Path, options: Options) -> Iterator[Output]:
    points = Manifold.of().points(count + count // 5)
    base, later = points[:count], points[count:]
    index = Index.build(base, path=folder / "server" / "data" / _UNARY)
    shutil.copytree(folder / "server" / "data" / _UNARY, folder / "server" / "data" / _STREAM)
    facts = {
        "data": f"synthetic points, {count:,} x {points.shape[1]}",
        "index": index.info.summary,
        "in flight": str(options.in_flight),
    }
    yield Table("WriteStream beside unary upserts", facts)
    for durability in ("interval", "sync"):
        with (
            server(folder / "server", 1, "--durability", durability) as program,
            Client(program.address) as client,
        ):
            for name in (_UNARY, _STREAM):
                client.upsert(name, [0], base[:1])
            for size in _SIZES:
                yield _row(program, later, durability, size, options)


def _row(program: Program, later: FloatArray, durability: str, size: int, options: Options) -> Row:
    requests, messages = _unary_requests(later, size), _stream_messages(later, size)
    rounds = [
        asyncio.run(_round(program, requests, messages, options)) for _ in range(options.rounds)
    ]
    unary_rate, stream_rate = (
        statistics.median(results[kind].per_second for results in rounds) for kind in range(2)
    )
    cpu = [statistics.median(results[kind].cpu["front"] for results in rounds) for kind in range(2)]
    return {
        "durability": durability,
        "rows a message": size,
        "unary calls/s": unary_rate,
        "stream messages/s": stream_rate,
        "unary rows/s": unary_rate * size,
        "stream rows/s": stream_rate * size,
        "stream / unary": stream_rate / unary_rate,
        "least": min(s.per_second / u.per_second for u, s in rounds),
        "most": max(s.per_second / u.per_second for u, s in rounds),
        "front CPU us, unary": cpu[0],
        "stream": cpu[1],
    }


async def _round(
    program: Program, requests: list[bytes], messages: list[bytes], options: Options
) -> tuple[load.Load, load.Load]:
    """Load the server with unary calls, and then with a stream."""
    length = options.in_flight, options.seconds
    return (
        await load.unary(program, requests, *length, method=load.UPSERT),
        await load.stream(program, messages, *length, load.WRITE_STREAM),
    )


def _upserts(rows: FloatArray, size: int, index: str) -> Iterator[writes_pb2.UpsertRequest]:
    for start in range(0, min(len(rows) - size, _MESSAGES * size), size):
        yield writes_pb2.UpsertRequest(
            index=index,
            ids=range(10**9 + start, 10**9 + start + size),
            vectors=arrays.encode_dense(rows[start : start + size]),
        )


def _unary_requests(rows: FloatArray, size: int) -> list[bytes]:
    return [upsert.SerializeToString() for upsert in _upserts(rows, size, _UNARY)]


def _stream_messages(rows: FloatArray, size: int) -> list[bytes]:
    return [
        writes_pb2.WriteStreamRequest(correlation_id=number, upsert=upsert).SerializeToString()
        for number, upsert in enumerate(_upserts(rows, size, _STREAM))
    ]
