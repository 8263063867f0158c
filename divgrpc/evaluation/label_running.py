"""Labels predicted by an index: evaluations, and the votes of neighbours.

`evaluate_labels` measures predictions; `labels` makes the rows of the figures. `neighbour_vote` is
the paper's "Majority", over documents instead of labels: documents of a training set are found as
points, diversely if asked, and each gives its vote to every label it has.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.labels import WORK_COLUMNS, LabelResolution, LabelTally, LabelTask
from divgrpc.evaluation.study import Study
from divgrpc.index import Index
from divgrpc.labels.model import as_labels, check_top_k, prediction
from divgrpc.labels.prediction import document_rows
from divgrpc.labels.votes import most_voted, weigh
from divgrpc.metrics import Values
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.parameters import QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.platforms import thread_seconds
from divgrpc.types import EvaluateLabelRow, LabelPrediction, Progress
from divgrpc.vectors import Rows, RowsLike, query_rows

NEIGHBOURS: Final = 10
_BLOCK_ROWS: Final = 1_000


def evaluate_labels(
    index: Index,
    documents: RowsLike,
    labels: RowsLike,
    *,
    grid: LabelGrid | None = None,
    folds: int = FOLDS,
    set_default: bool = False,
    per_document: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Iterator[EvaluateLabelRow]:
    """Measure every setting of `grid` on `documents` (nq, d), and yield a row for each.

    What is not 0 in `labels` (nq, L) is a true label. Rows of all settings come in the grid's
    order. A row follows for each choice by `folds`: for every mode, selector, search and top_k the
    diversity, limits and threshold with the greatest mean h, or f-score where the index has no
    hierarchy. With `set_default` the threshold of the best choice of each mode is kept with the
    index. With `per_document` rows have the figures of every document. `progress` is called after
    each block of documents.

    Everything is checked before any work: raises `InvalidArgumentError` with the field, and
    `UnfitIndexError` where the index lacks the model or the labels that a mode needs, or the
    hierarchy that the selector `hierarchy` needs.
    """
    engine = index.engine
    rows = document_rows(documents, engine.dims)
    task = LabelTask(
        grid=LabelGrid() if grid is None else grid,
        rows=len(rows),
        folds=folds,
        set_default=set_default,
        per_row=per_document,
    ).bounded()
    return study_labels(engine, rows, as_labels(labels, len(rows)), task).run(progress)


def study_labels(
    index: Engine, documents: Rows, truth: SparseLabels, task: LabelTask
) -> Study[EvaluateLabelRow]:
    """Check a task, documents and true labels against an index; raises as `evaluate_labels`."""
    tally = LabelTally(task, _resolve(index, documents, truth, task), truth)

    def set_thresholds(rows: Sequence[EvaluateLabelRow]) -> None:
        for row in rows:
            if row.is_default:
                index.set_threshold(row.parameters.threshold, row.parameters.mode)

    def measure_block(rows: slice, setting: PredictParameters) -> Values:
        return _measure(index, documents[rows], setting)

    return Study(tally, measure_block, set_thresholds)


def _resolve(
    index: Engine, documents: Rows, truth: SparseLabels, task: LabelTask
) -> LabelResolution:
    labels = index.labels_or_error()
    if truth.shape[1] != labels.count:
        raise invalid(
            "labels", f"must have {labels.count} columns, one per label, got {truth.shape[1]}"
        )
    settings: list[Any] = task.grid.settings()
    for setting in {setting.mode: setting for setting in settings}.values():
        index.check_documents(documents, setting)
    return LabelResolution(
        generation=index.generation,
        parameters=tuple(index.predict(documents[:1], s).parameters for s in settings),
        goal="f_score" if labels.tree is None else "h_score",
        chooses=bool(task.folds),
        points=index.rows,
        counts=labels.point_counts,
    )


def _measure(index: Engine, documents: Rows, setting: PredictParameters) -> Values:
    """Return the figures (3 + top_k, nq) of documents, each labelled alone.

    drank is NaN if there is no hierarchy.
    """
    work = np.full((len(WORK_COLUMNS), len(documents)), np.nan)
    labels = np.empty((len(documents), setting.top_k), np.int64)
    for row in range(len(documents)):
        start = thread_seconds()
        result = index.predict(documents[row : row + 1], setting)
        microseconds = 1e6 * (thread_seconds() - start)
        work[1:, row] = result.stats.points_scored[0], microseconds
        labels[row] = result.labels[0]
    tree = index.labels_or_error().tree
    if tree is not None:
        work[0] = tree.drank(labels)
    return np.concatenate([work, labels.T])


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
    query = parameters or QueryParameters(k=NEIGHBOURS, keep_duplicates=True)
    parts = []
    for start in range(0, len(rows), _BLOCK_ROWS):
        result = engine.answer(rows[start : start + _BLOCK_ROWS], query, as_points=True)
        votes = engine.topics.labels.rows(result.ids)
        weights = np.ones(votes.shape, np.float32)
        if weighted:
            weights = weigh(result.scores, result.counts, metric)
        parts.append(most_voted(votes, weights, truth, width))
    if not parts:
        raise invalid("documents", "must have one row at least")
    best, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
    return prediction(best, shares, top_k, threshold)
