"""An evaluation of predicted labels in this process: pieces one after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.label_measuring import LabelPiece, Predictor
from divgrpc.evaluation.label_tallying import Known, LabelTally
from divgrpc.evaluation.planning import check_size
from divgrpc.evaluation.running import PIECE_QUERIES, Clock
from divgrpc.label_parameters import PredictParameters
from divgrpc.labels.model import as_labels
from divgrpc.metrics import inverse_propensities
from divgrpc.predicting import document_rows
from divgrpc.types import EvaluateLabelRow, Progress
from divgrpc.vectors import Rows, RowsLike, prepare

# Labels that are kept until the end, each in eight bytes.
LABELS_MAX: Final = 10_000_000
# Fewer points have no propensities: see `inverse_propensities`.
_POINTS_LEAST: Final = 3


def evaluate_labels(
    index: Predictor,
    documents: RowsLike,
    labels: RowsLike,
    *,
    grid: LabelGrid | None = None,
    folds: int = FOLDS,
    per_document: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Iterator[EvaluateLabelRow]:
    """Try every setting of `grid` on `documents` (nq, d), and yield what each reached.

    What is not 0 in `labels` (nq, L) is a true label. Rows of all settings come in the grid's
    order, then one for each choice by `folds`: for every mode, selector, search and top_k the dial,
    limits and threshold with the greatest mean h, or f-score where the index has no hierarchy.
    `per_document`: rows have the numbers of every document. `progress` is called as it goes on.

    Everything is checked before any work: raises `InvalidArgumentError` with the field, and
    `UnfitIndexError` where the index lacks the model or the labels that a mode needs.
    """
    grid = LabelGrid() if grid is None else grid
    rows = document_rows(documents, index.dims)
    # Only for what it raises; a prediction scales its own copy.
    prepare("documents", rows, "inner_product")
    settings = grid.settings()
    check_size("documents", len(rows), len(settings), folds)
    kept = len(rows) * sum(setting.top_k for setting in settings)
    if kept > LABELS_MAX:
        raise InvalidArgumentError(
            "grid", f"settings times documents times top_k must be at most {LABELS_MAX}, got {kept}"
        )
    known = _known(index, rows, labels, settings)
    tell = progress or (lambda _: None)
    return _run(index, rows, settings, replace(known, folds=folds, per_document=per_document), tell)


def _known(
    index: Predictor, rows: Rows, labels: RowsLike, settings: Sequence[PredictParameters]
) -> Known:
    """Return what predictions are judged by; raises what the index cannot do."""
    known = index.labels
    if known is None:
        raise UnfitIndexError("mode", "the index has no labels; Build takes them")
    truth = as_labels(labels, len(rows))
    if truth.dims != known.count:
        raise InvalidArgumentError(
            "labels", f"labels must have {known.count} columns, one per label, got {truth.dims}"
        )
    counts, enough = known.point_counts, index.rows >= _POINTS_LEAST
    return Known(
        generation=index.generation,
        searches=[setting.search for setting in settings],
        parameters=[index.predict(rows[:1], setting).parameters for setting in settings],
        truth=truth,
        goal="f_score" if known.tree is None else "h_score",
        inverse=inverse_propensities(counts, index.rows) if counts is not None and enough else None,
    )


def _run(
    index: Predictor,
    documents: Rows,
    settings: Sequence[PredictParameters],
    known: Known,
    tell: Callable[[Progress], object],
) -> Iterator[EvaluateLabelRow]:
    tally = LabelTally(known)
    clock = Clock(len(settings) * len(documents))
    for number, setting in enumerate(settings):
        for start in range(0, len(documents), PIECE_QUERIES):
            tell(clock.progress(number * len(documents) + start))
            piece = LabelPiece(index, documents[start : start + PIECE_QUERIES], setting)
            piece.answer(piece.rows)
            tally.add(number, start, piece.measured())
    tell(clock.progress(len(settings) * len(documents)))
    yield from tally.rows()
