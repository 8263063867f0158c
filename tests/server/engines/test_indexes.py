"""An engine learns of all changes of indexes from the data folder."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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

Call = tuple[str, list[int] | None]


class _Engine:
    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def place(self, index: str, shard_bytes: Sequence[int]) -> None:
        self.calls.append((index, [*shard_bytes]))

    async def drop(self, index: str) -> None:
        self.calls.append((index, None))

    async def take(self) -> Call:
        """Wait for a call, and return it."""
        async with asyncio.timeout(20):
            while not self.calls:
                await asyncio.sleep(0.001)
        (call,) = self.calls
        self.calls.clear()
        return call

    async def hear_nothing(self) -> None:
        await asyncio.sleep(0.1)
        assert self.calls == []


Scene = Callable[[_Engine, Path], Awaitable[None]]


def with_engine(scene: Scene) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Return a test that runs a scene with an engine that follows the indexes in a folder."""

    def test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def run() -> None:
            engine: Any = _Engine()
            log = configure(Config(), "engine")
            task = asyncio.create_task(indexes.follow_indexes(engine, tmp_path, log))
            await scene(engine, tmp_path)
            task.cancel()

        # The lock of a server.
        (tmp_path / ".lock").touch()
        monkeypatch.setattr(indexes, "_LOOK_SECONDS", 0.001)
        asyncio.run(run())

    test.__name__, test.__doc__ = scene.__name__, scene.__doc__
    return test


def build(root: Path, shards: int) -> IndexFolder:
    Index.build(random_points(60), path=root / "points")
    divide_index(root / "points", shards)
    return IndexFolder(root / "points")


@with_engine
async def test_builds_and_deletions_are_told(engine: _Engine, root: Path) -> None:
    Index.build(random_points(60), path=root / "points")
    assert await engine.take() == ("points", [])
    divide_index(root / "points", 3)
    index = IndexFolder(root / "points")
    sizes = current_shard_sizes(index)
    assert await engine.take() == ("points", sizes)
    assert indexes.needs_of_indexes(root, 2) == [sizes[0] + sizes[2], sizes[1]]
    index.delete()
    assert await engine.take() == ("points", None)


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    index = build(tmp_path, 3)
    current = index.path / str(index.current())
    for shard, size in enumerate(current_shard_sizes(index)):
        files = [*(current / "shared").glob("*.npy"), *(current / f"shards/{shard}").glob("*.npy")]
        headers = 128 * len(files)
        assert size == sum(file.stat().st_size for file in files) - headers


@with_engine
async def test_memory_is_kept_for_what_cannot_be_read(engine: _Engine, root: Path) -> None:
    """Until a damaged index is repaired, and while the file system is not mounted."""
    elsewhere = root.with_name(f"{root.name}-elsewhere")
    index = build(elsewhere, 2)
    call = "points", current_shard_sizes(index)
    index.path.rename(root / "points")
    assert await engine.take() == call
    current = root / "points" / "2"
    (current / "manifest.json").rename(elsewhere / "manifest.json")
    (root / "points" / "CURRENT").touch()
    await engine.hear_nothing()
    (elsewhere / "manifest.json").rename(current / "manifest.json")
    assert await engine.take() == call
    (root / ".lock").unlink()
    (root / "points").rename(elsewhere / "points")
    await engine.hear_nothing()
    (elsewhere / "points").rename(root / "points")
    await engine.hear_nothing()
