"""Shared memory in which a process counts and from which the supervisor reads.

Theory of operation. The supervisor creates a memory file for each child and passes it with the
first message. The child maps the file and adds to numbers in it; this is an addition to an array
and takes a tenth of a microsecond. The supervisor maps the same file and reads it when it is
asked for metrics. So a scrape costs the child nothing, a busy child delays no scrape, and the
numbers of a child that was killed are complete.

The file has a number of entries, then the entries, then cells of 8 bytes. An entry has the number
of its first cell and its key: the name of a metric and the values of its labels. The child writes
an entry before it counts it, so the supervisor never sees half an entry. Pages of the file that
nobody has written to use no memory.
"""

import mmap
import os
import struct
from bisect import bisect_left
from typing import Final

from divgrpc_server.monitoring.definitions import BUCKET_SECONDS, BY_NAME

Key = tuple[str, ...]
# The values of one series: 1 for counters and gauges; sum and count for summaries; counts of
# buckets and then the sum for histograms.
Values = list[float]

_HEAD: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<IH")
_ENTRY_BYTES: Final = 160
_ENTRIES_MAX: Final = 2048
_CELLS_MAX: Final = 8192
_CELLS_START: Final = 8 + _ENTRIES_MAX * _ENTRY_BYTES
_BYTES: Final = _CELLS_START + 8 * _CELLS_MAX
_SEPARATOR: Final = "\0"
_BUCKETS: Final = len(BUCKET_SECONDS) + 1
_SUM: Final = _BUCKETS
# One process counts at most this number of indexes by name, and the others as `OTHER`.
INDEXES_MAX: Final = 100
OTHER: Final = "other"


def _width(name: str) -> int:
    """Return how many cells a series of a metric has."""
    return {"histogram": _BUCKETS + 1, "summary": 2}.get(BY_NAME[name].kind, 1)


def create() -> int:
    """Return the descriptor of a new, empty memory file."""
    descriptor = os.memfd_create("divgrpc-metrics", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _BYTES)
    return descriptor


class Page:
    """The series of one process. A series must be changed by one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        """Map a memory file of `create`; the caller may close the descriptor."""
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._cells = memoryview(self._memory)[_CELLS_START:].cast("d")
        self._first_cells: dict[Key, int] = {}
        self._indexes: set[str] = set()
        # Cells from 0 on take values that have no place, and are not read.
        self._next_cell = _BUCKETS + 1

    def cell(self, *key: str) -> int:
        """Return the first cell of a series: the name of the metric, the values of its labels.

        If the page is full, the values of the series are lost.
        """
        first = self._first_cells.get(key)
        if first is None:
            first = self._first_cells[key] = self._append(key)
        return first

    def index_label(self, name: str) -> str:
        """Return the name of an index, or `OTHER` if too many indexes are counted already."""
        if name not in self._indexes:
            if len(self._indexes) >= INDEXES_MAX:
                return OTHER
            self._indexes.add(name)
        return name

    def add(self, cell: int, amount: float = 1.0) -> None:
        """Add to a counter or a gauge."""
        self._cells[cell] += amount

    def set(self, cell: int, value: float) -> None:
        """Set a gauge."""
        self._cells[cell] = value

    def observe(self, cell: int, seconds: float) -> None:
        """Add a value to a histogram."""
        cells = self._cells
        cells[cell + bisect_left(BUCKET_SECONDS, seconds)] += 1.0
        cells[cell + _SUM] += seconds

    def summarise(self, cell: int, value: float) -> None:
        """Add a value to a summary."""
        self._cells[cell] += value
        self._cells[cell + 1] += 1.0

    def read(self) -> dict[Key, Values]:
        """Return all series with their values."""
        (count,) = _HEAD.unpack_from(self._memory)
        series: dict[Key, Values] = {}
        for number in range(count):
            at = _HEAD.size + number * _ENTRY_BYTES
            first, length = _ENTRY.unpack_from(self._memory, at)
            at += _ENTRY.size
            key = tuple(self._memory[at : at + length].decode().split(_SEPARATOR))
            series[key] = list(self._cells[first : first + _width(key[0])])
        return series

    def close(self) -> None:
        """Release the memory; the page must not be used again."""
        self._cells.release()
        self._memory.close()

    def _append(self, key: Key) -> int:
        name = _SEPARATOR.join(key).encode()
        first, width = self._next_cell, _width(key[0])
        (count,) = _HEAD.unpack_from(self._memory)
        is_long = len(name) > _ENTRY_BYTES - _ENTRY.size
        if count >= _ENTRIES_MAX or first + width > _CELLS_MAX or is_long:
            return 0
        at = _HEAD.size + count * _ENTRY_BYTES
        _ENTRY.pack_into(self._memory, at, first, len(name))
        at += _ENTRY.size
        self._memory[at : at + len(name)] = name
        self._next_cell += width
        # The count last, so that readers see whole entries.
        _HEAD.pack_into(self._memory, 0, count + 1)
        return first


def accumulate(totals: dict[Key, Values], series: dict[Key, Values]) -> None:
    """Add the values of `series` to `totals`."""
    for key, values in series.items():
        if (sums := totals.get(key)) is None:
            totals[key] = list(values)
        else:
            totals[key] = [a + b for a, b in zip(sums, values, strict=True)]


def lasting(series: dict[Key, Values]) -> dict[Key, Values]:
    """Return the series that outlive their process: all but gauges."""
    return {key: values for key, values in series.items() if BY_NAME[key[0]].kind != "gauge"}
