"""Evaluate's messages as the core takes them, rows as messages, and what front and worker exchange.

What stands before all of them, and what EvaluateLabels has in common; the rest of that is in
`label_tasks`. Used by fronts and workers, so it loads nothing that computes.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple, get_args

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import COLUMNS, Asked, Grid, Plan, Task
from divgrpc.metrics import Values
from divgrpc.parameters import QueryParameters, check_index_name
from divgrpc.types import EffectiveParameters, EvaluateRow, Interval, Progress
from divgrpc_protos import words
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server.codec.results import effective, word

_ROW: Final = evaluate_pb2.EvaluateRow.DESCRIPTOR
_WORDS: Final = {
    "selectors": "selector",
    "variants": "variant",
    "roundings": "rounding",
    "searches": "search",
}
_NUMBERS: Final = ("diversities", "ks")
_PLAIN: Final = (
    "number",
    "generation",
    "h_of_means",
    "queries",
    "empty",
    "short",
    "on_front",
    "by_fold",
    "is_default",
)
_HEAD: Final = struct.Struct("<QQ")
Asking = evaluate_pb2.EvaluateRequest | evaluate_labels_pb2.EvaluateLabelsRequest
_KINDS: Final[tuple[type[Asking], ...]] = get_args(Asking)


class Head(NamedTuple):
    """What stands before a request between front and worker, and a byte that tells its kind.

    `run`: the evaluation that it is part of, for which a worker keeps its generation open;
    `generation`: which one that is, 0 where the worker is to say.
    """

    run: int
    generation: int

    def pack(self, request: Asking) -> bytes:
        """Return what `unpack` reads."""
        kind = _KINDS.index(type(request))
        return _HEAD.pack(*self) + bytes([kind]) + request.SerializeToString()


def unpack(payload: bytes) -> tuple[Head, Asking]:
    """Return what another process of ours packed."""
    message = _KINDS[payload[_HEAD.size]].FromString(payload[_HEAD.size + 1 :])
    return Head(*_HEAD.unpack_from(payload)), message


def without_head(payload: bytes) -> bytes:
    """Return what is the same whenever it is asked."""
    return payload[_HEAD.size :]


def parse_task(request: evaluate_pb2.EvaluateRequest, queries: int) -> Task:
    """Return what a request with so many queries asks for, but what is relevant to them.

    Raises `InvalidArgumentError` with the field named.
    """
    check_index_name(request.index)
    axes = axes_of(request, _WORDS, _NUMBERS)
    if not axes:
        raise InvalidArgumentError("grid", "the grid is empty: give an axis of it some values")
    if request.HasField("seed"):
        axes["seed"] = request.seed
    axes["keep_duplicates"] = request.keep_duplicates
    told = {"folds": request.folds} if request.HasField("folds") else {}
    return Task(
        grid=Grid(**axes),
        queries=queries,
        set_default=request.set_default,
        per_query=request.per_query,
        **told,
    ).bounded()


def axes_of(request: Asking, of_words: Iterable[str], of_numbers: Iterable[str]) -> dict[str, Any]:
    """Return the axes that have values: those of words, those of numbers, and limits.

    Raises `InvalidArgumentError` with the axis as its field.
    """
    axes: dict[str, Any] = {name: tuple(getattr(request, name)) for name in of_numbers}
    for name in of_words:
        found = [word(request.DESCRIPTOR, name, value) for value in getattr(request, name)]
        if None in found:
            raise InvalidArgumentError(name, f"{name} must not have an unspecified value")
        axes[name] = tuple(found)
    axes["limits"] = tuple(
        (
            each.hash_limit if each.HasField("hash_limit") else None,
            each.candidates_limit if each.HasField("candidates_limit") else None,
        )
        for each in request.limits
    )
    return {name: values for name, values in axes.items() if values}


def parse_asked(request: evaluate_pb2.EvaluateRequest, queries: int) -> Asked:
    """Return what is relevant to so many queries; raises as `parse_task` does."""
    lists = [np.array(each.ids, np.int64) for each in request.relevant] or None
    categories = np.array(request.categories, np.int64) if request.categories else None
    return Asked.of(categories, lists, queries)


def piece_of(
    name: str,
    setting: QueryParameters,
    asked: Asked,
    queries: Any,  # noqa: ANN401  # a Vectors message
) -> evaluate_pb2.EvaluateRequest:
    """Return the request that asks some queries at one setting, and chooses nothing."""
    request = evaluate_pb2.EvaluateRequest(
        index=name,
        queries=queries,
        categories=None if asked.categories is None else asked.categories.tolist(),
        relevant=[evaluate_pb2.RelevantIds(ids=each.tolist()) for each in asked.relevant or ()],
        limits=[
            evaluate_pb2.EvaluateLimits(
                hash_limit=setting.hash_limit, candidates_limit=setting.candidates_limit
            )
        ],
        diversities=[float(setting.diversity)],
        ks=[setting.k],
        seed=setting.seed,
        keep_duplicates=setting.keep_duplicates,
        folds=0,
    )
    add_words(request, _WORDS, setting)
    return request


def add_words(request: Asking, axes: Mapping[str, str], setting: object) -> None:
    """Give each of the axes of words the one value of its parameter."""
    fields = request.DESCRIPTOR.fields_by_name
    for axis, parameter in axes.items():
        getattr(request, axis).append(words.to_enum(fields[axis], getattr(setting, parameter)))


def pack_plan(plan: Plan) -> bytes:
    """Return what `unpack_plan` reads."""
    return json.dumps(asdict(plan)).encode()


def unpack_plan(payload: bytes) -> Plan:
    """Return what a worker found of a task."""
    document = json.loads(payload)
    resolved = tuple(EffectiveParameters(**each) for each in document.pop("resolved"))
    return Plan(resolved=resolved, **document)


def pack_measured(measured: Values) -> bytes:
    """Return what `unpack_measured` reads."""
    return np.ascontiguousarray(measured, "<f8").tobytes()


def unpack_measured(payload: bytes, columns: int = len(COLUMNS)) -> Values:
    """Return (columns, nq) float64: what a piece found."""
    return np.frombuffer(payload, "<f8").reshape(columns, -1)


def progress_of(progress: Progress) -> evaluate_pb2.EvaluateProgress:
    """Return the message that says how far an evaluation has come."""
    return evaluate_pb2.EvaluateProgress(
        queries_done=progress.rows_done,
        queries_total=progress.rows_total,
        seconds_left=progress.seconds_left,
    )


def pack_row(row: EvaluateRow) -> bytes:
    """Return the EvaluateResponse that holds a row."""
    message = evaluate_pb2.EvaluateRow(
        **{name: getattr(row, name) for name in _PLAIN},
        parameters=effective(row.parameters),
        metrics=[metric_of(*each) for each in row.metrics.items()],
        microseconds=evaluate_pb2.EvaluateTimes(**row.microseconds._asdict()),
        values=values_of(row.values),
    )
    setattr(message, "search", words.to_enum(_ROW.fields_by_name["search"], row.search))  # noqa: B010  # the enum's type is mypy's alone
    return evaluate_pb2.EvaluateResponse(row=message).SerializeToString()


def metric_of(name: str, interval: Interval) -> evaluate_pb2.EvaluateMetric:
    """Return the message of a metric, named or not."""
    return evaluate_pb2.EvaluateMetric(name=name, **interval._asdict())


def values_of(values: Mapping[str, Values]) -> list[evaluate_pb2.EvaluateValues]:
    """Return the messages of what every query or document has, (nq,) each."""
    return [evaluate_pb2.EvaluateValues(name=name, values=own) for name, own in values.items()]
