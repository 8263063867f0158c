"""Conversion of rounds to the messages of `ShardIndex.Ask`."""

from divgrpc.sharding.rounds import Round
from divgrpc.storage.manifest import Manifest
from divgrpc_protos.v1 import shard_index_pb2


def pack_asks(step: Round, index: str, manifest: Manifest) -> dict[int, bytes]:
    """Return the call of `ShardIndex.Ask` for each shard of a round.

    index, manifest: the name of the index, and the manifest of its whole generation.
    """
    return {
        shard: shard_index_pb2.AskRequest(
            index=index,
            generation=manifest.generation,
            shard=shard,
            checksum=manifest.shards[shard].crc32,
            operation=step.name,
            messages=messages,
        ).SerializeToString()
        for shard, messages in step.messages.items()
    }
