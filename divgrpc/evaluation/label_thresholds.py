"""The least score of a label that is predicted: the one of greatest mean h, found by folds.

The paper's section 4.2 does so for Table 2. Documents that the labels were not trained on show it
truly; those that they were trained on are scored too well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.evaluation import FOLDS, choose_by_folds, deal_folds
from divgrpc.index import Index
from divgrpc.labels.model import as_labels
from divgrpc.labels.prediction import NO_LABELS, IndexedLabels
from divgrpc.metrics import JudgedLabels, LabelTree, Values, measure_labels
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import IntArray
from divgrpc.vectors import Rows, RowsLike, as_rows

# Number of quantiles of the scores to try as thresholds if the caller names no thresholds.
TRIED: Final = 20


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
    asked = parameters or PredictParameters()
    engine = index.engine
    if engine.labels is None:
        raise UnfitIndexError("mode", NO_LABELS)
    rows = as_rows("documents", documents, engine.dims)
    truth = _Truth.of(labels, len(rows), engine.labels)
    dealt = deal_folds(np.zeros(len(rows), np.int64), folds)
    found, scores = _predicted(engine, rows, asked, None)
    tried = _tried(scores[found >= 0]) if thresholds is None else np.unique(thresholds)
    if not len(tried):
        raise InvalidArgumentError("thresholds", "thresholds must not be empty")
    reached = np.stack(
        [truth.measure(_predicted(engine, rows, asked, float(least))[0]) for least in tried]
    )
    chosen = choose_by_folds(reached, dealt)
    best = float(tried[chosen.overall])
    if keep:
        index.set_threshold(best, asked.mode)
    return ChosenThreshold(
        threshold=best,
        measure=truth.name,
        value=float(chosen.reported(reached, dealt).mean()),
        plain=float(truth.measure(found).mean()),
        by_fold=tuple(float(tried[number]) for number in chosen.by_fold),
    )


@dataclass(frozen=True)
class _Truth:
    """What documents truly have, and how to measure by it."""

    labels: SparseLabels
    tree: LabelTree | None

    @classmethod
    def of(cls, labels: RowsLike, documents: int, indexed: IndexedLabels) -> Self:
        rows = as_labels(labels, documents)
        if rows.dims != indexed.count:
            raise InvalidArgumentError(
                "labels", f"labels must have {indexed.count} columns, got {rows.dims}"
            )
        return cls(rows.matrix, indexed.tree)

    @property
    def name(self) -> str:
        return "f_score" if self.tree is None else "h_score"

    def measure(self, predicted: IntArray) -> Values:
        judged = JudgedLabels.of(predicted, self.labels)
        drank = None if self.tree is None else self.tree.drank
        return measure_labels(judged, drank)[self.name]


def _predicted(
    engine: Engine, rows: Rows, asked: PredictParameters, threshold: float | None
) -> tuple[IntArray, Values]:
    """Return labels (nq, top_k) and their scores, batch by batch."""
    with_threshold = replace(asked, threshold=threshold)
    parts = [engine.predict(block, with_threshold) for block in _blocks(rows)]
    labels = np.concatenate([part.labels for part in parts])
    return labels, np.concatenate([part.scores for part in parts])


def _blocks(rows: Rows) -> Iterator[Rows]:
    at_once = LIMITS["query_rows_max"]
    for start in range(0, len(rows), at_once):
        yield rows[start : start + at_once]


def _tried(scores: Values) -> Values:
    """Return quantiles of the scores, the least of them among them."""
    if not len(scores):
        return np.zeros(1)
    at = np.linspace(0, 1, TRIED, endpoint=False)
    return np.unique(np.quantile(scores, at, method="lower").astype(np.float64))
