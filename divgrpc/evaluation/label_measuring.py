"""One setting over some documents: labels predicted one document at a time, timed, measured.

As in `measuring`, a piece of work is a pure function of an open index, documents and a setting, but
for the times. It knows nothing of the true labels: `label_tallying` judges by them.
"""

import time
from collections.abc import Generator
from typing import Any, Final, Protocol

import numpy as np

from divgrpc.metrics import LabelTree, Values
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import IntArray, LabelResult, Mode

# What a piece knows of every document, before its labels in the order in which they were picked.
TAKEN: Final = ("drank", "scored", "microseconds")

# Rows as `divgrpc.vectors` has them, checked, with slices.
Documents = Any


class Labelled(Protocol):
    """As much of `divgrpc.labels.prediction.IndexedLabels` as an evaluation asks."""

    @property
    def count(self) -> int:
        """How many labels there are."""

    @property
    def tree(self) -> LabelTree | None:
        """The hierarchy."""

    @property
    def point_counts(self) -> IntArray | None:
        """How many points have each label."""


class Predictor(Protocol):
    """As much of `divgrpc.engine.Engine` as an evaluation of labels asks."""

    @property
    def labels(self) -> Labelled | None:
        """What it knows of labels."""

    @property
    def generation(self) -> int:
        """The number of this build."""

    @property
    def rows(self) -> int:
        """How many points there are."""

    @property
    def dims(self) -> int:
        """How many features documents have."""

    def predict(self, documents: Documents, parameters: PredictParameters) -> LabelResult:
        """Predict the labels of documents."""

    def check_documents(self, documents: Documents, parameters: PredictParameters) -> None:
        """Raise what `predict` would raise for them."""

    def set_threshold(self, threshold: float | None, mode: Mode = "embedding") -> None:
        """Keep a threshold."""


class IndexedPredictor(Protocol):
    """As much of `divgrpc.Index` as that."""

    @property
    def engine(self) -> Predictor:
        """What predicts."""


class LabelPiece:
    """A setting over a block of documents, to be predicted some at a time."""

    def __init__(self, index: Predictor, documents: Documents, setting: PredictParameters) -> None:
        self._index = index
        self._documents = documents
        self._setting = setting
        self._table = np.empty((len(TAKEN) + setting.top_k, len(documents)))
        self.done = 0

    @property
    def rows(self) -> int:
        """How many documents there are."""
        return len(self._documents)

    def answer(self, stop: int) -> None:
        """Predict for the documents up to `stop` that are not done yet."""
        scored, times, labels = self._table[1], self._table[2], self._table[len(TAKEN) :]
        for row in range(self.done, stop):
            document = self._documents[row : row + 1]
            begun = time.perf_counter()
            result = self._index.predict(document, self._setting)
            times[row] = 1e6 * (time.perf_counter() - begun)
            scored[row] = result.stats.points_scored[0]
            labels[:, row] = result.labels[0]
        self.done = stop

    def measuring(self) -> Generator[None, None, Values]:
        """Return what `measured` returns; it is little beside the predictions."""
        yield
        return self.measured()

    def measured(self) -> Values:
        """Return (len(TAKEN) + top_k, nq) float64: what is known of every document.

        All must be predicted. drank is NaN where there is no hierarchy.
        """
        known = self._index.labels
        tree = None if known is None else known.tree
        labels = self._table[len(TAKEN) :].T.astype(np.int64)
        self._table[0] = np.nan if tree is None else tree.drank(labels)
        return self._table
