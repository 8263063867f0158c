"""Evaluations on the caller's side, without I/O: what to send, and what becomes of the events.

Queries that one message does not hold go in several messages, one after the other. Each of those
asks for the figures of every query and chooses nothing. The core then makes the rows here, of the
figures of all messages, as it makes them in the server.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import LEAST_WITH_H, Grid
from divgrpc.evaluation.queries import QueryTally
from divgrpc.evaluation.study import STAGE
from divgrpc.evaluation.tally import Resolution, Tally, Task, rows_max
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc.types import EvaluateLabelRow, EvaluateRow, Interval, Microseconds, Progress
from divgrpc_client.messages import requests, responses
from divgrpc_client.messages.batches import MESSAGE_BYTES
from divgrpc_client.messages.options import GRID_DEFAULTS, GridOptions
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode, row_ends
from divgrpc_protos.arrays import Matrix, row_count
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2

Tell = Callable[[Progress], object]
RequestT = TypeVar(
    "RequestT", evaluate_pb2.EvaluateRequest, evaluate_labels_pb2.EvaluateLabelsRequest
)
ResponseT = TypeVar(
    "ResponseT", evaluate_pb2.EvaluateResponse, evaluate_labels_pb2.EvaluateLabelsResponse
)
RowT = TypeVar("RowT", EvaluateRow, EvaluateLabelRow)


class Evaluation(ABC, Generic[RequestT, ResponseT, RowT]):
    """One call; a subclass says what is sent and how rows are read.

    Raises `InvalidArgumentError` with the field for what the wire cannot carry, and TypeError for
    an unknown option.
    """

    # The request, the name of its rows, and of one row with what belongs to it.
    request: ClassVar[type[Message]]
    field: ClassVar[str]
    one_row: ClassVar[str]
    per_row: ClassVar[str]

    def __init__(
        self,
        matrix: Matrix,
        fields: Mapping[str, object],
        rest: Mapping[str, Any],
        tell: Tell | None,
    ) -> None:
        """Take the rows, the fields of all requests, and `rest`: fields that parts do not have."""
        self._matrix = matrix
        self._count = row_count(matrix)
        self._fields = fields
        self._rest = rest
        self._part = {"folds": 0, "set_default": False, self.per_row: True}
        self._tell = tell or (lambda _: None)
        # The row after each message, and the number of settings where there are several messages.
        self._ends = [self._count]
        self._settings = 0
        self._span = (0, 0)
        self._answers: list[tuple[int, RowT]] = []
        self._cut()

    @abstractmethod
    def _subject(self, start: int, stop: int) -> dict[str, object]:
        """Return the fields of a request that belong to its rows."""

    @abstractmethod
    def _settings_and_rows(self, *, per_row: bool) -> tuple[int, int]:
        """Return how many settings there are, and how many rows one message may have at them.

        Raises `InvalidArgumentError` for a wrong grid.
        """

    @abstractmethod
    def _task(self) -> Task:
        """Return the task of all rows; raises what the server could not see in a part."""

    @abstractmethod
    def _tally(self, first: Sequence[RowT]) -> Tally[RowT]:
        """Return an empty table for all rows; `first` are the result rows of the first message."""

    @abstractmethod
    def _row(self, response: ResponseT) -> RowT:
        """Return the row of an event."""

    def _request(self, start: int, stop: int, rest: Mapping[str, Any]) -> RequestT:
        fields = {**self._fields, **rest, **self._subject(start, stop)}
        message = requests.build_message(self.request, fields)
        getattr(message, self.field).CopyFrom(encode(self._matrix, start, stop))
        return cast(RequestT, message)

    def _cut(self) -> None:
        """Find where messages end."""
        ends: list[int] = row_ends(self._matrix, MESSAGE_BYTES) or [0]
        fits = self._request(0, ends[0], self._rest).ByteSize() <= MESSAGE_BYTES and len(ends) == 1
        try:
            _, whole = self._settings_and_rows(per_row=self._rest[self.per_row])
        except InvalidArgumentError:
            if not fits:
                raise
            # The server refuses it.
            return
        if fits and self._count <= whole:
            return
        if self._rest["set_default"]:
            raise InvalidArgumentError(
                "set_default",
                f"set_default needs {self.field} that fit one message, {whole} at most in "
                f"{MESSAGE_BYTES} bytes",
            )
        self._task()
        self._settings, most = self._settings_and_rows(per_row=True)
        spans = pairwise([0, *ends])
        self._ends = [end for span in spans for end in self._ends_within(*span, most)]

    def _ends_within(self, start: int, stop: int, most: int) -> Iterator[int]:
        fits = stop - start <= most
        if fits and self._request(start, stop, self._part).ByteSize() <= MESSAGE_BYTES:
            yield stop
        elif stop - start == 1:
            row = self.one_row.format(start)
            raise InvalidArgumentError(self.field, f"{row} must fit {MESSAGE_BYTES} bytes")
        else:
            middle = (start + stop) // 2
            yield from self._ends_within(start, middle, most)
            yield from self._ends_within(middle, stop, most)

    def messages(self) -> Iterator[RequestT]:
        """Yield the requests; each is sent once the one before has been answered."""
        for start, stop in pairwise([0, *self._ends]):
            self._span = start, stop
            yield self._request(start, stop, self._part if self._settings else self._rest)

    def take(self, response: ResponseT) -> Iterator[RowT]:
        """Take an event; yields its row, if it has one and that is not of a part."""
        if response.HasField("progress"):
            self._tell(self._progress(response.progress))
        elif response.HasField("row"):
            row = self._row(response)
            if self._settings:
                self._answers.append((self._span[0], row))
            else:
                yield row

    def _progress(self, progress: evaluate_pb2.EvaluateProgress) -> Progress:
        done, total = progress.queries_done, progress.queries_total
        left = progress.seconds_left if progress.HasField("seconds_left") else None
        if self._settings:
            done += self._span[0] * self._settings
            total = self._count * self._settings
            if left is not None and progress.queries_total > progress.queries_done:
                left *= (total - done) / (progress.queries_total - progress.queries_done)
        return Progress(STAGE, done, total, left)

    @property
    def has_begun(self) -> bool:
        """Whether a part of several has been answered."""
        return bool(self._answers)

    @property
    def is_torn(self) -> bool:
        """Whether the index was replaced between two messages."""
        return len({row.generation for _, row in self._answers}) > 1

    def rows(self) -> list[RowT]:
        """Return the rows of several messages; none of a single one, whose rows `take` yields."""
        if not self._answers:
            return []
        tally = self._tally([row for start, row in self._answers if not start])
        for start, row in self._answers:
            tally.add(row.number, start, tally.figures(row))
        return tally.rows()


class QueryEvaluation(
    Evaluation[evaluate_pb2.EvaluateRequest, evaluate_pb2.EvaluateResponse, EvaluateRow]
):
    """One call of `evaluate`."""

    request = evaluate_pb2.EvaluateRequest
    field = "queries"
    one_row = "query {} and what is relevant to it"
    per_row = "per_query"

    def __init__(
        self,
        name: str,
        queries: VectorsLike,
        categories: npt.ArrayLike | None,
        options: GridOptions,
        rest: Mapping[str, Any],
        *,
        relevant: Sequence[npt.ArrayLike] | None,
        progress: Tell | None,
    ) -> None:
        """Take a call's arguments; `rest` are fields of the request."""
        refuse_unknown("evaluate", options, GridOptions.__annotations__)
        matrix = as_matrix("queries", queries, one_row=True)
        self._options: dict[str, Any] = {**GRID_DEFAULTS, **options}
        self._asked = _asked(categories, relevant)
        fields = axes_fields(self.request.DESCRIPTOR, self._options)
        super().__init__(matrix, {"index": name, **fields}, rest, progress)

    def _subject(self, start: int, stop: int) -> dict[str, object]:
        # The server refuses what is too much.
        end = None if stop == self._count else stop
        return {field: entries[start:end] for field, entries in self._asked.items()}

    def _settings_and_rows(self, *, per_row: bool) -> tuple[int, int]:
        del per_row
        settings = len(Grid(**self._options).settings())
        return settings, rows_max(settings)

    def _task(self) -> Task:
        for field, entries in self._asked.items():
            if len(entries) != self._count:
                raise InvalidArgumentError(field, f"{field} must have one entry for each query")
        return Task(
            grid=Grid(**self._options),
            rows=self._count,
            folds=self._rest["folds"],
            per_row=self._rest["per_query"],
        )

    def _tally(self, first: Sequence[EvaluateRow]) -> QueryTally:
        task = self._task()
        h = [row.values["h_score"] for _, row in self._answers if not row.number]
        with_h = int((~np.isnan(np.concatenate(h))).sum())
        resolution = Resolution(
            generation=first[0].generation,
            parameters=tuple(row.parameters for row in first),
            chooses=bool(task.folds) and with_h >= LEAST_WITH_H,
        )
        numbers = np.array(self._asked.get("categories", [0] * self._count), np.int64)
        return QueryTally(task, resolution, numbers)

    def _row(self, response: evaluate_pb2.EvaluateResponse) -> EvaluateRow:
        message = response.row
        return EvaluateRow(
            **row_fields(message), parameters=responses.effective(message.parameters)
        )


def _asked(
    categories: npt.ArrayLike | None, relevant: Sequence[npt.ArrayLike] | None
) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    if categories is not None:
        axes["categories"] = _whole("categories", categories)
    if relevant is not None:
        lists = (_whole("relevant", ids) for ids in relevant)
        axes["relevant"] = [evaluate_pb2.RelevantIds(ids=ids) for ids in lists]
    return axes


def _whole(field: str, numbers: npt.ArrayLike) -> list[int]:
    array = np.asarray(numbers)
    wide = array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max
    if array.ndim != 1 or wide or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgumentError(field, f"{field} must be whole numbers, in one dimension")
    whole: list[int] = array.tolist()
    return whole


def axes_fields(request: Descriptor, options: Mapping[str, Any]) -> dict[str, object]:
    """Return the options of a grid as fields of a request: its axes, and what is no axis."""
    fields: dict[str, object] = {}
    for option, value in options.items():
        field = request.fields_by_name[option]
        if field.is_repeated:
            fields[option] = _axis(request, option, value)
        else:
            fields[option] = requests.enum_value(field, value) if field.enum_type else value
    return fields


def _axis(request: Descriptor, axis: str, values: Any) -> list[Any]:  # noqa: ANN401  # whatever a caller passes as a list
    """Return the values of an axis in the types of the message.

    Only a threshold may be None. Raises `InvalidArgumentError`, with the axis as its field, also
    for an empty axis, which the server would read as the default.
    """
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InvalidArgumentError(axis, f"{axis} must be a list of values")
    items: list[Any] = [
        value.item() if isinstance(value, np.generic) else value for value in values
    ]
    if not items:
        raise InvalidArgumentError(axis, f"{axis} must have a value at least")
    field = request.fields_by_name[axis]
    if field.message_type is evaluate_pb2.EvaluateLimits.DESCRIPTOR:
        return [_limits(pair) for pair in items]
    if field.enum_type is not None:
        return [requests.enum_value(field, word) for word in items]
    is_threshold = field.message_type is not None
    if any(isinstance(item, bool) or (item is None and not is_threshold) for item in items):
        raise InvalidArgumentError(axis, f"{axis} must be numbers, got {items!r}")
    if not is_threshold:
        return items
    try:
        return [evaluate_labels_pb2.EvaluateThreshold(threshold=item) for item in items]
    except TypeError:
        message = f"thresholds must be numbers, or None, got {items!r}"
        raise InvalidArgumentError(axis, message) from None


def _limits(pair: Any) -> evaluate_pb2.EvaluateLimits:  # noqa: ANN401  # as above
    names = [field.name for field in evaluate_pb2.EvaluateLimits.DESCRIPTOR.fields]
    try:
        limits = dict(zip(names, pair, strict=True))
        return evaluate_pb2.EvaluateLimits(**limits)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "limits", f"limits must be pairs of hash_limit and candidates_limit, got {pair!r}"
        ) from None


def row_fields(
    message: evaluate_pb2.EvaluateRow | evaluate_labels_pb2.EvaluateLabelRow,
) -> dict[str, Any]:
    """Return the fields of a row that rows of queries and of labels have in common."""
    times = message.microseconds
    numbers = {
        field.name: getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
        if not field.is_repeated and field.message_type is None and field.enum_type is None
    }
    return {
        **numbers,
        "search": responses.word(message, "search"),
        "metrics": {metric.name: interval(metric) for metric in message.metrics},
        "microseconds": Microseconds(times.mean, times.p50, times.p90, times.p99),
        "by_fold": tuple(message.by_fold),
        "values": {column.name: np.array(column.values, np.float64) for column in message.values},
    }


def interval(metric: evaluate_pb2.EvaluateMetric) -> Interval:
    """Return a metric's value with the ends of its interval."""
    return Interval(metric.value, metric.low, metric.high)
