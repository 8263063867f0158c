"""The values of sparse points that were written since the last merge, by column.

A merge makes inverted lists anew. Until then, the values of later points are beside them, in
chains of blocks, or in tiles of full columns (`records.LaterLists`). Other threads may search
meanwhile: a search ignores the points that it does not know, and the arrays hold zeros where
nothing was written.
"""

import numpy as np

from divgrpc.kernels.jit import kernel, part
from divgrpc.kernels.rounding import steps_of
from divgrpc.kernels.vector_sums import prefetch_run

# Number of values in a block. Most values of a long chain are then side by side in memory, and a
# column with a single value does not take much room.
BLOCK_ENTRIES = 16
# Number of points in a tile.
TILE_ROWS = 256
# Blocks are prefetched this many columns ahead, because they are scattered in memory.
_PREFETCH_COLUMNS = 8


@kernel
def add_to_lists(indptr, indices, values, first, columns, later, ends):
    """Add m sparse rows, the first of which is the later row `first`, counted from 0.

    `indptr` (m + 1,), `indices` and `values` are the sparse rows. `columns`: the steps (d,) float32
    and the full columns (d,) int32, as in `InvertedLists`, and the number of these. `later`: the
    arrays (heads, nexts, rows, values, full_values) of `LaterLists`. `ends` (d + 1,) int64 has the
    position after the last entry of each column, or 0, and at last the number of blocks in use.
    """
    (steps, full_columns, n_full), (heads, nexts, rows, list_values, full_values) = columns, later
    for row in range(indptr.shape[0] - 1):
        for i in range(indptr[row], indptr[row + 1]):
            column = indices[i]
            count, number = steps_of(values[i], steps[column]), full_columns[column]
            if number >= 0:
                tile, place = divmod(first + row, TILE_ROWS)
                full_values[tile * n_full + number, place] = count
            if number >= 0 or not count:
                continue
            place = ends[column]
            if place % BLOCK_ENTRIES == 0:
                ends[ends.shape[0] - 1] += 1
                block = ends[ends.shape[0] - 1]
                if place:
                    nexts[place // BLOCK_ENTRIES - 1] = block
                else:
                    heads[column] = block
                place = block * BLOCK_ENTRIES
            list_values[place], rows[place] = count, first + row + 1
            ends[column] = place + 1


@part
def add_later_lists(lists, columns, weights, sums):
    """Add products in columns that are not full to the `sums` (n,) int32 of later rows.

    `lists`: `InvertedLists`; `columns` and `weights` (s,) int32 are those of a query.
    """
    later, last = lists.later, columns.shape[0] - 1
    if not later.heads.shape[0]:
        return
    first, known = later.first[0], sums.shape[0] - later.first[0]
    for i in range(last + 1):
        ahead = np.int64(later.heads[columns[min(i + _PREFETCH_COLUMNS, last)]]) * BLOCK_ENTRIES
        prefetch_run(later.rows, ahead, ahead + BLOCK_ENTRIES)
        prefetch_run(later.values, ahead, ahead + BLOCK_ENTRIES)
        block = np.int64(later.heads[columns[i]])
        while block:
            block = _add_block(later, block, weights[i], first, known, sums)


@kernel
def _add_block(later, block, weight, first, known, sums):
    """Add the products of a block to `sums`; return the next block with known rows, or 0.

    `known`: number of later rows that the search knows, from row `first` on.
    """
    rows, values = later.rows, later.values
    for at in range(np.uint64(block * BLOCK_ENTRIES), np.uint64((block + 1) * BLOCK_ENTRIES)):
        number = np.int64(rows[at])
        if not 0 < number <= known:
            return np.int64(0)
        sums[np.uint64(first + number - 1)] += weight * np.int32(values[at])
    return np.int64(later.nexts[block])


@part
def first_in_lists(later, n):
    """Return the first of `n` rows that is in later lists; n if none is."""
    return min(np.int64(n), later.first[0]) if later.first.shape[0] else np.int64(n)
