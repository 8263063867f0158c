"""What all engines have in common."""

from collections.abc import AsyncIterator
from typing import Protocol

from divgrpc.errors import UnavailableError
from divgrpc_server.ipc.topology import Topology


class HopelessError(UnavailableError):
    """A server cannot start, and trying again would not help."""


class Engine(Protocol):
    """Starts the shard servers of a cluster, and keeps them running."""

    async def start(self) -> None:
        """Begin to start all servers."""

    @property
    def is_whole(self) -> bool:
        """Whether all servers serve."""

    def watch(self) -> AsyncIterator[Topology]:
        """Yield where the shards are, now and after each change; raises `UnavailableError`."""

    async def stop(self) -> None:
        """End all servers."""
