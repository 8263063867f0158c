"""Answers calls on an index whose points are on shards, round by round.

A call is begun anew with each round, and then knows more replies. So it needs no state in a worker,
and any worker can go on with it.
"""

from typing import Protocol

from divgrpc.sharding.gathering_engine import GatheringEngine
from divgrpc.sharding.rounds import Exchange, Round, Transcript, UnansweredError
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.ipc import rounds
from divgrpc_server.ipc.packets import Outcome, Reply


class Call(Protocol):
    """A call of a client.

    exchanges: what shards have replied to earlier rounds (`ipc.rounds`).
    """

    id: int
    exchanges: bytes

    def start(self, index: GatheringEngine) -> Reply | None:
        """Return the reply, as `worker.batches.Batch.start` does."""


def start_or_ask(call: Call, index: GatheringEngine) -> Reply | None:
    """Return the reply to a call, or the next round of messages to shards."""
    index.transcript = Transcript(_exchanges(call.exchanges, index))
    try:
        return call.start(index)
    except UnansweredError as error:
        return Reply(call.id, Outcome.ROUND, rounds.pack_round(_requests(error.round, index)))
    finally:
        # Replies may be many megabytes.
        index.transcript = Transcript()


def _exchanges(packed: bytes, index: GatheringEngine) -> list[Exchange]:
    """Return the exchanges so far, except those with shards of an earlier generation."""
    exchanges = []
    for shard, message, reply in rounds.unpack_exchanges(packed):
        request = shard_index_pb2.AskRequest.FromString(message)
        response = shard_index_pb2.AskResponse.FromString(reply)
        shards = index.manifest.shards
        if shard < len(shards) and request.checksum == shards[shard].crc32:
            step = Round(request.operation, {shard: request.messages})
            exchanges.append(Exchange(step, {shard: response.replies}))
    return exchanges


def _requests(step: Round, index: GatheringEngine) -> dict[int, bytes]:
    """Return the calls of `ShardIndex.Ask` for a round, by shard."""
    return {
        shard: shard_index_pb2.AskRequest(
            index=index.name,
            generation=index.generation,
            shard=shard,
            checksum=index.manifest.shards[shard].crc32,
            operation=step.name,
            messages=messages,
        ).SerializeToString()
        for shard, messages in step.messages.items()
    }
