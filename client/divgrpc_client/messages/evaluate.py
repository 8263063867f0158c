"""The client's part of an evaluation, without I/O: requests, and the events that answer them.

Queries or documents that do not fit one message are sent in several, one message at a time. Each of
these messages requests the figures of every query in the message, and no choice of settings. The
client then computes the result rows from the figures of all messages, with the same code of the
core as the server uses.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from divgrpc.columns.ids import encode_texts, is_texts
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.evaluation import Grid
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.labels import LabelTally, LabelTask, documents_max
from divgrpc.evaluation.queries import QueryTally
from divgrpc.evaluation.study import STAGE, Resolution, Tally, Task, rows_max
from divgrpc.metrics.labelling import Truth
from divgrpc.parameters import PredictParameters
from divgrpc.parameters.checks import check_bool
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc.types import EvaluateLabelRow, EvaluateRow, IntArray, Progress
from divgrpc_client.messages.batches import MESSAGE_BYTES
from divgrpc_client.messages.labels import label_sets
from divgrpc_client.messages.options import GridOptions, LabelGridOptions, OnProgress
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode, row_ends, whole_numbers
from divgrpc_protos.arrays import (
    Csr,
    Matrix,
    encode_label_sets,
    filled_places,
    row_count,
    take,
    without_zeros,
)
from divgrpc_protos.records import from_message, message_fields
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2

RequestT = TypeVar(
    "RequestT", evaluate_pb2.EvaluateRequest, evaluate_labels_pb2.EvaluateLabelsRequest
)
ResponseT = TypeVar(
    "ResponseT", evaluate_pb2.EvaluateResponse, evaluate_labels_pb2.EvaluateLabelsResponse
)
RowT = TypeVar("RowT", EvaluateRow, EvaluateLabelRow)


class Evaluation(ABC, Generic[RequestT, ResponseT, RowT]):
    """One call of an evaluation; a subclass defines its requests and how parts are joined.

    Raises `InvalidArgumentError` with the name of the field for a wrong argument, and TypeError for
    an unknown option.
    """

    # `request` is the class of the request, and `per_row` its flag that adds the figures of every
    # row. `one_row` formats the name of a row in errors. `task` and `row` are the core's classes of
    # the task and of the result rows.
    request: ClassVar[type[Message]]
    per_row: ClassVar[str]
    one_row: ClassVar[str]
    task: ClassVar[type[Task]]
    row: ClassVar[type[Any]]

    def __init__(
        self,
        name: str,
        matrix: Matrix,
        grid: Grid | LabelGrid,
        flags: Mapping[str, Any],
        *,
        groups: npt.ArrayLike | None,
        progress: OnProgress,
        restriction: Mapping[str, Any] | None = None,
    ) -> None:
        """Check and store the arguments.

        The keys of `flags` are folds, set_default and the name in `per_row`, such as per_query.
        `restriction`: fields from `filters.filter_fields`.
        """
        for field in ("set_default", self.per_row):
            check_bool(None, field, flags[field])
        self._matrix = matrix
        self._count = row_count(matrix)
        self._groups = [] if groups is None else _column("groups", groups, np.int64)
        self._task = self.task(
            grid=grid,
            rows=self._count,
            folds=flags["folds"],
            set_default=flags["set_default"],
            per_row=flags[self.per_row],
            groups=None if groups is None else np.array(self._groups, np.int64),
        )
        self._fields = message_fields(grid, self.request, index=index_name(name))
        self._fields |= restriction or {}
        # The bytes that a message has for rows.
        self._room = MESSAGE_BYTES - self.request(**restriction or {}).ByteSize()
        self._flags = flags
        self._part_flags = {"folds": 0, "set_default": False, self.per_row: True}
        self._tell = progress or (lambda _: None)
        # `_ends` has the end of each message's rows. `_settings` is the number of settings if there
        # are several messages, else 0.
        self._ends = [self._count]
        self._settings = 0
        self._span = (0, 0)
        self._answers: list[tuple[int, RowT]] = []
        self._cut()

    @abstractmethod
    def _subject(self, start: int, stop: int) -> dict[str, object]:
        """Return the fields of a request that depend on the rows, except the rows themselves."""

    def _rows_max(self, *, per_row: bool) -> int:  # noqa: ARG002  # labels depend on it
        """Return the maximum number of rows in one message, given the settings of the grid."""
        return rows_max(len(self._task.grid.settings()))

    @abstractmethod
    def _tally(self, first: Sequence[RowT]) -> Tally[RowT]:
        """Return an empty tally for all rows; `first` has the result rows of the first message."""

    def _row(self, response: ResponseT) -> RowT:
        row: RowT = from_message(response.row, self.row)
        return row

    def _request(self, start: int, stop: int, flags: Mapping[str, Any]) -> RequestT:
        subject = self._subject(start, stop) | {"groups": self._groups[start:stop]}
        message = self.request(**self._fields, **flags, **subject)
        getattr(message, self.task.rows_field).CopyFrom(encode(self._matrix, start, stop))
        return cast(RequestT, message)

    def _cut(self) -> None:
        ends: list[int] = row_ends(self._matrix, self._room) or [0]
        rows_max = self._rows_max(per_row=self._task.per_row)
        has_one_end = len(ends) == 1 and self._count <= rows_max
        if has_one_end and self._request(0, ends[0], self._flags).ByteSize() <= MESSAGE_BYTES:
            return
        if self._task.set_default:
            raise invalid(
                "set_default",
                f"needs {self.task.rows_field} that fit one message, {rows_max} at most in "
                f"{MESSAGE_BYTES} bytes",
            )
        self._settings = len(self._task.grid.settings())
        rows_max = self._rows_max(per_row=True)
        spans = pairwise([0, *ends])
        self._ends = [end for span in spans for end in self._ends_within(*span, rows_max)]

    def _ends_within(self, start: int, stop: int, rows_max: int) -> Iterator[int]:
        is_short = stop - start <= rows_max
        if is_short and self._request(start, stop, self._part_flags).ByteSize() <= MESSAGE_BYTES:
            yield stop
        elif stop - start == 1:
            row = self.one_row.format(start)
            raise InvalidArgumentError(
                self.task.rows_field, f"{row} must fit {MESSAGE_BYTES} bytes"
            )
        else:
            middle = (start + stop) // 2
            yield from self._ends_within(start, middle, rows_max)
            yield from self._ends_within(middle, stop, rows_max)

    def messages(self) -> Iterator[RequestT]:
        """Yield the requests; each must be answered before the next is taken."""
        for start, stop in pairwise([0, *self._ends]):
            self._span = start, stop
            yield self._request(start, stop, self._part_flags if self._settings else self._flags)

    def take(self, response: ResponseT) -> Iterator[RowT]:
        """Handle an event, and yield its row unless rows of several messages must be joined."""
        if response.HasField("progress"):
            self._tell(self._progress(response.progress))
        elif response.HasField("row"):
            row = self._row(response)
            if self._settings:
                self._answers.append((self._span[0], row))
            else:
                yield row

    def _progress(self, progress: evaluate_pb2.EvaluateProgress) -> Progress:
        rows_done, total = progress.queries_done, progress.queries_total
        seconds_left = progress.seconds_left if progress.HasField("seconds_left") else None
        if self._settings:
            rows_done += self._span[0] * self._settings
            total = self._count * self._settings
            if seconds_left is not None and progress.queries_total > progress.queries_done:
                seconds_left *= (total - rows_done) / (
                    progress.queries_total - progress.queries_done
                )
        return Progress(STAGE, rows_done, total, seconds_left)

    @property
    def has_begun(self) -> bool:
        """Whether a result row for one of several messages has been received."""
        return bool(self._answers)

    @property
    def is_torn(self) -> bool:
        """Whether the index was replaced between two messages."""
        return len({row.generation for _, row in self._answers}) > 1

    def rows(self) -> list[RowT]:
        """Return the rows joined from several messages.

        The list is empty if there was only one message, because `take` has already yielded its
        rows.
        """
        if not self._answers:
            return []
        tally = self._tally([row for start, row in self._answers if not start])
        for start, row in self._answers:
            tally.add(row.number, start, tally.figures(row))
        return tally.rows()


def _relevant_ids(ids: npt.ArrayLike) -> evaluate_pb2.RelevantIds:
    if not is_texts(ids):
        return evaluate_pb2.RelevantIds(ids=_column("relevant", ids, np.int64))
    texts = [text.decode() for text in encode_texts(ids, "relevant")]  # type: ignore[arg-type]  # it has a first text
    return evaluate_pb2.RelevantIds(string_ids=texts)


class QueryEvaluation(
    Evaluation[evaluate_pb2.EvaluateRequest, evaluate_pb2.EvaluateResponse, EvaluateRow]
):
    """One call of `evaluate`."""

    request = evaluate_pb2.EvaluateRequest
    per_row = "per_query"
    one_row = "query {} and what is relevant to it"
    task = Task
    row = EvaluateRow

    def __init__(
        self,
        name: str,
        queries: VectorsLike,
        categories: npt.ArrayLike | None,
        options: GridOptions,
        flags: Mapping[str, Any],
        *,
        relevant: Sequence[npt.ArrayLike] | None,
        groups: npt.ArrayLike | None,
        restriction: Mapping[str, Any],
        progress: OnProgress,
    ) -> None:
        """Check and store the arguments of a call; see `Evaluation` for `flags`.

        `restriction`: fields from `filters.filter_fields`.
        """
        refuse_unknown("evaluate", options, GridOptions.__annotations__)
        matrix = as_matrix("queries", queries, one_row=True)
        self._judgements: dict[str, list[Any]] = {}
        if categories is not None:
            self._judgements["categories"] = _column("categories", categories, np.int32)
        if relevant is not None:
            if len({is_texts(ids) for ids in relevant}) > 1:
                raise invalid("relevant", "must be all texts or all integers")
            self._judgements["relevant"] = list(map(_relevant_ids, relevant))
        for field, entries in self._judgements.items():
            if len(entries) != row_count(matrix):
                raise invalid(field, "must have one entry for each query")
        super().__init__(
            name,
            matrix,
            Grid(**cast(Any, options)),
            flags,
            groups=groups,
            progress=progress,
            restriction=restriction,
        )

    def _subject(self, start: int, stop: int) -> dict[str, object]:
        return {field: entries[start:stop] for field, entries in self._judgements.items()}

    def _tally(self, first: Sequence[EvaluateRow]) -> QueryTally:
        resolution = Resolution(
            generation=first[0].generation, parameters=tuple(row.parameters for row in first)
        )
        task, categories = self._task, self._judgements.get("categories")
        if task.groups is None and categories is not None:
            task = replace(task, groups=np.array(categories))
        return QueryTally(task, resolution)


def _column(field: str, numbers: npt.ArrayLike, dtype: type[np.signedinteger[Any]]) -> list[int]:
    column = whole_numbers(field, numbers, dtype)
    if column.ndim != 1:
        raise invalid(field, "must be whole numbers, in one dimension")
    values: list[int] = column.tolist()
    return values


class LabelEvaluation(
    Evaluation[
        evaluate_labels_pb2.EvaluateLabelsRequest,
        evaluate_labels_pb2.EvaluateLabelsResponse,
        EvaluateLabelRow,
    ]
):
    """One call of `evaluate_labels`."""

    request = evaluate_labels_pb2.EvaluateLabelsRequest
    per_row = "per_document"
    one_row = "document {} and its labels"
    task = LabelTask
    row = EvaluateLabelRow

    def __init__(
        self,
        name: str,
        documents: VectorsLike,
        labels: VectorsLike,
        options: LabelGridOptions,
        flags: Mapping[str, Any],
        *,
        groups: npt.ArrayLike | None,
        progress: OnProgress,
    ) -> None:
        """Check and store the arguments of a call; see `Evaluation` for `flags`."""
        refuse_unknown("evaluate_labels", options, LabelGridOptions.__annotations__)
        matrix = as_matrix("documents", documents, one_row=True)
        self._sets = without_zeros(label_sets(labels, row_count(matrix), "document"))
        # `_points` is the number of points of the index. `_counts` (L,) has the number of points
        # with each label. For each message, the server reports the counts of its labels.
        self._points = 0
        self._counts = np.zeros(self._sets.cols, np.int64)
        if flags["folds"] and not len(self._sets.indices):
            raise invalid("labels", "must have one label at least")
        super().__init__(
            name, matrix, LabelGrid(**cast(Any, options)), flags, groups=groups, progress=progress
        )

    def _subject(self, start: int, stop: int) -> dict[str, object]:
        return {"labels": encode_label_sets(self._labels(start, stop))}

    def _labels(self, start: int, stop: int) -> Csr:
        return cast(Csr, take(self._sets, start, stop))

    def _rows_max(self, *, per_row: bool) -> int:
        settings = cast("list[PredictParameters]", self._task.grid.settings())
        return documents_max(settings, per_row=per_row)

    def take(
        self, response: evaluate_labels_pb2.EvaluateLabelsResponse
    ) -> Iterator[EvaluateLabelRow]:
        """Handle an event, and yield its row unless rows of several messages must be joined."""
        if response.HasField("frequencies"):
            self._points = response.frequencies.points
            labels_of_part = np.unique(self._labels(*self._span).indices)
            self._counts[labels_of_part] = response.frequencies.counts
        else:
            yield from super().take(response)

    def _tally(self, first: Sequence[EvaluateLabelRow]) -> LabelTally:
        resolution = Resolution(
            generation=first[0].generation,
            parameters=tuple(row.parameters for row in first),
            goal=first[0].goal,
            points=self._points,
            counts=self._counts if self._points else None,
        )
        truth = Truth(self._sets.indptr, self._sets.indices, (self._count, self._sets.cols))
        return LabelTally(cast(LabelTask, self._task), resolution, truth)

    def _row(self, response: evaluate_labels_pb2.EvaluateLabelsResponse) -> EvaluateLabelRow:
        labels = _picked(response.row) if response.row.HasField("labels") else None
        return from_message(response.row, EvaluateLabelRow, labels=labels)


def _picked(message: evaluate_labels_pb2.EvaluateLabelRow) -> IntArray:
    counts, top_k = np.diff(message.labels.offsets), message.parameters.top_k
    labels = np.full((len(counts), top_k), -1)
    labels[filled_places(counts, top_k)] = message.labels.labels
    return labels
