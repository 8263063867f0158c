"""EvaluateLabels on the caller's side: its request, its events, its rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.label_measuring import TAKEN
from divgrpc.evaluation.label_planning import Goal, LabelOutlook, LabelTask, documents_max
from divgrpc.evaluation.label_tallying import LabelTally
from divgrpc.metrics import Values
from divgrpc.metrics.labelling import Truth
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc.types import EvaluateLabelRow, IntArray, Interval, Microseconds
from divgrpc_client.messages import responses
from divgrpc_client.messages.evaluate import axis_values
from divgrpc_client.messages.evaluation_parts import EvaluationParts, Tell
from divgrpc_client.messages.labels import label_sets
from divgrpc_client.messages.options import LABEL_GRID_DEFAULTS, LabelGridOptions
from divgrpc_client.messages.requests import build_message, enum_value
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode
from divgrpc_protos.arrays import Csr, encode_label_sets, take, without_zeros
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2

_REQUEST: Final = evaluate_labels_pb2.EvaluateLabelsRequest.DESCRIPTOR
# The same in all settings.
_PLAIN: Final = ("neighbours", "vote", "seed")


class LabelEvaluation(
    EvaluationParts[
        evaluate_labels_pb2.EvaluateLabelsRequest,
        evaluate_labels_pb2.EvaluateLabelsResponse,
        EvaluateLabelRow,
    ]
):
    """One call of `evaluate_labels`; raises as `Evaluation` does."""

    field = "documents"
    one = "document {} and its labels"
    _part: Final = {"folds": 0, "set_default": False, "per_document": True}

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
        super().__init__(as_matrix("documents", documents, one_row=True), rest, progress)
        self._sets = without_zeros(label_sets(labels, self._count, "document"))
        self._options: dict[str, Any] = {**LABEL_GRID_DEFAULTS, **options}
        self._fields: dict[str, object] = {"index": name}
        for option, value in self._options.items():
            self._fields[option] = value if option in _PLAIN else _axis(option, value)
        vote = _REQUEST.fields_by_name["vote"]
        self._fields["vote"] = enum_value(vote, self._options["vote"])
        # Of the labels that documents have how many points have each, as far as it is known.
        self._points = 0
        self._counts = np.zeros(self._sets.cols, np.int64)
        self._cut()

    def _measure(self, rest: Mapping[str, Any]) -> tuple[int, int]:
        settings = LabelGrid(**self._options).settings()
        return len(settings), documents_max(settings, told=rest["per_document"])

    def _check(self) -> None:
        self._task = LabelTask(grid=LabelGrid(**self._options), documents=self._count, **self._rest)
        if self._task.folds and not len(self._sets.indices):
            raise InvalidArgumentError("labels", "labels must have one label at least")

    def _request(
        self, start: int, stop: int, rest: Mapping[str, Any]
    ) -> evaluate_labels_pb2.EvaluateLabelsRequest:
        message = build_message(evaluate_labels_pb2.EvaluateLabelsRequest, {**self._fields, **rest})
        message.documents.CopyFrom(encode(self._matrix, start, stop))
        message.labels.CopyFrom(encode_label_sets(self._labels(start, stop)))
        return message

    def _labels(self, start: int, stop: int) -> Csr:
        return cast(Csr, take(self._sets, start, stop))

    def take(
        self, response: evaluate_labels_pb2.EvaluateLabelsResponse
    ) -> Iterator[EvaluateLabelRow]:
        """Take an event, and yield the row that it is, if it is one."""
        if response.HasField("frequencies"):
            self._points = response.frequencies.points
            known = np.unique(self._labels(*self._span).indices)
            self._counts[known] = response.frequencies.counts
        else:
            yield from super().take(response)

    def _row(self, response: evaluate_labels_pb2.EvaluateLabelsResponse) -> EvaluateLabelRow:
        return row(response.row)

    def _table(self, row: EvaluateLabelRow) -> Values:
        labels = () if row.labels is None else row.labels.T
        return np.stack([*(row.values[name] for name in TAKEN), *labels])

    def _made(self) -> list[EvaluateLabelRow]:
        first = self._firsts[0]
        outlook = LabelOutlook(
            generation=first.generation,
            resolved=tuple(row.parameters for row in self._firsts),
            goal=first.goal,
            points=self._points,
            counts=self._counts if self._points else None,
        )
        truth = Truth(self._sets.indptr, self._sets.indices, (self._count, self._sets.cols))
        tally = LabelTally(self._task, outlook, truth)
        for figures in self._figures:
            tally.add(*figures)
        return tally.rows()[0]


def _axis(axis: str, given: Any) -> list[object]:  # noqa: ANN401  # whatever a caller takes for a list
    if axis != "thresholds":
        return axis_values(_REQUEST, axis, given)
    try:
        return [
            evaluate_labels_pb2.EvaluateThreshold(threshold=each)
            for each in axis_values(_REQUEST, axis, given)
        ]
    except TypeError:
        raise InvalidArgumentError(
            axis, f"thresholds must be numbers, or None, got {given!r}"
        ) from None


def row(message: evaluate_labels_pb2.EvaluateLabelRow) -> EvaluateLabelRow:
    """Return a row of a table."""
    times = message.microseconds
    return EvaluateLabelRow(
        number=message.number,
        generation=message.generation,
        search=responses.word(message, "search"),
        parameters=responses.effective_of_labels(message.parameters),
        goal=cast(Goal, message.goal),
        metrics={each.name: _interval(each) for each in message.metrics},
        precision_at=_intervals(message.precision_at),
        recall_at=_intervals(message.recall_at),
        ndcg_at=_intervals(message.ndcg_at),
        propensity_scored_at=_intervals(message.propensity_scored_at),
        coverage_at=tuple(message.coverage_at),
        h_of_means=message.h_of_means,
        microseconds=Microseconds(times.mean, times.p50, times.p90, times.p99),
        documents=message.documents,
        empty=message.empty,
        short=message.short,
        scored=message.scored,
        on_front=message.on_front,
        by_fold=tuple(message.by_fold),
        is_default=message.is_default,
        values={each.name: np.array(each.values, np.float64) for each in message.values},
        labels=_picked(message) if message.HasField("labels") else None,
    )


def _picked(message: evaluate_labels_pb2.EvaluateLabelRow) -> IntArray:
    counts, top_k = np.diff(message.labels.offsets), message.parameters.top_k
    labels = np.full((len(counts), top_k), -1)
    labels[np.arange(top_k) < counts[:, None]] = message.labels.labels
    return labels


def _interval(metric: evaluate_pb2.EvaluateMetric) -> Interval:
    return Interval(metric.value, metric.low, metric.high)


def _intervals(metrics: Sequence[evaluate_pb2.EvaluateMetric]) -> tuple[Interval, ...]:
    return tuple(map(_interval, metrics))
