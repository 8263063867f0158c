"""Bounds distances between dense candidates from above, by copies of the candidates in bytes.

A selector that adds up distances needs the exact sums of only those candidates that may be the next
pick. For all others, upper bounds of the distances are enough. Copies in bytes take a quarter of
the memory of float32, so they stay in the fast caches from pick to pick.

All points are moved so that the first pick, the centre, is at zero. Let a be a candidate and b a
pick, both moved. Their distance is |a|^2 + |b|^2 - 2 a.b. The squares are distances from the
centre, which are computed exactly. The product is estimated from a copy of a, which is a vector of
bytes times a step, and from a copy of b in 16-bit integers times a step. If the copies differ from
a and b by vectors of lengths E and F, the product of the copies differs from a.b by at most
E |b| + F |copy of a|.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from divgrpc.kernels.byte_sums import CHUNK, GROUP_ROWS, four_byte_dots, move_row, round_row
from divgrpc.kernels.jit import allocating, kernel, part
from divgrpc.kernels.vector_sums import prefetch_row, row_distance

# Copies are made for at least this many picks, this many candidates for each pick, and this many
# elements of candidates over all picks. Below that, copying costs as much time as it saves.
_PICKS_MIN = 5
_CANDIDATES_PER_PICK_MIN = 5
_ELEMENTS_MIN = 200_000
# Copies of a query take at most this many bytes, one for each element of a candidate: 16 MiB.
_BYTES_MAX = 1 << 24
# For more dimensions, too few bits of the 16-bit integers would remain, because sums of products
# must fit into 32 bits.
_DIMS_MAX = 4_096
# A candidate is prefetched when the candidate this many places earlier is copied.
_PREFETCH_ROWS = 4

_BYTE_MAX = 127
_WORD_MAX = 32_767
# An element of a copy in 16-bit integers is wrong by at most this many steps: by a half, and by the
# rounding errors of float32.
_WORD_ERROR = 0.51
# The rounding errors of a copy in bytes are at most these shares of its error and of its step.
_ERROR_SHARE = np.float32(1.001)
_STEP_SHARE = np.float32(0.01)
# Smaller elements are rounded to 0. The square of this number does not underflow.
_ELEMENT_MIN = np.float32(1e-18)
# Upper bound of the absolute error of a distance whose squares underflow.
_UNDERFLOW = 1e-30
# If a distance from the centre exceeds this, no copies are made, because sums might overflow.
_FAR_MAX = np.float32(1e25)


class ByteCopies(NamedTuple):
    """Copies of candidates, and scratch memory for comparing them with a pick.

    m is the number of candidates, rounded up to a multiple of GROUP_ROWS, and w is the number of
    dimensions, rounded up to a multiple of CHUNK.
    """

    octets: Any  # (m, w) int8; candidate i is about steps[i] * octets[i] from the centre
    steps: Any  # (m,) float32
    errors: Any  # (m,) float32: lengths of the differences between the candidates and their copies
    squares: Any  # (m,) float32: distances of the candidates from the centre
    pick: Any  # (w,) int16
    dots: Any  # (m,) int32: products of `pick` and each row of `octets`
    moved: Any  # (GROUP_ROWS, w) float32: candidates minus the centre


@kernel
def copies_pay(points, count, k):
    """Return whether copies make it faster to pick `k` of `count` candidates."""
    # Under inner_product, distances are not squares.
    dense = points.indptr.shape[0] == 0 and points.inverse_lengths.shape[0] == 0
    enough = k >= _PICKS_MIN and count >= _CANDIDATES_PER_PICK_MIN * k
    dims = points.vectors.shape[1]
    size = dims * count
    fits = dims <= _DIMS_MAX and size <= _BYTES_MAX
    return dense and enough and fits and size * k >= _ELEMENTS_MIN


@allocating
def make_copies(points, count):
    """Allocate `ByteCopies` for `count` candidates; `count` may be 0."""
    m = (count + GROUP_ROWS - 1) // GROUP_ROWS * GROUP_ROWS
    w = (points.vectors.shape[1] + CHUNK - 1) // CHUNK * CHUNK if count else 0
    octets, dots, pick = np.empty((m, w), np.int8), np.empty(m, np.int32), np.empty(w, np.int16)
    steps, errors = np.empty(m, np.float32), np.empty(m, np.float32)
    squares, moved = np.empty(m, np.float32), np.zeros((GROUP_ROWS, w), np.float32)
    return ByteCopies(octets, steps, errors, squares, pick, dots, moved)


@kernel
def far_at_most(vectors, rows, count, picks, step, limit, copies, far):
    """Write upper bounds of the distances of rows[:count] from the pick picks[step] into `far`.

    `vectors` (n, d) float32; `rows` (count,) int32; `picks` (k,) int64 positions in `rows`; `far`
    (count,) float32. The bounds are exact for the first pick, and wherever a distance may be at
    most `limit` float32. `copies`: `ByteCopies`, filled at step 0 and read at the later steps. If
    distances are so great that sums of bounds might overflow, False is returned at step 0, and
    `far` is left unfinished.
    """
    centre, pick = rows[picks[0]], rows[picks[step]]
    if step:
        _bound_far(vectors, rows, count, centre, pick, limit, copies, far)
        return True
    are_near = _copy_rows(vectors, rows, count, centre, copies)
    for i in range(count):
        far[i] = copies.squares[i]
    return are_near


@kernel
def _copy_rows(vectors, rows, count, centre, copies):
    """Fill `copies` with rows[:count] minus row `centre`; return False if they are too far from it.

    `copies.squares` gets the same bits as `pairwise.how_far` returns.
    """
    dims, moved = vectors.shape[1], copies.moved
    for i in range(count):
        for j in range(dims, copies.octets.shape[1]):
            copies.octets[i, j] = 0
    # The rows of a group take turns, so that the processor works on one row while it waits for the
    # step of another.
    for first in range(0, count, GROUP_ROWS):
        stop = min(first + GROUP_ROWS, count)
        for i in range(first, stop):
            prefetch_row(vectors, rows[min(i + _PREFETCH_ROWS, count - 1)])
            square, largest = move_row(vectors, rows[i], centre, moved, i - first)
            if not square <= _FAR_MAX:
                return False
            copies.squares[i], copies.steps[i] = square, _step(largest, _BYTE_MAX)
        for i in range(first, stop):
            factor = np.float32(1) / copies.steps[i]
            copies.errors[i] = round_row(moved, i - first, factor, copies.octets, i, dims)
    for i in range(count):
        error = _ERROR_SHARE * np.sqrt(copies.errors[i]) + _STEP_SHARE
        copies.errors[i] = copies.steps[i] * error
    return True


@part
def _step(largest, most):
    """Return a step so that an element with the square `largest` is at most `most` steps."""
    return np.float32(1.0001) * max(np.sqrt(largest), _ELEMENT_MIN) / np.float32(most)


@kernel
def _bound_far(vectors, rows, count, centre, pick, limit, copies, far):
    """Write upper bounds of the distances of rows[:count] from row `pick` into `far`.

    Wherever a distance may be at most `limit`, it is computed exactly.
    """
    dims, moved = vectors.shape[1], copies.moved
    squares, steps, errors, dots = copies.squares, copies.steps, copies.errors, copies.dots
    # The sums of products must fit into 32 bits.
    word_max = min(_WORD_MAX, 0x7FFFFFFF // (_BYTE_MAX * dims))
    square, largest = move_row(vectors, pick, centre, moved, 0)
    step = _step(largest, word_max)
    factor, shift = np.float32(1) / step, np.float32(word_max) + np.float32(1.5)
    for j in range(copies.pick.shape[0]):
        # Numbers are truncated when they are above 0, after a half is added. This rounds them.
        copies.pick[j] = np.int32(moved[0, j] * factor + shift) - np.int32(word_max + 1)
    for i in range(0, count, GROUP_ROWS):
        four_byte_dots(copies.octets, i, copies.pick, dots)
    # Upper bound of the relative rounding errors of float32 distances and of these bounds. A sum of
    # squares has dims / 64 + 25 additions at most in a row.
    rounding = (dims / 64 + 64) * 2.0**-22
    base = np.float64(square) + _UNDERFLOW
    twice_step, twice_length = 2.0 * np.float64(step), 2.0 * math.sqrt(base * (1.0 + rounding))
    # A copy in bytes is at most 127 * sqrt(dims) of its steps long.
    word_error = _WORD_ERROR * _BYTE_MAX * dims * twice_step
    for i in range(count):
        squared = np.float64(squares[i]) + base
        product = twice_step * np.float64(steps[i]) * np.float64(dots[i])
        error = twice_length * np.float64(errors[i]) + word_error * np.float64(steps[i])
        far[i] = squared - product + (error + rounding * squared)
    if limit >= 0:
        for i in range(count):
            error = twice_length * np.float64(errors[i]) + word_error * np.float64(steps[i])
            squared = np.float64(squares[i]) + base
            # The lower bound is as far below the estimate as the upper bound is above it.
            width = 2.0 * (error + rounding * squared + _UNDERFLOW)
            if np.float64(far[i]) - width <= np.float64(limit):
                far[i] = row_distance(vectors, rows[i], vectors, pick)
