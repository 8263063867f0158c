"""A memory for what recent pages have computed, within limits of bytes and of pages."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

# Maximum number of pages for which a memory keeps something.
PAGES_MAX: Final = 64


class Sized(Protocol):
    """What is kept for a page."""

    @property
    def size(self) -> int:
        """Number of bytes."""


KeyT = TypeVar("KeyT", bound=Hashable)
ContentT = TypeVar("ContentT", bound=Sized)


class KeptPages(Generic[KeyT, ContentT]):
    """What is kept for recent pages, by key; the least recently used is forgotten. Thread-safe."""

    def __init__(self, bytes_max: int, pages_max: int = PAGES_MAX) -> None:
        self._bytes_max, self._pages_max = bytes_max, pages_max
        self._pages: OrderedDict[KeyT, ContentT] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pages)

    def _get(self, key: KeyT) -> ContentT | None:
        """Return what is kept for a key."""
        with self._lock:
            content = self._pages.get(key)
            if content is not None:
                self._pages.move_to_end(key)
            return content

    def _keep(self, key: KeyT, content: ContentT) -> None:
        """Keep something for a key, unless it is too large by itself."""
        if content.size > self._bytes_max:
            return
        with self._lock:
            if key in self._pages:
                self._bytes -= self._pages.pop(key).size
            self._pages[key] = content
            self._bytes += content.size
            while self._bytes > self._bytes_max or len(self._pages) > self._pages_max:
                _, oldest = self._pages.popitem(last=False)
                self._bytes -= oldest.size
