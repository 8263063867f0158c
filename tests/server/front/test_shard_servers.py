"""How a front asks shard servers: replicas, deadlines, and errors."""

import asyncio
import time
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2
from structlog.testing import capture_logs

from divgrpc.errors import (
    DivgrpcError,
    IndexChangedError,
    IndexDamagedError,
    IndexNotFoundError,
    InvalidArgumentError,
    LimitExceededError,
    UnavailableError,
    UnsupportedError,
)
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.statuses import (
    LateError,
    QueueFullError,
    ShardsMissingError,
)
from divgrpc_server.front import shard_states
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.ipc.job_frames import StagedGeneration
from divgrpc_server.ipc.tags import Trace, pack_tag, parse_traceparent
from divgrpc_server.ipc.topology import Topology
from support.processes.scripted_shard_servers import (
    Behaviour,
    Servers,
    fail,
    hang,
    reply,
    request,
    with_servers,
)


@with_servers()
async def test_shards_are_at_their_places(servers: Servers) -> None:
    addresses = [(await servers.start(name, reply),) for name in ("zero", "one")]
    servers.front.follow(Topology(3, tuple(addresses)))
    servers.front.follow(Topology(2, ()))
    assert await servers.front.ask({0: b"ab", 3: b"cd"}, 10) == {0: b"ba", 3: b"dc"}
    assert sorted(servers.calls) == ["one", "zero"]


@with_servers(hedge_ms=1.0)
async def test_shards_learn_the_request_and_the_trace_of_a_call(servers: Servers) -> None:
    """So does another replica that is asked because the first one is slow."""
    calls: list[dict[str, str]] = []

    async def hang_and_note(message: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        calls.append(dict(context.invocation_metadata()))
        return await hang(message, context)

    async def note(message: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        while not calls:  # the first call has not arrived yet
            await asyncio.sleep(0.001)
        calls.append(dict(context.invocation_metadata()))
        return await reply(message, context)

    addresses = (await servers.start("slow", hang_and_note), await servers.start("quick", note))
    servers.front.follow(Topology(1, (addresses,)))
    trace = Trace(32 * "a", 16 * "b", is_sampled=True)
    await servers.front.ask({0: b"ab"}, 10, tag=pack_tag("r-1", trace))
    assert [metadata["x-request-id"] for metadata in calls] == ["r-1", "r-1"]
    assert [parse_traceparent(metadata["traceparent"]) for metadata in calls] == [trace, trace]
    await servers.front.ask({0: b"ab"}, 10, tag=pack_tag("r-2", None))
    assert (calls[-1]["x-request-id"], "traceparent" in calls[-1]) == ("r-2", False)


@pytest.mark.parametrize("error", [QueueFullError("full"), IndexDamagedError("damaged")])
def test_another_replica_may_do_better(error: DivgrpcError) -> None:
    @with_servers(hedge_ms=10_000.0)
    async def scene(servers: Servers) -> None:
        addresses = (
            "127.0.0.1:1",
            await servers.start("bad", fail(error)),
            await servers.start("good", reply),
        )
        servers.front.follow(Topology(1, (addresses,)))
        message = request("points", 0)
        assert await servers.front.ask({0: message}, 10) == {0: message[::-1]}
        assert servers.calls == ["bad", "good"]

    scene()


@pytest.mark.parametrize("error", [UnavailableError("no worker"), IndexDamagedError("damaged")])
def test_who_does_not_wait_does_without_servers_that_cannot_answer(error: DivgrpcError) -> None:
    """Others learn why they cannot."""

    @with_servers()
    async def scene(servers: Servers) -> None:
        servers.front.follow(Topology(1, ((await servers.start("bad", fail(error)),),)))
        message = {0: request("points", 0)}
        with pytest.raises(ShardsMissingError):
            await servers.front.ask(message, 10, waits=False)
        with pytest.raises(RefusedError):
            await servers.front.ask(message, 10)

    scene()


@with_servers()
async def test_a_full_server_is_not_missing(servers: Servers) -> None:
    address = await servers.start("full", fail(QueueFullError("full")))
    servers.front.follow(Topology(1, ((address,),)))
    with pytest.raises(RefusedError) as error:
        await servers.front.ask({0: b"ab"}, 10, waits=False)
    assert error.value.reason == "QUEUE_FULL"


@with_servers()
async def test_the_last_error_of_all_replicas_is_passed_on(servers: Servers) -> None:
    address = await servers.start("bad", fail(QueueFullError("full")))
    servers.front.follow(Topology(1, ((address,),)))
    with pytest.raises(RefusedError) as error:
        await servers.front.ask({0: b"ab"}, 10)
    assert error.value.status.code == code_pb2.RESOURCE_EXHAUSTED


@with_servers()
async def test_a_limit_that_all_replicas_have_is_said_at_once(servers: Servers) -> None:
    limit = fail(LimitExceededError("candidates_limit must be smaller"))
    addresses = (await servers.start("a", limit), await servers.start("b", reply))
    servers.front.follow(Topology(1, (addresses,)))
    with pytest.raises(RefusedError) as error:
        await servers.front.ask({0: b"ab"}, 10)
    assert (error.value.reason, servers.calls) == ("LIMIT_EXCEEDED", ["a"])


@with_servers()
async def test_an_error_of_the_request_is_said_at_once(servers: Servers) -> None:
    """It says nothing about the server; a malformed message does."""
    bad = await servers.start("bad", fail(InvalidArgumentError("filter", "has no attribute")))
    other = await servers.start("other", fail(InvalidArgumentError("message", "is short")))
    servers.front.follow(Topology(1, ((bad, bad), (other,))))
    with pytest.raises(RefusedError) as error:
        await servers.front.ask({0: b"ab"}, 10)
    assert (error.value.status.code, error.value.field) == (code_pb2.INVALID_ARGUMENT, "filter")
    assert servers.calls == ["bad"]
    states = [servers.front.replicas("points", shard)[0].state for shard in range(2)]
    assert states == ["serving", "starting"]
    with pytest.raises(ShardsMissingError):
        await servers.front.ask({1: b"ab"}, 10)
    assert servers.front.replicas("points", 1)[0].state == "faulty"


@with_servers()
async def test_a_replaced_index_is_said_at_once(servers: Servers) -> None:
    """Each replica is asked once, because one of them may have another data folder."""
    change = fail(IndexChangedError("replaced"))
    addresses = [await servers.start(f"changed {number}", change) for number in range(2)]
    servers.front.follow(Topology(1, (tuple(addresses),)))
    # A call that waits ends without this error.
    servers.front._wait_seconds = 60.0
    with pytest.raises(IndexChangedError, match="--data-dir of all shard servers"):
        await servers.front.ask({0: b"ab"}, 10)
    assert servers.calls == ["changed 0", "changed 1"]
    servers.front.follow(Topology(2, ((addresses[0], "127.0.0.1:1"),)))
    with pytest.raises(IndexChangedError):
        await servers.front.ask({0: b"ab"}, 10)


def scripted(behaviours: list[Behaviour]) -> Behaviour:
    """Return a behaviour that is the last one in a list."""

    async def behave(message: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        return await behaviours[-1](message, context)

    return behave


def test_a_replica_answers_for_one_with_another_data_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is named after a while, because a replaced index looks the same for a moment."""

    @with_servers()
    async def scene(servers: Servers) -> None:
        behaviours = [fail(IndexChangedError("replaced"))]
        other = await servers.start("other", scripted(behaviours))
        servers.front.follow(Topology(1, ((other, await servers.start("good", reply)),)))
        event = "a shard server has other files than another replica"

        async def ask(index: str = "points") -> str:
            servers.front._states._avoided.clear()
            assert await servers.front.ask({0: request(index, 0)}, 10)
            return servers.front.replicas("points", 0)[0].state

        with capture_logs() as lines:
            monkeypatch.setattr(shard_states, "_MISMATCH_SECONDS", 600.0)
            assert [await ask() for _ in range(5)] == ["avoided"] * 5
            assert not lines
            monkeypatch.setattr(shard_states, "_MISMATCH_SECONDS", 0.0)
            assert [await ask() for _ in range(5)] == ["faulty"] * 5
            # Answers about other indexes say nothing about this one.
            behaviours.append(reply)
            assert await ask("others") == "faulty"
            assert "its --data-dir must be" in servers.front.replicas("points", 0)[0].reason
            assert servers.front.replicas("others", 0)[0].state == "serving"
            behaviours.pop()
            await ask()
            assert [line["address"] for line in lines if line["event"] == event] == [other]
            # An answer ends it, and it is logged again if it occurs again.
            behaviours.append(reply)
            assert await ask() == "serving"
            behaviours.pop()
            await ask()
            assert [line["event"] for line in lines].count(event) == 2

    scene()


@pytest.mark.parametrize("is_first", [False, True])
def test_damage_is_said_although_another_replica_is_down(is_first: bool) -> None:
    @with_servers()
    async def scene(servers: Servers) -> None:
        damaged = await servers.start("damaged", fail(IndexDamagedError("no checksum")))
        gone = "127.0.0.1:1"
        servers.front.follow(Topology(1, ((damaged, gone) if is_first else (gone, damaged),)))
        with pytest.raises(RefusedError, match="shard 0 is damaged") as error:
            await servers.front.ask({0: request("points", 0)}, 10)
        assert error.value.status.code == code_pb2.DATA_LOSS

    scene()


@with_servers()
async def test_another_replica_may_see_the_files_of_a_build(servers: Servers) -> None:
    """If none does, the builder learns what the last one says."""
    blind = await servers.start("blind", fail(IndexNotFoundError("no build here")))
    good = await servers.start("good", reply)
    servers.front.follow(Topology(1, ((blind, good), (blind,))))
    terms: dict[str, Any] = {"waits": False, "is_job": True}
    assert await servers.front.ask({0: b"ab"}, 10, **terms) == {0: b"ba"}
    assert servers.calls == ["blind", "good"]
    with pytest.raises(RefusedError, match="no build here"):
        await servers.front.ask({1: b"ab"}, 10, **terms)


@with_servers()
async def test_missing_shards_are_named_after_a_while(servers: Servers) -> None:
    there = await servers.start("there", reply)
    servers.front.follow(Topology(1, ((there,), (), ("127.0.0.1:1",))))
    start = time.monotonic()
    with pytest.raises(ShardsMissingError) as error:
        await servers.front.ask({0: b"ab", 1: b"cd", 4: b"ef"}, 10)
    assert error.value.shards == [1, 4]
    assert 0.9 < time.monotonic() - start < 9


@with_servers()
async def test_a_server_that_comes_back_is_asked(servers: Servers) -> None:
    servers.front.follow(Topology(1, ((),)))
    call = asyncio.ensure_future(servers.front.ask({0: b"ab"}, 10))
    await asyncio.sleep(0.1)
    address = await servers.start("new", reply)
    servers.front.follow(Topology(2, ((address,),)))
    assert await call == {0: b"ba"}


@with_servers()
async def test_a_late_reply_is_not_awaited(servers: Servers) -> None:
    address = await servers.start("slow", hang)
    servers.front.follow(Topology(1, ((address,),)))
    start = time.monotonic()
    with pytest.raises(LateError, match="shard 0"):
        await servers.front.ask({0: b"ab"}, 0.2)
    assert time.monotonic() - start < 9
    call = asyncio.ensure_future(servers.front.ask({0: b"ab"}, 20))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not any("ShardServers" in repr(task) for task in tasks)


@with_servers()
async def test_who_may_lack_a_silent_shard_does_without_it_when_time_ends(servers: Servers) -> None:
    silent, there = await servers.start("silent", hang), await servers.start("there", reply)
    servers.front.follow(Topology(1, ((silent,), (there,))))
    with pytest.raises(ShardsMissingError) as error:
        await servers.front.ask({0: b"ab", 1: b"cd"}, 0.3, waits=False)
    assert error.value.shards == [0]


@pytest.mark.parametrize("waits", [True, False])
def test_a_silent_server_that_fails_its_checks_is_missing(waits: bool) -> None:
    """Who waits for a server does so for a second here, and not until the deadline."""

    @with_servers()
    async def scene(servers: Servers) -> None:
        silent = await servers.start("silent", hang)
        servers.front.follow(Topology(1, ((silent,),)))
        call = asyncio.ensure_future(servers.front.ask({0: b"ab"}, 25, waits=waits))
        while not servers.calls:
            await asyncio.sleep(0.01)
        start = time.monotonic()
        servers.front._states.note_fault(silent, "unreachable", "it does not reply")
        with pytest.raises(ShardsMissingError) as error:
            await call
        assert error.value.shards == [0]
        assert time.monotonic() - start < 15

    scene()


@pytest.mark.parametrize("rest", [[], ["127.0.0.1:1"], ["silent"], ["full"]])
def test_a_server_that_says_why_it_is_late_is_quoted(rest: list[str]) -> None:
    """Other replicas cannot be reached, do not reply in time, or are full."""

    @with_servers(hedge_ms=10_000.0)
    async def scene(servers: Servers) -> None:
        late = await servers.start("late", fail(LateError("it is being copied")))
        full = await servers.start("full", fail(QueueFullError("full")))
        addresses = {"silent": await servers.start("silent", hang), "full": full}
        names = [addresses.get(name, name) for name in rest]
        servers.front.follow(Topology(1, ((late, *names),)))
        with pytest.raises(LateError, match="shard 0 has not replied in time: it is being copied"):
            await servers.front.ask({0: b"ab"}, 0.5)
        with pytest.raises(ShardsMissingError):
            await servers.front.ask({0: b"ab"}, 0.5, waits=False)

    scene()


@with_servers()
async def test_a_replica_answers_for_one_that_says_that_it_is_late(servers: Servers) -> None:
    late = await servers.start("late", fail(LateError("it is being copied")))
    there = await servers.start("there", reply)
    servers.front.follow(Topology(1, ((late, there),)))
    assert await servers.front.ask({0: b"ab"}, 10) == {0: b"ba"}
    changed = await servers.start("changed", fail(IndexChangedError("replaced")))
    servers.front.follow(Topology(2, ((late, changed),)))
    with pytest.raises(IndexChangedError):
        await servers.front.ask({0: b"ab"}, 10)


@with_servers()
async def test_a_late_server_that_fails_its_checks_is_missing(servers: Servers) -> None:
    silent = await servers.start("silent", hang)
    servers.front.follow(Topology(1, ((silent,),)))
    servers.front._states.note_fault(silent, "unreachable", "it does not reply")
    with pytest.raises(ShardsMissingError):
        await servers.front.ask({0: b"ab"}, 0.3)


@with_servers()
async def test_a_replica_that_refuses_calls_does_not_stand_for_a_silent_one(
    servers: Servers,
) -> None:
    silent = await servers.start("silent", hang)
    other = await servers.start("other", fail(UnsupportedError("token", "is another one")))
    servers.front.follow(Topology(1, ((silent, other),)))
    servers.front._states.note_fault(silent, "unreachable", "it does not reply")
    for seconds in (0.3, 25.0):
        with pytest.raises(ShardsMissingError):
            await servers.front.ask({0: b"ab"}, seconds)


@with_servers()
async def test_a_check_that_fails_once_ends_no_call(servers: Servers) -> None:
    """Though the call has taken longer than queries wait for a server."""

    async def behave(request: bytes, _: object) -> bytes:
        await asyncio.sleep(3.5)
        return request

    address = await servers.start("busy", behave)
    servers.front.follow(Topology(1, ((address,),)))
    call = asyncio.ensure_future(servers.front.ask({0: b"ab"}, 25))
    await asyncio.sleep(1.5)
    servers.front._states.note_fault(address, "unreachable", "it does not reply")
    await asyncio.sleep(0.9)
    servers.front._states.note_reply(address, None)
    assert await call == {0: b"ab"}


@with_servers()
async def test_who_may_lack_shards_asks_a_replica_that_comes_back(servers: Servers) -> None:
    silent, back = await servers.start("silent", hang), await servers.start("back", reply)
    servers.front.follow(Topology(1, ((silent, back),)))
    servers.front._states.note_fault(back, "unreachable", "it does not reply")
    call = asyncio.ensure_future(servers.front.ask({0: b"ab"}, 25, waits=False))
    await asyncio.sleep(0.3)
    servers.front._states.note_reply(back, None)
    assert await call == {0: b"ba"}


@pytest.mark.parametrize("waits", [True, False])
def test_a_server_that_ends_a_call_is_full(waits: bool) -> None:
    """GRPC does so if there are more calls than a server may have. The next replica is asked."""

    async def end(_: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        await context.abort(grpc.StatusCode.CANCELLED, "")
        return b""

    @with_servers()
    async def scene(servers: Servers) -> None:
        full, there = await servers.start("full", end), await servers.start("there", reply)
        servers.front.follow(Topology(1, ((full, there), (full,))))
        assert await servers.front.ask({0: b"ab"}, 10, waits=waits) == {0: b"ba"}
        with pytest.raises(QueueFullError):
            await servers.front.ask({1: b"ab"}, 10, waits=waits)

    scene()


@with_servers()
async def test_a_fault_is_logged_once_until_the_next_reply(servers: Servers) -> None:
    """The reply is logged too."""
    behaviours = [fail(UnsupportedError("operation", "unknown"))]

    async def behave(request: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        return await behaviours[-1](request, context)

    address = await servers.start("changing", behave)
    servers.front.follow(Topology(1, ((address,),)))
    with capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(ShardsMissingError):
                await servers.front.ask({0: b"ab"}, 10)
        assert ["UNIMPLEMENTED" in line["reason"] for line in lines] == [True]
        assert (lines[0]["place"], lines[0]["address"]) == (0, address)
        behaviours.append(reply)
        for _ in range(2):
            await servers.front.ask({0: b"ab"}, 10)
        assert [line["event"] for line in lines[1:]] == ["a shard server replies again"]
        behaviours.pop()
        with pytest.raises(ShardsMissingError):
            await servers.front.ask({0: b"ab"}, 10)
        assert len(lines) == 3


@with_servers()
async def test_a_replica_that_comes_back_is_asked_while_the_other_is_silent(
    servers: Servers,
) -> None:
    silent = await servers.start("silent", hang)
    servers.front.follow(Topology(1, ((silent, "127.0.0.1:1"),)))
    call = asyncio.ensure_future(servers.front.ask({0: b"ab"}, 20))
    await asyncio.sleep(0.3)
    servers.front.follow(Topology(2, ((silent, await servers.start("new", reply)),)))
    assert await call == {0: b"ba"}
    assert servers.calls == ["silent", "new"]


@with_servers()
async def test_who_does_not_wait_tries_each_replica_once(servers: Servers) -> None:
    servers.front.follow(Topology(1, (("127.0.0.1:1",), ())))
    servers.front._wait_seconds = 20.0
    start = time.monotonic()
    with pytest.raises(ShardsMissingError) as error:
        await servers.front.ask({0: b"ab", 1: b"cd"}, 25, waits=False)
    assert error.value.shards == [0, 1]
    assert time.monotonic() - start < 15


def preparing(opened: list[tuple[str, int]], name: str) -> Behaviour:
    """Return what a server does that notes which shards of which build it opens."""

    async def prepare(message: bytes, _: object) -> bytes:
        part = shard_index_pb2.PrepareRequest.FromString(message)
        assert (part.index, part.folder) == ("points", ".points.staging-0")
        opened.append((name, part.shard))
        return b""

    return prepare


@with_servers()
async def test_all_replicas_open_their_shards_of_a_build(servers: Servers) -> None:
    """But not those that cannot be reached, and one that refuses is logged."""
    opened: list[tuple[str, int]] = []
    first, second = [
        await servers.start(name, reply, preparing(opened, name)) for name in ("first", "second")
    ]
    refusing = await servers.start("refusing", reply, fail(UnsupportedError("method", "is old")))
    generation = StagedGeneration("points", ".points.staging-0")
    servers.front.follow(Topology(1, ((first, refusing), (second, "127.0.0.1:1"))))
    with capture_logs() as lines:
        await servers.front.prepare(generation)
    assert sorted(opened) == [("first", 0), ("second", 1)]
    assert {line["address"]: line["reason"].split(":")[0] for line in lines} == {
        refusing: "UNIMPLEMENTED",
        "127.0.0.1:1": "UNAVAILABLE",
    }
    servers.front.follow(Topology(2, ((first,),)))
    await servers.front.prepare(generation)
    assert opened[2:] == [("first", 0), ("first", 1)]


@with_servers()
async def test_a_silent_server_does_not_delay_a_build_for_ever(servers: Servers) -> None:
    silent = await servers.start("silent", reply, hang)
    servers.front.follow(Topology(1, ((silent,),)))
    task = asyncio.ensure_future(servers.front.prepare(StagedGeneration("points", "folder")))
    await asyncio.sleep(2)
    # It may copy a large shard, as long as it is healthy.
    assert not task.done()
    servers.front._states.note_fault(silent, "unreachable", "it does not reply")
    await task


@with_servers()
async def test_a_build_that_no_replica_can_open_is_refused(servers: Servers) -> None:
    """Nobody could query it, so the index before stays."""
    opened: list[tuple[str, int]] = []
    refusing = fail(IndexDamagedError("array codes does not match its checksum"))
    broken = [await servers.start(f"broken {n}", reply, refusing) for n in range(2)]
    whole = await servers.start("whole", reply, preparing(opened, "whole"))
    generation = StagedGeneration("points", ".points.staging-0")
    servers.front.follow(Topology(1, ((broken[0], whole), (whole,))))
    await servers.front.prepare(generation)
    assert sorted(opened) == [("whole", 0), ("whole", 1)]
    servers.front.follow(Topology(2, ((whole,), (broken[0], broken[1], "127.0.0.1:1"))))
    with pytest.raises(RefusedError, match=f"{broken[0]} cannot open it: array codes") as failure:
        await servers.front.prepare(generation)
    assert failure.value.status.code == code_pb2.DATA_LOSS
    assert failure.value.reason


@with_servers()
async def test_a_build_that_servers_do_not_see_is_published(servers: Servers) -> None:
    """A network file system may remember that a folder was not there."""
    unseeing = await servers.start("unseeing", reply, fail(IndexNotFoundError("no such build")))
    servers.front.follow(Topology(1, ((unseeing,),)))
    with capture_logs() as lines:
        await servers.front.prepare(StagedGeneration("points", ".points.staging-0"))
    assert lines == []
