"""Keeps memory of the nodes of a cluster for the shards of servers.

Theory of operation. The group of a place keeps memory for its servers. What their shards need
beyond that is kept by further groups, the pieces of a server, on the node where it is. If shards
need more, another piece keeps the difference: Ray gives nothing back meanwhile that another program
could take. A group for all of it, before the pieces are given up, would need the memory twice, and
a node that is nearly full would never have it. Pieces outlive this process, and the next one finds
them by name.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from divgrpc_server.engines.memory import room_for_shards
from divgrpc_server.logging.logs import Logger

# Memory is kept in multiples of this, so that few builds change it.
_STEP_BYTES: Final = 16 << 20
# A server with so many pieces gives up the smallest one when its shards need more, and asks for its
# memory again together with the difference. So an index that grows for years has few pieces.
_PIECES_MAX: Final = 8


class Group(NamedTuple):
    """Memory that is kept on nodes, or asked for.

    sizes: the bytes of each part. nodes: the id of the node that each part is on, "" without one.
    """

    sizes: Sequence[int]
    nodes: Sequence[str]


class Groups(Protocol):
    """The groups of a cluster."""

    def read(self) -> dict[str, Group]:
        """Return all groups by name."""

    def keep(self, name: str, node: str, size: int) -> bool:
        """Make a group of one part on a node; return whether the node has so many bytes now."""

    def remove(self, name: str) -> None:
        """Give back the memory of a group."""

    def read_free_bytes(self) -> dict[str, int]:
        """Return the bytes of memory of each node that no group keeps."""


class NodeMemory:
    """Keeps memory for servers beside that of the groups of places.

    requests: the node and the bytes that were last asked for, by place and replica.
    """

    def __init__(self, groups: Groups, prefix: str, log: Logger) -> None:
        """Take the groups of the cluster, and the prefix of the names that this service gives."""
        self._groups, self._prefix, self._log = groups, prefix, log
        self.requests: dict[tuple[int, int], tuple[str, int]] = {}
        # The servers for which a node lacks memory, as the log says.
        self._shortages: set[tuple[int, int]] = set()

    def keep(self, homes: Mapping[tuple[int, int], str], needs: list[int]) -> int | None:
        """Keep memory for servers on their nodes; return the room for further shards.

        homes: the node of each server. needs: the bytes of the shards at each place, empty without
        an index.
        """
        groups, spare = self._groups.read(), []
        for (place, number), node in homes.items():
            need = needs[place] if needs else 0
            group = groups.get(f"{self._prefix}-p{place}")
            memory = group.sizes[number] if group else 0
            size = -(-max(0, need - memory) // _STEP_BYTES) * _STEP_BYTES
            prefix = f"{self._prefix}-p{place}-r{number}-memory-"
            pieces = {name: piece for name, piece in groups.items() if name.startswith(prefix)}
            memory += self._keep_beside((place, number), node, size, prefix, pieces)
            spare.append((node, memory - need))
        return room_for_shards(spare, self._groups.read_free_bytes()) if homes else None

    def _keep_beside(
        self,
        server: tuple[int, int],
        node: str,
        size: int,
        prefix: str,
        pieces: Mapping[str, Group],
    ) -> int:
        """Keep memory of a node for a server, beside that of its group; return the bytes kept.

        pieces: the groups whose names begin with `prefix`.
        """
        homes = {name: piece.nodes[0] for name, piece in pieces.items()}
        sizes = {name: piece.sizes[0] for name, piece in pieces.items() if homes[name] == node}
        total = sum(sizes.values())
        if total == size and len(sizes) == len(pieces):
            if server in self._shortages:
                self._note(server, node, size, is_kept=True)
            return total
        if not all(homes.values()) and self.requests.get(server) == (node, size):
            return total  # a piece waits for memory
        self.requests[server] = node, size
        for name in pieces.keys() - sizes.keys():
            self._groups.remove(name)
        while total > size or (total < size and len(sizes) == _PIECES_MAX):
            name = min(sizes, key=sizes.__getitem__)
            total -= sizes.pop(name)
            self._groups.remove(name)
        if total == size:
            return total
        names = (f"{prefix}{number}" for number in itertools.count())
        name = next(name for name in names if name not in pieces)
        is_kept = self._groups.keep(name, node, size - total)
        self._note(server, node, size, is_kept=is_kept)
        return size if is_kept else total

    def _note(self, server: tuple[int, int], node: str, size: int, *, is_kept: bool) -> None:
        """Log whether the memory of a server is kept."""
        self._shortages.discard(server)
        write, event = self._log.info, "memory is kept for shards"
        if not is_kept:
            self._shortages.add(server)
            write, event = self._log.warning, "a node lacks memory for its shards"
        write(event, place=server[0], replica=server[1], node=node, bytes=size)
