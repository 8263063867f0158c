"""Messages as results: the dataclasses of `divgrpc.types`, and what a server says of itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from divgrpc.types import (
    ArrayInfo,
    Choice,
    EffectiveParameters,
    IndexInfo,
    Progress,
    QueryDefault,
    QueryResult,
    QueryStats,
    SearchCost,
    WarningInfo,
)
from divgrpc_protos import words
from divgrpc_protos.v1 import index_pb2, query_pb2

NumberT = TypeVar("NumberT", bound=np.generic)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself.

    `durable`: indexes outlive it; `workers_ready` of `workers` are up; `kernels_ready`: every
    worker's kernels are compiled and warm; `limits` and `versions` by name.
    """

    version: str
    durable: bool
    fronts: int
    workers_ready: int
    workers: int
    kernels_ready: bool
    limits: dict[str, int]
    versions: dict[str, str]


def query_result(response: query_pb2.QueryResponse) -> QueryResult:
    """Return the columns of a response as (nq, k) arrays, padded where fewer than k were found."""
    parameters = effective(response.parameters)
    offsets = np.array(response.offsets, np.int64)
    rows, k = max(0, len(offsets) - 1), parameters.k
    counts = np.diff(offsets).astype(np.uint32) if rows else np.empty(0, np.uint32)
    ids = np.array(response.ids, np.int64)
    scores = np.array(response.scores, np.float32)
    selection_scores = np.array(response.selection_scores, np.float32)
    filled = None if len(ids) == rows * k else np.arange(k) < counts[:, None]
    return QueryResult(
        ids=_rows(ids, filled, (rows, k), -1),
        scores=_rows(scores, filled, (rows, k), np.nan),
        selection_scores=_rows(selection_scores, filled, (rows, k), np.nan),
        counts=counts,
        generation=response.generation,
        stats=_stats(response.stats),
        parameters=parameters,
        warnings=_warnings(response.warnings),
        duality_gaps=np.array(response.duality_gaps, np.float32),
    )


def _rows(
    values: npt.NDArray[NumberT],
    filled: npt.NDArray[np.bool_] | None,
    shape: tuple[int, int],
    missing: float,
) -> npt.NDArray[NumberT]:
    if filled is None:
        return values.reshape(shape)
    matrix = np.full(shape, missing, values.dtype)
    matrix[filled] = values
    return matrix


def joined(parts: Sequence[QueryResult]) -> QueryResult:
    """Join the results of one batch that travelled in several requests to one generation."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def rows(field: str) -> Any:  # noqa: ANN401  # one field's arrays, whatever their type
        return np.concatenate([getattr(part, field) for part in parts])

    def counted(field: str) -> Any:  # noqa: ANN401  # as above
        return np.concatenate([getattr(part.stats, field) for part in parts])

    return QueryResult(
        ids=rows("ids"),
        scores=rows("scores"),
        selection_scores=rows("selection_scores"),
        counts=rows("counts"),
        generation=first.generation,
        stats=QueryStats(*(counted(name) for name in QueryStats.__dataclass_fields__)),
        parameters=first.parameters,
        warnings=tuple(dict.fromkeys(w for part in parts for w in part.warnings)),
        duality_gaps=rows("duality_gaps"),
    )


def _stats(stats: query_pb2.QueryStats) -> QueryStats:
    return QueryStats(
        points_hashed=np.array(stats.points_hashed, np.uint32),
        buckets_probed=np.array(stats.buckets_probed, np.uint32),
        points_scored=np.array(stats.points_scored, np.uint32),
        candidates=np.array(stats.candidates, np.uint32),
    )


def effective(message: query_pb2.EffectiveParameters) -> EffectiveParameters:
    """Return the parameters that a request was answered with."""
    return EffectiveParameters(
        k=message.k,
        diversity=message.diversity,
        selector=word(message, "selector"),
        variant=word(message, "variant"),
        search=word(message, "search"),
        hash_limit=message.hash_limit,
        candidates_limit=message.candidates_limit,
        max_distance=message.max_distance if message.HasField("max_distance") else None,
        sampling=word(message, "sampling"),
        seed=message.seed,
        rounding=word(message, "rounding"),
    )


def index_info(message: index_pb2.IndexInfo) -> IndexInfo:
    """Return an index's description."""
    return IndexInfo(
        name=message.name,
        generation=message.generation,
        rows=message.rows,
        dims=message.dims,
        parameters=_parameters(message.parameters),
        code_bits=message.code_bits,
        n_probes=message.n_probes,
        auto_search=word(message, "auto_search"),
        search_costs=tuple(
            SearchCost(word(cost, "search"), cost.recall, cost.microseconds)
            for cost in message.search_costs
        ),
        has_categories=message.has_categories,
        has_subtopics=message.has_subtopics,
        arrays=tuple(
            ArrayInfo(array.name, array.dtype, tuple(array.shape), array.bytes)
            for array in message.arrays
        ),
        points=word(message, "points"),
        nonzeros=message.nonzeros,
        choices=tuple(Choice(c.parameter, c.value, c.reason) for c in message.choices),
        warnings=_warnings(message.warnings),
        query_default=_query_default(message),
    )


def _query_default(message: index_pb2.IndexInfo) -> QueryDefault | None:
    if not message.HasField("query_default"):
        return None
    told = message.query_default
    return QueryDefault(
        diversity=told.diversity,
        selector=word(told, "selector"),
        variant=word(told, "variant"),
        search=word(told, "search"),
        hash_limit=told.hash_limit if told.HasField("hash_limit") else None,
        candidates_limit=told.candidates_limit if told.HasField("candidates_limit") else None,
        rounding=word(told, "rounding"),
    )


def progress(message: index_pb2.BuildProgress) -> Progress:
    """Return how far a build has come."""
    return Progress(
        stage=message.stage,
        rows_done=message.rows_done,
        rows_total=message.rows_total,
        seconds_left=message.seconds_left if message.HasField("seconds_left") else None,
    )


def server_info(message: index_pb2.GetServerInfoResponse) -> ServerInfo:
    """Return what a server says of itself."""
    return ServerInfo(
        version=message.version,
        durable=message.durable,
        fronts=message.fronts,
        workers_ready=message.workers_ready,
        workers=message.workers,
        kernels_ready=message.kernels_ready,
        limits=dict(message.limits),
        versions=dict(message.versions),
    )


def _warnings(messages: Iterable[query_pb2.WarningInfo]) -> tuple[WarningInfo, ...]:
    return tuple(WarningInfo(m.code, m.message, m.field) for m in messages)


def word(message: Message, name: str) -> Any:  # noqa: ANN401  # the Literal of that field
    """Return the word of a field's enum value."""
    # A word that a newer server has and this client does not is shown by its number.
    field = cast(FieldDescriptor, message.DESCRIPTOR.fields_by_name[name])
    value = cast(int, getattr(message, name))
    return words.to_word(field, value) or str(value)


def _parameters(message: index_pb2.BuildParameters) -> dict[str, object]:
    """Return every parameter, None for what an index has not, as cells have no tables."""
    found: dict[str, object] = dict.fromkeys(field.name for field in message.DESCRIPTOR.fields)
    for field, value in message.ListFields():
        found[field.name] = word(message, field.name) if field.enum_type else value
    return found
