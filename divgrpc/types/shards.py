"""What the description of an index says about its shards."""

from dataclasses import dataclass
from typing import Final, Literal

ReplicaState = Literal["serving", "starting", "avoided", "unreachable", "faulty"]
# The states of servers that reply to calls. A server that is avoided replies too, but was slow.
REPLYING: Final = frozenset[ReplicaState](("serving", "avoided"))


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A server that has a shard.

    address: host:port, "" for a server that is being started.
    state: how the server that describes the index sees it: serving; starting; avoided for a second,
        because it was slow; unreachable; or faulty, if its files are damaged or it refuses calls.
    reason: why the state is not "serving", "" if it is.
    """

    address: str
    state: ReplicaState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard of an index: its number of points, and the bytes of their arrays.

    replicas: the servers that have the shard, if a server with `--shards` describes the index.
    """

    rows: int
    bytes: int
    replicas: tuple[ReplicaInfo, ...] = ()
