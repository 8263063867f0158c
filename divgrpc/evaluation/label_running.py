"""Evaluations of an index's label predictions, choice of a threshold, and votes of neighbours.

`evaluate_labels` measures predictions at many settings. The module `labels` makes result rows.

`choose_threshold` chooses the minimum score of a predicted label by cross-validation, as section
4.2 of the paper does for Table 2. Use documents that the model was not trained on, because scores
of labels are too high for training documents.

`neighbour_vote` implements the paper's "Majority" for documents. The points of the index are
training documents. A query finds neighbours of a document, and each neighbour votes for every label
that it has.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.builder.labels import wrong_label_count
from divgrpc.engine import Engine
from divgrpc.errors import UnfitIndexError, invalid
from divgrpc.evaluation.folds import FOLDS, choose_by_folds, deal_folds
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.labels import LabelTally, LabelTask
from divgrpc.evaluation.study import Resolution, Runner, Study
from divgrpc.index import Index
from divgrpc.labels.model import as_labels, check_top_k, prediction
from divgrpc.labels.prediction import document_rows, most_voted, weigh
from divgrpc.metrics import JudgedLabels, LabelTree, Values, measure_labels
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import (
    EffectiveLabelParameters,
    EvaluateLabelRow,
    IntArray,
    LabelPrediction,
    Progress,
)
from divgrpc.vectors import Rows, RowsLike, SparseRows, as_rows, query_rows

# Maximum number of quantiles of the scores that `choose_threshold` tries by default.
QUANTILES: Final = 20
NEIGHBOURS: Final = 10
_BLOCK_ROWS: Final = 1_000


def evaluate_labels(
    index: Index,
    documents: RowsLike,
    labels: RowsLike,
    *,
    groups: npt.ArrayLike | None = None,
    grid: LabelGrid | None = None,
    folds: int = FOLDS,
    set_default: bool = False,
    per_document: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Iterator[EvaluateLabelRow]:
    """Measure every setting of `grid` on `documents` (nq, d), and yield a row for each setting.

    documents: (nq, d), dense or sparse.
    labels: (nq, L), the true labels. A document has label j if column j is not 0.
    groups: (nq,) whole numbers, the group of each document; by default each document is its own
        group. Intervals and folds are over groups.
    grid: the settings to measure; by default those of `LabelGrid()`.
    folds: number of cross-validation folds, 2 to nq, or 0 to choose no setting. There are never
        more folds than groups, and with one group no setting is chosen.
    set_default: store the threshold of each mode's best choice in the index, and yield a row for
        each of these choices.
    per_document: include the figures of every document in the rows.
    progress: called with a `Progress` at the start and after each block of documents.

    The rows of all settings come first, in the order of the grid. They are followed by a row for
    each choice. A choice is made for every combination of mode, selector, search and top_k. The
    choice is the diversity, limits, n_probes and threshold with the greatest mean h or, if the
    index has no hierarchy, with the greatest mean f-score. With `set_default`, a row for the best
    choice of each mode follows. Nested folds keep the figures of this row from being too high.

    Before any work, raises `InvalidArgumentError` with the field for an invalid argument, and
    `UnfitIndexError` if the index lacks the model, the labels or the hierarchy that a setting
    needs.
    """
    engine = index.engine
    rows = document_rows(documents, engine.dims)
    task = LabelTask(
        grid=LabelGrid() if grid is None else grid,
        rows=len(rows),
        folds=folds,
        set_default=set_default,
        per_row=per_document,
        groups=None if groups is None else np.asarray(groups),
    ).bounded()
    return study_labels(engine, rows, as_labels(labels, len(rows)), task).run(progress)


def study_labels(
    index: Runner, documents: Rows, truth: SparseLabels, task: LabelTask
) -> Study[EvaluateLabelRow]:
    """Check a task, documents and true labels against an index, and return the study.

    index: an engine or a `ShardRunner`.

    Raises the same errors as `evaluate_labels`.
    """
    tally = LabelTally(task, _resolve(index, documents, truth, task), truth)

    def set_thresholds(rows: Sequence[EvaluateLabelRow]) -> None:
        for row in rows:
            if row.is_default:
                index.run(partial(_set_threshold, parameters=row.parameters))

    def measure_block(rows: slice, setting: PredictParameters) -> Values:
        return _measure(index, documents[rows], setting)

    return Study(tally, measure_block, set_thresholds)


def _set_threshold(engine: Engine, parameters: EffectiveLabelParameters) -> None:
    engine.set_threshold(parameters.threshold, parameters.mode)


def _resolve(index: Runner, documents: Rows, truth: SparseLabels, task: LabelTask) -> Resolution:
    settings: list[Any] = task.grid.settings()

    def check(engine: Engine) -> Resolution:
        labels = engine.labels_or_error()
        _check_columns(engine, truth)
        for setting in {setting.mode: setting for setting in settings}.values():
            engine.check_documents(documents, setting)
        return Resolution(
            generation=engine.generation,
            parameters=(),
            goal="f_score" if labels.tree is None else "h_score",
            points=engine.rows_searched,
            counts=engine.label_counts,
            block_rows=tuple(_rows_together(engine, documents, setting) for setting in settings),
        )

    def predict_first(setting: PredictParameters) -> EffectiveLabelParameters:
        return index.run(lambda engine: engine.predict(documents[:1], setting).parameters)

    return replace(index.run(check), parameters=tuple(map(predict_first, settings)))


def _rows_together(engine: Engine, documents: Rows, setting: PredictParameters) -> int:
    """Return the maximum number of documents in a block."""
    if setting.mode == "embedding":
        return LIMITS["query_rows_max"]
    query = setting.filled(hierarchy=engine.labels_or_error().has_hierarchy).query
    return engine.rows_together(query, documents, as_points=True)


def _check_columns(index: Engine, truth: SparseLabels) -> None:
    count = index.labels_or_error().count
    if truth.shape[1] != count:
        raise wrong_label_count(count, truth.shape[1])


def _measure(index: Runner, documents: Rows, setting: PredictParameters) -> Values:
    """Predict the labels of one document at a time, and return the figures of all documents.

    The result is (3 + top_k, nq): `WORK_COLUMNS`, then the labels. drank is NaN without a
    hierarchy.
    """

    def predict(engine: Engine) -> tuple[IntArray, Values, Values, LabelTree | None]:
        tree = engine.labels_or_error().tree
        return *engine.predict_one_by_one(documents, setting), tree

    (labels, scored_counts, microseconds, tree), seconds = index.run_timed(predict)
    drank = np.full(len(labels), np.nan) if tree is None else tree.drank(labels)
    microseconds = microseconds + seconds * 1e6 / len(labels)
    return np.stack([drank, scored_counts, microseconds, *labels.T])


@dataclass(frozen=True, slots=True)
class ChosenThreshold:
    """A threshold for label scores, and what it achieves.

    threshold: the threshold with the greatest mean of `measure` over all documents.
    measure: `h_score` if the index has a hierarchy, else `f_score`.
    value: the mean of the measure if the documents of each fold use its threshold in `by_fold`.
    plain: the mean of the measure without a threshold.
    by_fold: for each fold, the best threshold for the documents of the other folds.
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
    labels: (nq, L), the true labels, dense or sparse. A document has label j if column j is not 0.
    thresholds: the thresholds to try; by default at most 20 quantiles of all predicted scores.
    folds: number of cross-validation folds, 2 to nq.
    keep: store the threshold in the index as the default for the mode of `parameters`.

    Among equally good thresholds the lowest is chosen. Raises the errors of `Index.predict_labels`,
    and `InvalidArgumentError` with the field labels, thresholds or folds.
    """
    query = parameters or PredictParameters()
    engine = index.engine
    tree = engine.labels_or_error().tree
    rows = as_rows("documents", documents, engine.dims)
    truth = as_labels(labels, len(rows))
    _check_columns(engine, truth)
    fold_of_row = deal_folds(np.arange(len(rows)), folds)
    predictions, scores = _predict(engine, rows, query, None)
    scores = scores[predictions >= 0]
    candidates = _quantiles(scores) if thresholds is None else np.unique(thresholds)
    if not len(candidates):
        raise invalid("thresholds", "must not be empty")
    values = np.stack(
        [_values(_predict(engine, rows, query, float(t))[0], truth, tree) for t in candidates]
    )
    choice = choose_by_folds(values, fold_of_row)
    best = float(candidates[choice.overall])
    if keep:
        index.set_threshold(best, query.mode)
    return ChosenThreshold(
        threshold=best,
        measure="f_score" if tree is None else "h_score",
        value=float(choice.reported(values, fold_of_row).mean()),
        plain=float(_values(predictions, truth, tree).mean()),
        by_fold=tuple(float(candidates[number]) for number in choice.by_fold),
    )


def _predict(
    engine: Engine, rows: Rows, parameters: PredictParameters, threshold: float | None
) -> tuple[IntArray, Values]:
    """Return the predicted labels (nq, top_k) and their scores; predicts in batches."""
    parameters = replace(parameters, threshold=threshold)
    size = LIMITS["query_rows_max"]
    parts = [
        engine.predict(rows[start : start + size], parameters)
        for start in range(0, len(rows), size)
    ]
    labels = np.concatenate([part.labels for part in parts])
    return labels, np.concatenate([part.scores for part in parts])


def _values(labels: IntArray, truth: SparseRows, tree: LabelTree | None) -> Values:
    """Return the h-score of each document or, if `tree` is None, the f-score."""
    judgments = JudgedLabels.of(labels, truth.matrix)
    if tree is None:
        return measure_labels(judgments)["f_score"]
    return measure_labels(judgments, tree.drank)["h_score"]


def _quantiles(scores: Values) -> Values:
    """Return at most `QUANTILES` different quantiles, including the minimum; 0 without scores."""
    if not len(scores):
        return np.zeros(1)
    shares = np.linspace(0, 1, QUANTILES, endpoint=False)
    return np.unique(np.quantile(scores, shares, method="lower").astype(np.float64))


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
    """Return the `top_k` labels with the most votes for each document, best first.

    documents: (nq, d), dense or sparse.
    labels: (n, L), dense or sparse, the labels of each point of the index in the order of the
        build. A point has label j if column j is not 0.
    top_k: maximum number of labels for each document. Labels without a vote are never returned.
    threshold: minimum share of the votes.
    weighted: weight each vote by the similarity of the neighbour.
    parameters: how to find neighbours; the default finds ten.

    Labels with equal shares are ordered by label number. Raises `InvalidArgumentError` with the
    field documents, labels or top_k, and `UnfitIndexError` for an index with points without a
    vector.
    """
    engine = index.engine
    if engine.rows_searched < engine.rows:
        rule = "has points without a vector, so its rows are not in the order of the build"
        advice = "give the labels to Build, and call predict_labels with the mode neighbour_vote"
        raise UnfitIndexError("index", f"index {rule}: {advice}")
    truth = as_labels(labels, engine.rows)
    width = check_top_k(top_k, truth.shape[1])
    metric = engine.manifest.parameters.metric
    rows = query_rows("documents", documents, engine.dims, metric)
    query = parameters or QueryParameters(k=NEIGHBOURS, keep_duplicates=True)
    parts = []
    for start in range(0, len(rows), _BLOCK_ROWS):
        result = engine.answer(rows[start : start + _BLOCK_ROWS], query, as_points=True)
        votes = engine.rows_of(result.ids)
        weights = np.ones(votes.shape, np.float32)
        if weighted:
            weights = weigh(result.scores, result.counts, metric)
        parts.append(most_voted(votes, weights, truth, width))
    if not parts:
        raise invalid("documents", "must have one row at least")
    best, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
    return prediction(best, shares, top_k, threshold)
