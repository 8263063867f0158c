"""Times of Table 2 at the paper's size, on a set that is made up.

Labels of a given model are scored, all of them or those that hashing finds, one document at a time
on one thread, at one dial. Nothing is trained, so this says what a prediction takes and no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import divgrpc
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.types import FloatArray
from divgrpc_client.reports.paper.label_rows import (
    DEFAULT,
    EVERYTHING,
    FAMILIES,
    PAPERS,
    TOP_K,
    WITHOUT_HASHING,
    Asking,
    built_as,
    hashing,
)

_DIAL: Final = 0.3
_FEW: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class MadeUp:
    """Documents `asked` (nq, d) with their `truth` (nq, L), and a model: (L, r) and (d, r)."""

    asked: Any
    truth: Any
    label_factors: FloatArray
    feature_map: FloatArray


@dataclass(frozen=True, slots=True)
class TimedLabels:
    """The median time of a document, in microseconds, P@5, and the share of labels scored."""

    method: str
    setting: str
    documents: int
    microseconds: float
    precision: float
    scored: float


def label_times(made: MadeUp) -> Iterator[TimedLabels]:
    """Yield the times of every method that predicts by embedding."""
    first = True
    for family in FAMILIES:
        for setting in (PAPERS, DEFAULT):
            index = divgrpc.Index.build(
                made.asked,
                label_model=(made.label_factors, made.feature_map),
                **built_as(family, setting, made.asked.shape[1]),
            )
            if first:
                exhaustive = [each for each in WITHOUT_HASHING if each.mode == "embedding"]
                yield from (_timed(index, made, asking) for asking in exhaustive)
                first = False
            yield from (
                _timed(index, made, asking)
                for asking in hashing(family, setting)
                if asking.mode == "embedding"
            )


def _timed(index: divgrpc.Index, made: MadeUp, asking: Asking) -> TimedLabels:
    slow = asking.setting == EVERYTHING and asking.selector != "nearest"
    rows = slice(0, _FEW if slow else None)
    grid = asking.grid() | {"thresholds": (None,), "diversities": (_DIAL,)}
    (row,) = evaluate_labels(
        index, made.asked[rows], made.truth[rows], grid=LabelGrid(**grid), folds=0
    )
    return TimedLabels(
        asking.method,
        asking.setting,
        row.documents,
        row.microseconds.p50,
        row.precision_at[TOP_K - 1].value,
        row.scored / len(made.label_factors),
    )
