"""Search through cells: a two-level k-means partition of the points.

Cells live in the space of a query's first projections, which are computed anyway, whatever the
points are. Each belongs to one of some coarse cells: a query looks at the coarse ones, then at the
cells of the nearest of those, as many as give it choice enough, and takes the nearest cells whole.
"""

import numpy as np

from divgrpc.kernels.compiling import kernel, part
from divgrpc.kernels.lanes import row_dot
from divgrpc.kernels.scoring import sort_nearest

# Cells looked at per cell taken, at least, and as a share of all.
_CHOICE = 4
_SHARE = 8


@part
def rank_cells(projections, cells, wanted, product, numbers, distances):
    """Write the `wanted` nearest cells, in order, into `numbers` int32; returns how many.

    `projections` (B,) float32. `cells`: coarse (T, m) float32, coarse_starts (T + 1,) int64,
    centres (C, m) float32, squares (T + C,) float32 (of coarse, then of centres), starts (C + 1,)
    int64, places (n,) int32: place p holds row places[p], cell c the places from starts[c] to
    starts[c + 1], ascending in rows; and an empty int64. `distances` float32 is scratch; both have
    T + C places. Nearest is least squared distance, or with `product` the largest product; ties to
    the lower number.
    """
    coarse, coarse_starts, centres, squares, _, _, no_ids = cells
    n_coarse, n_cells = coarse.shape[0], centres.shape[0]
    query = projections[: coarse.shape[1]].reshape(1, coarse.shape[1])
    tops, top_distances = numbers[n_cells:], distances[n_cells:]
    for t in range(n_coarse):
        tops[t] = t
        top_distances[t] = _far(coarse, t, query, squares[t], product)
    sort_nearest(tops, top_distances, 0, n_coarse, n_coarse, no_ids)
    enough = min(n_cells, max(_CHOICE * wanted, n_cells // _SHARE))
    seen = 0
    for i in range(n_coarse):
        if seen >= enough:
            break
        for c in range(coarse_starts[tops[i]], coarse_starts[tops[i] + 1]):
            numbers[seen] = c
            distances[seen] = _far(centres, c, query, squares[n_coarse + c], product)
            seen += 1
    wanted = min(wanted, seen)
    sort_nearest(numbers, distances, 0, seen, wanted, no_ids)
    return wanted


@part
def choose_cells(projections, cells, n_probes, at_least, product, numbers, distances):
    """Write the `n_probes` nearest cells, and more until they hold `at_least` points.

    Returns (cells, points in them). Arrays as in `rank_cells`.
    """
    starts, n_cells = cells[4], cells[2].shape[0]
    wanted = min(n_probes, n_cells)
    while True:
        count = rank_cells(projections, cells, wanted, product, numbers, distances)
        points = 0
        for i in range(count):
            points += starts[numbers[i] + 1] - starts[numbers[i]]
        if points >= at_least or count == n_cells:
            return count, points
        wanted = min(2 * wanted, n_cells)


@kernel
def _far(centres, c, query, square, product):
    dot = row_dot(centres, c, query, 0)
    return -dot if product else square - np.float32(2) * dot
