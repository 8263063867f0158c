"""Counts the near-copies of some points among all points, and the different points of a list.

Distances between points are those of `kernels.pairwise`, so a near-copy here is one that a query
would collapse. The sampled points are called peers. Limits are float32 distances, the greatest
first.
"""

import numpy as np

from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.pairwise import how_far
from divgrpc.kernels.sparse import distance_from_dot
from divgrpc.kernels.vector_sums import row_distance_within, row_dot

# Number of rows that are compared with one peer after another, while they are in the cache.
_BLOCK_ROWS = 256


@part
def _tally(far, limits, counts, peer):
    """Count a distance for all limits that it does not exceed."""
    step = 0
    while step < limits.shape[0] and far <= limits[step]:
        counts[peer, step] += 1
        step += 1


@kernel
def count_dense(points, rows, peers, limits, counts):
    """Add to `counts` how many dense points are within each limit of each peer.

    `points`: `Points`; `rows` (r,) and `peers` (m,) int64: row numbers. A peer does not count for
    itself. `limits` (t,) float32, the greatest first; `counts` (m, t) int64.
    """
    vectors, inverses = points.vectors, points.inverse_lengths
    angular = inverses.shape[0] > 0
    for start in range(0, rows.shape[0], _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, rows.shape[0])
        for i in range(peers.shape[0]):
            peer = peers[i]
            for place in range(start, stop):
                row = rows[place]
                if row == peer:
                    continue
                if angular:
                    dot = row_dot(vectors, row, vectors, peer)
                    far = np.float32(1) - dot * inverses[row] * inverses[peer]
                else:
                    far = row_distance_within(vectors, row, vectors, peer, limits[0])
                _tally(far, limits, counts, i)


@allocating
def count_sparse(points, rows, peers, columns, limits, counts):
    """Do what `count_dense` does for sparse points.

    `columns`: the values of the peers by column, (starts (d + 1,) int64, peers int32, values
    float32). Column j has the entries starts[j] to starts[j + 1] - 1, which name peers by their
    positions. A row is multiplied with all peers at once, so only peers that share a column with
    it take time.
    """
    indptr, squares, inverses = points.indptr, points.squares, points.inverse_lengths
    starts, names, values = columns
    n_peers, angular = peers.shape[0], inverses.shape[0] > 0
    dots, touched = np.zeros(n_peers, np.float64), np.empty(n_peers, np.int64)
    is_touched = np.zeros(n_peers, np.bool_)
    for place in range(rows.shape[0]):
        row, count = rows[place], 0
        # Without a common column, only points of short lengths are within a limit.
        if not angular and np.float32(squares[row]) <= limits[0]:
            for i in range(n_peers):
                is_touched[i], touched[i] = True, i
            count = n_peers
        for entry in range(indptr[row], indptr[row + 1]):
            column, value = points.indices[entry], np.float64(points.values[entry])
            for other in range(starts[column], starts[column + 1]):
                i = names[other]
                if not is_touched[i]:
                    is_touched[i], touched[count] = True, i
                    count += 1
                dots[i] += value * np.float64(values[other])
        for number in range(count):
            i = touched[number]
            dot, peer = dots[i], peers[i]
            dots[i], is_touched[i] = 0.0, False
            if row == peer:
                continue
            if angular:
                far = np.float32(1) - np.float32(dot) * inverses[row] * inverses[peer]
            else:
                far = distance_from_dot(dot, squares[row], squares[peer], False)
            _tally(far, limits, counts, i)


@allocating
def count_different(points, lists, limit, counts):
    """Write into `counts` (q,) int64 how many points of each list are different.

    A point is different if no different point before it in the list is within `limit` float32.
    `lists` (q, k) int64: row numbers, and -1 from the end of a list on.
    """
    different = np.empty(lists.shape[1], np.int64)
    for number in range(lists.shape[0]):
        count = 0
        for place in range(lists.shape[1]):
            row = lists[number, place]
            if row < 0:
                break
            is_copy = False
            for other in range(count):
                if how_far(points, row, different[other]) <= limit:
                    is_copy = True
                    break
            if not is_copy:
                different[count] = row
                count += 1
        counts[number] = count
