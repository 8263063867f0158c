"""The port, which the supervisor reserves and all fronts listen on."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace

from divgrpc.errors import UnavailableError
from divgrpc_server.config import Config


@contextlib.contextmanager
def reserved_port(config: Config) -> Iterator[Config]:
    """Reserve a port, and yield the configuration with its number.

    If the configured port is 0, the system chooses one. The reserving socket never listens, so it
    receives no connections. Raises `UnavailableError` if the port is in use.
    """
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                # Bind without SO_REUSEPORT first. Otherwise this server could share the port of
                # another server and receive some of its calls.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                address = probe.getsockname()
            holder = stack.enter_context(socket.socket(family, kind, protocol))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(address)
        except OSError as error:
            raise UnavailableError(f"cannot listen on {config.listen}: {error}") from error
        host = f"[{config.host}]" if ":" in config.host else config.host
        yield replace(config, listen=f"{host}:{address[1]}")
