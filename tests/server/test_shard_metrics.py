"""What the metrics of a server with shards say about its shard servers."""

from functools import partial
from pathlib import Path

from divgrpc_client import Client
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, descendants, eventually
from support.processes.scrapes import METRICS, Scrape, metrics_address

POINTS = random_points(200, dims=8, seed=9)
SECRET = "a secret of sixteen or more"  # noqa: S105  # of this test alone


def check_usage(server: RunningServer, address: str) -> None:
    """Compare the processes of the shard servers with those that a scrape counts."""
    (engine,) = server.pids("engine")
    pids = descendants(engine)
    scrape = Scrape(address)
    assert scrape.value("divgrpc_processes", role="engine") == 1
    assert scrape.value("divgrpc_processes", role="shard_server") == len(pids) >= 8
    for name, labels in (
        ("divgrpc_resident_memory_bytes", {"kind": "private"}),
        ("divgrpc_cpu_seconds_total", {}),
        ("divgrpc_open_descriptors", {}),
        ("divgrpc_threads", {}),
    ):
        assert scrape.value(name, role="shard_server", **labels) > 0


def has_damage(address: str) -> bool:
    return Scrape(address).value("divgrpc_indexes_damaged") == 1


def test_a_damaged_shard_is_counted_by_all_servers_that_have_it(tmp_path: Path) -> None:
    """The shard server finds it when the server finds the shard server, without a query."""
    data, token = tmp_path / "data", tmp_path / "token"
    token.write_text(SECRET)
    for name in ("router", "shard"):
        (tmp_path / name).mkdir()
    common = ("--data-dir", str(data), "--workers", "1", *METRICS)
    with RunningServer(tmp_path, *common, "--shards", "2") as server:
        with Client(server.target, timeout=60) as client:
            client.build("points", POINTS)
            client.build("others", POINTS)
        address = metrics_address(server)
        assert Scrape(address).value("divgrpc_indexes_damaged") == 0
        check_usage(server, address)
    (vectors,) = data.glob("points/*/shards/1/vectors.npy")
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"?")
    options = (*common, "--read-only", "--cluster-token", str(token))
    with (
        RunningServer(tmp_path / "shard", *options, "--role", "shard") as shard_server,
        RunningServer(
            tmp_path / "router", *options, "--shards", "2", "--shard-servers", shard_server.target
        ) as router,
    ):
        for one in (router, shard_server):
            address = metrics_address(one)
            eventually(partial(has_damage, address))
            for _ in range(2):
                Scrape(address)
            assert one.log.count("an index has damaged files") == 1
