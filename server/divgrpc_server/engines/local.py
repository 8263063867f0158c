"""Runs the shard servers of a cluster as processes on this machine."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from divgrpc.errors import UnavailableError
from divgrpc_server.config import Config
from divgrpc_server.engines import shard_process
from divgrpc_server.engines.shard_process import ShardProcess
from divgrpc_server.ipc.topology import Topology, topology_of
from divgrpc_server.logging.logs import Logger


class LocalEngine:
    """Starts `config.replicas` servers for each of `config.shards` places."""

    def __init__(self, config: Config, root: Path, secret: str, log: Logger) -> None:
        """Take the configuration of the server that routes.

        root: the folder of the indexes. secret: the token of the cluster.
        """
        self._config, self._root, self._secret, self._log = config, root, secret, log
        self._addresses: dict[tuple[int, int], str] = {}
        self._servers: list[ShardProcess] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._version = time.monotonic_ns()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Begin to start all servers."""
        places = range(self._config.shards)
        numbers = range(self._config.replicas)
        self._servers = [self._server(place, number) for place in places for number in numbers]
        self._keepers = [asyncio.create_task(self._keep(server)) for server in self._servers]

    @property
    def is_whole(self) -> bool:
        """Whether all servers serve."""
        return len(self._addresses) == len(self._keepers)

    async def watch(self) -> AsyncIterator[Topology]:
        """Yield where the shards are, now and after each change.

        Raises `UnavailableError` if a server ends again and again before it serves.
        """
        while True:
            self._changed.clear()
            if any(keeper.done() for keeper in self._keepers):
                raise UnavailableError(
                    "a shard server does not start; its lines of the log say why"
                )
            yield self._topology()
            await self._changed.wait()

    async def place(self, index: str, shard_bytes: Sequence[int]) -> None:
        """Do nothing: this machine has all shards, in files that its servers map."""

    async def drop(self, index: str) -> None:
        """Do nothing, as `place` does."""

    async def stop(self) -> None:
        """End all servers."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await shard_process.end(self._servers)

    def _topology(self) -> Topology:
        return topology_of(
            self._version, self._addresses, self._config.shards, self._config.replicas
        )

    def _server(self, place: int, number: int) -> ShardProcess:
        def follow(address: str) -> None:
            if address:
                self._log.info(
                    "a shard server serves", place=place, replica=number, address=address
                )
                self._addresses[place, number] = address
            else:
                self._addresses.pop((place, number), None)
            # Greater than those of an engine that ran before.
            self._version = time.monotonic_ns()
            self._changed.set()

        def report_end(outcome: int | OSError) -> None:
            server = {"place": place, "replica": number}
            if isinstance(outcome, OSError):
                self._log.warning("a shard server cannot start", **server, reason=str(outcome))
            else:
                self._log.warning("a shard server ended", **server, code=outcome)

        arguments = [
            *shard_process.arguments_of(self._config, self._root),
            shard_process.place_argument(place, number),
            "--listen=127.0.0.1:0",
        ]
        return ShardProcess(arguments, self._secret, follow=follow, report_end=report_end)

    async def _keep(self, server: ShardProcess) -> None:
        try:
            await server.keep()
        finally:
            self._changed.set()
