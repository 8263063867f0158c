"""Inverted lists of sparse points, for `divgrpc.kernels.inverted_lists`."""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.kernels import inverted_lists
from divgrpc.kernels.inverted_lists import FULL_COLUMN_SHARE
from divgrpc.vectors import SparseRows

# Yields the first row number and the points of each block.
Blocks = Callable[[], Iterable[tuple[int, SparseRows]]]


def create_lists(
    blocks: Blocks,
    rows: int,
    dims: int,
    create: Callable[[str, npt.DTypeLike, tuple[int, ...]], Array],
) -> None:
    """Make the arrays of `kernels.records.InvertedLists` for `rows` points of `dims` columns.

    `blocks` is called twice. `create` returns a new array of zeros, given its name, dtype and
    shape.
    """
    runs = -(-rows // inverted_lists.RUN_POINTS)
    holders, largest = np.zeros((runs, dims), np.int64), np.zeros(dims, np.float32)
    for first, block in blocks():
        inverted_lists.count_values(
            block.indptr, block.indices, block.values, first, holders, largest
        )
    is_full = holders.sum(axis=0) > FULL_COLUMN_SHARE * rows
    holders[:, is_full] = 0
    starts = create("list_starts", np.int64, (runs * dims + 1,))
    starts[1:] = np.cumsum(holders)
    steps = create("list_steps", np.float32, (dims,))
    steps[:] = largest / np.float32(inverted_lists.STEPS_MAX)
    full_columns = create("full_columns", np.int32, (dims,))
    full_columns[:] = np.where(is_full, np.cumsum(is_full) - 1, -1)
    entries, full_count = int(starts[-1]), int(is_full.sum())
    arrays = (
        create("list_rows", np.uint16, (entries,)),
        create("list_values", np.int8, (entries,)),
        create("full_values", np.int8, (full_count, rows)),
        create("full_lengths", np.float32, (rows,)),
        create("list_errors", np.float32, (rows,)),
    )
    ends = starts[:-1].reshape(runs, dims).copy()
    for first, block in blocks():
        inverted_lists.fill_lists(
            block.indptr, block.indices, block.values, first, steps, full_columns, ends, arrays
        )
