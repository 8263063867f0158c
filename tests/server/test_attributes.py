"""AddAttributes: the same as in process, without a pause of queries."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import Field, Index
from divgrpc.collection import Collection
from divgrpc.errors import (
    IndexNotFoundError,
    InvalidArgumentError,
    StorageInUseError,
)
from divgrpc.types import Progress, QueryDefault
from divgrpc_client import Client, RpcError
from divgrpc_protos.v1 import attributes_pb2, index_pb2, points_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.refusals import failing
from support.checks.status_details import failure
from support.data.served_index import place
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer, eventually, index_folders

ROWS, DIMS = 600, 12
VECTORS = np.random.default_rng(8).normal(size=(ROWS, DIMS)).astype(np.float32)
NAMES = [f"point {row} \N{SNOWMAN}" for row in range(ROWS)]
NEW: dict[str, Any] = {
    "season": [None if row % 4 == 0 else f"s{row % 7}" for row in range(ROWS)],
    "count": [row if row % 5 else None for row in range(ROWS)],
    "price": np.where(np.arange(ROWS) % 6, np.arange(ROWS) / 8, np.nan),
    "sold": [row % 2 == 0 for row in range(ROWS)],
    "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
}
BUILDS: dict[str, dict[str, Any]] = {
    "texts": {"points": VECTORS, "ids": NAMES, "attributes": {"brand": NAMES}},
    "numbers": {"points": VECTORS, "ids": np.arange(ROWS) * 3},
    "rows": {"points": VECTORS, "metric": "euclidean"},
    "sparse": {"points": sparse.csr_array(VECTORS * (np.abs(VECTORS) > 0.4)), "ids": NAMES},
    "labels": {"points": VECTORS, "labels": np.eye(5)[np.arange(ROWS) % 5]},
}
QUERY: dict[str, Any] = {"k": 5, "with_attributes": True}


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.mark.parametrize("kind", BUILDS)
def test_attributes_equal_those_added_in_process(
    ask: Stack, kind: str, server: RunningServer
) -> None:
    name, build = f"extended-{kind}-{ask.is_async:d}", BUILDS[kind]
    place(server, name, **build)
    expected = Index.build(build["points"], **{n: v for n, v in build.items() if n != "points"})
    expected = expected.add_attributes(NEW)
    info = ask("add_attributes", name, NEW)
    assert (info.generation, info.rows) == (2, ROWS)
    assert info.attributes == expected.info.attributes
    for options in ({}, {"filter": Field("tags") == "y"}, {"filter": Field("count") > 200}):
        result = ask("query", name, VECTORS[:20], **QUERY, **options)
        whole = expected.query(VECTORS[:20], **QUERY, **options)
        assert result.ids.tolist() == whole.ids.tolist()
        assert result.attributes == whole.attributes
        assert result.generation == 2
    if kind == "labels":
        labels, whole_labels = (
            ask("predict_labels", name, VECTORS[:5], mode="neighbour_vote").labels,
            expected.predict_labels(VECTORS[:5], mode="neighbour_vote").labels,
        )
        assert labels.tolist() == whole_labels.tolist()


def test_values_may_come_with_ids(ask: Stack, server: RunningServer) -> None:
    for kind, ids in (("texts", NAMES), ("numbers", (np.arange(ROWS) * 3).tolist())):
        place(server, "by-ids", **BUILDS[kind])
        rows = [500, 3, 77]
        values = {name: [column[row] for row in rows] for name, column in NEW.items()}
        ask("add_attributes", "by-ids", values, ids=[ids[row] for row in rows])
        records = ask("get", "by-ids", [ids[500], ids[4]])
        expected = {n: tuple(v[500]) if n == "tags" else v[500] for n, v in NEW.items()}
        first, second = ({n: r.attributes[n] for n in NEW} for r in records)
        assert first == expected
        assert second == dict.fromkeys(NEW) | {"tags": ()}
        ask("add_attributes", "by-ids", {"one": [7]}, ids=ids[9], attribute_types={"one": "float"})
        assert ask("count", "by-ids", Field("one") == 7.0) == 1


def test_many_values_come_in_several_chunks(client: Client, server: RunningServer) -> None:
    words = [[f"{row}-{number}" * 20 for number in range(row % 9)] for row in range(ROWS)]
    place(server, "in-chunks", VECTORS, ids=NAMES)
    reports: list[Progress] = []
    order = np.random.default_rng(2).permutation(ROWS).tolist()
    client.add_attributes(
        "in-chunks",
        {"words": [words[row] * 10 for row in order]},
        ids=[NAMES[row] for row in order],
        progress=reports.append,
    )
    stored = client.get("in-chunks", NAMES).attributes["words"]
    assert stored == tuple(tuple(row * 10) for row in words)
    stages = list(dict.fromkeys(report.stage for report in reports))
    assert stages == ["receiving", "ordering", "sorting", "writing"]
    receiving = [report for report in reports if report.stage == "receiving"]
    assert receiving[0].rows_done < receiving[0].rows_total == ROWS


def test_queries_continue_and_keep_their_default(server: RunningServer) -> None:
    """No query fails or waits for long, and every worker keeps the default of the index."""
    index = place(server, "extended", VECTORS)
    index.set_default(QueryDefault(0.25, "mmr", "marginal", "exact"))
    stop = threading.Event()

    def watch(client: Client) -> list[tuple[int, str]]:
        answers: list[tuple[int, str]] = []
        while not stop.is_set():
            result = client.query("extended", VECTORS[0])
            answers.append((result.generation, result.parameters.selector))
        return answers

    with (
        Client(server.target, timeout=30, retries=False) as client,
        ThreadPoolExecutor(3) as threads,
    ):
        futures = [threads.submit(watch, client) for _ in range(3)]
        try:
            for number in (2, 3, 4):
                info = client.add_attributes("extended", {f"a{number}": NEW["season"]})
                assert info.generation == number
                assert info.query_default == index.default
                for _ in range(6):
                    result = client.query(
                        "extended", VECTORS[0], filter=Field(f"a{number}") == "s1"
                    )
                    assert (result.generation, result.parameters.selector) == (number, "mmr")
        finally:
            stop.set()
        for future in futures:
            generations = [generation for generation, _ in future.result()]
            assert generations == sorted(generations)
            assert {selector for _, selector in future.result()} == {"mmr"}
    assert sorted(os.listdir(server.folder / "data" / "extended")) == [
        "4",
        "4.default.json",
        "CURRENT",
    ]


def header(name: str, **fields: Any) -> attributes_pb2.AddAttributesRequest:  # noqa: ANN401  # a message's types
    declared = [points_pb2.Attribute(name="a", type=points_pb2.ATTRIBUTE_TYPE_INTEGER)]
    head = attributes_pb2.AddAttributesHeader(index=name, declarations=declared)
    head.MergeFrom(attributes_pb2.AddAttributesHeader(**fields))
    return attributes_pb2.AddAttributesRequest(header=head)


def chunk(values: list[int], name: str = "a", **fields: Any) -> attributes_pb2.AddAttributesRequest:  # noqa: ANN401  # as above
    column = points_pb2.AttributeColumn(name=name, integers=values)
    part = attributes_pb2.AddAttributesChunk(attributes=[column], **fields)
    return attributes_pb2.AddAttributesRequest(chunk=part)


def commit(rows: int) -> attributes_pb2.AddAttributesRequest:
    return attributes_pb2.AddAttributesRequest(commit=index_pb2.BuildCommit(rows=rows))


@pytest.fixture(scope="module")
def small(server: RunningServer) -> str:
    """Build an index of three points that no test changes."""
    place(server, "small", VECTORS[:3], ids=["x", "y", "z"], attributes={"b": [1, 2, 3]})
    place(server, "small-numbers", VECTORS[:3])
    return "small"


EMPTY = attributes_pb2.AddAttributesRequest()
BOOL = points_pb2.ATTRIBUTE_TYPE_BOOL
BOTH: dict[str, Any] = {"ids": [1], "string_ids": ["x"]}
Steps = list[attributes_pb2.AddAttributesRequest]


@pytest.mark.parametrize(
    ("steps", "field", "words"),
    [
        ([], "header", "must be a header"),
        ([commit(0)], "header", "must be a header"),
        ([header("NO NAME")], "index", "1 to 63"),
        ([header("small", declarations=[points_pb2.Attribute(name="c")])], "declarations", "type"),
        ([header("small", declarations=header("").header.declarations)], "declarations", "twice"),
        ([attributes_pb2.AddAttributesRequest(
            header=attributes_pb2.AddAttributesHeader(index="small"))], "attributes", "at least"),
        ([header("small", declarations=[points_pb2.Attribute(name="b", type=BOOL)])],
         "attributes.b", "exists in this index"),
        ([header("small"), header("small")], "header", "got a second"),
        ([header("small"), EMPTY], "step", "one of header, chunk and commit"),
        ([header("small"), chunk([1, 2, 3])], "commit", "must end with a commit"),
        ([header("small"), chunk([1, 2, 3]), commit(2)], "commit.rows", "the 3 rows sent, got 2"),
        ([header("small", expected_rows=4), chunk([1, 2, 3]), commit(3)],
         "header.expected_rows", "was 4, and 3 rows came"),
        ([header("small"), chunk([1, 2]), commit(2)], "attributes", "each of the 3 points"),
        ([header("small"), chunk([1, 2, 3, 4])], "attributes", "each of the 3 points"),
        ([header("small"), commit(0)], "attributes", "at least one point"),
        ([header("small"), chunk([1], name="c")], "attributes", "declares a"),
        ([header("small"), chunk([1, 2], string_ids=["x"])], "attributes.a", "per row, 1, got 2"),
        ([header("small"), chunk([1], **BOTH)], "string_ids", "not come together"),
        ([header("small"), chunk([1], ids=[1])], "ids", "must be texts"),
        ([header("small-numbers"), chunk([1], string_ids=["x"])], "ids", "must be integers"),
        ([header("small"), chunk([1], string_ids=["w"])], "ids", "has 'w', which is no id"),
        ([header("small"), *[chunk([1], string_ids=["x"])] * 2], "ids", "'x' occurs twice"),
        ([header("small"), chunk([1], string_ids=["x"]), chunk([1])], "ids", "with every row"),
        ([header("small"), chunk([1, 2, 3]), commit(3), commit(3)], "step", "follow the commit"),
    ],
)  # fmt: skip
def test_wrong_uploads_are_refused(
    stub: DiverseIndexStub, small: str, steps: Steps, field: str, words: str
) -> None:
    details = failure(lambda: list(stub.AddAttributes(iter(steps), timeout=60)))
    assert (details.code, details.fields) == (grpc.StatusCode.INVALID_ARGUMENT, (field,))
    assert words in details.message
    description = stub.GetIndex(index_pb2.GetIndexRequest(index=small), timeout=30).index
    assert description.generation == 1


def test_an_empty_chunk_changes_nothing(stub: DiverseIndexStub, server: RunningServer) -> None:
    place(server, "with-empty", VECTORS[:3], ids=["x", "y", "z"])
    empty = attributes_pb2.AddAttributesRequest(chunk=attributes_pb2.AddAttributesChunk())
    steps = [header("with-empty"), empty, chunk([5], string_ids=["y"]), empty, commit(1)]
    *_, last = stub.AddAttributes(iter(steps), timeout=60)
    assert last.done.generation == 2


@pytest.mark.parametrize(
    ("arguments", "options", "field"),
    [
        (({},), {}, "attributes"),
        (({"a b": [1]},), {}, "attributes"),
        (([1],), {}, "attributes"),
        ((3,), {}, "attributes"),
        (({"a": 5},), {}, "attributes.a"),
        (({"a": [1, 2], "c": [1]},), {}, "attributes.c"),
        (({"a": [1, 2]},), {"ids": ["x"]}, "attributes.a"),
        (({"a": [1]},), {"ids": [""]}, "ids"),
        (({"a": []},), {"ids": []}, "ids"),
        (({"a": [1]},), {"attribute_types": {"a": "number"}}, "attribute_types"),
        (({"a": ["x" * 1_025]},), {}, "attributes.a"),
    ],
)
def test_wrong_arguments_are_refused_by_the_client(
    ask: Stack, small: str, arguments: tuple[Any, ...], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as error_info:
        ask("add_attributes", small, *arguments, **options)
    assert error_info.value.field == field
    assert not isinstance(error_info.value, RpcError)


def test_an_index_that_cannot_be_extended(client: Client, server: RunningServer) -> None:
    one = partial(client.add_attributes, attributes={"a": [1]}, ids=1)
    with failing(grpc.StatusCode.NOT_FOUND, IndexNotFoundError):
        one("nowhere")
    place(server, "written", VECTORS)
    with Collection.open(server.folder / "data" / "written") as collection:
        with failing(grpc.StatusCode.FAILED_PRECONDITION, StorageInUseError):
            one("written")
        collection.upsert([1], VECTORS[:1])
        with failing(grpc.StatusCode.FAILED_PRECONDITION, StorageInUseError):
            one("written")
    assert one("written").generation == 2
    assert client.query("written", VECTORS[0]).generation == 2
    with failing(grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError, field="ids"):
        client.add_attributes("written", {"b": [1] * ROWS})


def test_points_with_added_attributes_can_be_written(client: Client, server: RunningServer) -> None:
    place(server, "written-later", VECTORS)
    assert not client.compact("written-later")
    client.add_attributes("written-later", {"year": np.arange(ROWS)})
    client.upsert("written-later", [7, 9_000], VECTORS[:2], attributes={"year": [1, 2]})
    assert client.get("written-later", [7, 8, 9_000]).attributes == {"year": (1, 8, 2)}
    assert client.count("written-later", Field("year") == 2) == 2
    info = client.add_attributes("written-later", {"more": [1]}, ids=9_000)
    assert info == client.get_index("written-later")
    assert (info.generation, info.rows) == (3, ROWS + 1)
    client.upsert("written-later", [8], attributes={"more": [5]})
    expected = {"year": (8, 2), "more": (5, 1)}
    assert client.get("written-later", [8, 9_000]).attributes == expected


class Open:
    """A call that the server has accepted, and which stays open until its test ends it."""

    def __init__(self, stub: DiverseIndexStub, name: str, **fields: Any) -> None:  # noqa: ANN401  # as above
        self._end = threading.Event()
        self.call = stub.AddAttributes(self._steps(name, fields))
        assert next(self.call).HasField("accepted")

    def _steps(
        self, name: str, fields: dict[str, Any]
    ) -> Iterator[attributes_pb2.AddAttributesRequest]:
        yield header(name)
        yield chunk([1], **fields)
        self._end.wait(60)
        yield commit(1)

    def end(self) -> None:
        """End the upload."""
        self._end.set()


def cancelled(call: Open, _: RunningServer) -> None:
    call.call.cancel()


def killed(call: Open, server: RunningServer) -> None:
    server.kill("builder")
    assert failure(list, call.call).code == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("end", [cancelled, killed])
def test_a_call_that_ends_early_leaves_the_index(
    stub: DiverseIndexStub,
    client: Client,
    server: RunningServer,
    end: Callable[[Open, RunningServer], None],
) -> None:
    place(server, "abandoned", VECTORS)
    before = client.query("abandoned", VECTORS[0])
    call = Open(stub, "abandoned")
    try:
        with failing(grpc.StatusCode.ABORTED, reason="BUILD_UNDER_WAY"):
            client.add_attributes("abandoned", {"b": [1]}, ids=1)
        end(call, server)
    finally:
        call.end()
    eventually(lambda: [p.name for p in index_folders(server, "abandoned")] == ["abandoned"])
    after = client.query("abandoned", VECTORS[0])
    assert after.generation == before.generation
    assert after.ids.tolist() == before.ids.tolist()
    info = client.add_attributes("abandoned", {"b": [1]}, ids=1)
    assert info.generation == before.generation + 1


def killed_writer(call: Open, server: RunningServer) -> None:
    server.kill("writer")
    assert failure(list, call.call).code == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("end", [cancelled, killed_writer])
def test_a_call_for_a_written_index_may_end_early(
    stub: DiverseIndexStub,
    client: Client,
    server: RunningServer,
    end: Callable[[Open, RunningServer], None],
) -> None:
    name = f"left-{end.__name__}"
    place(server, name, VECTORS)
    client.upsert(name, [5], VECTORS[:1])
    call = Open(stub, name, ids=[5])
    try:
        with failing(grpc.StatusCode.ABORTED, reason="BUILD_UNDER_WAY"):
            client.add_attributes(name, {"b": [1]}, ids=1)
        with failing(grpc.StatusCode.ABORTED, reason="BUILD_UNDER_WAY"):
            client.compact(name, vacuum=True)
        client.upsert(name, [6], VECTORS[:1])
        end(call, server)
    finally:
        call.end()
    eventually(lambda: [p.name for p in index_folders(server, name)] == [name])
    info = client.get_index(name)
    assert (info.generation, info.writes and info.writes.sequence) == (1, 2)
    assert client.add_attributes(name, {"b": [1]}, ids=1).generation == 2
    assert client.upsert(name, [6], VECTORS[1:2], attributes={"b": [7]}).sequence == 3
    assert client.get(name, [1, 5, 6]).attributes == {"b": (1, None, 7)}


def test_points_that_are_written_meanwhile_have_their_values(
    stub: DiverseIndexStub, client: Client, server: RunningServer
) -> None:
    place(server, "meanwhile", VECTORS)
    client.upsert("meanwhile", [5], VECTORS[:1])
    call = Open(stub, "meanwhile", ids=[5])
    try:
        client.upsert("meanwhile", [5, 6], VECTORS[:2])
        assert client.query("meanwhile", VECTORS[1], k=1).sequence == 2
    finally:
        call.end()
    *_, last = call.call
    assert (last.done.generation, last.done.writes.sequence) == (2, 2)
    assert client.get("meanwhile", [5, 6]).attributes == {"a": (1, None)}


def test_the_callers_progress_may_stop_a_call(client: Client, server: RunningServer) -> None:
    place(server, "stopped", VECTORS)

    def stop(_: Progress) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        client.add_attributes("stopped", NEW, progress=stop)
    eventually(lambda: [p.name for p in index_folders(server, "stopped")] == ["stopped"])
    assert client.get_index("stopped").generation == 1
