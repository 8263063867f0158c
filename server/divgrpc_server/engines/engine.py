"""What all engines have in common."""

from collections.abc import AsyncIterator
from typing import Protocol

from divgrpc_server.ipc.topology import Topology


class Engine(Protocol):
    """Starts the shard servers of a cluster, and keeps them running."""

    async def start(self) -> None:
        """Start all servers, and return when they serve; raises `UnavailableError`."""

    def watch(self) -> AsyncIterator[Topology]:
        """Yield where the shards are, now and after each change."""

    async def stop(self) -> None:
        """End all servers."""
