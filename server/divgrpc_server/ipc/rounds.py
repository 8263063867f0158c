"""Rounds of messages to shards, as a worker, a front and a worker again pass them on.

A worker that lacks replies of shards ends its work with a round: a message for each shard to ask.
The front asks the shards, and gives the request to a worker again, together with the exchanges: all
messages so far, each with its reply. The worker begins anew, and comes further than before.

A round is packed as its number of messages, whether the answer may lack shards, the shards and
lengths of the messages, and the messages. Exchanges are packed one after another: shard, lengths,
message, reply. A front does not read the messages. If no server of some shards is up, and the
answer may lack them, the exchanges begin with one that says which shards they are.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from divgrpc_server.ipc.errors import FrameError

_HEAD: Final = struct.Struct("<IB")
_MESSAGE: Final = struct.Struct("<II")
_EXCHANGE: Final = struct.Struct("<III")
# Stands for a shard in the exchange whose reply is the numbers of missing shards, and in what
# replaces the replies to a round that shards do not answer.
_MISSING: Final = 2**32 - 1


class Round(NamedTuple):
    """Messages by shard, and whether the answer may lack shards that are missing."""

    messages: dict[int, bytes]
    may_lack: bool


class Exchange(NamedTuple):
    """A message to a shard, and its reply."""

    shard: int
    message: bytes
    reply: bytes


def pack_round(messages: Mapping[int, bytes], *, may_lack: bool = False) -> bytes:
    """Return the packed messages of a round, given by shard."""
    heads = [_MESSAGE.pack(shard, len(message)) for shard, message in messages.items()]
    return b"".join((_HEAD.pack(len(messages), may_lack), *heads, *messages.values()))


def unpack_round(packed: bytes) -> Round:
    """Return the round that `pack_round` has packed; raises `FrameError`."""
    try:
        count, may_lack = _HEAD.unpack_from(packed)
        end = _HEAD.size + count * _MESSAGE.size
        heads = list(_MESSAGE.iter_unpack(packed[_HEAD.size : end]))
    except struct.error as error:
        raise FrameError(f"a round cannot be read: {error}") from error
    messages = {}
    for shard, length in heads:
        messages[shard] = packed[end : end + length]
        end += length
    if len(messages) != count or end != len(packed) or may_lack > 1:
        raise FrameError("a round has other messages than it says")
    return Round(messages, bool(may_lack))


def pack_refusal(reason: str) -> bytes:
    """Return what replaces the packed replies to a round that may lack them, for `refusal_of`."""
    return pack_round({_MISSING: reason.encode()})


def refusal_of(replies: Round) -> str | None:
    """Return why shards have not answered a round; None if they have."""
    reason = replies.messages.get(_MISSING)
    return None if reason is None else reason.decode()


def pack_missing(shards: Sequence[int]) -> bytes:
    """Return an exchange that says which shards are missing, for `missing_in`."""
    return pack_exchanges({_MISSING: b""}, {_MISSING: struct.pack(f"<{len(shards)}I", *shards)})


def missing_in(exchange: Exchange) -> tuple[int, ...] | None:
    """Return the missing shards that an exchange names; None if it is one with a shard."""
    if exchange.shard != _MISSING:
        return None
    return struct.unpack(f"<{len(exchange.reply) // 4}I", exchange.reply)


def pack_exchanges(messages: Mapping[int, bytes], replies: Mapping[int, bytes]) -> bytes:
    """Return the messages of a round, packed with the reply of each shard."""
    parts = []
    for shard, message in messages.items():
        reply = replies[shard]
        parts += [_EXCHANGE.pack(shard, len(message), len(reply)), message, reply]
    return b"".join(parts)


def unpack_exchanges(packed: bytes) -> list[Exchange]:
    """Return the exchanges that `pack_exchanges` has packed; raises `FrameError`."""
    exchanges, at = [], 0
    while at < len(packed):
        try:
            shard, message_bytes, reply_bytes = _EXCHANGE.unpack_from(packed, at)
        except struct.error as error:
            raise FrameError(f"an exchange cannot be read: {error}") from error
        middle = at + _EXCHANGE.size + message_bytes
        message, reply = (
            packed[at + _EXCHANGE.size : middle],
            packed[middle : middle + reply_bytes],
        )
        at = middle + reply_bytes
        exchanges.append(Exchange(shard, message, reply))
    if at != len(packed):
        raise FrameError("the last exchange is longer than its packet")
    return exchanges
