"""A server and a shard server that measures the searches of its builds, from copies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from divgrpc.builder.builder import IndexBuilder
from divgrpc.parameters import BuildParameters
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.storage.generations import ROOT_LOCK, read_manifest, staging
from divgrpc.types import Progress
from divgrpc_client import Client
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, eventually
from support.processes.scrapes import METRICS, Scrape, metrics_address

POINTS = random_points(60_000, dims=8, seed=2)
SHARDS = 2
# Shard servers measure large builds only, and this lets them measure one that tests can afford.
_SITE = """
import sys
if {"divgrpc_server.forkserver", "divgrpc_server.builder"} & {*sys.orig_argv}:
    from divgrpc_server.builder import shard_tuner
    shard_tuner._ROWS_MIN = 1
"""


class _LeavingError(Exception):
    """Ends a call of a client."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    """Yield a server, and the only shard server that it asks."""
    data, token, site = (tmp_path / name for name in ("data", "token", "site"))
    for folder in (data, site, tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
    (data / ROOT_LOCK).touch()
    token.write_text("a secret of sixteen or more")
    (site / "sitecustomize.py").write_text(_SITE)
    common = ("--data-dir", str(data), "--cluster-token", str(token), "--workers", "1")
    shard = ("--role", "shard", "--read-only", "--cache-dir", str(tmp_path / "cache"))
    with RunningServer(tmp_path / "one", *common, *shard) as shard_server:
        options = ("--shards", str(SHARDS), "--shard-servers", shard_server.target, *METRICS)
        environment = {"PYTHONPATH": str(site), "OPENBLAS_NUM_THREADS": "1"}
        arguments = (*common, *options)
        with RunningServer(tmp_path / "two", *arguments, environment=environment) as server:
            yield server, shard_server


def test_shard_servers_measure_the_searches_of_a_build(
    servers: tuple[RunningServer, RunningServer], tmp_path: Path
) -> None:
    """The files are those of one machine. A build that is cancelled meanwhile leaves no copies."""
    server, shard_server = servers
    with staging(tmp_path / "here" / "points", replace=False) as stage:
        division = DividedBuild(stage, SHARDS)
        builder = IndexBuilder(stage, BuildParameters(hash_family="cells"), points=division)
        builder.append_all(POINTS)
        expected = builder.build().manifest
    calls: dict[str, float] = {}

    def count(progress: Progress) -> None:
        if progress.stage not in calls:
            scrape = Scrape(metrics_address(server))
            calls[progress.stage] = scrape.value("divgrpc_shard_calls_total", outcome="replied")

    def leave(progress: Progress) -> None:
        if progress.stage == "tuning" and "copied" in shard_server.log[length:]:
            raise _LeavingError

    with Client(server.target, timeout=60) as client:
        client.build("points", POINTS, hash_family="cells", progress=count)
        assert calls["writing"] > calls["tuning"] + 100
        assert shard_server.log.count("a shard of a build was copied") == SHARDS
        assert read_manifest(tmp_path / "data" / "points" / "1") == expected
        length = len(shard_server.log)
        with pytest.raises(_LeavingError):
            client.build("left", POINTS, hash_family="cells", progress=leave)
    eventually(lambda: [*(tmp_path / "data").glob(".*.staging-*")] == [])
    eventually(lambda: [*(tmp_path / "cache").glob(".*.staging-*")] == [])
    assert "so this process does" not in server.log
