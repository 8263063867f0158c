"""Label sets, categories and sub-topics that are written over the wire are those in process."""

import itertools
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from divgrpc import Collection, Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.types import LabelResult
from divgrpc_client import Client, RpcError, Upsert
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import points_pb2, writes_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import failure
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import place, random_points
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer

ROWS, LATER, DIMS, LABELS = 300, 60, 8, 7
POINTS = random_points(ROWS + LATER, dims=DIMS, seed=9)
SETS = (np.random.default_rng(9).random((ROWS + LATER, LABELS)) < 0.3).astype(np.int64)
CATEGORIES = np.arange(ROWS + LATER) % 5 - 1
SUBTOPICS = np.arange(ROWS + LATER) // 5 % 3
# Half of the points that are written replace one of Build.
IDS = np.arange(LATER) + ROWS - LATER // 2
VOTES: dict[str, Any] = {"mode": "neighbour_vote", "top_k": 4}
_NUMBERS = itertools.count()


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


def annotations(rows: slice) -> dict[str, Any]:
    return {"labels": SETS[rows], "categories": CATEGORIES[rows], "subtopics": SUBTOPICS[rows]}


@pytest.fixture
def name(server: RunningServer) -> str:
    """Build an index with a label model into the server's folder."""
    name = f"annotated-{next(_NUMBERS)}"
    place(server, name, POINTS[:ROWS], label_model="leml", rank=3, **annotations(slice(ROWS)))
    return name


def twin(server: RunningServer, name: str, folder: Path) -> Collection:
    """Open a copy of an index in this process."""
    shutil.copytree(server.folder / "data" / name, folder / name)
    return Collection.open(folder / name, durability="process")


def assert_same(wire: LabelResult, core: LabelResult) -> None:
    for field in ("labels", "scores", "selection_scores", "counts"):
        assert getattr(wire, field).tobytes() == getattr(core, field).tobytes()
    assert (wire.warnings, wire.sequence) == (core.warnings, core.sequence)


def assert_same_state(client: Client, name: str, index: Index) -> None:
    """Compare stored annotations, predictions, and an evaluation by category, with the core's."""
    pages = list(client.scroll(name, with_labels=True, page_size=70))
    core_pages = list(index.scroll(with_labels=True, page_size=70))
    assert [list(page) for page in pages] == [list(page) for page in core_pages]
    for page, core_page in zip(pages, core_pages, strict=True):
        assert page.labels is not None
        assert page.labels.label_count == LABELS
        for wire, core in zip(page.labels, core_page.labels or (), strict=True):
            assert np.asarray(wire).tolist() == np.asarray(core).tolist()
            assert np.asarray(wire).dtype == np.asarray(core).dtype
        for column in ("categories", "subtopics"):
            assert getattr(page, column).tobytes() == getattr(core_page, column).tobytes()
    for options in ({}, VOTES, VOTES | {"vote": "plain", "neighbours": 3}):
        arguments: Any = options
        wire = client.predict_labels(name, POINTS[-20:], **arguments)
        assert_same(wire, index.predict_labels(POINTS[-20:], **arguments))
    grid: Any = {"selectors": ["greedy"], "diversities": [0.5], "ks": [5], "searches": ["exact"]}
    queries, categories = POINTS[1:9], CATEGORIES[1:9].clip(0)
    wire_rows = list(client.evaluate(name, queries, categories, folds=0, **grid))
    core_rows = list(evaluate(index, queries, categories, folds=0, grid=Grid(**grid)))
    assert len(wire_rows) == len(core_rows) == 1
    assert_same_rows(wire_rows, core_rows)


def test_annotations_equal_those_in_process(
    ask: Stack, client: Client, server: RunningServer, name: str, tmp_path: Path
) -> None:
    later = slice(ROWS, None)
    with twin(server, name, tmp_path) as collection:
        for upsert in (collection.upsert, partial(ask, "upsert", name)):
            upsert(IDS, POINTS[later], **annotations(later))
            upsert([3], labels=csr_array(SETS[7:8]))
            upsert([4, 5], POINTS[4:6])
            upsert([6], categories=[3])
        assert_same_state(client, name, collection)
        assert client.predict_labels(name, POINTS[:1]).warnings[0].code == "LABEL_MODEL_STALE"
        records = [{"id": 10**6 + row, "vector": POINTS[row]} for row in range(30)]
        arguments = annotations(slice(30))
        wire = ask("upsert_records", name, records, **arguments)
        assert wire == collection.upsert_records(iter(records), **arguments)
        assert ask("delete", name, [0, 1]) == collection.delete([0, 1])
        assert_same_state(client, name, collection)
        assert ask("compact", name) is collection.compact() is True
        assert_same_state(client, name, collection)
        assert ask("retrain", name) is collection.retrain() is True
        assert client.predict_labels(name, POINTS[:1]).warnings == ()
        assert_same_state(client, name, collection)
    assert_same_state(client, name, Index.open(server.folder / "data" / name))


def test_annotations_are_returned_if_asked_for(
    ask: Stack, client: Client, server: RunningServer, name: str
) -> None:
    record = ask("get", name, 7, with_labels=True)[0]
    labels = tuple(np.flatnonzero(SETS[7]).tolist())
    assert (record.labels, record.category, record.subtopic) == (labels, 1, 1)
    bare = ask("get", name, 7)
    assert bare[0][4:] == (None, None, None)
    assert bare.labels is bare.categories is bare.subtopics is None
    assert len(ask("get", name, [-5], with_labels=True)) == 0
    place(server, f"{name}-without", POINTS[:ROWS])
    assert client.get(f"{name}-without", 7, with_labels=True)[0][4:] == (None, None, None)


def test_pages_with_many_labels_fit_a_message(client: Client) -> None:
    sets = np.ones((100, 60_000), np.int8)
    client.build("many-labels", POINTS[:100], labels=csr_array(sets), replace=True)
    pages = list(client.scroll("many-labels", with_labels=True))
    assert len(pages) > 1
    assert sum(len(page) for page in pages) == 100
    with pytest.raises(RpcError, match="ask for fewer points"):
        client.get("many-labels", np.arange(100), with_labels=True)


def test_annotations_of_many_messages_and_of_a_stream(
    client: Client, server: RunningServer, name: str, tmp_path: Path
) -> None:
    rows = 25_000
    ids = np.arange(rows) + 1_000
    numbers = np.arange(rows) % ROWS
    arguments = {key: values[numbers] for key, values in annotations(slice(None)).items()}
    with twin(server, name, tmp_path) as collection:
        assert client.upsert(name, ids, POINTS[numbers], **arguments).sequence > 2
        for start in range(0, rows, 5_000):
            part = slice(start, start + 5_000)
            cut = {key: values[part] for key, values in arguments.items()}
            collection.upsert(ids[part], POINTS[numbers[part]], **cut)
        counts = collection.engine.label_counts
        opened = Index.open(server.folder / "data" / name).engine.label_counts
        assert counts is not None
        assert opened is not None
        assert counts.tolist() == opened.tolist()
    writes = [
        Upsert([10**6 + row], POINTS[row : row + 1], labels=np.eye(1, LABELS, 2), categories=[9])
        for row in range(20)
    ]
    assert len(list(client.write_stream(name, writes))) == 20
    index = Index.open(server.folder / "data" / name)
    assert index.engine.topics.numbers(np.array([9])).tolist() == [4]
    votes = client.predict_labels(name, POINTS[:20], **VOTES | {"neighbours": 1, "diversity": 0})
    assert 2 in votes.labels[:, 0]


def test_wrong_annotations_name_their_field(ask: Stack, server: RunningServer, name: str) -> None:
    plain = f"{name}-plain"
    place(server, plain, POINTS[:ROWS])
    for index, arguments, message in (
        (name, {"labels": SETS[:1, :5]}, "labels must have 7 columns, one per label, got 5"),
        (name, {"labels": SETS[:2]}, "labels must have one row per id, 1, got 2"),
        (name, {"categories": [1, 2]}, "categories must have one number per row"),
        (name, {"subtopics": [-7]}, "subtopics must be at least -1, got -7"),
        (plain, {"labels": SETS[:1]}, "labels must not be given: the index was built without"),
        (plain, {"categories": [1]}, "categories must not be given"),
        (plain, {"subtopics": [1]}, "subtopics must not be given"),
    ):
        field = next(iter(arguments))
        with pytest.raises(InvalidArgumentError, match=message) as fault:
            ask("upsert", index, [1], **arguments)
        assert fault.value.field == field
    stub = DiverseIndexStub(grpc.insecure_channel(server.target))
    sets = points_pb2.LabelSets
    for labels, field in (
        (sets(label_count=LABELS, offsets=[0, 1, 1], ids=[0]), "labels.offsets"),
        (sets(label_count=LABELS, offsets=[0, 1], ids=[LABELS]), "labels.ids"),
        (sets(label_count=LABELS, offsets=[0, 2], ids=[3, 3]), "labels.ids"),
        (sets(label_count=0, offsets=[0, 0]), "labels"),
        (sets(label_count=LABELS + 1, offsets=[0, 0]), "labels"),
    ):
        request = writes_pb2.UpsertRequest(
            index=name, ids=[1], vectors=encode_dense(POINTS[:1]), labels=labels
        )
        status = failure(stub.Upsert, request, timeout=30)
        assert (status.code, status.fields) == (grpc.StatusCode.INVALID_ARGUMENT, (field,))
    assert Index.open(server.folder / "data" / name).engine.sequence == 0
