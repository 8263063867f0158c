"""How far one candidate is from every other: what selectors ask of the same ones over and over."""

import numpy as np

from divgrpc.kernels.compiling import kernel, part
from divgrpc.kernels.lanes import row_distance, row_dot
from divgrpc.kernels.selection import gather
from divgrpc.kernels.sparse import (
    clear,
    distance_from_dot,
    link,
    linked_dots,
    sparse_dot,
    spread,
    unlink,
)

# Where `far_from` reads the candidates: where they lie, from the block, or by column.
SCATTERED = 0
GATHERED = 1
LINKED = 2


@kernel
def hold(points, rows, count, scratch):
    """Put the candidates rows[:count] where `far_from` reads them fastest; returns where that is.

    `points` and `scratch` as for `selection.greedy`. `let_go` must follow.
    """
    if points[1].shape[0]:
        return LINKED if link(points, rows, count, scratch[3]) else SCATTERED
    return GATHERED if gather(points[0], rows, count, scratch[0]) else SCATTERED


@kernel
def let_go(points, rows, count, held, scratch):
    """Leave the scratch as it was before `hold`."""
    if held == LINKED:
        unlink(points, rows, count, scratch[3][0])


@kernel
def far_from(points, inverses, rows, count, pick, held, scratch, far):
    """Write how far candidate `pick` is from each of rows[:count] into `far` (count,) float32.

    Squared distances, or, where `inverses` (n,) float32 holds the points' inverse lengths,
    1 - cosine; from itself 0. `held` is what `hold` returned, the other arguments were its own.
    """
    if points[1].shape[0]:
        _far_sparse(points, inverses, rows, count, pick, held, scratch, far)
    elif held == GATHERED:
        _far_dense(scratch[0], pick, inverses, rows, count, pick, True, far)
    else:
        _far_dense(points[0], rows[pick], inverses, rows, count, pick, False, far)
    far[pick] = np.float32(0)


@part
def _far_dense(vectors, at, inverses, rows, count, pick, gathered, far):
    if inverses.shape[0]:
        mine = inverses[rows[pick]]
        for i in range(count):
            dot = row_dot(vectors, i if gathered else rows[i], vectors, at)
            far[i] = np.float32(1) - dot * inverses[rows[i]] * mine
    else:
        for i in range(count):
            far[i] = row_distance(vectors, i if gathered else rows[i], vectors, at)


@part
def _far_sparse(points, inverses, rows, count, pick, held, scratch, far):
    _, indptr, indices, values, squares = points
    _, target, _, links, dots = scratch
    row = rows[pick]
    if held == LINKED:
        linked_dots(points, row, count, links, dots)
    else:
        spread(indices, values, indptr[row], indptr[row + 1], target)
        for i in range(count):
            dots[i] = sparse_dot(indices, values, indptr[rows[i]], indptr[rows[i] + 1], target, 0)
        clear(indices, indptr[row], indptr[row + 1], target)
    for i in range(count):
        if inverses.shape[0]:
            far[i] = np.float32(1) - np.float32(dots[i]) * inverses[rows[i]] * inverses[row]
        else:
            far[i] = distance_from_dot(dots[i], squares[rows[i]], squares[row], False)
