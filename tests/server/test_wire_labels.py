"""Labels over the wire: builds and predictions return the same bytes as in this process."""

import asyncio
import itertools
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import grpc
import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.labels import LabelModel
from divgrpc.metrics import LabelTree
from divgrpc.types import LabelResult, LabelSelector, Mode, Progress, Search, TrainingProgress
from divgrpc_client import AsyncClient, Client
from support.checks.refusals import failing, refused
from support.data import labelled_documents
from support.data.served_index import place
from support.processes.running_server import RunningServer

NAME = "wire-labels"
X = labelled_documents.documents()
DOCUMENTS = labelled_documents.documents(60, seed=1)
IDS = np.arange(len(X.indptr) - 1) * 3
MODES = ("embedding", "neighbour_vote")


@pytest.fixture(scope="module")
def events() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def core(server: RunningServer, client: Client, events: list[Progress]) -> Index:
    """Build an index with labels over the wire, and open its folder in this process."""
    options = {"ids": IDS, "progress": events.append, **labelled_documents.everything()}
    info = client.build(NAME, X, **options)
    index = Index.open(Path(server.folder, "data", NAME))
    assert client.get_index(NAME) == info == index.info
    return index


def assert_same(wire: LabelResult, core: LabelResult) -> None:
    """Compare all fields of two results; arrays must have the same bytes."""
    for name in ("labels", "scores", "selection_scores", "counts"):
        wire_value, core_value = getattr(wire, name), getattr(core, name)
        assert (wire_value.dtype, wire_value.shape) == (core_value.dtype, core_value.shape), name
        assert wire_value.tobytes() == core_value.tobytes(), name
    for field in fields(core.stats):
        wire_value, core_value = getattr(wire.stats, field.name), getattr(core.stats, field.name)
        assert np.array_equal(wire_value, core_value), field.name
    assert wire.names == core.names
    assert (wire.generation, wire.parameters) == (core.generation, core.parameters)
    assert wire.warnings == core.warnings


def predict_both(client: Client, core: Index, documents: Any, **options: Any) -> None:  # noqa: ANN401
    """Predict over the wire and in process, and compare the results."""
    wire = client.predict_labels(core.info.name, documents, **options)
    assert_same(wire, core.predict_labels(documents, **options))


def contents(index: Index) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (array.dtype.name, array.shape, array.tobytes())
        for name, array in index.engine._arrays.items()
    }


def test_a_build_over_the_wire_equals_one_in_process(core: Index) -> None:
    """All arrays are equal except those that hold measured times."""
    local_index = Index.build(X, ids=IDS, **labelled_documents.everything())
    assert contents(core) == contents(local_index)
    wire_labels, local_labels = core.engine.manifest.labels, local_index.engine.manifest.labels
    assert wire_labels is not None
    assert local_labels is not None
    assert (wire_labels.parameters, wire_labels.losses) == (
        local_labels.parameters,
        local_labels.losses,
    )
    assert core.engine.labels is not None
    assert core.engine.labels.tree is not None
    parents, children = np.transpose(labelled_documents.edges())
    roots = [labelled_documents.LABELS, labelled_documents.LABELS + 1]
    tree = LabelTree.of_edges(parents, children, labelled_documents.LABELS, roots)
    assert np.array_equal(core.engine.labels.tree.ancestors, tree.ancestors)
    assert {w.code for w in core.info.warnings} == {"LABELS_OUTSIDE_HIERARCHY"}


def test_progress_reports_the_training(core: Index, events: list[Progress]) -> None:
    assert core.engine.labels is not None
    training = [step for step in events if step.stage == "training labels"]
    assert training
    assert all(step.rows_total == 4 * labelled_documents.DOCUMENTS for step in training)
    stages = list(dict.fromkeys(step.stage for step in events))
    assert stages.index("training labels") > stages.index("receiving")
    losses = [step.loss for step in events if isinstance(step, TrainingProgress)]
    assert all(loss is not None and loss > 0 for loss in losses)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("search", get_args(Search))
def test_predictions_equal_the_core(core: Index, client: Client, search: str, mode: str) -> None:
    """All searches and selectors are compared in both modes, for sparse and dense documents."""
    limits = {"top_k": 4, "hash_limit": 80, "candidates_limit": 20}
    for selector in get_args(LabelSelector):
        options = {"search": search, "selector": selector, "seed": 5, "diversity": 0.4, **limits}
        for documents in (DOCUMENTS, DOCUMENTS.toarray(), DOCUMENTS[7:8]):
            predict_both(client, core, documents, mode=mode, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 1},
        {"top_k": 2_000},
        {"diversity": 0.0},
        {"diversity": None, "selector": None},
        {"diversity": 1.0},
        {"threshold": 0.1},
        {"threshold": 0.0, "top_k": 50},
        {"threshold": 1e6},
        {"candidates_limit": 5},
        {"hash_limit": 0, "candidates_limit": 0},
        {"mode": "neighbour_vote", "neighbours": 3, "vote": "plain"},
        {"mode": "neighbour_vote", "neighbours": 1000, "candidates_limit": 0, "threshold": 0.2},
        {"seed": 2**64 - 1, "hash_limit": 40, "search": "tables"},
        {"search": "tables", "n_probes": 3, "hash_limit": 0},
        {"mode": "neighbour_vote", "search": "tables", "n_probes": 1, "hash_limit": 0},
    ],
    ids=str,
)
def test_every_option_equals_the_core(core: Index, client: Client, options: dict[str, Any]) -> None:
    """Warnings, label names, and documents without labels are equal too."""
    for documents in (DOCUMENTS, DOCUMENTS.toarray()[3]):
        predict_both(client, core, documents, **options)


@pytest.mark.parametrize("mode", MODES)
def test_a_large_batch_is_one_answer(core: Index, client: Client, mode: Any) -> None:  # noqa: ANN401  # a Mode
    """The client sends several messages, and the worker answers in slices, which are joined."""
    half = labelled_documents.documents(150, seed=2)
    many = sparse.vstack([half, half], format="csr")
    once = core.predict_labels(half, mode=mode, top_k=90)
    result = client.predict_labels(NAME, many, mode=mode, top_k=90)
    assert result.labels.tobytes() == 2 * once.labels.tobytes()
    assert result.scores.tobytes() == 2 * once.scores.tobytes()
    assert result.names == 2 * once.names
    codes = [warning.code for warning in result.warnings]
    assert len(codes) == len(set(codes))


def test_the_asynchronous_client_equals_the_core(server: RunningServer, core: Index) -> None:

    async def run() -> LabelResult:
        async with AsyncClient(server.target, timeout=30) as client:
            info = await client.build("awaited", X, replace=True, **labelled_documents.everything())
            assert info.labels is not None
            assert info.labels.losses == core.info.labels.losses  # type: ignore[union-attr]
            return await client.predict_labels("awaited", DOCUMENTS, top_k=3, search="exact")

    result = asyncio.run(run())
    there = Index.open(Path(server.folder, "data", "awaited"))
    assert_same(result, there.predict_labels(DOCUMENTS, top_k=3, search="exact"))


def test_a_kept_threshold_is_the_default(
    server: RunningServer, client: Client, core: Index
) -> None:
    index = Index.open(Path(server.folder, "data", NAME))
    index.set_threshold(0.2)
    try:
        result = client.predict_labels(NAME, DOCUMENTS)
        assert result.parameters.threshold == 0.2
        assert_same(result, core.predict_labels(DOCUMENTS, threshold=0.2))
        assert client.predict_labels(NAME, DOCUMENTS, threshold=0.1).parameters.threshold == 0.1
        votes = client.predict_labels(NAME, DOCUMENTS, mode="neighbour_vote")
        assert votes.parameters.threshold is None
        every = client.predict_labels(NAME, DOCUMENTS, threshold=-math.inf)
        assert_same(every, core.predict_labels(DOCUMENTS))
        assert every.parameters.threshold is None
        (row,) = client.evaluate_labels(
            NAME, DOCUMENTS, labelled_documents.labels_of(DOCUMENTS), selectors=["nearest"], folds=0
        )
        assert row.parameters.threshold is None
        info = client.get_index(NAME)
        assert info == index.info
        assert info.labels is not None
        assert info.labels.thresholds == {"embedding": 0.2}
    finally:
        index.set_threshold(None)
    assert client.predict_labels(NAME, DOCUMENTS).parameters.threshold is None


@pytest.mark.parametrize("model", ["pair", "model"])
def test_given_label_models_are_uploaded(server: RunningServer, client: Client, model: str) -> None:
    """Pairs of factors, and models with an offset, predict after an upload as in process."""
    pair = labelled_documents.factors()
    model_given: Any = pair
    if model == "model":
        offset = np.arange(labelled_documents.RANK, dtype=np.float32)
        model_given = LabelModel(*pair, offset, unit_rows=True)
    info = client.build("brought", X, label_model=model_given, replace=True)
    assert info.labels is not None
    assert (info.labels.rank, info.labels.has_label_sets) == (labelled_documents.RANK, False)
    assert info.labels.parameters is None
    local_index = Index.build(X, label_model=model_given)
    there = Index.open(Path(server.folder, "data", "brought"))
    assert contents(there) == contents(local_index)
    # The search is set explicitly, because the choice of `auto` depends on measured times.
    result = client.predict_labels("brought", DOCUMENTS, search="exact")
    assert result.names == ()
    expected = local_index.predict_labels(DOCUMENTS, search="exact")
    assert result.scores.tobytes() == expected.scores.tobytes()


def test_an_index_without_a_label_model_votes(server: RunningServer, client: Client) -> None:
    """The index has only the labels of its rows, which the build may get as a dense array."""
    dense = labelled_documents.labels_of(X).toarray().astype(np.float32)
    there = place(server, "votes", X.toarray(), labels=dense)
    assert there.engine.manifest.labels is not None
    assert there.engine.manifest.labels.rank == 0
    predict_both(client, there, DOCUMENTS, mode="neighbour_vote", top_k=3)


def test_an_index_without_a_hierarchy_is_unfit(server: RunningServer, client: Client) -> None:
    """The selector `hierarchy` is FAILED_PRECONDITION, and Query has no such selector."""
    pair = labelled_documents.factors()
    place(server, "flat-labels", X, labels=labelled_documents.labels_of(X), label_model=pair)
    for mode, rows in itertools.product(get_args(Mode), (1, 3_000)):
        documents = labelled_documents.documents(rows, seed=2)
        unfit: Any = {"kind": UnfitIndexError, "field": "selector", "match": "needs a hierarchy"}
        with failing(grpc.StatusCode.FAILED_PRECONDITION, **unfit):
            client.predict_labels("flat-labels", documents, mode=mode, selector="hierarchy")
    selector: Any = "hierarchy"
    with refused("selector"):
        client.query("flat-labels", X[:2], selector=selector)


def test_a_document_that_overflows_is_named_by_its_number(
    server: RunningServer, client: Client
) -> None:
    """The worker cuts the call into slices, but the error gives the row's number in the call."""
    factors, feature_map = labelled_documents.factors()
    place(server, "long-factors", X, label_model=(factors, feature_map * 1e10))
    documents = np.tile(DOCUMENTS.toarray(), (20, 1))
    documents[777] *= 1e8
    with pytest.raises(InvalidArgumentError, match=r"documents row 777\b"):
        client.predict_labels("long-factors", documents)
