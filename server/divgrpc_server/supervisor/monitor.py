"""The HTTP port of `--metrics`: /metrics for Prometheus, and probes for people and Kubernetes.

A request costs the other processes nothing. The supervisor reads their shared memory, and a thread
reads the files of indexes. Requests are few and small, so each connection serves one request.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from divgrpc.errors import UnavailableError
from divgrpc_server.config import Config, split_address
from divgrpc_server.logging.logs import Logger
from divgrpc_server.monitoring.damage import take_damage
from divgrpc_server.monitoring.definitions import PLACES_MISSING
from divgrpc_server.monitoring.page import Key, Values
from divgrpc_server.supervisor.child import Child
from divgrpc_server.supervisor.index_files import IndexFiles
from divgrpc_server.supervisor.shard_usage import ShardUsage
from divgrpc_server.supervisor.tally import Tally

_REQUEST_SECONDS: Final = 5.0
_REQUEST_BYTES_MAX: Final = 16_384
_CONNECTIONS_MAX: Final = 32
_TEXT: Final = "text/plain; charset=utf-8"


class State(NamedTuple):
    """The state of a server, for probes.

    has_served: whether all processes have been ready since the start.
    fronts, workers: how many the configuration asks for.
    """

    has_served: bool
    is_stopping: bool
    fronts_ready: int
    fronts: int
    workers_ready: int
    workers: int
    kernels_compiled: int
    kernels: int

    def why_not_started(self) -> str:
        """Return why the start is not complete, or "" if it is."""
        if self.has_served:
            return ""
        if self.kernels_compiled < self.kernels:
            count = f"{self.kernels_compiled} of {self.kernels} kernels are compiled"
            return f"starting: {count}, which is done once"
        workers = f"{self.workers_ready} of {self.workers} workers"
        return f"starting: {workers} and {self.fronts_ready} of {self.fronts} fronts are ready"

    def why_not_ready(self) -> str:
        """Return why calls should go elsewhere, or "" if the server is ready for calls."""
        if self.is_stopping:
            return "the server is stopping"
        if reason := self.why_not_started():
            return reason
        if not self.fronts_ready:
            return "no front is up"
        return "" if self.workers_ready else "no worker is up"


class Monitor:
    """Answers requests on the port of `--metrics`."""

    def __init__(
        self,
        config: Config,
        root: Path,
        tally: Tally,
        *,
        state: Callable[[], State],
        children: Callable[[], Iterable[Child]],
        log: Logger,
    ) -> None:
        self._tally, self._state, self._children = tally, state, children
        self._log = log
        self._has_shard_servers = config.starts_shard_servers and config.engine == "local"
        self._shard_usage = ShardUsage()
        self._index_files = IndexFiles(root, is_read_only=config.read_only)
        # Held while a thread reads the files of indexes and processes.
        self._lock = asyncio.Lock()
        self._connections = 0
        # Connections without a request, the oldest first.
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to answer on a socket that listens."""
        self._server = await asyncio.start_server(
            self._serve, sock=listener, limit=_REQUEST_BYTES_MAX
        )

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            if self._connections >= _CONNECTIONS_MAX:
                # The oldest caller that sent no request yet makes room, so that callers who send
                # nothing do not keep probes out.
                oldest = next(iter(self._silent), writer)
                self._silent.pop(oldest, None)
                oldest.transport.abort()
                if oldest is writer:
                    return
            self._connections += 1
            self._silent[writer] = None
            try:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(writer, None)
                writer.write(await self._answer(head.decode("latin-1")))
                async with asyncio.timeout(_REQUEST_SECONDS):
                    await writer.drain()
            finally:
                self._connections -= 1
                self._silent.pop(writer, None)
                writer.close()

    async def _answer(self, head: str) -> bytes:
        """Return the whole response to a request, given as its lines and headers."""
        line, *headers = head.splitlines()
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"use GET\n")
        status, body, content_type = HTTPStatus.OK, b"", _TEXT
        try:
            if path == "/metrics":
                body, content_type = await self._scrape(_header(headers, "accept"))
            else:
                status, body = self._probe(path)
        except Exception:  # noqa: BLE001  # becomes the status of the request
            self._log.exception("fault")
            status, body = HTTPStatus.INTERNAL_SERVER_ERROR, b"a fault; see the log\n"
        return _response(status, body, content_type, with_body=method == "GET")

    def _probe(self, path: str) -> tuple[HTTPStatus, bytes]:
        state = self._state()
        if path == "/livez":
            reason = ""  # the supervisor answers, and replaces the others by itself
        elif path == "/readyz":
            reason = state.why_not_ready()
            if not reason and self._lacks_shards():
                # Other servers would lack them too, and this one still has its whole indexes.
                return HTTPStatus.OK, b"ok, but no server of some shards answers\n"
        elif path == "/startupz":
            reason = state.why_not_started()
        else:
            return HTTPStatus.NOT_FOUND, b"there are /metrics, /livez, /readyz and /startupz\n"
        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
        return status, f"{reason or 'ok'}\n".encode()

    def _lacks_shards(self) -> bool:
        """Whether no server of some shards answers."""
        pages = [child.page.read() for child in self._children() if child.page is not None]
        return any(page.get((PLACES_MISSING,), [0.0])[0] > 0 for page in pages)

    async def _scrape(self, accept: str) -> tuple[bytes, str]:
        from divgrpc_server.supervisor.exposition import expose  # only where it is needed

        series = self._tally.series(self._children(), os.getpid())
        series.update(_gauges(self._state()))
        reports = take_damage(series)

        engines = [child.pid for child in self._children() if child.role == "engine"]

        def render() -> tuple[bytes, str]:
            series.update(self._index_files.read(reports))
            if self._has_shard_servers:
                series.update(self._shard_usage.read(engines))
            return expose(series, accept)

        async with self._lock:
            known = self._index_files.damaged
            exposition = await asyncio.to_thread(render)
            for name in sorted(self._index_files.damaged - known):
                self._log.warning("an index has damaged files: run divgrpc doctor", index=name)
            return exposition


def _gauges(state: State) -> dict[Key, Values]:
    return {
        ("divgrpc_ready",): [not state.why_not_ready()],
        ("divgrpc_workers",): [state.workers],
        ("divgrpc_workers_ready",): [state.workers_ready],
        ("divgrpc_kernels_compiled",): [state.kernels_compiled],
        ("divgrpc_kernels",): [state.kernels],
    }


def _header(headers: Iterable[str], name: str) -> str:
    for header in headers:
        key, _, value = header.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _response(
    status: HTTPStatus, body: bytes, content_type: str = _TEXT, *, with_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


@contextlib.contextmanager
def metrics_port(config: Config) -> Iterator[tuple[Config, socket.socket | None]]:
    """Listen on the port of `--metrics`; yield the configuration with its number, and the socket.

    Without `--metrics`, yield no socket. Raises `UnavailableError` if the port is in use.
    """
    if not config.metrics:
        yield config, None
        return
    host, port = split_address("metrics", config.metrics)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UnavailableError(f"cannot serve metrics on {config.metrics}: {error}") from error
    with listener:
        shown = f"[{host}]" if ":" in host else host
        yield replace(config, metrics=f"{shown}:{listener.getsockname()[1]}"), listener
