"""Conversion of Evaluate and EvaluateLabels requests, and of their result rows.

This module loads the compiler, so only evaluators use it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.evaluation.grid import Grid, LabelGrid
from divgrpc.evaluation.label_running import study_labels
from divgrpc.evaluation.labels import LabelTask, documents_per_message_max
from divgrpc.evaluation.queries import Relevance, study_queries
from divgrpc.evaluation.study import Resolution, Runner, Study, Task
from divgrpc.metrics.labelling import Truth
from divgrpc.parameters import check_index_name
from divgrpc.types import EvaluateLabelRow, EvaluateRow, IntArray, Progress
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server.codec.filters import parse_filter
from divgrpc_server.codec.requests import parse_vectors
from divgrpc_server.codec.results import parse_label_sets, set_values

Request = evaluate_pb2.EvaluateRequest | evaluate_labels_pb2.EvaluateLabelsRequest
# The fields of requests that `_grid_options` leaves out, because they are not axes of the grid.
_NO_GRID: Final = {
    *("index", "categories", "relevant", "groups", "filter"),
    *("folds", "set_default", "per_query", "per_document"),
}


class _Call:
    """The base of parsed calls; an invalid request raises `InvalidArgumentError`."""

    response: ClassVar[type[Any]]

    def pack_progress(self, progress: Progress) -> bytes:
        """Return the progress of the evaluation as a response."""
        message = evaluate_pb2.EvaluateProgress(
            queries_done=progress.rows_done,
            queries_total=progress.rows_total,
            seconds_left=progress.seconds_left,
        )
        payload: bytes = self.response(progress=message).SerializeToString()
        return payload


def _ids(item: evaluate_pb2.RelevantIds) -> IntArray | list[str]:
    if item.string_ids and item.ids:
        raise invalid("relevant", "must have ids or string_ids, not both")
    return list(item.string_ids) or np.array(item.ids, np.int64)


class QueryCall(_Call):
    """One Evaluate call."""

    response = evaluate_pb2.EvaluateResponse

    def __init__(self, payload: bytes) -> None:
        request = evaluate_pb2.EvaluateRequest.FromString(payload)
        self.index = check_index_name(request.index)
        self._queries = parse_vectors("queries", request.queries)
        self._task = Task(
            grid=Grid(**_grid_options(request)),
            rows=len(self._queries),
            per_row=request.per_query,
            **_task_options(request),
        ).bounded()
        lists = [_ids(item) for item in request.relevant] or None
        categories = np.array(request.categories, np.int64) if request.categories else None
        self._relevance = Relevance.of(categories, lists, self._task.rows)
        self._filter = parse_filter(request.filter)

    def study(self, index: Runner) -> Study[EvaluateRow]:
        """Validate the call against the index, and return the evaluation to run."""
        return study_queries(index, self._queries, self._relevance, self._task, self._filter)

    def pack_rows(self, rows: Sequence[EvaluateRow]) -> list[bytes]:
        """Return the responses of all rows."""
        messages = (to_message(row, evaluate_pb2.EvaluateRow) for row in rows)
        return [self.response(row=row).SerializeToString() for row in messages]


class LabelCall(_Call):
    """One EvaluateLabels call."""

    response = evaluate_labels_pb2.EvaluateLabelsResponse

    def __init__(self, payload: bytes) -> None:
        request = evaluate_labels_pb2.EvaluateLabelsRequest.FromString(payload)
        self.index = check_index_name(request.index)
        self._documents = parse_vectors("documents", request.documents)
        self._task = LabelTask(
            grid=LabelGrid(**_grid_options(request)),
            rows=len(self._documents),
            per_row=request.per_document,
            **_task_options(request),
        ).bounded()
        most = documents_per_message_max(max(self._task.widths()))
        if self._task.per_row and self._task.rows > most:
            raise invalid(
                "per_document",
                f"needs at most {most} documents for this top_k, "
                f"got {self._task.rows}: a result row must fit into one message",
            )
        sets = parse_label_sets(request.labels, self._task.rows, "documents")
        if self._task.folds and not len(sets.indices):
            raise invalid("labels", "must have at least one label")
        self._truth = Truth(sets.indptr, sets.indices, (self._task.rows, sets.cols))
        self._resolution: Resolution | None = None

    def study(self, index: Runner) -> Study[EvaluateLabelRow]:
        """Validate the call against the index, and return the evaluation to run."""
        study = study_labels(index, self._documents, self._truth, self._task)
        self._resolution = study.resolution
        return study

    def pack_rows(self, rows: Sequence[EvaluateLabelRow]) -> list[bytes]:
        """Return the rows as responses, preceded by the frequencies of the true labels.

        The frequencies are sent only if the request sets `per_document` and the index has label
        frequencies.
        """
        payloads = [self.response(row=_label_row(row)).SerializeToString() for row in rows]
        resolution = self._resolution
        if not self._task.per_row or resolution is None or resolution.counts is None:
            return payloads
        counts = resolution.counts[np.unique(self._truth.indices)].tolist()
        frequencies = evaluate_labels_pb2.LabelFrequencies(points=resolution.points, counts=counts)
        return [self.response(frequencies=frequencies).SerializeToString(), *payloads]


def _task_options(request: Request) -> dict[str, Any]:
    folds = {"folds": request.folds} if request.HasField("folds") else {}
    groups = np.array(request.groups, np.int64) if request.groups else None
    return {"set_default": request.set_default, "groups": groups, **folds}


def _grid_options(request: Request) -> dict[str, Any]:
    """Return the grid fields that the request sets.

    Raises `InvalidArgumentError`, which names the field, for an invalid value or an empty grid.
    """
    options = set_values(request)
    for name in _NO_GRID & options.keys():
        del options[name]
    if not any(isinstance(value, tuple) for value in options.values()):
        raise InvalidArgumentError("grid", "the grid is empty: give an axis of it some values")
    return options


def _label_row(row: EvaluateLabelRow) -> evaluate_labels_pb2.EvaluateLabelRow:
    labels = None
    if row.labels is not None:
        places = row.labels >= 0
        labels = evaluate_labels_pb2.PickedLabels(
            offsets=np.cumsum([0, *places.sum(axis=1)]).tolist(), labels=row.labels[places].tolist()
        )
    return to_message(row, evaluate_labels_pb2.EvaluateLabelRow, labels=labels)
