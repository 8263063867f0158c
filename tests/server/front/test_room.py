"""Builds for whose shards there is no memory are refused."""

import asyncio
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.sharding import sizing
from divgrpc.sharding.files import divide_index
from divgrpc.storage.generations import IndexFolder, staging_path
from divgrpc.storage.shard_sizes import current_shard_sizes
from divgrpc_server.codec.statuses import MemoryMissingError
from divgrpc_server.config import Config
from divgrpc_server.front import jobs
from divgrpc_server.front import room as room_module
from divgrpc_server.front.room import RoomCheck
from divgrpc_server.ipc import control, job_frames
from divgrpc_server.ipc.job_frames import StagedGeneration
from support.data.served_index import random_points
from support.requests.manual_uploads import Message, chunk, header

ROWS = np.ones((10, 50), np.float32)


def check(messages: list[Message], room_bytes: int, root: Path = Path("/nowhere")) -> None:
    room = RoomCheck("points", root, 2, lambda: room_bytes, reads_upload=True)
    for message in messages:
        assert room.reads_upload
        room.check_message(message.SerializeToString())
    assert not room.reads_upload


def test_expected_rows_are_as_large_as_the_first_ones() -> None:
    upload: list[Message] = [header("points", expected_rows=1000), chunk(ROWS)]
    size = 500 * len(upload[1].SerializeToString()) // 10 + 500 * sizing.POINT_BYTES
    assert room_module.POINT_BYTES == sizing.POINT_BYTES
    check(upload, size)
    with pytest.raises(MemoryMissingError, match=f"needs {size:,} bytes .* have {size - 1:,}: st"):
        check(upload, size - 1)


def test_an_upload_of_unknown_length_is_not_refused() -> None:
    check([header("points"), chunk(ROWS)], 0)


@pytest.fixture
def divided(tmp_path: Path) -> IndexFolder:
    Index.build(random_points(60), path=tmp_path / "points")
    divide_index(tmp_path / "points", 2)
    return IndexFolder(tmp_path / "points")


def test_a_build_that_has_no_memory_is_not_published(divided: IndexFolder) -> None:
    root = divided.path.parent
    build = staging_path(root / "others", "0")
    shutil.copytree(divided.path / str(divided.current()), build)
    size = max(current_shard_sizes(divided))
    generation = StagedGeneration("others", build.name)
    # What there is when the build ends counts: another one may have taken memory meanwhile.
    rooms: list[int | None] = [size, None]
    room = RoomCheck("others", root, 2, lambda: rooms.pop(0), reads_upload=False)
    for _ in range(2):
        asyncio.run(room.check_build(generation))
    rooms.append(size - 1)
    with pytest.raises(MemoryMissingError):
        asyncio.run(room.check_build(generation))


def test_a_build_gets_the_memory_of_the_index_that_it_replaces(divided: IndexFolder) -> None:
    size = max(current_shard_sizes(divided))
    upload: list[Message] = [header("points", expected_rows=4), chunk(np.ones((1, size // 8)))]
    check(upload, 200, divided.path.parent)
    with pytest.raises(MemoryMissingError):
        check(upload, 200)


def test_a_refused_upload_ends_its_builder(tmp_path: Path) -> None:
    """The rows that have no room do not reach it."""
    messages = iter([header("points", expected_rows=10**9), chunk(ROWS)])
    links: list[Any] = []

    class Channel:
        def send(self, message: control.Message) -> None:
            front_end, process_end = job_frames.pair()
            links.append(process_end)
            front.handle(control.Message("job", message.number), front_end.detach())

    class Places:
        room_bytes = 10**9

        async def await_engine(self) -> None:
            pass

        async def await_places(self) -> None:
            pass

    async def read() -> object:
        return next(messages).SerializeToString()

    async def write(_: bytes) -> None:
        pass

    channel: Any = Channel()
    shards: Any = Places()
    front = jobs.Jobs(Config(shards=2), channel, Mock(), tmp_path, shards)
    with pytest.raises(MemoryMissingError):
        asyncio.run(front.relay(jobs.Build(read, write), "tag"))
    with links[0] as process_end:
        assert job_frames.receive(process_end)[0] == job_frames.Frame.MESSAGE
        with pytest.raises(EOFError):
            job_frames.receive(process_end)
