"""Labels by the votes of neighbours: the paper's "Majority", over documents instead of labels.

Documents that were trained on are found as any points are, diversely if asked, and each gives its
vote to every label it has. A label's score is its share of the votes, so labels that all neighbours
have score 1. Weighted, a neighbour's vote is its cosine or product with the document, none below 0;
under the squared Euclidean distance c it is 1 / (1 + c/s), s being the mean c of the neighbours.
"""

from typing import Final

import numpy as np
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.labels.model import as_labels, best_of_pairs, check_top_k, prediction
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, LabelPrediction, QueryResult
from divgrpc.vectors import RowsLike, SparseRows, query_rows

NEIGHBOURS: Final = 10
_BLOCK_ROWS: Final = 1_000


def neighbour_vote(
    index: Index,
    documents: RowsLike,
    labels: RowsLike,
    *,
    top_k: int = 5,
    threshold: float | None = None,
    weighted: bool = True,
    parameters: QueryParameters | None = None,
) -> LabelPrediction:
    """Return the `top_k` labels of most votes for each of `documents` (nq, d), best first.

    `labels` (n, L), sparse or dense, has a row for each point of the `index`, in the order in which
    it was built; `threshold` is the least share of the votes; `parameters` say how neighbours are
    found, ten by default. Labels without a vote are never returned, and equal shares go by the
    smaller label. Raises `InvalidArgumentError` with the field named: documents, labels, top_k.
    """
    truth = as_labels(labels, index.rows)
    width = check_top_k(top_k, truth.shape[1])
    metric = index.manifest.parameters.metric
    rows = query_rows("documents", documents, index.dims, metric)
    asked = parameters or QueryParameters(k=NEIGHBOURS)
    parts = []
    for start in range(0, len(rows), _BLOCK_ROWS):
        result = index.answer(rows[start : start + _BLOCK_ROWS], asked)
        found = index.topics.labels.rows(result.ids)
        weights = _weights(result, metric) if weighted else np.ones(found.shape, np.float32)
        parts.append(_most_voted(found, weights, truth, width))
    if not parts:
        raise InvalidArgumentError("documents", "documents must have one row at least")
    best, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
    return prediction(best, shares, top_k, threshold)


def _weights(result: QueryResult, metric: str) -> FloatArray:
    """Return what the vote of each result weighs, (nq, k), from 0 up."""
    scores = np.where(result.ids >= 0, result.scores, 0)
    if metric != "euclidean":
        return np.asarray(np.maximum(scores, 0))
    counts = np.maximum(result.counts, 1)[:, None]
    scale = scores.sum(axis=1, keepdims=True, dtype=np.float64) / counts
    return np.asarray(1 / (1 + scores / np.where(scale > 0, scale, 1)), np.float32)


def _most_voted(
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
