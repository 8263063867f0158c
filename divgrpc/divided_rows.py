"""Dense rows that are divided among several arrays, as those of a build on shards are."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import release
from divgrpc.types import FloatArray, IntArray


class DividedRows:
    """Rows 0 to n - 1, which are read like those of one array; reading copies them."""

    def __init__(self, parts: Sequence[FloatArray], numbers: Sequence[IntArray]) -> None:
        """Take the rows (m, d) of each part, and their numbers (m,), which ascend."""
        self._parts, self._numbers = parts, numbers
        self.shape = sum(map(len, parts)), int(parts[0].shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | npt.NDArray[np.integer]) -> FloatArray:
        """Return the rows of a slice without a step, or those with some numbers, in any order."""
        if isinstance(rows, slice):
            return self._read(*rows.indices(len(self))[:2])
        copy = np.empty((len(rows), self.shape[1]), np.float32)
        for part, numbers in zip(self._parts, self._numbers, strict=True):
            places = np.searchsorted(numbers, rows)
            is_here = places < len(numbers)
            is_here[is_here] = numbers[places[is_here]] == rows[is_here]
            copy[is_here] = part[places[is_here]]
        return copy

    def _read(self, start: int, stop: int) -> FloatArray:
        copy = np.empty((max(0, stop - start), self.shape[1]), np.float32)
        for part, numbers in zip(self._parts, self._numbers, strict=True):
            first, last = np.searchsorted(numbers, (start, stop)).tolist()
            copy[numbers[first:last] - start] = part[first:last]
        return copy

    def release(self) -> None:
        """Drop the pages of mapped rows from memory, but not those of their numbers."""
        for part in self._parts:
            release(part)
