"""Conversion of results to messages, and of label sets and build parameters from messages.

Fronts use this module too, so it imports neither the compiler nor kernels. Queries and rows are
parsed in `requests`.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.types import (
    CountArray,
    Diversification,
    EffectiveLabelParameters,
    EffectiveParameters,
    Explanation,
    LabelResult,
    QueryResult,
    Report,
)
from divgrpc_protos import arrays, records
from divgrpc_protos.v1 import (
    diversify_pb2,
    explanations_pb2,
    index_pb2,
    labels_pb2,
    points_pb2,
    predict_pb2,
    query_pb2,
)
from divgrpc_server.codec.points import pack_attributes, pack_value
from divgrpc_server.codec.quotas import pack_groups, pack_place_groups, pack_shortfalls
from divgrpc_server.codec.statuses import ReplyTooLargeError

MessageT = TypeVar("MessageT", bound=Message)

# The minimum size of one result in a message: one byte for the id and two floats.
_HIT_BYTES_MIN: Final = 9


def parse_label_sets(sets: points_pb2.LabelSets, rows: int, of: str) -> arrays.Csr:
    """Return the labels of `rows` documents as a sparse matrix with the value 1 for each label.

    `of` is the noun for the documents in error messages. Raises `InvalidArgumentError`, which names
    the invalid field of `labels`.
    """
    try:
        labels = arrays.decode_label_sets(sets)
    except arrays.MatrixError as error:
        raise InvalidArgumentError(f"labels.{error.field}", f"labels.{error}") from None
    label_rows = arrays.row_count(labels)
    if label_rows != rows:
        raise invalid(
            "labels.offsets", f"must be {rows + 1}, one more than the {of}, got {label_rows + 1}"
        )
    return labels


def set_values(message: Message) -> dict[str, Any]:
    """Return the values of the fields that a request sets, as `records.set_values` does.

    Raises `InvalidArgumentError` for an enum number that the contract does not define.
    """
    try:
        return records.set_values(message)
    except records.UnknownWordError as error:
        raise InvalidArgumentError(error.field, str(error)) from None


def parse_build_parameters(message: index_pb2.BuildParameters) -> BuildParameters:
    """Return the parameters of a build.

    Raises `InvalidArgumentError`, which names the field.
    """
    return BuildParameters(**set_values(message))


def pack_result(result: QueryResult) -> bytes:
    """Return the QueryResponse."""
    offsets, (ids, scores, selection_scores) = _columns(
        result.counts, result.ids, result.scores, result.selection_scores
    )
    has_texts = result.ids.dtype.kind == "O"
    offsets_of_copies = _offsets_of_hits(result) if len(result.collapsed_offsets) else None
    response = records.to_message(
        result,
        query_pb2.QueryResponse,
        offsets=offsets,
        ids=[] if has_texts else ids,
        string_ids=ids if has_texts else [],
        id_kind=points_pb2.ID_KIND_STRING if has_texts else points_pb2.ID_KIND_UNSPECIFIED,
        collapsed_ids=[] if has_texts else result.collapsed_ids.tolist(),
        collapsed_string_ids=result.collapsed_ids.tolist() if has_texts else [],
        attributes=pack_attributes(result.attributes) if result.attributes else [],
        scores=scores,
        selection_scores=selection_scores,
        collapsed_offsets=offsets_of_copies,
        explanations=[_pack_explanation(one, has_texts) for one in result.explanations],
        report=None if result.report is None else _pack_report(result.report),
        parameters=_effective(result.parameters, query_pb2.EffectiveParameters),
        groups=pack_groups(result),
        quota_shortfalls=pack_shortfalls(result),
        coverage=result.coverage if result.missing_shards else None,
    )
    return response.SerializeToString()


def pack_diversification(result: Diversification) -> bytes:
    """Return the DiversifyResponse."""
    response = records.to_message(
        result,
        diversify_pb2.DiversifyResponse,
        groups=pack_place_groups(result),
        quota_shortfalls=pack_shortfalls(result),
    )
    return response.SerializeToString()


def _pack_explanation(explanation: Explanation, has_texts: bool) -> explanations_pb2.Explanation:
    ids: dict[str, list[Any]] = {}
    for name, text_name in (
        ("caused_by", "string_caused_by"),
        ("displaced_ids", "displaced_string_ids"),
        ("displaced_caused_by", "displaced_string_caused_by"),
    ):
        values = getattr(explanation, name).tolist()
        ids |= {name: [], text_name: values} if has_texts else {name: values, text_name: []}
    refusals = [
        records.to_message(
            refusal,
            explanations_pb2.Refusal,
            value=None if refusal.value is None else pack_value(refusal.value),
        )
        for refusal in explanation.refusals
    ]
    return records.to_message(explanation, explanations_pb2.Explanation, refusals=refusals, **ids)


def _pack_report(report: Report) -> explanations_pb2.Report:
    entropies: dict[str, Any] = {
        field: [
            explanations_pb2.AttributeEntropies(name=name, values=values)
            for name, values in getattr(report, field).items()
        ]
        for field in ("entropies", "plain_entropies")
    }
    numbers: dict[str, Any] = {
        field.name: getattr(report, field.name).tolist()
        for field in fields(Report)
        if field.name not in entropies
    }
    return explanations_pb2.Report(**numbers, **entropies)


def pack_labels(result: LabelResult) -> bytes:
    """Return the PredictLabelsResponse."""
    offsets, (labels, scores, selection_scores) = _columns(
        result.counts, result.labels, result.scores, result.selection_scores
    )
    names = labels_pb2.LabelNames(values=chain.from_iterable(result.names))
    response = records.to_message(
        result,
        predict_pb2.PredictLabelsResponse,
        offsets=offsets,
        labels=labels,
        scores=scores,
        selection_scores=selection_scores,
        names=names if result.names else None,
        parameters=_effective(result.parameters, predict_pb2.EffectiveLabelParameters),
        coverage=result.coverage if result.missing_shards else None,
    )
    return response.SerializeToString()


def _columns(counts: CountArray, *tables: npt.NDArray[Any]) -> tuple[list[int], list[list[Any]]]:
    """Return the offsets of rows, and the values of each table in columnar form.

    The tables have shape (nq, k). The first `counts[i]` values of row i are kept, and the padding
    is dropped.
    """
    offsets = [0, *accumulate(counts.tolist())]
    if offsets[-1] < tables[0].size:
        places = arrays.filled_places(counts, tables[0].shape[1])
        tables = tuple(table[places] for table in tables)
    return offsets, [table.ravel().tolist() for table in tables]


def _offsets_of_hits(result: QueryResult) -> list[int]:
    """Return `collapsed_offsets` without the offsets of places that hold no result."""
    copies = np.diff(result.collapsed_offsets).reshape(result.ids.shape)
    places = arrays.filled_places(result.counts, result.ids.shape[1])
    return [0, *accumulate(copies[places].tolist())]


# Cached because most calls to a server repeat the same few sets of parameters. Callers must not
# modify the message.
@lru_cache(maxsize=1024)
def _effective(
    parameters: EffectiveParameters | EffectiveLabelParameters, kind: Callable[..., MessageT]
) -> MessageT:
    return kind(**records.message_fields(parameters, cast("type[Message]", kind)))


def pack_stream_answer(correlation_id: int, response: bytes) -> bytes:
    """Return a QueryStreamResponse that contains a serialised QueryResponse, without parsing it.

    The parts are simply concatenated, because a serialised message is the concatenation of its
    fields. Field 2, `response`, is serialised as a tag, a length and the bytes.
    """
    answer = query_pb2.QueryStreamResponse(correlation_id=correlation_id)
    return answer.SerializeToString() + b"\x12" + _varint(len(response)) + response


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def check_reply_size(rows: int, k: int) -> None:
    """Raise `ReplyTooLargeError` if `k` results for each of `rows` rows cannot fit in a message."""
    if rows * k * _HIT_BYTES_MIN > LIMITS["message_bytes_max"]:
        raise reply_too_large()


def reply_too_large() -> ReplyTooLargeError:
    """Return the error for a response that does not fit in a message."""
    return ReplyTooLargeError(
        f"the answer would be larger than {LIMITS['message_bytes_max']} bytes; "
        "ask for fewer rows at a time or a smaller k"
    )
