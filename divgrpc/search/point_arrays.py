"""Writes the vectors of points to a store, as a generation has them."""

import numpy as np

from divgrpc.columns.writer import RowStore
from divgrpc.search.arrays import points_of
from divgrpc.vectors import Rows, SparseRows


class PointArrays:
    """The vectors of a generation that is being written: the array `vectors`, or sparse rows."""

    def __init__(self, store: RowStore, dims: int, rows: int, *, sparse: bool) -> None:
        """Create the arrays; raises `StorageFullError` if `rows` rows do not fit."""
        self._store, self._dims, self._nonzeros = store, dims, 0
        self._names = ("indptr", "indices", "values") if sparse else ("vectors",)
        if sparse:
            store.begin("indptr", np.int64, (), rows + 1)
            store.append("indptr", np.zeros(1, np.int64))
            store.begin("indices", np.int32, ())
            store.begin("values", np.float32, ())
        else:
            store.begin("vectors", np.float32, (dims,), rows)

    def append(self, block: Rows) -> None:
        """Append rows, which are all dense or all sparse."""
        if isinstance(block, SparseRows):
            self._store.append("indptr", block.indptr[1:] + self._nonzeros)
            self._store.append("indices", block.indices)
            self._store.append("values", block.values)
            self._nonzeros += len(block.values)
        else:
            self._store.append("vectors", block)

    def read(self) -> Rows:
        """Return the rows appended so far, read-only."""
        return points_of({name: self._store.read(name) for name in self._names}, self._dims)
