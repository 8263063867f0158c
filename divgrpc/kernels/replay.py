"""Replays a selection among its picks and some other candidates, to explain each pick."""

import math

import numpy as np

from divgrpc.kernels.jit import allocating
from divgrpc.kernels.pairwise import far_from
from divgrpc.kernels.stepwise import add_pivot

# How a pick changes what the values of candidates depend on: the sum of the distances from the
# picks, the least of them, the sum of their square roots, or the volume of a DPP.
DISTANCE_SUM = 0
LEAST_DISTANCE = 1
ROOT_SUM = 2
VOLUME = 3


@allocating
def replay(
    points, rows, order, costs, n_shown, n_picks, steps, relevance, weights, kind, unit,
    similarity, selection, terms, causes, far_from_cause,
):  # fmt: skip
    """Write the two terms of the value of each row at its step, and the nearest pick before.

    rows: (r,) int32, first the points shown earlier, then the picks in their order, then other
        candidates. order: (r,) int32, their ranks by distance. costs: (r,) their costs.
    steps: (r,) int32, for a candidate the number of the pick, from 0, that it lost to. It becomes
        -1 if the candidate had a better value than a pick and so cannot have been selectable.
    relevance, weights: the factor of the costs, and the factors (n_picks,) of `terms[1]`. Both
        have the float type of `terms`.
    kind: DISTANCE_SUM, LEAST_DISTANCE, ROOT_SUM or VOLUME; `unit` and `similarity` are those of
        `max_sum_dpp.determinant`.
    terms: (2, r), the output: relevance * cost, and weight * distances from the picks before.
    causes: (r,) int32, the output: the position in `rows` of the nearest pick or shown point
        before, or -1. far_from_cause: (r,) float32, its distance.
    """
    count, n_pivots = rows.shape[0], 0
    far, nearest = np.empty(count, np.float32), np.full(count, np.float32(np.inf))
    nearest_place = np.full(count, np.int32(-1))
    apart = np.zeros(count, terms.dtype)
    size, columns = (count, n_shown + n_picks) if kind == VOLUME else (0, 0)
    factor, remainders, logs = np.empty((size, columns)), np.ones(size), np.zeros(size)
    for place in range(n_shown + n_picks):
        step = place - n_shown
        if step >= 0:
            weight = weights[step]
            least = relevance * costs[place] - weight * apart[place]
            for i in range(place, count):
                if steps[i] < 0 or place < i < n_shown + n_picks:
                    continue
                value = relevance * costs[i] - weight * apart[i]
                # If values are equal, the nearer candidate is picked.
                if value < least or (value == least and order[i] < order[place]):
                    steps[i] = -1
                elif steps[i] == step:
                    terms[0, i], terms[1, i] = relevance * costs[i], weight * apart[i]
                    causes[i], far_from_cause[i] = nearest_place[i], nearest[i]
        far_from(points, rows, count, place, selection, far)
        for i in range(count):
            if far[i] < nearest[i]:
                nearest[i], nearest_place[i] = far[i], place
        if kind == VOLUME:
            n_pivots = add_pivot(
                points, rows, place, unit, similarity, factor, n_pivots, remainders, logs
            )
            apart[:] = logs
        elif kind == ROOT_SUM:
            for i in range(count):
                apart[i] += math.sqrt(max(0.0, np.float64(far[i])))
        elif kind == LEAST_DISTANCE and place > 0:
            for i in range(count):
                apart[i] = min(apart[i], far[i])
        else:
            for i in range(count):
                apart[i] += far[i]
