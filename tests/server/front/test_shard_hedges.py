"""Which replica a front asks first, and when it asks another one too."""

import asyncio
import time

import pytest

from divgrpc_server.front.shard_servers import _Terms
from divgrpc_server.ipc.topology import Topology
from support.processes.scripted_shard_servers import Servers, hang, reply, with_servers


@with_servers(hedge_ms=30.0)
async def test_a_replica_that_is_slow_is_avoided(servers: Servers) -> None:
    """It is asked again when it has been avoided for a second."""
    addresses = (await servers.start("slow", hang), await servers.start("quick", reply))
    servers.front.follow(Topology(1, (addresses,)))
    for _ in range(3):
        assert await servers.front.ask({0: b"ab"}, 10) == {0: b"ba"}
    assert servers.calls == ["slow", "quick", "quick", "quick"]


@with_servers(hedge_ms=1.0)
async def test_a_job_asks_another_replica_after_a_second(servers: Servers) -> None:
    """Its calls say nothing about how long those of queries take."""
    addresses = (await servers.start("slow", hang), await servers.start("quick", reply))
    servers.front.follow(Topology(1, (addresses,)))
    start = time.monotonic()
    assert await servers.front.ask({0: b"ab"}, 10, is_job=True) == {0: b"ba"}
    assert time.monotonic() - start > 0.9
    assert servers.calls == ["slow", "quick"]
    assert not servers.front._durations
    # Items of a build take seconds, and would use up all hedges.
    assert servers.front._hedges.left == 20
    assert servers.front._job_hedges.left < 20
    assert await servers.front.ask({0: b"ab"}, 10) == {0: b"ba"}
    assert servers.front._durations


@with_servers()
async def test_the_time_of_slow_calls_delays_no_other_replica(servers: Servers) -> None:
    for _ in range(128):
        servers.front._measure(30.0)
    assert servers.front._hedge_timeout == 1.0


@with_servers(hedge_ms=10_000.0)
async def test_replicas_share_calls(servers: Servers) -> None:
    """Each call goes to the replica with the fewest."""

    async def pause(message: bytes, _: object) -> bytes:
        await asyncio.sleep(0.2)
        return message

    addresses = tuple([await servers.start(name, pause) for name in ("one", "two")])
    servers.front.follow(Topology(1, (addresses,)))
    servers.front._hedges.left = 0.0
    await asyncio.gather(*(servers.front.ask({0: b"ab"}, 10) for _ in range(8)))
    assert servers.calls.count("one") == servers.calls.count("two") == 4
    # No call remains counted.
    assert not +servers.front._states._calls


@with_servers(hedge_ms=20.0)
async def test_a_silent_replica_delays_no_call_to_its_deadline(servers: Servers) -> None:
    """However many calls meet it at once, and without a budget."""
    addresses = (await servers.start("silent", hang), await servers.start("quick", reply))
    servers.front.follow(Topology(1, (addresses,)))
    servers.front._hedges.left = 0.0
    servers.front._states.ordered = lambda replicas: [*replicas]  # type: ignore[method-assign,assignment]
    start = time.monotonic()
    calls = [servers.front.ask({0: b"ab"}, 10) for _ in range(30)]
    assert await asyncio.gather(*calls) == [{0: b"ba"}] * 30
    assert time.monotonic() - start > 0.4
    assert servers.meter.hedges == 30


@with_servers(hedge_ms=20.0)
async def test_a_slow_replica_that_replies_is_not_silent(servers: Servers) -> None:
    """Calls would double the load of servers that have too much to do."""
    front, now = servers.front, time.monotonic()
    for reply_time, is_hedged in ((now - 9, True), (now + 60, False)):
        front._hedges.left, front._hedges.refill_time = 0.0, time.monotonic() + 60
        front._states._reply_times["slow"] = reply_time
        terms = _Terms(0.0, (), waits=True, is_job=False)
        assert front._take_hedge(["slow", "others"], now - 10, terms) == is_hedged
    assert servers.meter.hedges == 1


@with_servers()
async def test_calls_that_lose_a_race_count_as_slow(servers: Servers) -> None:
    addresses = (await servers.start("silent", hang), await servers.start("quick", reply))
    servers.front.follow(Topology(1, (addresses,)))
    assert await servers.front.ask({0: b"ab"}, 10) == {0: b"ba"}
    while len(servers.front._durations) < 2:
        await asyncio.sleep(0.01)
    assert max(servers.front._durations) >= 0.05


@with_servers()
async def test_calls_that_their_callers_give_up_are_not_measured(servers: Servers) -> None:
    """They say nothing about servers, and many of them would make all calls look quick."""
    servers.front.follow(Topology(1, ((await servers.start("silent", hang),),)))
    call = asyncio.ensure_future(servers.front.ask({0: b"ab"}, 10))
    while not servers.calls:
        await asyncio.sleep(0.001)
    servers.front._hedge_seconds = 60.0
    servers.front._hedges.left = 0.0
    call.cancel()
    while servers.meter.calls != ["withdrawn"]:
        await asyncio.sleep(0.001)
    assert not servers.front._durations
    assert servers.front._hedges.left == 0.0


@with_servers()
async def test_replies_fill_the_budget_of_hedges(servers: Servers) -> None:
    servers.front.follow(Topology(1, ((await servers.start("quick", reply),),)))
    servers.front._hedges.left = 0.0
    for _ in range(20):
        await servers.front.ask({0: b"ab"}, 10)
    assert servers.front._hedges.left == pytest.approx(2)


@with_servers(hedge_ms=20.0)
async def test_a_silent_server_delays_a_call_without_budget_by_a_second(servers: Servers) -> None:
    """Calls that may not ask another replica at once do so after a while, one each second."""
    addresses = (await servers.start("silent", hang), await servers.start("quick", reply))
    servers.front.follow(Topology(1, (addresses,)))
    servers.front._hedges.left = 0.0
    start = time.monotonic()
    assert await servers.front.ask({0: b"ab"}, 20) == {0: b"ba"}
    assert 0.5 < time.monotonic() - start < 15
    assert (servers.calls, servers.meter.hedges) == (["silent", "quick"], 1)
    while len(servers.meter.calls) < 2:
        await asyncio.sleep(0.01)
    assert servers.meter.calls == ["replied", "withdrawn"]


@with_servers(hedge_ms=20.0)
async def test_a_server_is_silent_after_more_than_calls_take(servers: Servers) -> None:
    """A call without a budget waits until its server is silent."""
    front = servers.front
    assert front._hedge_timeout == 0.02
    front._hedges.left = 0.0
    assert front._hedge_timeout == front._quiet_seconds == 0.5
    front._hedge_seconds = 0.9
    assert front._hedge_timeout == front._quiet_seconds == 1.8


@with_servers(hedge_ms=1.0)
async def test_a_slow_job_takes_hedges_from_the_budget_alone(servers: Servers) -> None:
    """A server is silent for a while if it works on a part of a build."""

    async def work(message: bytes, _: object) -> bytes:
        await asyncio.sleep(1.5)
        return message[::-1]

    addresses = (await servers.start("busy", work), await servers.start("idle", reply))
    servers.front.follow(Topology(1, (addresses,)))
    servers.front._job_hedges.left = -5.0
    assert await servers.front.ask({0: b"ab"}, 10, is_job=True) == {0: b"ba"}
    assert (servers.calls, servers.meter.hedges) == (["busy"], 0)


@with_servers()
async def test_processes_prefer_different_replicas(servers: Servers) -> None:
    """A replica that was slow comes last all the same, and then one with more calls."""
    states, replicas = servers.front._states, ["a", "b", "c"]
    states.follow(Topology(1, (tuple(replicas),)))
    for preference, order in ((0, "abc"), (1, "bca"), (5, "cab"), (6, "abc")):
        states._preference = preference
        assert "".join(states.ordered(replicas)) == order
    call = asyncio.ensure_future(asyncio.sleep(0))
    states.count_call("b", call)
    assert states.ordered(replicas) == ["a", "c", "b"]
    states.avoid(["a", "c"])
    assert states.ordered(replicas) == ["b", "a", "c"]
    await call
    await asyncio.sleep(0)
    assert not +states._calls
