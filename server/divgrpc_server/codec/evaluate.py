"""Messages of Evaluate and EvaluateLabels to the core's types, and rows to messages.

Used by evaluators alone: it loads the compiler.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.grid import Grid, LabelGrid
from divgrpc.evaluation.label_running import study_labels
from divgrpc.evaluation.labels import (
    LabelResolution,
    LabelTask,
    documents_per_message_max,
)
from divgrpc.evaluation.queries import Relevance, study_queries
from divgrpc.evaluation.study import Study
from divgrpc.evaluation.tally import Task
from divgrpc.metrics import Values
from divgrpc.metrics.labelling import Truth
from divgrpc.parameters import check_index_name
from divgrpc.types import EvaluateLabelRow, EvaluateRow, IntArray, Interval, Progress
from divgrpc_protos import words
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server.codec.requests import parse_vectors
from divgrpc_server.codec.results import effective, effective_of_labels, parse_label_sets, word

Request = evaluate_pb2.EvaluateRequest | evaluate_labels_pb2.EvaluateLabelsRequest
Response = evaluate_pb2.EvaluateResponse | evaluate_labels_pb2.EvaluateLabelsResponse
Row = EvaluateRow | EvaluateLabelRow

# Fields of a row's message that are copied as they are; one kind of row lacks some.
_COPIED: Final = (
    *("number", "generation", "goal", "h_of_means", "queries", "documents", "empty", "short"),
    *("scored", "on_front", "by_fold", "is_default", "coverage_at"),
)
_AT: Final = ("precision_at", "recall_at", "ndcg_at", "propensity_scored_at")


class QueryCall:
    """One Evaluate call; raises `InvalidArgumentError` with the field for a wrong request."""

    def __init__(self, payload: bytes) -> None:
        request = evaluate_pb2.EvaluateRequest.FromString(payload)
        self.index = check_index_name(request.index)
        self._queries = parse_vectors("queries", request.queries)
        self._task = Task(
            grid=Grid(**_axes(request), keep_duplicates=request.keep_duplicates),
            rows=len(self._queries),
            per_row=request.per_query,
            **_task_options(request),
        ).bounded()
        lists = [np.array(item.ids, np.int64) for item in request.relevant] or None
        categories = np.array(request.categories, np.int64) if request.categories else None
        self._relevance = Relevance.of(categories, lists, self._task.rows)

    def study(self, engine: Engine) -> Study[EvaluateRow]:
        """Check the call against its index."""
        return study_queries(engine, self._queries, self._relevance, self._task)

    @staticmethod
    def pack_progress(progress: Progress) -> bytes:
        """Return the response that says how far the evaluation has come."""
        return evaluate_pb2.EvaluateResponse(progress=_progress(progress)).SerializeToString()

    @staticmethod
    def pack_rows(rows: Sequence[EvaluateRow]) -> list[bytes]:
        """Return the responses of all rows."""
        return [_pack_row(row, evaluate_pb2.EvaluateResponse()) for row in rows]


class LabelCall:
    """One EvaluateLabels call; raises as `QueryCall`."""

    def __init__(self, payload: bytes) -> None:
        request = evaluate_labels_pb2.EvaluateLabelsRequest.FromString(payload)
        self.index = check_index_name(request.index)
        self._documents = parse_vectors("documents", request.documents)
        axes = _axes(request)
        if request.HasField("neighbours"):
            axes["neighbours"] = request.neighbours
        if vote := word(request.DESCRIPTOR, "vote", request.vote):
            axes["vote"] = vote
        self._task = LabelTask(
            grid=LabelGrid(**axes),
            rows=len(self._documents),
            per_row=request.per_document,
            **_task_options(request),
        ).bounded()
        most = documents_per_message_max(max(self._task.widths()))
        if self._task.per_row and self._task.rows > most:
            raise InvalidArgumentError(
                "per_document",
                f"per_document needs at most {most} documents for this top_k, "
                f"got {self._task.rows}: a result row must fit into one message",
            )
        sets = parse_label_sets(request.labels, self._task.rows, "documents")
        if self._task.folds and not len(sets.indices):
            raise InvalidArgumentError("labels", "labels must have at least one label")
        self._truth = Truth(sets.indptr, sets.indices, (self._task.rows, sets.cols))
        self._resolution: LabelResolution | None = None

    def study(self, engine: Engine) -> Study[EvaluateLabelRow]:
        """Check the call against its index."""
        study = study_labels(engine, self._documents, self._truth, self._task)
        self._resolution = cast(LabelResolution, study.resolution)
        return study

    @staticmethod
    def pack_progress(progress: Progress) -> bytes:
        """Return the response that says how far the evaluation has come."""
        response = evaluate_labels_pb2.EvaluateLabelsResponse(progress=_progress(progress))
        return response.SerializeToString()

    def pack_rows(self, rows: Sequence[EvaluateLabelRow]) -> list[bytes]:
        """Return the responses of all rows, after how frequent the true labels are."""
        response = evaluate_labels_pb2.EvaluateLabelsResponse
        packed = [_pack_row(row, response()) for row in rows]
        resolution = self._resolution
        if not self._task.per_row or resolution is None or resolution.counts is None:
            return packed
        counts = resolution.counts[np.unique(self._truth.indices)].tolist()
        frequencies = evaluate_labels_pb2.LabelFrequencies(points=resolution.points, counts=counts)
        return [response(frequencies=frequencies).SerializeToString(), *packed]


def _task_options(request: Request) -> dict[str, Any]:
    folds = {"folds": request.folds} if request.HasField("folds") else {}
    return {"set_default": request.set_default, **folds}


def _axes(request: Request) -> dict[str, Any]:
    """Return the axes of a request that have values, and its seed.

    Raises `InvalidArgumentError` with the axis as its field.
    """
    axes: dict[str, Any] = {}
    for field, values in request.ListFields():
        name = field.name
        if not field.is_repeated or name in ("categories", "relevant"):
            continue
        if field.enum_type is not None:
            axes[name] = tuple(word(request.DESCRIPTOR, name, value) for value in values)
            if None in axes[name]:
                raise InvalidArgumentError(name, f"{name} must not have an unspecified value")
        elif name == "limits":
            axes[name] = tuple(
                (_value(pair, "hash_limit"), _value(pair, "candidates_limit")) for pair in values
            )
        elif name == "thresholds":
            axes[name] = tuple(_value(item, "threshold") for item in values)
        else:
            axes[name] = tuple(values)
    if not axes:
        raise InvalidArgumentError("grid", "the grid is empty: give an axis of it some values")
    return axes | ({"seed": request.seed} if request.HasField("seed") else {})


def _value(message: Any, field: str) -> Any:  # noqa: ANN401  # any message, any number
    return getattr(message, field) if message.HasField(field) else None


def _progress(progress: Progress) -> evaluate_pb2.EvaluateProgress:
    return evaluate_pb2.EvaluateProgress(
        queries_done=progress.rows_done,
        queries_total=progress.rows_total,
        seconds_left=progress.seconds_left,
    )


def _pack_row(row: Row, response: Response) -> bytes:
    """Return the bytes of a response, which is empty, with a row."""
    message: Any = response.row
    fields = message.DESCRIPTOR.fields_by_name
    copied = {name: getattr(row, name) for name in _COPIED if name in fields}
    message.MergeFrom(type(message)(**copied))
    message.search = words.to_enum(fields["search"], row.search)
    message.metrics.extend(_metric(*item) for item in row.metrics.items())
    message.microseconds.CopyFrom(evaluate_pb2.EvaluateTimes(**row.microseconds._asdict()))
    message.values.extend(_values(row.values))
    if isinstance(row, EvaluateLabelRow):
        message.parameters.CopyFrom(effective_of_labels(row.parameters))
        for name in _AT:
            getattr(message, name).extend(_metric("", each) for each in getattr(row, name))
        if row.labels is not None:
            message.labels.CopyFrom(_picked(row.labels))
    else:
        message.parameters.CopyFrom(effective(row.parameters))
    return response.SerializeToString()


def _metric(name: str, interval: Interval) -> evaluate_pb2.EvaluateMetric:
    return evaluate_pb2.EvaluateMetric(name=name, **interval._asdict())


def _values(values: Mapping[str, Values]) -> list[evaluate_pb2.EvaluateValues]:
    return [
        evaluate_pb2.EvaluateValues(name=name, values=column) for name, column in values.items()
    ]


def _picked(labels: IntArray) -> evaluate_labels_pb2.PickedLabels:
    known = labels >= 0
    ends = np.cumsum([0, *known.sum(axis=1)])
    return evaluate_labels_pb2.PickedLabels(offsets=ends.tolist(), labels=labels[known].tolist())
