"""Peers that connect and then send nothing, or a byte a second, are dropped."""

import socket
import time

import pytest

from divgrpc_client import Client
from divgrpc_server.front.catalog import HANDSHAKE_MS
from support.data.certificates import Authority
from support.processes.running_server import RunningServer, eventually
from support.requests.tls_peers import client_hello, connect, descriptors

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# The time after which a descriptor is free again: the page says so. The rest is for a busy machine.
_FREE_SECONDS = HANDSHAKE_MS / 1e3 + 10
_CUT_BYTES = 40


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection; drops what it has sent."""
    connection.settimeout(0)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def check_dropped(
    server: RunningServer, client: Client, connections: list[socket.socket], before: int
) -> None:
    """Check that all connections end in time, and that the server serves others meanwhile."""
    begin = time.monotonic()
    left = list(connections)
    while left:
        assert time.monotonic() - begin < _FREE_SECONDS, len(left)
        client.server_info()
        left = [connection for connection in left if not is_closed(connection)]
        time.sleep(0.1)
    eventually(lambda: descriptors(server) <= before, 10)
    for connection in connections:
        connection.close()


def test_handshakes_that_stop(tls_server: RunningServer, authority: Authority) -> None:
    """Each connection sends a longer part of the first message of TLS, and then nothing."""
    hello = client_hello()
    with Client(tls_server.target, tls=authority.ca, timeout=10) as client:
        client.server_info()
        before = descriptors(tls_server)
        connections = []
        for size in range(0, len(hello) + 1, _CUT_BYTES):
            connections.append(connect(tls_server))
            connections[-1].sendall(hello[:size])
        assert len(connections) > 5
        check_dropped(tls_server, client, connections, before)


def test_a_handshake_of_one_byte_a_second(tls_server: RunningServer, authority: Authority) -> None:
    hello = client_hello()
    with Client(tls_server.target, tls=authority.ca, timeout=10) as client:
        client.server_info()
        before = descriptors(tls_server)
        connection = connect(tls_server)
        for place in range(int(_FREE_SECONDS)):
            try:
                connection.sendall(hello[place : place + 1])
            except OSError:
                break
            client.server_info()
            if is_closed(connection):
                break
            connection.settimeout(30)
            time.sleep(1)
        check_dropped(tls_server, client, [connection], before)


@pytest.mark.parametrize("begin", [b"", _PREFACE[:5], _PREFACE, _PREFACE + b"\0\0"])
def test_a_peer_that_stops_after_the_preface(server: RunningServer, begin: bytes) -> None:
    with Client(server.target, timeout=10) as client:
        client.server_info()
        before = descriptors(server)
        connection = connect(server)
        connection.sendall(begin)
        check_dropped(server, client, [connection], before)
