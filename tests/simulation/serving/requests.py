"""The requests that callers make, and the answers that the core gives to them."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from divgrpc import Index
from divgrpc.engine import Engine
from divgrpc.writes.opening import open_engine
from divgrpc_protos.v1 import index_pb2, points_pb2, query_pb2, vectors_pb2
from divgrpc_server.codec import requests, results
from divgrpc_server.ipc.packets import Op
from divgrpc_server.worker.readings import READS

# Points of each data set, and the numbers of their ids: data set 2 has the ids 2,000 to 2,039.
ROWS: Final = 40
DIMS: Final = 64
DATASETS: Final = 4
DATASET_IDS: Final = 1_000
# The first coordinate of the last row of a query that ends its worker, and of one that hangs.
POISON: Final = 666.0
HANG: Final = 777.0
# An index whose opening ends its worker.
FATAL_INDEX: Final = "fatal"
_LARGE_ROWS: Final = 270
_BATCH_ROWS: Final = (9, 30)
_GOOD: Final = 24

Kind = Literal["query", "batch", "large", "get", "unknown", "malformed", "poison", "hang", "fatal"]


class Version(NamedTuple):
    """A generation of the index and the data set that it has."""

    generation: int
    dataset: int


@dataclass(frozen=True)
class Request:
    """A request: its operation for a unary call, and its bytes."""

    kind: Kind
    op: Op
    payload: bytes


def points_of(dataset: int) -> Any:  # noqa: ANN401  # an array
    """Return the points (40, 64) float32 of a data set."""
    return np.random.default_rng(dataset).standard_normal((ROWS, DIMS), np.float32)


def build_templates(folder: Path) -> None:
    """Build an index of each data set."""
    for dataset in range(DATASETS):
        ids = np.arange(ROWS) + dataset * DATASET_IDS
        Index.build(points_of(dataset), ids=ids, path=folder / str(dataset), metric="euclidean")


def build_messages(index: str, dataset: int) -> list[bytes]:
    """Return the messages of a Build call."""
    points, half = points_of(dataset), ROWS // 2
    header = index_pb2.BuildHeader(index=index, replace=True)
    header.parameters.metric = index_pb2.METRIC_EUCLIDEAN
    messages = [index_pb2.BuildRequest(header=header)]
    for start in (0, half):
        chunk = index_pb2.BuildChunk(
            ids=range(dataset * DATASET_IDS + start, dataset * DATASET_IDS + start + half)
        )
        chunk.vectors.CopyFrom(vectors_message(points[start : start + half]))
        messages.append(index_pb2.BuildRequest(chunk=chunk))
    messages.append(index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=ROWS)))
    return [message.SerializeToString() for message in messages]


def vectors_message(rows: Any) -> vectors_pb2.Vectors:  # noqa: ANN401  # an array
    """Return rows (n, 64) float32 as a message."""
    dense = vectors_pb2.DenseMatrix(rows=len(rows), cols=DIMS, data=rows.tobytes())
    return vectors_pb2.Vectors(dense=dense)


def query_of(rows: Any, index: str = "points") -> bytes:  # noqa: ANN401  # an array
    """Return a QueryRequest for rows (n, 64) float32."""
    return query_pb2.QueryRequest(
        index=index, queries=vectors_message(rows), k=5
    ).SerializeToString()


@cache
def good_request(kind: Kind, number: int) -> Request:
    """Return one of 24 requests of a kind that has an answer."""
    rng = np.random.default_rng([number % _GOOD, len(kind)])
    if kind == "get":
        ids = [dataset * DATASET_IDS + int(rng.integers(ROWS)) for dataset in range(DATASETS)]
        ids += rng.choice(range(2, ROWS + 20), 5, replace=False).tolist()
        ids = sorted(set(ids))
        return Request(
            kind,
            Op.GET,
            points_pb2.GetRequest(
                index="points", ids=ids, parts=points_pb2.Parts(vectors=True)
            ).SerializeToString(),
        )
    rows = {"query": 1, "batch": int(rng.integers(*_BATCH_ROWS)), "large": _LARGE_ROWS}[kind]
    return Request(kind, Op.QUERY, query_of(rng.standard_normal((rows, DIMS), np.float32)))


def bad_request(kind: Kind, number: int) -> Request:
    """Return a request that has no answer: `number` makes it different from others."""
    # Some have slices before the one that ends the worker.
    rows = np.full((20 if number % 3 == 0 else 1, DIMS), number, np.float32)
    if kind == "malformed":
        return Request(kind, Op.QUERY, b"\xff" * (number % 9 + 1))
    if kind == "unknown":
        return Request(kind, Op.QUERY, query_of(rows, "elsewhere"))
    if kind == "fatal":
        return Request(kind, Op.QUERY, query_of(rows, FATAL_INDEX))
    rows[-1, 0] = POISON if kind == "poison" else HANG
    return Request(kind, Op.QUERY, query_of(rows))


def in_stream(request: Request, correlation_id: int, limit_ms: int | None) -> bytes:
    """Return the message of a QueryStream that has the query of a request."""
    message = query_pb2.QueryStreamRequest(correlation_id=correlation_id)
    if request.kind == "malformed":
        return b"\xff"
    message.query.ParseFromString(request.payload)
    if limit_ms is not None:
        message.time_limit_ms = limit_ms
    return message.SerializeToString()


class Answers:
    """The answers of the core to requests, for the indexes in a folder of templates."""

    def __init__(self, templates: Path) -> None:
        self._templates = templates
        self._engines: dict[int, Engine] = {}
        self._answers: dict[tuple[int, Request], bytes] = {}

    def answer(self, dataset: int, request: Request) -> bytes:
        """Return the answer of an index of a data set, without its generation."""
        key = dataset, request
        if key not in self._answers:
            if dataset not in self._engines:
                self._engines[dataset] = open_engine(self._templates / str(dataset))
            self._answers[key] = _answer(self._engines[dataset], request)
        return self._answers[key]


def _answer(engine: Engine, request: Request) -> bytes:
    if request.op in READS:
        kind, read = READS[request.op]
        return without_generation(
            request, read(engine, kind.FromString(request.payload)).SerializeToString()
        )[1]
    query = requests.parse_query(query_pb2.QueryRequest.FromString(request.payload))
    assert query.queries is not None
    result = engine.answer(query.queries, query.over(engine.defaults.query))
    return without_generation(request, results.pack_result(result))[1]


def without_generation(request: Request, answer: bytes) -> tuple[int, bytes]:
    """Return the generation that an answer names, and the answer without it."""
    kind: Any = points_pb2.GetResponse if request.op == Op.GET else query_pb2.QueryResponse
    response = kind.FromString(answer)
    generation = response.generation
    response.generation = 0
    return generation, response.SerializeToString()
