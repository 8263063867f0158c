"""Points that a router holds while it answers a query by several searches."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.search.searcher import Searcher
from divgrpc.types import IntArray
from divgrpc.vectors import SparseRows

# Number of points and of sparse values for which there is room at first.
_ROOM_POINTS: Final = 1 << 10
_ROOM_VALUES: Final = 1 << 16
# The most that is kept for further calls.
_KEPT_POINTS: Final = 4 * _ROOM_POINTS
_KEPT_VALUES: Final = 4 * _ROOM_VALUES
# Arrays with an entry for each sparse value.
_OF_VALUES: Final = ("indices", "values")


class HeldPoints:
    """Points in the order in which they came, each of them once; a row is a number in this order.

    The columns of points have the names of `FETCH_REPLY`.
    """

    def __init__(self, dims: int, make_searcher: Callable[[dict[str, Array]], Searcher]) -> None:
        """Hold nothing yet.

        make_searcher: returns a searcher of the points in arrays, which are not full.
        """
        self._dims, self._make_searcher = dims, make_searcher
        self._rows: dict[int, int] = {}
        self._make_room((0, 0))

    def clear(self) -> None:
        """Hold nothing; small arrays, and the searcher of them, serve the next points too."""
        self._rows = {}
        if self._room[0] > _KEPT_POINTS or self._room[1] > _KEPT_VALUES:
            self._make_room((0, 0))

    def _make_room(self, room: tuple[int, int]) -> None:
        self._room = room
        self._arrays: dict[str, Array] = {}
        self._searcher: Searcher | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def searcher(self) -> Searcher:
        """A searcher of the points, which serves selections from them."""
        if self._searcher is None:
            arrays = {name: read_only(array) for name, array in self._arrays.items()}
            self._searcher = self._make_searcher(arrays)
        return self._searcher

    def add(self, ids: IntArray, points: Mapping[str, Array]) -> npt.NDArray[np.int32]:
        """Hold points, and return their rows (m,).

        ids: (m,) keys of different points, whose columns are `points`.
        """
        first = len(self._rows)
        rows = np.array([self._rows.get(key, -1) for key in ids.tolist()], np.int32)
        places = np.flatnonzero(rows < 0)
        if not len(places):
            return rows
        columns = {"ids": ids[places], **points_at(points, places, self._dims)}
        rows[places] = np.arange(first, first + len(places))
        self._fit(first, columns)
        values = self._values_before(first)
        for name, column in columns.items():
            start = values if name in _OF_VALUES else first
            # Where the values of a row begin depends on the rows before.
            self._arrays[name][start : start + len(column)] = (
                column + values if name == "indptr" else column
            )
        self._rows.update(zip(ids[places].tolist(), rows[places].tolist(), strict=True))
        return rows

    def _values_before(self, row: int) -> int:
        """Return the number of sparse values of the first rows."""
        return int(self._arrays["indptr"][row]) if "indptr" in self._arrays else 0

    def _fit(self, rows: int, columns: Mapping[str, Array]) -> None:
        """Make room for further columns after the first rows."""
        values = self._values_before(rows)
        needed = rows + len(columns["ids"]), values + len(columns.get("values", ()))
        if needed[0] <= self._room[0] and needed[1] <= self._room[1]:
            return
        before = self._arrays
        self._make_room((max(2 * needed[0], _ROOM_POINTS), max(2 * needed[1], _ROOM_VALUES)))
        for name, column in columns.items():
            size = self._room[name in _OF_VALUES] + (name == "indptr")
            array = self._arrays[name] = np.zeros((size, *column.shape[1:]), column.dtype)
            if name in before:
                count = values if name in _OF_VALUES else rows + (name == "indptr")
                array[:count] = before[name][:count]


def points_at(points: Mapping[str, Array], places: IntArray, dims: int) -> dict[str, Array]:
    """Return the columns of the points at some places, without empty columns."""
    columns: dict[str, Array] = {}
    if len(points.get("indptr", ())):
        rows = SparseRows(points["indptr"], points["indices"], points["values"], dims)[places]
        columns |= {"indptr": rows.indptr, "indices": rows.indices, "values": rows.values}
    for name in ("vectors", "squares", "inverse_lengths"):
        if len(points.get(name, ())):
            columns[name] = points[name][places]
    return columns
