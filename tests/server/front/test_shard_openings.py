"""Shard servers open their shards before queries ask for them."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from divgrpc import Index
from divgrpc.errors import IndexDamagedError, LimitExceededError
from divgrpc.sharding.files import divide_index
from divgrpc.storage.generations import IndexFolder
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.front import shard_openings
from divgrpc_server.ipc.topology import Topology
from support.data.served_index import random_points
from support.processes.scripted_shard_servers import (
    Behaviour,
    Servers,
    fail,
    reply,
    with_servers,
)

Opening = tuple[str, str, int]


def opening(openings: list[Opening], name: str) -> Behaviour:
    """Return what a server does that notes which shards of which folders it opens."""

    async def prepare(message: bytes, _: object) -> bytes:
        part = shard_index_pb2.PrepareRequest.FromString(message)
        assert part.folder.startswith(f"{part.index}/")
        openings.append((name, part.folder, part.shard))
        return b""

    return prepare


async def until(is_over: Callable[[], bool]) -> None:
    while not is_over():
        await asyncio.sleep(0.005)


def build(root: Path, name: str, shards: int) -> IndexFolder:
    Index.build(random_points(40), path=root / name)
    if shards > 1:
        divide_index(root / name, shards)
    return IndexFolder(root / name)


def with_root(scene: Callable[[Servers, Path], Awaitable[None]]) -> Callable[[Path], None]:
    """Return a test that runs a scene with servers, and with a folder of indexes."""

    def test(tmp_path: Path) -> None:
        @with_servers()
        async def run(servers: Servers) -> None:
            keeper = asyncio.ensure_future(servers.front.keep(tmp_path))
            try:
                await scene(servers, tmp_path)
            finally:
                keeper.cancel()

        run()

    test.__name__, test.__doc__ = scene.__name__, scene.__doc__
    return test


@with_root
async def test_servers_open_their_shards_of_all_indexes(servers: Servers, root: Path) -> None:
    """Once; and those of a generation that another process has made."""
    openings: list[Opening] = []
    build(root, "whole", 1)
    points = build(root, "points", 3)
    first = await servers.start("first", reply, opening(openings, "first"))
    second = await servers.start("second", reply, opening(openings, "second"))
    servers.front.follow(Topology(1, ((first,), (second,))))
    await until(lambda: len(openings) == 3)
    assert sorted(openings) == [
        ("first", "points/2", 0), ("first", "points/2", 2), ("second", "points/2", 1)
    ]  # fmt: skip
    divide_index(points.path, 2)
    await until(lambda: len(openings) == 5)
    assert sorted(openings[3:]) == [("first", "points/3", 0), ("second", "points/3", 1)]
    # A server that joins.
    third = await servers.start("third", reply, opening(openings, "third"))
    servers.front.follow(Topology(2, ((first,), (second, third))))
    await until(lambda: len(openings) == 6)
    assert openings[5] == ("third", "points/3", 1)
    points.delete()
    await asyncio.sleep(2 * shard_openings._LOOK_SECONDS)
    assert len(openings) == 6


@with_root
async def test_a_server_that_comes_back_opens_them_anew(servers: Servers, root: Path) -> None:
    openings: list[Opening] = []
    build(root, "points", 2)
    address = await servers.start("first", reply, opening(openings, "first"))
    servers.front.follow(Topology(1, ((address,),)))
    await until(lambda: len(openings) == 2)
    # Its next health check ends the fault.
    servers.front._states.note_fault(address, "unreachable", "it has ended")
    await until(lambda: len(openings) == 4)
    assert openings[:2] == openings[2:]


@with_root
async def test_damage_is_known_without_a_query(servers: Servers, root: Path) -> None:
    """Until the server has opened the shard of another generation."""
    points = build(root, "points", 2)
    behaviours = [fail(IndexDamagedError("bad bytes"))]

    async def prepare(message: bytes, context: object) -> bytes:
        return await behaviours[-1](message, context)

    address = await servers.start("bad", reply, prepare)
    servers.front.follow(Topology(1, ((address,),)))
    await until(lambda: servers.front.replicas("points", 1)[0].state == "faulty")
    assert "bad bytes" in servers.front.replicas("points", 1)[0].reason
    await until(lambda: servers.meter.damaged == {"points"})
    # It says nothing about the files.
    behaviours.append(fail(LimitExceededError("no descriptors")))
    divide_index(points.path, 3)
    await until(lambda: len(servers.front._openings._opened[address].shards) == 3)
    assert servers.front.replicas("points", 1)[0].state == "faulty"
    behaviours.append(reply)
    divide_index(points.path, 2)
    await until(lambda: servers.meter.damaged == set())


@with_root
async def test_a_server_that_opens_shards_is_asked_last(servers: Servers, root: Path) -> None:
    is_open = asyncio.Event()

    async def wait(_: bytes, __: object) -> bytes:
        await is_open.wait()
        return b""

    build(root, "points", 2)
    slow = await servers.start("slow", reply, wait)
    quick = await servers.start("quick", reply)
    servers.front.follow(Topology(1, ((slow, quick), (slow, quick))))

    def states() -> list[tuple[str, str]]:
        return [(one.state, one.reason) for one in servers.front.replicas("points", 1)]

    await until(lambda: states() == [("avoided", "it opens shards"), ("serving", "")])
    assert await servers.front.ask({1: b"ab"}, 5) == {1: b"ba"}
    assert servers.calls[-1] == "quick"
    is_open.set()
    await until(lambda: states() == [("serving", "")] * 2)


@with_root
async def test_a_server_that_cannot_open_a_shard_opens_others(servers: Servers, root: Path) -> None:
    """The log says why; the first query tries again."""
    openings: list[Opening] = []
    note = opening(openings, "first")
    refuse = fail(LimitExceededError("no descriptor is left"))

    async def prepare(message: bytes, context: object) -> bytes:
        is_first = shard_index_pb2.PrepareRequest.FromString(message).shard == 0
        return await (refuse if is_first else note)(message, context)

    build(root, "points", 2)
    address = await servers.start("first", reply, prepare)
    with capture_logs() as lines:
        servers.front.follow(Topology(1, ((address,),)))
        await until(lambda: len(openings) == 1)
        await asyncio.sleep(2 * shard_openings._LOOK_SECONDS)
    assert openings == [("first", "points/2", 1)]
    (line,) = [line for line in lines if "has not opened a shard" in line["event"]]
    assert (line["index"], line["shard"], line["address"]) == ("points", 0, address)
    assert "no descriptor is left" in line["reason"]


def test_an_index_that_cannot_be_read_keeps_no_other_from_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of it stays."""
    for name in ("a", "b"):
        build(tmp_path, name, 2)
    before = shard_openings._read_divisions(tmp_path, {})
    stamp = IndexFolder.pointer_stamp

    def fail_with_one(index: IndexFolder) -> object:
        if index.name == "a":
            raise OSError(errno.ESTALE, "stale")
        return stamp(index)

    monkeypatch.setattr(IndexFolder, "pointer_stamp", fail_with_one)
    assert shard_openings._read_divisions(tmp_path, {}).keys() == {"b"}
    assert shard_openings._read_divisions(tmp_path, before) == before
