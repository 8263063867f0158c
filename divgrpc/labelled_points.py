"""The part of the engine that predicts labels."""

from abc import abstractmethod
from dataclasses import replace

import numpy as np

from divgrpc.errors import UnfitIndexError, invalid
from divgrpc.labels.prediction import IndexedLabels, LabelSets, document_rows
from divgrpc.metrics import Values
from divgrpc.parameters import QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.parameters.warning_rules import stale_label_model
from divgrpc.platforms import thread_seconds
from divgrpc.search.arrays import Answers
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.stored_points import StoredPoints
from divgrpc.types import IntArray, LabelResult, WarningInfo
from divgrpc.vectors import Rows, RowsLike, prepare


class LabelledPoints(StoredPoints):
    """The labels of an index; `divgrpc.engine.Engine` sets the fields.

    labels: the object that predicts labels; None if the index has no labels.
    """

    labels: IndexedLabels | None

    @abstractmethod
    def searched(self, passing: PassingRows | None) -> PassingRows | None:
        """Return the points that pass and that searches see."""

    @abstractmethod
    def _search(self, queries: Rows, plan: QueryPlan, passing: PassingRows | None) -> Answers:
        """Return the answers to queries."""

    @abstractmethod
    def plan(
        self,
        parameters: QueryParameters,
        *,
        dense: bool,
        passing: int | None = None,
        picks: bool = True,
    ) -> QueryPlan:
        """Return the plan for parameters."""

    def labels_or_error(self) -> IndexedLabels:
        """Return `labels`; raises `UnfitIndexError` if the index has no labels."""
        if self.labels is None:
            raise UnfitIndexError(
                "mode", "the index has no labels: give labels or a label_model to Build"
            )
        return self.labels

    @property
    def label_sets(self) -> LabelSets | None:
        """The label sets of the points; None without them."""
        return None if self.labels is None else self.labels.sets

    @property
    def label_counts(self) -> IntArray | None:
        """The number of points that have each label, (L,) int64; None without label sets."""
        sets = None if self.labels is None else self.labels.sets
        return None if sets is None else np.bincount(sets.indices, minlength=sets.dims)

    @property
    def has_stale_label_model(self) -> bool:
        """Whether points were written or deleted since Build trained the label model."""
        section = self.manifest.labels
        return section is not None and section.is_stale

    def predict(
        self,
        documents: RowsLike,
        parameters: PredictParameters,
        passing: PassingRows | None = None,
    ) -> LabelResult:
        """Predict labels as `Index.predict_labels` does, but ignore the index's thresholds.

        Only points in `passing` vote; None stands for all points.
        """
        labels = self.labels_or_error()
        rows = document_rows(documents, self.dims)
        parameters = parameters.filled(hierarchy=labels.has_hierarchy)
        warnings: tuple[WarningInfo, ...] = ()
        if parameters.mode == "embedding":
            if passing is not None:
                raise invalid("filter", "needs the mode neighbour_vote, in which points vote")
            answers, query = labels.predict(rows, parameters)
            if self.has_stale_label_model:
                warnings = (stale_label_model(),)
        else:
            prepare("documents", rows, self._searcher.metric)
            passing = self.searched(passing)
            # Unlike a dense query, a dense document is treated as a point, not as a hyperplane.
            count = None if passing is None else passing.count
            plan = self.plan(parameters.query, dense=False, passing=count)
            answers, query = self._search(rows, plan, passing), plan.parameters
            voters = self._voters(answers.ids)
            answers = labels.vote(voters, self.label_sets, answers, parameters)
        result = labels.result(answers, query, parameters, self.generation, warnings)
        return replace(result, sequence=self.sequence)

    def _voters(self, keys: IntArray) -> IntArray:
        """Return the numbers by which `label_sets` knows points, given their keys."""
        return keys if self._has_texts else self._reader.ids.rows_of_keys(keys)

    def predict_one_by_one(
        self, documents: Rows, parameters: PredictParameters
    ) -> tuple[IntArray, Values, Values]:
        """Predict labels for one document at a time, and measure each time, for evaluations.

        Returns the labels (nq, top_k) int64 that `predict` would return. Also returns two float64
        arrays (nq,): for each document, the number of labels or neighbours that were scored
        exactly, and the CPU time of this thread in microseconds.
        """

        def predict_one(document: Rows) -> tuple[IntArray, float, float]:
            start = thread_seconds()
            result = self.predict(document, parameters)
            seconds = thread_seconds() - start
            return result.labels[0], float(result.stats.points_scored[0]), seconds

        columns = zip(*self.answer_each(predict_one, documents, is_block=True), strict=True)
        labels, scored_counts, seconds = map(np.array, columns)
        return labels, scored_counts, seconds * 1e6

    def check_documents(self, documents: RowsLike, parameters: PredictParameters) -> None:
        """Raise the errors that `predict` would raise for `documents`."""
        rows = document_rows(documents, self.dims)
        if parameters.mode == "neighbour_vote" or self.labels is None:
            prepare("documents", rows, self._searcher.metric)
        else:
            self.labels.check(rows)
