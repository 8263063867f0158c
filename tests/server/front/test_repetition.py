"""What a front does beside calls goes on after an error."""

import asyncio
from unittest.mock import Mock

import pytest

from divgrpc_server.front import __main__ as front
from divgrpc_server.front.shard_servers import ShardServers
from support.processes.scripted_shard_servers import Servers, with_servers


def test_work_that_fails_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begins, log = 0, Mock()

    async def work() -> None:
        nonlocal begins
        begins += 1
        if begins < 3:
            raise RuntimeError("unforeseen")
        await asyncio.sleep(60)

    async def run() -> None:
        keeper = asyncio.create_task(front.repeat(work, log))
        async with asyncio.timeout(20):
            while begins < 3:
                await asyncio.sleep(0.001)
        keeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeper

    monkeypatch.setattr(front, "_AGAIN_SECONDS", 0.001)
    asyncio.run(run())
    assert log.exception.call_count == 2


def test_a_loop_that_fails_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All begin again together."""
    monkeypatch.setattr(ShardServers, "_follow_files", _fail)
    root = tmp_path_factory.mktemp("data")

    @with_servers()
    async def scene(servers: Servers) -> None:
        before = asyncio.all_tasks()
        with pytest.raises(ExceptionGroup):
            await servers.front.keep(root)
        assert asyncio.all_tasks() == before

    scene()


async def _fail(_: ShardServers) -> None:
    raise RuntimeError("unforeseen")
