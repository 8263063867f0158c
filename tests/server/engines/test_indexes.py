"""An engine learns of all changes of indexes from the data folder."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from divgrpc import Index
from divgrpc.sharding.files import divide_index
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.shard_sizes import current_shard_sizes
from divgrpc_server.config import Config
from divgrpc_server.engines import indexes
from divgrpc_server.logging.logs import configure
from support.data.served_index import random_points


class _Engine:
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int] | None]] = []

    async def place(self, index: str, shard_bytes: Sequence[int]) -> None:
        self.calls.append((index, [*shard_bytes]))

    async def drop(self, index: str) -> None:
        self.calls.append((index, None))


def test_builds_and_deletions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_watch(tmp_path, monkeypatch))


async def _watch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_LOOK_SECONDS", 0.001)
    engine: Any = _Engine()

    async def call() -> tuple[str, list[int] | None]:
        async with asyncio.timeout(20):
            while not engine.calls:
                await asyncio.sleep(0.001)
        one: tuple[str, list[int] | None]
        (one,) = engine.calls
        engine.calls.clear()
        return one

    log = configure(Config(), "engine")
    task = asyncio.create_task(indexes.follow_indexes(engine, root, log))
    Index.build(random_points(60), path=root / "points")
    assert await call() == ("points", [])
    divide_index(root / "points", 3)
    index = IndexFolder(root / "points")
    sizes = current_shard_sizes(index)
    current = index.path / str(index.current())
    for shard, size in enumerate(sizes):
        files = [*(current / "shared").glob("*.npy"), *(current / f"shards/{shard}").glob("*.npy")]
        headers = 128 * len(files)
        assert size == sum(file.stat().st_size for file in files) - headers
    assert await call() == ("points", sizes)
    assert indexes.needs_of_indexes(root, 2) == [sizes[0] + sizes[2], sizes[1]]
    # An index that is damaged keeps its memory until it is repaired.
    (current / "manifest.json").rename(root / "manifest.json")
    (index.path / "CURRENT").touch()
    await asyncio.sleep(0.1)
    assert engine.calls == []
    (root / "manifest.json").rename(current / "manifest.json")
    assert await call() == ("points", sizes)
    index.delete()
    assert await call() == ("points", None)
    task.cancel()
