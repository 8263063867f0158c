"""Adds points to the overflow tiles of their cells (`records.Cells`)."""

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.look_ups import TILE_POINTS


@kernel
def add_places(cells, rows, first_tile, overflow, places):
    """Give each of m new points a place in an overflow tile of its cell; return the tiles in use.

    cells, rows: (m,) int32, the cell and the row of each point.
    first_tile: the number of tiles before the overflow tiles.
    overflow: heads (C,) int32, the first overflow tile of each cell or -1; nexts (O,) int32 as in
        `Cells`; counts (O,) int32, points of each tile; cells_of (O,) int32, the cell of each tile;
        cell_rows, as `Cells.rows`; used (1,) int64, the number of tiles in use.
    places: (m,) int32, the output.

    If too few tiles are left, some points get no place, and -1 is returned.
    """
    heads, nexts, counts, cells_of, cell_rows, used = overflow
    for i in range(cells.shape[0]):
        cell = cells[i]
        tile = heads[cell]
        if tile < 0 or counts[tile] == TILE_POINTS:
            if used[0] == nexts.shape[0]:
                return -1
            tile = np.int32(used[0])
            nexts[tile], cells_of[tile], counts[tile] = heads[cell], cell, 0
            heads[cell] = tile
            used[0] += 1
        place = (first_tile + tile) * TILE_POINTS + counts[tile]
        cell_rows[place], places[i] = rows[i], place
        counts[tile] += 1
    return used[0]
