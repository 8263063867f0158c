"""How a front asks shard servers: replicas, deadlines, and errors."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from structlog.testing import capture_logs

from divgrpc.errors import (
    DivgrpcError,
    IndexChangedError,
    IndexDamagedError,
    IndexNotFoundError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from divgrpc.types.shards import ReplicaInfo
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.statuses import (
    LateError,
    PlacesMissingError,
    QueueFullError,
    ShardsMissingError,
    status_of,
)
from divgrpc_server.config import Config
from divgrpc_server.front.meter import ShardMeter
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.shard_servers import SERVICE, ShardServers
from divgrpc_server.front.standard_services import DETAILS_KEY
from divgrpc_server.ipc.control import Message
from divgrpc_server.ipc.topology import Topology
from divgrpc_server.logging import logs

SECRET = "sixteen characters"  # noqa: S105  # of these tests alone
# What a server does with a message: it returns the reply.
Behaviour = Callable[[bytes, Any], Awaitable[bytes]]
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Meter(ShardMeter):
    """Collects what a front counts."""

    def __init__(self) -> None:
        super().__init__(None, 1)
        self.calls: list[str] = []
        self.hedges = 0
        self.states: dict[str, int] = {}
        self.missing = 0

    def add_call(self, outcome: str) -> None:
        """Note the outcome."""
        self.calls.append(outcome)

    def add_hedge(self) -> None:
        """Count it."""
        self.hedges += 1

    def set_states(self, counts: Mapping[str, int], missing: int) -> None:
        """Note how many servers have each state."""
        self.states = {state: count for state, count in counts.items() if count}
        self.missing = missing


class Servers:
    """Shard servers in this process, and a front's view of them."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # as Config's
        config = Config(shards=2, worker_wait=1.0, **options)
        self.meter = Meter()
        self.front = ShardServers(config, SECRET, logs.configure(config, "test"), self.meter)
        self.calls: list[str] = []
        self._servers: list[aio.Server] = []

    async def start(self, name: str, behave: Behaviour) -> str:
        """Start a server, and return its address."""

        async def ask(request: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
            assert ("authorization", f"Bearer {SECRET}") in context.invocation_metadata()
            self.calls.append(name)
            return await behave(request, context)

        server = aio.server()
        methods: dict[str, Any] = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
        handler = grpc.method_handlers_generic_handler(SERVICE, methods)
        health = health_aio.HealthServicer()
        await health.set("", health_pb2.HealthCheckResponse.SERVING)
        add_HealthServicer_to_server(health, server)
        server.add_generic_rpc_handlers([handler])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._servers.append(server)
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Close all connections and servers."""
        await self.front.close()
        for server in self._servers:
            await server.stop(0)


async def reply(request: bytes, _: object) -> bytes:
    return request[::-1]


async def hang(_: bytes, __: object) -> bytes:
    await asyncio.sleep(60)
    return b""


def fail(error: DivgrpcError) -> Behaviour:
    """Return what a server does that ends each call with an error."""

    async def behave(_: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
        status = status_of(error, "")
        trailers = ((DETAILS_KEY, status.SerializeToString()),)
        await context.abort(_CODES[status.code], status.message, trailers)
        return b""

    return behave


def with_servers(**options: Any) -> Callable[[Any], Callable[[], None]]:  # noqa: ANN401
    """Return a decorator that runs an asynchronous test with `Servers` in a new event loop."""

    def decorate(test: Callable[[Servers], Awaitable[None]]) -> Callable[[], None]:
        async def scene() -> None:
            servers = Servers(**options)
            try:
                await asyncio.wait_for(test(servers), 30)
            finally:
                await servers.stop()

        def run() -> None:
            asyncio.run(scene())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


@with_servers()
async def test_shards_are_at_their_places(servers: Servers) -> None:
    addresses = [(await servers.start(name, reply),) for name in ("zero", "one")]
    servers.front.follow(Topology(3, tuple(addresses)))
    servers.front.follow(Topology(2, ()))
    assert await servers.front.ask({0: b"ab", 3: b"cd"}, 10) == {0: b"ba", 3: b"dc"}
    assert sorted(servers.calls) == ["one", "zero"]


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
    assert await servers.front.ask({0: b"ab"}, 10) == {0: b"ba"}
    assert len(servers.front._durations) == 1


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
async def test_the_time_of_slow_calls_delays_no_other_replica(servers: Servers) -> None:
    for _ in range(128):
        servers.front._measure(30.0)
    assert servers.front._hedge_timeout == 1.0


@with_servers()
async def test_the_last_error_of_all_replicas_is_passed_on(servers: Servers) -> None:
    address = await servers.start("bad", fail(QueueFullError("full")))
    servers.front.follow(Topology(1, ((address,),)))
    with pytest.raises(RefusedError) as error:
        await servers.front.ask({0: b"ab"}, 10)
    assert error.value.status.code == code_pb2.RESOURCE_EXHAUSTED


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
    """No other replica is asked, and no other try is made."""
    address = await servers.start("changed", fail(IndexChangedError("replaced")))
    servers.front.follow(Topology(1, ((address, address),)))
    with pytest.raises(IndexChangedError, match="--data-dir of all shard servers"):
        await servers.front.ask({0: b"ab"}, 10)
    assert servers.calls == ["changed"]


@with_servers()
async def test_another_replica_may_see_the_files_of_a_build(servers: Servers) -> None:
    """If none does, the builder learns what the last one says."""
    blind = await servers.start("blind", fail(IndexNotFoundError("no build here")))
    good = await servers.start("good", reply)
    servers.front.follow(Topology(1, ((blind, good), (blind,))))
    terms = {"waits": False, "is_job": True}
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


@with_servers()
async def test_a_late_server_that_fails_its_checks_is_missing(servers: Servers) -> None:
    silent = await servers.start("silent", hang)
    servers.front.follow(Topology(1, ((silent,),)))
    servers.front._states.note_fault(silent, "unreachable", "it does not reply")
    with pytest.raises(ShardsMissingError):
        await servers.front.ask({0: b"ab"}, 0.3)


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


def request(index: str, shard: int) -> bytes:
    """Return a message about a shard of an index."""
    return shard_index_pb2.AskRequest(index=index, shard=shard).SerializeToString()


@with_servers()
async def test_the_states_of_replicas_are_known_without_calls(servers: Servers) -> None:
    there, gone = await servers.start("there", reply), "127.0.0.1:1"
    servers.front.follow(Topology(1, ((there, gone), (gone,))))
    assert [one.state for one in servers.front.replicas("points", 0)] == ["starting"] * 2
    keeper = asyncio.ensure_future(servers.front.keep())
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
    with pytest.raises(RefusedError):
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


@with_servers(hedge_ms=20.0)
async def test_a_silent_server_delays_a_call_without_budget_by_a_second(servers: Servers) -> None:
    """Calls that may not ask another replica at once do so after a while, one each second."""
    addresses = (await servers.start("silent", hang), await servers.start("quick", reply))
    servers.front.follow(Topology(1, (addresses,)))
    servers.front._hedges_left = 0.0
    start = time.monotonic()
    assert await servers.front.ask({0: b"ab"}, 20) == {0: b"ba"}
    assert 0.5 < time.monotonic() - start < 15
    assert (servers.calls, servers.meter.hedges) == (["silent", "quick"], 1)
    while len(servers.meter.calls) < 2:
        await asyncio.sleep(0.01)
    assert servers.meter.calls == ["replied", "withdrawn"]


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


@with_servers()
async def test_a_build_waits_for_a_server_at_each_place(servers: Servers) -> None:
    """One replica is enough. The error says whether somebody is about to start the others."""
    there, gone = await servers.start("there", reply), "127.0.0.1:1"
    servers.front.follow(Topology(1, ((there, gone), (gone,))))
    keeper = asyncio.ensure_future(servers.front.keep())
    while servers.meter.states != {"serving": 1, "unreachable": 2}:
        await asyncio.sleep(0.01)
    servers.front._wait_seconds = 0.1
    with pytest.raises(UnavailableError, match="engine is starting"):
        await servers.front.await_places()
    servers.front.handle(Message("engine", 1))
    with pytest.raises(PlacesMissingError, match="place 1 of 2"):
        await servers.front.await_places()
    servers.front._wait_seconds = 20.0
    build = asyncio.ensure_future(servers.front.await_places())
    await asyncio.sleep(0)
    servers.front.follow(Topology(2, ((there, gone), (there,))))
    await build
    keeper.cancel()


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
    keeper = asyncio.ensure_future(servers.front.keep())
    while servers.meter.states != {"unreachable": 2}:
        await asyncio.sleep(0.01)
    with pytest.raises(
        PlacesMissingError,
        match=r"places 0 and 1 of 2 \(127.0.0.1:1 is unreachable: .*127.0.0.1:2 is",
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
        keeper = asyncio.ensure_future(servers.front.keep())
        call_count = len(servers.calls)
        while len(servers.calls) == call_count:
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
