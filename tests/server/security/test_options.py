"""Security options that contradict one another, and files that are broken, end the start."""

from collections.abc import Callable
from pathlib import Path

import pytest

from divgrpc_server.__main__ import run
from divgrpc_server.config import load
from support.data.certificates import Authority, Pair

Refusal = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Return a function that starts a server, expects exit code 2, and returns the sentence."""

    def start(*arguments: object, **environment: str) -> str:
        assert run([str(argument) for argument in arguments], environment) == 2
        sentence = capsys.readouterr().err
        assert sentence.count("\n") == 1
        return sentence

    return start


def test_options_that_need_another_one(refused: Refusal) -> None:
    assert "tls_cert needs tls_key" in refused("--tls-cert", "cert.pem")
    assert "tls_key needs tls_cert" in refused("--tls-key", "key.pem")
    assert "tls_client_ca needs tls_cert" in refused("--tls-client-ca", "ca.pem")
    both = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert "insecure contradicts tls_cert" in refused(*both, "--insecure")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_without_tls_other_machines_cannot_connect(refused: Refusal, listen: str) -> None:
    assert "set tls_cert and tls_key, or insecure" in refused("--listen", listen)
    assert "set tls_cert and tls_key, or insecure" in refused(DIVGRPC_LISTEN=listen)


def test_a_name_that_is_not_known_may_be_another_machine(refused: Refusal, tmp_path: Path) -> None:
    """It may be known later, and would get the secret of the cluster without TLS."""
    token = tmp_path / "token"
    token.write_text("a secret of sixteen or more")
    options = ("--shards", "2", "--cluster-token", token, "--data-dir", tmp_path)
    servers = "127.0.0.1:50061,shard.invalid:50061"
    assert "shard.invalid:50061, which is on another machine" in refused(
        *options, "--shard-servers", servers
    )
    ray = ("--engine", "ray", "--ray-address", "head.invalid:6379")
    assert "head.invalid:6379, on another machine" in refused(*options, *ray)


def test_broken_files_are_named(
    refused: Refusal, tmp_path: Path, authority: Authority, server_pair: Pair
) -> None:
    other = authority.issue("mismatch")
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    cases = [
        (server_pair.cert, other.key, "tls_key", other.key, "does not match"),
        (server_pair.cert, tmp_path / "none", "tls_key", tmp_path / "none", "cannot be read"),
        (server_pair.cert, tmp_path, "tls_key", tmp_path, "cannot be read"),
        (server_pair.cert, server_pair.cert, "tls_key", server_pair.cert, "is not a private key"),
        (server_pair.cert, encrypted, "tls_key", encrypted, "without a passphrase"),
        (server_pair.key, server_pair.key, "tls_cert", server_pair.key, "has no certificate"),
    ]
    for cert, key, option, file, reason in cases:
        sentence = refused("--tls-cert", cert, "--tls-key", key)
        assert option in sentence
        assert str(file) in sentence
        assert reason in sentence
    pair = ("--tls-cert", server_pair.cert, "--tls-key", server_pair.key)
    assert "tls_client_ca names" in refused(*pair, "--tls-client-ca", server_pair.key)


def test_reflection_is_off_where_something_is_protected(server_pair: Pair) -> None:
    pair = {"tls_cert": str(server_pair.cert), "tls_key": str(server_pair.key)}
    assert load({}, {}, None).reflection
    assert not load(pair, {}, None).reflection
    assert not load({}, {"DIVGRPC_TOKENS": "tokens.toml"}, None).reflection
    assert load({**pair, "reflection": True}, {}, None).reflection
