"""python -m benchmarks.mutations: send a server requests that nobody should, and see it stand.

A server with two workers gets valid requests of every RPC with fields and bytes changed by seeded
draws; the draw of a request depends on the seed and its number alone, so `--only NUMBER` sends one
again. No call may end with a status that speaks of a fault of ours (UNKNOWN, INTERNAL, DATA_LOSS),
of a process that died (UNAVAILABLE, CANCELLED) or of a call that hung (DEADLINE_EXCEEDED); no
worker and no front may be replaced; and what was asked before must be answered the same after.
Exit code 1 where anything of that happened.
"""

import argparse
import itertools
import random
import re
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from scipy.sparse import csr_array

from benchmarks.mutators import Draw, mutated
from benchmarks.tables import show, table
from divgrpc.types import FloatArray
from divgrpc_client import Client
from divgrpc_client.options import QueryOptions
from divgrpc_client.vectors import as_matrix, encode
from divgrpc_protos.v1 import evaluate_pb2, index_pb2, predict_pb2, query_pb2, vectors_pb2
from running import RunningServer, eventually
from served import random_points

FORBIDDEN: Final = {
    "UNKNOWN",
    "INTERNAL",
    "DATA_LOSS",
    "UNAVAILABLE",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "unanswered",
}
# How many of a thousand requests go to each method. A build is a process of its own.
SHARES: Final = {
    "Query": 440,
    "QueryStream": 150,
    "PredictLabels": 40,
    "Evaluate": 40,
    "GetIndex": 80,
    "ListIndexes": 60,
    "DeleteIndex": 60,
    "GetServerInfo": 45,
    "Check": 20,
    "Watch": 20,
    "Reflection": 40,
    "Build": 5,
}
_ROWS: Final = 400
_DIMS: Final = 24
_SECONDS: Final = 60
_ITEMS: Final = 4
# Indexes that come and go, so that a build seldom finds another of its name under way.
_SCRATCH: Final = ("scratch", "scratch-2", "scratch-3", "scratch-4")
# All that an Evaluate may have set a default for.
_NAMED: Final[QueryOptions] = {
    "diversity": 0.3,
    "selector": "greedy",
    "variant": "corrected",
    "search": "auto",
    "hash_limit": 800,
    "candidates_limit": 200,
}
_OURS: Final = "/divgrpc.v1.DiverseIndex/"
_REFLECTION: Final = "grpc.reflection.{}.ServerReflection/ServerReflectionInfo"


@dataclass
class Tally:
    """What became of the calls, by method and status, and which of them must not have."""

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, number: int, method: str, status: str, detail: str = "") -> None:
        """Count a call, or an item of a stream."""
        with self._lock:
            self.statuses[method, status] += 1
            if status in FORBIDDEN:
                self.wrong.append(f"request {number}, {method}: {status} {detail}")


class Seeds:
    """Valid requests of every method, to be drawn from."""

    def __init__(self) -> None:
        rows = random_points(12, dims=_DIMS, seed=1)
        self._matrices = [_dense(rows[:1]), _dense(rows), _sparse(rows[:1]), _sparse(rows)]
        half = vectors_pb2.Vectors()
        half.CopyFrom(self._matrices[0])
        half.dense.dtype = vectors_pb2.DTYPE_FLOAT16
        half.dense.data = rows[:1].astype("<f2").tobytes()
        plain = vectors_pb2.Vectors()
        plain.dense.rows, plain.dense.cols = 1, _DIMS
        plain.dense.values.extend(rows[0].tolist())
        self._matrices += [half, plain]

    def query(self, draw: Draw) -> query_pb2.QueryRequest:
        """Return a query with most of its fields set."""
        request = query_pb2.QueryRequest(
            index=draw.choice(("dense", "sparse", "cells", "product")),
            queries=draw.choice(self._matrices),
            k=draw.choice((1, 5, 10)),
            diversity=draw.choice((0.0, 0.3, 1.0)),
            selector=draw.choice(query_pb2.Selector.values()[1:4]),
            search=draw.choice(query_pb2.Search.values()[1:]),
            seed=7,
        )
        if draw.random() < 0.5:
            request.hash_limit, request.candidates_limit = 100, 50
        if draw.random() < 0.2 and request.index != "product":
            request.max_distance = 1.5
        return request

    def item(self, draw: Draw) -> query_pb2.QueryStreamRequest:
        """Return an item of a stream; its number is put in afterwards."""
        return query_pb2.QueryStreamRequest(correlation_id=1, query=self.query(draw))

    def steps(self, draw: Draw) -> list[Message]:
        """Return the messages of a build."""
        points = random_points(60, dims=_DIMS, seed=2)
        encoded = draw.choice((_dense, _sparse))
        parameters = index_pb2.BuildParameters(
            metric=draw.choice(index_pb2.Metric.values()[1:]),
            hash_family=draw.choice(index_pb2.HashFamily.values()[1:]),
            seed=3,
        )
        header = index_pb2.BuildHeader(
            index=draw.choice(_SCRATCH), parameters=parameters, replace=True, expected_rows=60
        )
        chunks = [
            index_pb2.BuildChunk(
                vectors=encoded(points[start : start + 30]),
                ids=range(start, start + 30),
                categories=[1] * 30,
            )
            for start in (0, 30)
        ]
        return [
            index_pb2.BuildRequest(header=header),
            *(index_pb2.BuildRequest(chunk=chunk) for chunk in chunks),
            index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=60)),
        ]

    def other(self, method: str, draw: Draw) -> Message:
        """Return the one request of any other method."""
        match method:
            case "PredictLabels":
                return predict_pb2.PredictLabelsRequest(
                    index="dense", documents=self._matrices[0], top_k=3, seed=1
                )
            case "Evaluate":
                return evaluate_pb2.EvaluateRequest(
                    index="dense",
                    queries=self._matrices[1],
                    categories=[1, 2] * 6,
                    selectors=[query_pb2.SELECTOR_GREEDY],
                    limits=[evaluate_pb2.EvaluateLimits(hash_limit=100, candidates_limit=50)],
                    diversities=[0.3, 0.7],
                    ks=[5],
                    seed=1,
                    folds=2,
                )
            case "GetIndex":
                return index_pb2.GetIndexRequest(index=draw.choice(("dense", "sparse", "cells")))
            case "ListIndexes":
                return index_pb2.ListIndexesRequest(page_size=2, page_token="dense")  # noqa: S106  # no secret
            case "DeleteIndex":
                return index_pb2.DeleteIndexRequest(index=draw.choice(_SCRATCH))
            case "GetServerInfo":
                return index_pb2.GetServerInfoRequest()
        request: Message = health_pb2.HealthCheckRequest(service="divgrpc.v1.DiverseIndex")
        if method == "Reflection":
            request = reflection_pb2.ServerReflectionRequest(
                host="here", file_containing_symbol="divgrpc.v1.DiverseIndex"
            )
        return request


def _dense(rows: FloatArray) -> vectors_pb2.Vectors:
    return encode(rows, 0, len(rows))


def _sparse(rows: FloatArray) -> vectors_pb2.Vectors:
    kept = np.where(np.abs(rows) > 0.7, rows, 0).astype(np.float32)
    kept[:, 0] = 1
    return encode(as_matrix("rows", csr_array(kept)), 0, len(rows))


class Caller:
    """Sends requests as bytes, and notes how each call ends."""

    def __init__(self, channel: grpc.Channel, seed: int, tally: Tally) -> None:
        self._channel = channel
        self._seed = seed
        self._tally = tally
        self._seeds = Seeds()
        self._building = threading.BoundedSemaphore(2)

    def send(self, number: int) -> None:
        """Draw a request by its number and send it."""
        draw = random.Random(f"{self._seed}-{number}")
        method = draw.choices(tuple(SHARES), tuple(SHARES.values()))[0]
        try:
            match method:
                case "QueryStream":
                    self._stream(number, draw)
                case "Build":
                    with self._building:
                        self._build(draw)
                case "Reflection":
                    path = "/" + _REFLECTION.format(draw.choice(("v1", "v1alpha")))
                    self._exchange(path, [mutated(draw, self._seeds.other(method, draw))])
                case "Watch" | "Check":
                    self._one(f"/grpc.health.v1.Health/{method}", method, draw)
                case _:
                    self._one(_OURS + method, method, draw)
        except grpc.RpcError as error:
            self._tally.note(number, method, error.code().name, error.details() or "")
        else:
            self._tally.note(number, method, "OK")

    def _one(self, path: str, method: str, draw: Draw) -> None:
        seed = self._seeds.query(draw) if method == "Query" else self._seeds.other(method, draw)
        payload = mutated(draw, seed)
        if method == "Watch":
            self._first(path, payload)
        elif method == "Evaluate":
            many: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(path)
            list(many(payload, timeout=_SECONDS))
        else:
            one: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
            one(payload, timeout=_SECONDS)

    def _first(self, path: str, payload: bytes) -> None:
        """Hear the first answer of a call that would go on for ever."""
        watch: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(path)
        call = watch(payload, timeout=_SECONDS)
        next(iter(call))
        call.cancel()

    def _exchange(self, path: str, payloads: list[bytes]) -> list[bytes]:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(path)
        return list(call(iter(payloads), timeout=_SECONDS))

    def _build(self, draw: Draw) -> None:
        steps = self._seeds.steps(draw)
        chosen = {draw.randrange(len(steps)) for _ in range(draw.choice((0, 1, 1)))}
        payloads = [
            mutated(draw, step) if place in chosen else step.SerializeToString()
            for place, step in enumerate(steps)
        ]
        match draw.randrange(8):
            case 0:
                payloads.insert(draw.randrange(5), draw.choice(payloads))
            case 1:
                payloads.pop(draw.randrange(len(payloads)))
            case 2:
                draw.shuffle(payloads)
        self._exchange(_OURS + "Build", payloads)

    def _stream(self, number: int, draw: Draw) -> None:
        payloads = []
        for place in range(_ITEMS):
            item = self._seeds.item(draw)
            item.correlation_id = place
            whole = draw.random() < 0.4
            payloads.append(item.SerializeToString() if whole else mutated(draw, item))
        answers = self._exchange(_OURS + "QueryStream", payloads)
        for answer in answers:
            self._note_item(number, answer)
        for _ in range(len(payloads) - len(answers)):
            self._tally.note(number, "QueryStream, items", "unanswered")

    def _note_item(self, number: int, answer: bytes) -> None:
        try:
            message = query_pb2.QueryStreamResponse.FromString(answer)
        except DecodeError:
            self._tally.note(number, "QueryStream, items", "UNKNOWN", "an answer cannot be parsed")
            return
        code = next(c for c in grpc.StatusCode if c.value[0] == message.error.code)
        self._tally.note(number, "QueryStream, items", code.name, message.error.message)


def run(requests: int, seed: int, *, only: int | None = None, callers: int = 4) -> Tally:
    """Send the requests to a server of their own and return what became of them."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="divgrpc-mutations-") as temporary:
        options = ("--data-dir", f"{temporary}/data", "--workers", "2", "--log-level", "warning")
        with RunningServer(Path(temporary), *options, "--no-access-log") as server:
            before, queries = _prepare(server)
            pids = {role: server.pids(role) for role in ("front", "worker")}
            numbers = range(requests) if only is None else range(only, only + 1)
            with server.channel() as channel, ThreadPoolExecutor(callers) as pool:
                caller = Caller(channel, seed, tally)
                for _ in pool.map(caller.send, numbers):
                    pass
            _check(server, tally, pids)
            if _answers(server, queries) != before:
                tally.wrong.append("what was asked before is not answered the same")
    return tally


def _prepare(server: RunningServer) -> tuple[list[bytes], FloatArray]:
    """Build the indexes that are asked; returns what they answer and the queries."""
    points, queries = random_points(_ROWS, dims=_DIMS), random_points(20, dims=_DIMS, seed=9)
    sparse = csr_array(np.where(np.abs(points) > 0.7, points, 0) + np.eye(_ROWS, _DIMS))
    with Client(server.target, timeout=60) as client:
        rows = np.arange(_ROWS)
        client.build("dense", points, categories=rows % 3, subtopics=rows % 2)
        client.build("sparse", sparse, hash_family="lsh_div", metric="euclidean")
        client.build("cells", points, hash_family="cells", metric="euclidean")
        client.build("product", points, metric="inner_product")
    return _answers(server, queries), queries


def _answers(server: RunningServer, queries: FloatArray) -> list[bytes]:
    with Client(server.target, timeout=60) as client:
        found = [
            client.query(name, queries, **_NAMED)
            for name in ("dense", "sparse", "cells", "product")
        ]
    return [result.ids.tobytes() + result.scores.tobytes() for result in found]


def _check(server: RunningServer, tally: Tally, pids: dict[str, list[int]]) -> None:
    """Note processes that were replaced or left over, and faults that only the log has."""
    for role, started in pids.items():
        if server.pids(role) != started:
            tally.wrong.append(f"a {role} was replaced")
    try:
        eventually(lambda: not server.pids("builder"), 30)
    except AssertionError:
        tally.wrong.append("a builder goes on")
    log = server.log
    if re.search(r"fault|Traceback|child ended", log):
        tally.wrong.append(f"the log tells of faults: {log[-4_000:]}")


def report(tally: Tally) -> str:
    """Return the table of methods and statuses."""
    statuses = sorted({status for _, status in tally.statuses})
    methods = [name for name in (*SHARES, "QueryStream, items") if _sent(tally, name)]
    rows = [
        [name, f"{_sent(tally, name):,}", *(f"{tally.statuses[name, s]:,}" for s in statuses)]
        for name in methods
    ]
    return table(["method", "sent", *statuses], rows)


def _sent(tally: Tally, method: str) -> int:
    return sum(count for (name, _), count in tally.statuses.items() if name == method)


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="(default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="send this request alone")
    arguments = parser.parse_args()
    tally = run(arguments.requests, arguments.seed, only=arguments.only)
    show(report(tally))
    for line in itertools.islice(tally.wrong, 20):
        show(line)
    show(f"{len(tally.wrong)} violations")
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
