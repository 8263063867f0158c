"""Results of the core to messages; arrays, and the parameters of a build, from them.

Used wherever protobuf is spoken: by workers, builders, and fronts for what they answer themselves,
so it loads nothing that computes. What queries ask and the rows that come: see `requests`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, Final, cast

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
    LabelInfo,
    LabelResult,
    Progress,
    QueryDefault,
    QueryResult,
    QueryStats,
    SearchCost,
    TrainingProgress,
    WarningInfo,
)
from divgrpc_protos import arrays, words
from divgrpc_protos.v1 import index_pb2, labels_pb2, predict_pb2, query_pb2, vectors_pb2
from divgrpc_server.codec.statuses import ReplyTooLargeError

_BUILD: Final = index_pb2.BuildParameters.DESCRIPTOR
_RESPONSE: Final = query_pb2.QueryResponse.DESCRIPTOR
_EFFECTIVE: Final = query_pb2.EffectiveParameters.DESCRIPTOR
_INFO: Final = index_pb2.IndexInfo.DESCRIPTOR
_DEFAULT: Final = index_pb2.QueryDefault.DESCRIPTOR
_COST: Final = query_pb2.SearchCost.DESCRIPTOR
_LABELS: Final = labels_pb2.LabelInfo.DESCRIPTOR
_PREDICTED: Final = predict_pb2.EffectiveLabelParameters.DESCRIPTOR
_EFFECTIVE_WORDS: Final = ("selector", "variant", "search", "sampling", "rounding")
_PREDICTED_WORDS: Final = ("mode", "vote", "selector", "search")
_DEFAULT_WORDS: Final = ("selector", "variant", "search", "rounding")
_BUILD_WORDS: Final = ("metric", "hash_family", "hyperplanes", "zero_vectors")
_BUILD_NUMBERS: Final = (
    "centred",
    "n_tables",
    "n_bits",
    "n_components",
    "target_recall",
    "seed",
)
# A hit is at least a byte of its id and two floats.
_HIT_BYTES_MIN: Final = 9


def parse_matrix(field: str, vectors: vectors_pb2.Vectors) -> arrays.Matrix:
    """Return rows as they came; raises `InvalidArgumentError` with the field below `field`."""
    try:
        return arrays.decode(vectors)
    except arrays.MatrixError as error:
        path = f"{field}.{error.field}" if error.field else field
        raise InvalidArgumentError(path, f"{field}: {error}") from None


def parse_label_sets(sets: labels_pb2.LabelSets, rows: int, of: str) -> arrays.Csr:
    """Return the labels of so many rows of documents, or whatever they are `of`, as rows of ones.

    Raises `InvalidArgumentError` with the field below `labels`.
    """
    try:
        found = arrays.decode_label_sets(sets)
    except arrays.MatrixError as error:
        raise InvalidArgumentError(f"labels.{error.field}", f"labels.{error}") from None
    if arrays.row_count(found) != rows:
        raise InvalidArgumentError(
            "labels.offsets",
            f"labels.offsets must be {rows + 1}, one more than the {of}, "
            f"got {arrays.row_count(found) + 1}",
        )
    return found


def parse_build_parameters(message: index_pb2.BuildParameters) -> BuildParameters:
    """Return the parameters of a build.

    Raises `InvalidArgumentError` with the field named.
    """
    given: dict[str, Any] = {
        name: word(_BUILD, name, getattr(message, name)) for name in _BUILD_WORDS
    }
    for name in _BUILD_NUMBERS:
        given[name] = getattr(message, name) if message.HasField(name) else None
    return BuildParameters(**{name: value for name, value in given.items() if value is not None})


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
        stats=_stats(result.stats),
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
        response.warnings.extend(_warning(warning) for warning in result.warnings)
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
        stats=_stats(result.stats),
        parameters=effective_of_labels(result.parameters),
        warnings=[_warning(warning) for warning in result.warnings],
    )
    if result.names:
        response.names.values.extend(chain.from_iterable(result.names))
        response.names.SetInParent()
    return response.SerializeToString()


def _columns(counts: CountArray, *tables: npt.NDArray[Any]) -> tuple[list[int], list[list[Any]]]:
    """Return the offsets of the rows of tables (nq, k), and what is found in each, row by row."""
    offsets = [0, *accumulate(counts.tolist())]
    width = tables[0].shape[1]
    if offsets[-1] < tables[0].size:
        found = np.arange(width) < counts[:, None]
        tables = tuple(table[found] for table in tables)
    return offsets, [table.ravel().tolist() for table in tables]


def _reasons(reasons: npt.NDArray[np.str_]) -> list[Any]:
    return [_number(_RESPONSE, "dial_reasons", reason) for reason in reasons.tolist()]


def _offsets_of_hits(result: QueryResult) -> list[int]:
    """Return `collapsed_offsets` without the places that no result fills."""
    copies = np.diff(result.collapsed_offsets).reshape(result.ids.shape)
    filled = np.arange(result.ids.shape[1]) < result.counts[:, None]
    return [0, *accumulate(copies[filled].tolist())]


def _stats(stats: QueryStats) -> query_pb2.QueryStats:
    return query_pb2.QueryStats(
        points_hashed=stats.points_hashed.tolist(),
        buckets_probed=stats.buckets_probed.tolist(),
        points_scored=stats.points_scored.tolist(),
        candidates=stats.candidates.tolist(),
        collapsed=stats.collapsed.tolist(),
        duplicates=stats.duplicates.tolist(),
    )


@lru_cache(maxsize=1024)
def effective_of_labels(
    parameters: EffectiveLabelParameters,
) -> predict_pb2.EffectiveLabelParameters:
    """Return the parameters labels were predicted with."""
    told = asdict(parameters)
    for name in _PREDICTED_WORDS:
        told[name] = _number(_PREDICTED, name, told[name])
    return predict_pb2.EffectiveLabelParameters(**told)


def pack_stream_answer(correlation_id: int, response: bytes) -> bytes:
    """Return the QueryStreamResponse around a QueryResponse, without parsing or copying that.

    A message is its fields one after the other, and `response` is field 2, a length and bytes.
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
    """Return the parameters a request was answered with as a message, not to be changed."""
    message = query_pb2.EffectiveParameters(
        k=parameters.k,
        diversity=parameters.diversity,
        hash_limit=parameters.hash_limit,
        candidates_limit=parameters.candidates_limit,
        max_distance=parameters.max_distance,
        seed=parameters.seed,
        n_probes=parameters.n_probes,
        duplicate_threshold=parameters.duplicate_threshold,
        list_collapsed=parameters.list_collapsed,
        diversity_auto=parameters.diversity_auto,
        lose_at_most=parameters.lose_at_most,
    )
    for name in _EFFECTIVE_WORDS:
        setattr(
            message, name, words.to_enum(_EFFECTIVE.fields_by_name[name], getattr(parameters, name))
        )
    return message


def pack_info(info: IndexInfo) -> index_pb2.IndexInfo:
    """Return an index's description as a message."""
    message = index_pb2.IndexInfo(
        name=info.name,
        generation=info.generation,
        rows=info.rows,
        dims=info.dims,
        parameters=_build_parameters(info.parameters),
        code_bits=info.code_bits,
        n_probes=info.n_probes,
        auto_search=_number(_INFO, "auto_search", info.auto_search),
        search_costs=_costs(info.search_costs),
        has_categories=info.has_categories,
        has_subtopics=info.has_subtopics,
        arrays=[
            index_pb2.ArrayInfo(
                name=array.name, dtype=array.dtype, shape=array.shape, bytes=array.bytes
            )
            for array in info.arrays
        ],
        points=_number(_INFO, "points", info.points),
        nonzeros=info.nonzeros,
        choices=[
            index_pb2.Choice(parameter=choice.parameter, value=choice.value, reason=choice.reason)
            for choice in info.choices
        ],
        warnings=[_warning(warning) for warning in info.warnings],
        query_default=_query_default(info.query_default),
        labels=_label_info(info.labels),
        search_costs_dense=_costs(info.search_costs_dense),
        duplicate_threshold=info.duplicate_threshold,
    )
    if info.auto_search_dense is not None:
        message.auto_search_dense = _number(_INFO, "auto_search_dense", info.auto_search_dense)
    return message


def _costs(costs: Sequence[SearchCost]) -> list[query_pb2.SearchCost]:
    return [
        query_pb2.SearchCost(
            search=_number(_COST, "search", cost.search),
            recall=cost.recall,
            microseconds=cost.microseconds,
            pools=[query_pb2.PoolCost(**asdict(pool)) for pool in cost.pools],
        )
        for cost in costs
    ]


def _label_info(info: LabelInfo | None) -> labels_pb2.LabelInfo | None:
    if info is None:
        return None
    message = labels_pb2.LabelInfo(
        label_count=info.label_count,
        rank=info.rank,
        has_label_sets=info.has_label_sets,
        has_names=info.has_names,
        has_hierarchy=info.has_hierarchy,
        losses=info.losses,
        search_costs=_costs(info.search_costs),
        thresholds=cast(Mapping[str, float], info.thresholds),
    )
    if info.parameters is not None:
        for name, value in info.parameters.items():
            setattr(message.parameters, name, value)
    if info.auto_search is not None:
        message.auto_search = _number(_LABELS, "auto_search", info.auto_search)
    return message


def _query_default(default: QueryDefault | None) -> index_pb2.QueryDefault | None:
    if default is None:
        return None
    told = asdict(default)
    for name in _DEFAULT_WORDS:
        told[name] = _number(_DEFAULT, name, told[name])
    return index_pb2.QueryDefault(**told)


def pack_progress(progress: Progress) -> index_pb2.BuildProgress:
    """Return how far a build has come as a message."""
    return index_pb2.BuildProgress(
        stage=progress.stage,
        rows_done=progress.rows_done,
        rows_total=progress.rows_total,
        seconds_left=progress.seconds_left,
        loss=progress.loss if isinstance(progress, TrainingProgress) else None,
    )


def _build_parameters(parameters: Mapping[str, object]) -> index_pb2.BuildParameters:
    message = index_pb2.BuildParameters()
    for name, value in parameters.items():
        if isinstance(value, str):
            setattr(message, name, words.to_enum(_BUILD.fields_by_name[name], value))
        elif value is not None:
            setattr(message, name, value)
    return message


def _warning(warning: WarningInfo) -> query_pb2.WarningInfo:
    return query_pb2.WarningInfo(code=warning.code, message=warning.message, field=warning.field)


def word(message: Descriptor, name: str, value: int) -> str | None:
    """Return the word of a field's enum value, None for the unspecified one.

    Raises `InvalidArgumentError` where the enum has no such value.
    """
    if value == 0:
        return None
    found = words.to_word(message.fields_by_name[name], value)
    if found is None:
        raise InvalidArgumentError(name, f"{name} has no value {value}")
    return found


def _number(message: Descriptor, name: str, word: str) -> Any:  # noqa: ANN401  # any enum's type
    return words.to_enum(message.fields_by_name[name], word)


def check_reply_size(rows: int, k: int) -> None:
    """Raise `ReplyTooLargeError` where no message can hold `k` hits of each row."""
    if rows * k * _HIT_BYTES_MIN > LIMITS["message_bytes_max"]:
        raise reply_too_large()


def reply_too_large() -> ReplyTooLargeError:
    """Return what to raise where no message can hold an answer."""
    return ReplyTooLargeError(
        f"the answer would be larger than {LIMITS['message_bytes_max']} bytes; "
        "ask for fewer rows at a time or a smaller k"
    )
