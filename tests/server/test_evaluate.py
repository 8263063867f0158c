"""Evaluate over the wire: its results, what it refuses, and faults during an evaluation."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
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
from divgrpc.types import EvaluateRow, FloatArray, Interval, Progress
from divgrpc_client import Client, RpcError
from divgrpc_client.messages import evaluate as messages_of_evaluate
from divgrpc_server.evaluator.__main__ import NICENESS
from support.checks.refusals import refused
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import EVALUATED_ROWS as N
from support.data.served_index import place, random_points
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


@pytest.fixture(scope="module")
def queries() -> FloatArray:
    """Return 90 queries."""
    return random_points(90, seed=8)


CATEGORIES = np.arange(90) % 3


@pytest.fixture(scope="module")
def core(server: RunningServer, evaluated: str) -> Index:
    """Open the index `evaluated` in this process."""
    return Index.open(server.folder / "data" / evaluated)


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
def test_the_wire_gives_the_rows_of_the_core(
    client: Client, core: Index, queries: FloatArray, per_query: bool
) -> None:
    """All rows are equal except for the measured times."""
    events: list[Progress] = []
    options: dict[str, Any] = {"categories": CATEGORIES, "folds": 4, "per_query": per_query}
    wire = evaluate_both(client, core, queries, GRID, progress=events.append, **options)
    settings = len(Grid(**GRID).settings())
    assert sum(not row.by_fold for row in wire) == settings
    assert events[0].rows_done == 0
    assert events[-1].rows_done == events[-1].rows_total == settings * len(queries)
    assert {progress.stage for progress in events} == {"evaluating"}


def test_each_rounding_of_qp_relax_is_evaluated(
    client: Client, core: Index, queries: FloatArray
) -> None:
    """The evaluation returns a row with a choice by folds for each rounding."""
    grid: dict[str, Any] = {
        "selectors": ("qp_relax",),
        "roundings": ("top_k", "exchange"),
        "limits": ((60, 30),),
        "diversities": (0.5, 0.7),
    }
    wire = evaluate_both(client, core, queries[:20], grid, categories=CATEGORIES[:20])
    assert [row.parameters.rounding for row in wire if row.by_fold] == ["top_k", "exchange"]


@pytest.mark.parametrize("several", [False, True])
def test_parameters_of_the_search_are_axes(
    client: Client, core: Index, queries: FloatArray, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """The rows have the value of each setting, and a choice is made among all values."""
    if several:
        monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 6_000)
    grid: dict[str, Any] = {
        "selectors": ("nearest",),
        "searches": ("tables",),
        "limits": ((0, 0), (None, 20)),
        "epsilons": (None, 0.5, 1.0),
        "n_probes": (None, 10, 30),
        "samplings": ("uniform", "nearest"),
        "ks": (5,),
    }
    wire = evaluate_both(client, core, queries, grid, categories=CATEGORIES)
    *rows, choice = wire
    assert [row.parameters.n_probes for row in rows[1:3]] == [10, 30]
    assert [row.epsilon for row in rows] == [None] * 9 + [0.5] * 6 + [1.0] * 6
    limits = [math.ceil(2 * N ** (1 / (1 + epsilon))) for epsilon in (0.5, 1.0)]
    assert [row.parameters.hash_limit for row in rows[9::6]] == limits
    assert [row.parameters.sampling for row in rows] == ["uniform"] * 3 + 9 * ["uniform", "nearest"]
    assert choice.by_fold
    assert len({row.metrics["h_score"].value for row in rows}) > 5


@pytest.mark.parametrize("several", [False, True])
def test_intervals_and_folds_are_over_groups(
    client: Client, core: Index, queries: FloatArray, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """By default the categories are the groups, and with relevant ids each query is one."""
    if several:
        monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 6_000)
    groups = np.random.default_rng(1).integers(-(2**40), 2**40, 12)[np.arange(90) % 12]
    relevant = [np.arange(number, N, 7) * 3 for number in range(len(queries))]
    grid = {**ONE, "diversities": (0.2, 0.5, 0.8)}

    def h_of(**options: Any) -> list[Interval]:  # noqa: ANN401  # of `evaluate`
        rows = evaluate_both(client, core, queries, grid, folds=3, **options)
        return [row.metrics["h_score"] for row in rows]

    by_category = h_of(categories=CATEGORIES)
    assert by_category == h_of(categories=CATEGORIES, groups=CATEGORIES * 5)
    by_group = h_of(categories=CATEGORIES, groups=groups)
    assert [h.value for h in by_group[:3]] == [h.value for h in by_category[:3]]
    assert [h.low for h in by_group] != [h.low for h in by_category]
    alone = h_of(relevant=relevant)
    assert np.allclose(alone, h_of(relevant=relevant, groups=np.arange(90)), rtol=1e-9, atol=0)
    assert [h.low for h in alone] != [h.low for h in h_of(relevant=relevant, groups=groups)]
    one = evaluate_both(client, core, queries, grid, relevant=relevant, groups=[4] * 90)
    assert [row.by_fold for row in one] == [()] * 3
    assert all(math.isnan(row.metrics["h_score"].low) for row in one)
    with refused("groups"):
        list(client.evaluate("evaluated", queries, CATEGORIES, groups=groups[1:]))


def test_relevant_ids_and_sparse_queries_are_evaluated(
    client: Client, core: Index, queries: FloatArray
) -> None:
    """Relevant ids may replace categories, and sparse queries may replace dense ones."""
    relevant = [np.arange(number, N, 7) * 3 for number in range(len(queries))]
    evaluate_both(client, core, queries, ONE, relevant=relevant)
    thin = csr_array(np.where(np.abs(queries) > 0.3, queries, 0))
    evaluate_both(client, core, thin, ONE, categories=CATEGORIES)


def test_a_new_default_applies_at_once(
    server: RunningServer, client: Client, queries: FloatArray
) -> None:
    """Every worker uses the default for parameters that a query does not set.

    GetIndex shows the default.
    """
    rows = np.arange(N)
    place(server, "tuned", random_points(N), categories=rows % 3, subtopics=rows // 3 % 4)
    row_list = list(
        client.evaluate("tuned", queries, CATEGORIES, set_default=True, **GRID | {"ks": [5]})
    )
    (winner,) = [row for row in row_list if row.is_default]
    used = [client.query("tuned", queries[:1], k=5) for _ in range(20)]
    for result in used:
        assert result.parameters == winner.parameters.__class__(
            **{
                field: getattr(winner.parameters, field)
                for field in winner.parameters.__dataclass_fields__
            }
            | {"seed": 0}
        )
    default = client.get_index("tuned").query_default
    assert default is not None
    assert default.diversity == winner.parameters.diversity
    assert default == Index.open(server.folder / "data" / "tuned").default
    named = client.query("tuned", queries[:1], selector="mmr", diversity=0.11).parameters
    assert (named.selector, named.diversity) == ("mmr", 0.11)
    batch = client.query("tuned", queries, k=5)
    assert batch.parameters == used[0].parameters
    (streamed,) = client.query_stream("tuned", [queries[:1]], k=5)
    assert streamed.parameters == used[0].parameters
    place(server, "tuned", random_points(N))
    assert client.get_index("tuned").query_default is None
    assert client.query("tuned", queries[:1]).parameters.diversity == 0.15


def test_an_evaluation_of_the_built_in_values_takes_a_default_back(
    server: RunningServer, client: Client, queries: FloatArray
) -> None:
    """An evaluation whose grid has the built-in values alone makes queries as without a default."""
    rows = np.arange(N)
    place(server, "back", random_points(N), categories=rows % 3, subtopics=rows // 3 % 4)
    before = client.query("back", queries).parameters
    grid: dict[str, Any] = {"set_default": True, "folds": 4}
    list(client.evaluate("back", queries, CATEGORIES, diversities=[0.7], **grid))
    assert client.query("back", queries).parameters != before
    built_in: dict[str, Any] = {"selectors": ["greedy"], "diversities": [DEFAULT_DIVERSITY]}
    list(client.evaluate("back", queries, CATEGORIES, **built_in, **grid))
    assert client.query("back", queries).parameters == before


def test_queries_of_several_messages_are_evaluated_as_one(
    client: Client, core: Index, queries: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows equal the core's rows for all queries at once.

    An evaluation of several messages cannot set a default.
    """
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 6_000)
    events: list[Progress] = []
    options: dict[str, Any] = {"categories": CATEGORIES, "folds": 4, "per_query": True}
    evaluate_both(client, core, queries, GRID, progress=events.append, **options)
    rows = len(Grid(**GRID).settings()) * len(queries)
    assert events[-1].rows_done == events[-1].rows_total == rows
    assert all(a.rows_done <= b.rows_done for a, b in pairwise(events))
    relevant = [[3 * number, 9] for number in range(len(queries))]
    evaluate_both(client, core, queries, ONE, relevant=relevant)
    for field, fields in (
        ("set_default", {"set_default": True}),
        ("categories", {"categories": CATEGORIES[1:]}),
        ("folds", {"folds": 999}),
        ("limits", {"limits": [(1, 1)]}),
    ):
        bad: dict[str, Any] = {"categories": CATEGORIES} | fields
        with refused(field):
            client.evaluate("evaluated", queries, **bad)
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 50)
    with refused("queries", match="query 0"):
        client.evaluate("evaluated", queries, CATEGORIES)


def long_run(
    client: Client, evaluated: str, events: list[Progress], settings: int
) -> Iterator[EvaluateRow]:
    """Start a long evaluation, whose time grows with `settings`."""
    return client.evaluate(
        evaluated,
        random_points(2_000, seed=5),
        np.arange(2_000) % 3,
        progress=events.append,
        diversities=np.linspace(0.1, 0.9, settings).tolist(),
        **LONG,
    )


def draw_in_a_thread(rows: Iterator[EvaluateRow]) -> threading.Thread:
    """Draw all rows in a thread, and ignore the error with which the call ends."""

    def draw() -> None:
        with suppress(RpcError):
            list(rows)

    thread = threading.Thread(target=draw)
    thread.start()
    return thread


def test_queries_are_answered_during_an_evaluation(
    server: RunningServer, client: Client, evaluated: str
) -> None:
    """Workers answer queries while the evaluator uses every core.

    If the evaluation is cancelled, the evaluator ends.
    """
    events: list[Progress] = []
    with Client(server.target) as caller:
        thread = draw_in_a_thread(long_run(caller, evaluated, events, 200))
        eventually(lambda: len(events) > 1, WAIT_SECONDS)
        while len(events) < 4:
            assert client.query(evaluated, random_points(1)).counts[0] == 10
        client.query(evaluated, random_points(400))
        assert events[-1].rows_done < events[-1].rows_total
        pids = server.pids("evaluator")
        assert pids
    thread.join(20)
    eventually(lambda: not any(map(alive, pids)), WAIT_SECONDS)
    assert client.query(evaluated, random_points(1)).counts[0] == 10


def test_evaluations_reuse_a_process(
    server: RunningServer, client: Client, evaluated: str, queries: FloatArray
) -> None:
    """An evaluator serves the next evaluation whether the last one succeeded or failed."""
    list(client.evaluate(evaluated, queries, CATEGORIES, **ONE))
    pids = server.pids("evaluator")
    with pytest.raises(InvalidArgumentError):
        list(client.evaluate(evaluated, queries, [99] * 90, **ONE))
    list(client.evaluate(evaluated, queries, CATEGORIES, **ONE))
    assert server.pids("evaluator") == pids


def test_an_evaluator_has_a_low_priority(
    server: RunningServer, client: Client, evaluated: str, queries: FloatArray
) -> None:
    """If Linux schedules processes by session, the evaluator's session has a low priority too."""
    expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    list(client.evaluate(evaluated, queries, CATEGORIES, **ONE))
    for pid in server.pids("evaluator"):
        assert os.getpriority(os.PRIO_PROCESS, pid) == expected
        with suppress(FileNotFoundError):
            text = Path(f"/proc/{pid}/autogroup").read_text()
            assert not text or text.split()[-1] == str(NICENESS)


@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_a_killed_process_does_not_fail_an_evaluation(
    server: RunningServer, client: Client, core: Index, queries: FloatArray, role: str
) -> None:
    """Workers take no part in an evaluation, so their death does not matter to it.

    If the evaluator is killed, a second one starts the evaluation again.
    """
    options = LONG | {"diversities": np.linspace(0.1, 0.9, 30).tolist(), "ks": (10,)}
    events: list[Progress] = []

    def kill(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 2:
            server.kill(role)

    evaluate_both(client, core, queries, options, categories=CATEGORIES, progress=kill)
    assert len(events) > 2
    eventually(lambda: client.server_info().workers_ready == 2, WAIT_SECONDS)


def test_an_evaluator_that_is_killed_twice(
    server: RunningServer, client: Client, evaluated: str
) -> None:
    """The call is UNAVAILABLE, and the server continues to serve."""
    events: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        events.append(progress)
        if not progress.rows_done:
            for pid in server.pids("evaluator"):
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(RpcError, match="two evaluators ended") as caught:
        list(
            client.evaluate(
                evaluated, random_points(2_000), np.arange(2_000) % 3, progress=on_progress, **LONG
            )
        )
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    assert len(events) == 2
    assert list(client.evaluate(evaluated, random_points(5), [0] * 5))


def test_a_file_that_is_truncated_during_an_evaluation(
    server: RunningServer, client: Client, queries: FloatArray
) -> None:
    """Reading the truncated file kills the first evaluator.

    The second evaluator checks the lengths of files and reports DATA_LOSS.
    """
    rows = np.arange(N)
    place(server, "cut", random_points(N), categories=rows % 3, subtopics=rows // 3 % 4)

    def on_progress(_: Progress) -> None:
        for path in (server.folder / "data" / "cut" / "1").glob("*.npy"):
            os.truncate(path, 0)

    with pytest.raises(IndexDamagedError) as caught:
        list(client.evaluate("cut", queries, CATEGORIES, progress=on_progress, **LONG))
    assert isinstance(caught.value, RpcError)
    assert caught.value.code == grpc.StatusCode.DATA_LOSS


def test_an_index_that_is_deleted_during_an_evaluation(
    server: RunningServer, client: Client, queries: FloatArray
) -> None:
    """The evaluation of the deleted generation completes, and the next call is NOT_FOUND."""
    rows = np.arange(N)
    place(server, "deleted", random_points(N), categories=rows % 3, subtopics=rows // 3 % 4)
    events: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 1:
            client.delete_index("deleted")

    assert list(client.evaluate("deleted", queries, CATEGORIES, progress=on_progress, **ONE))
    with pytest.raises(IndexNotFoundError):
        list(client.evaluate("deleted", queries, CATEGORIES, **ONE))


def test_an_evaluation_stays_on_one_generation(
    server: RunningServer, client: Client, queries: FloatArray
) -> None:
    """An evaluation returns the rows of the old generation if the index is replaced meanwhile."""
    rows = np.arange(N)
    labels: dict[str, Any] = {"categories": rows % 3, "subtopics": rows // 3 % 4}
    place(server, "pinned", random_points(N), **labels)
    options = LONG | {"diversities": np.linspace(0.1, 0.9, 20).tolist(), "ks": [10]}
    before = list(client.evaluate("pinned", queries, CATEGORIES, **options))
    events: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        events.append(progress)
        if len(events) == 1:
            place(server, "pinned", random_points(N, seed=77), **labels)

    assert_same_rows(
        list(client.evaluate("pinned", queries, CATEGORIES, progress=on_progress, **options)),
        before,
    )
    assert client.get_index("pinned").generation == 2


def test_a_deadline_ends_an_evaluation(client: Client, evaluated: str) -> None:
    many = random_points(2_000, seed=5)
    dials = np.linspace(0.1, 0.9, 200).tolist()
    start = time.monotonic()
    with pytest.raises(RpcError) as caught:
        list(
            client.evaluate(
                evaluated, many, np.arange(2_000) % 3, timeout=0.5, diversities=dials, **LONG
            )
        )
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 20


def test_a_third_evaluation_at_a_time_is_refused(
    server: RunningServer, client: Client, evaluated: str
) -> None:
    """The third evaluation is refused as RESOURCE_EXHAUSTED with a retry delay."""
    assert client.server_info().limits["evaluations_max"] == 2
    events: list[list[Progress]] = [[], []]
    with Client(server.target) as caller:
        threads = [draw_in_a_thread(long_run(caller, evaluated, each, 200)) for each in events]
        eventually(lambda: all(events), WAIT_SECONDS)
        with pytest.raises(RpcError) as caught:
            list(client.evaluate(evaluated, random_points(5), [0] * 5))
        assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.reason == "EVALUATIONS_FULL"
        assert caught.value.retry_after is not None
    for thread in threads:
        thread.join(20)

    def free() -> bool:
        with suppress(RpcError):
            return bool(list(client.evaluate(evaluated, random_points(5), [0] * 5)))
        return False

    eventually(free, WAIT_SECONDS)
