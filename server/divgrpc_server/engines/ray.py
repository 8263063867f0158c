"""Places the shard servers of a cluster on the nodes of a Ray cluster.

Theory of operation. Each server is kept running by an actor of its own, which starts it on the node
where Ray has put the actor, as `LocalEngine` does on this machine. A placement group for each place
keeps its replicas on different nodes. If the shards of a server need more memory than its group
has, further groups keep the rest on its node (`node_memory`). Actors and groups are detached: they
outlive this process, and the next one finds them by name. The names contain a digest of all that
servers are started with, so actors of other options are not taken for these; they are ended.

Ray starts an actor again that has ended, on another node if its node is gone. This process asks
each actor again and again where its server is, and lets it begin once its node is known to have the
data folder. Queries do not pass through Ray: routers call the servers by gRPC. If the head of the
cluster is gone, actors go on, and so does this process.
"""

import asyncio
import hashlib
import json
import logging
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    RayActorError,
    RayError,
)
from ray.util import get_placement_group, list_named_actors, placement_group, placement_group_table
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

import divgrpc
from divgrpc_server.config import Config, split_address
from divgrpc_server.engines import shard_process
from divgrpc_server.engines.engine import HopelessError
from divgrpc_server.engines.head import watch_head
from divgrpc_server.engines.indexes import needs_of_indexes
from divgrpc_server.engines.memory import bytes_at_places
from divgrpc_server.engines.node_folders import NodeFolders
from divgrpc_server.engines.node_memory import Group, NodeMemory
from divgrpc_server.engines.shard_process import ShardProcess
from divgrpc_server.engines.shared_folder import fault_of
from divgrpc_server.ipc.topology import Topology, topology_of
from divgrpc_server.logging.logs import Logger
from divgrpc_server.security.options import is_loopback

_LOOK_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 10.0
# After so many looks in turn, a server whose actor is away is taken for lost.
_LOOKS_MAX: Final = 8
_KNOW_SECONDS: Final = 5.0
_REPLY_SECONDS_MIN: Final = 1.0
# Other programs on the nodes take memory and give it back.
_MEMORY_SECONDS: Final = 5.0
# Nodes report with a delay what they have after memory was taken or given back.
_REPORT_SECONDS: Final = 0.5
_KEEP_SECONDS: Final = 1.0
_DIGITS: Final = 12
# What calls to Ray raise if the head is gone or refuses them.
_ERRORS: Final = (RayError, ConnectionError, RuntimeError, ValueError)
_T = TypeVar("_T")


class State(NamedTuple):
    """What an actor says about its server.

    node: the id of the node. address: host:port, "" while the server does not serve. failed:
    whether the server has ended again and again before it served. has_begun: whether an engine has
    let the actor start its server.
    """

    node: str
    address: str
    failed: bool
    has_begun: bool


class ShardActor:
    """Keeps a shard server running on the node where Ray has put this actor."""

    def __init__(self, arguments: list[str], secret: str) -> None:
        """Take the arguments of the server and the token of the cluster."""
        context = ray.get_runtime_context()
        self._node = str(context.get_node_id())
        self._address = ""
        self._failed = False
        host = ray.util.get_node_ip_address()
        listen = f"--listen=[{host}]:0" if ":" in host else f"--listen={host}:0"
        self._server = ShardProcess(
            [*arguments, listen], secret, follow=self._follow, report_end=_report_end
        )
        self._has_begun = False

    def begin(self) -> None:
        """Start the server, unless that was done before."""
        if not self._has_begun:
            self._has_begun = True
            # Linux ends the server with the thread that has started it.
            threading.Thread(target=lambda: asyncio.run(self._keep()), daemon=True).start()

    def state(self) -> State:
        """Return where the server is now."""
        return State(self._node, self._address, self._failed, self._has_begun)

    def _follow(self, address: str) -> None:
        self._address = address
        self._failed = self._failed and not address

    async def _keep(self) -> None:
        while True:
            await self._server.keep()
            self._failed = True
            await asyncio.sleep(_RETRY_SECONDS)


def _report_end(outcome: int | OSError) -> None:
    """Print why no server can be started to the standard error, which is in the logs of Ray."""
    if isinstance(outcome, OSError):
        traceback.print_exception(outcome)


class _Groups:
    """Placement groups; see `node_memory.Groups`."""

    def read(self) -> dict[str, Group]:
        """See `Groups`."""
        groups = {}
        for entry in placement_group_table().values():
            if entry["state"] != "REMOVED":
                bundles, homes = entry["bundles"], entry["bundles_to_node_id"]
                sizes = [int(bundles[number]["memory"]) for number in sorted(bundles)]
                groups[entry["name"]] = Group(sizes, [homes[number] for number in sorted(homes)])
        return groups

    def keep(self, name: str, node: str, size: int) -> bool:
        """See `Groups`."""
        group = placement_group(
            [{"memory": float(size)}], name=name, lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node}],
        )  # fmt: skip
        return bool(group.wait(_KEEP_SECONDS))

    def remove(self, name: str) -> None:
        """See `Groups`."""
        remove_placement_group(get_placement_group(name))

    def read_free_bytes(self) -> dict[str, int]:
        """See `Groups`."""
        free = available_resources_per_node()
        return {node: int(resources.get("memory", 0)) for node, resources in free.items()}


class RayEngine:
    """Places `config.replicas` servers for each of `config.shards` places on nodes of Ray."""

    def __init__(self, config: Config, root: Path, secret: str, log: Logger) -> None:
        """Take the configuration of the server that routes.

        root: the folder of the indexes, which all nodes mount at the same path. secret: the token
        of the cluster.
        """
        self._config, self._root, self._secret, self._log = config, root, secret, log
        self._arguments = shard_process.arguments_on_nodes(config, root)
        self._memory_bytes = max(config.shard_memory, *needs_of_indexes(root, config.shards))
        self._service = f"divgrpc-{_digest(str(root))}"
        # The number of workers follows from the cores of this machine, and another router may have
        # others.
        same = [word for word in self._arguments if not word.startswith("--workers=")]
        options = [divgrpc.__version__, same, secret, config.shards, config.replicas]
        self._prefix = f"{self._service}-{_digest(json.dumps(options))}"
        self._servers = [
            (place, number) for place in range(config.shards) for number in range(config.replicas)
        ]
        self._groups: list[PlacementGroup] = []
        self._actors: dict[tuple[int, int], Any] = {}
        self._states: dict[tuple[int, int], State] = {}
        # Whether another engine has placed these servers before.
        self._is_adopted = False
        self._was_whole = False
        # The bytes that an index needs at each place.
        self._needs: dict[str, list[int]] = {}
        self._needs_changed = asyncio.Event()
        self._room_bytes: int | None = None
        # Why this process cannot place servers, "" if it can.
        self._fault = ""
        self._memory = NodeMemory(_Groups(), self._prefix, log)
        # The servers that no actor has said anything about yet.
        self._unknown = set(self._servers)
        self._is_known = asyncio.Event()
        self._followers: list[asyncio.Task[None]] = []
        self._version = time.monotonic_ns()
        self._changed = asyncio.Event()
        # Calls to the head block, for as long as it is gone.
        self._head = ThreadPoolExecutor(1)
        self._folders = NodeFolders(config, root, self._ask_nodes, log)
        # Asks whether the head is there while another thread waits for it.
        self._questions = ThreadPoolExecutor(1)
        # Asks nodes about their folders.
        self._looks = ThreadPoolExecutor(1)

    async def start(self) -> None:
        """Join the Ray cluster and begin to start all servers.

        Raises `HopelessError` if the cluster does not let this process in, or has too few nodes.
        """
        end_time = time.monotonic() + self._config.engine_wait
        await self._join(end_time)
        await self._call(lambda: self._place(end_time))
        self._followers = [asyncio.create_task(self._follow(*server)) for server in self._servers]
        ask = partial(self._call, ray.nodes, self._questions)
        for work in (self._keep_memory(), watch_head(ask, self._note_head, _ERRORS)):
            self._followers.append(asyncio.create_task(work))
        for follower in self._followers:
            follower.add_done_callback(lambda _: self._changed.set())
        if self._is_adopted:
            # Fronts have the addresses of these servers, and must not lose them for a moment.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_known.wait(), _KNOW_SECONDS)

    @property
    def is_whole(self) -> bool:
        """Whether all servers serve; or one at each place, if an engine ran before this one."""
        topology = self._topology()
        return all(
            len(place) == self._config.replicas or (place and self._is_adopted)
            for place in topology.places
        )

    async def watch(self) -> AsyncIterator[Topology]:
        """Yield where the shards are, now and after each change.

        Raises `UnavailableError` if a server ends again and again before it serves.
        """
        while True:
            self._changed.clear()
            for follower in self._followers:
                if follower.done():
                    follower.result()
            self._was_whole = self._was_whole or self.is_whole
            yield self._topology()
            await self._changed.wait()

    async def place(self, index: str, shard_bytes: Sequence[int]) -> None:
        """Keep memory for the shards of an index, at each node that has them; idempotent."""
        self._needs[index] = bytes_at_places(shard_bytes, self._config.shards)
        self._needs_changed.set()

    async def drop(self, index: str) -> None:
        """Keep no memory for an index any more; idempotent."""
        self._needs.pop(index, None)
        self._needs_changed.set()

    async def stop(self) -> None:
        """End all servers, unless they are for other routers too, or this engine has failed."""
        has_begun = bool(self._followers)
        is_failed = not has_begun or any(follower.done() for follower in self._followers)
        were_there = self._was_whole if has_begun else self._is_adopted
        for follower in self._followers:
            follower.cancel()
        # Calls of Ray start a cluster on this machine if this process has joined none.
        if ray.is_initialized() and not (self._config.cluster_token or (is_failed and were_there)):
            with suppress(TimeoutError, *_ERRORS):
                await asyncio.wait_for(
                    self._call(lambda: self._remove(self._service)), _STOP_SECONDS
                )

    async def _call(self, work: Callable[[], _T], thread: Executor | None = None) -> _T:
        """Call what may wait for the head, by default in the thread of most calls to it."""
        return await asyncio.get_running_loop().run_in_executor(thread or self._head, work)

    # Joining and placing.

    async def _join(self, end_time: float) -> None:
        """Become a part of the Ray cluster."""
        address = self._config.ray_address
        host, port = split_address("ray_address", address)
        try:
            async with asyncio.timeout(end_time - time.monotonic()):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
        except (OSError, TimeoutError):
            raise HopelessError(
                f"no Ray cluster listens on {address}: start its head, or correct ray_address"
            ) from None
        options = {"_node_ip_address": "127.0.0.1"} if is_loopback(host) else {}

        def join() -> None:
            # Ray warns that the thread is not the main one.
            logging.getLogger("ray._private.worker").setLevel(logging.ERROR)
            ray.init(
                address=address, namespace=self._service, log_to_driver=False,
                logging_level="ERROR", **options,
            )  # fmt: skip

        # Ray takes longer to give up. The thread that it keeps ends with this process.
        try:
            await asyncio.wait_for(self._call(join), end_time - time.monotonic())
        except (TimeoutError, *_ERRORS) as error:
            self._log.debug("cannot join", reason=str(error))
            raise HopelessError(
                f"the Ray cluster on {address} does not let this server in: set the RAY_AUTH_TOKEN"
                " of the cluster, and start this server on one of its nodes"
            ) from None

    def _place(self, end_time: float) -> None:
        """Find or make the groups and the actors."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        hosts = sorted({str(node["NodeManagerAddress"]) for node in nodes})
        is_protected = self._config.cluster_ca or self._config.insecure
        if not (is_protected or all(map(is_loopback, hosts))):
            raise HopelessError(
                f"nodes of the Ray cluster are on other machines ({', '.join(hosts)}), and there is"
                " no TLS: set cluster_ca, tls_cert and tls_key, or insecure if something else"
                " protects the connections"
            )
        self._remove(self._service, keep=self._prefix)
        self._groups = [self._group(place) for place in range(self._config.shards)]
        if not self._is_adopted:
            self._await_groups(nodes, end_time)
        # Also if the groups were there: a read-only server has made them, or a start that has
        # failed since.
        self._check_folders(end_time)
        for server in self._servers:
            self._actors[server] = self._actor(*server)

    def _group(self, place: int) -> PlacementGroup:
        name = f"{self._prefix}-p{place}"
        with suppress(ValueError):
            group = get_placement_group(name)
            self._is_adopted = True
            return group
        bundles = [{"memory": float(self._memory_bytes)}] * self._config.replicas
        return placement_group(bundles, strategy="STRICT_SPREAD", name=name, lifetime="detached")

    def _await_groups(self, nodes: list[dict[str, Any]], end_time: float) -> None:
        """Wait until Ray has found nodes for all groups."""
        for group in self._groups:
            if not group.wait(max(0.01, end_time - time.monotonic())):
                break
        else:
            return
        self._remove(self._service)
        replicas, size = self._config.replicas, self._memory_bytes
        able = sum(node["Resources"].get("memory", 0) >= size for node in nodes)
        if able < replicas:
            raise HopelessError(
                f"{replicas} replicas need {replicas} nodes with {size:,} bytes of memory for Ray,"
                f" and the cluster has {able}: start nodes, or set fewer replicas"
            )
        raise HopelessError(
            f"the Ray cluster lacks memory: {len(self._servers)} shard servers ask for {size:,}"
            f" bytes each, on {able} nodes; start nodes, or set fewer shards or replicas"
        )

    def _check_folders(self, end_time: float) -> None:
        """Refuse nodes that do not have the data folder of this machine."""
        tables = [placement_group_table(group) for group in self._groups]
        # A bundle whose node is lost has none.
        nodes = {node for table in tables for node in table["bundles_to_node_id"].values() if node}
        for fault, is_certain in self._folders.check(sorted(nodes), end_time):
            self._refuse(fault, is_certain=is_certain)

    def _ask_nodes(
        self, path: Path, nodes: Iterable[str], seconds: float, end_time: float
    ) -> Iterator[tuple[str, str | None]]:
        """Let nodes look for a marker; see `node_folders.AskNodes`."""
        look: Any = ray.remote(num_cpus=0, max_retries=0)(fault_of)
        replies = {
            node: look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(path, seconds)
            for node in nodes
        }
        for node, reply in replies.items():
            left = max(_REPLY_SECONDS_MIN, end_time - time.monotonic())
            fault = None
            try:
                fault = ray.get(reply, timeout=left)
            except RayError as error:
                self._log.debug("a node cannot be asked", node=node, reason=str(error))
            yield node, fault

    def _refuse(self, reason: str, *, is_certain: bool) -> None:
        """Refuse to start; if servers may run already, only for a reason that is certain.

        Queries go on: servers that another engine has placed stay, and are followed.
        """
        if self._is_adopted and not is_certain:
            self._log.warning("the data folder of nodes is not checked", reason=reason)
            return
        if not self._is_adopted:
            self._remove(self._service)
        raise HopelessError(reason)

    def _actor(self, place: int, number: int) -> Any:  # noqa: ANN401  # Ray makes its class
        """Find or make an actor."""
        strategy = PlacementGroupSchedulingStrategy(
            self._groups[place], placement_group_bundle_index=number
        )
        # The group keeps the memory, perhaps less of it than indexes need now.
        maker: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)(ShardActor)
        return maker.options(
            name=f"{self._prefix}-p{place}-r{number}", get_if_exists=True, lifetime="detached",
            scheduling_strategy=strategy,
        ).remote(
            [*self._arguments, shard_process.place_argument(place, number)], self._secret
        )  # fmt: skip

    def _renew(self, place: int, number: int) -> Any:  # noqa: ANN401  # Ray makes its class
        """Make an actor that somebody has ended, perhaps together with its group."""
        # One that has lost its group before it could start is there still.
        ray.kill(self._actors[place, number])
        self._groups[place] = self._group(place)
        return self._actor(place, number)

    def _remove(self, prefix: str, keep: str | None = None) -> None:
        """End actors and groups whose names begin with `prefix`, and not with `keep`."""

        def is_obsolete(name: str) -> bool:
            return name.startswith(f"{prefix}-") and not (keep and name.startswith(f"{keep}-"))

        actors = []
        for name in filter(is_obsolete, list_named_actors()):
            with suppress(ValueError):
                actors.append(ray.get_actor(name))
        # First, because another engine makes its actors anew once they end, in the group it finds.
        for entry in placement_group_table().values():
            if is_obsolete(entry["name"]) and entry["state"] != "REMOVED":
                with suppress(ValueError):
                    remove_placement_group(get_placement_group(entry["name"]))
        for actor in actors:
            ray.kill(actor)

    # Following.

    async def _follow(self, place: int, number: int) -> None:
        """Ask an actor for ever where its server is."""
        server = place, number
        looks = 0
        while True:
            try:
                state = State(*await self._actors[server].state.remote())
                await self._admit(server, state)
            except ActorUnavailableError:
                # Its server may answer all the same, which fronts know.
                looks += 1
                if looks >= _LOOKS_MAX:
                    self._set_state(server, None)
            except (RayActorError, ActorUnschedulableError) as error:
                self._set_state(server, None)
                if isinstance(error, ActorDiedError | ActorUnschedulableError):
                    # Ray does not start it again: somebody has ended it, or removed its group.
                    with suppress(*_ERRORS):
                        self._actors[server] = await self._call(partial(self._renew, place, number))
            except RayError as error:
                self._log.debug("an actor cannot be asked", place=place, reason=str(error))
            else:
                looks = 0
                if state.failed and not self._was_whole:
                    raise HopelessError(
                        f"a shard server does not start on the node {state.node}; the files in"
                        " its folder of the logs of Ray say why"
                    )
                self._set_state(server, state)
            self._unknown.discard(server)
            if not self._unknown:
                self._is_known.set()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _admit(self, server: tuple[int, int], state: State) -> None:
        """Let a server begin if its node has the data folder."""
        if not state.has_begun and await self._call(
            partial(self._folders.is_fit, state.node), self._looks
        ):
            await self._actors[server].begin.remote()

    def _set_state(self, server: tuple[int, int], state: State | None) -> None:
        place, number = server
        if state is not None and self._shares_node(server, state):
            self._log.error("two replicas of a place are on one node", place=place, node=state.node)
            # Ray then places it anew.
            ray.kill(self._actors[server], no_restart=False)
            state = None
        old = self._states.get(server)
        if state == old:
            return
        if state is None:
            self._states.pop(server, None)
        else:
            self._states[server] = state
        address = state.address if state else ""
        if address:
            self._log.info(
                "a shard server serves", place=place, replica=number, address=address,
                node=state.node if state else "",
            )  # fmt: skip
        elif old is not None and old.address:
            self._log.warning("a shard server ended", place=place, replica=number)
        # Greater than those of an engine that ran before.
        self._version = time.monotonic_ns()
        self._changed.set()

    def _note_head(self, answers: bool) -> None:
        fault = (
            ""
            if answers
            else f"the head of the Ray cluster on {self._config.ray_address} does not answer"
        )
        if fault == self._fault:
            return
        self._fault = fault
        if fault:
            self._log.warning("the head of the Ray cluster does not answer; queries go on")
        else:
            self._log.info("the head of the Ray cluster answers again")
        self._version = time.monotonic_ns()
        self._changed.set()

    # Memory.

    async def _keep_memory(self) -> None:
        """Keep memory for the shards of all servers where they are, for ever."""
        while True:
            self._needs_changed.clear()
            homes = {server: state.node for server, state in self._states.items()}
            needs = [sum(sizes) for sizes in zip(*self._needs.values(), strict=True)]
            room, requests = self._room_bytes, self._memory.requests.copy()
            with suppress(*_ERRORS):
                room = await self._call(partial(self._memory.keep, homes, needs))
            is_settled = requests == self._memory.requests
            seconds = _MEMORY_SECONDS if is_settled else _REPORT_SECONDS
            if room != self._room_bytes:
                self._room_bytes = room
                self._version = time.monotonic_ns()
                self._changed.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._needs_changed.wait(), seconds)

    def _shares_node(self, server: tuple[int, int], state: State) -> bool:
        return any(
            other.node == state.node
            for key, other in self._states.items()
            if key[0] == server[0] and key != server
        )

    def _topology(self) -> Topology:
        addresses = {server: state.address for server, state in self._states.items()}
        topology = topology_of(self._version, addresses, self._config.shards, self._config.replicas)
        return topology._replace(room_bytes=self._room_bytes, fault=self._fault)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
