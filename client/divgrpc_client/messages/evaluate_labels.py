"""EvaluateLabels on the caller's side: what differs from `evaluate`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.labels import (
    LabelResolution,
    LabelTally,
    LabelTask,
    documents_max,
)
from divgrpc.metrics.labelling import Truth
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc.types import EvaluateLabelRow, IntArray
from divgrpc_client.messages import responses
from divgrpc_client.messages.evaluate import (
    Evaluation,
    Tell,
    axes_fields,
    interval,
    row_fields,
)
from divgrpc_client.messages.labels import label_sets
from divgrpc_client.messages.options import LABEL_GRID_DEFAULTS, LabelGridOptions
from divgrpc_client.messages.vectors import VectorsLike, as_matrix
from divgrpc_protos.arrays import Csr, encode_label_sets, row_count, take, without_zeros
from divgrpc_protos.v1 import evaluate_labels_pb2

_AT = ("precision_at", "recall_at", "ndcg_at", "propensity_scored_at")


class LabelEvaluation(
    Evaluation[
        evaluate_labels_pb2.EvaluateLabelsRequest,
        evaluate_labels_pb2.EvaluateLabelsResponse,
        EvaluateLabelRow,
    ]
):
    """One call of `evaluate_labels`."""

    request = evaluate_labels_pb2.EvaluateLabelsRequest
    field = "documents"
    one_row = "document {} and its labels"
    per_row = "per_document"

    def __init__(
        self,
        name: str,
        documents: VectorsLike,
        labels: VectorsLike,
        options: LabelGridOptions,
        rest: Mapping[str, Any],
        *,
        progress: Tell | None,
    ) -> None:
        """Take a call's arguments; `rest` are fields of the request."""
        refuse_unknown("evaluate_labels", options, LabelGridOptions.__annotations__)
        matrix = as_matrix("documents", documents, one_row=True)
        self._sets = without_zeros(label_sets(labels, row_count(matrix), "document"))
        self._options: dict[str, Any] = {**LABEL_GRID_DEFAULTS, **options}
        # How many points have each label that a document has, as far as it is known.
        self._points = 0
        self._counts = np.zeros(self._sets.cols, np.int64)
        fields = axes_fields(self.request.DESCRIPTOR, self._options)
        super().__init__(matrix, {"index": name, **fields}, rest, progress)

    def _subject(self, start: int, stop: int) -> dict[str, object]:
        return {"labels": encode_label_sets(self._labels(start, stop))}

    def _labels(self, start: int, stop: int) -> Csr:
        return cast(Csr, take(self._sets, start, stop))

    def _settings_and_rows(self, *, per_row: bool) -> tuple[int, int]:
        settings = LabelGrid(**self._options).settings()
        return len(settings), documents_max(settings, per_row=per_row)

    def _task(self) -> LabelTask:
        task = LabelTask(
            grid=LabelGrid(**self._options),
            rows=self._count,
            folds=self._rest["folds"],
            per_row=self._rest["per_document"],
        )
        if task.folds and not len(self._sets.indices):
            raise InvalidArgumentError("labels", "labels must have one label at least")
        return task

    def take(
        self, response: evaluate_labels_pb2.EvaluateLabelsResponse
    ) -> Iterator[EvaluateLabelRow]:
        """Take an event; yields its row, if it has one and that is not of a part."""
        if response.HasField("frequencies"):
            self._points = response.frequencies.points
            known = np.unique(self._labels(*self._span).indices)
            self._counts[known] = response.frequencies.counts
        else:
            yield from super().take(response)

    def _tally(self, first: Sequence[EvaluateLabelRow]) -> LabelTally:
        task = self._task()
        resolution = LabelResolution(
            generation=first[0].generation,
            parameters=tuple(row.parameters for row in first),
            goal=first[0].goal,
            chooses=bool(task.folds),
            points=self._points,
            counts=self._counts if self._points else None,
        )
        truth = Truth(self._sets.indptr, self._sets.indices, (self._count, self._sets.cols))
        return LabelTally(task, resolution, truth)

    def _row(self, response: evaluate_labels_pb2.EvaluateLabelsResponse) -> EvaluateLabelRow:
        message = response.row
        at_ranks: dict[str, Any] = {
            name: tuple(map(interval, getattr(message, name))) for name in _AT
        }
        return EvaluateLabelRow(
            **row_fields(message),
            **at_ranks,
            parameters=responses.effective_of_labels(message.parameters),
            coverage_at=tuple(message.coverage_at),
            labels=_picked(message) if message.HasField("labels") else None,
        )


def _picked(message: evaluate_labels_pb2.EvaluateLabelRow) -> IntArray:
    counts, top_k = np.diff(message.labels.offsets), message.parameters.top_k
    labels = np.full((len(counts), top_k), -1)
    labels[np.arange(top_k) < counts[:, None]] = message.labels.labels
    return labels
