"""The choice of the least score of a predicted label: the greatest mean h, by cross-validation.

The paper's section 4.2 does so for Table 2. Use documents that did not train the model, because
labels of its training documents have scores that are too high.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.evaluation import FOLDS, choose_by_folds, deal_folds
from divgrpc.index import Index
from divgrpc.labels.model import as_labels
from divgrpc.metrics import JudgedLabels, Values, measure_labels
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import IntArray
from divgrpc.vectors import Rows, RowsLike, as_rows

# Number of quantiles of the scores to try as thresholds if the caller names no thresholds.
QUANTILES: Final = 20


@dataclass(frozen=True, slots=True)
class ChosenThreshold:
    """The `threshold` with the greatest mean measure over all documents.

    `measure` is the name of the measure: h_score if the index has a hierarchy, else f_score.
    `by_fold` has the threshold chosen for each fold on the documents of the other folds. `value` is
    the mean measure with these thresholds, and `plain` the mean measure without a threshold.
    """

    threshold: float
    measure: str
    value: float
    plain: float
    by_fold: tuple[float, ...]


def choose_threshold(
    index: Index,
    documents: RowsLike,
    labels: RowsLike,
    parameters: PredictParameters | None = None,
    *,
    thresholds: Sequence[float] | None = None,
    folds: int = FOLDS,
    keep: bool = False,
) -> ChosenThreshold:
    """Choose the threshold for predictions with `parameters` on documents with known labels.

    documents: (nq, d), dense or sparse.
    labels: (nq, L) their true labels, dense or sparse; a row has label j if column j is not 0.
    thresholds: the thresholds to try. Default: 20 quantiles of the scores without a threshold.
    folds: number of folds, 2 to nq.
    keep: store the choice in the index, for predictions in the same mode that set no threshold.

    If several thresholds are equally good, the lowest is chosen. Raises the errors of
    `Index.predict_labels`, and `InvalidArgumentError` with the field: labels, thresholds or folds.
    """
    query = parameters or PredictParameters()
    engine = index.engine
    indexed_labels = engine.labels_or_error()
    rows = as_rows("documents", documents, engine.dims)
    truth = as_labels(labels, len(rows))
    if truth.dims != indexed_labels.count:
        raise invalid("labels", f"must have {indexed_labels.count} columns, got {truth.dims}")
    drank = None if indexed_labels.tree is None else indexed_labels.tree.drank
    measure = "f_score" if drank is None else "h_score"

    def values_of(predictions: IntArray) -> Values:
        return measure_labels(JudgedLabels.of(predictions, truth.matrix), drank)[measure]

    fold_of_row = deal_folds(np.zeros(len(rows), np.int64), folds)
    predictions, scores = _predict(engine, rows, query, None)
    candidates = (
        _quantiles(scores[predictions >= 0]) if thresholds is None else np.unique(thresholds)
    )
    if not len(candidates):
        raise invalid("thresholds", "must not be empty")
    values = np.stack(
        [values_of(_predict(engine, rows, query, float(least))[0]) for least in candidates]
    )
    choice = choose_by_folds(values, fold_of_row)
    best = float(candidates[choice.overall])
    if keep:
        index.set_threshold(best, query.mode)
    return ChosenThreshold(
        threshold=best,
        measure=measure,
        value=float(choice.reported(values, fold_of_row).mean()),
        plain=float(values_of(predictions).mean()),
        by_fold=tuple(float(candidates[number]) for number in choice.by_fold),
    )


def _predict(
    engine: Engine, rows: Rows, parameters: PredictParameters, threshold: float | None
) -> tuple[IntArray, Values]:
    """Return labels (nq, top_k) and their scores, batch by batch."""
    parameters = replace(parameters, threshold=threshold)
    size = LIMITS["query_rows_max"]
    parts = [
        engine.predict(rows[start : start + size], parameters)
        for start in range(0, len(rows), size)
    ]
    labels = np.concatenate([part.labels for part in parts])
    return labels, np.concatenate([part.scores for part in parts])


def _quantiles(scores: Values) -> Values:
    """Return at most `QUANTILES` different quantiles of the scores, the least of them included."""
    if not len(scores):
        return np.zeros(1)
    shares = np.linspace(0, 1, QUANTILES, endpoint=False)
    return np.unique(np.quantile(scores, shares, method="lower").astype(np.float64))
