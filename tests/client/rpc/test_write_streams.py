"""WriteStream of both clients, against a server whose answers are set."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client import AsyncClient, Client, Delete, Upsert
from divgrpc_client.messages.write_streams import Write
from support.processes.both_clients import Stack
from support.processes.scripted_server import ScriptedIndex

ROW = np.ones((1, 4), np.float32)


def test_results_come_in_the_order_of_the_writes(call: Stack, script: ScriptedIndex) -> None:
    """A write has no name unless one is given, because the client does not repeat it."""
    writes = [
        Upsert([1, 2], np.ones((2, 4))),
        Delete([3, 4, 5], write_id="gone"),
        Upsert("a", ROW, write_id="new"),
    ]
    results = call("write_stream", "images", writes)
    assert [(result.sequence, result.rows) for result in results] == [(1, 2), (2, 3), (3, 1)]
    assert script.write_ids == ["", "gone", "new"]
    assert script.calls["WriteStream"] == 1
    assert call("write_stream", "images", []) == []


BAD_WRITES: list[tuple[Any, str]] = [
    (Upsert([]), "ids"),
    (Upsert([1, 2], ROW), "vectors"),
    (Upsert(1, ROW, mode="replace"), "mode"),  # type: ignore[arg-type]
    (Upsert(1, ROW, write_id="x" * 129), "write_id"),
    (Upsert(1, ROW, if_sequence=-1), "if_sequence"),
    (Upsert(np.arange(10_001), np.ones((10_001, 4))), "ids"),
    (Upsert(np.arange(1_000), np.ones((1_000, 2_000))), "ids"),
    (Delete(), "ids"),
    (Delete(filter={}), "filter"),
    (Delete([1], write_id=7), "write_id"),  # type: ignore[arg-type]
    ([1], "writes"),
    (None, "writes"),
]


@pytest.mark.parametrize(("write", "field"), BAD_WRITES)
def test_a_bad_write_ends_the_stream(call: Stack, write: Any, field: str) -> None:  # noqa: ANN401
    """The error of the client has the field."""
    with pytest.raises(InvalidArgumentError) as fault:
        call("write_stream", "images", [Delete([1]), write, Delete([2])])
    assert fault.value.field == field


def test_a_stream_needs_a_window(call: Stack) -> None:
    with pytest.raises(InvalidArgumentError) as fault:
        call("write_stream", "images", [], in_flight=0)
    assert fault.value.field == "in_flight"


def test_an_error_of_the_iterable_is_raised(call: Stack) -> None:
    def writes() -> Iterator[Write]:
        yield Delete([1])
        raise KeyError("from the caller")

    with pytest.raises(KeyError, match="from the caller"):
        call("write_stream", "images", writes())


def test_in_flight_bounds_the_writes_under_way(script: ScriptedIndex, target: str) -> None:
    numbers: list[int] = []

    def writes() -> Iterator[Write]:
        for n in range(50):
            numbers.append(n)
            yield Delete([n])

    with Client(target) as client:
        for result_count, _ in enumerate(client.write_stream("images", writes(), in_flight=5), 1):
            # One more write may be drawn, which waits until another one is answered.
            assert len(numbers) <= result_count + 6
    assert len(script.write_ids) == 50


def test_an_async_client_takes_async_iterables(target: str) -> None:
    async def writes() -> AsyncIterator[Write]:
        for n in range(5):
            await asyncio.sleep(0)
            yield Delete([n])

    async def sequences() -> list[int]:
        async with AsyncClient(target) as client:
            return [result.sequence async for result in client.write_stream("images", writes())]

    assert asyncio.run(sequences()) == [1, 2, 3, 4, 5]
