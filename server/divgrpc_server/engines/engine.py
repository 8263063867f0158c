"""What all engines have in common."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from divgrpc.errors import UnavailableError
from divgrpc_server.ipc.topology import Topology


class HopelessError(UnavailableError):
    """A server cannot start, and trying again would not help."""


class Engine(Protocol):
    """Starts the shard servers of a cluster, keeps them running, and keeps memory for their shards.

    A server has its shards of all indexes.
    """

    async def start(self) -> None:
        """Begin to start all servers."""

    @property
    def is_whole(self) -> bool:
        """Whether all servers serve."""

    def watch(self) -> AsyncIterator[Topology]:
        """Yield where the shards are, now and after each change; raises `UnavailableError`."""

    async def place(self, index: str, shard_bytes: Sequence[int]) -> None:
        """Keep memory for the shards of an index, which map so many bytes each; idempotent."""

    async def drop(self, index: str) -> None:
        """Keep no memory for an index any more; idempotent."""

    async def stop(self) -> None:
        """End all servers."""
