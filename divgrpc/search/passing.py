"""The points that pass a filter, in the forms that searches read."""

import threading
from functools import cached_property
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.kernels.records import Index, Passing
from divgrpc.search.arrays import NO_FILTER
from divgrpc.search.code_order import CodeOrder, Flags
from divgrpc.search.packed_cells import PackedCells
from divgrpc.types import IntArray

# The codes of points that pass are copied once as many queries have read them as make the copy
# worth its time: one query for so many points.
_COPIED_POINTS_PER_QUERY: Final = 8_192
# If more than this share of the points passes, a copy saves little.
_COPIED_SHARE_MAX: Final = 0.75
# Held while the codes of points that pass are copied.
_COPYING: Final = threading.Lock()


class PassingRows:
    """The points of an index that pass a filter; threads may share it.

    count: number of points that pass.
    """

    # The last argument and the result of `within`.
    _cached: "tuple[PassingRows, PassingRows] | None" = None

    def __init__(
        self,
        flags: Flags,
        *,
        order: CodeOrder | None = None,
        by_code: tuple[Array, Array] | None = None,
    ) -> None:
        """Take the flags (n,) of the rows that pass.

        order: the order of the codes, if it is not the one of the index.
        by_code: the flags in this order and their sums, if they are known (`CodeOrder.put`).
            With cells, the flags may be those of the last places, if all points before pass. If
            no cell is empty then, and there are no such flags, there may be no sums.
        """
        self._flags = flags
        self.count = int(np.count_nonzero(flags))
        self._order = order
        self._by_code: Passing | None = None
        self._packed: PackedCells | None = None
        self._queries = 0
        # Points that exist are not copied, because a write soon changes them.
        self._is_filter = by_code is None
        if order is not None and by_code is not None:
            self._by_code = self._passing(flags=by_code[0], cells=by_code[1], heads=order.heads)

    @property
    def flags(self) -> Flags:
        """Whether the point of each row passes, (n,)."""
        return self._flags

    @property
    def order(self) -> CodeOrder | None:
        """The order of the codes, if it is not the one of the index."""
        return self._order

    @property
    def bytes_max(self) -> int:
        """Upper bound of the bytes that this object takes in memory."""
        return 4 * len(self.flags) + 4 * self.count

    @cached_property
    def by_row(self) -> Passing:
        """The rows that pass, for an exact search."""
        return self._passing(rows=np.flatnonzero(self.flags).astype(np.int32))

    def by_code(self, order: CodeOrder) -> Passing:
        """Return flags in the order of the codes, for searches that read codes."""
        # Two threads may do this at the same time, with the same result.
        if self._by_code is None:
            order = self._order or order
            flags, counts = order.put(self.flags)
            self._by_code = self._passing(flags=flags, cells=counts, heads=order.heads)
        return self._by_code

    def packed(self, index: Index, order: CodeOrder, queries: int) -> PackedCells | None:
        """Return the points as an index of their own, or None if a copy does not pay yet.

        index: an index with cells; `order` is the order of its codes. `queries`: number of queries
        that are about to be answered.
        """
        # Threads may lose queries of one another.
        self._queries += queries
        if self._packed is None and self._copy_pays():
            with _COPYING:
                # A kernel of another thread may read a copy, so it is never replaced.
                if self._packed is None:
                    self._packed = PackedCells.of(index, self.by_row.rows, self._order or order)
        return self._packed

    def _copy_pays(self) -> bool:
        few = self.count <= _COPIED_SHARE_MAX * len(self.flags)
        return (
            self._is_filter and few and self.count <= _COPIED_POINTS_PER_QUERY * (self._queries - 1)
        )

    def without(self, rows: IntArray) -> "PassingRows":
        """Return the points that pass, except the points in `rows` (m,)."""
        removed = np.unique(rows)
        removed = removed[self.flags[removed]]
        return _FewerRows(self, removed) if len(removed) else self

    def part(self, start: int, stop: int) -> "PassingRows":
        """Return those of the rows from `start` to `stop` that pass, for exact searches.

        These cost only as much as the part is long.
        """
        return _Part(self, start, stop)

    def within(self, points: "PassingRows") -> "PassingRows":
        """Return the points that pass and are also among `points`, cached for one object."""
        if self._cached is None or self._cached[0] is not points:
            flags = self.flags & points.flags[: len(self.flags)]
            self._cached = points, PassingRows(flags, order=self._order)
        return self._cached[1]

    def _passing(self, **arrays: Array) -> Passing:
        return NO_FILTER._replace(total=np.array([self.count]), **arrays)


class _FewerRows(PassingRows):
    """The points of another object without some rows, whose arrays are changed copies."""

    def __init__(self, every: PassingRows, removed: IntArray) -> None:
        self._every, self._removed = every, removed
        self.count = every.count - len(removed)
        self._order = every.order
        self._by_code = None
        self._packed = None

    @property
    def flags(self) -> Flags:
        """Whether the point of each row passes, (n,)."""
        return self._all_flags

    @cached_property
    def _all_flags(self) -> Flags:
        flags = self._every.flags.copy()
        flags[self._removed] = False
        return flags

    @cached_property
    def by_row(self) -> Passing:
        """The rows that pass, for an exact search."""
        rows = self._every.by_row.rows
        return self._passing(rows=np.delete(rows, np.searchsorted(rows, self._removed)))

    def by_code(self, order: CodeOrder) -> Passing:
        """Return flags in the order of the codes, for searches that read codes."""
        if self._by_code is None:
            order = self._order or order
            every = self._every.by_code(order)
            flags, counts = order.copy_flags(every.flags), order.copy_counts(every.cells)
            order.clear(flags, counts, self._removed)
            self._by_code = self._passing(flags=flags, cells=counts, heads=order.heads)
        return self._by_code

    def packed(self, index: Index, order: CodeOrder, queries: int) -> PackedCells | None:
        """Return the points as an index of their own, or None if a copy does not pay yet."""
        every = self._every.packed(index, order, queries)
        if self._packed is None and every is not None:
            order = self._order or order
            cells = order.cells_of(order.places_of(self._removed))
            with _COPYING:
                if self._packed is None:
                    self._packed = every.without(self._removed, cells)
        return self._packed


class _Part(PassingRows):
    """The rows of another object in a range."""

    def __init__(self, every: PassingRows, start: int, stop: int) -> None:
        self._every, self._start, self._stop = every, start, stop
        self._rows = np.flatnonzero(every.flags[start:stop]) + start
        self.count = len(self._rows)
        self._order = every.order
        self._by_code = None
        self._packed = None
        self._queries = 0
        self._is_filter = False

    @cached_property
    def flags(self) -> Flags:
        """Whether the point of each row passes, (n,)."""
        flags = np.zeros_like(self._every.flags)
        flags[self._rows] = True
        return flags

    @cached_property
    def by_row(self) -> Passing:
        """The rows that pass, for an exact search."""
        return self._passing(rows=self._rows.astype(np.int32))

    def within(self, points: PassingRows) -> PassingRows:
        """Return the points that pass and are also among `points`."""
        return self._every.within(points).part(self._start, self._stop)
