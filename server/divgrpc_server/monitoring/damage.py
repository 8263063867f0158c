"""Lets the supervisor know which indexes a process has found damaged."""

from collections.abc import Iterable, Set

from divgrpc_server.monitoring.definitions import DAMAGED
from divgrpc_server.monitoring.page import Key, Page, Values


class DamageMeter:
    """Notes in the page of a process which indexes it has found damaged.

    The page has a series for each index, because several processes may find the same one damaged.
    A scrape has the number of indexes alone.
    """

    def __init__(self, page: Page | None) -> None:
        """Take the page; None notes nothing."""
        self._page = page
        self._names: Set[str] = frozenset()

    def set(self, names: Set[str]) -> None:
        """Note the indexes that are damaged, in place of those before."""
        if self._page is None or names == self._names:
            return
        # Several indexes may share a label, so the damaged ones come last.
        for name in (*(self._names - names), *names):
            cell = self._page.cell(DAMAGED, self._page.index_label(name))
            self._page.set(cell, name in names)
        self._names = frozenset(names)


def take_damage(series: dict[Key, Values]) -> Iterable[str]:
    """Remove what processes have noted from `series`; return the labels of the damaged indexes."""
    keys = [key for key in series if key[0] == DAMAGED]
    return [key[1] for key in keys if series.pop(key)[0] > 0]
