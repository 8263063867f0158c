"""Builds for whose shards there is no memory are refused."""

import asyncio
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.errors import UnavailableError
from divgrpc.sharding import sizing
from divgrpc.sharding.files import divide_index
from divgrpc.storage.generations import IndexFolder, staging_path
from divgrpc.storage.shard_sizes import current_shard_sizes
from divgrpc_server.codec.statuses import MemoryMissingError
from divgrpc_server.config import Config
from divgrpc_server.front import jobs
from divgrpc_server.front import room as room_module
from divgrpc_server.front.room import Promises, RoomCheck
from divgrpc_server.ipc import control, job_frames
from divgrpc_server.ipc.job_frames import StagedGeneration
from support.data.served_index import random_points
from support.requests.manual_uploads import Message, chunk, header

ROWS = np.ones((10, 50), np.float32)


def promises() -> Promises:
    """Return those of a server with one front."""
    return Promises(lambda _: None)


def check(messages: list[Message], room_bytes: int, root: Path = Path("/nowhere")) -> None:
    room = RoomCheck("points", root, 2, lambda: room_bytes, promises(), reads_upload=True)
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
    room = RoomCheck("others", root, 2, lambda: rooms.pop(0), promises(), reads_upload=False)
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


def test_a_build_does_not_get_the_memory_of_one_that_runs(
    divided: IndexFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that one runs on another front. Its size counts, and no longer what was expected."""
    number, size = divided.current(), max(current_shard_sizes(divided))
    totals: list[int] = []
    fronts = Promises(totals.append), promises()
    first, second = (
        RoomCheck(name, divided.path.parent, 2, lambda: 2 * size - 1, front, reads_upload=True)
        for name, front in zip("ab", fronts, strict=True)
    )
    generation = StagedGeneration("a", f"points/{number}")
    for message in (header("a", expected_rows=4), chunk(np.ones((1, size // 6)))):
        first.check_message(message.SerializeToString())
    asyncio.run(first.check_build(generation))
    assert totals[-1] == size < totals[0]
    fronts[1].follow(7, totals[-1])
    words = f" have {size - 1:,} beside {size:,} for builds that run: wait for these, start nodes"
    with pytest.raises(MemoryMissingError, match=words):
        asyncio.run(second.check_build(generation))
    monkeypatch.setattr(room_module, "_COUNTED_SECONDS", 0.01)

    async def end() -> None:
        # Until the engine has seen the index, its memory is promised.
        first.close(is_built=True)
        assert totals[-1] == size
        while totals[-1]:
            await asyncio.sleep(0.01)

    asyncio.run(end())
    fronts[1].follow(7, totals[-1])
    asyncio.run(second.check_build(generation))


class Supervision:
    """Stands for the supervisor: has its ends of builders, and what a front has promised."""

    def __init__(self) -> None:
        self.builders: list[Any] = []
        self.promises: list[str] = []

    def send(self, message: control.Message) -> None:
        """Take a message of the front, and connect it with a builder."""
        if message.kind == "promise":
            self.promises.append(message.text)
            return
        front_end, process_end = job_frames.pair()
        self.builders.append(process_end)
        self.front.handle(control.Message("job", message.number), front_end.detach())

    def build(self, root: Path, expected_rows: int) -> None:
        """Relay a build; its builder ends when all rows have come."""
        messages = iter([header("points", expected_rows=expected_rows), chunk(ROWS)])
        channel: Any = self
        shards: Any = Places()
        self.front = jobs.Jobs(Config(shards=2), channel, Mock(), root, shards)

        async def read() -> object:
            for message in messages:
                return message.SerializeToString()
            self.builders[0].close()
            return None

        async def write(_: bytes) -> None:
            pass

        asyncio.run(self.front.relay(jobs.Build(read, write), "tag"))


class Places:
    """Shard servers that have memory for small builds."""

    room_bytes = 10**9

    async def await_engine(self) -> None:
        """Have an engine."""

    async def await_places(self) -> None:
        """Have a server at each place."""


def test_a_refused_upload_ends_its_builder(tmp_path: Path) -> None:
    """The rows that have no room do not reach it."""
    supervision = Supervision()
    with pytest.raises(MemoryMissingError):
        supervision.build(tmp_path, 10**9)
    with supervision.builders[0] as process_end:
        assert job_frames.receive(process_end)[0] == job_frames.Frame.MESSAGE
        with pytest.raises(EOFError):
            job_frames.receive(process_end)
    assert supervision.promises == []


def test_other_fronts_learn_what_a_build_may_take_until_it_ends(tmp_path: Path) -> None:
    supervision = Supervision()
    with pytest.raises(UnavailableError, match="the builder ended"):
        supervision.build(tmp_path, 1_000)
    first, last = map(int, supervision.promises)
    assert first > 500 * ROWS[0].nbytes
    assert last == 0
