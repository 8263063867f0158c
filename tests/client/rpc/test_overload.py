"""Calls that a server ends because it has too much to do, and calls that wait in the client."""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import LimitExceededError
from divgrpc_client import AsyncClient, Client, ClientStateError, RpcError
from divgrpc_client.rpc.channels import CALLS_MAX
from support.checks.refusals import failing
from support.processes.both_clients import Stack
from support.processes.running_server import eventually
from support.processes.scripted_server import ScriptedIndex

CANCELLED, FULL = grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED
ROW = np.ones((1, 4), np.float32)
CALLS: list[tuple[str, str, tuple[object, ...]]] = [
    ("query", "Query", (ROW,)),
    ("get", "Get", (1,)),
    ("count", "Count", ()),
    ("upsert", "Upsert", (1, ROW)),
    ("upsert", "Upsert", (1, np.ones((1, 400_000), np.float32))),
    ("delete", "Delete", (1,)),
]


@pytest.mark.parametrize(("name", "method", "arguments"), CALLS)
def test_a_call_that_the_server_ends_is_repeated(
    call: Stack, script: ScriptedIndex, name: str, method: str, arguments: tuple[object, ...]
) -> None:
    """Reads and named writes have three attempts, and a write has one name."""
    script.failures = [CANCELLED] * 2
    call(name, "images", *arguments)
    assert script.calls[method] == 3
    assert len(set(script.write_ids)) <= 1
    assert all(script.write_ids)


@pytest.mark.parametrize(("settings", "attempts"), [({}, 3), ({"retries": False}, 1)])
@pytest.mark.parametrize("case", CALLS)
def test_the_last_attempt_fails_as_overloaded(
    call: Stack,
    script: ScriptedIndex,
    case: tuple[str, str, tuple[object, ...]],
    settings: dict[str, Any],
    attempts: int,
) -> None:
    """The error has the class of RESOURCE_EXHAUSTED, and says when to try again."""
    name, method, arguments = case
    script.failures = [CANCELLED] * 9
    with failing(FULL, LimitExceededError, reason="OVERLOADED", match="too much to do") as info:
        call(name, "images", *arguments, settings=settings)
    assert info.value.retry_after == pytest.approx(0.1)
    assert script.calls[method] == attempts


def test_calls_that_may_do_harm_are_not_repeated(call: Stack, script: ScriptedIndex) -> None:
    script.failures = [CANCELLED] * 9
    for method, data in (("delete_index", []), ("build", [ROW]), ("query_stream", [[ROW]])):
        with failing(FULL, LimitExceededError, reason="OVERLOADED"):
            call(method, "images", *data)
    assert script.calls == {"DeleteIndex images": 1, "Build": 1, "QueryStream": 1}


def test_retries_have_a_budget(script: ScriptedIndex, target: str) -> None:
    """In a lasting overload nearly all calls are sent once."""
    count = 200
    script.failures = [CANCELLED] * 3 * count
    with Client(target, timeout=30) as client:
        for _ in range(count):
            with contextlib.suppress(RpcError):
                client.query("images", ROW)
    assert count + 20 < script.calls["Query"] < count + 60


def test_the_budget_comes_back_with_successes(script: ScriptedIndex, target: str) -> None:
    with Client(target, timeout=30) as client:
        script.failures = [CANCELLED] * 120
        while script.failures:
            with contextlib.suppress(RpcError):
                client.query("images", ROW)
        before = script.calls["Query"]
        for _ in range(600):
            client.query("images", ROW)
        assert script.calls["Query"] == before + 600
        script.failures = [CANCELLED] * 2
        client.query("images", ROW)


def test_a_call_that_the_caller_ends_is_not_repeated(script: ScriptedIndex, target: str) -> None:
    """Closing a client ends its calls with the code CANCELLED."""
    script.silent = True
    errors: list[RpcError] = []
    client = Client(target, timeout=30)

    def ask() -> None:
        try:
            client.query("images", ROW)
        except RpcError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert script.asked.wait(20)
    client.close()
    thread.join(20)
    [error] = errors
    assert (error.code, error.reason) == (CANCELLED, "CANCELLED")
    assert script.calls["Query"] == 1


def test_a_task_that_is_cancelled_is_not_repeated(script: ScriptedIndex, target: str) -> None:
    """Its place is free for another call."""
    script.silent = True

    async def scene() -> None:
        async with AsyncClient(target, timeout=30) as client:
            tasks = [asyncio.ensure_future(client.query("images", ROW)) for _ in range(CALLS_MAX)]
            await asyncio.to_thread(script.asked.wait, 20)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
            script.silent = False
            script.cancelled.set()
            assert (await client.query("images", ROW)).generation == 1

    asyncio.run(scene())


@contextlib.contextmanager
def no_place_left(client: Client, script: ScriptedIndex) -> Iterator[None]:
    """Take all places of a client's connection; at the end these calls are answered."""
    script.silent = True
    with ThreadPoolExecutor(CALLS_MAX) as threads:
        calls = [threads.submit(client.query, "images", ROW) for _ in range(CALLS_MAX)]
        places = client._pool.take().places
        eventually(lambda: places._places._value == 0)
        yield
        script.silent = False
        script.cancelled.set()
        assert all(future.result().generation == 1 for future in calls)


def test_a_connection_has_places_for_so_many_calls(script: ScriptedIndex, target: str) -> None:
    """Further calls wait for half of their time, and are then refused without being sent."""
    with Client(target, timeout=30) as client, no_place_left(client, script):
        start = time.monotonic()
        with failing(FULL, LimitExceededError, reason="OVERLOADED", match="of this client"):
            client.query("images", ROW, timeout=0.4)
        assert 0.2 <= time.monotonic() - start < 0.4


def test_calls_that_wait_fail_when_the_client_is_closed(script: ScriptedIndex, target: str) -> None:
    """A thread that has a place, and has not sent its call yet, gets the same error."""
    script.silent = True
    client = Client(target, timeout=60)
    with ThreadPoolExecutor(CALLS_MAX + 3) as threads:
        calls = [threads.submit(client.query, "images", ROW) for _ in range(CALLS_MAX + 3)]
        places = client._pool.take().places
        eventually(lambda: places._places._value == 0)
        client.close()
        errors = [future.exception(20) for future in calls]
    kinds = Counter(type(error) for error in errors)
    assert set(kinds) == {RpcError, ClientStateError}
    assert kinds[ClientStateError] >= 3


def test_tasks_that_wait_fail_when_the_client_is_closed(script: ScriptedIndex, target: str) -> None:
    script.silent = True

    async def scene() -> None:
        client = AsyncClient(target, timeout=60)
        tasks = [asyncio.ensure_future(client.query("images", ROW)) for _ in range(CALLS_MAX + 3)]
        await asyncio.to_thread(script.asked.wait, 20)
        await client.close()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = Counter(type(error) for error in errors)
        assert kinds == {asyncio.CancelledError: CALLS_MAX, ClientStateError: 3}

    asyncio.run(scene())


def test_writes_that_wait_leave_places_for_queries(script: ScriptedIndex, target: str) -> None:
    """The scripted server has fewer threads, so the query is answered once the writes may go on."""
    script.silent = True
    with Client(target, timeout=30) as client, ThreadPoolExecutor(CALLS_MAX + 1) as threads:
        writes = [threads.submit(client.upsert, "images", 1, ROW) for _ in range(CALLS_MAX)]
        connection = client._pool.take()
        eventually(lambda: connection.write_places._places._value == 0)
        query = threads.submit(client.query, "images", ROW)
        eventually(lambda: connection.places._places._value == CALLS_MAX - 1)
        with failing(FULL, LimitExceededError, reason="OVERLOADED"):
            client.delete("images", 1, timeout=0.1)
        script.silent = False
        script.cancelled.set()
        assert query.result().generation == 1
        assert {write.result().rows for write in writes} == {1}


def test_pages_of_a_scroll_have_places_too(script: ScriptedIndex, target: str) -> None:
    with Client(target, timeout=30) as client:
        refusal = failing(FULL, LimitExceededError, reason="OVERLOADED")
        with no_place_left(client, script), refusal:
            list(client.scroll("images", timeout=0.1))
        assert len(list(client.scroll("images"))) == 3
    assert script.calls["Scroll"] == 3


def test_a_burst_of_a_client_waits_its_turn(script: ScriptedIndex, target: str) -> None:
    """Calls beyond the places of a connection are answered too, if there is time."""

    async def scene() -> None:
        async with AsyncClient(target, timeout=60) as client:
            results = await asyncio.gather(
                *(client.query("images", ROW) for _ in range(4 * CALLS_MAX))
            )
            assert {result.generation for result in results} == {1}

    asyncio.run(scene())
    assert script.calls["Query"] == 4 * CALLS_MAX


@pytest.mark.parametrize("code", [CANCELLED, grpc.StatusCode.INVALID_ARGUMENT])
def test_a_call_that_fails_frees_its_place(
    call: Stack, script: ScriptedIndex, code: grpc.StatusCode
) -> None:
    if call.is_async:
        asyncio.run(_fail_often(call._target, script, code))
        return
    with Client(call._target, retries=False) as client:
        script.failures = [code] * 2 * CALLS_MAX
        for _ in range(2 * CALLS_MAX):
            with pytest.raises(RpcError):
                client.query("images", ROW)
        client.query("images", ROW)


async def _fail_often(target: str, script: ScriptedIndex, code: grpc.StatusCode) -> None:
    async with AsyncClient(target, retries=False) as client:
        script.failures = [code] * 2 * CALLS_MAX
        for _ in range(2 * CALLS_MAX):
            with pytest.raises(RpcError):
                await client.query("images", ROW)
        await client.query("images", ROW)
