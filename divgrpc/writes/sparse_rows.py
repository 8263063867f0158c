"""What the state of a collection knows of sparse rows, beside their columns and values."""

from collections.abc import Mapping

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.columns.filters import Flags
from divgrpc.hashing.lists import (
    FULL_COLUMNS,
    LENGTHS,
    STEPS,
    LaterListWriter,
    measure,
)
from divgrpc.kernels.normalise import squares_sparse
from divgrpc.storage.manifest import Manifest
from divgrpc.types import IntArray
from divgrpc.vectors import SparseRows


class SparseState:
    """The arrays of a layout that have a number for each sparse row.

    live_values: number of values of the rows that have a point.
    widest: the greatest number of values of a row, deleted ones included.
    """

    def __init__(self, manifest: Manifest, arrays: Mapping[str, Array]) -> None:
        """Take the arrays of a layout, to which `add` writes."""
        self.widest = manifest.widest_row
        self.live_values = 0
        self._indptr: IntArray = arrays["indptr"]
        self._squares = arrays["squares"]
        self._arrays = arrays
        self._later = LaterListWriter(arrays) if STEPS in arrays else None

    def begin(self, alive: Flags) -> None:
        """Count the values of the rows that are merged; `alive` (rows,) says which have a point."""
        widths = np.diff(self._indptr[: len(alive) + 1])
        self.live_values = int(widths[alive].sum())
        self.widest = max(self.widest, int(widths.max(initial=0)))

    def add(self, vectors: SparseRows, first: int, start: int) -> None:
        """Add rows, the first of which is row `first` and begins at value `start`."""
        stop = first + len(vectors)
        self._indptr[first + 1 : stop + 1] = start + vectors.indptr[1:]
        squares_sparse(
            read_only(vectors.indptr), read_only(vectors.values), self._squares[first:stop]
        )
        if self._later is not None:
            lengths = [self._arrays[name][first:stop] for name in LENGTHS]
            columns = self._arrays[STEPS], self._arrays[FULL_COLUMNS]
            measure(vectors, *columns, *lengths)
            self._later.add(vectors, first)
        self.live_values += len(vectors.indices)
        self.widest = max(self.widest, int(np.diff(vectors.indptr).max(initial=0)))

    def remove(self, rows: IntArray) -> None:
        """Remove the points of `rows`."""
        self.live_values -= int((self._indptr[rows + 1] - self._indptr[rows]).sum())
