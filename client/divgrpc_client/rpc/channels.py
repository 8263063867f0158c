"""Settings of channels, and a pool of connections that belongs to one process."""

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

import grpc

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.messages import arguments
from divgrpc_client.rpc.errors import ClientStateError
from divgrpc_client.rpc.security import TLS, Peer, Stamp

ConnectionT = TypeVar("ConnectionT")
ChannelOption: TypeAlias = tuple[str, str | int]

SERVICE: Final = "divgrpc.v1.DiverseIndex"
# Serialised messages of grpc.health.v1 for waiting until a server is ready. They are written as
# bytes because the package with their classes is a dependency of the server only.
WATCH: Final = "/grpc.health.v1.Health/Watch"
WATCH_REQUEST: Final = b"\x0a" + bytes([len(SERVICE)]) + SERVICE.encode()  # service = 1
SERVING: Final = b"\x08\x01"  # status = 1: SERVING = 1
# Methods for which a retry is harmless: those that change nothing on the server, and writes. The
# clients give each write a name, so that the server makes it once.
_REPEATABLE: Final = (
    *("Query", "PredictLabels", "Diversify", "Get", "Count", "Scroll", "Upsert", "Delete"),
    *("GetIndex", "ListIndexes", "GetServerInfo"),
)
WRITES: Final = ("Upsert", "Delete")
# What `ClientStateError` says of a closed client.
CLOSED: Final = "this client is closed"
# Calls in flight on one connection, of writes and of all other calls. Further calls wait in the
# client, where waiting costs the server nothing. A burst of queries on one connection then fits
# what gRPC holds for a front (`--pending-calls`).
CALLS_MAX: Final = 64
# The largest message of a call that is repeated: more than clients put into one message of a write.
_REPEATED_BYTES_MAX: Final = 8 << 20
# Files of TLS are looked at, at most once in this time.
_CHECK_SECONDS: Final = 1.0
# The parts of a service config of gRPC: with retries, and with several servers.
_RETRIES: Final[dict[str, object]] = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE, "method": method} for method in _REPEATABLE],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ],
    # The budget of retries. A failed attempt takes a token, a success gives a tenth of one, and
    # with at most half of the tokens there are no retries. So a burst is repeated, and a lasting
    # overload grows by at most a tenth.
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}
# Calls go to servers whose health service says that they serve. One that starts accepts connections
# before that, and would let calls wait that another server could answer.
_BALANCING: Final[dict[str, object]] = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": SERVICE},
}


class Places:
    """Places for calls, on both stacks. After `close` no call gets one."""

    is_closed = False

    def check_open(self) -> None:
        """Raise `ClientStateError` after `close`."""
        if self.is_closed:
            raise ClientStateError(CLOSED)

    def close(self) -> None:
        """Refuse all calls that wait; those in flight must end."""
        self.is_closed = True


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """Settings of connections; raises `InvalidArgumentError` for a wrong target or count."""

    peer: Peer
    channels: int
    retries: bool
    credentials: grpc.ChannelCredentials | None
    options: Sequence[ChannelOption]

    def __post_init__(self) -> None:
        arguments.target(self.peer.target)
        arguments.count("channels", self.channels)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a new channel, None without TLS; reads files."""
        return self.credentials if self.peer.tls is None else self.peer.tls.credentials()

    def channel_options(self) -> list[ChannelOption]:
        """Return gRPC's channel arguments; the caller's come last and take precedence."""
        options: list[ChannelOption] = [
            # Without this option, equal channels share one connection and thus one server process.
            ("grpc.use_local_subchannel_pool", 1),
            # Pings keep connections alive: load balancers silently drop a connection that has been
            # idle for some minutes.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # The client reconnects to a restarted server within a second. By default, gRPC may wait
            # for two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.enable_retries", int(self.retries)),
            # gRPC repeats no call that is larger than this, by default 256 KiB.
            ("grpc.per_rpc_retry_buffer_size", _REPEATED_BYTES_MAX),
        ]
        if name := self.peer.name_in_certificates:
            options.append(("grpc.ssl_target_name_override", name))
        config = (_RETRIES if self.retries else {}) | (_BALANCING if self.peer.is_group else {})
        if config:
            options.append(("grpc.service_config", json.dumps(config)))
        return [*options, *self.options]


class ConnectionPool(Generic[ConnectionT]):
    """Connections that are made at first use and taken in turn.

    The connections belong to the process that made them. gRPC's threads and sockets do not survive
    a fork, so a call in a forked child would hang.
    """

    def __init__(
        self, settings: ChannelSettings, connect: Callable[[ChannelSettings], ConnectionT]
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._lock = threading.Lock()
        self._turn = itertools.count()
        self._pid: int | None = None
        self._connections: tuple[ConnectionT, ...] = ()
        # Connections with former certificates, on which calls may still run.
        self._former: list[ConnectionT] = []
        self._stamp: Stamp = ()
        self._next_check = 0.0
        self._closed = False

    def take(self) -> ConnectionT:
        """Return the next connection; raises `ClientStateError` after a close or a fork."""
        connections = self._connections or self._open()
        if self._pid != os.getpid():
            raise ClientStateError(
                "this client connected before the process was forked; make a new Client in the "
                "child, or start children by spawn"
            )
        if self._settings.peer.tls is not None and time.monotonic() >= self._next_check:
            connections = self._renew(self._settings.peer.tls)
        return connections[next(self._turn) % len(connections)]

    def _renew(self, tls: TLS) -> tuple[ConnectionT, ...]:
        """Connect anew if a file of `tls` has changed; keep the connections if it is broken."""
        with self._lock:
            self._next_check = time.monotonic() + _CHECK_SECONDS
            stamp = tls.stamp()
            if stamp != self._stamp and self._connections:
                with suppress(InvalidArgumentError):
                    connections = self._connect_all()
                    self._former += self._connections
                    self._connections, self._stamp = connections, stamp
            return self._connections

    def _connect_all(self) -> tuple[ConnectionT, ...]:
        return tuple(self._connect(self._settings) for _ in range(self._settings.channels))

    def _open(self) -> tuple[ConnectionT, ...]:
        with self._lock:
            if self._closed:
                raise ClientStateError(CLOSED)
            if not self._connections:
                self._pid = os.getpid()
                tls = self._settings.peer.tls
                self._stamp = tls.stamp() if tls is not None else ()
                self._next_check = time.monotonic() + _CHECK_SECONDS
                self._connections = self._connect_all()
            return self._connections

    def close(self) -> tuple[ConnectionT, ...]:
        """Refuse further calls and return the connections to close, none in a forked child."""
        with self._lock:
            self._closed = True
            connections = (*self._connections, *self._former)
            self._connections, self._former = (), []
        return connections if self._pid == os.getpid() else ()
