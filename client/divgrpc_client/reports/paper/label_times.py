"""Times of Table 2 at the paper's size, on a set that is made up: see `labelled`.

The model is the planted one, of the paper's rank, so nothing is trained. What stands for a document
is given, so nothing of the time is embedding but one small product. Labels are scored, all of them
or those that hashing finds, one document at a time on one thread, at one dial.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

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
from divgrpc_client.reports.paper.labelled import (
    DOCUMENTS,
    FEATURES,
    LABELS,
    labelled_documents,
)

# Documents, features, labels, rank, and documents asked.
SIZE: Final = (DOCUMENTS, FEATURES, LABELS, 200, 200)
SMALL: Final = (300, 4_000, 500, 20, 30)
_DIAL: Final = 0.3
_FEW: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class MadeUp:
    """What stands for documents, `asked` (nq, r), their `truth` (nq, L), label factors (L, r)."""

    asked: FloatArray
    truth: Any
    label_factors: FloatArray


@dataclass(frozen=True, slots=True)
class TimedLabels:
    """The median time of a document, in microseconds, P@5, and the share of labels scored."""

    method: str
    setting: str
    labels: int
    documents: int
    microseconds: float
    precision: float
    scored: float


def made_up(documents: int, features: int, labels: int, rank: int, asked: int) -> MadeUp:
    """Make up a set; at the paper's size some twenty seconds, and some gigabytes."""
    made = labelled_documents(documents, features, labels, asked)
    factors, feature_map = made.planted(rank)
    return MadeUp(made.asked @ feature_map, made.truth, factors)


def label_times(made: MadeUp) -> Iterator[TimedLabels]:
    """Yield the times of every method that predicts by embedding."""
    rank = made.label_factors.shape[1]
    feature_map, first = np.eye(rank, dtype=np.float32), True
    for family in FAMILIES:
        for setting in (PAPERS, DEFAULT):
            index = divgrpc.Index.build(
                made.asked,
                label_model=(made.label_factors, feature_map),
                **built_as(family, setting, rank),
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
        len(made.label_factors),
        row.documents,
        row.microseconds.p50,
        row.precision_at[TOP_K - 1].value,
        row.scored / len(made.label_factors),
    )
