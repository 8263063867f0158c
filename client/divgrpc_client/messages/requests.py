"""Makes request messages from the parameters of a call, which the core's dataclasses check.

A parameter is not sent if the caller leaves it out, or sets it to None where None is its default.
The default of the server or of the index then applies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from functools import lru_cache
from typing import Any, Final, Unpack

import numpy as np

from divgrpc.columns.ids import as_ids, encode_texts, is_texts
from divgrpc.errors import invalid
from divgrpc.parameters import (
    BuildParameters,
    LabelParameters,
    PredictParameters,
    QueryParameters,
    check_one_dial,
)
from divgrpc.parameters.checks import check_bool
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc_client.messages.options import BuildOptions, PredictOptions, QueryOptions
from divgrpc_client.messages.vectors import encode, whole_numbers
from divgrpc_protos.arrays import Matrix
from divgrpc_protos.records import message_fields
from divgrpc_protos.v1 import index_pb2, labels_pb2, points_pb2, predict_pb2, query_pb2

# Arguments of the clients' methods other than options. Errors about unknown options may suggest
# them.
_CALL_ARGUMENTS: Final = ("timeout", "request_id")
_PREDICT_ARGUMENTS: Final = ("filter", "allow_partial", *_CALL_ARGUMENTS)
_QUERY_ARGUMENTS: Final = (
    *("like", "exclude_ids", "quotas", "group_by", "on_infeasible", "already_shown", "paged"),
    *("page_token", "min_sequence"),
    *_PREDICT_ARGUMENTS,
)
_BUILD_ARGUMENTS: Final = (
    *("ids", "attributes", "attribute_types", "payloads", "categories", "subtopics"),
    *("labels", "label_model", "label_names", "hierarchy"),
    *("roots", "replace", "progress", *_CALL_ARGUMENTS),
)


def query_fields(name: str, options: QueryOptions) -> dict[str, object]:
    """Return all fields of a QueryRequest except the queries.

    Raises `InvalidArgumentError` with the name of the field for a wrong value, and TypeError for an
    unknown option.
    """
    return {"index": index_name(name), **_cached(_query_fields, options)}


def predict_fields(name: str, options: PredictOptions) -> dict[str, object]:
    """Return all fields of a PredictLabelsRequest except the documents; see `query_fields`."""
    return {"index": index_name(name), **_cached(_predict_fields, options)}


def _cached(fields_of_options: Any, options: Mapping[str, object]) -> dict[str, object]:  # noqa: ANN401  # a cached function
    try:
        fields: dict[str, object] = fields_of_options(**options)
    except TypeError:  # an option cannot be hashed, or there is no such option
        fields = fields_of_options.__wrapped__(**options)
    return fields


# Most calls of a service have one of a few sets of options. The cache is `typed` because True and
# 1.0 equal 1.
@lru_cache(maxsize=1024, typed=True)
def _query_fields(**options: Unpack[QueryOptions]) -> dict[str, object]:
    refuse_unknown("query", options, QueryOptions.__annotations__, _QUERY_ARGUMENTS)
    check_one_dial(options)
    values = _named(QueryParameters(**options), options)
    if values.get("diversity") == "auto":
        # In the message, `diversity` is a number, and "auto" has a separate field.
        del values["diversity"]
        values["diversity_auto"] = True
    return message_fields(values, query_pb2.QueryRequest)


@lru_cache(maxsize=1024, typed=True)
def _predict_fields(**options: Unpack[PredictOptions]) -> dict[str, object]:
    refuse_unknown("predict_labels", options, PredictOptions.__annotations__, _PREDICT_ARGUMENTS)
    values = _named(PredictParameters(**options), options)
    return message_fields(values, predict_pb2.PredictLabelsRequest)


def _named(parameters: object, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the parameters that the caller gave, with their values in the core's dataclass."""
    return {name: getattr(parameters, name) for name in options}


def query(
    fields: Mapping[str, object], queries: Matrix, start: int, stop: int
) -> query_pb2.QueryRequest:
    """Return the request for rows `start` to `stop`, with `fields` from `query_fields`."""
    request = query_pb2.QueryRequest(**fields)  # type: ignore[arg-type]  # checked when the fields were made
    encode(queries, start, stop, request.queries)
    return request


def query_like(
    fields: Mapping[str, object],
    id_field: str,
    ids: Sequence[int] | Sequence[str],
    start: int,
    stop: int,
) -> query_pb2.QueryRequest:
    """Return the request for the points with ids `start` to `stop` - 1 of a list of ids."""
    return query_pb2.QueryRequest(**{id_field: ids[start:stop]}, **fields)  # type: ignore[arg-type]  # checked when the fields were made


def predict(
    fields: Mapping[str, object], documents: Matrix, start: int, stop: int
) -> predict_pb2.PredictLabelsRequest:
    """Return the request for rows `start` to `stop`, with `fields` from `predict_fields`."""
    request = predict_pb2.PredictLabelsRequest(**fields)  # type: ignore[arg-type]  # checked when the fields were made
    encode(documents, start, stop, request.documents)
    return request


def build_header(
    name: str,
    options: BuildOptions,
    *,
    replace: bool,
    expected_rows: int,
    plan: labels_pb2.LabelPlan | None = None,
) -> index_pb2.BuildRequest:
    """Return the first message of a build; raises like `query_fields`."""
    refuse_unknown("build", options, BuildOptions.__annotations__, _BUILD_ARGUMENTS)
    check_bool(None, "replace", replace)
    # A label model is trained with the build's seed, so `seed` is sent only once.
    training = {n: v for n, v in _options_of(LabelParameters, options).items() if n != "seed"}
    points = _options_of(BuildParameters, options)
    label_fields = message_fields(
        _named(LabelParameters(**training), training), labels_pb2.LabelParameters
    )
    header = index_pb2.BuildHeader(
        index=index_name(name),
        parameters=index_pb2.BuildParameters(
            **message_fields(_named(BuildParameters(**points), points), index_pb2.BuildParameters)
        ),
        labels=plan,
        replace=replace,
        expected_rows=expected_rows,
    )
    if label_fields:
        header.labels.parameters.MergeFrom(labels_pb2.LabelParameters(**label_fields))
    return index_pb2.BuildRequest(header=header)


def _options_of(parameters: type, options: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields_of(parameters)}
    return {name: value for name, value in options.items() if name in names}


def get(
    name: str,
    ids: Any,  # noqa: ANN401  # one id, or any sequence of ids
    parts: points_pb2.Parts,
) -> points_pb2.GetRequest:
    """Return the request for points by id; raises `InvalidArgumentError` for wrong ids."""
    id_list = as_ids(ids)
    request = points_pb2.GetRequest(index=index_name(name), parts=parts)
    if is_texts(id_list):
        request.string_ids.extend(text.decode() for text in encode_texts(id_list))
    else:
        request.ids.extend(whole_numbers("ids", id_list, np.int64).tolist())
    return request


def parts(**flags: bool) -> points_pb2.Parts:
    """Return which parts of points to ask for, by field; raises for a value that is no bool."""
    for field, flag in flags.items():
        check_bool(None, f"with_{field}", flag)
    return points_pb2.Parts(**flags)


def index_name(name: object) -> str:
    """Return the name of an index if it can be sent, else raise; the server checks its form."""
    if isinstance(name, str) and name.encode(errors="ignore").decode() == name:
        return name
    raise invalid("index", f"must be a text, got {name!r}")
