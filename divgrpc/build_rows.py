"""The rows of a build: one array, or several arrays if they are divided among shards.

Rows that are divided are read like those of one array. Reading copies them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import release, spans
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows, concatenate_rows

_TAKE_ROWS: Final = 256
_BLOCK_ROWS_MAX: Final = 8_192
_BLOCK_NUMBERS_MAX: Final = 1 << 23

# A slice without a step, or the numbers of rows, in any order.
_Selection: TypeAlias = slice | npt.NDArray[np.integer[Any]]


class _Numbers:
    """The numbers of the rows of each part; all together are 0 to n - 1."""

    def __init__(self, numbers: Sequence[IntArray]) -> None:
        """Take the numbers (m,) of each part, which ascend."""
        self._numbers = numbers
        self.count = sum(map(len, numbers))

    def count_of(self, rows: _Selection) -> int:
        """Return the number of rows of a selection."""
        return len(range(*rows.indices(self.count))) if isinstance(rows, slice) else len(rows)

    def bounds_of(self, rows: IntArray) -> IntArray:
        """Return how many rows of each part (len(rows), parts) come before each of `rows`."""
        return np.stack([np.searchsorted(numbers, rows) for numbers in self._numbers], axis=1)

    def find(self, rows: _Selection) -> Iterator[tuple[slice | IntArray, IntArray]]:
        """Yield for each part which of its rows are selected, and their places in the selection."""
        for numbers in self._numbers:
            if isinstance(rows, slice):
                start, stop, _ = rows.indices(self.count)
                first, last = np.searchsorted(numbers, (start, max(start, stop))).tolist()
                yield slice(first, last), numbers[first:last] - start
            else:
                here = np.searchsorted(numbers, rows)
                is_here = here < len(numbers)
                is_here[is_here] = numbers[here[is_here]] == rows[is_here]
                yield here[is_here], np.flatnonzero(is_here)


class DividedRows:
    """Dense rows."""

    def __init__(self, parts: Sequence[FloatArray], numbers: Sequence[IntArray]) -> None:
        """Take the rows (m, d) of each part, and their numbers (m,), which ascend."""
        self._parts, self._numbers = parts, _Numbers(numbers)
        self.shape = self._numbers.count, int(parts[0].shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: _Selection) -> FloatArray:
        """Return the selected rows."""
        copy = np.empty((self._numbers.count_of(rows), self.shape[1]), np.float32)
        for part, (here, places) in zip(self._parts, self._numbers.find(rows), strict=True):
            copy[places] = part[here]
        return copy

    def bounds_of(self, rows: IntArray) -> IntArray:
        """See `_Numbers`."""
        return self._numbers.bounds_of(rows)

    def release(self) -> None:
        """Drop the pages of mapped rows from memory, but not those of their numbers."""
        for part in self._parts:
            release(part)


class DividedSparseRows:
    """Sparse rows of `dims` columns."""

    def __init__(self, parts: Sequence[SparseRows], numbers: Sequence[IntArray]) -> None:
        """Take the rows of each part, and their numbers (m,), which ascend."""
        self._parts, self._numbers = parts, _Numbers(numbers)
        self.dims = parts[0].dims
        self.shape = self._numbers.count, self.dims

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nonzeros(self) -> int:
        """The number of stored values."""
        return sum(len(part.indices) for part in self._parts)

    @property
    def widest_row(self) -> int:
        """The maximum number of stored values of a row."""
        return max(int(np.diff(part.indptr).max(initial=0)) for part in self._parts)

    def __getitem__(self, rows: _Selection) -> SparseRows:
        """Return the selected rows."""
        pieces = [
            (part[here], places)
            for part, (here, places) in zip(self._parts, self._numbers.find(rows), strict=True)
        ]
        sizes = np.zeros(self._numbers.count_of(rows), np.int64)
        for piece, places in pieces:
            sizes[places] = np.diff(piece.indptr)
        indptr = np.concatenate(([0], np.cumsum(sizes)))
        indices = np.empty(indptr[-1], np.int32)
        values = np.empty(indptr[-1], np.float32)
        for piece, places in pieces:
            targets = spans(indptr[places], sizes[places])
            indices[targets], values[targets] = piece.indices, piece.values
        return replace(self._parts[0], indptr=indptr, indices=indices, values=values)

    def bounds_of(self, rows: IntArray) -> IntArray:
        """See `_Numbers`."""
        return self._numbers.bounds_of(rows)

    def release(self) -> None:
        """Drop the pages of mapped rows from memory, but not those of their numbers."""
        for part in self._parts:
            for array in (part.indptr, part.indices, part.values):
                release(array)


# All rows of a build, and those of them that are sparse.
BuildRows: TypeAlias = Rows | DividedRows | DividedSparseRows
SparseBuildRows: TypeAlias = SparseRows | DividedSparseRows


def take(rows: BuildRows, numbers: IntArray) -> Rows:
    """Copy the rows with the ascending `numbers`, in chunks that keep few pages in memory."""
    starts = range(0, max(1, len(numbers)), _TAKE_ROWS)
    chunks = [numbers[start : start + _TAKE_ROWS] for start in starts]
    if isinstance(rows, SparseBuildRows):
        parts: list[Rows] = []
        for chunk in chunks:
            parts.append(rows[chunk])
            release_rows(rows)
        return concatenate_rows(parts)
    copy = np.empty((len(numbers), rows.shape[1]), np.float32)
    for start, chunk in zip(starts, chunks, strict=True):
        copy[start : start + len(chunk)] = rows[chunk]
        release_rows(rows)
    return copy


def block_rows(rows: BuildRows) -> int:
    """Return how many of `rows` fit in a block of at most 8,192 rows and about 2**23 values."""
    return max(1, min(_BLOCK_ROWS_MAX, _BLOCK_NUMBERS_MAX // mean_width(rows)))


def mean_width(rows: BuildRows) -> int:
    """Return the mean number of stored values per row, rounded up, at least 1."""
    if isinstance(rows, SparseBuildRows):
        return max(1, -(-count_nonzeros(rows) // max(1, len(rows))))
    return int(rows.shape[1])


def count_nonzeros(rows: SparseBuildRows) -> int:
    """Return the number of stored values."""
    return len(rows.indices) if isinstance(rows, SparseRows) else rows.nonzeros


def release_rows(rows: BuildRows) -> None:
    """Drop the pages of memory-mapped rows from memory; the next use reads them again."""
    if isinstance(rows, SparseRows):
        for array in (rows.indptr, rows.indices, rows.values):
            release(array)
    elif isinstance(rows, DividedRows | DividedSparseRows):
        rows.release()
    else:
        release(rows)
