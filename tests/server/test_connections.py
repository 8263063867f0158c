"""Connections at the level of HTTP/2 frames."""

import socket
import struct

import pytest

from support.processes.running_server import RunningServer

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _PING, _AWAY = 4, 6, 7
_ACK = 1


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame of stream 0."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0, 0, 0, 0, 0]) + payload


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def next_frame(connection: socket.socket) -> tuple[int, int, bytes]:
    """Return the kind, the flags and the payload of the next frame."""
    head = receive(connection, 9)
    return head[3], head[4], receive(connection, int.from_bytes(head[:3], "big"))


@pytest.mark.parametrize(("pings", "is_allowed"), [(20, True), (200, False)])
def test_some_pings_in_a_row_are_answered_and_many_are_not(
    server: RunningServer, pings: int, is_allowed: bool
) -> None:
    """A few pings measure the network; a client that only pings is disconnected."""
    host, port = server.target.rsplit(":", 1)
    answer_count = 0
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(_PREFACE + frame(_SETTINGS))
        for number in range(pings):
            connection.sendall(frame(_PING, struct.pack(">Q", number)))
            kind, flags, payload = next_frame(connection)
            while (kind, flags) != (_PING, _ACK) and kind != _AWAY:
                kind, flags, payload = next_frame(connection)
            if kind == _AWAY:
                assert payload.endswith(b"too_many_pings")
                break
            answer_count += 1
    assert (answer_count == pings) == is_allowed
    assert answer_count > 20 or is_allowed
