"""Handshakes of TLS that end after any byte cost the server nothing."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from divgrpc_client import Client
from support.data.certificates import Authority
from support.processes.running_server import RunningServer, eventually
from support.requests.tls_peers import client_hello, connect, descriptors

# The system then sends a reset in place of a normal end.
_RESET = struct.pack("ii", 1, 0)


def end(connection: socket.socket, *, is_reset: bool) -> None:
    if is_reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


@pytest.fixture
def unharmed(tls_server: RunningServer, authority: Authority) -> Iterator[RunningServer]:
    """Yield a server; check that it served others meanwhile, and that nothing of it is left."""
    with Client(tls_server.target, tls=authority.ca, timeout=30) as client:
        client.server_info()
        front, before, log = tls_server.pids("front"), descriptors(tls_server), len(tls_server.log)
        yield tls_server
        client.server_info()
        assert tls_server.pids("front") == front
        eventually(lambda: descriptors(tls_server) <= before, 30)
        assert "fault" not in tls_server.log[log:]


@pytest.mark.parametrize("is_reset", [False, True])
def test_the_first_message_ends_after_any_byte(unharmed: RunningServer, is_reset: bool) -> None:
    hello = client_hello()
    for size in range(len(hello) + 1):
        connection = connect(unharmed)
        connection.sendall(hello[:size])
        end(connection, is_reset=is_reset)


def test_the_second_message_ends_after_any_byte(
    unharmed: RunningServer, authority: Authority
) -> None:
    """The second message of a client has its part of the keys, and ends the handshake."""
    size, whole = 0, 1
    while size < whole:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=authority.ca)
        context.set_alpn_protocols(["h2"])
        handshake = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        connection = connect(unharmed)
        is_over = False
        while not is_over:
            with contextlib.suppress(ssl.SSLWantReadError):
                handshake.do_handshake()
                is_over = True
            if not is_over:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65_536))
        message = outgoing.read()
        whole = len(message)
        assert whole > 20
        connection.sendall(message[:size])
        end(connection, is_reset=size % 2 == 1)
        size += 1
