"""Labels by the votes of neighbours: the paper's "Majority", over documents instead of labels.

Documents that were trained on are found as any points are, diversely if asked, and each gives its
vote to every label it has; `divgrpc.labels.votes` counts them.
"""

from typing import Final

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.labels.model import as_labels, check_top_k, prediction
from divgrpc.labels.votes import most_voted, weigh
from divgrpc.parameters import QueryParameters
from divgrpc.types import LabelPrediction
from divgrpc.vectors import RowsLike, query_rows

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
    engine = index.engine
    truth = as_labels(labels, engine.rows)
    width = check_top_k(top_k, truth.shape[1])
    metric = engine.manifest.parameters.metric
    rows = query_rows("documents", documents, engine.dims, metric)
    asked = parameters or QueryParameters(k=NEIGHBOURS, keep_duplicates=True)
    parts = []
    for start in range(0, len(rows), _BLOCK_ROWS):
        result = engine.answer(rows[start : start + _BLOCK_ROWS], asked, as_points=True)
        votes = engine.topics.labels.rows(result.ids)
        weights = (
            weigh(result.scores, result.counts, metric)
            if weighted
            else np.ones(votes.shape, np.float32)
        )
        parts.append(most_voted(votes, weights, truth, width))
    if not parts:
        raise InvalidArgumentError("documents", "documents must have one row at least")
    best, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
    return prediction(best, shares, top_k, threshold)
