"""Everyone who watches the state of a service hears of each change, whatever others do."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from divgrpc_server.front.health import Health

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


class Watcher:
    """A caller of Watch, which gets the states in `statuses`."""

    def __init__(self, health: Health, service: str = "name", *, reads: bool = True) -> None:
        self.statuses: list[int] = []
        self._reads = reads
        request: Any = HealthCheckRequest(service=service)
        context: Any = self
        self.call = asyncio.ensure_future(health.watch(request, context))

    async def write(self, message: HealthCheckResponse) -> None:
        """Note the state."""
        self.statuses.append(message.status)
        if not self._reads:
            await asyncio.sleep(60)


class RefusalError(Exception):
    """Stands for the end of a call."""


class Caller:
    """A caller of Check."""

    async def abort(self, code: grpc.StatusCode) -> None:
        """Raise it."""
        raise RefusalError(code)


def with_health(scene: Callable[[Health], Awaitable[None]]) -> Callable[[], None]:
    """Return a test that runs a scene with the states of two services."""

    def test() -> None:
        async def run() -> None:
            async with asyncio.timeout(20):
                await scene(Health("", "name"))
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run(run())

    return test


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@with_health
async def test_a_watcher_that_leaves_or_does_not_read_keeps_nobody_from_changes(
    health: Health,
) -> None:
    """Otherwise a client never calls a server that it has watched while this one started."""
    stays, leaves, stuck = Watcher(health), Watcher(health), Watcher(health, reads=False)
    await settle()
    leaves.call.cancel()
    await settle()
    health.set(serving=True)
    await settle()
    health.set(serving=True)
    health.set(serving=False)
    await settle()
    later = Watcher(health, "")
    await settle()
    assert stays.statuses == [NOT_SERVING, SERVING, NOT_SERVING]
    assert later.statuses == leaves.statuses == stuck.statuses == [NOT_SERVING]


@with_health
async def test_a_server_that_ends_serves_no_more(health: Health) -> None:
    watcher = Watcher(health)
    health.set(serving=True)
    await settle()
    health.end()
    health.set(serving=True)
    await settle()
    assert watcher.statuses == [SERVING, NOT_SERVING]


@with_health
async def test_a_service_that_does_not_exist(health: Health) -> None:
    watcher = Watcher(health, "other")
    await settle()
    health.set(serving=True)
    await settle()
    assert watcher.statuses == [UNKNOWN]
    caller: Any = Caller()
    with pytest.raises(RefusalError, match="NOT_FOUND"):
        await health.check(HealthCheckRequest(service="other"), caller)
    response = await health.check(HealthCheckRequest(service="name"), caller)
    assert response.status == SERVING
