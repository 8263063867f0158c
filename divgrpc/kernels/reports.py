"""Computes the numbers of a report on the results of one query."""

import numpy as np

from divgrpc.kernels.jit import allocating, part
from divgrpc.kernels.pairwise import far_dense, how_far
from divgrpc.kernels.records import COSINE, INNER_PRODUCT, Index
from divgrpc.kernels.registers import record_at
from divgrpc.kernels.top_k import id_of

# The distances of pairs of at most this many results are kept for the plain results: 256 KiB.
_KEPT_RESULTS_MAX = 256


@allocating
def report(index, rows, distances, places, plain, metric, dial, reports, plain_ids):
    """Write the numbers of a `Report` on one query, and the ids of its plain results.

    index: register of an `Index`. rows, distances: (m,) the candidates, as in `Candidates`.
    places, plain: (n,) int64, positions of the results and of the plain results among them.
    reports: (8, 1) float64; plain_ids: (1, k) int64.
    """
    index = record_at(index, Index)
    number_of = np.full(rows.shape[0], -1, np.int32)
    write_report(
        index.points, index.result_ids, rows, distances, number_of, places, plain, metric, dial, 0,
        reports, plain_ids,
    )  # fmt: skip


@allocating
def report_on_nearest(
    index, candidates, size, picks, n_picks, metric, dial, number, reports, plain_ids
):
    """Write the report on query `number`, whose plain results are the nearest candidates.

    size: number of candidates. picks: positions of the results, the first `n_picks` of the array.
    """
    number_of, plain = np.full(size, -1, np.int32), np.arange(min(size, plain_ids.shape[1]))
    write_report(
        index.points, index.result_ids, candidates.rows, candidates.distances, number_of,
        picks[:n_picks], plain, metric, dial, number, reports, plain_ids,
    )  # fmt: skip


@allocating
def write_report(
    points, ids, rows, distances, number_of, places, plain, metric, dial, number, reports, plain_ids
):
    """Write column `number` of `reports` (8, nq), the numbers of a `Report` in the order of fields.

    ids: the ids of all points, empty if they are row numbers. number_of: (m,) int32 scratch, all
    -1. plain_ids: (nq, k), the ids of the plain results, -1 after the last.
    """
    k = plain_ids.shape[1]
    # Computed distances under inner_product depend on which point of a pair comes first.
    keeps = places.shape[0] <= _KEPT_RESULTS_MAX and not points.inverse_lengths.shape[0]
    kept = np.empty((places.shape[0], places.shape[0] if keeps else 0), np.float32)
    for column in range(2):
        members = plain if column else places
        mean, least = _spread(points, rows, members, column > 0, number_of, kept)
        near, n = 0.0, members.shape[0]
        for i in range(n):
            near += np.float64(distances[members[i]])
        near = near / n if n else np.nan
        reports[2 * column, number], reports[2 * column + 1, number] = mean, least
        score = 1 - near / 2 if metric == COSINE else near
        reports[4 + column, number] = -near if metric == INNER_PRODUCT else score
        reports[6 + column, number] = np.nan
        if n == k and metric != INNER_PRODUCT:
            apart = mean if k > 1 else 0.0
            reports[6 + column, number] = (1 - dial) * near - dial * apart
    for i in range(k):
        is_any = i < plain.shape[0]
        plain_ids[number, i] = id_of(ids, rows[plain[i]]) if is_any else -1


@allocating
def _spread(points, rows, places, is_second, number_of, kept):
    """Return the mean and the least distance over all pairs of a list, nan for fewer than two.

    The first list writes into `number_of` (m,) int32 the number of each of its candidates, and its
    distances into the lower triangle of `kept`, which is empty if they are not kept. The second
    list reads both.
    """
    n, total, least = places.shape[0], 0.0, np.inf
    members, far = np.empty(n, np.int32), np.empty(n, np.float32)
    # Members that the first list does not have (strangers), their numbers, and distances from them.
    strangers, at, n_strangers = np.empty(n, np.int32), np.empty(n, np.int32), 0
    apart = np.empty(n, np.float32)
    for i in range(n):
        members[i] = rows[places[i]]
        number = number_of[places[i]] if is_second and kept.shape[1] else -1
        if number < 0:
            _far_from(points, members, i, members[i], far)
            strangers[n_strangers], at[n_strangers] = members[i], i
            n_strangers += 1
        else:
            for j in range(i):
                peer = number_of[places[j]]
                far[j] = kept[max(number, peer), min(number, peer)] if peer >= 0 else far[j]
            _far_from(points, strangers, n_strangers, members[i], apart)
            for j in range(n_strangers):
                far[at[j]] = apart[j]
        if not is_second:
            number_of[places[i]] = i
            for j in range(i if kept.shape[1] else 0):
                kept[i, j] = far[j]
        for j in range(i):
            total += np.float64(far[j])
            least = min(least, np.float64(far[j]))
    pairs = n * (n - 1) // 2
    return (total / pairs, least) if pairs else (np.nan, np.nan)


@part
def _far_from(points, rows, count, row, far):
    """Write the distances of `row` from rows[:count] into `far`."""
    # `far_dense` rounds products of normalised vectors in another order than `how_far`.
    if points.indptr.shape[0] or points.inverse_lengths.shape[0]:
        for j in range(count):
            far[j] = how_far(points, row, rows[j])
    else:
        far_dense(points.vectors, points.inverse_lengths, rows, count, row, far)
