"""Prepares candidates that a caller scored: costs from scores, and lengths of dense vectors."""

import numpy as np

from divgrpc.kernels.jit import kernel
from divgrpc.kernels.vector_sums import row_dot


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
