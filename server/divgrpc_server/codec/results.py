"""Results of the core to messages; arrays, and the parameters of a build, from messages.

Workers and builders use it, and fronts for what they answer themselves. It imports nothing that
computes. `requests` parses queries and rows.
"""

from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.types import (
    CountArray,
    EffectiveLabelParameters,
    EffectiveParameters,
    IndexInfo,
    LabelResult,
    Progress,
    QueryResult,
)
from divgrpc_protos import arrays, records, words
from divgrpc_protos.v1 import index_pb2, labels_pb2, predict_pb2, query_pb2, vectors_pb2
from divgrpc_server.codec.statuses import ReplyTooLargeError

_DIAL_REASONS: Final = query_pb2.QueryResponse.DESCRIPTOR.fields_by_name["dial_reasons"]
# A hit is at least a byte of its id and two floats.
_HIT_BYTES_MIN: Final = 9


def parse_matrix(field: str, vectors: vectors_pb2.Vectors) -> arrays.Matrix:
    """Return the rows of a message; raises `InvalidArgumentError` with a field of `field`."""
    try:
        return arrays.decode(vectors)
    except arrays.MatrixError as error:
        path = f"{field}.{error.field}" if error.field else field
        raise InvalidArgumentError(path, f"{field}: {error}") from None


def parse_label_sets(sets: labels_pb2.LabelSets, rows: int, of: str) -> arrays.Csr:
    """Return the labels of `rows` documents as rows of ones.

    `of` is the word for the documents in errors. Raises `InvalidArgumentError` with a field of
    `labels`.
    """
    try:
        labels = arrays.decode_label_sets(sets)
    except arrays.MatrixError as error:
        raise InvalidArgumentError(f"labels.{error.field}", f"labels.{error}") from None
    label_rows = arrays.row_count(labels)
    if label_rows != rows:
        raise InvalidArgumentError(
            "labels.offsets",
            f"labels.offsets must be {rows + 1}, one more than the {of}, got {label_rows + 1}",
        )
    return labels


def parse_build_parameters(message: index_pb2.BuildParameters) -> BuildParameters:
    """Return the parameters of a build.

    Raises `InvalidArgumentError` with the field named.
    """
    try:
        return BuildParameters(**records.set_values(message))
    except records.UnknownWordError as error:
        raise InvalidArgumentError(error.field, str(error)) from None


def pack_result(result: QueryResult) -> bytes:
    """Return the QueryResponse."""
    offsets, columns = _columns(result.counts, result.ids, result.scores, result.selection_scores)
    ids, scores, selection_scores = columns
    response = query_pb2.QueryResponse(
        generation=result.generation,
        offsets=offsets,
        ids=ids,
        scores=scores,
        selection_scores=selection_scores,
        stats=records.to_message(result.stats, query_pb2.QueryStats),
        parameters=effective(result.parameters),
        duality_gaps=result.duality_gaps.tolist(),
    )
    if len(result.diversities):
        response.diversities.extend(result.diversities.tolist())
        response.dial_reasons.extend(_reasons(result.dial_reasons))
    if len(result.collapsed_offsets):
        response.collapsed_ids.extend(result.collapsed_ids.tolist())
        response.collapsed_offsets.extend(_offsets_of_hits(result))
    if result.warnings:
        response.warnings.extend(
            records.to_message(warning, query_pb2.WarningInfo) for warning in result.warnings
        )
    return response.SerializeToString()


def pack_labels(result: LabelResult) -> bytes:
    """Return the PredictLabelsResponse."""
    offsets, columns = _columns(
        result.counts, result.labels, result.scores, result.selection_scores
    )
    labels, scores, selection_scores = columns
    response = predict_pb2.PredictLabelsResponse(
        generation=result.generation,
        offsets=offsets,
        labels=labels,
        scores=scores,
        selection_scores=selection_scores,
        stats=records.to_message(result.stats, query_pb2.QueryStats),
        parameters=effective_of_labels(result.parameters),
        warnings=[
            records.to_message(warning, query_pb2.WarningInfo) for warning in result.warnings
        ],
    )
    if result.names:
        response.names.values.extend(chain.from_iterable(result.names))
        response.names.SetInParent()
    return response.SerializeToString()


def _columns(counts: CountArray, *tables: npt.NDArray[Any]) -> tuple[list[int], list[list[Any]]]:
    """Return the offsets of the rows of tables (nq, k), and each table's filled places in order."""
    offsets = [0, *accumulate(counts.tolist())]
    width = tables[0].shape[1]
    if offsets[-1] < tables[0].size:
        filled = np.arange(width) < counts[:, None]
        tables = tuple(table[filled] for table in tables)
    return offsets, [table.ravel().tolist() for table in tables]


def _reasons(reasons: npt.NDArray[np.str_]) -> list[Any]:
    return [words.to_enum(_DIAL_REASONS, reason) for reason in reasons.tolist()]


def _offsets_of_hits(result: QueryResult) -> list[int]:
    """Return `collapsed_offsets` of the filled places alone."""
    copies = np.diff(result.collapsed_offsets).reshape(result.ids.shape)
    filled = np.arange(result.ids.shape[1]) < result.counts[:, None]
    return [0, *accumulate(copies[filled].tolist())]


@lru_cache(maxsize=1024)
def effective_of_labels(
    parameters: EffectiveLabelParameters,
) -> predict_pb2.EffectiveLabelParameters:
    """Return the parameters of a prediction as a message that the caller must not change."""
    return records.to_message(parameters, predict_pb2.EffectiveLabelParameters)


def pack_stream_answer(correlation_id: int, response: bytes) -> bytes:
    """Return the QueryStreamResponse of a serialised QueryResponse, without parsing it.

    A message is the concatenation of its fields. Field 2, `response`, is a length and bytes.
    """
    answer = query_pb2.QueryStreamResponse(correlation_id=correlation_id)
    return answer.SerializeToString() + b"\x12" + _varint(len(response)) + response


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


@lru_cache(maxsize=1024)
def effective(parameters: EffectiveParameters) -> query_pb2.EffectiveParameters:
    """Return the parameters of an answer as a message that the caller must not change."""
    return records.to_message(parameters, query_pb2.EffectiveParameters)


def pack_info(info: IndexInfo) -> index_pb2.IndexInfo:
    """Return an index's description as a message."""
    return records.to_message(info, index_pb2.IndexInfo)


def pack_progress(progress: Progress) -> index_pb2.BuildProgress:
    """Return the progress of a build as a message."""
    return records.to_message(progress, index_pb2.BuildProgress)


def word(message: Descriptor, name: str, value: int) -> str | None:
    """Return the word of a field's enum value, None for the unspecified one.

    Raises `InvalidArgumentError` for a number that has no word.
    """
    if value == 0:
        return None
    try:
        return records.word_of(message.fields_by_name[name], value)
    except records.UnknownWordError as error:
        raise InvalidArgumentError(name, str(error)) from None


def check_reply_size(rows: int, k: int) -> None:
    """Raise `ReplyTooLargeError` if no message can hold `k` hits of each row."""
    if rows * k * _HIT_BYTES_MIN > LIMITS["message_bytes_max"]:
        raise reply_too_large()


def reply_too_large() -> ReplyTooLargeError:
    """Return the error of an answer that no message can hold."""
    return ReplyTooLargeError(
        f"the answer would be larger than {LIMITS['message_bytes_max']} bytes; "
        "ask for fewer rows at a time or a smaller k"
    )
