"""Messages as results: the dataclasses of `divgrpc.types`, and what a server says of itself."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from divgrpc.types import (
    ArrayInfo,
    Choice,
    EffectiveLabelParameters,
    EffectiveParameters,
    IndexInfo,
    LabelInfo,
    LabelResult,
    Mode,
    PoolCost,
    Progress,
    QueryDefault,
    QueryResult,
    QueryStats,
    SearchCost,
    TrainingProgress,
    WarningInfo,
)
from divgrpc_protos import words
from divgrpc_protos.v1 import index_pb2, labels_pb2, predict_pb2, query_pb2

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself.

    `durable`: indexes outlive it; `workers_ready` of `workers` are up; `kernels_ready`: every
    worker's kernels are compiled and warm; `limits` and `versions` by name; `kernels_compiled` of
    `kernels_total` kernels are compiled, 0 of 0 until the server knows or if it is an older one.
    """

    version: str
    durable: bool
    fronts: int
    workers_ready: int
    workers: int
    kernels_ready: bool
    limits: dict[str, int]
    versions: dict[str, str]
    kernels_compiled: int = 0
    kernels_total: int = 0


def query_result(response: query_pb2.QueryResponse) -> QueryResult:
    """Return the columns of a response as (nq, k) arrays, padded where fewer than k were found."""
    parameters = effective(response.parameters)
    laid_out, shared = _shared(response, parameters.k)
    return QueryResult(
        ids=laid_out(np.array(response.ids, np.int64), -1),
        parameters=parameters,
        duality_gaps=np.array(response.duality_gaps, np.float32),
        collapsed_ids=np.array(response.collapsed_ids, np.int64),
        collapsed_offsets=_offsets_of_places(response, parameters.k),
        diversities=np.array(response.diversities, np.float64),
        dial_reasons=_reasons(response),
        **shared,
    )


def _reasons(response: query_pb2.QueryResponse) -> npt.NDArray[np.str_]:
    """Return the words of the reasons for each row's dial."""
    field = response.DESCRIPTOR.fields_by_name["dial_reasons"]
    numbers = response.dial_reasons
    return np.array([words.to_word(field, n) or str(n) for n in numbers], np.str_)


def _offsets_of_places(response: query_pb2.QueryResponse, k: int) -> npt.NDArray[np.int64]:
    """Return where the near-copies of each place (nq, k) begin, and the end; empty if unlisted."""
    if not response.collapsed_offsets:
        return np.empty(0, np.int64)
    counts = np.diff(np.array(response.offsets, np.int64))
    filled = np.arange(k) < counts[:, None]
    copies = np.zeros(filled.shape, np.int64)
    copies[filled] = np.diff(np.array(response.collapsed_offsets, np.int64))
    return np.concatenate(([0], np.cumsum(copies)))


def label_result(response: predict_pb2.PredictLabelsResponse) -> LabelResult:
    """Return the columns of a response as (nq, top_k) arrays, padded where there are fewer."""
    parameters = effective_of_labels(response.parameters)
    laid_out, shared = _shared(response, parameters.top_k)
    names: tuple[tuple[str, ...], ...] = ()
    if response.HasField("names"):
        values, offsets = response.names.values, response.offsets
        names = tuple(tuple(values[start:stop]) for start, stop in pairwise(offsets))
    return LabelResult(
        labels=laid_out(np.array(response.labels, np.int64), -1),
        parameters=parameters,
        names=names,
        **shared,
    )


def _shared(
    response: query_pb2.QueryResponse | predict_pb2.PredictLabelsResponse, k: int
) -> tuple[Callable[[Column, float], Column], dict[str, Any]]:
    """Return what lays a column out as (nq, k), and the fields that both kinds of result have."""
    counts = np.diff(np.array(response.offsets, np.int64)).astype(np.uint32)
    filled = np.arange(k) < counts[:, None]

    def laid_out(values: Column, missing: float) -> Column:
        if values.size == filled.size:
            return values.reshape(filled.shape)
        matrix = np.full(filled.shape, missing, values.dtype)
        matrix[filled] = values
        return matrix

    scores, selection_scores = (
        laid_out(np.array(column, np.float32), np.nan)
        for column in (response.scores, response.selection_scores)
    )
    return laid_out, {
        "scores": scores,
        "selection_scores": selection_scores,
        "counts": counts,
        "generation": response.generation,
        "stats": _stats(response.stats),
        "warnings": _warnings(response.warnings),
    }


def _stats(stats: query_pb2.QueryStats) -> QueryStats:
    return QueryStats(
        points_hashed=np.array(stats.points_hashed, np.uint32),
        buckets_probed=np.array(stats.buckets_probed, np.uint32),
        points_scored=np.array(stats.points_scored, np.uint32),
        candidates=np.array(stats.candidates, np.uint32),
        # An older server counts no near-copies.
        collapsed=np.array(stats.collapsed or [0] * len(stats.candidates), np.uint32),
        duplicates=np.array(stats.duplicates or [0] * len(stats.candidates), np.uint32),
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
        n_probes=message.n_probes,
        duplicate_threshold=(
            message.duplicate_threshold if message.HasField("duplicate_threshold") else None
        ),
        list_collapsed=message.list_collapsed,
        diversity_auto=message.diversity_auto,
        lose_at_most=message.lose_at_most if message.HasField("lose_at_most") else None,
    )


def effective_of_labels(
    message: predict_pb2.EffectiveLabelParameters,
) -> EffectiveLabelParameters:
    """Return the parameters labels were predicted with."""
    return EffectiveLabelParameters(
        top_k=message.top_k,
        threshold=message.threshold if message.HasField("threshold") else None,
        mode=word(message, "mode"),
        neighbours=message.neighbours,
        vote=word(message, "vote"),
        diversity=message.diversity,
        selector=word(message, "selector"),
        search=word(message, "search"),
        hash_limit=message.hash_limit,
        candidates_limit=message.candidates_limit,
        seed=message.seed,
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
        search_costs=_costs(message.search_costs),
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
        labels=_label_info(message.labels) if message.HasField("labels") else None,
        auto_search_dense=word(message, "auto_search_dense") if message.auto_search_dense else None,
        search_costs_dense=_costs(message.search_costs_dense),
        duplicate_threshold=(
            message.duplicate_threshold if message.HasField("duplicate_threshold") else None
        ),
    )


def _costs(costs: Iterable[query_pb2.SearchCost]) -> tuple[SearchCost, ...]:
    return tuple(
        SearchCost(
            search=word(cost, "search"),
            recall=cost.recall,
            microseconds=cost.microseconds,
            pools=tuple(
                PoolCost(*(getattr(pool, field.name) for field in fields(PoolCost)))
                for pool in cost.pools
            ),
        )
        for cost in costs
    )


def _label_info(message: labels_pb2.LabelInfo) -> LabelInfo:
    told = message.parameters
    return LabelInfo(
        label_count=message.label_count,
        rank=message.rank,
        has_label_sets=message.has_label_sets,
        has_names=message.has_names,
        has_hierarchy=message.has_hierarchy,
        parameters={field.name: value for field, value in told.ListFields()} or None,
        losses=tuple(message.losses),
        auto_search=word(message, "auto_search") if message.auto_search else None,
        search_costs=_costs(message.search_costs),
        thresholds=cast(dict[Mode, float], dict(message.thresholds)),
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
    """Return how far a build has come: a `TrainingProgress` once there is a loss."""
    left = message.seconds_left if message.HasField("seconds_left") else None
    told = (message.stage, message.rows_done, message.rows_total, left)
    return TrainingProgress(*told, message.loss) if message.HasField("loss") else Progress(*told)


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
        kernels_compiled=message.kernels_compiled,
        kernels_total=message.kernels_total,
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
