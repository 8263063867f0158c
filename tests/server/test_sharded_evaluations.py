"""Evaluations of an index that is divided among shard servers."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc import Index
from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import UnfitIndexError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.parameters import BuildParameters
from divgrpc.sharding.files import divide_folder
from divgrpc.storage.generations import ROOT_LOCK, staging
from divgrpc.types import EvaluateLabelRow, Progress
from divgrpc.types.filters import Range
from divgrpc_client import Client, RpcError
from support.checks.refusals import failing, refused
from support.data import labelled_documents
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import random_points
from support.processes.drawing import draw_in_a_thread
from support.processes.running_server import RunningServer, alive, children, eventually

N, DIMS = 900, 16
POINTS = random_points(N, dims=DIMS, seed=9)
QUERIES = random_points(40, dims=DIMS, seed=3)
CATEGORIES = np.arange(40) % 3
COLUMNS: dict[str, Any] = {
    "categories": np.arange(N) % 3,
    "subtopics": np.arange(N) // 3 % 4,
    "attributes": {"price": np.arange(N) % 7},
}
SMALL: dict[str, Any] = {
    "categories": COLUMNS["categories"][:200],
    "subtopics": COLUMNS["subtopics"][:200],
    "attributes": {"price": COLUMNS["attributes"]["price"][:200]},
}
GRID: dict[str, Any] = {
    "selectors": ("nearest", "greedy"),
    "searches": ("auto", "exact"),
    "limits": ((None, None), (60, 30)),
    "diversities": (0.2, 0.8),
    "ks": (5,),
}
# Settings that take some seconds.
LONG: dict[str, Any] = {
    "selectors": ("greedy",),
    "searches": ("exact", "scan"),
    "limits": ((0, 0),),
    "diversities": np.linspace(0.1, 0.9, 20).tolist(),
    "ks": (10,),
}
MANY, CATEGORIES_OF_MANY = random_points(1_000, dims=DIMS, seed=5), np.arange(1_000) % 3
SECRET = "a secret of sixteen or more"  # noqa: S105  # of this test alone
WAIT_SECONDS = 60.0
CODES = grpc.StatusCode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("evaluated")
    options = ("--shards", "2", "--replicas", "2", "--workers", "2", "--worker-wait", "20")
    with RunningServer(folder, "--data-dir", str(folder / "data"), *options) as running:
        with Client(running.target, timeout=120) as client:
            client.build("points", POINTS, **COLUMNS)
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.target, timeout=120) as one:
        yield one


@pytest.fixture(scope="module")
def core() -> Index:
    return Index.build(POINTS, **COLUMNS)


@pytest.mark.parametrize(
    "options",
    [
        {"categories": CATEGORIES, "folds": 4, "per_query": True},
        {"categories": CATEGORIES, "filter": Range("price", lt=4), "groups": np.arange(40) % 5},
        {"relevant": [np.arange(row, N, 40) for row in range(40)], "folds": 0},
    ],
)
def test_rows_are_those_of_one_index(client: Client, core: Index, options: dict[str, Any]) -> None:
    """All rows are equal except for the measured times."""
    events: list[Progress] = []
    wire = list(client.evaluate("points", QUERIES, progress=events.append, **options, **GRID))
    assert_same_rows(wire, list(evaluate(core, QUERIES, grid=Grid(**GRID), **options)))
    settings = len(Grid(**GRID).settings())
    assert events[0].rows_done == 0
    assert events[-1].rows_done == events[-1].rows_total == settings * len(QUERIES)


def test_the_best_choice_becomes_the_default(client: Client) -> None:
    options: dict[str, Any] = {"categories": CATEGORIES, "set_default": True, **GRID}
    client.build("chosen", POINTS[:200], **SMALL)
    *_, best = client.evaluate("chosen", QUERIES, **options)
    default = client.get_index("chosen").query_default
    assert default is not None
    assert (default.selector, best.is_default) == (best.parameters.selector, True)
    answer = client.query("chosen", QUERIES[0], k=5)
    assert answer.parameters.selector == best.parameters.selector


def test_what_one_index_refuses(client: Client) -> None:
    with refused("categories"):
        list(client.evaluate("points", QUERIES, [99] * 40, **GRID))
    with refused("relevant"):
        list(client.evaluate("points", QUERIES, relevant=[[N]] * 40, **GRID))
    client.build("plain", POINTS[:60])
    with pytest.raises(UnfitIndexError, match="has no categories"):
        list(client.evaluate("plain", QUERIES, CATEGORIES, **GRID))


def without_scored(row: EvaluateLabelRow) -> EvaluateLabelRow:
    """Return the row without the number of points that were scored, which differs on shards."""
    values = {name: values for name, values in row.values.items() if name != "scored"}
    return replace(row, scored=0, values=values)


def test_labels_are_those_of_one_index(client: Client) -> None:
    points, columns = labelled_documents.documents(), labelled_documents.everything()
    documents = labelled_documents.documents(30, seed=1)
    truth, grid = labelled_documents.labels_of(documents), {"top_ks": (4,), "neighbours": 7}
    axes: dict[str, Any] = grid | {
        "modes": ("embedding", "neighbour_vote"),
        "selectors": ("nearest", "greedy"),
        "thresholds": (0.1, 0.3),
        "diversities": (0.2,),
    }
    client.build("labelled", points, **columns)
    options: dict[str, Any] = {"per_document": True, "folds": 3, "set_default": True}
    wire = list(client.evaluate_labels("labelled", documents, truth, **options, **axes))
    whole = Index.build(points, **columns)
    rows = list(evaluate_labels(whole, documents, truth, grid=LabelGrid(**axes), **options))
    assert_same_rows(*([without_scored(row) for row in part] for part in (wire, rows)))
    labels, expected = client.get_index("labelled").labels, whole.info.labels
    assert labels is not None
    assert expected is not None
    assert labels.thresholds == expected.thresholds
    assert labels.thresholds


def test_a_caller_that_leaves_ends_the_evaluator(server: RunningServer, client: Client) -> None:
    """Queries are answered meanwhile."""
    events: list[Progress] = []
    with Client(server.target, timeout=120) as caller:
        rows = caller.evaluate("points", MANY, CATEGORIES_OF_MANY, progress=events.append, **LONG)
        thread = draw_in_a_thread(rows)
        eventually(lambda: events and events[-1].rows_done, WAIT_SECONDS)
        client.query("points", QUERIES)
        assert events[-1].rows_done < events[-1].rows_total
        pids = server.pids("evaluator")
        assert pids
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    eventually(lambda: not any(map(alive, pids)), WAIT_SECONDS)
    client.query("points", QUERIES)


def test_a_deadline_ends_an_evaluation(client: Client) -> None:
    start = time.monotonic()
    with failing(CODES.DEADLINE_EXCEEDED):
        list(client.evaluate("points", MANY, CATEGORIES_OF_MANY, timeout=1, **LONG))
    assert time.monotonic() - start < 20


def test_killed_shard_servers_and_evaluators_cost_no_row(
    server: RunningServer, client: Client, core: Index
) -> None:
    """The other replica answers, and a second evaluator starts over."""
    options = LONG | {"searches": ("exact",), "diversities": (0.2, 0.4, 0.6, 0.8)}
    events: list[Progress] = []

    def kill(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 2:
            for engine in server.pids("engine"):
                os.kill(children(engine)[0], signal.SIGKILL)
        if len(events) == 3:
            server.kill("evaluator")

    rows = client.evaluate("points", QUERIES, CATEGORIES, progress=kill, **options)
    assert_same_rows(list(rows), list(evaluate(core, QUERIES, CATEGORIES, grid=Grid(**options))))
    assert len(events) > 2


def test_an_index_that_is_replaced_is_evaluated_anew(client: Client) -> None:
    """No row has figures of two generations."""
    client.build("changing", POINTS[:200], **SMALL)
    events: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 1:
            client.build("changing", -POINTS[:200], replace=True, **SMALL)

    options = LONG | {"searches": ("exact",), "diversities": (0.2, 0.4, 0.6, 0.8)}
    lines = client.evaluate("changing", QUERIES, CATEGORIES, progress=on_progress, **options)
    rows = list(lines)
    # The evaluation may end before the index is replaced.
    points = POINTS[:200] if rows[0].generation == 1 else -POINTS[:200]
    whole = Index.build(points, **SMALL)
    expected = list(evaluate(whole, QUERIES, CATEGORIES, grid=Grid(**options)))
    assert_same_rows([replace(row, generation=1) for row in rows], expected)


@pytest.fixture
def half_a_cluster(tmp_path: Path) -> Iterator[RunningServer]:
    """Yield a server of an index with two shards. No shard server has the second shard."""
    data, token = tmp_path / "data", tmp_path / "token"
    token.write_text(SECRET)
    with staging(data / "points", replace=False) as stage:
        stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
        builder = IndexBuilder(stage, BuildParameters())
        builder.append(POINTS[:100], categories=np.arange(100) % 3)
        builder.build()
    (data / ROOT_LOCK).touch()
    secret = ("--cluster-token", str(token))
    options = ("--data-dir", str(data), "--read-only", "--workers", "1", *secret)
    with RunningServer(tmp_path, *options, "--role", "shard") as shard_server:
        places = ("--shard-servers", f"{shard_server.target},127.0.0.1:1", "--worker-wait", "1")
        with RunningServer(tmp_path, *options, "--shards", "2", *places) as running:
            yield running


def test_a_missing_shard_ends_an_evaluation(half_a_cluster: RunningServer) -> None:
    with Client(half_a_cluster.target, timeout=60, retries=False) as client:
        for _ in range(2):
            with pytest.raises(RpcError, match="no server with shard 1") as error_info:
                list(client.evaluate("points", QUERIES, CATEGORIES, **GRID))
            expected = (CODES.UNAVAILABLE, "SHARDS_MISSING", True)
            error = error_info.value
            assert (error.code, error.reason, error.retry_after is not None) == expected
        eventually(lambda: not half_a_cluster.pids("evaluator"), WAIT_SECONDS)
