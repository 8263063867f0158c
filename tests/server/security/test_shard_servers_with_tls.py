"""Shard servers with certificates, and a server that asks them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from divgrpc import Index
from divgrpc.errors import UnavailableError
from divgrpc.sharding.files import divide_index
from divgrpc_client import Client
from support.checks.refusals import failing
from support.data.certificates import Authority, Pair, put, tls_options
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, eventually

POINTS = random_points(300, dims=8, seed=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a divided index and the secret of a cluster."""
    Index.build(POINTS, path=tmp_path / "data" / "points")
    divide_index(tmp_path / "data" / "points", 2)
    (tmp_path / "secret").write_text("a secret of sixteen or more")
    return tmp_path


@pytest.fixture
def shard_server(
    request: pytest.FixtureRequest, folder: Path, authority: Authority
) -> Iterator[RunningServer]:
    """Run a shard server that demands certificates of the authority.

    The parameter, if there is one, is the name in its own certificate.
    """
    name = getattr(request, "param", "")
    pair = authority.issue("shard", *([f"subjectAltName=DNS:{name}"] if name else []))
    options = (
        *("--role", "shard", "--read-only", "--data-dir", str(folder / "data")),
        *("--cluster-token", str(folder / "secret"), "--tls-client-ca", str(authority.ca)),
    )
    home = folder / "shard"
    home.mkdir()
    with RunningServer(home, *options, *tls_options(pair)) as running:
        yield running


def options_of_router(folder: Path, shard_server: RunningServer, ca: Path) -> tuple[str, ...]:
    return (
        *("--data-dir", str(folder / "data"), "--shards", "2", "--worker-wait", "1"),
        *("--cluster-token", str(folder / "secret"), "--cluster-ca", str(ca)),
        *("--shard-servers", shard_server.target),
    )


def test_both_servers_show_certificates(
    folder: Path, authority: Authority, shard_server: RunningServer
) -> None:
    options = options_of_router(folder, shard_server, authority.ca)
    tls = tls_options(authority.issue("router"))
    with (
        RunningServer(folder, *options, *tls) as server,
        Client(server.target, timeout=30, tls=authority.ca) as client,
    ):
        answer = client.query("points", POINTS[:3] + 0.1, k=4)
    assert np.array_equal(answer.ids, Index.build(POINTS).query(POINTS[:3] + 0.1, k=4).ids)


@pytest.mark.parametrize("shard_server", ["divgrpc-shard"], indirect=True)
@pytest.mark.parametrize("is_known", [True, False])
def test_all_shard_servers_may_have_one_name(
    folder: Path, authority: Authority, shard_server: RunningServer, is_known: bool
) -> None:
    """Their addresses need not be in the certificate, which addresses of pods cannot be."""
    options = options_of_router(folder, shard_server, authority.ca)
    options += ("--cluster-name", "divgrpc-shard") if is_known else ()
    tls = tls_options(authority.issue("router"))
    with (
        RunningServer(folder, *options, *tls) as server,
        Client(server.target, timeout=30, tls=authority.ca, retries=False) as client,
    ):
        if is_known:
            assert client.query("points", POINTS[:1], k=4).ids.shape == (1, 4)
        else:
            advice = "its certificate is for another name"
            with failing(grpc.StatusCode.UNAVAILABLE, reason="SHARDS_MISSING", match=advice):
                client.query("points", POINTS[:1], k=4, timeout=20)
            eventually(lambda: advice in server.log)
            assert "Verification Check" not in server.log


@pytest.mark.parametrize("fault", ["no certificate", "another authority"])
def test_a_stranger_is_not_asked_and_asks_nobody(
    folder: Path, authority: Authority, shard_server: RunningServer, fault: str
) -> None:
    """Either the shard server refuses the caller, or the caller refuses the shard server."""
    has_own = fault == "another authority"
    other = Authority(folder, "other")
    options = options_of_router(folder, shard_server, other.ca if has_own else authority.ca)
    tls = tls_options(authority.issue("router")) if has_own else ("--workers", "1")
    with (
        RunningServer(folder, *options, *tls) as server,
        Client(
            server.target, timeout=30, tls=authority.ca if has_own else None, retries=False
        ) as client,
    ):
        sign = "an authority in --cluster-ca" if has_own else "it closes the connection"
        with failing(grpc.StatusCode.UNAVAILABLE, reason="SHARDS_MISSING", match=sign):
            client.query("points", POINTS[:1], k=4, timeout=20)
        with failing(grpc.StatusCode.FAILED_PRECONDITION, reason="PLACES_MISSING"):
            client.build("others", POINTS)
        eventually(lambda: sign in server.log)
        # Nothing must answer for this.
        assert client.delete_index("points") == 2


def test_new_certificates_are_used_and_broken_ones_are_not(
    folder: Path, authority: Authority, shard_server: RunningServer
) -> None:
    """All servers get certificates of another authority, while the one that asks runs."""
    other = Authority(folder, "other")
    place = Pair(folder / "own.pem", folder / "place-key.pem")
    ca, bundle = folder / "ca.pem", folder / "both.pem"
    bundle.write_bytes(authority.ca.read_bytes() + other.ca.read_bytes())
    shutil.copy(authority.ca, ca)
    put(authority.issue("router"), place)
    options = options_of_router(folder, shard_server, ca)
    with (
        RunningServer(folder, *options, *tls_options(place)) as server,
        Client(server.target, timeout=60, tls=bundle) as client,
    ):
        whole = client.query("points", POINTS[:1], k=4)
        ca.write_text("nothing")
        eventually(lambda: "for shard servers are not used" in server.log)
        assert np.array_equal(client.query("points", POINTS[:1], k=4).ids, whole.ids)
        shutil.copy(other.ca, ca)
        put(other.issue("router"), place)
        eventually(lambda: "for shard servers are read again" in server.log)
        # The connections that there were have ended.
        shard_server.stop()
        home = folder / "new"
        home.mkdir()
        options = (
            *("--role", "shard", "--read-only", "--data-dir", str(folder / "data")),
            *("--cluster-token", str(folder / "secret"), "--tls-client-ca", str(other.ca)),
            *tls_options(other.issue("shard")), "--listen", shard_server.target,
        )  # fmt: skip
        with RunningServer(home, *options):
            eventually(lambda: is_answered(client))
            assert np.array_equal(client.query("points", POINTS[:1], k=4).ids, whole.ids)


def is_answered(client: Client) -> bool:
    try:
        client.query("points", POINTS[:1], k=4)
    except UnavailableError:
        return False
    return True
