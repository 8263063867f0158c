"""Evaluate over the wire: its results, what it refuses, and faults during an evaluation."""

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from divgrpc import Index
from divgrpc.errors import IndexDamagedError, IndexNotFoundError, InvalidArgumentError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.parameters.query import DEFAULT_DIVERSITY
from divgrpc.types import EvaluateRow, Interval, Progress
from divgrpc_client import Client, RpcError
from divgrpc_client.messages import evaluate as messages_of_evaluate
from divgrpc_server.evaluator.process import NICENESS
from support.checks.refusals import cases_of, failing, refused
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import EVALUATED_ROWS as N
from support.data.served_index import place, random_points
from support.processes.drawing import draw_in_a_thread
from support.processes.running_server import RunningServer, alive, eventually

GRID: dict[str, Any] = {
    "selectors": ("nearest", "greedy"),
    "variants": ("corrected", "marginal"),
    "searches": ("auto", "exact"),
    "limits": ((None, None), (60, 30)),
    "diversities": (0.2, 0.8),
    "ks": (5, 8),
    "seed": 7,
}
ONE: dict[str, Any] = {"selectors": ("greedy",), "ks": (5,)}
# Evaluators have a low priority, so other programs may delay them for long.
WAIT_SECONDS = 60.0
# These settings make an evaluation long enough for events to happen during it.
LONG: dict[str, Any] = {"selectors": ("greedy",), "searches": ("exact",), "limits": ((0, 0),)}
MANY, CATEGORIES_OF_MANY = random_points(2_000, seed=5), np.arange(2_000) % 3
LABELS: dict[str, Any] = {"categories": np.arange(N) % 3, "subtopics": np.arange(N) // 3 % 4}


QUERIES = random_points(90, seed=8)
CATEGORIES = np.arange(90) % 3


@pytest.fixture(scope="module")
def core(server: RunningServer, evaluated_name: str) -> Index:
    """Open the index `evaluated` in this process."""
    return Index.open(server.folder / "data" / evaluated_name)


def evaluate_both(
    client: Client,
    core: Index,
    queries: Any,  # noqa: ANN401  # dense or sparse
    grid: dict[str, Any],
    **options: Any,  # noqa: ANN401  # of `evaluate`
) -> list[EvaluateRow]:
    """Evaluate over the wire and in the core, check that the rows are equal, and return them."""
    wire = list(client.evaluate("evaluated", queries, **grid, **options))
    options.pop("progress", None)
    assert_same_rows(wire, list(evaluate(core, queries, grid=Grid(**grid), **options)))
    return wire


@pytest.mark.parametrize("per_query", [False, True])
def test_the_wire_gives_the_rows_of_the_core(client: Client, core: Index, per_query: bool) -> None:
    """All rows are equal except for the measured times."""
    events: list[Progress] = []
    options: dict[str, Any] = {"categories": CATEGORIES, "folds": 4, "per_query": per_query}
    wire = evaluate_both(client, core, QUERIES, GRID, progress=events.append, **options)
    settings = len(Grid(**GRID).settings())
    assert sum(not row.by_fold for row in wire) == settings
    assert events[0].rows_done == 0
    assert events[-1].rows_done == events[-1].rows_total == settings * len(QUERIES)
    assert {progress.stage for progress in events} == {"evaluating"}


def test_each_rounding_of_qp_relax_is_evaluated(client: Client, core: Index) -> None:
    """The evaluation returns a row with a choice by folds for each rounding."""
    grid: dict[str, Any] = {
        "selectors": ("qp_relax",),
        "roundings": ("top_k", "exchange"),
        "limits": ((60, 30),),
        "diversities": (0.5, 0.7),
    }
    wire = evaluate_both(client, core, QUERIES[:20], grid, categories=CATEGORIES[:20])
    assert [row.parameters.rounding for row in wire if row.by_fold] == ["top_k", "exchange"]


@pytest.mark.usefixtures("one_message_or_several")
def test_parameters_of_the_search_are_axes(client: Client, core: Index) -> None:
    """The rows have the value of each setting, and a choice is made among all values."""
    grid: dict[str, Any] = {
        "selectors": ("nearest",),
        "searches": ("tables",),
        "limits": ((0, 0), (None, 20)),
        "epsilons": (None, 0.5, 1.0),
        "n_probes": (None, 10, 30),
        "samplings": ("uniform", "nearest"),
        "ks": (5,),
    }
    wire = evaluate_both(client, core, QUERIES, grid, categories=CATEGORIES)
    *rows, choice = wire
    assert [row.parameters.n_probes for row in rows[1:3]] == [10, 30]
    assert [row.epsilon for row in rows] == [None] * 9 + [0.5] * 6 + [1.0] * 6
    limits = [math.ceil(2 * N ** (1 / (1 + epsilon))) for epsilon in (0.5, 1.0)]
    assert [row.parameters.hash_limit for row in rows[9::6]] == limits
    assert [row.parameters.sampling for row in rows] == ["uniform"] * 3 + 9 * ["uniform", "nearest"]
    assert choice.by_fold
    assert len({row.metrics["h_score"].value for row in rows}) > 5


@pytest.mark.usefixtures("one_message_or_several")
def test_intervals_and_folds_are_over_groups(client: Client, core: Index) -> None:
    """By default the categories are the groups, and with relevant ids each query is one."""
    groups = np.random.default_rng(1).integers(-(2**40), 2**40, 12)[np.arange(90) % 12]
    relevant = [np.arange(number, N, 7) * 3 for number in range(len(QUERIES))]
    grid = {**ONE, "diversities": (0.2, 0.5, 0.8)}

    def h_of(**options: Any) -> list[Interval]:  # noqa: ANN401  # of `evaluate`
        rows = evaluate_both(client, core, QUERIES, grid, folds=3, **options)
        return [row.metrics["h_score"] for row in rows]

    by_category = h_of(categories=CATEGORIES)
    assert by_category == h_of(categories=CATEGORIES, groups=CATEGORIES * 5)
    by_group = h_of(categories=CATEGORIES, groups=groups)
    assert [h.value for h in by_group[:3]] == [h.value for h in by_category[:3]]
    assert [h.low for h in by_group] != [h.low for h in by_category]
    alone = h_of(relevant=relevant)
    assert np.allclose(alone, h_of(relevant=relevant, groups=np.arange(90)), rtol=1e-9, atol=0)
    assert [h.low for h in alone] != [h.low for h in h_of(relevant=relevant, groups=groups)]
    one = evaluate_both(client, core, QUERIES, grid, relevant=relevant, groups=[4] * 90)
    assert [row.by_fold for row in one] == [()] * 3
    assert all(math.isnan(row.metrics["h_score"].low) for row in one)
    with refused("groups"):
        list(client.evaluate("evaluated", QUERIES, CATEGORIES, groups=groups[1:]))


def test_relevant_ids_and_sparse_queries_are_evaluated(client: Client, core: Index) -> None:
    """Relevant ids may replace categories, and sparse queries may replace dense ones."""
    relevant = [np.arange(number, N, 7) * 3 for number in range(len(QUERIES))]
    evaluate_both(client, core, QUERIES, ONE, relevant=relevant)
    thin = csr_array(np.where(np.abs(QUERIES) > 0.3, QUERIES, 0))
    evaluate_both(client, core, thin, ONE, categories=CATEGORIES)


def test_a_new_default_applies_at_once(server: RunningServer, client: Client) -> None:
    """Every worker uses it for parameters that a query does not set, and GetIndex shows it."""
    place(server, "tuned", random_points(N), **LABELS)
    grid = GRID | {"ks": [5]}
    rows = list(client.evaluate("tuned", QUERIES, CATEGORIES, set_default=True, **grid))
    (winner,) = [row for row in rows if row.is_default]
    results = [client.query("tuned", QUERIES[:1], k=5) for _ in range(20)]
    assert all(result.parameters == replace(winner.parameters, seed=0) for result in results)
    default = client.get_index("tuned").query_default
    assert default is not None
    assert default.diversity == winner.parameters.diversity
    assert default == Index.open(server.folder / "data" / "tuned").default
    parameters = client.query("tuned", QUERIES[:1], selector="mmr", diversity=0.11).parameters
    assert (parameters.selector, parameters.diversity) == ("mmr", 0.11)
    batch = client.query("tuned", QUERIES, k=5)
    assert batch.parameters == results[0].parameters
    (stream_result,) = client.query_stream("tuned", [QUERIES[:1]], k=5)
    assert stream_result.parameters == results[0].parameters
    place(server, "tuned", random_points(N))
    assert client.get_index("tuned").query_default is None
    assert client.query("tuned", QUERIES[:1]).parameters.diversity == 0.15


def test_an_evaluation_of_the_built_in_values_takes_a_default_back(
    server: RunningServer, client: Client
) -> None:
    """After an evaluation of the built-in values alone, queries use these values again."""
    place(server, "back", random_points(N), **LABELS)
    before = client.query("back", QUERIES).parameters
    grid: dict[str, Any] = {"set_default": True, "folds": 4}
    list(client.evaluate("back", QUERIES, CATEGORIES, diversities=[0.7], **grid))
    assert client.query("back", QUERIES).parameters != before
    built_in: dict[str, Any] = {"selectors": ["greedy"], "diversities": [DEFAULT_DIVERSITY]}
    list(client.evaluate("back", QUERIES, CATEGORIES, **built_in, **grid))
    assert client.query("back", QUERIES).parameters == before


def test_queries_of_several_messages_are_evaluated_as_one(
    client: Client, core: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows equal the core's for all queries at once, but no default can be set."""
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 6_000)
    events: list[Progress] = []
    options: dict[str, Any] = {"categories": CATEGORIES, "folds": 4, "per_query": True}
    evaluate_both(client, core, QUERIES, GRID, progress=events.append, **options)
    rows = len(Grid(**GRID).settings()) * len(QUERIES)
    assert events[-1].rows_done == events[-1].rows_total == rows
    assert all(a.rows_done <= b.rows_done for a, b in pairwise(events))
    relevant = [[3 * number, 9] for number in range(len(QUERIES))]
    evaluate_both(client, core, QUERIES, ONE, relevant=relevant)
    for fields, field in cases_of(
        set_default=[True], categories=[CATEGORIES[1:]], folds=[999], limits=[[(1, 1)]]
    ):
        bad: dict[str, Any] = {"categories": CATEGORIES} | fields
        with refused(field):
            client.evaluate("evaluated", QUERIES, **bad)
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 50)
    with refused("queries", match="query 0"):
        client.evaluate("evaluated", QUERIES, CATEGORIES)


def long_run(client: Client, evaluated_name: str, **options: Any) -> Iterator[EvaluateRow]:  # noqa: ANN401  # of `evaluate`
    """Start a long evaluation."""
    dials = np.linspace(0.1, 0.9, 200).tolist()
    options |= {"diversities": dials, **LONG}
    return client.evaluate(evaluated_name, MANY, CATEGORIES_OF_MANY, **options)


def test_queries_are_answered_during_an_evaluation(
    server: RunningServer, client: Client, evaluated_name: str
) -> None:
    """The evaluator uses every core, and ends if the evaluation is cancelled."""
    events: list[Progress] = []
    with Client(server.target) as caller:
        thread = draw_in_a_thread(long_run(caller, evaluated_name, progress=events.append))
        eventually(lambda: len(events) > 1, WAIT_SECONDS)
        while len(events) < 4:
            assert client.query(evaluated_name, random_points(1)).counts[0] == 10
        client.query(evaluated_name, random_points(400))
        assert events[-1].rows_done < events[-1].rows_total
        pids = server.pids("evaluator")
        assert pids
    thread.join(20)
    eventually(lambda: not any(map(alive, pids)), WAIT_SECONDS)
    assert client.query(evaluated_name, random_points(1)).counts[0] == 10


def test_evaluations_reuse_a_process(
    server: RunningServer, client: Client, evaluated_name: str
) -> None:
    list(client.evaluate(evaluated_name, QUERIES, CATEGORIES, **ONE))
    pids = server.pids("evaluator")
    assert pids
    with pytest.raises(InvalidArgumentError):
        list(client.evaluate(evaluated_name, QUERIES, [99] * 90, **ONE))
    list(client.evaluate(evaluated_name, QUERIES, CATEGORIES, **ONE))
    assert server.pids("evaluator") == pids


def test_an_evaluator_has_a_low_priority(
    server: RunningServer, client: Client, evaluated_name: str
) -> None:
    """If Linux schedules processes by session, the evaluator's session has a low priority too."""
    expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    list(client.evaluate(evaluated_name, QUERIES, CATEGORIES, **ONE))
    pids = server.pids("evaluator")
    assert pids
    for pid in pids:
        assert os.getpriority(os.PRIO_PROCESS, pid) == expected
        with suppress(FileNotFoundError):
            text = Path(f"/proc/{pid}/autogroup").read_text()
            assert not text or text.split()[-1] == str(NICENESS)


@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_a_killed_process_does_not_fail_an_evaluation(
    server: RunningServer, client: Client, core: Index, role: str
) -> None:
    """Workers take no part in an evaluation; a second evaluator starts it again."""
    options = LONG | {"diversities": np.linspace(0.1, 0.9, 30).tolist(), "ks": (10,)}
    events: list[Progress] = []

    def kill(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 2:
            server.kill(role)

    evaluate_both(client, core, QUERIES, options, categories=CATEGORIES, progress=kill)
    assert len(events) > 2
    assert f'"role": "{role}"' in server.log
    eventually(lambda: client.server_info().workers_ready == 2, WAIT_SECONDS)


def test_an_evaluator_that_is_killed_twice(
    server: RunningServer, client: Client, evaluated_name: str
) -> None:
    """The call is UNAVAILABLE, and the server continues to serve."""
    events: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        events.append(progress)
        if not progress.rows_done:
            for pid in server.pids("evaluator"):
                os.kill(pid, signal.SIGKILL)

    with failing(grpc.StatusCode.UNAVAILABLE, match="two evaluators ended"):
        list(
            client.evaluate(evaluated_name, MANY, CATEGORIES_OF_MANY, progress=on_progress, **LONG)
        )
    assert len(events) == 2
    assert list(client.evaluate(evaluated_name, random_points(5), [0] * 5))


def test_a_file_that_is_truncated_during_an_evaluation(
    server: RunningServer, client: Client
) -> None:
    """It kills the first evaluator; the second one checks the lengths of files."""
    place(server, "cut", random_points(N), **LABELS)

    def on_progress(_: Progress) -> None:
        for path in (server.folder / "data" / "cut" / "1").glob("*.npy"):
            os.truncate(path, 0)

    with failing(grpc.StatusCode.DATA_LOSS, IndexDamagedError):
        list(client.evaluate("cut", QUERIES, CATEGORIES, progress=on_progress, **LONG))


def test_an_index_that_is_deleted_during_an_evaluation(
    server: RunningServer, client: Client
) -> None:
    """The evaluation of the deleted generation completes, and the next call is NOT_FOUND."""
    place(server, "deleted", random_points(N), **LABELS)
    events: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 1:
            client.delete_index("deleted")

    assert list(client.evaluate("deleted", QUERIES, CATEGORIES, progress=on_progress, **ONE))
    with pytest.raises(IndexNotFoundError):
        list(client.evaluate("deleted", QUERIES, CATEGORIES, **ONE))


def test_an_evaluation_stays_on_one_generation(server: RunningServer, client: Client) -> None:
    place(server, "pinned", random_points(N), **LABELS)
    options = LONG | {"diversities": np.linspace(0.1, 0.9, 20).tolist(), "ks": [10]}
    before = list(client.evaluate("pinned", QUERIES, CATEGORIES, **options))
    events: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 1:
            place(server, "pinned", random_points(N, seed=77), **LABELS)

    rows = client.evaluate("pinned", QUERIES, CATEGORIES, progress=on_progress, **options)
    assert_same_rows(list(rows), before)
    assert client.get_index("pinned").generation == 2


def test_a_deadline_ends_an_evaluation(client: Client, evaluated_name: str) -> None:
    start = time.monotonic()
    with failing(grpc.StatusCode.DEADLINE_EXCEEDED):
        list(long_run(client, evaluated_name, timeout=0.5))
    assert time.monotonic() - start < 20


def test_a_third_evaluation_at_a_time_is_refused(
    server: RunningServer, client: Client, evaluated_name: str
) -> None:
    assert client.server_info().limits["evaluations_max"] == 2
    events: list[list[Progress]] = [[], []]
    with Client(server.target) as caller:
        runs = [
            long_run(caller, evaluated_name, progress=event_list.append) for event_list in events
        ]
        threads = [draw_in_a_thread(rows) for rows in runs]
        eventually(lambda: all(events), WAIT_SECONDS)
        with pytest.raises(RpcError) as error_info:
            list(client.evaluate(evaluated_name, random_points(5), [0] * 5))
        expected = (grpc.StatusCode.RESOURCE_EXHAUSTED, "EVALUATIONS_FULL", True)
        error = error_info.value
        assert (error.code, error.reason, error.retry_after is not None) == expected
    for thread in threads:
        thread.join(20)

    def free() -> bool:
        with suppress(RpcError):
            return bool(list(client.evaluate(evaluated_name, random_points(5), [0] * 5)))
        return False

    eventually(free, WAIT_SECONDS)
