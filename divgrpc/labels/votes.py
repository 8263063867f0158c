"""Votes of neighbours on labels: what each weighs, and the labels of most votes.

A label's score is its share of the votes, so labels that all neighbours have score 1. Weighted, a
neighbour's vote is its cosine or product with the document, none below 0; under the squared
Euclidean distance c it is 1 / (1 + c/s), s being the mean c of the neighbours.
"""

import numpy as np

from divgrpc.labels.model import best_of_pairs
from divgrpc.types import CountArray, FloatArray, IntArray, Metric
from divgrpc.vectors import SparseRows


def weigh(scores: FloatArray, counts: CountArray, metric: Metric) -> FloatArray:
    """Return what the votes of neighbours weigh, from 0 up, (nq, k) as their `scores`.

    Row i has counts[i] neighbours, and 0 for others.
    """
    there = np.arange(scores.shape[1]) < counts[:, None]
    scores = np.where(there, scores, 0)
    if metric != "euclidean":
        return np.asarray(np.maximum(scores, 0))
    scale = scores.sum(axis=1, keepdims=True, dtype=np.float64) / np.maximum(counts, 1)[:, None]
    weights = 1 / (1 + scores / np.where(scale > 0, scale, 1))
    return np.asarray(np.where(there, weights, 0), np.float32)


def most_voted(
    found: IntArray, weights: FloatArray, labels: SparseRows, count: int
) -> tuple[IntArray, FloatArray]:
    """Return labels and shares (m, count) of the votes of rows `found` (m, k), -1 for none."""
    there = found >= 0
    totals = np.where(there, weights, 0).sum(axis=1, dtype=np.float64)
    # The voters' own labels and nothing else: a product would go over all labels and all rows.
    own = labels[found[there]]
    sizes = np.diff(own.indptr)
    voters = np.repeat(np.nonzero(there)[0], sizes)
    pairs, places = np.unique(voters * labels.dims + own.indices, return_inverse=True)
    votes = np.bincount(places, np.repeat(weights[there], sizes) * own.values, len(pairs))
    rows, voted = pairs // labels.dims, votes > 0
    shares = votes[voted] / totals[rows[voted]]
    return best_of_pairs(rows[voted], pairs[voted] % labels.dims, shares, len(found), count)
