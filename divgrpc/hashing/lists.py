"""Inverted lists of sparse points, for `divgrpc.kernels.inverted_lists`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.build_rows import block_rows
from divgrpc.kernels import inverted_lists, later_lists, rounding
from divgrpc.kernels.inverted_lists import FULL_COLUMN_SHARE, LISTS_MIN_RATIO
from divgrpc.kernels.records import InvertedLists
from divgrpc.types import FloatArray, IntArray
from divgrpc.vectors import Rows, SparseRows

# Yields the first row number and the points of each block.
Blocks: TypeAlias = Callable[[], Iterable[tuple[int, SparseRows]]]
# Returns a new array of zeros, given its name, dtype and shape.
Create: TypeAlias = Callable[[str, npt.DTypeLike, tuple[int, ...]], Array]

# Names of the arrays with a number for each column, which stay as Build has made them.
STEPS: Final = "list_steps"
FULL_COLUMNS: Final = "full_columns"
WORK: Final = "list_work"
# A later value may be up to twice as great as the greatest of its column in Build before its
# rounding error grows. A column with this many values has half of this headroom, because greater
# values are rare.
_HALF_HEADROOM_VALUES: Final = 64
# Names of the arrays with a number for each point.
LENGTHS: Final = ("full_lengths", "list_errors")
# Names of the arrays of `kernels.records.LaterLists`, in its order.
LATER_LISTS: Final = (
    *("later_first", "later_heads", "later_nexts", "later_rows", "later_values"),
    "later_full_values",
)


def blocks_of(points: SparseRows) -> Blocks:
    """Return a function that yields `points` in blocks."""
    rows = block_rows(points)

    def blocks() -> Iterator[tuple[int, SparseRows]]:
        for first in range(0, len(points), rows):
            yield first, points[first : first + rows]

    return blocks


def create_lists(blocks: Blocks, rows: int, dims: int, create: Create) -> None:
    """Make the arrays of `kernels.records.InvertedLists` for `rows` points of `dims` columns.

    `blocks` is called several times.
    """
    holders, largest = _count(blocks, rows, dims)
    is_full = holders.sum(axis=0) > FULL_COLUMN_SHARE * rows
    steps = create(STEPS, np.float32, (dims,))
    steps[:] = largest / np.float32(rounding.STEPS_MAX)
    full_columns = create(FULL_COLUMNS, np.int32, (dims,))
    full_columns[:] = np.where(is_full, np.cumsum(is_full) - 1, -1)
    lengths, errors = (create(name, np.float32, (rows,)) for name in LENGTHS)
    for first, block in blocks():
        stop = first + len(block)
        measure(block, steps, full_columns, lengths[first:stop], errors[first:stop])
    _fill(blocks, rows, holders, (steps, full_columns), create)


def list_points(
    blocks: Blocks, rows: int, steps: FloatArray, full_columns: Array, create: Create
) -> None:
    """Make the lists of `rows` points; `steps` and `full_columns` (d,) are those of Build.

    `blocks` is called twice.
    """
    holders, _ = _count(blocks, rows, len(steps))
    _fill(blocks, rows, holders, (steps, full_columns), create)


def measure(
    points: SparseRows,
    steps: FloatArray,
    full_columns: Array,
    full_lengths: FloatArray,
    errors: FloatArray,
) -> None:
    """Write the numbers of `kernels.records.InvertedLists` for each of `points` (m,).

    `full_lengths` and `errors` (m,) float32 are to be written.
    """
    columns = read_only(np.asarray(steps)), read_only(np.asarray(full_columns))
    rounding.measure_rounding(*_arrays(points), columns, full_lengths, errors)


def rounding_of(
    points: SparseRows, steps: FloatArray, full_columns: Array
) -> dict[str, FloatArray]:
    """Return the arrays of `measure` for all `points`, by name."""
    arrays = {name: np.empty(len(points), np.float32) for name in LENGTHS}
    for first, block in blocks_of(points)():
        stop = first + len(block)
        measure(block, steps, full_columns, *(array[first:stop] for array in arrays.values()))
    return arrays


def roomy_steps(arrays: Mapping[str, Array]) -> FloatArray:
    """Return steps (d,) that leave room for later values, given the lists of Build."""
    steps, sizes = arrays[STEPS], _sizes(arrays["list_starts"], len(arrays[STEPS]))
    few = _HALF_HEADROOM_VALUES / (_HALF_HEADROOM_VALUES + sizes)
    headroom = np.where(arrays[FULL_COLUMNS] >= 0, 1, 1 + few).astype(np.float32)
    is_used = steps > 0
    typical = 2 * steps[is_used].mean() if is_used.any() else np.float32(0)
    return np.asarray(np.where(is_used, headroom * steps, typical), np.float32)


def work_of(starts: IntArray, full_columns: Array, points: SparseRows) -> FloatArray:
    """Return `InvertedLists.work` (d,) float32 for lists of `points`, all of which are listed."""
    sizes = _sizes(starts, len(full_columns)).astype(np.float64)
    sizes[full_columns >= 0] = FULL_COLUMN_SHARE * len(points)
    return np.asarray(sizes / max(1, len(points.indices)), np.float32)


def entries_listed(
    lists: InvertedLists, rows: int, nonzeros: int, queries: Rows, n_nearest: int
) -> IntArray:
    """Return the number of list entries that exact search reads for each query, (nq,).

    `rows` and `nonzeros` are the numbers of points and of their values, and `n_nearest` is the
    number of points to find. A column without lists counts as many entries as take the same time.
    If a query does not use the lists, by the rule of `inverted_lists.lists_pay`, its number of
    entries is 0.
    """
    finds_small_share = LISTS_MIN_RATIO * min(n_nearest, rows) <= rows
    if not isinstance(queries, SparseRows) or not len(lists.starts) or not finds_small_share:
        return np.zeros(len(queries), np.int64)
    sizes = _sizes(lists.starts, len(lists.full_columns)).astype(float)
    sizes[lists.full_columns >= 0] = FULL_COLUMN_SHARE * rows
    sums = np.concatenate(([0], np.cumsum(sizes[queries.indices])))[queries.indptr]
    work = np.diff(sums)
    return np.where(LISTS_MIN_RATIO * work < nonzeros, work, 0).astype(np.int64)


def room_for_later_lists(
    first: int, rows: int, values: int, full_columns: Array
) -> dict[str, Array]:
    """Return the empty arrays of `kernels.records.LaterLists`, by name.

    There is room for `rows` later rows with `values` values, the first of which is row `first`.
    `full_columns` (d,) are as in `InvertedLists`. Memory is used only for values that are added.
    """
    dims, size, tile_rows = len(full_columns), later_lists.BLOCK_ENTRIES, later_lists.TILE_ROWS
    blocks = 1 + values // size + min(values, dims)
    tiles = -(-rows // tile_rows)
    arrays = (
        np.array([first]),
        np.zeros(dims, np.int32),
        np.zeros(blocks, np.int32),
        np.zeros(blocks * size, np.uint32),
        np.zeros(blocks * size, np.int8),
        np.zeros((tiles * _full_count(full_columns), tile_rows), np.int8),
    )
    return dict(zip(LATER_LISTS, arrays, strict=True))


class LaterListWriter:
    """Adds points to the later lists of a layout. For one thread."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take the arrays of a layout, in which no row was written."""
        steps, full_columns = (read_only(arrays[name]) for name in (STEPS, FULL_COLUMNS))
        self._columns = steps, full_columns, _full_count(full_columns)
        first, *later = (arrays[name] for name in LATER_LISTS)
        self._first, self._later = int(first[0]), tuple(later)
        self._ends = np.zeros(len(steps) + 1, np.int64)

    def add(self, points: SparseRows, first: int) -> None:
        """Add `points`, the first of which is row `first`."""
        number = first - self._first
        later_lists.add_to_lists(*_arrays(points), number, self._columns, self._later, self._ends)


def _full_count(full_columns: Array) -> int:
    return int(full_columns.max(initial=-1)) + 1


def _sizes(starts: IntArray, dims: int) -> IntArray:
    """Return the number of values of each column (d,) in lists."""
    sizes: IntArray = np.diff(starts).reshape(-1, dims).sum(axis=0)
    return sizes


def _count(blocks: Blocks, rows: int, dims: int) -> tuple[IntArray, FloatArray]:
    """Return the number of values by run and column, and the largest value of each column."""
    runs = -(-rows // inverted_lists.RUN_POINTS)
    holders, largest = np.zeros((runs, dims), np.int64), np.zeros(dims, np.float32)
    for first, block in blocks():
        inverted_lists.count_values(*_arrays(block), first, holders, largest)
    return holders, largest


def _fill(
    blocks: Blocks,
    rows: int,
    holders: IntArray,
    columns: tuple[FloatArray, Array],
    create: Create,
) -> None:
    """Make the lists and the full columns; `columns` are the steps and the full columns."""
    steps, full_columns = (read_only(np.asarray(array)) for array in columns)
    holders[:, full_columns >= 0] = 0
    starts = create("list_starts", np.int64, (holders.size + 1,))
    starts[1:] = np.cumsum(holders)
    entries, full_count = int(starts[-1]), _full_count(full_columns)
    arrays = (
        create("list_rows", np.uint16, (entries,)),
        create("list_values", np.int8, (entries,)),
        create("full_values", np.int8, (full_count, rows)),
    )
    ends = starts[:-1].reshape(holders.shape).copy()
    for first, block in blocks():
        inverted_lists.fill_lists(*_arrays(block), first, steps, full_columns, ends, arrays)


def _arrays(points: SparseRows) -> tuple[Array, Array, Array]:
    """Return the arrays of sparse rows, read-only: kernels are compiled for one kind of arrays."""
    return read_only(points.indptr), read_only(points.indices), read_only(points.values)
