"""The shared port: the supervisor chooses and holds it, each front listens on it."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace

from divgrpc.errors import UnavailableError
from divgrpc_server.config import Config


@contextlib.contextmanager
def reserved_port(config: Config) -> Iterator[Config]:
    """Hold a port, and yield the configuration with its number in place of 0.

    The socket that holds the port never listens, so it takes no calls from the fronts. Raises
    `UnavailableError` if another process listens there.
    """
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                # Bind without sharing first. Otherwise this server would take a part of the calls
                # of another server that shares its port.
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
