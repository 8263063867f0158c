"""Votes of neighbours on labels: what each weighs, and the labels of most votes.

A label's score is its share of the votes, so labels that all neighbours have score 1. Weighted, a
neighbour's vote is its cosine or product with the document, none below 0; under the squared
Euclidean distance c it is 1 / (1 + c/s), s being the mean c of the neighbours.
"""

import numpy as np
from scipy import sparse

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
    weights = np.where(there, weights, 0)
    totals = weights.sum(axis=1, dtype=np.float64)
    ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    matrix = sparse.csr_array((weights[there], found[there], ends), shape=(len(found), len(labels)))
    votes = sparse.csr_array(matrix.astype(np.float64) @ labels.matrix)
    rows = np.repeat(np.arange(len(found)), np.diff(votes.indptr))
    voted = votes.data > 0
    shares = votes.data[voted] / totals[rows[voted]]
    return best_of_pairs(rows[voted], votes.indices[voted], shares, len(found), count)
