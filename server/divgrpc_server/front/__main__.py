"""The front process: its startup, its gRPC server, and its shutdown.

A front computes nothing and does not import the compiler. Over the control channel, the supervisor
sends the front the state of the server, and sockets to workers, builders and evaluators. The front
exits when the control channel closes.
"""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Literal, NoReturn

from grpc import aio

from divgrpc.errors import UnsupportedError
from divgrpc.parameters import INDEX_NAME
from divgrpc.storage.generations import IndexFolder
from divgrpc_server.front.audit import AuditLog
from divgrpc_server.front.catalog import (
    CONNECTION_IDLE_MS,
    HANDSHAKE_MS,
    RECEIVED_BYTES_MAX,
    Catalog,
)
from divgrpc_server.front.follower import follow
from divgrpc_server.front.gate import Gate
from divgrpc_server.front.health import Health
from divgrpc_server.front.jobs import Jobs
from divgrpc_server.front.meter import CallMeter, NoCallMeter, PoolMeter, ShardMeter
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.service import SERVICE, Service
from divgrpc_server.front.shard_servers import SERVICE as SHARD_SERVICE
from divgrpc_server.front.shard_servers import ShardServers
from divgrpc_server.front.sharded_pool import ShardedPool
from divgrpc_server.front.standard_services import (
    HEALTH,
    RefusingHandler,
    health_handler,
    reflection_handlers,
)
from divgrpc_server.front.tls import Reloader
from divgrpc_server.front.tracing import Tracer, tracer_of
from divgrpc_server.front.writer import Writer
from divgrpc_server.ipc import control, packets
from divgrpc_server.logging import logs
from divgrpc_server.logging.logs import AccessLog, Logger
from divgrpc_server.security.cluster import ClusterTokens

# Maximum seconds to wait for the tasks of calls that were cancelled at the end of the grace period.
_CANCEL_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 1.0
# After this, a message is sent again for which the control channel had no room.
_FULL_SECONDS: Final = 0.05
_WRONG_SERVER: Final = "this is a shard server: call the server with --shards that asks this one"
# Maximum number of bytes that a router may send to a shard server at once.
_ASK_BYTES_MAX: Final = 64 << 20
_OPTIONS: Final = (
    ("grpc.so_reuseport", 1),
    ("grpc.max_receive_message_length", RECEIVED_BYTES_MAX),
    # Ping idle callers, to detect those whose machine is gone. Allow callers to ping as often as
    # common client libraries do; by default gRPC treats more than one ping in five minutes as
    # abuse.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # Client libraries also send a few pings in a row after an answer, to measure the network. By
    # default gRPC would close the connection at the fourth ping.
    ("grpc.http2.max_ping_strikes", 100),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
)


class Front:
    """One gRPC server and its parts."""

    def __init__(self, process: control.Process, log: Logger) -> None:
        config, root, page = process.config, process.root, process.page
        self._process = process
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._serving = False
        # The number of compiled kernels, and the number of all kernels.
        self._kernels = (0, 0)
        self._stop = asyncio.Event()
        self._health_is_stale = asyncio.Event()
        self._access = AccessLog(config)
        self._audit = AuditLog(config)
        self._is_shard = config.role == "shard"
        self._name = SHARD_SERVICE if self._is_shard else SERVICE
        cluster = ClusterTokens(process.secret, config, log)
        self._gate = Gate(config, root, log, cluster if self._is_shard else None)
        self._shards: ShardServers | None = None
        if config.shards > 1:
            meter = ShardMeter(page, config.fronts)
            self._shards = ShardServers(config, cluster, log, meter, os.getpid())
        self._tracer = tracer_of(os.environ, self._name, log)
        self._writer = self._new_pool(log, "writer", lambda: None)
        self._pool = self._new_pool(log, "worker", self._health_is_stale.set)
        self._writer.no_worker = "the writer is not up; retry"
        self._jobs = Jobs(config, process.channel, self._pool, root, self._shards)
        self._service = self._new_service(NoCallMeter() if page is None else CallMeter(page))
        self._health = Health("", self._name)
        # gRPC ends calls above `pending_calls` with CANCELLED and no details, at a sixth of the
        # cost of a refusal with a reason. A front that may hold more calls answers them too late.
        name, calls = "grpc.server.max_pending_requests", config.pending_calls
        pending = ((name, calls), (f"{name}_hard_limit", calls))
        # Routers send all rows of a batch together, each with the filter.
        most = (("grpc.max_receive_message_length", _ASK_BYTES_MAX),) if self._is_shard else ()
        self._server = aio.server(options=(*_OPTIONS, *pending, *most))

    def _new_pool(
        self, log: Logger, target: Literal["worker", "writer"], on_change: Callable[[], None]
    ) -> Pool:
        """Return the pool of the workers or of the writer; the writer's must exist first."""
        page, is_writer = self._process.page, target == "writer"
        traced = self._tracer.add_request if isinstance(self._tracer, Tracer) else None
        make: Callable[..., Pool] = Pool
        if self._shards is not None and not is_writer:
            make = partial(ShardedPool, shards=self._shards)
        return make(
            self._process.config,
            log,
            report=lambda serial: self._send(control.Message("lost", serial)),
            on_change=on_change,
            stamp=self._stamp,
            is_writer=is_writer,
            writer=None if is_writer else self._writer,
            meter=None if page is None else PoolMeter(page, target),
            trace=None if traced is None else partial(traced, target),
        )

    def _new_service(self, meter: CallMeter) -> Service:
        config, root = self._process.config, self._process.root
        shards = self._shards
        catalog = Catalog(
            config, root, self._pool, lambda: self._serving, lambda: self._kernels,
            replicas=None if shards is None else shards.replicas,
            await_engine=None if shards is None else shards.await_engine,
        )  # fmt: skip
        return Service(
            config,
            self._pool,
            catalog,
            self._jobs,
            Writer(self._writer, lambda: self._send(control.Message("write"))),
            gate=self._gate,
            access=self._access,
            audit_log=self._audit,
            meter=meter,
            tracer=self._tracer,
            log=self._log,
        )

    async def run(self) -> None:
        """Serve until the supervisor says to drain."""
        await self._startup()
        await self._serve()
        await self._drain()

    async def _startup(self) -> None:
        # gRPC keeps a separate queue for each registered method, so calls of other methods do not
        # wait behind calls of registered methods. If the installed gRPC cannot register methods,
        # the generic handler serves these methods too.
        handlers = [health_handler(self._health, lambda: self._kernels)]
        if self._is_shard:
            methods = self._service.shard_methods()
            handlers.append(RefusingHandler(SERVICE, UnsupportedError("target", _WRONG_SERVER)))
        else:
            methods = self._service.registered_methods()
            handlers.append(self._service.handler())
        self._server.add_registered_method_handlers(self._name, methods)
        if self._process.config.reflection and not self._is_shard:
            handlers += reflection_handlers((SERVICE, HEALTH), self._gate.authenticate)
        self._server.add_generic_rpc_handlers(handlers)
        if self._process.config.tls_cert:
            credentials = Reloader(self._process.config, self._log).credentials()
            self._server.add_secure_port(self._process.config.listen, credentials)
        else:
            self._server.add_insecure_port(self._process.config.listen)
        await self._server.start()
        self._loop.add_reader(self._process.channel.fileno(), self._obey)
        # Exclude the objects created so far from garbage collection, because they live as long as
        # the process.
        gc.collect()
        gc.freeze()
        self._process.channel.send(control.Message("ready"))

    async def _serve(self) -> None:
        root = self._process.root
        works: list[Callable[[], Awaitable[None]]] = [self._keep_health, self._gate.keep]
        if self._process.config.read_only:
            works.append(lambda: follow(root, self._pool, self._log))
        if self._shards is not None:
            works.append(partial(self._shards.keep, root))
        keepers = [asyncio.create_task(repeat(work, self._log)) for work in works]
        await self._stop.wait()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _drain(self) -> None:
        self._health.end()
        self._service.drain()
        await self._server.stop(self._process.config.grace)
        # gRPC has cancelled the calls that outlasted the grace period. Wait until their tasks end.
        calls = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if calls:
            await asyncio.wait(calls, timeout=_CANCEL_SECONDS)
        self._pool.close()
        self._writer.close()
        self._access.close()
        self._audit.close()
        await self._tracer.close()
        if self._shards is not None:
            await self._shards.close()

    async def _keep_health(self) -> None:
        """Update the health service whenever workers start or stop."""
        while True:
            await self._health_is_stale.wait()
            self._health_is_stale.clear()
            self._health.set(serving=self._serving and self._pool.workers > 0)

    def _obey(self) -> None:
        delivery = self._process.channel.receive()
        if delivery is None:
            self._access.flush()
            os._exit(1)  # the supervisor is gone
        message, descriptor = delivery
        if message.kind in ("worker", "writer") and descriptor < 0:
            self._send(control.Message("again", message.number))
        elif message.kind == "writer":
            self._writer.attach(message.number, packets.Link(packets.adopt(descriptor)))
        elif message.kind == "worker":
            self._pool.attach(message.number, packets.Link(packets.adopt(descriptor)))
        elif message.kind in ("job", "refused"):
            self._jobs.handle(message, descriptor)
        elif message.kind == "drain":
            self._stop.set()
        else:
            self._follow(message)

    def _follow(self, news: control.Message) -> None:
        """Take what other processes of the server are doing."""
        if news.kind in ("topology", "engine") and self._shards is not None:
            self._shards.handle(news)
        elif news.kind == "promise" and news.number != self._process.serial:
            self._jobs.promises.follow(news.number, int(news.text))
        elif news.kind == "kernels":
            self._set_kernels(news.number, int(news.text))
        elif news.kind == "serving":
            self._serving = True
            self._health_is_stale.set()

    def _set_kernels(self, ready: int, total: int) -> None:
        self._kernels = ready, total
        self._pool.no_worker = "no worker is up"
        if ready < total:
            progress = f"{ready} of {total} kernels are compiled"
            self._pool.no_worker = f"no worker is up yet: {progress}, which is done once; retry"

    def _stamp(self, index: str) -> tuple[int, int] | None:
        if not INDEX_NAME.fullmatch(index):
            return None
        return IndexFolder(self._process.root / index).pointer_stamp()

    def _send(self, message: control.Message) -> None:
        """Send a message, once the supervisor has read enough of those before it."""
        try:
            self._process.channel.send(message)
        except BlockingIOError:
            asyncio.get_running_loop().call_later(_FULL_SECONDS, self._send, message)
        except OSError:
            pass  # the supervisor is gone, and this process ends with it


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop event loop if uvloop is installed, because it makes calls 5 % cheaper."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def repeat(work: Callable[[], Awaitable[None]], log: Logger) -> NoReturn:
    """Do work that has no end, until this task is cancelled; begin it again if it fails."""
    while True:
        try:
            await work()
        except Exception:  # calls must be answered whatever happens
            log.exception("fault")
        await asyncio.sleep(_AGAIN_SECONDS)


def main() -> None:
    """Run a front process, which the supervisor has started."""
    process = control.enter()
    log = logs.configure(process.config, "front", process.serial)

    async def run() -> None:
        logs.log_faults_of(asyncio.get_running_loop(), log)
        await Front(process, log).run()

    with logs.edge(log), asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
