"""What is wrong with labels, and with documents to label, is said with the status and the field."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import InvalidArgumentError, LimitExceededError
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import Mode, Progress
from divgrpc_client import Client
from divgrpc_client.rpc.errors import RpcError
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, labels_pb2, predict_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_server.builder import __main__ as builder
from divgrpc_server.builder.labels import LabelUpload
from support import labelled_documents
from support.manual_uploads import chunk, commit, header, refusal
from support.raw_calls import unary
from support.running_server import RunningServer, eventually
from support.status_details import Details, details_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ROWS, DIMS = 30, 5
X = np.eye(DIMS, dtype=np.float32)[np.arange(ROWS) % DIMS]
Y = np.eye(4)[np.arange(ROWS) % 4]
FACTORS, MAP = np.ones((4, 2), np.float32), np.ones((DIMS, 2), np.float32)
THREE = np.ones((3, DIMS), np.float32)


@pytest.fixture(scope="module", autouse=True)
def indexes(client: Client) -> None:
    """Build an index with labels and a model, one with each of the two, and one with neither."""
    client.build("both", X, labels=Y, label_model=(FACTORS, MAP), replace=True)
    client.build("no-model", X, labels=Y, replace=True)
    client.build("no-sets", X, label_model=(FACTORS, MAP), replace=True)
    client.build("no-labels", X, replace=True)


@pytest.fixture
def clean(server: RunningServer) -> Iterator[str]:
    """Yield a name; whatever was done with it, nothing may be left."""
    yield "clean-labels"
    data = server.folder / "data"
    eventually(lambda: not [each for each in data.iterdir() if "clean-labels" in each.name])


# Documents.


def refused(stub: DiverseIndexStub, **fields: Any) -> Details:  # noqa: ANN401  # a message's types
    """Return the details of a prediction that must fail."""
    documents = encode_dense(X[:2])
    request = predict_pb2.PredictLabelsRequest(
        **{"index": "both", "documents": documents, **fields}
    )
    with pytest.raises(grpc.RpcError) as caught:
        stub.PredictLabels(request, timeout=30)
    return details_of(caught.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"top_k": 0}, "top_k"),
        ({"top_k": LIMITS["k_max"] + 1}, "top_k"),
        ({"threshold": math.nan}, "threshold"),
        ({"diversity": 1.01}, "diversity"),
        ({"selector": 99}, "selector"),
        ({"search": 99}, "search"),
        ({"mode": 99}, "mode"),
        ({"vote": 99}, "vote"),
        ({"neighbours": 0}, "neighbours"),
        ({"neighbours": LIMITS["neighbours_max"] + 1}, "neighbours"),
        ({"hash_limit": 4}, "hash_limit"),
        ({"candidates_limit": 4}, "candidates_limit"),
        ({"index": "../both"}, "index"),
        ({"documents": None}, "documents"),
        ({"documents": encode_dense(X[:0])}, "documents"),
        ({"documents": encode_dense(np.ones((1, DIMS + 1)))}, "documents"),
        ({"documents": encode_dense(X[:2] * np.nan)}, "documents"),
        ({"documents": encode_dense(X[:2] * 0)}, "documents"),
        ({"documents": encode_dense(np.ones((10_001, DIMS), np.float16))}, "documents"),
        (
            {"documents": vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=1, cols=DIMS))},
            "documents.dense.data",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_prediction_names_its_field(
    stub: DiverseIndexStub, fields: dict[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT, and the field as the contract spells it."""
    details = refused(stub, **fields)
    assert details.code == INVALID
    assert details.fields == (field,)


@pytest.mark.parametrize("mode", ["embedding", "neighbour_vote"])
def test_a_bad_document_is_called_by_its_number(client: Client, mode: Mode) -> None:
    """However large the batch: before any work is done."""
    documents = np.tile(X, (40, 1))
    documents[777] = 0
    with pytest.raises(InvalidArgumentError, match="documents row 777 has no feature"):
        client.predict_labels("both", documents, mode=mode)
    documents[777] = np.inf
    with pytest.raises(InvalidArgumentError, match=r"documents row 777\b"):
        client.predict_labels("both", documents, mode=mode)


@pytest.mark.parametrize(
    ("index", "mode"),
    [
        ("no-model", "embedding"),
        ("no-sets", "neighbour_vote"),
        ("no-labels", "embedding"),
        ("no-labels", "neighbour_vote"),
    ],
)
@pytest.mark.parametrize("rows", [1, 3_000])
def test_an_index_that_lacks_what_is_asked_for(
    client: Client, index: str, mode: Mode, rows: int
) -> None:
    """FAILED_PRECONDITION, with the mode to blame; the other mode answers where it can."""
    with pytest.raises(RpcError) as caught:
        client.predict_labels(index, np.tile(X, (100, 1))[:rows], mode=mode)
    assert caught.value.code == PRECONDITION
    assert [field for field, _ in caught.value.field_violations] == ["mode"]
    if index != "no-labels":
        other: Mode = "embedding" if mode == "neighbour_vote" else "neighbour_vote"
        assert client.predict_labels(index, X, mode=other).counts.min() > 0


def test_an_index_that_is_not_there(client: Client) -> None:
    """NOT_FOUND."""
    with pytest.raises(RpcError) as caught:
        client.predict_labels("nobody", X[:1])
    assert caught.value.code == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("payload", [b"\xff", b"\x0a\xff", b"\x08\x01" * 40_000])
def test_bytes_that_are_no_message(channel: grpc.Channel, payload: bytes) -> None:
    """INVALID_ARGUMENT, small or large."""
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "PredictLabels")(payload, timeout=10)
    assert details_of(caught.value).code == INVALID


def test_an_answer_too_large_for_a_message(stub: DiverseIndexStub, client: Client) -> None:
    """RESOURCE_EXHAUSTED says so before any work is done; names are counted when they are there."""
    wide = np.ones((9_000, 2), np.float32)
    names = ["x" * LIMITS["label_name_bytes_max"]] * 9_000
    client.build("wide-labels", X, label_model=(wide, MAP), label_names=names, replace=True)
    for top_k in (9_000, 60):
        documents = encode_dense(np.tile(X, (3, 1)))
        details = refused(stub, index="wide-labels", documents=documents, top_k=top_k)
        assert details.code == EXHAUSTED
        assert details.reason == "REPLY_TOO_LARGE"
    # The client cuts the batch to what a message holds.
    found = client.predict_labels("wide-labels", np.tile(X, (3, 1)), top_k=60)
    assert found.names == (tuple(names[:60]),) * 90


# Builds.


def sets(offsets: list[int], ids: list[int], count: int = 4) -> labels_pb2.LabelSets:
    """Return the labels of rows."""
    return labels_pb2.LabelSets(label_count=count, offsets=offsets, ids=ids)


def piece(**fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's types
    """Return a message with a piece of what is told of labels."""
    return index_pb2.BuildRequest(label_chunk=labels_pb2.LabelChunk(**fields))


def dense(matrix: object) -> vectors_pb2.DenseMatrix:
    """Return a matrix."""
    return encode_dense(np.asarray(matrix, np.float32)).dense


LEML = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_LEML)
BROUGHT = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_FACTORS)


def blamed(folder: Path, opening: index_pb2.BuildRequest, *steps: index_pb2.BuildRequest) -> str:
    """Return the field that a builder blames for an upload, played by hand."""
    with pytest.raises(InvalidArgumentError) as caught:
        take_in(folder, opening, steps)
    return caught.value.field


def take_in(
    folder: Path, opening: index_pb2.BuildRequest, steps: Sequence[index_pb2.BuildRequest]
) -> None:
    """Do what a builder does with an upload, in this process and in memory."""
    with closing(LabelUpload(opening.header, folder)) as upload:
        for step in steps:
            if step.HasField("label_chunk"):
                upload.add(step.label_chunk)
        building = IndexBuilder(MemoryStore(), BuildParameters(), labels=upload.inputs())
    layout = None
    for step in steps:
        if step.HasField("chunk"):
            layout = builder._append(building, step.chunk, layout)
    building.build()


GOOD = sets([0, 1, 2, 4], [0, 1, 2, 3])
NAMES = labels_pb2.LabelNames(values=["a", "b", "c", "d"])
EDGES = labels_pb2.Hierarchy(parents=[4, 4], children=[0, 1])


PAIR = {"label_factors": dense(FACTORS), "feature_map": dense(MAP)}
OFFSET = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_FACTORS, offset=[1.0])


def edges(
    parents: list[int], children: list[int], roots: list[int] | None = None
) -> dict[str, labels_pb2.Hierarchy]:
    """Return the piece that is a hierarchy."""
    return {"hierarchy": labels_pb2.Hierarchy(parents=parents, children=children, roots=roots)}


def parameters(**fields: Any) -> labels_pb2.LabelPlan:  # noqa: ANN401  # a message's types
    """Return a plan to train."""
    return labels_pb2.LabelPlan(
        model=labels_pb2.LABEL_MODEL_LEML, parameters=labels_pb2.LabelParameters(**fields)
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (sets([], []), "labels.offsets"),
        (sets([0, 1], [0]), "labels.offsets"),
        (sets([0, 1, 2, 3], [0, 1]), "labels.offsets"),
        (sets([1, 1, 2, 2], [0, 1]), "labels.offsets"),
        (sets([0, 2, 1, 2], [0, 1]), "labels.offsets"),
        (sets([0, 1, 1, 2], [0, 4]), "labels.ids"),
        (sets([0, 1, 1, 3], [0, 2, 1]), "labels.ids"),
        (sets([0, 1, 1, 3], [0, 2, 2]), "labels.ids"),
        (sets([0, 0, 0, 0], [], 0), "labels"),
        (sets([0, 0, 0, 0], [], LIMITS["labels_max"] + 1), "labels"),
    ],
)
def test_wrong_labels_of_rows(tmp_path: Path, given: labels_pb2.LabelSets, field: str) -> None:
    """The column that is to blame is named."""
    assert blamed(tmp_path, header("a"), chunk(THREE, labels=given)) == field


@pytest.mark.parametrize(
    ("second", "field"),
    [({}, "labels"), ({"labels": sets([0, 1, 2, 4], [0, 1, 2, 3], 5)}, "labels")],
    ids=["none", "other-count"],
)
def test_labels_differ_between_chunks(tmp_path: Path, second: dict[str, Any], field: str) -> None:
    """Every chunk has labels or none, and all have as many."""
    chunks = (chunk(THREE, labels=GOOD), chunk(THREE, **second))
    assert blamed(tmp_path, header("a"), *chunks) == field


def test_labels_without_rows(tmp_path: Path) -> None:
    """A chunk without rows has no labels."""
    none = np.empty((0, DIMS))
    assert blamed(tmp_path, header("a"), chunk(none, labels=sets([0, 1], [0]))) == "labels.ids"


@pytest.mark.parametrize(
    ("plan", "told", "field"),
    [
        (labels_pb2.LabelPlan(model=99), {}, "model"),  # type: ignore[arg-type]  # no such value
        (parameters(rank=0), {}, "rank"),
        (parameters(rank=LIMITS["rank_max"] + 1), {}, "rank"),
        (parameters(rank=5), {}, "rank"),
        (parameters(regularisation=0.0), {}, "regularisation"),
        (parameters(iterations=0), {}, "iterations"),
        (parameters(inner_iterations=0), {}, "inner_iterations"),
        (parameters(tolerance=1.0), {}, "tolerance"),
        (parameters(regularisation=1e300), {}, "regularisation"),
        (labels_pb2.LabelPlan(unit_rows=True), {}, "offset"),
        (labels_pb2.LabelPlan(parameters=labels_pb2.LabelParameters(rank=2)), {}, "rank"),
        (LEML, {"label_factors": dense(FACTORS)}, "label_factors"),
        (LEML, {"label_names": labels_pb2.LabelNames(values=["a"])}, "label_names"),
        (LEML, {"label_names": labels_pb2.LabelNames(values=["a" * 2000])}, "label_names"),
        (BROUGHT, {}, "label_factors"),
        (BROUGHT, {"label_factors": dense(FACTORS)}, "feature_map"),
        (BROUGHT, PAIR | {"label_factors": dense(FACTORS[:3])}, "label_model"),
        (BROUGHT, PAIR | {"feature_map": dense(MAP[:4])}, "label_model"),
        (BROUGHT, PAIR | {"feature_map": dense(MAP[:, :1])}, "feature_map"),
        (BROUGHT, PAIR | {"label_factors": dense(FACTORS * np.nan)}, "label_factors"),
        (BROUGHT, {"feature_map": vectors_pb2.DenseMatrix(rows=2, cols=2)}, "feature_map.data"),
        (OFFSET, PAIR, "offset"),
        (LEML, edges([4], []), "hierarchy.children"),
        (LEML, edges([], []), "hierarchy"),
        (LEML, edges([2**32 - 1], [0]), "hierarchy"),
        (LEML, edges([4], [0], roots=[9]), "hierarchy"),
        (LEML, edges([4, 0], [0, 4]), "hierarchy"),
    ],
)
def test_a_wrong_plan_names_its_field(
    tmp_path: Path, plan: labels_pb2.LabelPlan, told: dict[str, Any], field: str
) -> None:
    """The field of the plan, or of a piece, is named."""
    steps = (piece(**told), chunk(THREE, labels=GOOD))
    assert blamed(tmp_path, header("a", labels=plan), *steps) == field


def test_chunks_of_a_factor_have_one_width(tmp_path: Path) -> None:
    """All have as many columns."""
    steps = (piece(feature_map=dense(MAP)), piece(feature_map=dense(MAP[:, :1])))
    assert blamed(tmp_path, header("a", labels=BROUGHT), *steps) == "feature_map"


def test_a_model_that_has_nothing_to_learn_from(tmp_path: Path) -> None:
    """To train, labels must come with the rows."""
    assert blamed(tmp_path, header("a", labels=LEML), chunk(THREE)) == "labels"


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ((header("clean-labels", labels=parameters(rank=0)),), "rank"),
        ((header("clean-labels"), chunk(THREE, labels=sets([0], []))), "labels.offsets"),
        ((header("clean-labels", labels=LEML), chunk(THREE, labels=GOOD)), "commit"),
    ],
    ids=["plan", "rows", "no-commit"],
)
def test_a_wrong_build_leaves_nothing(
    stub: DiverseIndexStub, clean: str, steps: tuple[index_pb2.BuildRequest, ...], field: str
) -> None:
    """Over the wire that is INVALID_ARGUMENT with the field, and nothing is left behind."""
    details = refusal(stub, *steps)
    assert details.code == INVALID
    assert details.fields == (field,)
    assert clean


def test_label_chunks_come_before_rows(stub: DiverseIndexStub, clean: str) -> None:
    """What is told of labels is known before the first row."""
    steps = (chunk(THREE, labels=GOOD), piece(label_names=NAMES), commit(3))
    details = refusal(stub, header(clean), *steps)
    assert details.fields == ("label_chunk",)


@pytest.mark.parametrize(
    "limit", ["label_factor_numbers_max", "hierarchy_edges_max", "label_names_bytes_max"]
)
def test_more_than_a_build_may_bring(
    limit: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Chunks count against the limits before they are stored."""
    monkeypatch.setitem(LIMITS, limit, 7)
    part = labels_pb2.LabelChunk(
        label_factors=dense(np.ones((1, 2))), hierarchy=EDGES, label_names=NAMES
    )
    with closing(LabelUpload(index_pb2.BuildHeader(labels=BROUGHT), tmp_path)) as upload:
        upload.add(part)
        if limit != "label_names_bytes_max":
            # A chunk has two numbers or edges, and four names.
            upload.add(part)
            upload.add(part)
        with pytest.raises(LimitExceededError, match="at most 7"):
            upload.add(part)
    assert not list(tmp_path.iterdir())


def test_a_cancelled_training_leaves_nothing(client: Client, clean: str) -> None:
    """A caller who leaves while labels are trained ends the builder and what it wrote."""

    def stop(progress: Progress) -> None:
        if progress.stage == "training labels":
            raise KeyboardInterrupt

    documents = labelled_documents.documents(4_000)
    with pytest.raises(KeyboardInterrupt):
        client.build(
            clean,
            documents,
            labels=labelled_documents.labels_of(documents),
            label_model="leml",
            rank=30,
            regularisation=1.0,
            iterations=1_000,
            tolerance=0.0,
            progress=stop,
        )
    with pytest.raises(RpcError) as caught:
        client.get_index(clean)
    assert caught.value.code == grpc.StatusCode.NOT_FOUND
