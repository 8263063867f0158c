"""Shard servers that answer from copies of their shards."""

import shutil
from pathlib import Path

import grpc
import numpy as np

from divgrpc import Index
from divgrpc.platforms import wait_for_lock
from divgrpc.sharding.files import divide_index
from divgrpc_client import Client
from divgrpc_server.__main__ import run
from support.checks.refusals import failing
from support.data.divided_indexes import differences
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, descendants, eventually

POINTS = random_points(400, dims=8, seed=9)
QUERIES = POINTS[:5] + 0.2


def mapped(server: RunningServer) -> set[Path]:
    """Return the files of shards that workers of shard servers have mapped."""
    paths: set[Path] = set()
    for pid in descendants(server.process.pid):
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a builder has ended
        for line in lines:
            if line.endswith(".npy") and "/shards/" in line:
                paths.add(Path(line.split(maxsplit=5)[5]))
    return paths


def copies_in(paths: set[Path]) -> set[str]:
    """Return the copies that files are in, without their checksums."""
    return {path.parents[2].name.rsplit(".", 1)[0] for path in paths}


def check(client: Client, points: np.ndarray) -> None:
    answer, whole = client.query("points", QUERIES, k=5), Index.build(points).query(QUERIES, k=5)
    assert set(differences(answer, whole)) <= {"generation", "dial_reasons"}


def test_shard_servers_map_copies_of_the_current_generation(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    options = ("--data-dir", str(data), "--shards", "2", "--cache-dir", str(cache))
    with (
        RunningServer(tmp_path, *options, "--workers", "1") as server,
        Client(server.target, timeout=60) as client,
    ):
        for rows, generation in ((300, "1"), (400, "2")):
            client.build("points", POINTS[:rows], replace=True)
            # No query waits for a copy.
            assert {f"points.{generation}.{shard}" for shard in (0, 1)} <= copies_in(mapped(server))
            assert server.log.count("a shard was copied") == 2 * int(generation)
            check(client, POINTS[:rows])
            assert server.log.count("a shard was copied") == 2 * int(generation)
        files = mapped(server)
        assert files
        assert all(path.is_relative_to(cache) for path in files)
        # Those of the first generation are removed.
        eventually(lambda: len(list(cache.glob("points.*"))) == 2)
        assert {path.name.split(".")[1] for path in cache.glob("points.*")} == {"2"}


def test_shard_servers_copy_shards_without_a_query(tmp_path: Path) -> None:
    """Those of an index that is there at the start, or that another process has divided.

    The log names a copy that is damaged at the start.
    """
    data, cache = tmp_path / "data", tmp_path / "cache"
    options = ("--data-dir", str(data), "--shards", "2", "--cache-dir", str(cache))
    data.mkdir()
    Index.build(POINTS, path=data / "points")
    divide_index(data / "points", 3)
    with (
        RunningServer(tmp_path, *options, "--workers", "1") as server,
        Client(server.target, timeout=60) as client,
    ):
        eventually(lambda: len(list(cache.glob("points.2.*"))) == 3)
        divide_index(data / "points", 2)
        eventually(lambda: {"points.3.0", "points.3.1"} == copies_in(mapped(server)))
        check(client, POINTS)
        assert server.log.count("a shard was copied") == 3 + 2
    (path,) = cache.glob("points.3.1.*/shards/1/vectors.npy")
    data_before = path.read_bytes()
    path.write_bytes(data_before[:-1] + bytes([data_before[-1] ^ 1]))
    shutil.copytree(path.parents[2], cache / "points.1.0.00000000")
    with (
        RunningServer(tmp_path, *options, "--workers", "1") as server,
        Client(server.target, timeout=60) as client,
    ):
        eventually(lambda: "a copy is damaged, and is made again" in server.log)
        check(client, POINTS)
        eventually(lambda: len(list(cache.glob("points.*"))) == 2)
    assert path.read_bytes() == data_before


def test_a_late_query_says_that_a_copy_is_made(tmp_path: Path) -> None:
    """Another process has the lock of those who make copies, until the test lets it go."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    options = ("--data-dir", str(data), "--shards", "2", "--workers", "1")
    with RunningServer(tmp_path, *options) as server, Client(server.target, timeout=60) as client:
        client.build("points", POINTS)
    cache.mkdir()
    with (cache / ".points.1.part.lock").open("ab") as lock:
        wait_for_lock(lock, is_shared=False)
        with (
            RunningServer(tmp_path, *options, "--cache-dir", str(cache)) as server,
            Client(server.target, timeout=60) as client,
        ):
            query_late(client)
            # Then the other shard has its copy.
            eventually(lambda: "a shard was copied" in server.log)
            assert query_late(client) == (
                "shard 1 has not replied in time: a shard server is copying it to the folder of"
                " --cache-dir, and its first query waits for that; ask again later, or with a"
                " longer timeout"
            )
            partial = client.query("points", QUERIES, k=5, allow_partial=True, timeout=5)
            assert partial.missing_shards == (1,)
            lock.close()
            check(client, POINTS)
            client.delete_index("points")
            # No lock stays either.
            eventually(lambda: [*cache.iterdir()] == [])


def query_late(client: Client) -> str:
    """Make a query that is late; return why."""
    with failing(grpc.StatusCode.DEADLINE_EXCEEDED, reason="LATE") as error:
        client.query("points", QUERIES, k=5, timeout=3)
    return str(error.value.detail)


def test_a_cache_folder_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    data, cache = str(tmp_path / "data"), str(tmp_path / "file" / "cache")
    assert run(["--data-dir", data, "--shards", "2", "--cache-dir", cache], {}) == 1
