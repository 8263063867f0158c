"""Converts response messages to the dataclasses of `divgrpc.types` and to `ServerInfo`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.types import (
    EffectiveLabelParameters,
    EffectiveParameters,
    Explanation,
    IntArray,
    LabelResult,
    Progress,
    QueryResult,
    QueryStats,
    Refusal,
    Report,
    TrainingProgress,
)
from divgrpc.types.records import IdArray, PointLabels, Records, SparseVectors
from divgrpc_client.messages.quotas import group_fields, value_of, values_of
from divgrpc_protos.arrays import Csr, decode, filled_places
from divgrpc_protos.records import from_message
from divgrpc_protos.v1 import explanations_pb2, index_pb2, points_pb2, predict_pb2, query_pb2

EffectiveT = TypeVar("EffectiveT", EffectiveParameters, EffectiveLabelParameters)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The description of a server.

    version: version of divgrpc, such as "0.1.0".
    durable: whether indexes are kept when the server stops.
    fronts: number of processes that accept connections.
    workers_ready, workers: number of ready worker processes, and of all worker processes.
    kernels_ready: whether the kernels of every worker are compiled.
    limits: limits of requests by name, as in `divgrpc.parameters.LIMITS`.
    versions: versions of Python and of libraries by name.
    kernels_compiled, kernels_total: number of compiled kernels, and of all kernels. Both are 0
        until the server knows the numbers.
    read_only: whether the server refuses calls that change indexes.
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
    read_only: bool = False


def query_result(response: query_pb2.QueryResponse) -> QueryResult:
    """Return a response as (nq, k) arrays, padded if a row has fewer than k results."""
    payload = response.parameters.SerializeToString()
    parameters = _effective(payload, query_pb2.EffectiveParameters, EffectiveParameters)
    table = _Table(response.offsets, parameters.k)
    if response.id_kind == points_pb2.ID_KIND_STRING:
        ids = table.padded(response.string_ids, object, "")
        collapsed_ids: IdArray = np.array(response.collapsed_string_ids, object)
    else:
        ids = table.padded(response.ids, np.int64, -1)
        collapsed_ids = np.array(response.collapsed_ids, np.int64)
    return from_message(
        response,
        QueryResult,
        ids=ids,
        parameters=parameters,
        collapsed_ids=collapsed_ids,
        collapsed_offsets=table.offsets(response.collapsed_offsets),
        attributes=values_of(response.attributes),
        explanations=tuple(map(_explanation, response.explanations)),
        report=_report(response.report) if response.HasField("report") else None,
        **group_fields(response),
        **table.common_fields(response),
    )


def _explanation(message: explanations_pb2.Explanation) -> Explanation:
    ids: dict[str, IdArray] = {}
    for name, texts in (
        ("caused_by", message.string_caused_by),
        ("displaced_ids", message.displaced_string_ids),
        ("displaced_caused_by", message.displaced_string_caused_by),
    ):
        has_texts = len(message.string_caused_by) > 0
        ids[name] = (
            np.array(texts, object) if has_texts else np.array(getattr(message, name), np.int64)
        )
    refusals = tuple(
        from_message(refusal, Refusal, value=value_of(refusal.value))
        for refusal in message.refusals
    )
    return from_message(message, Explanation, refusals=refusals, **ids)


def _report(message: explanations_pb2.Report) -> Report:
    entropies: dict[str, Any] = {
        field: {entry.name: np.array(entry.values) for entry in getattr(message, field)}
        for field in ("entropies", "plain_entropies")
    }
    numbers: dict[str, Any] = {
        field.name: np.array(getattr(message, field.name))
        for field in fields(Report)
        if field.name not in entropies
    }
    return Report(**numbers, **entropies)


def point_records(response: points_pb2.GetResponse | points_pb2.ScrollResponse) -> Records:
    """Return the points of a response."""
    points = response.points
    ids: IdArray = np.array(points.ids, np.int64)
    if points.string_ids:
        ids = np.array(points.string_ids, object)
    vectors: Any = None
    if points.HasField("vectors"):
        vectors = decode(points.vectors)
        if isinstance(vectors, Csr):
            indices = vectors.indices.astype(np.int32)
            vectors = SparseVectors(vectors.indptr, indices, vectors.data, vectors.cols)
    has_vector = None
    if points.rows_without_vector and vectors is not None:
        has_vector = np.ones(len(ids), np.bool_)
        has_vector[points.rows_without_vector] = False
        vectors = _spread(vectors, has_vector)
    return Records(
        ids=ids,
        vectors=vectors,
        has_vector=has_vector,
        attributes=values_of(points.attributes),
        payloads=tuple(points.payloads),
        generation=response.generation,
        sequence=response.sequence,
        labels=_labels(points.labels) if points.HasField("labels") else None,
        categories=_topics(points.categories),
        subtopics=_topics(points.subtopics),
    )


def _spread(vectors: Any, has_vector: npt.NDArray[np.bool_]) -> Any:  # noqa: ANN401  # an array or SparseVectors
    """Return the vectors that are there as rows of all points: NaN or no values for the others."""
    if isinstance(vectors, SparseVectors):
        widths = np.zeros(len(has_vector), np.int64)
        widths[has_vector] = np.diff(vectors.indptr)
        return vectors._replace(indptr=np.concatenate(([0], np.cumsum(widths))))
    whole = np.full((len(has_vector), vectors.shape[1]), np.nan, np.float32)
    whole[has_vector] = vectors
    return whole


def _labels(sets: points_pb2.LabelSets) -> PointLabels:
    indptr, indices = np.array(sets.offsets, np.int64), np.array(sets.ids, np.int32)
    return PointLabels(indptr, indices, sets.label_count)


def _topics(numbers: Sequence[int]) -> npt.NDArray[np.int32] | None:
    return np.array(numbers, np.int32) if numbers else None


def label_result(response: predict_pb2.PredictLabelsResponse) -> LabelResult:
    """Return a response as (nq, top_k) arrays, padded if a row has fewer labels."""
    payload = response.parameters.SerializeToString()
    kind = predict_pb2.EffectiveLabelParameters
    parameters = _effective(payload, kind, EffectiveLabelParameters)
    table = _Table(response.offsets, parameters.top_k)
    names: tuple[tuple[str, ...], ...] = ()
    if response.HasField("names"):
        values = response.names.values
        names = tuple(tuple(values[start:stop]) for start, stop in pairwise(response.offsets))
    return from_message(
        response,
        LabelResult,
        labels=table.padded(response.labels, np.int64, -1),
        parameters=parameters,
        names=names,
        **table.common_fields(response),
    )


class _Table:
    """Maps the flat results of a response to a padded array (nq, `width`) for nq query rows."""

    def __init__(self, offsets: Sequence[int], width: int) -> None:
        self.counts = np.diff(np.array(offsets, np.int64)).astype(np.uint32)
        self.filled = filled_places(self.counts, width)

    def padded(self, column: Sequence[Any], dtype: npt.DTypeLike, missing: object) -> Any:  # noqa: ANN401  # an array of that dtype
        values = np.array(column, dtype)
        if values.size == self.filled.size:
            return values.reshape(self.filled.shape)
        matrix = np.full(self.filled.shape, missing, dtype)
        matrix[self.filled] = values
        return matrix

    def offsets(self, offsets: Sequence[int]) -> IntArray:
        """Return `QueryResult.collapsed_offsets`, empty if near-copies were not listed."""
        if not offsets:
            return np.empty(0, np.int64)
        copies = np.zeros(self.filled.shape, np.int64)
        copies[self.filled] = np.diff(np.array(offsets, np.int64))
        return np.concatenate(([0], np.cumsum(copies)))

    def common_fields(self, response: Any) -> dict[str, object]:  # noqa: ANN401  # of either kind
        """Return the fields that results of queries and of predictions have in common."""
        return {
            "scores": self.padded(response.scores, np.float32, np.nan),
            "selection_scores": self.padded(response.selection_scores, np.float32, np.nan),
            "counts": self.counts,
            "stats": _stats(response.stats),
            "coverage": response.coverage if response.HasField("coverage") else 1.0,
        }


def _stats(message: query_pb2.QueryStats) -> QueryStats:
    stats = from_message(message, QueryStats)
    if len(stats.collapsed) < len(stats.candidates):
        # A server of an earlier version does not count near-copies.
        zeros = np.zeros_like(stats.candidates)
        return replace(stats, collapsed=zeros, duplicates=zeros)
    return stats


# Most answers have one of a few sets of parameters, so the decoded parameters are cached.
@lru_cache(maxsize=1024)
def _effective(payload: bytes, message: Callable[[], Any], kind: type[EffectiveT]) -> EffectiveT:
    parameters = message()
    parameters.ParseFromString(payload)
    return from_message(parameters, kind)


def progress(message: index_pb2.BuildProgress) -> Progress:
    """Return the progress of a build, as a `TrainingProgress` if the message has a loss."""
    return from_message(message, TrainingProgress if message.HasField("loss") else Progress)
