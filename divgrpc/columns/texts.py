"""Texts of any length are stored as two arrays: all bytes, and the end of each text.

`NAME.bytes` (m,) uint8 has the texts one after another. `NAME.ends` (n,) int64 has the offset after
each text.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from divgrpc.arrays import Array
from divgrpc.types import IntArray

# Parts of the names of the two arrays.
BYTES, ENDS = ".bytes", ".ends"


class Texts:
    """The stored texts of an index, by row. The arrays may be mapped from files."""

    def __init__(self, arrays: Mapping[str, Array], name: str) -> None:
        self._ends: IntArray = arrays[name + ENDS]
        # Slices of a memoryview are made much faster than slices of an array.
        self._bytes = memoryview(np.ascontiguousarray(arrays[name + BYTES]))  # type: ignore[arg-type]  # ndarray is a Buffer from Python 3.12 on

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> bytes:
        start = int(self._ends[row - 1]) if row else 0
        return bytes(self._bytes[start : int(self._ends[row])])

    def lengths(self, rows: IntArray) -> IntArray:
        """Return the number of bytes of the texts of `rows` (m,)."""
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        return self._ends[rows] - starts

    def take(self, rows: IntArray) -> list[bytes]:
        """Return the texts of `rows` (m,)."""
        view, ends = self._bytes, self._ends
        bounds = zip(rows.tolist(), ends[rows - 1].tolist(), ends[rows].tolist(), strict=True)
        # The text of row 0 begins at 0; ends[-1] is the end of the last text.
        return [bytes(view[start if row else 0 : end]) for row, start, end in bounds]


class TextWriter:
    """Appends texts to the two arrays of a store."""

    def __init__(self, append: Callable[[str, Array], object], name: str) -> None:
        """Write with `append`, the method of a store in which both arrays were begun."""
        self._append = append
        self._name = name
        self._end = 0

    def append(self, texts: Sequence[bytes]) -> None:
        """Append one text per row."""
        joined = b"".join(texts)
        ends = self._end + np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        self._append(self._name + BYTES, np.frombuffer(joined, np.uint8))
        self._append(self._name + ENDS, ends)
        self._end += len(joined)
