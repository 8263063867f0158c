"""EvaluateLabels on the caller's side: its request, its events, its rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.label_planning import Goal
from divgrpc.types import EvaluateLabelRow, Interval, Microseconds
from divgrpc_client import responses
from divgrpc_client.batches import MESSAGE_BYTES
from divgrpc_client.evaluations import Tell, axis_values, progress_of
from divgrpc_client.labelling import label_sets
from divgrpc_client.options import LABEL_GRID_DEFAULTS, LabelGridOptions, refuse_unknown
from divgrpc_client.requests import build_message, enum_value
from divgrpc_client.vectors import VectorsLike, as_matrix, encode
from divgrpc_protos.arrays import encode_label_sets, row_count
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2

_REQUEST: Final = evaluate_labels_pb2.EvaluateLabelsRequest.DESCRIPTOR
# The same in all settings.
_PLAIN: Final = ("neighbours", "vote", "seed")


class LabelEvaluation:
    """One call of `evaluate_labels`: what to send, and what becomes of the events. No I/O.

    Raises `InvalidArgumentError` with the field for what the wire cannot carry, more than a message
    holds too, and TypeError for an unknown option.
    """

    def __init__(
        self,
        name: str,
        documents: VectorsLike,
        labels: VectorsLike,
        options: LabelGridOptions,
        rest: Mapping[str, object],
        *,
        progress: Tell | None,
    ) -> None:
        """Take a call's arguments; `rest` are fields of the request."""
        refuse_unknown(LabelGridOptions, options)
        matrix = as_matrix("documents", documents, one_row=True)
        sets = label_sets(labels, row_count(matrix), "document")
        told: dict[str, Any] = {**LABEL_GRID_DEFAULTS, **options}
        fields: dict[str, object] = dict(rest)
        fields |= {axis: _axis(axis, given) for axis, given in told.items() if axis not in _PLAIN}
        fields |= {name: told[name] for name in _PLAIN}
        fields["vote"] = enum_value(_REQUEST.fields_by_name["vote"], told["vote"])
        message = build_message(
            evaluate_labels_pb2.EvaluateLabelsRequest, {"index": name, **fields}
        )
        message.documents.CopyFrom(encode(matrix, 0, row_count(matrix)))
        message.labels.CopyFrom(encode_label_sets(sets))
        if message.ByteSize() > MESSAGE_BYTES:
            raise InvalidArgumentError(
                "documents",
                f"documents and their labels must fit {MESSAGE_BYTES} bytes together, "
                f"got {message.ByteSize()}; evaluate on fewer",
            )
        self.messages = [message]
        self._tell = progress or (lambda _: None)

    def begin(self) -> None:
        """Say that the next of `messages` is sent."""

    def take(
        self, response: evaluate_labels_pb2.EvaluateLabelsResponse
    ) -> Iterator[EvaluateLabelRow]:
        """Take an event, and yield the row that it is."""
        if response.HasField("row"):
            yield row(response.row)
        else:
            self._tell(progress_of(response.progress))

    def rows(self) -> list[EvaluateLabelRow]:
        """Return the rows that are made here: none, they came as they are."""
        return []


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
    )


def _interval(metric: evaluate_pb2.EvaluateMetric) -> Interval:
    return Interval(metric.value, metric.low, metric.high)


def _intervals(metrics: Sequence[evaluate_pb2.EvaluateMetric]) -> tuple[Interval, ...]:
    return tuple(map(_interval, metrics))
