"""An evaluation of predicted labels in this process: pieces one after the other."""

from collections.abc import Callable, Iterator

from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.label_measuring import IndexedPredictor, LabelPiece, Predictor
from divgrpc.evaluation.label_planning import LabelOutlook, LabelTask
from divgrpc.evaluation.label_tallying import LabelTally
from divgrpc.evaluation.running import PIECE_QUERIES, Clock
from divgrpc.labels.model import as_labels
from divgrpc.labels.prediction import NO_LABELS, document_rows
from divgrpc.metrics.labelling import SparseLabels
from divgrpc.types import EvaluateLabelRow, Progress
from divgrpc.vectors import Rows, RowsLike


def evaluate_labels(
    index: IndexedPredictor,
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
    order, then one for each choice by `folds`: for every mode, selector, search and top_k the dial,
    limits and threshold with the greatest mean h, or f-score where the index has no hierarchy. With
    `set_default` the threshold of the best choice of each mode is kept with the index.
    `per_document`: rows have the numbers of every document. `progress` is called as it goes on.

    Everything is checked before any work: raises `InvalidArgumentError` with the field, and
    `UnfitIndexError` where the index lacks the model or the labels that a mode needs, or the
    hierarchy that the selector `hierarchy` needs.
    """
    engine = index.engine
    rows = document_rows(documents, engine.dims)
    task = LabelTask(
        grid=LabelGrid() if grid is None else grid,
        documents=len(rows),
        folds=folds,
        set_default=set_default,
        per_document=per_document,
    ).bounded()
    truth = as_labels(labels, len(rows))
    tell = progress or (lambda _: None)
    return _run(engine, (rows, truth), task, plan_labels(engine, rows, truth, task), tell)


def plan_labels(
    index: Predictor, documents: Rows, truth: SparseLabels, task: LabelTask
) -> LabelOutlook:
    """Check a task, documents and true labels against an index; raises as `evaluate_labels`."""
    known = index.labels
    if known is None:
        raise UnfitIndexError("mode", NO_LABELS)
    if truth.shape[1] != known.count:
        raise InvalidArgumentError(
            "labels", f"labels must have {known.count} columns, one per label, got {truth.shape[1]}"
        )
    settings = task.grid.settings()
    for setting in {each.mode: each for each in settings}.values():
        index.check_documents(documents, setting)
    return LabelOutlook(
        generation=index.generation,
        resolved=tuple(index.predict(documents[:1], each).parameters for each in settings),
        goal="f_score" if known.tree is None else "h_score",
        points=index.rows,
        counts=known.point_counts,
    )


def _run(
    index: Predictor,
    given: tuple[Rows, SparseLabels],
    task: LabelTask,
    outlook: LabelOutlook,
    tell: Callable[[Progress], object],
) -> Iterator[EvaluateLabelRow]:
    documents, truth = given
    settings = task.grid.settings()
    tally = LabelTally(task, outlook, truth)
    clock = Clock(len(settings) * len(documents))
    for number, setting in enumerate(settings):
        for start in range(0, len(documents), PIECE_QUERIES):
            tell(clock.progress(number * len(documents) + start))
            piece = LabelPiece(index, documents[start : start + PIECE_QUERIES], setting)
            piece.answer(piece.rows)
            tally.add(number, start, piece.measured())
    tell(clock.progress(len(settings) * len(documents)))
    rows, thresholds = tally.rows()
    for mode, threshold in thresholds.items():
        index.set_threshold(threshold, mode)
    yield from rows
