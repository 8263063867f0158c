"""Votes of neighbours for labels: the weight of a vote, and the labels with most votes.

The score of a label is its share of the votes: a label that every neighbour has scores 1. The
weight of a vote is 1. If votes are weighted, it is the neighbour's cosine or product with the
document, at least 0. For the squared Euclidean distance c it is 1 / (1 + c/s), where s is the mean
of c over the neighbours.
"""

import numpy as np

from divgrpc.labels.model import best_of_pairs
from divgrpc.types import CountArray, FloatArray, IntArray, Metric
from divgrpc.vectors import SparseRows


def weigh(scores: FloatArray, counts: CountArray, metric: Metric) -> FloatArray:
    """Return the weights (nq, k) float32, from 0 up, of neighbours with `scores` (nq, k).

    Row i has counts[i] neighbours; the other places get 0.
    """
    valid = np.arange(scores.shape[1]) < counts[:, None]
    scores = np.where(valid, scores, 0)
    if metric != "euclidean":
        return np.asarray(np.maximum(scores, 0))
    scale = scores.sum(axis=1, keepdims=True, dtype=np.float64) / np.maximum(counts, 1)[:, None]
    weights = 1 / (1 + scores / np.where(scale > 0, scale, 1))
    return np.asarray(np.where(valid, weights, 0), np.float32)


def most_voted(
    neighbours: IntArray, weights: FloatArray, labels: SparseRows, count: int
) -> tuple[IntArray, FloatArray]:
    """Return labels and shares of the votes (m, count), largest first; -1 and NaN for none.

    `neighbours` (m, k) are rows of `labels` (n, L), -1 for none; `weights` (m, k) are those of
    their votes. Of equal shares the smaller label comes first.
    """
    valid = neighbours >= 0
    totals = np.where(valid, weights, 0).sum(axis=1, dtype=np.float64)
    # Only the voters' labels are read: a sparse product would pass over all labels and all rows.
    votes = labels[neighbours[valid]]
    sizes = np.diff(votes.indptr)
    voters = np.repeat(np.nonzero(valid)[0], sizes)
    pairs, places = np.unique(voters * labels.dims + votes.indices, return_inverse=True)
    sums = np.bincount(places, np.repeat(weights[valid], sizes) * votes.values, len(pairs))
    has_votes = sums > 0
    rows, numbers = np.divmod(pairs[has_votes], labels.dims)
    shares = sums[has_votes] / totals[rows]
    return best_of_pairs(rows, numbers, shares, len(neighbours), count)
