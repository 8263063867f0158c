"""Certificates that change while the server and its clients run."""

import socket
import ssl
import time
from pathlib import Path

import pytest

from divgrpc.errors import UnavailableError
from divgrpc_client import TLS, Client
from support.data.certificates import Authority, Pair, put, tls_options
from support.processes.running_server import RunningServer, eventually


def shown(target: str, authority: Authority) -> bytes | None:
    """Return the certificate that a server shows, None if it is not of `authority`."""
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2"])
    host, port = target.rsplit(":", 1)
    try:
        with (
            socket.create_connection((host, int(port)), timeout=10) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as secure,
        ):
            return secure.getpeercert(binary_form=True)
    except ssl.SSLError:
        return None


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.cert.read_text())


def test_a_new_certificate_is_used_and_a_broken_one_is_not(
    tmp_path: Path, authority: Authority
) -> None:
    first, second = authority.issue("first"), authority.issue("second")
    place = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    put(first, place)
    with (
        RunningServer(tmp_path, *tls_options(place)) as server,
        Client(server.target, tls=authority.ca, timeout=20) as client,
    ):
        assert shown(server.target, authority) == der(first)
        put(second, place)
        eventually(lambda: shown(server.target, authority) == der(second))
        for broken in (Pair(first.cert, second.key), Pair(first.key, first.key)):
            put(broken, place)
            for _ in range(3):
                time.sleep(1.1)
                assert shown(server.target, authority) == der(second)
        place.key.unlink()
        time.sleep(1.1)
        assert shown(server.target, authority) == der(second)
        warnings = [line for line in server.log.splitlines() if "are not used" in line]
        assert len(warnings) == 3
        assert "tls_key" in warnings[0]
        assert str(place.key) in warnings[0]
        put(first, place)
        eventually(lambda: shown(server.target, authority) == der(first))
        client.server_info()


def test_a_client_connects_anew_with_its_new_certificate(
    tmp_path: Path, mutual_server: RunningServer, authority: Authority, stranger: Authority
) -> None:
    """A client whose certificate is refused works once its files are replaced."""
    place = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    put(stranger.issue("client"), place)
    tls = TLS(ca=authority.ca, cert=place.cert, key=place.key)
    with Client(mutual_server.target, tls=tls, timeout=10, retries=False) as client:
        with pytest.raises(UnavailableError):
            client.server_info()
        put(authority.issue("renewed"), place)
        time.sleep(1.1)
        assert client.server_info().workers == 1
        # A broken file changes nothing.
        place.cert.write_text("nothing")
        time.sleep(1.1)
        assert client.server_info().workers == 1
