"""Replays a selection among its picks and other candidates, to explain it.

Rows are numbered in the order in which a replay has them: the points shown earlier, then the picks
in their order, then other candidates, nearest first.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.kernels.exact import relevance_of
from divgrpc.kernels.greedy import add_pick
from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.pairwise import far_from, is_kept
from divgrpc.kernels.stepwise import add_pivot, add_roots_of

# How a pick changes what the values of candidates depend on: the sum of the distances from the
# picks, the least of them, the sum of their square roots, or the volume of a DPP.
DISTANCE_SUM = 0
LEAST_DISTANCE = 1
ROOT_SUM = 2
VOLUME = 3

# Rows of the two outputs of `explain`.
IDS = 0
RANKS = 1
CAUSES = 2
STEPS = 3
PLACES = 4
REFUSED = 5
INTEGER_ROWS = 6
RELEVANCE_TERMS = 0
PENALTIES = 1
DISTANCES = 2
SCORES = 3
NUMBER_ROWS = 4

# More displaced candidates are left out, the least relevant first. Those that a result names stay.
DISPLACED_MAX = 1_000


class Rule(NamedTuple):
    """The rule of a selector.

    kind: DISTANCE_SUM, LEAST_DISTANCE, ROOT_SUM or VOLUME.
    relevance: the factor of costs, of the float type of `weights`.
    weights: (n_picks,) the factor of what the kind sums up, at each step.
    unit, similarity: those of `max_sum_dpp.determinant`.
    """

    kind: int
    relevance: float | np.float32
    weights: npt.NDArray[np.floating[Any]]
    unit: float
    similarity: int


class Limits(NamedTuple):
    """Which of m candidates a selection could pick.

    owners: (m,) -1 for a candidate that is no near-copy of a result and was not shown earlier.
        Empty if no candidate is either.
    contenders: (m,) whether a selection within quotas considered a candidate; empty if it
        considered all.
    standing: (m,) as in `pairwise`, as far as it is known; empty if near-copies are kept.
    copy_limit: maximum distance between near-copies.
    by_quotas: whether quotas may have refused candidates.
    """

    owners: npt.NDArray[np.int64]
    contenders: npt.NDArray[np.bool_]
    standing: npt.NDArray[np.int8]
    copy_limit: np.float32
    by_quotas: bool


@allocating
def explain(
    points, candidates, costs, results, n_picks, shown, rule, limits, selection, ids, ranks, metric,
    integers, numbers,
):  # fmt: skip
    """Write the columns of an `Explanation`; return the number u of displaced candidates.

    candidates: `Candidates` in the order of distances; costs: (m,) their costs in the rule.
    results: (n,) positions of the results in the order of picking. The first `n_picks` are picks.
        The others are near-copies that complete an answer.
    shown: (s,) int32 row numbers of the points that were shown earlier.
    ids: the ids of all points; empty if they are row numbers. ranks: (m,) plain ranks; empty if
        they are positions.
    integers, numbers: (INTEGER_ROWS, n + m) int64 and (NUMBER_ROWS, n + m) float32, the outputs.
        The first n columns are about the results, the next u about displaced candidates. STEPS has
        the number of the pick that a candidate lost to and, for a result, the number of the
        candidate that quotas held back, or -1. PLACES has positions, and REFUSED whether quotas
        refused the candidate.
    """
    first, n = shown.shape[0], results.shape[0]
    order = _order_of(candidates.rows.shape[0], results, n_picks, first, limits)
    rows, prices = np.empty(order.shape[0], np.int32), np.zeros(order.shape[0], costs.dtype)
    rows[:first] = shown
    for i in range(first, rows.shape[0]):
        rows[i], prices[i] = candidates.rows[order[i]], costs[order[i]]
    steps, refused = _steps_of(order, first, n_picks), np.zeros(rows.shape[0], np.bool_)
    terms, leaders = np.zeros((2, rows.shape[0]), rule.weights.dtype), np.full(n_picks, -1)
    causes, distances = np.full(rows.shape[0], -1), np.full(rows.shape[0], np.float32(np.nan))
    _replay(
        points, rows, order, prices, first, n_picks, rule, limits, candidates.rows, selection,
        steps, refused, leaders, terms, causes, distances,
    )  # fmt: skip
    columns, n_displaced = _columns_of(order, steps, leaders, first, n_picks, n)
    for i in range(first, rows.shape[0]):
        column, cause, place = columns[i], causes[i], order[i]
        if column < 0:
            continue
        integers[IDS, column] = ids[rows[i]] if ids.shape[0] else rows[i]
        integers[RANKS, column] = ranks[place] if ranks.shape[0] else place + 1
        integers[CAUSES, column] = -1
        if cause >= 0:
            integers[CAUSES, column] = ids[rows[cause]] if ids.shape[0] else rows[cause]
        integers[STEPS, column] = steps[i] if column >= n else -1
        integers[PLACES, column], integers[REFUSED, column] = place, refused[i]
        # A difference from 0, unlike a negation, is never -0.0.
        numbers[RELEVANCE_TERMS, column] = 0 - terms[0, i]
        numbers[PENALTIES, column] = 0 - terms[1, i]
        numbers[DISTANCES, column] = distances[i]
        numbers[SCORES, column] = relevance_of(candidates.distances[place], metric)
    for step in range(n_picks):
        if leaders[step] >= 0:
            integers[STEPS, step] = columns[leaders[step]] - n
    for column in range(n_picks, n):
        place = results[column]
        integers[RANKS, column] = ranks[place] if ranks.shape[0] else place + 1
        integers[CAUSES, column] = integers[STEPS, column] = -1
        numbers[RELEVANCE_TERMS, column] = 0 - candidates.distances[place]
        numbers[PENALTIES, column], numbers[DISTANCES, column] = 0, np.nan
    return n_displaced


@allocating
def _order_of(count, results, n_picks, first, limits):
    """Return the position of each row, -1 for a point shown earlier.

    Without quotas, no candidate that is farther than all picks is among the rows.
    """
    stop = count
    if not limits.by_quotas:
        stop = results[:n_picks].max() + 1 if n_picks else 0
    order, is_open = np.full(first + n_picks + stop, -1), np.ones(stop, np.bool_)
    order[first : first + n_picks] = results[:n_picks]
    for place in results:
        if place < stop:
            is_open[place] = False
    n_rows = first + n_picks
    for place in range(stop):
        is_open[place] &= not limits.owners.shape[0] or limits.owners[place] < 0
        is_open[place] &= not limits.contenders.shape[0] or limits.contenders[place]
        if is_open[place] and (limits.by_quotas or n_rows < first + n_picks + DISPLACED_MAX):
            order[n_rows] = place
            n_rows += 1
    return order[:n_rows]


@allocating
def _steps_of(order, first, n_picks):
    """Return the number of the pick at which each row is explained.

    A candidate lost to the first pick that is farther, which was picked although it is less
    relevant. If no pick is farther, the number is `n_picks`.
    """
    steps, step, farthest = np.empty(order.shape[0], np.int32), 0, -1
    for i in range(first + n_picks):
        steps[i] = i - first
    for i in range(first + n_picks, order.shape[0]):
        while step < n_picks:
            farthest = max(farthest, order[first + step])
            if farthest > order[i]:
                break
            step += 1
        steps[i] = step
    return steps


@allocating
def _columns_of(order, steps, leaders, first, n_picks, n):
    """Return the column of each row in the output, or -1, and the number of displaced candidates.

    A candidate is displaced if it is nearer than some pick, or if a result names it.
    """
    columns, is_named = np.full(order.shape[0], -1), np.zeros(order.shape[0], np.bool_)
    farthest, n_displaced = -1, 0
    for step in range(n_picks):
        columns[first + step], farthest = step, max(farthest, order[first + step])
        if leaders[step] >= 0:
            is_named[leaders[step]] = True
    for i in range(first + n_picks, order.shape[0]):
        is_near = order[i] < farthest and n_displaced < DISPLACED_MAX
        if is_named[i] or (is_near and steps[i] >= 0):
            columns[i] = n + n_displaced
            n_displaced += 1
    return columns, n_displaced


@allocating
def _replay(
    points, rows, order, costs, first, n_picks, rule, limits, pool, selection, steps, refused,
    leaders, terms, causes, far_from_cause,
):  # fmt: skip
    """Write the two terms of the value of each row at its step, and the nearest pick before.

    order, costs: (r,) positions and costs of the rows. pool: row numbers by position.
    steps: (r,) int32, the number of the pick at which a row is explained. It becomes -1 if the
        row had a better value than a pick, and was not selectable. With quotas, it becomes the
        first such step, and `refused` (r,) becomes true, unless the row is a near-copy.
    leaders: (n_picks,) output: the row of best value that quotas refused at a step.
    terms: (2, r) output: relevance * cost, and weight * what `rule` sums up.
    causes, far_from_cause: (r,) int64 and float32, output: the row of the nearest pick or shown
        point before, and its distance.
    """
    count, n_pivots, relevance = rows.shape[0], 0, rule.relevance
    far, nearest = np.empty(count, np.float32), np.full(count, np.float32(np.inf))
    nearest_row, apart = np.full(count, -1), np.zeros(count, terms.dtype)
    size, pivots = (count, first + n_picks) if rule.kind == VOLUME else (0, 0)
    factor, remainders, logs = np.empty((size, pivots)), np.ones(size), np.zeros(size)
    for pick in range(first + n_picks):
        step = pick - first
        if step >= 0:
            weight = rule.weights[step]
            least = relevance * costs[pick] - weight * apart[pick]
            best = least
            for i in range(pick, count):
                if steps[i] < 0 or pick < i < first + n_picks:
                    continue
                value = relevance * costs[i] - weight * apart[i]
                # If values are equal, the nearer candidate is picked.
                if value < least or (value == least and order[i] < order[pick]):
                    if not _is_refused(points, pool, order[i], limits, selection):
                        steps[i] = -1
                    elif not refused[i]:
                        steps[i], refused[i] = step, True
                    if steps[i] >= 0 and (leaders[step] < 0 or value < best):
                        leaders[step], best = i, value
                if steps[i] == step:
                    terms[0, i], terms[1, i] = relevance * costs[i], weight * apart[i]
                    causes[i] = nearest_row[i]
                    if causes[i] >= 0:
                        far_from_cause[i] = nearest[i]
        far_from(points, rows, count, pick, selection, far)
        for i in range(count):
            if far[i] < nearest[i]:
                nearest[i], nearest_row[i] = far[i], pick
        if rule.kind == VOLUME:
            n_pivots = add_pivot(
                points, rows, pick, rule.unit, rule.similarity, factor, n_pivots, remainders, logs
            )
            apart[:] = logs
        else:
            _add_pick(far, rule.kind, pick > 0, apart)


@kernel
def _add_pick(far, kind, has_earlier, apart):
    """Update `apart` with the distances of the rows from a pick."""
    if kind == ROOT_SUM:
        add_roots_of(far, far.shape[0], apart)
    else:
        add_pick(far, far.shape[0], kind == LEAST_DISTANCE and has_earlier, apart)


@allocating
def _is_refused(points, pool, place, limits, selection):
    """Return whether only quotas can have kept the candidate at a position from being picked."""
    if not limits.by_quotas:
        return False
    standing, limit = limits.standing, limits.copy_limit
    return not standing.shape[0] or is_kept(points, pool, place, limit, standing, selection)
