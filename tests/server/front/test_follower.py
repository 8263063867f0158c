"""A front tells workers which indexes of a shared folder have changed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from divgrpc import Index
from divgrpc.storage.generations import staging_path
from divgrpc_server.config import Config
from divgrpc_server.front import follower
from divgrpc_server.logging.logs import configure
from support.data.served_index import random_points


class _Pool:
    def __init__(self) -> None:
        self.names: list[str] = []

    def refresh(self, name: str) -> None:
        self.names.append(name)


def test_the_beginning_and_the_end_of_a_build_are_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a shard server lets go of a build that was given up."""
    asyncio.run(_watch_builds(tmp_path, monkeypatch))


async def _watch_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_WATCH_SECONDS", 0.001)
    Index.build(random_points(20), path=tmp_path / "points")
    pool: Any = _Pool()
    task = asyncio.create_task(follower.follow(tmp_path, pool, configure(Config(), "front")))

    async def changed() -> str:
        async with asyncio.timeout(20):
            while not pool.names:
                await asyncio.sleep(0.001)
        name: str = pool.names.pop()
        return name

    assert await changed() == "points"
    for name in ("points", "others"):
        build = staging_path(tmp_path / name, "0")
        build.mkdir()
        assert await changed() == name
        build.rmdir()
        assert await changed() == name
    task.cancel()
