"""Where the shards of a cluster are."""

import json
from collections.abc import Mapping
from typing import NamedTuple


class Topology(NamedTuple):
    """The addresses of shard servers, as an engine tells fronts.

    version: grows with each change.
    places: the addresses of the servers at each place, host:port. All servers at a place have the
        same shards: at place p of n are the shards p, p + n, p + 2n and so on of every index. A
        place whose servers are all down has no addresses.
    room_bytes: the largest shard for which each place has memory, beside those that it has; None
        if nobody counts it.
    fault: why the engine can neither place servers nor keep memory for shards; "" if it can.
    """

    version: int
    places: tuple[tuple[str, ...], ...]
    room_bytes: int | None = None
    fault: str = ""

    def replicas(self, shard: int) -> tuple[str, ...]:
        """Return the addresses of the servers that have a shard."""
        return self.places[shard % len(self.places)] if self.places else ()

    def pack(self) -> str:
        """Return the topology as a text."""
        return json.dumps(self)

    @classmethod
    def unpack(cls, text: str) -> "Topology":
        """Return the topology that `pack` has packed."""
        version, places, *rest = json.loads(text)
        return cls(version, tuple(map(tuple, places)), *rest)


def topology_of(
    version: int, addresses: Mapping[tuple[int, int], str], shards: int, replicas: int
) -> Topology:
    """Return a topology of `shards` places.

    addresses: by place and replica; "" or absent for a server that is down.
    """
    places = [
        tuple(filter(None, (addresses.get((place, number), "") for number in range(replicas))))
        for place in range(shards)
    ]
    return Topology(version, tuple(places))
