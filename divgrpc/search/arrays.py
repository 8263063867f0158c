"""The arrays of a generation and of queries as kernels take them."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.kernels.registers import Slot, fields_of
from divgrpc.vectors import Rows, SparseRows

RecordT = TypeVar("RecordT", bound=tuple[Any, ...])

# The arrays of sparse queries if queries are dense.
_NOT_SPARSE: Final = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


def with_points(encoded: dict[str, Array], points: Rows) -> dict[str, Array]:
    """Return encoded arrays and those of the points, read-only; without ids results are rows."""
    arrays = dict(encoded)
    if isinstance(points, SparseRows):
        arrays |= {"indptr": points.indptr, "indices": points.indices, "values": points.values}
    else:
        arrays["vectors"] = points
    return {name: read_only(array) for name, array in arrays.items()}


def record_of(record: type[RecordT], arrays: Mapping[str, Array], dims: int) -> RecordT:
    """Return a record of stored arrays, with empty ones for those that an index does not have."""
    values: list[Any] = []
    for field in fields_of(record).values():
        if not isinstance(field, Slot):
            values.append(record_of(field, arrays, dims))
        elif field.name in arrays:
            values.append(arrays[field.name])
        else:
            shape = [dims if size == "d" else int(size) for size in field.shape]
            values.append(read_only(np.empty(shape, field.dtype)))
    return record(*values)


def pack_queries(queries: Rows) -> tuple[Any, ...]:
    """Return rows as a plain tuple of the fields of `Queries`, those of the other kind empty."""
    if isinstance(queries, SparseRows):
        empty = np.empty((0, queries.dims), np.float32)
        return (empty, queries.indptr, queries.indices, queries.values)
    return (queries, *_NOT_SPARSE)
