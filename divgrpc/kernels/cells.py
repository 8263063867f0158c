"""Searches a k-means partition: finds the cells nearest to a query, then the points of these cells.

The centres of the cells are vectors in the space of a query's first margins. These margins are
needed for the query's code in any case. A scan of the codes of the centres finds candidate cells.
The nearest candidate cells are then found by the exact distances of their centres from the query.

The number of cells that a query reads depends on their distances. A query near the border of
several cells has neighbours in more of them than a query near a centre. So `Cells.reaches` limits
how much farther than the nearest cell a cell may be. For n probes, this is the mean difference of
the distances of a point from its n-th and its nearest cell. Queries far from all points reach
farther.
"""

import math

import numpy as np

from divgrpc.kernels.code_scan import (
    BLOCK_POINTS,
    block_distances,
    estimate,
    keep_least,
    levels_of,
    replace_others,
    scan_codes,
    score_tiles,
    take_least,
    update_minima,
)
from divgrpc.kernels.jit import kernel, part
from divgrpc.kernels.look_ups import TILE_POINTS
from divgrpc.kernels.records import SCAN_HAMMING, TABLES
from divgrpc.kernels.top_k import keep_nearest, take_in_order
from divgrpc.kernels.vector_sums import prefetch_row, prefetch_run, row_dot

# To find n cells, the exact distances of RANKED_CELLS_RATIO * n cells are computed.
RANKED_CELLS_RATIO = 2
# With `Cells.reaches`, a query with n probes reads n / FEWER_CELLS_RATIO to MORE_CELLS_RATIO * n
# cells. To find the last of these cells, one and a half times as many exact distances suffice.
FEWER_CELLS_RATIO = 4
MORE_CELLS_RATIO = 2
# A centre is prefetched when the distance of the centre this many places earlier is computed.
_PREFETCH_CENTRES = 8
# The first overflow tile of a cell is prefetched when the cell this many places before it is
# searched.
_PREFETCH_TILES = 4


@part
def rank_cells(code, cells, counts, n_cells, n_ranked, product, scan, scratch):
    """Write the `n_cells` nearest cells into `scratch.numbers`, nearest first.

    `code`: `QueryCode`; `cells`: `Cells`; `scan`: `ScanScratch`; `scratch`: `CellScratch`. If
    `product` is set, a distance is the negated dot product. Otherwise it is the squared Euclidean
    distance less the squared length of the query. Ties go to the lower cell number. If a query has
    a filter, `counts` (C,) are `Passing.cells`, and cells without a point that passes are left out.
    Exact distances are computed only for the `n_ranked` cells of smallest estimated distance; there
    are n_cells to C of them, or as many as are not left out. If `n_cells` is 0, `n_ranked` must be
    their number, and all are written by number.
    """
    centres, numbers, distances = cells.centres, scratch.numbers, scratch.distances
    total = centres.shape[0]
    if n_ranked < total and not (counts.shape[0] and n_cells == 0):
        levels = levels_of(code.margins, False, False, cells.codes, code.tables)
        scan_codes(cells.codes, cells.terms, levels, total, distances, scan.minima)
        if counts.shape[0]:
            drop_empty(counts, distances, scan.minima)
        count = take_least(distances, scan.minima, total, n_ranked, numbers)
        keep_nearest(numbers, distances, count, n_ranked, cells.no_ids)
    else:
        n_written = 0
        for c in range(total):
            numbers[n_written] = c
            n_written += counts.shape[0] == 0 or counts[c] > 0
    query = code.margins[: centres.shape[1]].reshape(1, centres.shape[1])
    for i in range(min(n_ranked, _PREFETCH_CENTRES)):
        prefetch_row(centres, numbers[i])
    for i in range(n_ranked):
        if i + _PREFETCH_CENTRES < n_ranked:
            prefetch_row(centres, numbers[i + _PREFETCH_CENTRES])
        dot = row_dot(centres, numbers[i], query, 0)
        distances[i] = -dot if product else cells.squares[numbers[i]] - np.float32(2) * dot
    if n_cells:
        take_in_order(numbers, distances, n_ranked, n_cells, cells.no_ids)


@part
def take_cells(code, cells, counts, n_probes, product, scan, scratch):
    """Write the cells that a query with `n_probes` probes reads; return their number.

    Without `Cells.reaches`, these are the `n_probes` nearest cells. The nearest cell is written
    first; but if a query reads all cells, they are written by number. The arguments are as for
    `rank_cells`.
    """
    total, count = count_cells(cells, counts), n_probes
    if n_probes < total and not cells.reaches.shape[0]:
        n_ranked = min(total, RANKED_CELLS_RATIO * n_probes)
        rank_cells(code, cells, counts, n_probes, n_ranked, product, scan, scratch)
    elif n_probes < total:
        most, distances = min(total, MORE_CELLS_RATIO * n_probes), scratch.distances
        n_ranked = min(total, 3 * most // 2)
        rank_cells(code, cells, counts, most, n_ranked, product, scan, scratch)
        limit = distances[0] + cells.reaches[n_probes - 1] * _stretch(code, cells, distances[0])
        count = (n_probes + FEWER_CELLS_RATIO - 1) // FEWER_CELLS_RATIO
        while count < most and distances[count] <= limit:
            count += 1
    if count >= total:
        # A scan of all cells expects the distances in the order of their numbers.
        rank_cells(code, cells, counts, 0, total, product, scan, scratch)
    return min(count, total)


@kernel
def count_cells(cells, counts):
    """Return the number of cells or, if a query has a filter, of those with a point that passes."""
    if not counts.shape[0]:
        return cells.centres.shape[0]
    n_cells = 0
    for c in range(counts.shape[0]):
        n_cells += counts[c] > 0
    return n_cells


@part
def _stretch(code, cells, nearest):
    """Return the factor, 1 or more, by which a query far from all cells reaches farther.

    `nearest` is the distance of the nearest cell less the squared length of the query. Seen from
    afar, the squared distances of two cells differ in proportion to the distance of the query. The
    query is far if its squared distance from the nearest cell is greater than `reaches[C - 1]`, the
    difference that points have between the nearest and the farthest cell.
    """
    width = cells.centres.shape[1]
    query = code.margins[:width].reshape(1, width)
    square, farthest = nearest + row_dot(query, 0, query, 0), cells.reaches[-1]
    return np.float32(math.sqrt(square / farthest)) if square > farthest > 0 else np.float32(1)


@part
def choose_cells(code, cells, counts, n_probes, min_points, product, scan, scratch):
    """Write the cells that a query reads: more cells if they hold fewer than `min_points` points.

    The cells are written into `scratch.numbers`. Returns the number of cells and the number of
    points in them. If a query has a filter, only points that pass count. The other arguments are as
    for `take_cells`.
    """
    starts, numbers, total = cells.starts, scratch.numbers, count_cells(cells, counts)
    n_cells = min(n_probes, total)
    while True:
        count = take_cells(code, cells, counts, n_cells, product, scan, scratch)
        points = 0
        for i in range(count):
            cell = numbers[i]
            points += counts[cell] if counts.shape[0] else starts[cell + 1] - starts[cell]
        if points >= min_points or count == total:
            return count, points
        n_cells = min(2 * n_cells, total)


@kernel
def find_in_cells(hashing, cells, plan, ids, passing, candidates, code, scan, cell_scratch):
    """Write the points of the nearest cells into `candidates`, at most `plan.hash_limit`.

    A limit of 0 means no limit. If the cells hold more points than the limit, the points whose
    codes are nearest to the query are written. Only points in `passing` are written, if it has any.
    A scan reads all cells. If `plan.search` is SCAN_HAMMING, the scan uses only the signs of the
    query's margins. Returns three numbers. The first is the number of points written. The second is
    the number of cells probed, or 0 for a scan. The third is 0 if `candidates` is large enough.
    Otherwise no points are written, and the third number is the number of points that `candidates`
    must be able to hold. All arguments except `ids` are records.
    """
    places, hash_limit = cells.rows, plan.hash_limit
    has_flags = passing.flags.shape[0] > 0
    n_probes = plan.n_probes if plan.search == TABLES else cells.centres.shape[0]
    n_cells, total = choose_cells(
        code, cells, passing.cells, n_probes, plan.min_points, plan.product, scan, cell_scratch
    )
    probes = n_cells if plan.search == TABLES else 0
    by_code = 0 < hash_limit < total
    # `keep_least` writes one entry beyond the points that pass a filter.
    room_needed = min(total + has_flags, places.shape[0])
    room = min(room_needed, 2 * hash_limit + BLOCK_POINTS) if by_code else room_needed
    if room > candidates.rows.shape[0]:
        return 0, probes, room
    if not by_code:
        count = take_all(hashing, cells, passing, cell_scratch.numbers, n_cells, candidates.rows)
        return count, probes, 0
    signs = plan.search == SCAN_HAMMING
    count = take_by_code(
        hashing, cells, signs, hash_limit, ids, passing, candidates, code, scan, cell_scratch,
        n_cells,
    )  # fmt: skip
    return count, probes, 0


@kernel
def take_by_code(
    hashing, cells, signs, hash_limit, ids, passing, candidates, code, scan, cell_scratch, n_cells
):
    """Write the `hash_limit` points whose codes are nearest, of the cells that were chosen.

    The cells are the first `n_cells` of `cell_scratch`; all cells must be in the order of their
    numbers. If `signs` is set, only the signs of the query's margins are used. Returns the number
    of points, whose estimated distances are in `candidates` too. The other arguments are as for
    `find_in_cells`.
    """
    rows, estimates = candidates.rows, candidates.distances
    starts, places = cells.starts, cells.rows
    flags, has_flags = passing.flags, passing.flags.shape[0] > 0
    first_flag = places.shape[0] - flags.shape[0]
    levels = levels_of(code.margins, signs, False, hashing.codes, code.tables)
    if n_cells == starts.shape[0] - 1 and not has_flags:
        return _scan_cells(
            hashing, cells, levels, cell_scratch.distances, hash_limit, ids, scan, candidates
        )
    limit, count = np.float32(np.inf), 0
    for i in range(min(n_cells, _PREFETCH_TILES)):
        _prefetch_overflow(hashing, cells, passing, cell_scratch.numbers[i])
    for i in range(n_cells):
        cell, base = cell_scratch.numbers[i], cell_scratch.distances[i]
        if i + _PREFETCH_TILES < n_cells:
            _prefetch_overflow(hashing, cells, passing, cell_scratch.numbers[i + _PREFETCH_TILES])
        first, stop, tile = starts[cell], starts[cell + 1], first_overflow(passing, cell)
        while True:
            for start in range(first, stop, BLOCK_POINTS):
                end = min(stop, start + BLOCK_POINTS)
                # A cell may start within a tile. The points before it are scored too.
                low = start // TILE_POINTS * TILE_POINTS
                block_distances(
                    hashing.codes, hashing.terms, levels, low, end, base, scan.distances
                )
                block = scan.distances[start - low : end - low]
                if start >= first_flag:
                    passes = flags[start - first_flag : end - first_flag]
                    replace_others(passes, np.float32(np.nan), block)
                count = keep_least(block, places[start:end], limit, count, rows, estimates)
                if count > 2 * hash_limit:
                    limit = keep_nearest(rows, estimates, count, hash_limit, ids)
                    count = hash_limit
            if tile < 0:
                break
            first = place_of_overflow(hashing, cells, tile)
            stop, tile = first + TILE_POINTS, cells.nexts[tile]
    if count > hash_limit:
        keep_nearest(rows, estimates, count, hash_limit, ids)
    return min(count, hash_limit)


@kernel
def take_all(hashing, cells, passing, numbers, n_cells, rows):
    """Write all points of the cells numbers[:n_cells] that pass into `rows`; return their number.

    `hashing`: `Hashing`; `cells`: `Cells`; `passing`: `Passing`.
    """
    flags, count = passing.flags, 0
    first_flag = cells.rows.shape[0] - flags.shape[0]
    for i in range(n_cells):
        cell = numbers[i]
        first, stop, tile = (
            cells.starts[cell],
            cells.starts[cell + 1],
            first_overflow(passing, cell),
        )
        while True:
            for place in range(first, stop):
                if place < first_flag or flags[place - first_flag]:
                    rows[count] = cells.rows[place]
                    count += 1
            if tile < 0:
                break
            first = place_of_overflow(hashing, cells, tile)
            stop, tile = first + TILE_POINTS, cells.nexts[tile]
    return count


@kernel
def _prefetch_overflow(hashing, cells, passing, cell):
    """Prefetch all that a search reads of the first overflow tile of a cell."""
    tile = first_overflow(passing, cell)
    if tile >= 0:
        first = place_of_overflow(hashing, cells, tile)
        codes = hashing.codes[first // TILE_POINTS]
        prefetch_run(codes, 0, codes.shape[0])
        prefetch_run(cells.rows, first, first + TILE_POINTS)
        prefetch_run(cells.nexts, tile, tile + 1)
        if hashing.terms.shape[0]:
            prefetch_run(hashing.terms, first, first + TILE_POINTS)
        first_flag = cells.rows.shape[0] - passing.flags.shape[0]
        if first >= first_flag:
            prefetch_run(passing.flags, first - first_flag, first - first_flag + TILE_POINTS)


@kernel
def place_of_overflow(hashing, cells, tile):
    """Return the first place of an overflow tile."""
    return (hashing.codes.shape[0] - cells.nexts.shape[0] + tile) * TILE_POINTS


@kernel
def first_overflow(passing, cell):
    """Return the number of the first overflow tile of a cell, or -1 if it has none."""
    return passing.heads[cell] if passing.heads.shape[0] else -1


@kernel
def drop_empty(counts, distances, minima):
    """Set the distances of cells without a point that passes to inf, and update `minima`.

    `counts` (C,) int32 is the number of these points in each cell. `distances` (C,) float32 and
    `minima` are those of `code_scan.scan_codes`.
    """
    for c in range(counts.shape[0]):
        distances[c] = distances[c] if counts[c] else np.float32(np.inf)
    update_minima(distances, counts.shape[0], minima)


@kernel
def _scan_cells(hashing, cells, levels, bases, hash_limit, ids, scan, candidates):
    """Write the `hash_limit` points of all cells whose codes are nearest; return their number.

    `bases` (C,) float32 are the distances of the centres, by cell number. The codes of all cells
    are scored in the order of storage. A loop over cells would score the tiles that two cells share
    twice, and most cells hold only a few tiles. There are more points than `hash_limit`.
    """
    starts, places, terms = cells.starts, cells.rows, hashing.terms
    rows, estimates = candidates.rows, candidates.distances
    cell, count, limit = 0, 0, np.float32(np.inf)
    # Room for later points may follow the points of all cells.
    for start in range(0, starts[-1], BLOCK_POINTS):
        stop = min(starts[-1], start + BLOCK_POINTS)
        block = scan.distances[: stop - start]
        score_tiles(hashing.codes, levels, start, stop, scan.distances)
        place = start
        while place < stop:
            while starts[cell + 1] <= place:
                cell += 1
            end = min(stop, starts[cell + 1])
            part = block[place - start : end - start]
            estimate(levels.unit, levels.level_sum, terms, place, bases[cell], part)
            place = end
        count = keep_least(block, places[start:stop], limit, count, rows, estimates)
        if count > 2 * hash_limit:
            limit = keep_nearest(rows, estimates, count, hash_limit, ids)
            count = hash_limit
    if count > hash_limit:
        keep_nearest(rows, estimates, count, hash_limit, ids)
    return min(count, hash_limit)
