"""How much memory indexes need at each place, and servers have for further shards."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence


def bytes_at_places(shard_bytes: Sequence[int], places: int) -> list[int]:
    """Return the bytes of an index at each place; place p of n has the shards p, p + n and so on.

    shard_bytes: of each shard.
    """
    return [sum(shard_bytes[place::places]) for place in range(places)]


def room_for_shards(servers: Iterable[tuple[str, int]], free_bytes: Mapping[str, int]) -> int:
    """Return the bytes of the largest shard that each server has memory for.

    servers: for each server, its node and the bytes that are kept for it beyond its shards,
        negative if its shards are larger. free_bytes: what each node has beside that. The servers
        of a node share it.
    """
    spare: dict[str, list[int]] = defaultdict(list)
    for node, size in servers:
        spare[node].append(size)
    rooms = (_room_on_node(sizes, free_bytes.get(node, 0)) for node, sizes in spare.items())
    return max(0, min(rooms, default=0))


def _room_on_node(spare: list[int], free: int) -> int:
    """Return the largest x for which the servers of a node need at most `free` bytes in all.

    A server that has s spare bytes needs max(0, x - s) for a shard of x bytes.
    """
    spare = sorted(spare)
    total = free
    for count, size in enumerate(spare, 1):
        total += size
        room = total // count
        if count == len(spare) or room <= spare[count]:
            break
    return room
