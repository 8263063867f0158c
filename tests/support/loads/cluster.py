"""python -m support.loads.cluster: what callers see while parts of a Ray cluster fail.

A head and two nodes run on 127.0.0.1. Callers query an index of digits in four shards, with two
replicas, and compare each answer with that of one index. Meanwhile nodes are killed and replaced,
stopped and continued; then the store of the head is down while a shard server is killed. The exit
code is 1 if a call failed or had another answer, or if servers without replicas came back late.
`--demo` also builds an index of made points, and shows one killed node, step by step.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from divgrpc.types import QueryResult
from divgrpc_client import Client
from divgrpc_lab.demo import digits
from support.data.served_index import random_points
from support.loads import partitions
from support.loads.callers import INDEX, Callers, build, say
from support.processes.ray_nodes import RayNodes, send, shard_supervisors
from support.processes.running_server import RunningServer, alive

SHARDS: Final = 4
_STOPPED_SECONDS: Final = 4.0
_WHOLE_SECONDS: Final = 240.0
# From the start of a node until the servers of a lost one serve there, copies apart.
_PROMISED_SECONDS: Final = 20.0
_QUERIES: Final = 100
_MADE_ROWS: Final = 20_000


class Cluster:
    """A Ray cluster, a server that routes to its shard servers, and an index."""

    def __init__(self, folder: Path, nodes: RayNodes, replicas: int) -> None:
        self.nodes, self.replicas = nodes, replicas
        options = {
            "data-dir": str(folder / "data"),
            "shards": str(SHARDS),
            "replicas": str(replicas),
            "engine": "ray",
            "ray-address": nodes.address,
            "engine-wait": "60",
            "workers": "1",
            "log-format": "json",
            # An answer is late, not lost, while a busy machine starts a server.
            "worker-wait": "20" if replicas > 1 else "1",
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        self.server = RunningServer(folder, *arguments, environment=nodes.environment)

    @property
    def places(self) -> dict[tuple[int, int], str]:
        """The node of each server that serves, by its place and its replica."""
        homes: dict[tuple[int, int], str] = {}
        for line in self.server.log.splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == "a shard server serves":
                homes[entry["place"], entry["replica"]] = entry["node"]
            elif entry.get("event") == "a shard server ended" and "replica" in entry:
                homes.pop((entry["place"], entry["replica"]), None)
        return homes

    def await_whole(self, old_nodes: Collection[str] = ()) -> float:
        """Wait until all servers serve; return the seconds. Raises unless replicas are apart.

        old_nodes: the nodes of servers before one of these nodes was lost, which Ray notices late.
        """
        start = time.monotonic()
        while not self._is_whole(homes := self.places, old_nodes):
            if time.monotonic() - start > _WHOLE_SECONDS:
                raise RuntimeError(f"not whole after {_WHOLE_SECONDS:.0f} s: {homes}")
            time.sleep(0.05)
        for place in range(SHARDS):
            nodes = {homes[place, number] for number in range(self.replicas)}
            if len(nodes) < self.replicas:
                raise RuntimeError(f"two replicas of place {place} are on one node")
        return time.monotonic() - start

    def _is_whole(self, homes: dict[tuple[int, int], str], old_nodes: Collection[str]) -> bool:
        is_lost = not old_nodes or not {*old_nodes} <= {*homes.values()}
        return is_lost and len(homes) == SHARDS * self.replicas

    def shard_servers(self, node: int) -> list[int]:
        """Return the process ids of the supervisors of the shard servers on a node."""
        return shard_supervisors(self.nodes.processes(node), self.server.folder)


class Trial:
    """Failures of one cluster, each with a line of figures."""

    def __init__(self, cluster: Cluster, queries: np.ndarray, whole: list[QueryResult]) -> None:
        self.cluster, self._queries, self._whole = cluster, queries, whole
        self.is_good = True

    def check(self, title: str, act: Callable[[], None]) -> None:
        """Fail something under load, and say what callers saw."""
        connect = partial(Client, self.cluster.server.target)
        callers = Callers(connect, self._queries, self._whole)
        self.is_good &= callers.check(title, act, may_lack=self.cluster.replicas == 1)

    def kill_node(self, node: int) -> None:
        """Kill a node and start another."""
        has_servers = bool(self.cluster.shard_servers(node))
        old_nodes = {*self.cluster.places.values()} if has_servers else set[str]()
        self.check(f"node {node} killed", lambda: self.cluster.nodes.kill(node))
        start = time.monotonic()
        added = self.cluster.nodes.add()
        joined = time.monotonic() - start
        self.cluster.await_whole(old_nodes)
        whole = time.monotonic() - start - joined
        say(f"    node {added} joined after {joined:.1f} s")
        load = os.getloadavg()[0]
        say(f"    whole {whole:.1f} s later, at a load average of {load:.1f}; replicas are apart")
        # Without replicas, queries are refused meanwhile.
        self.is_good &= self.cluster.replicas > 1 or whole < _PROMISED_SECONDS

    def stop_node(self, node: int) -> None:
        """Stop all processes of a node for some time."""
        pids = self.cluster.nodes.processes(node)

        def act() -> None:
            send(pids, signal.SIGSTOP)
            time.sleep(_STOPPED_SECONDS)
            send(pids, signal.SIGCONT)

        self.check(f"node {node} stopped for {_STOPPED_SECONDS:.0f} s", act)
        # The head may have taken the node for lost.
        self.cluster.await_whole()

    def stop_head_store(self, node: int, seconds: float) -> None:
        """Stop the store of the head, and kill a shard server meanwhile."""
        nodes = self.cluster.nodes
        victim = self.cluster.shard_servers(node)[0]

        def act() -> None:
            nodes.stop_head_store()
            time.sleep(seconds / 2)
            os.kill(victim, signal.SIGKILL)
            time.sleep(seconds / 2)

        self.check(f"store of the head down for {seconds:.0f} s, a shard server killed", act)
        nodes.start_head_store()
        self.cluster.await_whole()
        say(f"    whole again; the killed server is gone: {not alive(victim)}")


@contextmanager
def running(replicas: int) -> Iterator[Trial]:
    """Yield a cluster with the index of digits."""
    data = digits.load()
    points = data.images[data.index_rows]
    queries = data.images[data.report_rows][:_QUERIES]
    with tempfile.TemporaryDirectory() as name, RayNodes(2, keeps_state=True) as nodes:
        say(f"a Ray cluster with a head and 2 nodes, on {nodes.address}")
        cluster = Cluster(Path(name), nodes, replicas)
        with cluster.server as server, Client(server.target, timeout=120) as client:
            say(f"{SHARDS} shards, {replicas} servers each; replicas are on different nodes")
            cluster.await_whole()

            whole, are_equal = build(client, INDEX, points, queries)
            trial = Trial(cluster, queries, whole)
            trial.is_good = are_equal
            yield trial


def demonstrate() -> bool:
    """Build a second index, of made points, and show what callers see while a node is lost."""
    points = random_points(_MADE_ROWS + _QUERIES, dims=64)
    with running(replicas=2) as trial:
        with Client(trial.cluster.server.target, timeout=120) as client:
            _, are_equal = build(client, "made", points[:_MADE_ROWS], points[_MADE_ROWS:])
        trial.is_good &= are_equal
        trial.kill_node(1)
        return trial.is_good


def run(kills: int, stops: int, seconds: float, *, without_replicas: bool) -> bool:
    """Fail parts of a cluster; return whether no answer was lost or wrong."""
    with running(replicas=2) as trial:
        node = 1
        for _ in range(kills):
            trial.kill_node(node)
            node = len(trial.cluster.nodes.pids) - 1
        for _ in range(stops):
            trial.stop_node(node)
        trial.stop_head_store(node, seconds)
        is_good = trial.is_good
    if without_replicas:
        with running(replicas=1) as trial:
            for node in range(1, 1 + max(1, kills)):
                trial.kill_node(node)
            is_good &= trial.is_good
    return is_good


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", action="store_true", help="show one killed node")
    parser.add_argument("--kills", type=int, default=1, help="nodes to kill (default: 1)")
    parser.add_argument("--stops", type=int, default=1, help="nodes to stop (default: 1)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="without the store of the head (default: 10)"
    )
    parser.add_argument(
        "--single", action="store_true", help="kill nodes without replicas too, which loses queries"
    )
    parser.add_argument(
        "--namespaces", action="store_true", help="cut links between hosts instead: needs root"
    )
    options = parser.parse_args()
    if options.namespaces:
        sys.exit(partitions.run(is_short=False))
    is_good = (
        demonstrate()
        if options.demo
        else run(options.kills, options.stops, options.seconds, without_replicas=options.single)
    )
    say("no query was lost or wrong" if is_good else "FAILED")
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
