"""Rounds of messages to shards, and the replies that are known so far."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from divgrpc.errors import IndexDamagedError, InvalidArgumentError
from divgrpc.sharding.messages import Buffer, divide, join


class Round(NamedTuple):
    """Messages that may be sent at once.

    name: the name of the operation, as `ShardCore.ask` takes it.
    messages: a message for each shard to ask.
    """

    name: str
    messages: Mapping[int, bytes]


class Exchange(NamedTuple):
    """A round, and the reply of each shard that it asked."""

    round: Round
    replies: Mapping[int, Buffer]


class UnansweredError(Exception):
    """Raised where a computation needs replies that are not known: `round` asks for them."""

    def __init__(self, missing: Round) -> None:
        super().__init__(missing.name)
        self.round = missing


class ShardFaultError(IndexDamagedError):
    """A reply is not one that a shard of the index sends: `shard` is the number of the shard.

    Another replica of the shard may be whole.
    """

    def __init__(self, shard: int, fault: str) -> None:
        super().__init__(f"a reply of shard {shard} cannot be used: {fault}")
        self.shard = shard


class Transcript:
    """The replies that are known, and the messages that a computation lacks replies to.

    A computation asks in the same order each time that it runs. So it can be run again from its
    beginning whenever more replies are known, and needs no state in between.
    """

    def __init__(self, exchanges: Iterable[Exchange] = ()) -> None:
        """Take the replies of all rounds so far; raises `ShardFaultError`."""
        # Bytes of the replies that have vectors, and an estimate for those that are missing.
        self.vector_bytes = 0
        # Replies by operation and message, because most rounds ask all shards the same.
        self._replies: dict[tuple[str, bytes], dict[int, Buffer]] = {}
        self._missing: dict[str, dict[int, list[bytes]]] = {}
        known: dict[tuple[str, bytes], list[dict[int, Buffer]]] = {}
        for (name, messages), replies in exchanges:
            for shard, message in messages.items():
                parts = known.get((name, message))
                if parts is None:
                    keys = [(name, bytes(part)) for part in divide(message)]
                    parts = [self._replies.setdefault(key, {}) for key in keys]
                    known[name, message] = parts
                divided = parts_of(shard, replies[shard], len(parts))
                for part, reply in zip(parts, divided, strict=True):
                    part[shard] = reply

    def ask(self, name: str, messages: Mapping[int, bytes]) -> dict[int, Buffer] | None:
        """Return the reply to each message by shard, or None if not all replies are known."""
        replies, is_complete = {}, True
        known: dict[int, Buffer] = {}
        last = None
        for shard, message in messages.items():
            if message is not last:
                # Most rounds ask all shards the same.
                last, known = message, self._replies.get((name, message), {})
            reply = known.get(shard)
            if reply is None:
                self._missing.setdefault(name, {}).setdefault(shard, []).append(message)
                is_complete = False
            else:
                replies[shard] = reply
        return replies if is_complete else None

    @property
    def is_empty(self) -> bool:
        """Whether no reply is known."""
        return not self._replies

    def has_asked(self, name: str, message: bytes) -> bool:
        """Return whether a round had this message."""
        return (name, message) in self._replies

    def count_missing(self, name: str) -> int:
        """Return how many messages of an operation lack replies, of the shard with most of them."""
        return max(map(len, self._missing.get(name, {}).values()), default=0)

    def part(self) -> "Transcript":
        """Return a transcript with the same replies for a part of the computation."""
        part = Transcript()
        part._replies = self._replies
        return part

    def add(self, part: "Transcript") -> None:
        """Add the messages that a part lacks replies to, and the bytes that it has asked for."""
        self.vector_bytes += part.vector_bytes
        for name, messages in part._missing.items():  # noqa: SLF001  # of this class
            for shard, parts in messages.items():
                self._missing.setdefault(name, {}).setdefault(shard, []).extend(parts)

    @property
    def is_complete(self) -> bool:
        """Whether no reply is missing."""
        return not self._missing

    def check(self) -> None:
        """Raise `UnansweredError` if replies are missing."""
        for name, messages in self._missing.items():
            joined: dict[tuple[bytes, ...], bytes] = {}
            whole: dict[int, bytes] = {}
            for shard, parts in messages.items():
                key = tuple(dict.fromkeys(parts))
                if key not in joined:
                    joined[key] = join(key)
                whole[shard] = joined[key]
            raise UnansweredError(Round(name, whole))


def parts_of(shard: int, reply: Buffer, count: int) -> list[Buffer]:
    """Return the `count` replies of a shard that one message holds; raises `ShardFaultError`."""
    try:
        parts = divide(reply)
    except InvalidArgumentError as error:
        raise ShardFaultError(shard, str(error)) from error
    if len(parts) != count:
        raise ShardFaultError(shard, f"message holds {len(parts)} replies to {count} messages")
    return parts
