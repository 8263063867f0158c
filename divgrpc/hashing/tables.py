"""Hash tables of points, for `divgrpc.kernels.buckets`."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.kernels.kmeans import group
from divgrpc.kernels.projection import WORD_BITS, table_keys
from divgrpc.kernels.tiles import take_word


def create_tables(
    tiles: npt.NDArray[np.uint8],
    alive: npt.NDArray[np.bool_],
    sizes: tuple[int, int],
    create: Callable[[str, npt.DTypeLike, tuple[int, ...]], Array],
    on_table: Callable[[int], None] = lambda _: None,
) -> None:
    """Make the arrays of `kernels.records.Tables` for points with codes `tiles`.

    alive: (n,) whether each of the first n points is in the tables.
    sizes: number of tables, and number of bits of a key.
    create: returns a new array, given its name, dtype and shape.
    on_table: called after each table with the number of tables so far.
    """
    n_tables, n_bits = sizes
    rows = create("table_rows", np.int32, (n_tables, int(np.count_nonzero(alive))))
    keys, offsets, starts = [], [], [0]
    for table in range(n_tables):
        keys_of_table, offsets_of_table, rows[table] = build_table(tiles, alive, table, n_bits)
        keys.append(keys_of_table)
        offsets.append(offsets_of_table)
        starts.append(starts[-1] + len(offsets_of_table) - 1)
        on_table(table + 1)
    for name, parts in (("table_keys", keys), ("table_offsets", offsets)):
        # The parts are joined without a second copy in memory.
        np.concatenate(parts, out=create(name, parts[0].dtype, (sum(map(len, parts)),)))
    create("table_starts", np.int64, (n_tables + 1,))[:] = starts


def build_table(
    tiles: npt.NDArray[np.uint8], alive: npt.NDArray[np.bool_], table: int, n_bits: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return (keys, offsets, rows) of one hash table of points with codes `tiles`.

    `alive` (n,) says which of the first n points are in the table. The points of bucket b are
    rows[offsets[b] : offsets[b + 1]] int32, ascending; `offsets` is int32. If there are at most
    four times as many possible keys as points, there is a bucket for each key and `keys` is empty.
    Otherwise there is a bucket for each key that occurs, and `keys` uint32 are these keys,
    ascending.
    """
    numbers, buckets = np.empty(len(alive), np.int32), 1 << n_bits
    first = table * n_bits // WORD_BITS
    last = ((table + 1) * n_bits - 1) // WORD_BITS
    words = np.empty((1 + last - first, len(alive)), np.uint64)
    for w, column in enumerate(words):
        take_word(read_only(tiles), first + w, column)
    table_keys(words, table * n_bits - first * WORD_BITS, n_bits, numbers)
    # Points below 0 get no bucket.
    numbers[~alive] = -1
    keys = np.empty(0, np.uint32)
    if buckets > 4 * np.count_nonzero(alive):
        distinct, inverse = np.unique(numbers, return_inverse=True)
        absent = int(np.count_nonzero(distinct < 0))
        keys, numbers = distinct[absent:].astype(np.uint32), (inverse - absent).astype(np.int32)
        buckets = len(keys)
    starts, rows = group(numbers[np.newaxis], buckets)
    return keys, starts.astype(np.int32), rows
