"""Evaluate's messages as the core takes them, rows as messages, and what front and worker exchange.

Used by fronts and workers, so it loads nothing that computes.
"""

import json
import struct
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import COLUMNS, Asked, Grid, Plan, Task
from divgrpc.metrics import Values
from divgrpc.parameters import QueryParameters, check_index_name
from divgrpc.types import EffectiveParameters, EvaluateRow, Progress
from divgrpc_protos import words
from divgrpc_protos.v1 import evaluate_pb2
from divgrpc_server.messages import effective, word

_REQUEST: Final = evaluate_pb2.EvaluateRequest.DESCRIPTOR
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


class Head(NamedTuple):
    """What stands before an EvaluateRequest between front and worker.

    `run`: the evaluation that it is part of, for which a worker keeps its generation open;
    `generation`: which one that is, 0 where the worker is to say.
    """

    run: int
    generation: int

    def pack(self, request: evaluate_pb2.EvaluateRequest) -> bytes:
        """Return what `unpack` reads."""
        return _HEAD.pack(*self) + request.SerializeToString()


def unpack(payload: bytes) -> tuple[Head, evaluate_pb2.EvaluateRequest]:
    """Return what another process of ours packed."""
    request = evaluate_pb2.EvaluateRequest.FromString(payload[_HEAD.size :])
    return Head(*_HEAD.unpack_from(payload)), request


def without_head(payload: bytes) -> bytes:
    """Return the request alone: what is the same whenever it is asked."""
    return payload[_HEAD.size :]


def parse_task(request: evaluate_pb2.EvaluateRequest, queries: int) -> Task:
    """Return what a request with so many queries asks for, but what is relevant to them.

    Raises `InvalidArgumentError` with the field named.
    """
    check_index_name(request.index)
    axes = _axes(request)
    if not axes:
        raise InvalidArgumentError("grid", "the grid is empty: give an axis of it some values")
    if request.HasField("seed"):
        axes["seed"] = request.seed
    told = {"folds": request.folds} if request.HasField("folds") else {}
    return Task(
        grid=Grid(**axes),
        queries=queries,
        set_default=request.set_default,
        per_query=request.per_query,
        **told,
    )


def _axes(request: evaluate_pb2.EvaluateRequest) -> dict[str, Any]:
    """Return the axes that have values."""
    axes: dict[str, Any] = {name: tuple(getattr(request, name)) for name in _NUMBERS}
    for name in _WORDS:
        found = [word(_REQUEST, name, value) for value in getattr(request, name)]
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
        diversities=[setting.diversity],
        ks=[setting.k],
        seed=setting.seed,
        folds=0,
    )
    for axis, parameter in _WORDS.items():
        value = words.to_enum(_REQUEST.fields_by_name[axis], getattr(setting, parameter))
        getattr(request, axis).append(value)
    return request


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


def unpack_measured(payload: bytes) -> Values:
    """Return (len(COLUMNS), nq) float64: what a piece found."""
    return np.frombuffer(payload, "<f8").reshape(len(COLUMNS), -1)


def pack_progress(progress: Progress) -> bytes:
    """Return the EvaluateResponse that says how far an evaluation has come."""
    told = evaluate_pb2.EvaluateProgress(
        queries_done=progress.rows_done,
        queries_total=progress.rows_total,
        seconds_left=progress.seconds_left,
    )
    return evaluate_pb2.EvaluateResponse(progress=told).SerializeToString()


def pack_row(row: EvaluateRow) -> bytes:
    """Return the EvaluateResponse that holds a row."""
    message = evaluate_pb2.EvaluateRow(
        **{name: getattr(row, name) for name in _PLAIN},
        parameters=effective(row.parameters),
        metrics=[
            evaluate_pb2.EvaluateMetric(name=name, value=m.value, low=m.low, high=m.high)
            for name, m in row.metrics.items()
        ],
        microseconds=evaluate_pb2.EvaluateTimes(**row.microseconds._asdict()),
        values=[
            evaluate_pb2.EvaluateValues(name=name, values=values)
            for name, values in row.values.items()
        ],
    )
    setattr(message, "search", words.to_enum(_ROW.fields_by_name["search"], row.search))  # noqa: B010  # the enum's type is mypy's alone
    return evaluate_pb2.EvaluateResponse(row=message).SerializeToString()
