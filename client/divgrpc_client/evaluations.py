"""Evaluate on the caller's side: its requests, its events, its rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import COLUMNS, LEAST_WITH_H, Grid, Plan, Tally, Task
from divgrpc.evaluation.running import STAGE
from divgrpc.types import EvaluateRow, Interval, Microseconds, Progress
from divgrpc_client import requests, responses
from divgrpc_client.batches import MESSAGE_BYTES
from divgrpc_client.options import GRID_DEFAULTS, GridOptions, refuse_unknown
from divgrpc_client.vectors import VectorsLike, as_matrix, encode
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import evaluate_pb2

Tell = Callable[[Progress], object]
_REQUEST: Final = evaluate_pb2.EvaluateRequest.DESCRIPTOR


RequestT = TypeVar("RequestT")
ResponseT_contra = TypeVar("ResponseT_contra", contravariant=True)
RowT_co = TypeVar("RowT_co", covariant=True)


class Asking(Protocol[RequestT, ResponseT_contra, RowT_co]):
    """One call of an evaluation, whatever of: what to send, and what becomes of the events."""

    messages: list[RequestT]

    def begin(self) -> None:
        """Say that the next of `messages` is sent."""

    def take(self, response: ResponseT_contra) -> Iterator[RowT_co]:
        """Take an event, and yield the rows that it is."""

    def rows(self) -> Sequence[RowT_co] | None:
        """Return the rows that are made here; None where the index was replaced meanwhile."""


class Evaluation:
    """One call of `evaluate`: what to send, and what becomes of the events. No I/O.

    Queries that one message does not hold go in several, one after the other; then their rows have
    the figures of every query, of which the rows of all are made here as the server makes them.
    Raises `InvalidArgumentError` with the field for what the wire cannot carry, and TypeError for
    an unknown option.
    """

    def __init__(
        self,
        name: str,
        queries: VectorsLike,
        categories: npt.ArrayLike | None,
        options: GridOptions,
        *,
        relevant: Sequence[npt.ArrayLike] | None,
        folds: int,
        set_default: bool,
        per_query: bool,
        progress: Tell | None,
    ) -> None:
        refuse_unknown(GridOptions, options)
        self._matrix = as_matrix("queries", queries, one_row=True)
        self._count = row_count(self._matrix)
        self._told: dict[str, Any] = {**GRID_DEFAULTS, **options}
        self._asked = _asked(categories, relevant)
        self._rest: dict[str, Any] = {
            "folds": folds,
            "set_default": set_default,
            "per_query": per_query,
        }
        self._tell = progress or (lambda _: None)
        axes = {
            axis: axis_values(_REQUEST, axis, self._told[axis])
            for axis in self._told
            if axis != "seed"
        }
        self._fields: dict[str, object] = {"index": name, "seed": self._told["seed"], **axes}
        whole = self._request(0, self._count, self._rest)
        self.messages = [whole]
        self._tables: list[list[EvaluateRow]] = []
        self._task: Task | None = None
        if whole.ByteSize() > MESSAGE_BYTES:
            self._cut()

    def _cut(self) -> None:
        """Ask in several messages, each for its figures per query."""
        if self._rest["set_default"]:
            raise InvalidArgumentError(
                "set_default", f"set_default needs queries that fit {MESSAGE_BYTES} bytes together"
            )
        for field, given in self._asked.items():
            if len(given) != self._count:
                raise InvalidArgumentError(field, f"{field} must have one entry for each query")
        self._task = Task(
            grid=Grid(**self._told),
            queries=self._count,
            folds=self._rest["folds"],
            per_query=self._rest["per_query"],
        )
        self.messages = list(self._parts(0, self._count))

    def _parts(self, start: int, stop: int) -> Iterator[evaluate_pb2.EvaluateRequest]:
        message = self._request(start, stop, {"folds": 0, "per_query": True})
        if message.ByteSize() <= MESSAGE_BYTES:
            yield message
        elif stop - start == 1:
            raise InvalidArgumentError(
                "queries",
                f"query {start} and what is relevant to it must fit {MESSAGE_BYTES} bytes",
            )
        else:
            middle = (start + stop) // 2
            yield from self._parts(start, middle)
            yield from self._parts(middle, stop)

    def _request(
        self, start: int, stop: int, rest: Mapping[str, object]
    ) -> evaluate_pb2.EvaluateRequest:
        asked = {field: given[start:stop] for field, given in self._asked.items()}
        if stop == self._count:
            # What is too much is the server's to refuse.
            asked = {field: given[start:] for field, given in self._asked.items()}
        fields = {**self._fields, **rest, **asked}
        message = requests.build_message(evaluate_pb2.EvaluateRequest, fields)
        message.queries.CopyFrom(encode(self._matrix, start, stop))
        return message

    def take(self, response: evaluate_pb2.EvaluateResponse) -> Iterator[EvaluateRow]:
        """Take an event, and yield the row that it is, unless those of all are yet to be made."""
        if response.HasField("row"):
            found = row(response.row)
            if self._task is None:
                yield found
            else:
                self._tables[-1].append(found)
            return
        told = response.progress
        before = sum(rows[0].queries * len(rows) for rows in self._tables[:-1])
        if self._task is None:
            total = told.queries_total
        else:
            total = self._count * len(self._task.grid.settings())
        done = before + told.queries_done
        left = progress_of(told).seconds_left
        if left is not None and told.queries_total > told.queries_done:
            left *= (total - done) / (told.queries_total - told.queries_done)
        self._tell(Progress(STAGE, done, total, left))

    def begin(self) -> None:
        """Say that the next of `messages` is sent."""
        self._tables.append([])

    def rows(self) -> list[EvaluateRow] | None:
        """Return the rows that are made here, none where they came as they are.

        None: the index was replaced between two messages.
        """
        if self._task is None:
            return []
        first = self._tables[0]
        if len({rows[0].generation for rows in self._tables}) > 1:
            return None
        start = 0
        with_h = sum(int((~np.isnan(rows[0].values["h_score"])).sum()) for rows in self._tables)
        plan = Plan(
            generation=first[0].generation,
            resolved=tuple(row.parameters for row in first),
            chooses=bool(self._task.folds) and with_h >= LEAST_WITH_H,
        )
        numbers = np.array(self._asked.get("categories", [0] * self._count), np.int64)
        tally = Tally(self._task, plan, numbers)
        for rows in self._tables:
            for found in rows:
                table = np.stack([found.values[name] for name in COLUMNS])
                tally.add(found.number, start, table)
            start += rows[0].queries
        return tally.rows()[0]


def progress_of(message: evaluate_pb2.EvaluateProgress) -> Progress:
    """Return how far one message's evaluation has come."""
    left = message.seconds_left if message.HasField("seconds_left") else None
    return Progress(STAGE, message.queries_done, message.queries_total, left)


def _asked(
    categories: npt.ArrayLike | None, relevant: Sequence[npt.ArrayLike] | None
) -> dict[str, list[Any]]:
    asked: dict[str, list[Any]] = {}
    if categories is not None:
        asked["categories"] = _whole("categories", categories)
    if relevant is not None:
        lists = (_whole("relevant", each) for each in relevant)
        asked["relevant"] = [evaluate_pb2.RelevantIds(ids=each) for each in lists]
    return asked


def _whole(field: str, numbers: npt.ArrayLike) -> list[int]:
    array = np.asarray(numbers)
    wide = array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max
    if array.ndim != 1 or wide or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgumentError(field, f"{field} must be whole numbers, in one dimension")
    found: list[int] = array.tolist()
    return found


def axis_values(request: Descriptor, axis: str, values: Any) -> list[Any]:  # noqa: ANN401  # whatever a caller takes for a list
    """Return an axis as the wire has it, where an empty one would be the default.

    Raises `InvalidArgumentError` with the axis as its field. None is a threshold's alone.
    """
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InvalidArgumentError(axis, f"{axis} must be a list of values")
    given: list[Any] = [
        value.item() if isinstance(value, np.generic) else value for value in values
    ]
    if not given:
        raise InvalidArgumentError(axis, f"{axis} must have a value at least")
    if axis == "limits":
        return [_limits(pair) for pair in given]
    field = request.fields_by_name[axis]
    if field.enum_type is not None:
        return [requests.enum_value(field, word) for word in given]
    known = [each for each in given if each is not None or axis != "thresholds"]
    if any(isinstance(value, bool) or value is None for value in known):
        raise InvalidArgumentError(axis, f"{axis} must be numbers, got {given!r}")
    return given


def _limits(pair: Any) -> evaluate_pb2.EvaluateLimits:  # noqa: ANN401  # as above
    names = [field.name for field in evaluate_pb2.EvaluateLimits.DESCRIPTOR.fields]
    try:
        told = dict(zip(names, pair, strict=True))
        return evaluate_pb2.EvaluateLimits(**told)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "limits", f"limits must be pairs of hash_limit and candidates_limit, got {pair!r}"
        ) from None


def row(message: evaluate_pb2.EvaluateRow) -> EvaluateRow:
    """Return a row of a table."""
    plain = (
        "number",
        "generation",
        "h_of_means",
        "queries",
        "empty",
        "short",
        "on_front",
        "is_default",
    )
    times = message.microseconds
    return EvaluateRow(
        **{name: getattr(message, name) for name in plain},
        search=responses.word(message, "search"),
        parameters=responses.effective(message.parameters),
        metrics={m.name: Interval(m.value, m.low, m.high) for m in message.metrics},
        microseconds=Microseconds(times.mean, times.p50, times.p90, times.p99),
        by_fold=tuple(message.by_fold),
        values={each.name: np.array(each.values, np.float64) for each in message.values},
    )
