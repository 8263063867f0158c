"""The tokens that the servers of a cluster share, and their replacement while the servers run."""

import asyncio
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
from grpc import StatusCode

from divgrpc import Index
from divgrpc.sharding.files import divide_index
from divgrpc_client import Client
from divgrpc_server.config import Config
from divgrpc_server.logging import logs
from divgrpc_server.security.cluster import STANDARD_INPUT, ClusterTokens, secret_of
from divgrpc_server.supervisor.supervisor import Supervisor
from support.checks.refusals import failing
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, eventually

OLD: Final = "the old token of the cluster"
NEW: Final = "the new token of the cluster"


SHARD: Final[dict[str, Any]] = {"role": "shard", "read_only": True, "data_dir": "d"}
RAY: Final[dict[str, Any]] = {
    "engine": "ray",
    "ray_address": "127.0.0.1:6379",
    "data_dir": "d",
    "shards": 2,
}


def tokens_of(path: Path | str, options: dict[str, Any]) -> ClusterTokens:
    """Return the tokens of a server that has started with the old one."""
    config = Config(cluster_token=str(path), **options)
    return ClusterTokens(OLD, config, logs.configure(config, "test"))


def accepted(tokens: ClusterTokens) -> list[str]:
    return [token for token in (OLD, NEW) if tokens.accept(f"Bearer {token}")]


def test_the_first_token_is_sent_and_two_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(OLD)
    tokens = tokens_of(file, SHARD)
    for text, header, both in (
        (f"{OLD}\n{NEW}\n", OLD, [OLD, NEW]),
        (f"{NEW}\r\n{OLD}\r\n", NEW, [OLD, NEW]),
        (f"\n{NEW}\n", NEW, [NEW]),
    ):
        file.write_text(text)
        assert tokens.refresh()
        assert not tokens.refresh()
        assert (tokens.header, accepted(tokens)) == (f"Bearer {header}", both)
    for wrong in ("", NEW, f"bearer {NEW}", f"Bearer {NEW} ", f"Bearer {OLD}\n{NEW}", "Bearer "):
        assert not tokens.accept(wrong)


@pytest.mark.parametrize("text", ["", "short", f"{NEW}\nshort", f"{NEW}\n{OLD}\n{OLD[::-1]}", None])
def test_a_broken_file_changes_nothing(
    tmp_path: Path, text: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither when it breaks nor when a process is replaced meanwhile."""
    file = tmp_path / "token"
    file.write_text(OLD)
    tokens = tokens_of(file, SHARD)
    file.unlink()
    if text is not None:
        file.write_text(text)
    for one in (tokens, tokens, tokens_of(file, SHARD)):
        assert not one.refresh()
        assert accepted(one) == [OLD]
    assert capfd.readouterr().err.count("new cluster tokens are not used") == 2
    file.write_text(NEW)
    assert tokens.refresh()
    assert accepted(tokens) == [NEW]


def test_a_process_that_is_replaced_gets_the_last_good_tokens(tmp_path: Path) -> None:
    """Also if the file is broken when the process starts."""
    file = tmp_path / "token"
    file.write_text(OLD)
    config = Config(cluster_token=str(file), **SHARD)

    async def replace_and_break() -> str:
        supervisor = Supervisor(config, tmp_path, Mock(), secret_of(config))
        file.write_text(f"{NEW}\n{OLD}")
        task = asyncio.ensure_future(supervisor._look_at_files())
        await asyncio.sleep(0)
        file.write_text("short")
        supervisor._stop.set()
        await task
        return supervisor._cluster.secret

    secret = asyncio.run(replace_and_break())
    tokens = ClusterTokens(secret, config, logs.configure(config, "test"))
    assert (tokens.header, accepted(tokens)) == (f"Bearer {NEW}", [OLD, NEW])


def test_servers_that_an_engine_starts_keep_their_tokens(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(OLD)
    engine = tokens_of(file, RAY)
    place = tokens_of(STANDARD_INPUT, SHARD)
    file.write_text(NEW)
    for tokens in (engine, place):
        assert not tokens.refresh()
        assert accepted(tokens) == [OLD]
    config = Config(cluster_token=str(file), **SHARD)
    file.write_text(f"{OLD}\n{NEW}\n")
    assert ClusterTokens(secret_of(config), config, logs.configure(config, "test")).accept(
        f"Bearer {NEW}"
    )


def test_a_token_is_replaced_while_servers_run(tmp_path: Path) -> None:
    """No query fails: the steps are those of the page."""
    points = random_points(100, dims=8, seed=3)
    Index.build(points, path=tmp_path / "data" / "points")
    divide_index(tmp_path / "data" / "points", 2)
    files = [tmp_path / name for name in ("shard", "router")]
    for file in files:
        file.write_text(OLD)
    homes = [tmp_path / f"{file.name}-home" for file in files]
    for home in homes:
        home.mkdir()
    data = ("--data-dir", str(tmp_path / "data"), "--workers", "1", "--cluster-token")
    shard = ("--role", "shard", "--read-only")
    with RunningServer(homes[0], *shard, *data, str(files[0])) as place:
        router = ("--worker-wait", "1", "--shards", "2", "--shard-servers", place.target)
        with (
            RunningServer(homes[1], *router, *data, str(files[1])) as server,
            Client(server.target, timeout=30, retries=False) as client,
        ):

            def replace(file: Path, running: RunningServer, text: str) -> None:
                count = running.log.count("cluster tokens are read again")
                file.write_text(text)
                while running.log.count("cluster tokens are read again") == count:
                    assert client.query("points", points[:1], k=3, timeout=2).ids.shape == (1, 3)

            for text in (f"{OLD}\n{NEW}", f"{NEW}\n{OLD}", NEW):
                replace(files[0], place, text)
                replace(files[1], server, text)
            assert client.query("points", points[:1], k=3).ids.shape == (1, 3)
            # A server without the new token is refused.
            count = server.log.count("cluster tokens are read again")
            files[1].write_text(OLD)
            eventually(lambda: server.log.count("cluster tokens are read again") > count)
            with failing(StatusCode.UNAVAILABLE, match="has another cluster token"):
                client.query("points", points[:1], k=3)
