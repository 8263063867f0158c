"""Evaluate on the caller's side: its requests, its events, its rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import COLUMNS, LEAST_WITH_H, Grid, Plan, Tally, Task
from divgrpc.evaluation.measuring import H
from divgrpc.evaluation.planning import rows_max
from divgrpc.metrics import Values
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc.types import EvaluateRow, Interval, Microseconds
from divgrpc_client.messages import requests, responses
from divgrpc_client.messages.evaluation_parts import EvaluationParts, Tell
from divgrpc_client.messages.options import GRID_DEFAULTS, GridOptions
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode
from divgrpc_protos.v1 import evaluate_pb2

_REQUEST: Final = evaluate_pb2.EvaluateRequest.DESCRIPTOR
# Options with one value for all settings of a grid.
_FIXED: Final = ("seed", "keep_duplicates")


class Evaluation(
    EvaluationParts[evaluate_pb2.EvaluateRequest, evaluate_pb2.EvaluateResponse, EvaluateRow]
):
    """One call of `evaluate`.

    Raises `InvalidArgumentError` with the field for what the wire cannot carry, and TypeError for
    an unknown option.
    """

    field = "queries"
    one = "query {} and what is relevant to it"
    _part: Final = {"folds": 0, "set_default": False, "per_query": True}

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
        super().__init__(as_matrix("queries", queries, one_row=True), rest, progress)
        self._options: dict[str, Any] = {**GRID_DEFAULTS, **options}
        self._asked = _asked(categories, relevant)
        axes = {
            axis: axis_values(_REQUEST, axis, self._options[axis])
            for axis in self._options
            if axis not in _FIXED
        }
        fixed = {field: self._options[field] for field in _FIXED}
        self._fields: dict[str, object] = {"index": name, **fixed, **axes}
        self._cut()

    def _measure(self, rest: Mapping[str, Any]) -> tuple[int, int]:
        del rest
        settings = len(Grid(**self._options).settings())
        return settings, rows_max(settings)

    def _check(self) -> None:
        for field, given in self._asked.items():
            if len(given) != self._count:
                raise InvalidArgumentError(field, f"{field} must have one entry for each query")
        self._task = Task(grid=Grid(**self._options), queries=self._count, **self._rest)

    def _request(
        self, start: int, stop: int, rest: Mapping[str, Any]
    ) -> evaluate_pb2.EvaluateRequest:
        asked = {field: given[start:stop] for field, given in self._asked.items()}
        if stop == self._count:
            # What is too much is the server's to refuse.
            asked = {field: given[start:] for field, given in self._asked.items()}
        fields = {**self._fields, **rest, **asked}
        message = requests.build_message(evaluate_pb2.EvaluateRequest, fields)
        message.queries.CopyFrom(encode(self._matrix, start, stop))
        return message

    def _row(self, response: evaluate_pb2.EvaluateResponse) -> EvaluateRow:
        return row(response.row)

    def _table(self, row: EvaluateRow) -> Values:
        return np.stack([row.values[name] for name in COLUMNS])

    def _made(self) -> list[EvaluateRow]:
        of_first = [table[H] for number, _, table in self._figures if not number]
        with_h = sum(int((~np.isnan(h)).sum()) for h in of_first)
        plan = Plan(
            generation=self._firsts[0].generation,
            resolved=tuple(row.parameters for row in self._firsts),
            chooses=bool(self._task.folds) and with_h >= LEAST_WITH_H,
        )
        numbers = np.array(self._asked.get("categories", [0] * self._count), np.int64)
        tally = Tally(self._task, plan, numbers)
        for figures in self._figures:
            tally.add(*figures)
        return tally.rows()[0]


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
        limits = dict(zip(names, pair, strict=True))
        return evaluate_pb2.EvaluateLimits(**limits)
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
