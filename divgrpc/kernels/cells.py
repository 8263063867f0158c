"""Which cells a query looks at: of a k-means partition of the points, the nearest few.

Centres live in the space of a query's first projections, which are computed anyway, whatever the
points are. They have codes as points have: a scan of those leaves some of the cells, and of these
the nearest are found by distances to the centres.
"""

import numpy as np

from divgrpc.kernels.code_scan import scan_estimates, take_least
from divgrpc.kernels.jit import kernel, part
from divgrpc.kernels.projection import quantise
from divgrpc.kernels.top_k import keep_nearest, take_in_order
from divgrpc.kernels.vector_sums import prefetch_row, row_dot

# Cells whose centres are looked at, per cell taken.
_CHOICE = 2
# Centres that are asked for before their turn.
_AHEAD = 8


@part
def rank_cells(projections, cells, wanted, product, planes, scanning, numbers, distances):
    """Write the `wanted` nearest cells into `numbers` int32, in order; returns how many.

    All of them come in whatever order. `projections` (B,) float32. `cells`: codes (W, C)
    uint64 and terms (C,) uint32 of the centres (see `scanning.estimate`), centres (C, m) float32,
    their squared lengths (C,) float32, starts (C + 1,) int64, places (n,) int32: place p holds row
    places[p], cell c the places from starts[c] to starts[c + 1], ascending in rows; and an empty
    int64. `planes`, `scanning` and `distances` (C,) float32 are scratch. Nearest is least squared
    distance, less the query's own square, or with `product` the largest product; ties to the lower
    number. Looked at are the _CHOICE * wanted cells with the least estimates.
    """
    codes, terms, centres, squares, _, _, no_ids = cells
    n_cells = centres.shape[0]
    enough, wanted = min(n_cells, _CHOICE * wanted), min(n_cells, wanted)
    if enough < n_cells:
        minima, block = scanning[2], scanning[3]
        unit, levels = quantise(projections, planes)
        scan_estimates(codes, planes, unit, levels, terms, n_cells, block, distances, minima)
        seen = take_least(distances, minima, n_cells, enough, numbers)
        keep_nearest(numbers, distances, seen, enough, no_ids)
    else:
        for c in range(n_cells):
            numbers[c] = c
    query = projections[: centres.shape[1]].reshape(1, centres.shape[1])
    for i in range(min(enough, _AHEAD)):
        prefetch_row(centres, numbers[i])
    for i in range(enough):
        if i + _AHEAD < enough:
            prefetch_row(centres, numbers[i + _AHEAD])
        distances[i] = _far(centres, numbers[i], query, squares[numbers[i]], product)
    if wanted < n_cells:
        take_in_order(numbers, distances, enough, wanted, no_ids)
    return wanted


@part
def choose_cells(
    projections, cells, n_probes, at_least, product, planes, scanning, numbers, distances
):
    """Write the `n_probes` nearest cells, and more until they hold `at_least` points.

    Returns (cells, points in them). Arrays as in `rank_cells`.
    """
    starts, n_cells = cells[4], cells[2].shape[0]
    wanted = min(n_probes, n_cells)
    while True:
        count = rank_cells(
            projections, cells, wanted, product, planes, scanning, numbers, distances
        )
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
