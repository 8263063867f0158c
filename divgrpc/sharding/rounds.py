"""Rounds of messages to shards, and the replies that are known so far."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from divgrpc.sharding.messages import divide, join


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
    replies: Mapping[int, bytes]


class UnansweredError(Exception):
    """Raised where a computation needs replies that are not known: `round` asks for them."""

    def __init__(self, missing: Round) -> None:
        super().__init__(missing.name)
        self.round = missing


class Transcript:
    """The replies that are known, and the messages that a computation lacks replies to.

    A computation asks in the same order each time that it runs. So it can be run again from its
    beginning whenever more replies are known, and needs no state in between.
    """

    def __init__(self, exchanges: Iterable[Exchange] = ()) -> None:
        self._replies: dict[tuple[str, int, bytes], bytes] = {}
        self._missing: dict[str, dict[int, list[bytes]]] = {}
        for (name, messages), replies in exchanges:
            for shard, message in messages.items():
                parts = zip(divide(message), divide(replies[shard]), strict=True)
                for part, reply in parts:
                    self._replies[name, shard, part] = reply

    def ask(self, name: str, messages: Mapping[int, bytes]) -> dict[int, bytes] | None:
        """Return the reply to each message by shard, or None if not all replies are known."""
        replies, is_complete = {}, True
        for shard, message in messages.items():
            reply = self._replies.get((name, shard, message))
            if reply is None:
                self._missing.setdefault(name, {}).setdefault(shard, []).append(message)
                is_complete = False
            else:
                replies[shard] = reply
        return replies if is_complete else None

    def part(self) -> "Transcript":
        """Return a transcript with the same replies for a part of the computation."""
        part = Transcript()
        part._replies = self._replies
        return part

    def add(self, part: "Transcript") -> None:
        """Add the messages that a part lacks replies to."""
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
            joined = {shard: join(list(dict.fromkeys(parts))) for shard, parts in messages.items()}
            raise UnansweredError(Round(name, joined))
