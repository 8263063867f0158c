"""A cache with a limit of bytes."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

ValueT = TypeVar("ValueT")
# About what Python takes for an entry beside its bytes.
_ENTRY_BYTES: Final = 500


class LimitedCache(Generic[ValueT]):
    """Keeps the newest values, as many as take at most a limit of bytes in all.

    The newest is kept whatever its size. One thread may use it.
    """

    def __init__(self, most: int) -> None:
        """Keep values of at most `most` bytes in all."""
        self._most = most
        self._entries: dict[Hashable, tuple[ValueT, int]] = {}
        self._bytes = 0

    def get(self, key: Hashable) -> ValueT | None:
        """Return the value of a key, None if there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: ValueT, size: int) -> None:
        """Keep a value that takes `size` bytes with its key; the key has no value yet."""
        size += _ENTRY_BYTES
        self._bytes += size
        while self._entries and self._bytes > self._most:
            _, dropped = self._entries.pop(next(iter(self._entries)))
            self._bytes -= dropped
        self._entries[key] = value, size
