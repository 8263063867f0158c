"""Calls of a history test: random writes and reads of one index, and the checks of all answers.

A load makes calls in several threads, each with a `Caller`. Afterwards, `check_history` computes
each answer again from the acknowledged writes, and compares the bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import grpc
import numpy as np

from divgrpc.types import QueryResult, WriteResult
from divgrpc.types.filters import Field, Filter
from divgrpc.types.records import Records
from divgrpc_client import Client
from divgrpc_client.messages.filters import filter_fields
from divgrpc_protos.v1 import points_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from reference.kernels import fixed_order_distance
from support.data.write_history import History, Test, Version, Write
from support.data.written_points import (
    DIMS,
    TYPES,
    Model,
    Point,
    check_records,
    columns_of,
    drawn_points,
    fresh,
    passing,
    same_answers,
)

IDS: Final = 60
POINTS = drawn_points(600, 3)
OLD: Model = dict(enumerate(POINTS[: IDS // 2]))
QUERIES = np.random.default_rng(4).normal(size=(2, DIMS)).astype(np.float32)
# The worker answers so many rows in several slices, and other calls between them.
REPEATED: Final = 3_000
MANY = np.repeat(QUERIES, REPEATED, axis=0)
TESTS: list[Test | None] = [
    None,
    (Field("colour") == "red", lambda point: point.colour == "red"),
    (Field("size") < 6, lambda point: point.size is not None and point.size < 6),
    (Field("tags") == "z", lambda point: "z" in point.tags),
]
# Few points pass, so that a deletion leaves enough of them.
FEW: Test = (
    Filter(must=(Field("size") == 3, Field("colour") == "blue")),
    lambda point: point.size == 3 and point.colour == "blue",
)
ALL: Any = {"k": IDS + 1, "keep_duplicates": True, "hash_limit": 0, "diversity": 0}
QUERY_OPTIONS: list[Any] = [
    {"k": 5, "search": "exact", "keep_duplicates": True, "selector": "nearest"},
    ALL | {"search": "scan"},
    ALL | {"search": "tables"},
]
# gRPC takes the minimum as the time limit of a connection attempt. A busy server needs more than
# the pause between two attempts to accept one.
_RECONNECT_SOON: Final = [
    *(("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 5_000)),
    *(("grpc.max_reconnect_backoff_ms", 100), ("grpc.use_local_subchannel_pool", 1)),
]
# The answers take long to check, so few are asked for.
GREEDY: Any = QUERY_OPTIONS[0] | {"selector": "greedy", "diversity": 0.4}


class Caller:
    """A thread: its connections to the server, its answers, and the history of all threads."""

    def __init__(
        self, target: str, history: History, name: str, seed: int, *, retries: bool = True
    ) -> None:
        self.history, self.name, self.seed = history, name, seed
        self.rng = np.random.default_rng(seed)
        self.client = Client(target, timeout=60, retries=retries, options=_RECONNECT_SOON)
        self._channel = grpc.insecure_channel(target, _RECONNECT_SOON)
        self.stub = DiverseIndexStub(self._channel)
        self.reads: list[Read] = []

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self._channel.close()

    def reconnect(self) -> None:
        """Wait until both connections are to a server that is ready."""
        self.client.wait_until_ready(timeout=60)
        grpc.channel_ready_future(self._channel).result(60)


@dataclass(frozen=True)
class Read:
    """An answer: its version, and a function that compares it with the points at this version."""

    kind: str
    version: Version
    check: Callable[[Model], None]


# Writes.


def random_write(caller: Caller) -> Write:
    rng = caller.rng
    names = rng.choice(IDS, 1 + rng.integers(4), replace=False).tolist()
    points: Model = {name: POINTS[rng.integers(len(POINTS))] for name in names}
    latest = caller.history.latest.sequence
    ways: list[tuple[float, Callable[[], Write]]] = [
        (0.4, lambda: Write("points", points)),
        (0.1, lambda: Write("points", points, mode="insert_only")),
        (0.1, lambda: Write("points", points, mode="update_only")),
        (0.1, lambda: Write("points", points, if_sequence=latest)),
        (0.1, lambda: Write("payloads", points)),
        (0.15, lambda: Write("deletion", {}, ids=tuple(names))),
        (0.05, lambda: Write("deletion", {}, test=FEW)),
    ]
    place = rng.choice(len(ways), p=[share for share, _ in ways])
    return ways[place][1]()


def send(caller: Caller, write: Write, write_id: str) -> WriteResult:
    options: Any = {"if_sequence": write.if_sequence, "write_id": write_id}
    client, name = caller.client, caller.name
    if write.kind == "deletion":
        condition = None if write.test is None else write.test[0]
        return client.delete(name, list(write.ids) or None, filter=condition, write_id=write_id)
    columns = columns_of([*write.points.values()])
    if write.kind == "payloads":
        columns = {"payloads": columns["payloads"]}
    else:
        columns["attribute_types"] = TYPES
    return client.upsert(name, list(write.points), mode=write.mode, **columns, **options)


# Reads.


def record(caller: Caller, floor: Version, read: Read) -> None:
    caller.history.see(floor, read.version)
    caller.reads.append(read)


def random_test(caller: Caller) -> tuple[Any, Callable[[Model], Model]]:
    """Return a condition, and a function that returns the points of a model that pass it."""
    test = TESTS[caller.rng.integers(len(TESTS))]
    if test is None:
        return None, lambda model: model
    return test[0], lambda model: passing(model, test[1])


def query(caller: Caller) -> None:
    condition, part = random_test(caller)
    options = QUERY_OPTIONS[caller.rng.integers(len(QUERY_OPTIONS))]
    if caller.rng.random() < 0.06:
        options = GREEDY
    floor = caller.history.latest
    result = caller.client.query(
        caller.name, QUERIES, filter=condition, min_sequence=floor.sequence, **options
    )
    version = Version(result.generation, result.sequence)

    def check(model: Model) -> None:
        check_query(result, part(model), options)

    record(caller, floor, Read("query", version, check))


def query_much(caller: Caller) -> None:
    floor = caller.history.latest
    # Few results of each row, so that the answer is one message.
    options: Any = QUERY_OPTIONS[caller.rng.choice([0, 2])] | {"k": 5}
    result = caller.client.query(caller.name, MANY, **options)
    version = Version(result.generation, result.sequence)

    def check(model: Model) -> None:
        check_query(result, model, options, REPEATED)
        for row in range(0, len(MANY), REPEATED):
            for column in (result.ids, result.scores, result.counts):
                rows = column[row : row + REPEATED]
                assert rows.tobytes() == rows[:1].tobytes() * REPEATED

    record(caller, floor, Read("query of many rows", version, check))


def get(caller: Caller) -> None:
    names = caller.rng.permutation(IDS)[:20].tolist()
    floor = caller.history.latest
    records = caller.client.get(caller.name, names, with_vectors=True)
    version = Version(records.generation, records.sequence)

    def check(model: Model) -> None:
        check_page(records, {name: model[name] for name in names if name in model})

    record(caller, floor, Read("get", version, check))


def count(caller: Caller) -> None:
    condition, part = random_test(caller)
    floor = caller.history.latest
    request = points_pb2.CountRequest(index=caller.name, **filter_fields(condition))
    response = caller.stub.Count(request, timeout=60)

    def check(model: Model) -> None:
        assert response.count == len(part(model))

    version = Version(response.generation, response.sequence)
    record(caller, floor, Read("count", version, check))


def scroll(caller: Caller) -> None:
    condition, part = random_test(caller)
    size, last, floor = 7, -1, caller.history.latest
    for page in caller.client.scroll(caller.name, condition, with_vectors=True, page_size=size):

        def check(model: Model, page: Records = page, last: int = last) -> None:
            names = sorted(name for name in part(model) if name > last)
            check_page(page, {name: model[name] for name in names[:size]})

        version = Version(page.generation, page.sequence)
        record(caller, floor, Read("scroll", version, check))
        last, floor = int(page.ids[-1]) if len(page) else last, caller.history.latest


READS = [query, query, query, query_much, get, count, scroll]


# Checks.


@cache
def distances(point: Point) -> list[np.float32]:
    """Return the distance of a point to each query."""
    vector = np.array(point.vector, np.float32)
    return [fixed_order_distance(vector, query) for query in QUERIES]


def nearest(model: Model) -> list[list[tuple[np.float32, int]]]:
    """Return the distances and ids of all points, the nearest to each query first."""
    return [
        sorted((distances(point)[row], name) for name, point in model.items())
        for row in range(len(QUERIES))
    ]


def check_row(result: QueryResult, row: int, expected: list[tuple[np.float32, int]]) -> None:
    size = int(result.counts[row])
    assert result.ids[row, :size].tolist() == [name for _, name in expected]
    scores = np.array([score for score, _ in expected], np.float32)
    assert result.scores[row, :size].tobytes() == scores.tobytes()


def check_query(result: QueryResult, model: Model, options: Any, repeated: int = 1) -> None:  # noqa: ANN401  # of a query
    """Check the first of the rows that are the same query."""
    if options.get("selector") == "greedy":
        if model:
            assert same_answers(result, fresh(model, "euclidean").query(QUERIES, **options))
        return
    for number, expected in enumerate(nearest(model)):
        row, rest = number * repeated, expected[: options["k"]]
        if options["search"] == "tables":
            # Cells and buckets may miss points, but they show no other ones.
            ids = result.ids[row, : result.counts[row]].tolist()
            rest = [item for item in expected if item[1] in ids]
            assert bool(rest) == bool(expected)
        check_row(result, row, rest)


def check_page(page: Records, model: Model) -> None:
    assert page.ids.tolist() == list(model)
    check_records(page, model)
    vectors = np.array([point.vector for point in model.values()], np.float32)
    assert np.asarray(page.vectors).tobytes() == vectors.tobytes()


def check_history(history: History, reads: list[Read]) -> None:
    history.check_writes()
    for read in reads:
        history.check_version(read.version)
        try:
            read.check(history.at(read.version.sequence))
        except AssertionError as error:
            raise AssertionError(f"{read.kind} at {read.version}: {error}") from error
