"""What a front knows of the state of shard servers, and what waits for it."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest
from grpc import StatusCode
from structlog.testing import capture_logs

from divgrpc.errors import (
    IndexDamagedError,
    IndexNotFoundError,
    UnavailableError,
    UnsupportedError,
)
from divgrpc.types.shards import ReplicaInfo
from divgrpc_server.codec.statuses import (
    EngineUnreachableError,
    PlacesMissingError,
    ShardsMissingError,
    status_of,
)
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.ipc.control import Message
from divgrpc_server.ipc.topology import Topology
from support.checks.status_details import details_of_status
from support.processes.scripted_shard_servers import (
    Behaviour,
    Servers,
    fail,
    hang,
    reply,
    request,
    with_servers,
)

# A folder without indexes.
NOWHERE: Final = Path("/nowhere")


@with_servers()
async def test_the_states_of_replicas_are_known_without_calls(servers: Servers) -> None:
    there, gone = await servers.start("there", reply), "127.0.0.1:1"
    servers.front.follow(Topology(1, ((there, gone), (gone,))))
    assert [one.state for one in servers.front.replicas("points", 0)] == ["starting"] * 2
    keeper = asyncio.ensure_future(servers.front.keep(NOWHERE))
    # A check that is late is made again; the test as a whole has a limit.
    while servers.meter.states != {"serving": 1, "unreachable": 2}:
        await asyncio.sleep(0.01)
    assert servers.meter.missing == 1
    first, second = servers.front.replicas("points", 2)
    assert first == ReplicaInfo(there, "serving")
    assert (second.address, second.state) == (gone, "unreachable")
    assert "UNAVAILABLE" in second.reason
    servers.front.follow(Topology(2, ((there,), (there,))))
    while servers.meter.states != {"serving": 2}:
        await asyncio.sleep(0.01)
    assert servers.meter.missing == 0
    keeper.cancel()


@with_servers()
async def test_the_log_has_each_reason_of_a_server_once(servers: Servers) -> None:
    """At first a server may not reply, and then its certificate may be wrong."""
    address = "127.0.0.1:1"
    servers.front.follow(Topology(1, ((address,),)))
    states = servers.front._states
    with capture_logs() as lines:
        for reason in ("it does not reply", "another name", "it does not reply", "a", "b", "c"):
            states.note_fault(address, "unreachable", reason)
    reasons = [line["reason"] for line in lines]
    assert reasons == ["it does not reply", "another name", "a"]


@with_servers(replicas=3)
async def test_a_server_that_is_not_there_is_being_started(servers: Servers) -> None:
    servers.front.follow(Topology(1, (("127.0.0.1:1", "127.0.0.1:2"), ())))
    states = [[one.address for one in servers.front.replicas("points", n)] for n in range(2)]
    assert states == [["127.0.0.1:1", "127.0.0.1:2", ""], ["", "", ""]]


@with_servers(hedge_ms=10_000.0)
async def test_damage_concerns_one_shard(servers: Servers) -> None:
    """A reply to another call says nothing about it, and one about the shard ends it."""
    behaviours = [fail(IndexDamagedError("bad bytes"))]

    async def behave(message: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        is_damaged = message == request("points", 0)
        return await (behaviours[-1] if is_damaged else reply)(message, context)

    address = await servers.start("bad", behave)
    servers.front.follow(Topology(1, ((address,),)))
    text = f"shard 0 is damaged at {address}: bad bytes; divgrpc doctor says more"
    with pytest.raises(RefusedError, match=text):
        await servers.front.ask({0: request("points", 0)}, 10)
    await servers.front.ask({0: request("others", 0)}, 10)
    assert servers.front.replicas("points", 0) == [ReplicaInfo(address, "faulty", "bad bytes")]
    assert servers.front.replicas("others", 0)[0].state != "faulty"
    assert servers.meter.calls == ["failed", "replied"]
    behaviours.append(reply)
    # The points of a build are in no shard.
    await servers.front.ask({0: request("points", 0)}, 10, waits=False, is_job=True)
    assert servers.front.replicas("points", 0) == [ReplicaInfo(address, "faulty", "bad bytes")]
    await servers.front.ask({0: request("points", 0)}, 10)
    assert servers.front.replicas("points", 0)[0].state != "faulty"


@with_servers()
async def test_a_build_waits_for_a_server_at_each_place(servers: Servers) -> None:
    """One replica is enough. The error says whether somebody is about to start the others."""
    there, gone = await servers.start("there", reply), "127.0.0.1:1"
    servers.front.follow(Topology(1, ((there, gone), (gone,))))
    keeper = asyncio.ensure_future(servers.front.keep(NOWHERE))
    while servers.meter.states != {"serving": 1, "unreachable": 2}:
        await asyncio.sleep(0.01)
    servers.front._wait_seconds = 0.1
    with pytest.raises(UnavailableError, match="engine is starting"):
        await servers.front.await_places()
    servers.front.handle(Message("engine", 1))
    with pytest.raises(PlacesMissingError, match="place 1 of 2, counted from 0"):
        await servers.front.await_places()
    servers.front._wait_seconds = 20.0
    build = asyncio.ensure_future(servers.front.await_places())
    await asyncio.sleep(0)
    servers.front.follow(Topology(2, ((there, gone), (there,))))
    await build
    keeper.cancel()


@with_servers()
async def test_builds_and_deletions_wait_for_the_engine(servers: Servers) -> None:
    """They are refused while it has ended, or while it says that it cannot work."""
    there = await servers.start("there", reply)
    places = ((there,), (there,))
    lost = Topology(1, places, fault="the head does not answer")

    async def check(fault: str) -> None:
        servers.front._wait_seconds = 0.0
        with pytest.raises(EngineUnreachableError, match=f"{fault}; queries go on, but nothing is"):
            await servers.front.await_engine()
        assert await servers.front.ask({0: b"ab"}, 10) == {0: b"ba"}
        servers.front._wait_seconds = 20.0

    await servers.front.await_engine()
    servers.front.handle(Message("topology", 1, lost.pack()))
    await check("the head does not answer")
    assert servers.meter.is_engine_unreachable
    deletion = asyncio.ensure_future(servers.front.await_engine())
    await asyncio.sleep(0)
    assert not deletion.done()
    servers.front.handle(Message("topology", 2, Topology(2, places).pack()))
    await deletion
    assert not servers.meter.is_engine_unreachable
    servers.front.handle(Message("engine", 0))
    await check("the process that starts shard servers has ended")
    build = asyncio.ensure_future(servers.front.await_engine())
    await asyncio.sleep(0)
    # The next one says where the servers are before all of them serve.
    servers.front.handle(Message("topology", 3, Topology(3, places).pack()))
    await build


@with_servers()
async def test_a_build_waits_for_the_first_topology(servers: Servers) -> None:
    servers.front._wait_seconds = 0.0
    with pytest.raises(UnavailableError):
        await servers.front.await_places()


@with_servers(shard_servers="127.0.0.1:1,127.0.0.1:2", cluster_token="token")  # noqa: S106  # a file
async def test_a_build_may_come_again_until_servers_are_checked(servers: Servers) -> None:
    """A front that has just started knows nothing about servers that others have started."""
    servers.front._wait_seconds = 0.0
    with pytest.raises(UnavailableError, match="are being checked"):
        await servers.front.await_places()
    keeper = asyncio.ensure_future(servers.front.keep(NOWHERE))
    while servers.meter.states != {"unreachable": 2}:
        await asyncio.sleep(0.01)
    with pytest.raises(
        PlacesMissingError,
        match=r"places 0 and 1 of 2, .*; 127.0.0.1:1 is unreachable: .*; 127.0.0.1:2 is",
    ):
        await servers.front.await_places()
    keeper.cancel()


@with_servers(shard_servers="127.0.0.1:1,127.0.0.1:2", cluster_token="token")  # noqa: S106  # a file
async def test_a_server_that_refuses_calls_is_missing_for_a_build(servers: Servers) -> None:
    """Its health says nothing about the token."""
    address = await servers.start("other", fail(UnsupportedError("token", "is another one")))
    servers.front.follow(Topology(2, ((address,), (address,))))
    servers.front._wait_seconds = 0.0
    with pytest.raises(ShardsMissingError):
        await servers.front.ask({0: b"ab"}, 10)
    assert servers.front.replicas("points", 0)[0].state == "faulty"
    with pytest.raises(PlacesMissingError):
        await servers.front.await_places()


@with_servers(shard_servers="127.0.0.1:1,127.0.0.1:2", cluster_token="token")  # noqa: S106  # a file
async def test_a_server_that_lets_nobody_in_is_known_at_once(servers: Servers) -> None:
    """So no build begins whose index it would not answer from."""
    behaviours = [fail(UnsupportedError("token", "is another one"))]

    async def behave(request: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        return await behaviours[-1](request, context)

    address, silent = await servers.start("other", behave), await servers.start("silent", hang)
    servers.front.follow(Topology(2, ((address,), (silent,))))
    servers.front._wait_seconds = 0.0
    servers.front._states.note_fault(address, "unreachable", "it is not started yet")
    with capture_logs() as lines:
        keeper = asyncio.ensure_future(servers.front.keep(NOWHERE))
        while servers.meter.states.get("faulty") != 1:
            await asyncio.sleep(0.01)
    assert ["have both the same version and token?" in line["event"] for line in lines] == [True]
    # A healthy server that is silent may only be busy.
    while servers.meter.states != {"faulty": 1, "serving": 1}:
        await asyncio.sleep(0.01)
    assert servers.meter.missing == 1
    with pytest.raises(
        PlacesMissingError,
        match=r"place 0 of 2, counted from 0, .* is faulty: UNIMPLEMENTED: is an",
    ):
        await servers.front.await_places()
    behaviours.append(fail(IndexNotFoundError("there is no index")))
    while servers.meter.states != {"serving": 2}:
        await asyncio.sleep(0.01)
    await servers.front.await_places()
    keeper.cancel()


@with_servers()
async def test_a_server_that_refuses_calls_does_so_after_a_failed_check(servers: Servers) -> None:
    address = await servers.start("other", fail(UnsupportedError("token", "is another one")))
    servers.front.follow(Topology(2, ((address,),)))
    servers.front._wait_seconds = 0.0
    with pytest.raises(ShardsMissingError):
        await servers.front.ask({0: b"ab"}, 10)
    states = servers.front._states
    states.note_fault(address, "unreachable", "it does not reply to health checks")
    await states._check(address)
    assert servers.front.replicas("points", 0)[0].state == "faulty"
    states.note_reply(address, None)
    await states._check(address)
    # It was avoided, but there is no other one.
    assert servers.front.replicas("points", 0)[0].state == "serving"


@with_servers()
async def test_missing_shards_are_named_with_their_places_and_servers(servers: Servers) -> None:
    """Also with the last addresses of a place that has no server now."""
    there, gone, ended = await servers.start("there", reply), "127.0.0.1:1", "127.0.0.1:2"
    servers.front._wait_seconds = 0.0
    servers.front.follow(Topology(1, ((there,), (gone, gone), (ended,))))
    servers.front.follow(Topology(2, ((there,), (gone, gone), ())))
    with pytest.raises(ShardsMissingError) as error:
        await servers.front.ask({0: b"ab", 1: b"cd", 4: b"ef", 5: b"gh"}, 10)
    assert "check the shard servers at places 1 and 2 of 3, counted from 0; " in str(error.value)
    assert f"; {gone} is unreachable: " in str(error.value)
    assert str(error.value).endswith(f"no server is at place 2 now; the last was at {ended}")
    places = {"shards": "1,4,5", "places": "1,2", "addresses": f"{gone},{gone},{ended}"}
    details = details_of_status(StatusCode.UNAVAILABLE, status_of(error.value, "id"))
    assert details.metadata == {"request_id": "id", **places}


@with_servers()
async def test_places_are_unknown_before_the_first_topology(servers: Servers) -> None:
    servers.front._wait_seconds = 0.0
    with pytest.raises(ShardsMissingError, match=r"no server with shard 3 of the index replies"):
        await servers.front.ask({3: b"ab"}, 10)


@pytest.mark.parametrize("answer", [reply, fail(IndexNotFoundError("there is no index"))])
def test_a_server_that_has_refused_a_call_is_asked_again(answer: Behaviour) -> None:
    """So builds, which alone would not ask it, need not wait for a query."""
    behaviours = [fail(UnsupportedError("token", "is another one"))]

    async def behave(request: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        return await behaviours[-1](request, context)

    @with_servers()
    async def test(servers: Servers) -> None:
        address = await servers.start("changing", behave)
        servers.front.follow(Topology(1, ((address,), (address,))))
        with pytest.raises(ShardsMissingError):
            await servers.front.ask({0: b"ab"}, 10)
        keeper = asyncio.ensure_future(servers.front.keep(NOWHERE))
        call_count = len(servers.calls)
        while len(servers.calls) == call_count or not servers.meter.states:
            await asyncio.sleep(0.01)
        assert servers.meter.states == {"faulty": 2}
        behaviours.append(answer)
        while servers.meter.states != {"serving": 2}:
            await asyncio.sleep(0.01)
        servers.front._wait_seconds = 0.0
        await servers.front.await_places()
        # It is not asked when nothing is wrong.
        call_count = len(servers.calls)
        await asyncio.sleep(1.5)
        assert len(servers.calls) == call_count
        keeper.cancel()

    test()
