"""Build and QueryStream of both clients, against a server that reorders, fails or is silent."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client import AsyncClient, Client, Progress, QueryResult, RpcError, Withdrawal
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_protos import arrays
from support.checks.refusals import failing, refused
from support.processes.both_clients import Stack
from support.processes.scripted_server import ScriptedIndex


def rows(count: int) -> Iterator[VectorsLike]:
    return (np.array([n, 1], np.float32) for n in range(count))


@pytest.mark.parametrize("turn_round", [1, 4, 7])
def test_results_come_in_the_order_of_the_queries(
    call: Stack, script: ScriptedIndex, turn_round: int
) -> None:
    """The server answers in another order, but results keep the order of the queries."""
    script.turn_round = turn_round
    results = call("query_stream", "images", rows(23), k=3)
    assert [result.ids[0, 0] for result in results] == [10 * n for n in range(23)]
    assert script.calls["QueryStream"] == 1
    assert {query.k for query in script.queries} == {3}


def test_streams_may_be_empty(call: Stack) -> None:
    assert call("query_stream", "images", []) == []


def test_streams_take_batches(call: Stack) -> None:
    results = call("query_stream", "images", [np.ones((4, 2)), np.ones((1, 2))])
    assert [len(result.ids) for result in results] == [4, 1]


def test_a_stream_of_the_sync_client_outlives_an_event_loop(target: str) -> None:
    """A stream whose first result was taken inside an event loop outlives the loop."""

    async def first_of(results: Iterator[QueryResult]) -> QueryResult:
        return next(results)

    with Client(target) as client:
        results = client.query_stream("images", rows(9))
        first = asyncio.run(first_of(results))
        assert [result.ids[0, 0] for result in [first, *results]] == [10 * n for n in range(9)]


def test_in_flight_bounds_the_queries_under_way(script: ScriptedIndex, target: str) -> None:
    """The client takes further queries from the iterable only when the caller takes results."""
    numbers: list[int] = []

    def queries() -> Iterator[VectorsLike]:
        for n in range(50):
            numbers.append(n)
            yield np.array([n, 1], np.float32)

    with Client(target) as client:
        for result_count, _ in enumerate(client.query_stream("images", queries(), in_flight=5), 1):
            # One more query may be drawn, which waits until another query is answered.
            assert len(numbers) <= result_count + 6
    assert len(script.queries) == 50


def test_a_refused_query_ends_the_stream(call: Stack, script: ScriptedIndex) -> None:
    """The results of earlier queries come first, then the error with all its details."""
    script.turn_round = 3
    results: list[object] = []
    queries = [[1.0, 0], [2.0, 0], [-1.0, 0], [4.0, 0]]
    with failing(grpc.StatusCode.INVALID_ARGUMENT, InvalidArgumentError, field="k"):
        call("query_stream", "images", queries, on_result=results.append)
    assert len(results) == 2


def test_a_stream_goes_on_after_an_error(call: Stack, script: ScriptedIndex) -> None:
    """The errors of refused queries have all their details, and come in order."""
    events: list[Any] = []
    queries = [[1.0, 0], [-1.0, 0], [-2.0, 0], [4.0, 0]]
    results = call(
        "query_stream",
        "images",
        queries,
        on_result=events.append,
        on_error=lambda *pair: events.append(pair),
    )
    first, (place, error), (next_place, _), last = events
    assert [first, last] == results
    assert (place, next_place) == (1, 2)
    assert isinstance(error, InvalidArgumentError)
    assert isinstance(error, RpcError)
    assert error.field == "k"
    assert last.ids[0, 0] == 40
    assert script.time_limits == [0] * 4


def test_a_time_limit_is_sent_with_each_query(call: Stack, script: ScriptedIndex) -> None:
    """It is rounded up to milliseconds, and an infinite limit is none."""
    for seconds in (0.25, 1e-9, 4_294_967, float("inf")):
        call("query_stream", "images", rows(1), time_limit=seconds)
    assert script.time_limits == [250, 1, 4_294_967_000, 0]


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "1", True, 4_294_968])
def test_wrong_time_limits_are_refused(call: Stack, script: ScriptedIndex, limit: object) -> None:
    with refused("time_limit"):
        call("query_stream", "images", rows(1), time_limit=limit)
    assert script.calls["QueryStream"] == 0


def test_a_withdrawal_ends_its_query_alone(call: Stack, script: ScriptedIndex) -> None:
    """The server answers after three queries; the first one is withdrawn before."""
    script.turn_round = 3
    items = [*rows(2), Withdrawal(0), *rows(3)]
    errors: dict[int, RpcError] = {}
    results = call("query_stream", "images", items, on_error=errors.__setitem__)
    assert [(number, error.reason) for number, error in errors.items()] == [(0, "WITHDRAWN")]
    assert errors[0].code is grpc.StatusCode.CANCELLED
    assert [result.ids[0, 0] for result in results] == [10, 0, 10, 20]
    with failing(grpc.StatusCode.CANCELLED, reason="WITHDRAWN"):
        call("query_stream", "images", [*rows(2), Withdrawal(0), *rows(3)])


def test_withdrawals_are_sent_though_no_query_may_be(call: Stack, script: ScriptedIndex) -> None:
    """The server answers nothing before the end of the requests but withdrawals."""
    script.turn_round = 100
    items = [*rows(3), Withdrawal(1), Withdrawal(0), Withdrawal(2)]
    errors: dict[int, RpcError] = {}
    on_error = errors.__setitem__
    assert call("query_stream", "images", items, in_flight=3, on_error=on_error) == []
    assert [error.reason for error in errors.values()] == ["WITHDRAWN"] * 3


@pytest.mark.parametrize("number", [2, -1, 0.5, "0", True])
def test_withdrawals_of_later_queries_are_refused(call: Stack, number: object) -> None:
    items = [*rows(2), Withdrawal(number)]  # type: ignore[arg-type]  # that is the point
    with refused("number"):
        call("query_stream", "images", items)


def test_errors_of_the_queries_reach_the_caller(call: Stack) -> None:
    """An error in the iterable of queries is raised after the results of earlier queries."""

    def queries() -> Iterator[VectorsLike]:
        yield [1.0, 2.0]
        raise LookupError("no more")

    results: list[object] = []
    with pytest.raises(LookupError, match="no more"):
        call("query_stream", "images", queries(), on_result=results.append)
    assert len(results) == 1
    with pytest.raises(InvalidArgumentError, match="queries"):
        call("query_stream", "images", [np.ones((2, 2, 2))])


def test_closing_a_stream_cancels_the_call(script: ScriptedIndex, target: str) -> None:
    """After the stream is closed, the client takes no further queries from the iterable."""
    with Client(target) as client:
        stream = client.query_stream("images", rows(10**6), in_flight=4)
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # it is a generator
        assert script.cancelled.wait(10)
        for watchdog in [t for t in threading.enumerate() if t.name == "divgrpc-watchdog"]:
            # On a busy machine the watchdog thread needs a moment to end.
            watchdog.join(10)
            assert not watchdog.is_alive()


async def _leave(target: str) -> None:
    async def queries() -> AsyncIterator[VectorsLike]:
        for n in range(10**6):
            yield [float(n), 1.0]

    async with AsyncClient(target) as client:
        stream = client.query_stream("images", queries(), in_flight=4)
        async with aclosing(stream) as results:  # type: ignore[type-var]  # it is a generator
            async for _ in results:
                break


def test_async_iterables_of_queries_are_accepted(script: ScriptedIndex, target: str) -> None:
    """Async iterables work too, and leaving the stream early cancels the call."""
    asyncio.run(_leave(target))
    assert script.cancelled.wait(10)


@pytest.mark.parametrize("method", ["query_stream", "build"])
def test_a_silent_server_ends_the_call_after_the_idle_timeout(
    call: Stack, script: ScriptedIndex, method: str
) -> None:
    """The idle timeout ends a silent call even if the call has no deadline."""
    script.silent = True
    arguments = rows(3) if method == "query_stream" else np.ones((3, 2))
    start = time.monotonic()
    with failing(grpc.StatusCode.DEADLINE_EXCEEDED, reason="STALLED", match="nothing moved"):
        call(method, "images", arguments, settings={"idle_timeout": 0.3})
    assert time.monotonic() - start < 10
    assert script.cancelled.wait(10)


def test_time_of_the_caller_does_not_count_as_idle(call: Stack) -> None:
    """The caller may take long to yield queries and to take results."""

    def queries() -> Iterator[VectorsLike]:
        for n in range(2):
            time.sleep(1.2)  # a slow caller is what is tested
            yield [float(n), 1.0]

    # The idle timeout also limits how long a busy machine may take for an answer.
    results = call("query_stream", "images", queries(), settings={"idle_timeout": 1.0})
    assert len(results) == 2


def test_an_upload_is_sent_in_chunks(call: Stack, script: ScriptedIndex) -> None:
    """The server sets the size of chunks and receives the rows and columns unchanged."""
    vectors = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    ids, categories = np.arange(1000) * 2, np.arange(1000) % 4
    steps: list[Progress] = []
    columns = {"ids": ids, "categories": categories}
    info = call("build", "images", vectors, n_tables=4, progress=steps.append, **columns)
    assert (info.name, info.generation) == ("images", 2)
    header, *chunks, commit = script.upload
    assert header.header.expected_rows == 1000
    assert header.header.parameters.n_tables == 4
    assert not header.header.parameters.HasField("seed")
    assert commit.commit.rows == 1000
    blocks = [arrays.decode(message.chunk.vectors) for message in chunks]
    assert all(isinstance(block, np.ndarray) and block.nbytes <= 1024 for block in blocks)
    assert np.array_equal(np.concatenate([np.asarray(block) for block in blocks]), vectors)
    assert [n for message in chunks for n in message.chunk.ids] == ids.tolist()
    assert [n for message in chunks for n in message.chunk.categories] == categories.tolist()
    assert not any(message.chunk.subtopics for message in chunks)
    assert steps[0] == Progress("receiving", 2, 0, None)


def test_builds_have_no_deadline(call: Stack, script: ScriptedIndex) -> None:
    """A build has a deadline only if the call sets one."""
    call("build", "images", np.ones((2, 2)))
    assert not 0 <= script.seconds_left < 3600
    call("build", "images", np.ones((2, 2)), timeout=50)
    assert 40 < script.seconds_left < 51  # gRPC 1.76 rounds a deadline up


def test_progress_may_end_the_build(call: Stack, script: ScriptedIndex) -> None:
    """If the progress callback raises an error, the caller gets it and the call is cancelled."""

    def stop(progress: Progress) -> None:
        raise KeyError(progress.stage)

    with pytest.raises(KeyError, match="receiving"):
        call("build", "images", np.ones((5000, 3)), progress=stop)
    assert script.cancelled.wait(10)
    assert not script.upload[-1].HasField("commit")


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
def test_the_sync_client_raises_the_error_of_progress(target: str, error: type[Exception]) -> None:
    """Python would raise RuntimeError in place of these two, which end iterators."""

    def stop(_: Progress) -> None:
        raise error

    with Client(target) as client, pytest.raises(error):
        client.build("images", np.ones((5000, 3)), progress=stop)


def test_a_build_without_a_result_is_an_error(call: Stack, script: ScriptedIndex) -> None:
    """The server ends the stream with status OK, but without sending a result."""
    script.forgets = True
    with pytest.raises(RpcError, match="without a result") as error_info:
        call("build", "images", np.ones((2, 2)))
    assert error_info.value.reason == "BAD_ANSWER"


def test_a_status_is_raised_even_if_a_write_fails(call: Stack, script: ScriptedIndex) -> None:
    """The caller gets the status even if it arrives while queries are still being written."""
    for _ in range(20):
        script.failures = [grpc.StatusCode.NOT_FOUND]
        with failing(grpc.StatusCode.NOT_FOUND):
            call("query_stream", "images", [np.ones((100, 50))] * 20)
