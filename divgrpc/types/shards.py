"""What the description of an index says about its shards."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard of an index: its number of points, and the bytes of their arrays."""

    rows: int
    bytes: int
