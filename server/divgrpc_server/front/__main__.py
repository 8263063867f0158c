"""The process that speaks gRPC: startup, serve, drain.

It computes nothing and imports no compiler. What it knows of the other processes it hears from the
supervisor over the control channel, which brings sockets to workers, builders and evaluators. When
that channel ends, so does the process.
"""

import asyncio
import gc
import os
from contextlib import suppress
from typing import Final

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2

from divgrpc.parameters import INDEX_NAME, LIMITS
from divgrpc.storage.generations import IndexFolder
from divgrpc_server.front.catalog import Catalog
from divgrpc_server.front.jobs import Jobs
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.reflection import add_reflection
from divgrpc_server.front.service import SERVICE, Service
from divgrpc_server.front.standard_requests import of_one
from divgrpc_server.ipc import control, packets
from divgrpc_server.logging import logs
from divgrpc_server.logging.logs import AccessLog, Logger

# What calls get to end that were cancelled when the grace was over.
_CANCELLED_SECONDS: Final = 1.0
_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# The answer of grpc.health.v1 has no field for them.
_COMPILED_KEY: Final = "divgrpc-kernels-compiled"
_TOTAL_KEY: Final = "divgrpc-kernels-total"
_OPTIONS: Final = (
    ("grpc.so_reuseport", 1),
    # Four times the limit of a message. `service` refuses messages above the limit and says what to
    # do instead. gRPC refuses those above this number, and says only how large they are.
    ("grpc.max_receive_message_length", 4 * LIMITS["message_bytes_max"]),
    # Notice callers whose machine is gone, and let callers notice us as often as the usual client
    # libraries do: gRPC's own default takes a ping more often than every five minutes for abuse.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # Client libraries also ping to learn how much the network holds, some times in a row after an
    # answer: by gRPC's own default the fourth would end the connection.
    ("grpc.http2.max_ping_strikes", 100),
    # A peer that connects and says nothing holds a descriptor no longer than this.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 3_600_000),
)


def _pending(calls: int) -> tuple[tuple[str, int], ...]:
    """Return the options that bound the calls of a line which gRPC holds and we have not taken.

    Beyond them it ends new ones with a bare CANCELLED; our queue says why, and when to return.
    """
    name = "grpc.server.max_pending_requests"
    return (name, calls), (f"{name}_hard_limit", calls)


class Front:
    """One gRPC server and what it needs."""

    def __init__(self, me: control.Self, log: Logger) -> None:
        self._me = me
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._serving = False
        self._kernels = (0, 0)
        self._draining = False
        self._stop = asyncio.Event()
        self._health_wanted = asyncio.Event()
        self._access = AccessLog(me.config)
        self._pool = Pool(
            me.config,
            log,
            report=self._report_lost,
            changed=self._health_wanted.set,
            stamp=self._stamp,
        )
        self._jobs = Jobs(me.config, me.channel, self._pool, me.root)
        catalog = Catalog(
            me.config, me.root, self._pool, lambda: self._serving, lambda: self._kernels
        )
        self._service = Service(
            me.config,
            self._pool,
            catalog,
            self._jobs,
            access=self._access,
            log=log,
        )
        self._health = health.aio.HealthServicer()
        self._server = aio.server(options=(*_OPTIONS, *_pending(me.config.pending_calls)))

    async def run(self) -> None:
        """Serve until the supervisor says to drain."""
        await self._startup()
        await self._serve()
        await self._drain()

    async def _startup(self) -> None:
        await self._set_health(serving=False)
        # Registered methods wait in lines of their own until they are taken, so that nothing else
        # waits behind those that come in floods. Where gRPC has no such lines, the handler below
        # serves them.
        self._server.add_registered_method_handlers(SERVICE, self._service.in_floods())
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        self._server.add_generic_rpc_handlers((self._health_handler(),))
        if self._me.config.reflection:
            add_reflection(self._server, (SERVICE, _HEALTH))
        self._server.add_insecure_port(self._me.config.listen)
        await self._server.start()
        self._loop.add_reader(self._me.channel.fileno(), self._obey)
        # What is here now stays, and the collector need not look at it again.
        gc.collect()
        gc.freeze()
        self._me.channel.send(control.Message("ready"))

    def _health_handler(self) -> grpc.GenericRpcHandler:
        request, response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        packed = {"response_serializer": response.SerializeToString}
        check, watch = of_one(request, self._check_health), of_one(request, self._health.Watch)
        return grpc.method_handlers_generic_handler(
            _HEALTH,
            {
                "Check": grpc.unary_unary_rpc_method_handler(check, **packed),
                "Watch": grpc.unary_stream_rpc_method_handler(watch, **packed),
            },
        )

    async def _check_health(
        self,
        request: health_pb2.HealthCheckRequest,
        context: "aio.ServicerContext[bytes, health_pb2.HealthCheckResponse]",
    ) -> health_pb2.HealthCheckResponse:
        """Answer Check; its trailers say how many kernels are compiled, where some are missing."""
        compiled, total = self._kernels
        if compiled < total:
            context.set_trailing_metadata(
                ((_COMPILED_KEY, str(compiled)), (_TOTAL_KEY, str(total)))
            )
        return await self._health.Check(request, context)

    async def _serve(self) -> None:
        keeper = asyncio.create_task(self._keep_health())
        await self._stop.wait()
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper

    async def _drain(self) -> None:
        await self._health.enter_graceful_shutdown()
        self._service.drain()
        await self._server.stop(self._me.config.grace)
        # Calls for which the grace was too short are cancelled by now, and have yet to end.
        calls = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if calls:
            await asyncio.wait(calls, timeout=_CANCELLED_SECONDS)
        self._pool.close()
        self._access.close()

    async def _keep_health(self) -> None:
        """Keep the health service telling the truth while workers come and go."""
        while True:
            await self._health_wanted.wait()
            self._health_wanted.clear()
            await self._set_health(serving=self._serving and self._pool.workers > 0)

    async def _set_health(self, *, serving: bool) -> None:
        answer = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            await self._health.set(service, answer.SERVING if serving else answer.NOT_SERVING)

    def _obey(self) -> None:
        received = self._me.channel.receive()
        if received is None:
            self._access.flush()
            os._exit(1)  # the supervisor is gone: there is nobody to serve for, nor to clean up
        message, descriptor = received
        if message.kind == "worker" and descriptor < 0:
            self._tell(control.Message("again", message.number))
        elif message.kind == "worker":
            self._pool.attach(message.number, packets.Link(packets.adopt(descriptor)))
        elif message.kind in ("job", "refused"):
            self._jobs.hear(message, descriptor)
        elif message.kind == "kernels":
            self._kernels = message.number, int(message.text)
            self._pool.no_worker = "no worker is up"
            if message.number < int(message.text):
                done = f"{message.number} of {message.text} kernels are compiled"
                self._pool.no_worker = f"no worker is up yet: {done}, which is done once; retry"
        elif message.kind == "serving":
            self._serving = True
            self._health_wanted.set()
        elif message.kind == "drain":
            self._stop.set()

    def _report_lost(self, serial: int) -> None:
        self._tell(control.Message("lost", serial))

    def _stamp(self, index: str) -> tuple[int, int] | None:
        if not INDEX_NAME.fullmatch(index):
            return None
        return IndexFolder(self._me.root / index).pointer_stamp()

    def _tell(self, message: control.Message) -> None:
        with suppress(OSError):
            self._me.channel.send(message)


async def _run(me: control.Self, log: Logger) -> None:
    logs.log_faults_of(asyncio.get_running_loop(), log)
    await Front(me, log).run()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed: calls cost a twentieth less with it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def main() -> None:
    """Run a front; started by the supervisor alone."""
    me = control.enter()
    log = logs.configure(me.config, "front", me.serial)
    with logs.edge(log), asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_run(me, log))


if __name__ == "__main__":
    main()
