"""Prepares candidates that a caller scored: costs from scores, and lengths of dense vectors.

`pick_scored` also picks from them. It reads the vectors once: for their lengths, and for their
distances from the first pick, which is the candidate of best score, or from the centre of
`greedy.pick_by_angles`. Everything later needs the vectors of few candidates.
"""

import numpy as np

from divgrpc.kernels.greedy import (
    angles_fit,
    angles_pay,
    find_centre,
    greedy,
    pick_by_angles,
    scale_costs,
)
from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.max_sum_dpp import COSINE_OF_ANGLE, determinant
from divgrpc.kernels.records import NO_COPIES, Objective, Points, SelectionScratch
from divgrpc.kernels.top_k import order_of
from divgrpc.kernels.vector_sums import prefetch_row, row_dot

# Rules of `pick_scored` beside those of `Objective.rule`: the selector `dpp`, and picks by score.
DPP_RULE = 4
NEAREST_RULE = 5
# A row is prefetched when the row this many places earlier is measured.
_PREFETCH_ROWS = 2
# Greater scores are refused, so that differences of scores do not overflow float32.
SCORE_MAX = 1e30
# Smaller differences of scores are scaled, so that float32 can represent them.
LEAST_WIDTH = 1e-30


@allocating
def pick_scored(vectors, scores, length_max, diversity, rule, places, picked_scores, values):
    """Pick k of n scored candidates by a selector; return whether all candidates are valid.

    `vectors` (n, d) float32; `scores` (n,) float64; 1 <= k <= n. `length_max` is as for
    `inverse_lengths`; `diversity` float64 is the dial; `rule` is DPP_RULE, NEAREST_RULE or as in
    `Objective`. The rows of the picks are written into `places` (k,) int64, their scores into
    `picked_scores` (k,) float64, and the values that the selector maximised into `values` (k,)
    float32. They are those of `divgrpc.diversifier.pick_from`, for distances 1 - cosine. If a score
    or a row is not valid, nothing is picked.
    """
    count, k = vectors.shape[0], places.shape[0]
    costs, rows = np.empty(count, np.float32), np.empty(count, np.int32)
    far, apart = np.empty(count, np.float32), np.empty(count, np.float32)
    if below_best(scores, SCORE_MAX, LEAST_WIDTH, far) >= 0:
        return False
    order_of(far, rows)
    for i in range(count):
        costs[i] = far[rows[i]]
    scale_costs(costs, count, count - 1, costs)
    points = Points(
        vectors, np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32),
        np.empty(0, np.float64), np.empty(count, np.float32),
    )  # fmt: skip
    objective = Objective(k, np.float32(1.0 - diversity), rule, True, NO_COPIES)
    by_angles = angles_pay(points, count, objective)
    peer = np.empty((1, vectors.shape[1]), np.float32)
    if by_angles:
        find_centre(vectors, rows, k, peer)
    else:
        peer[0] = vectors[rows[0]]
    if not _measure(vectors, peer, length_max, points.inverse_lengths, apart):
        return False
    selection = SelectionScratch(far, apart, np.empty((1, 0), np.float32), np.empty(0, np.uint64))
    if rule == NEAREST_RULE:
        for i in range(k):
            places[i], values[i] = i, scores[rows[i]]
    else:
        _pick_measured(
            points, rows, costs, diversity, objective, by_angles, peer, selection, places, values
        )
    for i in range(k):
        places[i] = rows[places[i]]
        picked_scores[i] = scores[places[i]]
    return True


@allocating
def _pick_measured(
    points, rows, costs, diversity, objective, by_angles, peer, selection, places, values
):  # fmt: skip
    """Pick from all candidates, whose products with `peer` are in `selection.apart`, by row.

    `peer` (1, d) is the centre of `pick_by_angles` if `by_angles`, and otherwise the first pick.
    """
    inverses, count = points.inverse_lengths, rows.shape[0]
    far, dots = selection.far, selection.apart
    if by_angles and angles_fit(points, rows, count):
        for i in range(count):
            far[i] = dots[rows[i]] * inverses[rows[i]]
        pick_by_angles(points, rows, costs, count, objective, selection, peer, places, values)
        return
    for i in range(count):
        far[i] = np.float32(1) - dots[rows[i]] * inverses[rows[i]] * inverses[rows[0]]
    far[0] = np.float32(0)
    if objective.rule == DPP_RULE:
        determinant(
            points, rows, costs, count, objective.k, 1.0 - diversity, COSINE_OF_ANGLE, far, places,
            values,
        )  # fmt: skip
    else:
        greedy(
            points, rows, costs, count, objective, selection, not by_angles, np.empty(0, np.int8),
            places, values,
        )  # fmt: skip


@kernel
def _measure(vectors, peer, length_max, inverses, dots):
    """Write the inverse lengths of all rows, and their dot products with row 0 of `peer` (1, d).

    `inverses` and `dots` (n,) float32 are to be written. Returns whether all lengths are valid, as
    `inverse_lengths` defines it.
    """
    last = vectors.shape[0] - 1
    for row in range(vectors.shape[0]):
        prefetch_row(vectors, min(row + _PREFETCH_ROWS, last))
        length = np.sqrt(row_dot(vectors, row, vectors, row))
        if not length <= length_max:
            return False
        inverses[row] = np.float32(1) / length if length > 0 else np.float32(0)
        dots[row] = row_dot(vectors, row, peer, 0)
    return True


@kernel
def below_best(scores, score_max, least_width, costs):
    """Write by how much each score is below the best one into `costs` (n,) float32; return -1.

    `scores` (n,) float64. The differences are taken in float64, because scores may have a large
    offset. If the greatest one is below `least_width`, all are divided by it, so that float32 can
    represent them. If a score is not finite or its absolute value exceeds `score_max`, its place is
    returned instead, and `costs` are left unfinished.
    """
    best, worst = -np.inf, np.inf
    for i in range(scores.shape[0]):
        if not abs(scores[i]) <= score_max:
            return i
        best, worst = max(best, scores[i]), min(worst, scores[i])
    unit = best - worst if 0 < best - worst < least_width else 1.0
    for i in range(scores.shape[0]):
        costs[i] = (best - scores[i]) / unit
    return -1


@kernel
def inverse_lengths(vectors, length_max, inverses):
    """Write 1 / length of each row of `vectors` (n, d) float32 into `inverses` (n,); return -1.

    A row of zeros has no direction and gets 0. If a row is not finite or longer than `length_max`
    float32, its number is returned instead.
    """
    for row in range(vectors.shape[0]):
        length = np.sqrt(row_dot(vectors, row, vectors, row))
        if not length <= length_max:
            return row
        inverses[row] = np.float32(1) / length if length > 0 else np.float32(0)
    return -1
