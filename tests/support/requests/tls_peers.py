"""Connections to a server without gRPC, and the first bytes of TLS."""

import contextlib
import os
import socket
import ssl

from support.processes.running_server import RunningServer


def connect(server: RunningServer) -> socket.socket:
    """Return a new connection."""
    host, port = server.target.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def client_hello() -> bytes:
    """Return the first bytes that a client of TLS sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


def descriptors(server: RunningServer) -> int:
    """Return the number of descriptors of the front."""
    (front,) = server.pids("front")
    return len(os.listdir(f"/proc/{front}/fd"))
