"""Evaluate of both clients: the requests, the rows and the errors."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.types import EvaluateRow, Interval, Microseconds, Progress
from divgrpc_client import AsyncClient, Client
from divgrpc_protos.v1 import evaluate_pb2, query_pb2
from support.checks.refusals import cases_of, failing, refused
from support.processes.scripted_server import ScriptedIndex

QUERIES = np.ones((2, 3))
OPTIONS: dict[str, Any] = {
    "selectors": ["greedy"],
    "limits": [(None, 50), (0, np.int64(0))],
    "epsilons": [None, np.float32(0.5)],
    "samplings": ["nearest"],
    "diversities": np.array([0.5]),
    "ks": np.array([3]),
    "seed": 5,
    "groups": np.array([7, -(2**40)]),
    "folds": 2,
    "set_default": True,
    "per_query": True,
}


def rows_of(
    target: str,
    *,
    is_async: bool,
    settings: dict[str, Any] | None = None,
    **options: Any,  # noqa: ANN401  # any option's
) -> list[EvaluateRow]:
    """Evaluate with one of the clients; if `options` has no `folds`, no setting is chosen."""
    options = {"folds": 0, **options}
    if not is_async:
        with Client(target, **settings or {}) as client:
            return list(client.evaluate("one", QUERIES, [0, 1], **options))

    async def evaluate() -> list[EvaluateRow]:
        async with AsyncClient(target, **settings or {}) as client:
            return [row async for row in client.evaluate("one", QUERIES, [0, 1], **options)]

    return asyncio.run(evaluate())


@pytest.fixture(params=[False, True], ids=["sync", "aio"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Return whether the test uses the asynchronous client."""
    return bool(request.param)


def test_rows_and_progress_are_returned(target: str, is_async: bool) -> None:
    steps: list[Progress] = []
    first, second = rows_of(target, is_async=is_async, progress=steps.append)
    assert steps == [Progress("evaluating", 1, 2, 3.0)]
    assert first.metrics == {"h_score": Interval(0.5, 0.25, 0.75)}
    assert first.microseconds == Microseconds(1, 2, 3, 4)
    assert (first.search, first.parameters.search) == ("auto", "scan")
    assert (first.number, first.queries, first.empty, first.short) == (0, 2, 0, 1)
    assert (first.on_front, first.by_fold, first.is_default) == (True, (), False)
    assert first.h_of_means == 0.625
    assert first.values["h_score"].tolist() == [0.25, 0.75]
    assert (second.number, second.on_front, second.by_fold) == (1, False, (0, 0))


def test_rows_of_the_sync_client_outlive_an_event_loop(target: str) -> None:
    """The end of an event loop does not end rows whose first row was taken inside the loop."""

    async def first_of(rows: Iterator[EvaluateRow]) -> EvaluateRow:
        return next(rows)

    with Client(target) as client:
        rows = client.evaluate("one", QUERIES, [0, 1], folds=0)
        assert [row.number for row in (asyncio.run(first_of(rows)), *rows)] == [0, 1]


def test_progress_of_the_sync_client_may_raise_stop_async_iteration(target: str) -> None:
    """This error reaches the caller: it does not end the rows or become a RuntimeError."""

    def stop(_: Progress) -> None:
        raise StopAsyncIteration

    with pytest.raises(StopAsyncIteration):
        rows_of(target, is_async=False, progress=stop)


def test_a_request_has_every_option(target: str, script: ScriptedIndex, is_async: bool) -> None:
    """If an axis of the grid is left out, the client sends its default values."""
    rows_of(target, is_async=is_async, timeout=9, request_id="mine", **OPTIONS)
    (request,) = script.evaluations
    assert request.queries.dense.rows == 2
    request.ClearField("queries")
    limits, epsilon = evaluate_pb2.EvaluateLimits, evaluate_pb2.EvaluateEpsilon
    assert request == evaluate_pb2.EvaluateRequest(
        index="one",
        categories=[0, 1],
        selectors=[query_pb2.SELECTOR_GREEDY],
        variants=[query_pb2.VARIANT_MARGINAL],
        searches=[query_pb2.SEARCH_AUTO],
        limits=[limits(candidates_limit=50), limits(hash_limit=0, candidates_limit=0)],
        diversities=[0.5],
        ks=[3],
        seed=5,
        folds=2,
        set_default=True,
        per_query=True,
        roundings=[query_pb2.ROUNDING_EXCHANGE],
        n_probes=[evaluate_pb2.EvaluateProbes()],
        samplings=[query_pb2.SAMPLING_NEAREST],
        epsilons=[epsilon(), epsilon(epsilon=0.5)],
        groups=[7, -(2**40)],
    )
    assert script.metadata["x-request-id"] == "mine"
    # The clocks of two processes differ, so the server may see slightly more than 9 seconds left.
    assert 0 < script.seconds_left <= 9.5


def test_a_failure_is_an_rpc_error(target: str, script: ScriptedIndex, is_async: bool) -> None:
    """The error names the method that failed."""
    script.failures = [grpc.StatusCode.RESOURCE_EXHAUSTED]
    with failing(grpc.StatusCode.RESOURCE_EXHAUSTED, match="Evaluate"):
        rows_of(target, is_async=is_async)


def test_a_silent_server_ends_the_evaluation(
    target: str, script: ScriptedIndex, is_async: bool
) -> None:
    """After the idle timeout the client ends the call, and the server sees the cancellation."""
    script.silent = True
    with failing(grpc.StatusCode.DEADLINE_EXCEEDED, reason="STALLED"):
        rows_of(target, is_async=is_async, settings={"idle_timeout": 0.3})
    assert script.cancelled.wait(10)


def test_closing_the_iterator_cancels_the_call(target: str, script: ScriptedIndex) -> None:
    with Client(target) as client:
        rows = client.evaluate("one", QUERIES, [0, 1], folds=0)
        next(rows)
        rows.close()  # type: ignore[attr-defined]  # a generator
        assert script.cancelled.wait(10)


@pytest.mark.parametrize("flag", ["set_default", "per_query", "keep_duplicates"])
def test_flags_must_be_bools(target: str, flag: str) -> None:
    """Flags of a call and options of its grid are refused in the same words."""
    flags: dict[str, Any] = {flag: 1}
    with refused(flag, match=f"^{flag} must be true or false, got 1$"):
        rows_of(target, is_async=False, **flags)


OF_POINTS = cases_of(
    categories=([0.5, 1], [[0, 1]], [2**40, 1]),
    ks=([], [True]),
    selectors=("greedy", ["nearby"]),
    diversities=([None],),
    limits=([(1, 2, 3)], [("a", 2)]),
    folds=("many",),
    seed=(-1,),
)
OF_POINTS += [
    ({"categories": None, **case}, "relevant")
    for case, _ in cases_of(relevant=([["a"], [1]], [[2**63], [1]]))
]
OF_LABELS = cases_of(
    top_ks=([],),
    modes=("embedding", ["nearby"]),
    diversities=([None],),
    thresholds=(["much"], [True]),
    vote=("loud",),
    neighbours=("many",),
    folds=("many",),
    labels=([[1.0]],),
)


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [
        *(("evaluate", *case) for case in OF_POINTS),
        *(("evaluate_labels", *case) for case in OF_LABELS),
    ],
)
def test_the_client_refuses_invalid_arguments(
    script: ScriptedIndex, target: str, method: str, fields: dict[str, Any], field: str
) -> None:
    """For example, it refuses an empty axis; the server would take it for the default."""
    right: dict[str, Any] = {"categories": [0, 1]}
    if method == "evaluate_labels":
        right = {"labels": np.eye(2)}
    with Client(target) as client, refused(field):
        getattr(client, method)("one", QUERIES, **right | fields)
    assert not script.calls


@pytest.mark.parametrize(
    ("method", "axis"), [("evaluate", "hash_limits"), ("evaluate_labels", "ks")]
)
def test_unknown_axes_are_type_errors(target: str, method: str, axis: str) -> None:
    with Client(target) as client, pytest.raises(TypeError, match=axis):
        getattr(client, method)("one", QUERIES, np.eye(2), **{axis: [3]})
