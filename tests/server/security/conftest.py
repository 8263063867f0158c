"""An authority, and a server that speaks TLS with a certificate of this authority."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.data.certificates import Authority, Pair, tls_options
from support.processes.running_server import RunningServer


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that signs the certificates of the servers."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="session")
def server_pair(authority: Authority) -> Pair:
    """Return a certificate for this machine."""
    return authority.issue("server")


@pytest.fixture(scope="session")
def tls_server(
    tmp_path_factory: pytest.TempPathFactory, server_pair: Pair
) -> Iterator[RunningServer]:
    """Run a server with TLS."""
    folder = tmp_path_factory.mktemp("tls-server")
    with RunningServer(folder, *tls_options(server_pair)) as running:
        yield running


@pytest.fixture(scope="session")
def mutual_server(
    tmp_path_factory: pytest.TempPathFactory, server_pair: Pair, authority: Authority
) -> Iterator[RunningServer]:
    """Run a server that demands certificates of clients."""
    folder: Path = tmp_path_factory.mktemp("mutual-server")
    mutual = ("--tls-client-ca", str(authority.ca))
    with RunningServer(folder, *tls_options(server_pair), *mutual) as running:
        yield running
