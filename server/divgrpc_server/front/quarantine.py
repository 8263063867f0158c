"""The quarantine: fingerprints of queries that killed two workers.

A query in quarantine is refused for a minute. If its index changes, it is admitted earlier, because
the old generation may have been the cause of the deaths.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

_STAY_SECONDS: Final = 60.0
_ENTRIES_MAX: Final = 1024


class _Entry(NamedTuple):
    """A query in quarantine.

    `until` is the end of its stay, in seconds of `time.monotonic`. `name` is the name of its
    index, and `stamp` is the stamp that the index had when the query was added.
    """

    until: float
    name: str
    stamp: object


class Quarantine:
    """The fingerprints of the queries that the front refuses; the set is usually empty.

    `stamp` returns, for the name of an index, a value that changes with every generation.
    """

    def __init__(self, stamp: Callable[[str], object]) -> None:
        self._stamp = stamp
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def add(self, fingerprint: bytes, index: str) -> None:
        """Add a query, which names `index`."""
        until = time.monotonic() + _STAY_SECONDS
        self._entries[fingerprint] = _Entry(until, index, self._stamp(index))
        self._entries.move_to_end(fingerprint)
        while len(self._entries) > _ENTRIES_MAX:
            self._entries.popitem(last=False)

    @property
    def is_empty(self) -> bool:
        """Whether no query is in quarantine, in which case callers need not hash their query."""
        while self._entries and next(iter(self._entries.values())).until < time.monotonic():
            self._entries.popitem(last=False)
        return not self._entries

    def holds(self, fingerprint: bytes) -> bool:
        """Return whether a query is in quarantine.

        Read `is_empty` first, which removes the queries whose stay has ended.
        """
        entry = self._entries.get(fingerprint)
        if entry is not None and entry.stamp != self._stamp(entry.name):
            del self._entries[fingerprint]
            return False
        return entry is not None
