"""TLS and mutual TLS: which connections succeed, and what the errors of the others say."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from divgrpc.errors import InvalidArgumentError, UnavailableError
from divgrpc_client import TLS, Client
from support.data.certificates import Authority, Pair
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def port_with(pair: Pair) -> Iterator[str]:
    """Listen with a certificate that `divgrpc-server` would take, too; nothing is served."""
    server = grpc.server(None)  # type: ignore[arg-type]  # no call arrives
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def ask(target: str, is_async: bool, **settings: Any) -> Any:  # noqa: ANN401  # a call's
    settings = {"timeout": 10.0, "retries": False} | settings
    return Stack(target, is_async=is_async)("server_info", settings=settings)


def test_a_call_over_tls(tls_server: RunningServer, authority: Authority, is_async: bool) -> None:
    assert ask(tls_server.target, is_async, tls=authority.ca).workers == 1


def test_a_host_name_of_the_certificate(authority: Authority, tls_server: RunningServer) -> None:
    pair = TLS(ca=authority.ca, server_name="localhost")
    assert ask(tls_server.target, False, tls=pair).workers == 1


@pytest.mark.parametrize("is_other", [False, True])
def test_a_list_of_addresses(
    authority: Authority, tls_server: RunningServer, is_async: bool, is_other: bool
) -> None:
    """The certificates of all servers have the first address, or the name that is given."""
    target = f"ipv4:{tls_server.target},{tls_server.target}"
    assert ask(target, is_async, tls=authority.ca).workers == 1
    if is_other:
        with pytest.raises(UnavailableError, match="is for another host"):
            ask(target, is_async, tls=TLS(ca=authority.ca, server_name="elsewhere"))


def test_plain_against_tls(tls_server: RunningServer, is_async: bool) -> None:
    with pytest.raises(UnavailableError, match="if it speaks TLS, pass tls"):
        ask(tls_server.target, is_async, tls=False)


def test_tls_against_plain(server: RunningServer, authority: Authority, is_async: bool) -> None:
    with pytest.raises(UnavailableError, match="does not speak TLS: leave tls out"):
        ask(server.target, is_async, tls=authority.ca)


def test_an_unknown_authority(
    tls_server: RunningServer, stranger: Authority, is_async: bool
) -> None:
    with pytest.raises(UnavailableError, match="authority that this client does not know"):
        ask(tls_server.target, is_async, tls=stranger.ca)
    with pytest.raises(UnavailableError, match="authority that this client does not know"):
        ask(tls_server.target, is_async, tls=True)


def test_an_expired_certificate(authority: Authority, is_async: bool) -> None:
    expired = authority.issue("expired", days=-1)
    with (
        port_with(expired) as target,
        pytest.raises(UnavailableError, match="has expired: the server needs a new one"),
    ):
        ask(target, is_async, tls=authority.ca)


def test_a_certificate_of_another_host(authority: Authority, is_async: bool) -> None:
    other = authority.issue("other-host", "subjectAltName=DNS:example.org")
    with (
        port_with(other) as target,
        pytest.raises(UnavailableError, match=r"is for another host.*server_name"),
    ):
        ask(target, is_async, tls=authority.ca)


def test_a_client_certificate_is_demanded(
    mutual_server: RunningServer, authority: Authority, stranger: Authority, is_async: bool
) -> None:
    """The server closes the connection without a reason, so the advice names what may be wrong."""
    with pytest.raises(UnavailableError, match="may demand a client certificate"):
        ask(mutual_server.target, is_async, tls=authority.ca)
    pair = stranger.issue("client")
    with pytest.raises(UnavailableError, match="may not accept this client certificate"):
        ask(mutual_server.target, is_async, tls=TLS(ca=authority.ca, cert=pair.cert, key=pair.key))
    pair = authority.issue("client", rsa=True)
    tls = TLS(ca=authority.ca, cert=pair.cert, key=pair.key)
    assert ask(mutual_server.target, is_async, tls=tls).workers == 1


def test_wrong_files_are_named_before_the_first_call(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    one, other = authority.issue("one"), stranger.issue("other")
    cases: list[tuple[Path | TLS, str]] = [
        (tmp_path / "none.pem", "ca: .*none.pem cannot be read"),
        (one.key, "ca: .*one-key.pem has no certificate"),
        (TLS(cert=one.cert, key=other.key), "other-key.pem is not the key of .*one.pem"),
    ]
    for tls, message in cases:
        with pytest.raises(InvalidArgumentError, match=message) as refusal:
            Client("localhost:1", tls=tls)
        assert refusal.value.field == "tls"
    with pytest.raises(InvalidArgumentError, match="both cert and key"):
        TLS(cert=one.cert)
    with pytest.raises(InvalidArgumentError, match="contradicts credentials"):
        Client("localhost:1", tls=True, credentials=grpc.ssl_channel_credentials())


def test_the_environment_stands_for_arguments(
    mutual_server: RunningServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = authority.issue("environment")
    monkeypatch.setenv("DIVGRPC_TLS_CA", str(authority.ca))
    monkeypatch.setenv("DIVGRPC_TLS_CLIENT_CERT", str(pair.cert))
    monkeypatch.setenv("DIVGRPC_TLS_CLIENT_KEY", str(pair.key))
    assert ask(mutual_server.target, False).workers == 1
    with pytest.raises(UnavailableError):
        ask(mutual_server.target, False, tls=False)
