"""Answers calls on an index whose points are on shards, round by round.

A call is begun anew with each round, and then knows more replies. So it needs no state in a worker,
and any worker can go on with it.
"""

from typing import Protocol

from divgrpc.errors import ConditionFailedError
from divgrpc.sharding.files import open_cells
from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.sharding.rounds import Exchange, Round, Transcript, UnansweredError
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.shard_messages import pack_asks
from divgrpc_server.codec.statuses import ShardsMissingError
from divgrpc_server.ipc import rounds
from divgrpc_server.ipc.packets import Outcome, Reply


class Call(Protocol):
    """A call of a client.

    exchanges: what shards have replied to earlier rounds (`ipc.rounds`).
    may_lack: whether the answer may lack the points of shards that are missing.
    """

    id: int
    exchanges: bytes
    may_lack: bool

    def start(self, index: GatheringEngine) -> Reply | None:
        """Return the reply, as `worker.batches.Batch.start` does."""


def start_or_ask(call: Call, index: GatheringEngine) -> Reply | None:
    """Return the reply to a call, or the next round of messages to shards."""
    exchanges, missing = _exchanges(call.exchanges, index)
    if missing:
        index = _without(index, missing)
    index.transcript = Transcript(exchanges)
    try:
        return call.start(index)
    except ConditionFailedError:
        if missing:
            # The points that a quota lacks may be on these shards.
            raise ShardsMissingError(missing) from None
        raise
    except UnansweredError as error:
        asks = pack_asks(error.round, index.name, index.manifest)
        packed = rounds.pack_round(asks, may_lack=call.may_lack)
        return Reply(call.id, Outcome.ROUND, packed)
    finally:
        # Replies may be many megabytes.
        index.transcript = Transcript()


def _without(index: GatheringEngine, missing: list[int]) -> GatheringEngine:
    """Return an engine that leaves out shards; raises `ShardsMissingError` if it has none."""
    if all(shard in missing or not one.rows for shard, one in enumerate(index.manifest.shards)):
        raise ShardsMissingError(missing)
    assert index.folder is not None  # noqa: S101  # workers open folders
    folder = index.folder / str(index.generation)
    return index.without_shards(missing, lambda shard: open_cells(folder, index.manifest, shard))


def _exchanges(packed: bytes, index: GatheringEngine) -> tuple[list[Exchange], list[int]]:
    """Return the exchanges so far, and the shards to leave out.

    Exchanges with shards of an earlier generation are left out.
    """
    exchanges: list[Exchange] = []
    missing: tuple[int, ...] = ()
    for exchange in rounds.unpack_exchanges(packed):
        shard, message, reply = exchange
        if (numbers := rounds.missing_in(exchange)) is not None:
            missing = numbers
            continue
        request = shard_index_pb2.AskRequest.FromString(message)
        response = shard_index_pb2.AskResponse.FromString(reply)
        shards = index.manifest.shards
        if shard < len(shards) and request.checksum == shards[shard].crc32:
            step = Round(request.operation, {shard: request.messages})
            exchanges.append(Exchange(step, {shard: response.replies}))
    return exchanges, [shard for shard in missing if shard < len(index.manifest.shards)]
