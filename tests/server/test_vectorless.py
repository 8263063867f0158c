"""Points without a vector over the wire: the same as in process."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import Collection, Field, Index
from divgrpc.errors import InvalidArgumentError
from divgrpc_client import Client, Upsert
from divgrpc_protos.arrays import encode
from divgrpc_protos.v1 import index_pb2, points_pb2, writes_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.refusals import failing
from support.checks.status_details import failure
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, DIMS = 300, 8
MATRIX = np.random.default_rng(5).normal(size=(ROWS, DIMS)).astype(np.float32)
# Every fourth point has no vector.
VECTORS: list[Any] = [None if row % 4 == 1 else MATRIX[row] for row in range(ROWS)]
ABSENT = list(range(1, ROWS, 4))
NAMES = [f"p{row}" for row in range(ROWS)]
COLUMNS: dict[str, Any] = {"attributes": {"row": list(range(ROWS))}, "payloads": NAMES}


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.mark.parametrize("kind", ["integers", "texts", "rows"])
def test_points_are_those_of_an_index_in_process(ask: Stack, kind: str, tmp_path: Path) -> None:
    ids: Any = {"integers": [7 * row for row in range(ROWS)], "texts": NAMES, "rows": None}[kind]
    name = f"vectorless-{kind}-{ask.is_async:d}"
    build: dict[str, Any] = {"ids": ids, "vectors_optional": True, "replace": True, **COLUMNS}
    info = ask("build", name, VECTORS, **build)
    index = Index.build(VECTORS, path=tmp_path / "points", **build)
    assert (info.rows, info.rows_without_vector) == (ROWS, len(ABSENT))
    assert info.parameters["vectors_optional"] is True
    assert ask("get_index", name) == info
    some = (ids or list(range(ROWS)))[:9]
    records, expected = (
        ask("get", name, some, with_vectors=True),
        index.get(some, with_vectors=True),
    )
    for record, stored in zip(records, expected, strict=True):
        assert (record.id, record.attributes, record.payload) == tuple(
            getattr(stored, field) for field in ("id", "attributes", "payload")
        )
        np.testing.assert_array_equal(record.vector, stored.vector)
    assert records.has_vector.tolist() == [row % 4 != 1 for row in range(9)]
    condition = Field("row") < 50
    assert ask("count", name) == ROWS
    assert ask("count", name, condition) == 50
    for options in ({}, {"filter": condition}, {"search": "scan"}, {"like": some[:1]}):
        queries = () if "like" in options else (MATRIX[:4],)
        result, truth = (
            ask("query", name, *queries, k=9, **options),
            index.query(*queries, k=9, **options),
        )
        assert result.ids.tolist() == truth.ids.tolist()
        assert result.points_passing == truth.points_passing


def test_writes(ask: Stack) -> None:
    name = f"vectorless-written-{ask.is_async:d}"
    ask("build", name, VECTORS, ids=NAMES, vectors_optional=True, replace=True, **COLUMNS)
    ask("upsert", name, ["p0", "p1", "new"], [None, MATRIX[1], None])
    ask("upsert", name, ["p2", "newer"], attributes={"row": [5, 6]})
    records = ask("get", name, ["p0", "p1", "new", "p2", "newer"], with_vectors=True)
    assert records.has_vector.tolist() == [False, True, False, True, False]
    assert records.attributes["row"] == (None, None, None, 5, 6)
    ask("upsert_records", name, [{"id": "r0"}, {"id": "r1", "vector": MATRIX[7], "row": 3}])
    if not ask.is_async:
        ask("write_stream", name, [Upsert(["s0", "s1"], [MATRIX[3], None])])
        assert ask("get", name, ["s0", "s1"], with_vectors=True).has_vector.tolist() == [1, 0]
    info = ask("get_index", name)
    assert info.rows_without_vector == len(ABSENT) + 1 - 1 + 2 + 1 + (not ask.is_async)
    assert ask("query", name, MATRIX[7], k=2).ids[0].tolist()[:1] in (["p7"], ["r1"])
    with failing(grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError, field="like"):
        ask("query", name, like=["p0"])
    assert ask("compact", name, vacuum=True)
    assert ask("retrain", name)
    assert ask("get_index", name).rows_without_vector == info.rows_without_vector


LABELS = np.random.default_rng(6).random((ROWS, 5)) < 0.3
TOPICS: dict[str, Any] = {"categories": [row % 3 for row in range(ROWS)]}
SPARSE = sparse.csr_array(MATRIX * (np.abs(MATRIX) > 0.7) + np.eye(1, DIMS))
SPARSE_ROWS: list[Any] = [None if row % 4 == 1 else SPARSE[[row]] for row in range(ROWS)]


def test_sparse_points_with_labels(ask: Stack, tmp_path: Path) -> None:
    """Records, votes, evaluations and counts are those of an index in process."""
    name = f"vectorless-sparse-{ask.is_async:d}"
    build: dict[str, Any] = {"ids": NAMES, "vectors_optional": True, "labels": LABELS, **TOPICS}
    info = ask("build", name, SPARSE_ROWS, replace=True, **build)
    with Collection.build(SPARSE_ROWS, path=tmp_path / "points", **build) as index:
        assert (info.points, info.rows_without_vector) == ("sparse", len(ABSENT))
        check_sparse(ask, name, index, NAMES[:9])
        changed: tuple[Any, ...] = (["p0", "p1", "new"], [None, SPARSE[[1]], None])
        labels = index.get(["p2", "p3", "p4"], with_labels=True).labels
        index.upsert(*changed, labels=labels)
        ask("upsert", name, *changed, labels=labels)
        check_sparse(ask, name, index, ["p0", "p1", "p2", "new"])
        index.upsert(["p1", "newer"], categories=[2, 1])
        ask("upsert", name, ["p1", "newer"], categories=[2, 1])
        record = ask("get", name, ["newer"], with_vectors=True, with_labels=True)[0]
        assert (record.vector, record.labels, record.category) == (None, (), 1)
        for step in ("compact", "retrain"):
            assert ask(step, name)
            getattr(index, step)()
            check_sparse(ask, name, index, ["p0", "p1", "p2", "new", "newer"])
        assert ask("get_index", name).rows_without_vector == index.info.rows_without_vector


def check_sparse(ask: Stack, name: str, index: Index, ids: list[str]) -> None:
    options: Any = {"with_vectors": True, "with_labels": True}
    records, expected = ask("get", name, ids, **options), index.get(ids, **options)
    assert records.has_vector.tolist() == expected.has_vector.tolist()  # type: ignore[union-attr]  # some have none
    for column in ("indptr", "indices", "values"):
        assert np.array_equal(getattr(records.vectors, column), getattr(expected.vectors, column))
    for record, stored in zip(records, expected, strict=True):
        assert (record.id, record.labels, record.category) == (
            stored.id,
            stored.labels,
            stored.category,
        )
        assert (record.vector is None) == (stored.vector is None)
    queries = SPARSE[:4]
    result, truth = ask("query", name, queries, k=9), index.query(queries, k=9)
    assert result.ids.tolist() == truth.ids.tolist()
    assert result.scores.tobytes() == truth.scores.tobytes()
    votes: Any = {"mode": "neighbour_vote"}
    labels = ask("predict_labels", name, queries, **votes)
    assert labels.labels.tolist() == index.predict_labels(queries, **votes).labels.tolist()


def test_pages_have_them(client: Client) -> None:
    client.build("vectorless-pages", VECTORS, vectors_optional=True, replace=True)
    records = [
        record
        for page in client.scroll("vectorless-pages", with_vectors=True, page_size=50)
        for record in page
    ]
    assert [record.id for record in records if record.vector is None] == ABSENT


def test_many_points_come_in_several_messages(client: Client) -> None:
    words = ["x" * 10_000] * ROWS
    client.build("vectorless-chunks", VECTORS, payloads=words, vectors_optional=True, replace=True)
    assert client.get_index("vectorless-chunks").rows_without_vector == len(ABSENT)
    client.upsert("vectorless-chunks", list(range(ROWS)), VECTORS[::-1], payloads=words)
    records = client.get("vectorless-chunks", [0, 1, 2, 298, 299], with_vectors=True)
    assert records.has_vector is not None
    assert records.has_vector.tolist() == [v is not None for v in VECTORS[::-1][:3]] + [False, True]


def test_sparse_points_come_in_several_messages(client: Client) -> None:
    words = ["x" * 10_000] * ROWS
    options: dict[str, Any] = {"payloads": words, "labels": LABELS}
    name = "vectorless-sparse-chunks"
    client.build(name, SPARSE_ROWS, vectors_optional=True, replace=True, **options)
    assert client.get_index(name).rows_without_vector == len(ABSENT)
    client.upsert(name, list(range(ROWS)), SPARSE_ROWS[::-1], **options)
    records = client.get(name, [0, 1, 2, 298, 299], with_vectors=True, with_labels=True)
    assert records.has_vector is not None
    assert records.has_vector.tolist() == [v is not None for v in VECTORS[::-1][:3]] + [False, True]
    assert records[1].labels == tuple(np.flatnonzero(LABELS[1]).tolist())
    pages = client.scroll(name, with_vectors=True, page_size=50)
    absent = [record.id for page in pages for record in page if record.vector is None]
    assert absent == [ROWS - 1 - row for row in reversed(ABSENT)]


def test_records_that_are_none(ask: Stack) -> None:
    name = f"no-records-{ask.is_async:d}"
    ask("build", name, MATRIX[:4], labels=LABELS[:4], replace=True)
    before = ask("upsert", name, [1], MATRIX[:1])
    result = ask("upsert_records", name, [], labels=[], categories=[])
    assert (result.sequence, result.rows) == (before.sequence, 0)
    with pytest.raises(InvalidArgumentError, match="one row per record, 0, got 1") as fault:
        ask("upsert_records", name, [], labels=LABELS[:1])
    assert fault.value.field == "labels"


def test_without_the_option_they_are_refused(client: Client) -> None:
    refused = (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError)
    with failing(*refused, field="vectors", match="row 1 has no vector: with vectors_optional"):
        client.build("refusing", VECTORS)
    client.build("refusing", MATRIX, replace=True)
    for vectors in (None, [MATRIX[0], None]):
        with failing(*refused, field="vectors", match="built with vectors_optional"):
            client.upsert("refusing", [1, 9_000], vectors)
    with failing(*refused, field="vectors", match="at least one row"):
        no_vectors: Any = [None, None]
        client.build("empty", no_vectors, vectors_optional=True)


OPTIONAL = index_pb2.BuildParameters(vectors_optional=True)


@pytest.mark.parametrize("places", [[1, 1], [2, 1], [3], [0, 2**32 - 1]])
def test_wrong_places_are_refused(stub: DiverseIndexStub, places: list[int]) -> None:
    rows = encode(MATRIX[: max(0, 3 - len(places))])
    once = index_pb2.BuildOnceRequest(
        index="misplaced", vectors=rows, parameters=OPTIONAL, rows_without_vector=places
    )
    details = failure(stub.BuildOnce, once, timeout=30)
    assert details.fields == ("rows_without_vector",)


def test_one_message_builds_and_writes(stub: DiverseIndexStub) -> None:
    once = index_pb2.BuildOnceRequest(
        index="vectorless-once",
        vectors=encode(MATRIX[:2]),
        ids=[5, 6, 7],
        parameters=OPTIONAL,
        rows_without_vector=[1],
        replace=True,
    )
    index = stub.BuildOnce(once, timeout=60).index
    assert (index.rows, index.rows_without_vector) == (3, 1)
    write = writes_pb2.UpsertRequest(
        index="vectorless-once",
        ids=[5, 6, 8],
        vectors=encode(MATRIX[:1]),
        rows_without_vector=[0, 2],
    )
    stub.Upsert(write, timeout=60)
    parts = points_pb2.Parts(vectors=True)
    request = points_pb2.GetRequest(index="vectorless-once", ids=[5, 6, 7, 8], parts=parts)
    points = stub.Get(request, timeout=30).points
    assert list(points.rows_without_vector) == [0, 3]
    assert points.vectors.dense.rows == 2
    write.rows_without_vector[:] = [0, 3]
    details = failure(stub.Upsert, write, timeout=30)
    assert details.fields == ("rows_without_vector",)
