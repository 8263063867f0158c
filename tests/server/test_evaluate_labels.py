"""EvaluateLabels over the wire: its results and what it refuses."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.errors import UnfitIndexError
from divgrpc.evaluation import labels as evaluation_of_labels
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.evaluation.labels import documents_per_message_max
from divgrpc.parameters import LIMITS
from divgrpc.types import EvaluateLabelRow, Progress
from divgrpc_client import AsyncClient, Client
from divgrpc_client.messages import evaluate as messages_of_evaluate
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import evaluate_labels_pb2, query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_protos.v1.points_pb2 import LabelSets
from support.checks.refusals import cases_of, failing, refused
from support.checks.status_details import failure
from support.data import labelled_documents
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import place
from support.processes.running_server import RunningServer

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
NAME = "labels-judged"
X = labelled_documents.documents()
DOCUMENTS = labelled_documents.documents(90, seed=1)
TRUTH = labelled_documents.labels_of(DOCUMENTS)
GRID: dict[str, Any] = {
    "modes": ("embedding", "neighbour_vote"),
    "selectors": ("nearest", "greedy", "hierarchy"),
    "searches": ("auto", "exact"),
    "limits": ((None, None), (60, 30)),
    "thresholds": (None, 0.3),
    "diversities": (0.2, 0.8),
    "top_ks": (4,),
    "neighbours": 7,
    "vote": "plain",
    "seed": 5,
}
ONE: dict[str, Any] = {"selectors": ("greedy",), "diversities": (0.3,)}
FEWER: dict[str, Any] = {"searches": ("auto",), "limits": ((None, None),)}


@pytest.fixture(scope="module")
def core(server: RunningServer) -> Index:
    """Place an index with labels on the server, and return it."""
    return place(server, NAME, X, **labelled_documents.everything())


def evaluate_both(
    client: Client,
    core: Index,
    documents: Any = DOCUMENTS,  # noqa: ANN401  # dense or sparse
    truth: Any = TRUTH,  # noqa: ANN401  # the same
    **options: Any,  # noqa: ANN401  # of `evaluate_labels`
) -> list[EvaluateLabelRow]:
    """Evaluate over the wire and in the core, check that the rows are equal, and return them."""
    wire = list(client.evaluate_labels(core.info.name, documents, truth, **options))
    options.pop("progress", None)
    axes = LabelGrid.__dataclass_fields__
    grid = LabelGrid(**{name: options.pop(name) for name in [*options] if name in axes})
    assert_same_rows(wire, list(evaluate_labels(core, documents, truth, grid=grid, **options)))
    return wire


@pytest.mark.parametrize("dense", [False, True])
def test_the_wire_gives_the_rows_of_the_core(client: Client, core: Index, dense: bool) -> None:
    """All rows are equal except for the measured times."""
    events: list[Progress] = []
    documents, truth = DOCUMENTS[:40], TRUTH[:40]
    if dense:
        documents, truth = documents.toarray(), truth.toarray()
    options: dict[str, Any] = {"folds": 4, "per_document": dense}
    grid = GRID | FEWER if dense else GRID
    options |= {"progress": events.append}
    wire = evaluate_both(client, core, documents, truth, **grid, **options)
    settings = len(LabelGrid(**grid).settings())
    assert sum(not row.by_fold for row in wire) == settings
    assert events[-1].rows_done == events[-1].rows_total == settings * 40
    assert {progress.stage for progress in events} == {"evaluating"}


@pytest.mark.usefixtures("one_message_or_several")
def test_probes_are_an_axis(client: Client, core: Index) -> None:
    grid: dict[str, Any] = {
        "modes": ("embedding", "neighbour_vote"),
        "selectors": ("nearest",),
        "searches": ("tables", "exact"),
        "limits": ((0, 0),),
        "n_probes": (None, 1, 10),
    }
    wire = evaluate_both(client, core, **grid)
    probes = [row.parameters.n_probes for row in wire[:8]]
    assert (probes[1:4], probes[5:8]) == ([1, 10, 0], [1, 10, 0])
    assert wire[1].scored < wire[2].scored < wire[3].scored


@pytest.mark.usefixtures("one_message_or_several")
def test_intervals_and_folds_are_over_groups(client: Client, core: Index) -> None:
    """By default each document is a group."""
    grid: dict[str, Any] = {"selectors": ("greedy",), "diversities": (0.1, 0.5, 0.9)}
    f_of = {}
    for name, groups in (("alone", None), ("pairs", np.arange(90) // 2), ("one", [3] * 90)):
        wire = evaluate_both(client, core, groups=groups, **grid)
        f_of[name] = wire[0].metrics["f_score"]
        assert len(wire) == (3 if name == "one" else 4)
    assert f_of["pairs"].value == pytest.approx(f_of["alone"].value)
    assert f_of["alone"].low != f_of["pairs"].low
    assert np.isnan(f_of["one"].low)
    with refused("groups"):
        list(client.evaluate_labels(NAME, DOCUMENTS, TRUTH, groups=np.arange(89)))


def test_documents_of_several_messages_are_evaluated_as_one(
    client: Client, core: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows equal the core's rows for all documents, even if some messages have no labels."""
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 3_000)
    events: list[Progress] = []
    blank = sparse.csr_array((40, labelled_documents.LABELS), dtype=bool)
    documents, truth = sparse.vstack([DOCUMENTS, DOCUMENTS[:40]]), sparse.vstack([TRUTH, blank])
    options: dict[str, Any] = {"folds": 4, "per_document": True, "progress": events.append}
    fewer = GRID | FEWER
    evaluate_both(client, core, documents, truth, **fewer, **options)
    settings = len(LabelGrid(**fewer).settings())
    assert events[-1].rows_done == events[-1].rows_total == settings * documents.shape[0]
    assert all(a.rows_done <= b.rows_done for a, b in pairwise(events))


def test_an_index_replaced_by_one_without_a_model_between_messages(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is ABORTED, as it is if an index is replaced by any other index."""
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 3_000)
    cut = messages_of_evaluate.Evaluation.messages
    options: Any = {"selectors": ["nearest"], "modes": ["embedding"], "folds": 0}
    with Client(server.target) as client:

        def replaced(self: Any) -> Iterator[object]:  # noqa: ANN401  # an evaluation of labels
            for number, message in enumerate(cut(self)):
                if number == 1:
                    place(server, "torn", X, labels=labelled_documents.labels_of(X))
                yield message

        pair = labelled_documents.factors()
        place(server, "torn", X, labels=labelled_documents.labels_of(X), label_model=pair)
        monkeypatch.setattr(messages_of_evaluate.Evaluation, "messages", replaced)
        with failing(grpc.StatusCode.ABORTED):
            list(client.evaluate_labels("torn", DOCUMENTS, TRUTH, **options))
        client.delete_index("torn")


def test_the_client_checks_an_evaluation_of_several_messages(
    client: Client, core: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client refuses to set a default, and refuses invalid fields before it sends a message."""
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 3_000)
    evaluate_both(client, core, **ONE)
    blank = sparse.csr_array(TRUTH.shape, dtype=bool)
    for fields, field in cases_of(set_default=[True], folds=[999], top_ks=[[0]], labels=[blank]):
        bad: dict[str, Any] = {"labels": TRUTH} | fields
        with refused(field):
            client.evaluate_labels(NAME, DOCUMENTS, **bad)
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 50)
    with refused("documents", match="document 0 and its labels"):
        client.evaluate_labels(NAME, DOCUMENTS, TRUTH)


def test_limits_of_one_call_do_not_bound_an_evaluation(
    client: Client, core: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because of limits on rows and labels per answer, the client only sends more messages."""
    del core
    whole = list(client.evaluate_labels(NAME, DOCUMENTS, TRUTH, folds=0, **ONE))
    for limits, name, least in (
        (LIMITS, "query_rows_max", 60),
        (LIMITS, "evaluate_queries_max", 40),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(limits, name, least)
            parts = list(client.evaluate_labels(NAME, DOCUMENTS, TRUTH, folds=0, **ONE))
        assert_same_rows(parts, whole)
    monkeypatch.setattr(evaluation_of_labels, "LABELS_MAX", 500)
    assert_same_rows(list(client.evaluate_labels(NAME, DOCUMENTS, TRUTH, folds=0, **ONE)), whole)


def test_rows_with_values_of_each_document_fit_a_message(
    client: Client, core: Index, stub: DiverseIndexStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses a call whose rows would be too large, so the client splits it."""
    top_k = 5_000
    most = documents_per_message_max(top_k)
    documents = sparse.vstack([DOCUMENTS] * 4)[: most + 30]
    request = evaluate_labels_pb2.EvaluateLabelsRequest(
        index=NAME,
        documents=encode_dense(documents.toarray()),
        labels=LabelSets(label_count=labelled_documents.LABELS, offsets=[0] * (most + 31)),
        selectors=[query_pb2.SELECTOR_NEAREST],
        top_ks=[top_k],
        folds=0,
        per_document=True,
    )
    calls = stub.EvaluateLabels(request, timeout=30)
    assert failure(list, calls).fields == ("per_document",)
    monkeypatch.setattr(evaluation_of_labels, "documents_per_message_max", lambda _: 70)
    evaluate_both(client, core, folds=0, per_document=True, **ONE)


def test_the_asynchronous_client_gives_the_same_rows(server: RunningServer, core: Index) -> None:
    """The index has only label factors, so rows lack frequencies of labels and their distances."""

    async def evaluated(name: str) -> list[EvaluateLabelRow]:
        async with AsyncClient(server.target) as client:
            answers = client.evaluate_labels(name, DOCUMENTS, TRUTH, folds=0, **ONE)
            return [row async for row in answers]

    options: dict[str, Any] = {"folds": 0, "grid": LabelGrid(**ONE)}
    assert_same_rows(
        asyncio.run(evaluated(NAME)), list(evaluate_labels(core, DOCUMENTS, TRUTH, **options))
    )
    place(server, "bare", X, label_model=labelled_documents.factors())
    (row,) = asyncio.run(evaluated("bare"))
    assert (row.goal, row.propensity_scored_at) == ("f_score", ())
    assert np.isnan(row.metrics["drank"].value)


def test_set_default_keeps_the_best_threshold_of_each_mode(
    client: Client, server: RunningServer
) -> None:
    before = place(server, "labels-kept", X, **labelled_documents.everything())
    folder = server.folder / "data" / "labels-kept"
    grid = GRID | FEWER | {"selectors": ("nearest", "greedy"), "thresholds": (0.2, 0.6)}
    rows = evaluate_both(client, before, set_default=True, **grid)
    thresholds = {row.parameters.mode: row.parameters.threshold for row in rows if row.is_default}
    assert set(thresholds) == set(grid["modes"])
    assert Index.open(folder).engine.defaults.thresholds == thresholds
    for mode, threshold in thresholds.items():
        result = client.predict_labels("labels-kept", DOCUMENTS, mode=mode)
        assert result.parameters.threshold == threshold


def test_an_index_without_labels_or_a_model_is_refused(
    server: RunningServer, client: Client
) -> None:
    """FAILED_PRECONDITION names `mode` or `selector`."""
    place(server, "unlabelled", X)
    place(server, "voting", X, labels=labelled_documents.labels_of(X))
    place(server, "modelled", X, label_model=labelled_documents.factors())
    for name, mode in (
        ("unlabelled", "embedding"),
        ("voting", "embedding"),
        ("modelled", "neighbour_vote"),
    ):
        options: dict[str, Any] = {"modes": (mode,)}
        with failing(PRECONDITION, UnfitIndexError, field="mode"):
            list(client.evaluate_labels(name, DOCUMENTS, TRUTH, **options))
    with refused("selector", error=UnfitIndexError):
        list(client.evaluate_labels("modelled", DOCUMENTS, TRUTH, selectors=("hierarchy",)))
