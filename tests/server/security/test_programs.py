"""The command line and the load harness over TLS and with tokens."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from divgrpc.errors import UnauthenticatedError
from divgrpc_client import Client
from divgrpc_client.load import Call, Settings, constant, run_load
from support.data.certificates import Authority, Pair, tls_options
from support.processes.running_server import RunningServer
from support.requests.raw_security import entry, write

POINTS = np.eye(8, dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "token").write_text("reader\n")
    return folder


@pytest.fixture(scope="module")
def guarded(folder: Path, server_pair: Pair, authority: Authority) -> Iterator[RunningServer]:
    """Run a server with TLS, a token that may read, and the index shop."""
    tokens = [
        entry("admin", "admin", "admin", ["*"]),
        entry("reader", "reader", "reader", ["shop"]),
    ]
    file = write(folder / "tokens.toml", *tokens)
    with RunningServer(folder, *tls_options(server_pair), "--tokens", str(file)) as server:
        with Client(server.target, tls=authority.ca, token="admin", timeout=60) as client:  # noqa: S106
            client.build("shop", POINTS)
        yield server


def run(server: RunningServer, *words: object) -> "subprocess.CompletedProcess[str]":
    name, *rest = map(str, words)
    command = [sys.executable, "-m", "divgrpc_client", name, "--target", server.target, *rest]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_commands(guarded: RunningServer, authority: Authority, folder: Path) -> None:
    security = ("--tls-ca", authority.ca, "--token-file", folder / "token")
    outcome = run(guarded, "info", "shop", *security)
    assert outcome.returncode == 0, outcome.stderr
    outcome = run(guarded, "rm", "shop", *security)
    assert outcome.returncode == 1
    assert "has the role reader, and DeleteIndex needs the role admin" in outcome.stderr
    outcome = run(guarded, "ls", *security[:2])
    assert outcome.returncode == 1
    assert "the call has no token" in outcome.stderr
    outcome = run(guarded, "ls", *security[2:])
    assert outcome.returncode == 1
    assert "if it speaks TLS, pass tls" in outcome.stderr
    outcome = run(guarded, "ls", "--tls-cert", authority.ca)
    assert outcome.returncode == 2
    assert "needs both cert and key" in outcome.stderr


def test_load(guarded: RunningServer, authority: Authority) -> None:
    calls = [Call("shop", POINTS)]
    settings = Settings(warm_up=0, channels=1, tls=authority.ca, token="reader")  # noqa: S106
    assert "reader" not in repr(settings)
    report = run_load(guarded.target, calls, constant(20, 1), settings)
    assert (report["calls"], report["errors"]) == (20, 0)
    wrong = Settings(warm_up=0, tls=authority.ca, token="wrong")  # noqa: S106
    with pytest.raises(UnauthenticatedError):
        run_load(guarded.target, calls, constant(20, 1), wrong)
