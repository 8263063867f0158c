"""What every engine does: it starts shard servers, replaces them, and says where they are."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Final

import grpc
import numpy as np
import pytest

from divgrpc import Index
from divgrpc.parameters import LIMITS
from divgrpc.types import QueryResult
from divgrpc_client import Client
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.refusals import failing
from support.data.divided_indexes import differences
from support.data.served_index import random_points
from support.processes import toolchains
from support.processes.ray_nodes import RayNodes, command_line, free_port, shard_supervisors
from support.processes.running_server import RunningServer, descendants, eventually
from support.requests.manual_uploads import chunk, header, refusal

POINTS: Final = random_points(400, dims=16, seed=5)
QUERIES: Final = POINTS[:5] + 0.2
SHARDS, REPLICAS = 2, 2
# Five programs of many processes start at a time.
_START_SECONDS: Final = 240
EVENT: Final = "memory is kept for shards"
STEP_BYTES: Final = 16 << 20
FAILED_PRECONDITION: Final = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    toolchains.require_module("ray")
    with RayNodes(REPLICAS, keeps_state=True) as running:
        yield running


def arguments_of(folder: Path, *options: str) -> list[str]:
    return [
        *("--data-dir", str(folder / "data"), "--shards", str(SHARDS), "--workers", "1"),
        *("--replicas", str(REPLICAS), "--worker-wait", "100", "--log-format", "json", *options),
    ]


@pytest.fixture(scope="module", params=["local", "ray"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp(request.param)
    environment: dict[str, str] = {}
    options: list[str] = []
    if request.param == "ray":
        cluster: RayNodes = request.getfixturevalue("nodes")
        environment = cluster.environment
        options = ["--engine", "ray", "--ray-address", cluster.address, "--engine-wait", "60"]
    arguments = arguments_of(folder, *options)
    with RunningServer(folder, *arguments, environment=environment) as running:
        with Client(running.target, timeout=120) as client:
            client.build("points", POINTS)
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.target, timeout=120, retries=False) as one:
        yield one


@pytest.fixture(scope="module")
def whole() -> QueryResult:
    return Index.build(POINTS).query(QUERIES, k=5)


def shard_servers(server: RunningServer, nodes: RayNodes | None) -> list[int]:
    """Return the process ids of the supervisors of shard servers."""
    pids = descendants(server.process.pid)
    if nodes is not None:
        pids += [pid for node in range(len(nodes.pids)) for pid in nodes.processes(node)]
    return shard_supervisors(pids, server.folder)


def check(answer: QueryResult, expected: QueryResult) -> None:
    assert set(differences(answer, expected)) <= {"dial_reasons"}


def test_answers_are_those_of_one_index(client: Client, whole: QueryResult) -> None:
    check(client.query("points", QUERIES, k=5), whole)
    assert sum(shard.rows for shard in client.get_index("points").shards) == len(POINTS)


def test_lines_of_shard_servers_name_their_place(
    server: RunningServer, request: pytest.FixtureRequest
) -> None:
    """Also those of processes that serve queries, and of both replicas."""
    is_local = "local" in server.folder.name
    nodes = None if is_local else request.getfixturevalue("nodes")
    lines = [command_line(pid) for pid in shard_servers(server, nodes)]
    places = {f"--log-place={place}/{number}" for place in (0, 1) for number in (0, 1)}
    assert {word for line in lines for word in line.decode().split("\0")} >= places
    # Ray writes the log of an actor to a file of its node.
    if is_local:
        entries = [json.loads(line) for line in server.log.splitlines()]
        starts = [entry for entry in entries if entry["event"] == "serving" and "place" in entry]
        assert {(entry["place"], entry["replica"]) for entry in starts} == {
            *product((0, 1), (0, 1))
        }


def test_a_killed_shard_server_is_replaced(
    server: RunningServer, client: Client, whole: QueryResult, request: pytest.FixtureRequest
) -> None:
    nodes = request.getfixturevalue("nodes") if "ray" in server.folder.name else None
    servers = shard_servers(server, nodes)
    assert len(servers) == SHARDS * REPLICAS
    os.kill(servers[0], signal.SIGKILL)
    for _ in range(20):
        check(client.query("points", QUERIES, k=5), whole)
    eventually(lambda: len({*shard_servers(server, nodes)} - {*servers}) == 1, _START_SECONDS)
    check(client.query("points", QUERIES, k=5), whole)


def test_an_engine_that_ends_is_replaced(
    server: RunningServer, client: Client, whole: QueryResult
) -> None:
    """Ray's servers stay meanwhile; those of this machine end with the engine."""
    pid = server.kill("engine")
    with Client(server.target, timeout=_START_SECONDS) as patient:
        check(patient.query("points", QUERIES, k=5), whole)
    eventually(lambda: server.pids("engine") not in ([], [pid]), _START_SECONDS)
    for _ in range(20):
        check(client.query("points", QUERIES, k=5), whole)


# What only an engine of several nodes has.


@contextmanager
def on_ray(nodes: RayNodes, folder: Path, *more: str) -> Iterator[tuple[RunningServer, Client]]:
    """Yield a server, and a client of it, for which Ray keeps next to nothing beside shards."""
    options = ("--engine", "ray", "--ray-address", nodes.address, "--engine-wait", "60")
    arguments = arguments_of(folder, *options, "--shard-memory", "1", *more)
    with (
        RunningServer(folder, *arguments, environment=nodes.environment) as server,
        Client(server.target, timeout=120, retries=False) as client,
    ):
        yield server, client


def test_a_killed_node_loses_no_query(nodes: RayNodes, tmp_path: Path) -> None:
    """Its servers start again on the next node, apart from their replicas."""
    whole = Index.build(POINTS).query(QUERIES, k=5)
    with on_ray(nodes, tmp_path) as (server, client):
        client.build("points", POINTS)
        eventually(lambda: server.log.count(EVENT) == SHARDS * REPLICAS, _START_SECONDS)
        nodes.kill(1)
        for _ in range(100):
            check(client.query("points", QUERIES, k=5), whole)
        serve_count = server.log.count("a shard server serves") + SHARDS
        nodes.add()
        eventually(lambda: server.log.count("a shard server serves") >= serve_count, _START_SECONDS)
        for homes in places(server.log).values():
            assert len({*homes.values()}) == REPLICAS
        check(client.query("points", QUERIES, k=5), whole)
        # Ray keeps the memory for their shards there too.
        eventually(lambda: server.log.count(EVENT) == SHARDS * (REPLICAS + 1), _START_SECONDS)
    eventually(lambda: not shard_servers(server, nodes))


def test_memory_of_nodes_is_kept_for_shards(nodes: RayNodes, tmp_path: Path) -> None:
    """A build is refused before its rows are sent if nodes lack memory for them."""
    free_before = free_memory(nodes)
    with on_ray(nodes, tmp_path) as (server, client), server.channel() as channel:
        client.build("points", POINTS)
        eventually(lambda: server.log.count(EVENT) == SHARDS * REPLICAS, _START_SECONDS)
        assert free_before - free_memory(nodes) >= SHARDS * REPLICAS * STEP_BYTES
        upload = header("large", expected_rows=10**10), chunk(POINTS)
        details = refusal(DiverseIndexStub(channel), *upload)
        assert (details.code, details.reason) == (FAILED_PRECONDITION, "MEMORY_MISSING")
        client.delete_index("points")
        eventually(lambda: free_before - free_memory(nodes) < STEP_BYTES, _START_SECONDS)


def test_changes_are_refused_while_the_head_is_gone(nodes: RayNodes, tmp_path: Path) -> None:
    """Queries go on, and so do builds when the head is back."""
    whole = Index.build(POINTS).query(QUERIES, k=5)
    with on_ray(nodes, tmp_path, "--worker-wait", "5") as (server, client):
        client.build("points", POINTS)
        nodes.stop_head_store()
        eventually(lambda: server.log.count("does not answer; queries go on") == 1)
        for change in (lambda: client.build("more", POINTS), lambda: client.delete_index("points")):
            with failing(grpc.StatusCode.UNAVAILABLE, reason="ENGINE_UNREACHABLE"):
                change()
        check(client.query("points", QUERIES, k=5), whole)
        nodes.start_head_store()
        eventually(lambda: server.log.count("answers again") == 1, _START_SECONDS)
        client.build("more", POINTS)
        assert client.delete_index("points") == 1


def test_kept_memory_stays_while_more_is_asked_for(nodes: RayNodes, tmp_path: Path) -> None:
    """The groups that have it are those from before; others have the difference."""
    with on_ray(nodes, tmp_path) as (server, client):
        client.build("points", POINTS)
        eventually(lambda: server.log.count(EVENT) == SHARDS * REPLICAS, _START_SECONDS)
        before = memory_groups(nodes)
        payloads = [bytes(LIMITS["payload_bytes_max"])] * 2 * len(POINTS)
        client.build("large", np.tile(POINTS, (2, 1)), payloads=payloads)
        eventually(lambda: server.log.count(EVENT) >= 2 * SHARDS * REPLICAS, _START_SECONDS)
        assert len(before) == SHARDS * REPLICAS
        assert before < memory_groups(nodes)
        client.delete_index("points")
        client.delete_index("large")
        eventually(lambda: not memory_groups(nodes), _START_SECONDS)


def memory_groups(nodes: RayNodes) -> set[str]:
    """Return the ids of the groups that keep memory for shards."""
    statement = """
for key, entry in ray.util.placement_group_table().items():
    if "-memory" in entry["name"] and entry["state"] == "CREATED":
        print(key)
"""
    return {*in_cluster(nodes, statement).split()}


def test_an_actor_that_is_ended_for_good_is_replaced(nodes: RayNodes, tmp_path: Path) -> None:
    """Also if the index has grown since its group was made, as an engine that starts later sees."""
    with on_ray(nodes, tmp_path) as (server, client):
        client.build("points", POINTS)
        serve_count = server.log.count("a shard server serves") + SHARDS * REPLICAS
        server.kill("engine")
        eventually(lambda: server.log.count("a shard server serves") == serve_count, _START_SECONDS)
        in_cluster(nodes, f"ray.kill([*actors({str(tmp_path / 'data')!r})][0])")
        eventually(lambda: server.log.count("a shard server serves") > serve_count, _START_SECONDS)
        eventually(lambda: not client.get_index("points").degraded, _START_SECONDS)


def test_actors_that_lose_their_groups_are_replaced(nodes: RayNodes, tmp_path: Path) -> None:
    """Also those that the engine has made anew in a group that then goes."""
    data = str(tmp_path / "data")
    statement = f"""
import time
from ray.util.placement_group import PlacementGroup
for actor in [*actors({data!r})]:
    ray.kill(actor)
time.sleep(.8)
for key, entry in ray.util.placement_group_table().items():
    if entry["name"].startswith("divgrpc-" + _digest({data!r})) and entry["state"] != "REMOVED":
        ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(key)))
"""
    with on_ray(nodes, tmp_path) as (server, client):
        client.build("points", POINTS)
        serve_count = server.log.count("a shard server serves")
        in_cluster(nodes, statement)
        eventually(
            lambda: server.log.count("a shard server serves") >= serve_count + 4, _START_SECONDS
        )
        eventually(lambda: not client.get_index("points").degraded, _START_SECONDS)
        check(client.query("points", QUERIES, k=5), Index.build(POINTS).query(QUERIES, k=5))


def test_servers_stay_kept_if_another_engine_has_other_options(
    nodes: RayNodes, tmp_path: Path, whole: QueryResult
) -> None:
    """The other engine ends them when it starts; the first one, which runs, makes them anew."""
    (tmp_path / "token").write_text("a token of sixteen characters or more")
    same = ("--data-dir", str(tmp_path / "data"), "--cluster-token", str(tmp_path / "token"))
    homes = [tmp_path / name for name in ("first", "other")]
    for home in homes:
        home.mkdir()
    with on_ray(nodes, homes[0], *same) as (_, client):
        client.build("points", POINTS)
        with on_ray(nodes, homes[1], *same, "--read-only", "--replicas", "1") as (_, other):
            for one in (other, client):
                check(one.query("points", QUERIES, k=5), whole)
        eventually(lambda: not client.get_index("points").degraded, _START_SECONDS)
        check(client.query("points", QUERIES, k=5), whole)


def free_memory(nodes: RayNodes) -> int:
    """Return the bytes of memory that Ray has on all nodes for others."""
    return int(in_cluster(nodes, "print(int(ray.available_resources()['memory']))"))


def in_cluster(nodes: RayNodes, statement: str) -> str:
    """Return what a statement prints in a process that has joined a cluster.

    `actors(root)` yields the actors of a server with this data folder.
    """
    script = f"""
import ray, sys
from divgrpc_server.engines.ray import _digest
ray.init(address=sys.argv[1], namespace="look", log_to_driver=False, logging_level="ERROR",
         _node_ip_address="127.0.0.1")
def actors(root):
    for name in ray.util.list_named_actors(all_namespaces=True):
        if name["namespace"] == f"divgrpc-{{_digest(root)}}":
            yield ray.get_actor(**name)
{statement}
"""
    environment = os.environ | nodes.environment | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    command = [sys.executable, "-c", script, nodes.address]
    return subprocess.check_output(command, env=environment, text=True, timeout=120)


def places(log: str) -> dict[int, dict[int, str]]:
    """Return the node of the latest server of each replica at each place."""
    homes: dict[int, dict[int, str]] = {}
    for line in log.splitlines():
        entry = json.loads(line) if line.startswith("{") else {}
        if entry.get("event") == "a shard server serves":
            homes.setdefault(entry["place"], {})[entry["replica"]] = entry["node"]
    return homes


def refused_start(folder: Path, *options: str, environment: dict[str, str]) -> tuple[str, float]:
    """Return why a server does not start, and after how many seconds it says so."""
    command = [sys.executable, "-m", "divgrpc_server", "--listen", "127.0.0.1:0"]
    command += arguments_of(folder, "--engine", "ray", *options)
    start = time.monotonic()
    outcome = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False,
        cwd=folder,
    )  # fmt: skip
    assert (outcome.returncode, outcome.stdout) == (1, "")
    lines = [json.loads(line) for line in outcome.stderr.splitlines() if line.startswith("{")]
    (reason,) = [line["reason"] for line in lines if line["event"] == "cannot start"]
    return str(reason), time.monotonic() - start


def test_a_cluster_that_cannot_serve_is_refused_in_time(nodes: RayNodes, tmp_path: Path) -> None:
    address = ("--ray-address", nodes.address)
    nowhere = ("--ray-address", f"127.0.0.1:{free_port()}")
    wrong = nodes.environment | {"RAY_AUTH_TOKEN": "x" * 32}
    # The path stands for another folder in the processes of nodes, which Ray has to start in time.
    elsewhere = (*address, "--data-dir", "/proc/self/cwd", "--engine-wait", "20")
    for options, environment, words in (
        (nowhere, nodes.environment, "no Ray cluster listens on"),
        (address, wrong, "does not let this server in"),
        ((*address, "--replicas", "5"), nodes.environment, "5 replicas need 5 nodes"),
        ((*address, "--shard-memory", str(10**11)), nodes.environment, "the cluster has 0"),
        (elsewhere, nodes.environment, "has another data folder"),
    ):
        reason, seconds = refused_start(tmp_path, *options, environment=environment)
        assert words in reason
        # Beside the wait, a busy machine takes a while to start and end Python.
        assert seconds < 20 + 30
