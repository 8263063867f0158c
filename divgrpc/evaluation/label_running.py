"""Evaluations of predicted labels on an index: measurements, from which `labels` makes rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.labels import TAKEN, LabelPlan, LabelTally, LabelTask
from divgrpc.evaluation.study import Study
from divgrpc.index import Index
from divgrpc.labels.model import as_labels
from divgrpc.labels.prediction import NO_LABELS, document_rows
from divgrpc.metrics import Values
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.parameters.predict import PredictParameters
from divgrpc.platforms import thread_seconds
from divgrpc.types import EvaluateLabelRow, Progress
from divgrpc.vectors import Rows, RowsLike


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
    """Try every setting of `grid` on `documents` (nq, d), and yield what each reached.

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
    study = study_labels(engine, rows, as_labels(labels, len(rows)), task)
    return study.run(progress or (lambda _: None))


def study_labels(
    index: Engine, documents: Rows, truth: SparseLabels, task: LabelTask
) -> Study[EvaluateLabelRow]:
    """Check a task, documents and true labels against an index; raises as `evaluate_labels`."""
    tally = LabelTally(task, _plan(index, documents, truth, task), truth)

    def keep(rows: Sequence[EvaluateLabelRow]) -> None:
        for row in rows:
            if row.is_default:
                index.set_threshold(row.parameters.threshold, row.parameters.mode)

    return Study(tally, lambda rows, setting: _measure(index, documents[rows], setting), keep)


def _plan(index: Engine, documents: Rows, truth: SparseLabels, task: LabelTask) -> LabelPlan:
    known = index.labels
    if known is None:
        raise UnfitIndexError("mode", NO_LABELS)
    if truth.shape[1] != known.count:
        raise InvalidArgumentError(
            "labels", f"labels must have {known.count} columns, one per label, got {truth.shape[1]}"
        )
    settings: list[Any] = task.grid.settings()
    for setting in {each.mode: each for each in settings}.values():
        index.check_documents(documents, setting)
    return LabelPlan(
        index.generation,
        tuple(index.predict(documents[:1], setting).parameters for setting in settings),
        goal="f_score" if known.tree is None else "h_score",
        chooses=bool(task.folds),
        points=index.rows,
        counts=known.point_counts,
    )


def _measure(index: Engine, documents: Rows, setting: PredictParameters) -> Values:
    """Return the figures (3 + top_k, nq) of documents, each labelled alone.

    drank is NaN where there is no hierarchy.
    """
    table = np.empty((len(TAKEN) + setting.top_k, len(documents)))
    labels = np.empty((len(documents), setting.top_k), np.int64)
    for row in range(len(documents)):
        start = thread_seconds()
        result = index.predict(documents[row : row + 1], setting)
        table[2, row] = 1e6 * (thread_seconds() - start)
        table[1, row] = result.stats.points_scored[0]
        labels[row] = result.labels[0]
    tree = None if index.labels is None else index.labels.tree
    table[0] = np.nan if tree is None else tree.drank(labels)
    table[len(TAKEN) :] = labels.T
    return table
