"""Shard servers in the process of a test, which sets what they do, and a front that asks them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from divgrpc.errors import (
    DivgrpcError,
)
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.statuses import (
    status_of,
)
from divgrpc_server.config import Config
from divgrpc_server.front.meter import ShardMeter
from divgrpc_server.front.shard_servers import SERVICE, ShardServers
from divgrpc_server.front.standard_services import DETAILS_KEY
from divgrpc_server.logging import logs
from divgrpc_server.security.cluster import ClusterTokens

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
        self.damaged: set[str] = set()
        self.is_engine_unreachable = False

    def add_call(self, outcome: str) -> None:
        """Note the outcome."""
        self.calls.append(outcome)

    def add_hedge(self) -> None:
        """Count it."""
        self.hedges += 1

    def set_damaged(self, names: Set[str]) -> None:
        """Note the indexes."""
        self.damaged = {*names}

    def set_engine(self, *, is_unreachable: bool) -> None:
        """Keep whether the engine cannot be reached."""
        self.is_engine_unreachable = is_unreachable

    def set_states(self, counts: Mapping[str, int], missing: int) -> None:
        """Note how many servers have each state."""
        self.states = {state: count for state, count in counts.items() if count}
        self.missing = missing


class Servers:
    """Shard servers in this process, and a front's view of them."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # as Config's
        config = Config(shards=2, worker_wait=1.0, **options)
        self.meter = Meter()
        log = logs.configure(config, "test")
        self.front = ShardServers(config, ClusterTokens(SECRET, config, log), log, self.meter)
        self.calls: list[str] = []
        self._servers: list[aio.Server] = []

    async def start(self, name: str, behave: Behaviour, prepare: Behaviour | None = None) -> str:
        """Start a server, and return its address.

        behave, prepare: what it does with messages of `Ask` and of `Prepare`.
        """

        async def ask(request: bytes, context: Any) -> bytes:  # noqa: ANN401  # of gRPC
            assert ("authorization", f"Bearer {SECRET}") in context.invocation_metadata()
            self.calls.append(name)
            return await behave(request, context)

        server = aio.server()
        methods: dict[str, Any] = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
        methods["Prepare"] = grpc.unary_unary_rpc_method_handler(prepare or reply)
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


def request(index: str, shard: int) -> bytes:
    """Return a message about a shard of an index."""
    return shard_index_pb2.AskRequest(index=index, shard=shard).SerializeToString()
