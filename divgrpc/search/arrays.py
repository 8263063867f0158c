"""The arrays of a generation and of queries in the order in which kernels take them."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from divgrpc.kernels import registers
from divgrpc.storage.arrays import Array, read_only
from divgrpc.vectors import Rows, SparseRows

# What stands for the arrays of sparse queries where they are dense, and for gaps nobody asks for.
_NOT_SPARSE: Final = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


def readable(encoded: dict[str, Array], points: Rows) -> dict[str, Array]:
    """Return what a searcher reads; without ids, so that it gives the rows that it finds."""
    arrays = dict(encoded)
    if isinstance(points, SparseRows):
        arrays |= {"indptr": points.indptr, "indices": points.indices, "values": points.values}
    else:
        arrays["vectors"] = points
    return {name: read_only(array) for name, array in arrays.items()}


def lay_out(arrays: Mapping[str, Array], dims: int) -> dict[str, tuple[Array, ...]]:
    """Return the arrays by group, empty ones for those not there: kernels know no absence."""
    return {
        group: tuple(
            arrays[slot.name]
            if slot.name in arrays
            else frozen(
                np.empty([dims if size == "d" else int(size) for size in slot.absent], slot.dtype)
            )
            for slot in slots
        )
        for group, slots in registers.INDEX.items()
    }


def as_queries(queries: Rows) -> tuple[Any, ...]:
    """Return rows as kernels take them, dense or sparse, what is not used empty."""
    if isinstance(queries, SparseRows):
        empty = np.empty((0, queries.dims), np.float32)
        return (empty, queries.indptr, queries.indices, queries.values)
    return (queries, *_NOT_SPARSE)


def frozen(array: Array) -> Array:
    """Return the array after nobody can write to it any more."""
    array.setflags(write=False)
    return array
