"""Addresses of servers: which are valid, and the errors for invalid and silent ones."""

import socket
from typing import Any

import grpc
import pytest
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError, UnavailableError
from divgrpc_client import Client
from divgrpc_client.messages import arguments
from divgrpc_client.rpc.causes import explain_unreachable as explain
from divgrpc_client.rpc.channels import SERVICE
from divgrpc_client.rpc.security import Peer, is_local
from support.checks.refusals import failing
from support.processes.both_clients import Stack
from support.processes.running_server import eventually
from support.processes.scripted_server import ScriptedIndex, serving


@pytest.mark.parametrize(
    "target",
    [
        *("localhost:50051", "127.0.0.1:1", "[::1]:65535", "[fe80::1%eth0]:50051"),
        *("server-1.example.org:443", "dns:///localhost:50051", "unix:/run/divgrpc.sock"),
        "ipv4:10.0.0.1:50051,10.0.0.2:50051",
    ],
)
def test_valid_addresses_are_accepted(target: str) -> None:
    """Valid addresses are host:port and addresses with the name schemes of gRPC."""
    assert arguments.target(target) == target


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("localhost", "'localhost', which has no port: divgrpc-server takes 50051"),
        ("http://localhost:50051/", "leave http:// out, write 'localhost:50051'"),
        ("https://10.0.0.1:50051", "leave https:// out, write '10.0.0.1:50051'"),
        ("localhost:", "a port is 1 to 65535"),
        ("localhost:0", "a port is 1 to 65535"),
        ("localhost:65536", "a port is 1 to 65535"),
        ("localhost:http", "a port is 1 to 65535"),
        (":50051", "got ':50051', which has no host"),
        ("::1:50051", "'::1' is no host; a host is a name, an IPv4 address, or an IPv6 address in"),
        ("a b:1", "'a b' is no host"),
        ("a/b:50051", "'a/b' is no host"),
        ("[::1]", "'[::1]', which has no port"),
        ("localhost:50051x", "a port is 1 to 65535"),
        ("", "target must be host:port"),
        (50051, "target must be host:port"),
    ],
)
def test_wrong_addresses_are_refused_with_what_to_write(target: object, message: str) -> None:
    """The error names the argument and the expected form, and no connection is attempted."""
    with pytest.raises(InvalidArgumentError) as error_info:
        Client(target)  # type: ignore[arg-type]  # on purpose
    assert error_info.value.field == "target"
    assert message in str(error_info.value)


@given(host=st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True), port=st.integers())
def test_a_port_is_a_number_of_sixteen_bits(host: str, port: int) -> None:
    target = f"{host}:{port}"
    if 1 <= port <= 65_535:
        assert arguments.target(target) == target
    else:
        with pytest.raises(InvalidArgumentError):
            arguments.target(target)


@pytest.fixture
def target() -> str:
    """Return an address on which no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_a_silent_address_says_how_to_start_a_server(call: Stack, target: str) -> None:
    message = f"no server listens at {target}: start one with divgrpc-server"
    with failing(grpc.StatusCode.UNAVAILABLE, UnavailableError, match=message):
        call("list_indexes")


def test_credentials_without_tls_are_named(script: ScriptedIndex) -> None:
    secure: dict[str, Any] = {"credentials": grpc.ssl_channel_credentials(), "timeout": 10}
    message = r"does not speak TLS: leave tls out"
    with (
        serving(script) as plain,
        Client(plain, **secure) as client,
        pytest.raises(UnavailableError, match=message),
    ):
        client.list_indexes()


def test_several_servers_are_called_in_turn(script: ScriptedIndex) -> None:
    """A call that one of them refuses as UNAVAILABLE is answered by another."""
    other = ScriptedIndex()
    with serving(script) as first, serving(other) as second:
        with Client(f"ipv4:{first},{second}", timeout=30) as client:
            eventually(lambda: client.query("digits", [0.0]) and script.calls and other.calls)
            script.failures = [grpc.StatusCode.UNAVAILABLE] * 2
            for _ in range(6):
                client.query("digits", [0.0])
            assert not script.failures
        with Client(f"ipv4:{first},{second}", timeout=30, retries=False) as client:
            before = script.calls["Query"], other.calls["Query"]
            eventually(lambda: client.query("digits", [0.0]) and script.calls["Query"] > before[0])
            eventually(lambda: client.query("digits", [0.0]) and other.calls["Query"] > before[1])


def test_a_server_that_does_not_serve_yet_gets_no_calls(script: ScriptedIndex) -> None:
    """They would wait there until their deadlines."""
    starting, health = ScriptedIndex(), HealthServicer()
    health.set(SERVICE, HealthCheckResponse.NOT_SERVING)
    with (
        serving(script) as first,
        serving(starting, health) as second,
        Client(f"ipv4:{first},{second}", timeout=30) as client,
    ):
        for _ in range(20):
            client.query("digits", [0.0])
        assert not starting.calls
        health.set(SERVICE, HealthCheckResponse.SERVING)
        eventually(lambda: client.query("digits", [0.0]) and starting.calls)
    with serving(starting, health) as address, Client(f"ipv4:{address}", timeout=30) as client:
        health.set(SERVICE, HealthCheckResponse.NOT_SERVING)
        with failing(
            grpc.StatusCode.UNAVAILABLE, UnavailableError, match="no server at ipv4:.* is ready"
        ):
            client.query("digits", [0.0])


@pytest.mark.parametrize(
    ("target", "is_plainly_local"),
    [
        ("ipv4:127.0.0.1:1,127.0.0.2:1", True),
        ("ipv6:[::1]:1", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("dns:///replicas:1", False),
        ("dns://127.0.0.1/replicas:1", False),
    ],
)
def test_a_token_goes_without_tls_to_this_machine_alone(
    target: str, *, is_plainly_local: bool
) -> None:
    assert is_local(target) is is_plainly_local


@pytest.mark.parametrize("detail", ["the server is shutting down", ""])
def test_other_failures_keep_the_text_of_grpc(detail: str) -> None:
    assert explain(Peer("localhost:1"), detail) == detail
