"""python -m support.loads.partitions: what callers see while links between hosts are down.

Hosts are network namespaces of this machine, with addresses and names of their own. A server on one
of them routes to shard servers on the others, with TLS on both sides. Either somebody else starts
the shard servers, or Ray. Callers on another host query an index of digits in three shards, with
two replicas, and compare each answer with that of one index, while links are cut and joined again.
The exit code is 1 if a call failed or had another answer, or if servers did not serve soon after a
link was up. It is 3 if this process cannot make namespaces.
"""

import argparse
import itertools
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from divgrpc.storage.generations import ROOT_LOCK
from divgrpc.types import Progress
from divgrpc_client import TLS, Client
from divgrpc_lab.demo import digits
from support.data.certificates import Authority, tls_options
from support.data.served_index import random_points
from support.loads.callers import INDEX, Callers, build, say
from support.processes.hosts import Host, NamespacesError, Network, Program
from support.processes.ray_nodes import environment_of
from support.processes.running_server import RunningServer

CANNOT: Final = 3
SHARDS: Final = 3
_ROUTER: Final = "router"
_SHARD_HOSTS: Final = ("one", "two", "three")
_NODES: Final = ("one", "two")
_PORT: Final = 50061
_RAY_PORT: Final = 6379
_MIB: Final = 2**20
_QUERIES: Final = 50
_MADE_ROWS: Final = 20_000
# Many hyperplanes make many blocks of a build.
_MANY: Final[dict[str, Any]] = {"hash_family": "lsh_div", "n_tables": 64, "n_bits": 24}
_WAIT_SECONDS: Final = 100.0
# Keepalive closes a connection whose other end is gone within this time.
_KEEPALIVE_SECONDS: Final = 15.0
_CUT_SECONDS: Final = 18.0
# Ray takes a silent node for lost after some 65 seconds.
_LOST_SECONDS: Final = 90.0
# So long after a link is up, or its node has started, servers on a busy machine serve.
_WHOLE_SECONDS: Final = 5.0
_STARTED_SECONDS: Final = 60.0


class Trial:
    """A server that routes, on a host of its own, and an index on shard servers of others."""

    def __init__(
        self, network: Network, server: RunningServer, connect: Callable[..., Client]
    ) -> None:
        self.network, self.server, self._connect = network, server, connect
        self.is_good = True
        data = digits.load()
        self._queries = data.images[data.report_rows][:_QUERIES]
        with connect(timeout=120) as client:
            self._whole, self.is_good = build(
                client, INDEX, data.images[data.index_rows], self._queries
            )
        self._made = random_points(_MADE_ROWS + _QUERIES, dims=64)

    def check(self, title: str, act: Callable[[], None], *, may_lack: bool = False) -> None:
        """Change something under load, and say what callers saw."""
        callers = Callers(self._connect, self._queries, self._whole)
        self.is_good &= callers.check(title, act, may_lack=may_lack)

    def states(self) -> dict[str, set[str]]:
        """Return the states of the replicas on each address."""
        with self._connect(timeout=30) as client:
            shards = client.get_index(INDEX).shards
        replicas = [replica for shard in shards for replica in shard.replicas]
        addresses = {replica.address for replica in replicas}
        return {a: {one.state for one in replicas if one.address == a} for a in addresses}

    def is_whole(self) -> bool:
        """Return whether all replicas serve; under load, some are slower than others."""
        return all(state <= {"serving", "avoided"} for state in self.states().values())

    def await_whole(self, seconds: float = _WHOLE_SECONDS) -> None:
        """Wait until all replicas serve, and say how long that took."""
        duration = until(self.is_whole)
        say(f"    all replicas serve {duration:.1f} s later")
        self.is_good &= duration < seconds

    def cut(self, name: str, seconds: float, *, is_whole_after: bool = True) -> None:
        """Cut a host off for some time, and say when the router has let go of it.

        is_whole_after: whether its servers serve again without help.
        """
        host, router = self.network.hosts[name], self.network.hosts[_ROUTER]
        ports = [int(a.rpartition(":")[2]) for a in self.states() if is_on(a, host)]

        def connections() -> int:
            return sum(router.connections(host.address, port) for port in ports)

        def is_known() -> bool:
            states = [state for address, state in self.states().items() if is_on(address, host)]
            return all(state == {"unreachable"} for state in states)

        def act() -> None:
            self.is_good &= connections() > 0
            start = time.monotonic()
            host.cut()
            say(f"    {name} is known to be unreachable after {until(is_known):.1f} s")
            until(lambda: not connections())
            closed = time.monotonic() - start
            say(f"    connections to {name} are closed after {closed:.1f} s")
            self.is_good &= closed < _KEEPALIVE_SECONDS
            time.sleep(max(0.0, start + seconds - time.monotonic()))
            host.join()
            if is_whole_after:
                self.await_whole()

        self.check(f"link of {name} cut for {seconds:.0f} s", act)

    def cut_both(self, names: tuple[str, ...], seconds: float) -> None:
        """Cut all replicas of a place off."""
        hosts = [self.network.hosts[name] for name in names]

        def act() -> None:
            for host in hosts:
                host.cut()
            time.sleep(seconds)
            for host in hosts:
                host.join()

        self.check(f"links of {' and '.join(names)} cut for {seconds:.0f} s", act, may_lack=True)
        self.await_whole()

    def build_without(self, name: str, *, before: bool) -> None:
        """Build while the link of a host is down, from before the build or from its hashing."""
        host = self.network.hosts[name]
        points, queries = np.split(self._made, [_MADE_ROWS])
        stages = set[str]()

        def follow(progress: Progress) -> None:
            if progress.stage == "hashing" and not stages:
                stages.add(progress.stage)
                host.cut()

        if before:
            host.cut()
        start = time.monotonic()
        with self._connect(timeout=120) as client:
            _, are_equal = build(client, f"without-{name}", points, queries, follow, **_MANY)
        when = "before this" if before else "when it hashed"
        say(f"    link of {name} cut {when}; all took {time.monotonic() - start:.1f} s")
        self.is_good &= are_equal and (before or bool(stages))
        host.join()
        self.await_whole()


def until(condition: Callable[[], object]) -> float:
    """Wait until a condition is true; return the seconds."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > _WAIT_SECONDS:
            raise RuntimeError(f"not so after {_WAIT_SECONDS:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - start


def listens(address: str, port: int) -> bool:
    """Return whether something listens on a port of a host."""
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def is_on(address: str, host: Host) -> bool:
    """Return whether a server has an address of a host."""
    return address.rpartition(":")[0] in (host.name, host.address)


class Stage:
    """Hosts, a folder that all of them have, and the server that routes, on one of them."""

    def __init__(
        self,
        ends: ExitStack,
        names: tuple[str, ...],
        mounts: Callable[[Path, str], Mapping[Path, Path]] = lambda _, __: {},
    ) -> None:
        self._ends = ends
        # The paths of sockets must be short.
        self.folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="ray-")))
        network = Network((_ROUTER, *names), self.folder, partial(mounts, self.folder))
        self.network = ends.enter_context(network)
        self.hosts = self.network.hosts
        self.authority = Authority(self.folder)
        self._data = self.folder / "data"
        self._data.mkdir()

    def start(
        self, name: str, names: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> RunningServer:
        """Start a server on a host, with a certificate that has these names."""
        home = self.folder / name
        home.mkdir()
        pair = self.authority.issue(name, f"subjectAltName={names}")
        arguments = (f"--data-dir={self._data}", *tls_options(pair), *options)
        host = self.hosts[name]
        server = RunningServer(home, *arguments, inside=host.inside, environment=environment)
        return self._ends.enter_context(server)

    def route(
        self, names: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> "Trial":
        """Start the server that routes, and build the index."""
        address = self.hosts[_ROUTER].address
        common = (f"--listen={address}:0", f"--shards={SHARDS}", "--worker-wait=3")
        authority = f"--cluster-ca={self.authority.ca}"
        options = (*common, authority, *options)
        server = self.start(_ROUTER, names, *options, environment=environment)
        connect = partial(Client, server.target, tls=TLS(ca=self.authority.ca))
        return Trial(self.network, server, connect)


def run_shard_servers(*, is_short: bool) -> bool:
    """Cut links of shard servers that somebody else starts; return whether no answer was lost."""
    say("a router and three shard servers, each on a host of its own, with mutual TLS")
    with ExitStack() as ends:
        stage = Stage(ends, _SHARD_HOSTS)
        token = stage.folder / "token"
        token.write_text(secrets.token_urlsafe())
        common = f"--cluster-token={token}"
        places = itertools.pairwise((*_SHARD_HOSTS, _SHARD_HOSTS[0]))
        servers = ",".join(f"{a}:{_PORT}|{b}:{_PORT}" for a, b in places)
        # Shard servers start only where a server has written to the folder.
        (stage.folder / "data" / ROOT_LOCK).touch()
        for name in _SHARD_HOSTS:
            stage.start(
                name, f"DNS:{name}", "--role=shard", "--read-only", f"--listen=0.0.0.0:{_PORT}",
                f"--tls-client-ca={stage.authority.ca}", common,
            )  # fmt: skip
        address = f"IP:{stage.hosts[_ROUTER].address}"
        trial = stage.route(address, common, f"--shard-servers={servers}")
        trial.cut("one", _CUT_SECONDS)
        if not is_short:
            trial.cut_both(("one", "two"), 6)
            trial.build_without("two", before=True)
        trial.build_without("three", before=False)
        return trial.is_good


class RayHosts:
    """A Ray cluster with a node on each host, the head on the one of the router."""

    ADDRESS: Final = f"{_ROUTER}:{_RAY_PORT}"

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends
        self.stage = Stage(ends, _NODES, self._mounts)
        self.environment = environment_of(secrets.token_hex(16))
        self._start(
            _ROUTER, "--head", f"--port={_RAY_PORT}", f"--memory={_MIB}", "--num-cpus=0",
            f"--temp-dir={self.stage.folder / 'ray'}", "--include-dashboard=false",
        )  # fmt: skip
        address = self.stage.hosts[_ROUTER].address
        until(lambda: listens(address, _RAY_PORT))
        self._nodes = {name: self._start_node(name) for name in _NODES}

    @staticmethod
    def _mounts(folder: Path, name: str) -> Mapping[Path, Path]:
        """Give each node its own folder of sockets and logs."""
        (folder / "ray").mkdir(exist_ok=True)
        (folder / f"ray-{name}").mkdir()
        return {folder / "ray": folder / f"ray-{name}"}

    def _start_node(self, name: str) -> Program:
        return self._start(name, f"--address={self.ADDRESS}", f"--memory={8192 * _MIB}")

    def _start(self, name: str, *options: str) -> Program:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [f"--object-store-memory={80 * _MIB}", *options]
        log = self.stage.folder / f"ray-{name}.log"
        program = Program(self.stage.hosts[name], command, log, self.environment)
        self._ends.callback(program.kill)
        return program

    def revive(self, name: str) -> None:
        """Start a node again if Ray has ended it."""
        if self._nodes[name].is_over:
            say("    Ray has taken the node for lost and ended it; it is started again")
            self._nodes[name] = self._start_node(name)

    def join_without_folder(self, name: str, trial: Trial) -> None:
        """Replace a node by one without the data folder, which gets no server until it has it."""
        host, folder = self.stage.hosts[name], str(self.stage.folder / "data")

        def act() -> None:
            self._nodes[name].kill()
            host.run("mount", "-t", "tmpfs", "tmpfs", folder)
            self._nodes[name] = self._start_node(name)
            words = "a node gets no shard server"
            say(f"    refused after {until(lambda: words in trial.server.log):.1f} s")
            trial.is_good &= not any(is_on(address, host) for address in trial.states())

        trial.check(f"{name} replaced by a node without the data folder", act)
        host.run("umount", folder)
        trial.await_whole(_STARTED_SECONDS)
        say(f"    the log says it {trial.server.log.count('a node gets no shard server')} times")


def run_ray() -> bool:
    """Cut links of nodes of a Ray cluster; return whether no answer was lost."""
    say("a Ray cluster of a head, where the router runs, and two nodes, each on a host of its own")
    with ExitStack() as ends:
        cluster = RayHosts(ends)
        addresses = ",".join(f"IP:{host.address}" for host in cluster.stage.hosts.values())
        trial = cluster.stage.route(
            addresses, "--engine=ray", f"--ray-address={cluster.ADDRESS}", "--replicas=2",
            "--engine-wait=60", environment=cluster.environment,
        )  # fmt: skip
        trial.await_whole(_STARTED_SECONDS)
        trial.build_without("two", before=False)
        trial.cut("one", _LOST_SECONDS, is_whole_after=False)

        def is_whole() -> bool:
            cluster.revive("one")
            return trial.is_whole()

        say(f"    all replicas serve {until(is_whole):.1f} s later")
        cluster.join_without_folder("two", trial)
        return trial.is_good


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="without Ray: cut one link, and one in a build"
    )
    options = parser.parse_args()
    sys.exit(run(is_short=options.short))


def run(*, is_short: bool) -> int:
    """Run all parts; return the exit code."""
    try:
        is_good = run_shard_servers(is_short=is_short)
        is_good &= is_short or run_ray()
    except NamespacesError as error:
        say(f"cannot make network namespaces: {error}")
        return CANNOT
    say("no query was lost or wrong" if is_good else "FAILED")
    return int(not is_good)


if __name__ == "__main__":
    main()
