"""Messages as results: the dataclasses of `divgrpc.types`, and the server's description."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from divgrpc.types import (
    EffectiveLabelParameters,
    EffectiveParameters,
    IndexInfo,
    LabelResult,
    Progress,
    QueryResult,
    QueryStats,
    TrainingProgress,
    WarningInfo,
)
from divgrpc_protos import words
from divgrpc_protos.records import from_message
from divgrpc_protos.v1 import index_pb2, predict_pb2, query_pb2

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """How a server describes itself.

    version: of divgrpc, such as "0.1.0".
    durable: whether indexes outlive the server.
    fronts: number of processes that accept connections.
    workers_ready, workers: number of worker processes that are up, and of all.
    kernels_ready: whether the kernels of every worker are compiled.
    limits: the limits of requests by name, as `divgrpc.parameters.LIMITS`.
    versions: versions of Python and of libraries by name.
    kernels_compiled, kernels_total: number of kernels that are compiled, and of all; 0 and 0 until
        the server knows.
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
        "warnings": tuple(from_message(warning, WarningInfo) for warning in response.warnings),
    }


def _stats(message: query_pb2.QueryStats) -> QueryStats:
    stats = from_message(message, QueryStats)
    if len(stats.collapsed) < len(stats.candidates):
        # A server of an earlier version counts no near-copies.
        zeros = np.zeros_like(stats.candidates)
        return replace(stats, collapsed=zeros, duplicates=zeros)
    return stats


def effective(message: query_pb2.EffectiveParameters) -> EffectiveParameters:
    """Return the parameters of an answer."""
    return _query_parameters(message.SerializeToString())


def effective_of_labels(
    message: predict_pb2.EffectiveLabelParameters,
) -> EffectiveLabelParameters:
    """Return the parameters of a prediction."""
    return _label_parameters(message.SerializeToString())


# Most answers that a service gets have the same few parameters.
@lru_cache(maxsize=1024)
def _query_parameters(payload: bytes) -> EffectiveParameters:
    message = query_pb2.EffectiveParameters.FromString(payload)
    return from_message(message, EffectiveParameters)


@lru_cache(maxsize=1024)
def _label_parameters(payload: bytes) -> EffectiveLabelParameters:
    message = predict_pb2.EffectiveLabelParameters.FromString(payload)
    return from_message(message, EffectiveLabelParameters)


def index_info(message: index_pb2.IndexInfo) -> IndexInfo:
    """Return an index's description."""
    return from_message(message, IndexInfo)


def progress(message: index_pb2.BuildProgress) -> Progress:
    """Return the progress of a build: a `TrainingProgress` if there is a loss."""
    return from_message(message, TrainingProgress if message.HasField("loss") else Progress)


def server_info(message: index_pb2.GetServerInfoResponse) -> ServerInfo:
    """Return how a server describes itself."""
    return from_message(message, ServerInfo)


def word(message: Message, name: str) -> Any:  # noqa: ANN401  # the Literal of that field
    """Return the word of an enum field, or the number if a newer server sent one without a word."""
    field = cast(FieldDescriptor, message.DESCRIPTOR.fields_by_name[name])
    value = cast(int, getattr(message, name))
    return words.to_word(field, value) or str(value)
