"""Requests as messages: names, words and numbers of Python in the types of the contract.

The client sends what the caller set, and the server checks it. The client refuses only what a
message cannot carry, such as an unknown word or a text for a number, with the field named.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import MetricWord, as_metric, check_one_dial
from divgrpc.parameters.suggestions import refuse_unknown, refuse_word
from divgrpc_client.messages.options import (
    BUILD_DEFAULTS,
    PREDICT_DEFAULTS,
    QUERY_DEFAULTS,
    BuildOptions,
    PredictOptions,
    QueryOptions,
)
from divgrpc_client.messages.vectors import encode
from divgrpc_protos import words
from divgrpc_protos.arrays import Matrix
from divgrpc_protos.records import fields_of
from divgrpc_protos.v1 import index_pb2, labels_pb2, predict_pb2, query_pb2

MessageT = TypeVar("MessageT", bound=Message)

# Arguments of the clients' methods beside their options; errors suggest them too.
_CALL_ARGUMENTS: Final = ("timeout", "request_id")
_BUILD_ARGUMENTS: Final = (
    "ids",
    "categories",
    "subtopics",
    "labels",
    "label_model",
    "label_names",
    "hierarchy",
    "roots",
    "replace",
    "progress",
    *_CALL_ARGUMENTS,
)
_KINDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: f"whole numbers between {-(2**31)} and {2**31 - 1}",
    FieldDescriptor.CPPTYPE_UINT32: f"a whole number between 0 and {2**32 - 1}",
    FieldDescriptor.CPPTYPE_UINT64: f"a whole number between 0 and {2**64 - 1}",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_STRING: "a text",
}


def query_fields(name: str, options: QueryOptions) -> dict[str, object]:
    """Return all fields of a QueryRequest except the queries.

    Raises `InvalidArgumentError` for a value that a message cannot carry, and TypeError for an
    unknown option.
    """
    refuse_unknown("query", options, QueryOptions.__annotations__, _CALL_ARGUMENTS)
    check_one_dial(options)
    values: dict[str, object] = dict(options)
    is_auto = values.get("diversity") == "auto"
    if is_auto:
        # On the wire diversity is a number, and auto has a field of its own.
        del values["diversity"]
    fields = _fields(query_pb2.QueryRequest, name, values, QUERY_DEFAULTS)
    return fields | ({"diversity_auto": True} if is_auto else {})


def predict_fields(name: str, options: PredictOptions) -> dict[str, object]:
    """Return all fields of a PredictLabelsRequest except the documents; see `query_fields`."""
    refuse_unknown("predict_labels", options, PredictOptions.__annotations__, _CALL_ARGUMENTS)
    return _fields(predict_pb2.PredictLabelsRequest, name, options, PREDICT_DEFAULTS)


def _fields(
    kind: type[Message],
    name: str,
    options: Mapping[str, object],
    defaults: Mapping[str, object],
) -> dict[str, object]:
    # None stands for a default of None, and stays off the wire.
    options = {n: v for n, v in options.items() if v is not None or defaults[n] is not None}
    _refuse_stand_ins(kind, options, defaults)
    fields = {"index": name, **_with_enums(kind, options)}
    build_message(kind, fields)
    return fields


def query(
    fields: Mapping[str, object], queries: Matrix, start: int, stop: int
) -> query_pb2.QueryRequest:
    """Return the request for rows `start` to `stop`, with `fields` from `query_fields`."""
    return query_pb2.QueryRequest(queries=encode(queries, start, stop), **fields)  # type: ignore[arg-type]  # checked when the fields were made


def predict(
    fields: Mapping[str, object], documents: Matrix, start: int, stop: int
) -> predict_pb2.PredictLabelsRequest:
    """Return the request for rows `start` to `stop`, with `fields` from `predict_fields`."""
    return predict_pb2.PredictLabelsRequest(documents=encode(documents, start, stop), **fields)  # type: ignore[arg-type]  # checked when the fields were made


def build_header(
    name: str,
    options: BuildOptions,
    *,
    replace: bool,
    expected_rows: int,
    plan: labels_pb2.LabelPlan | None = None,
) -> index_pb2.BuildRequest:
    """Return the first message of a build; raises as `query_fields` does."""
    refuse_unknown("build", options, BuildOptions.__annotations__, _BUILD_ARGUMENTS)
    header = build_message(index_pb2.BuildHeader, {"index": name})
    header.parameters.CopyFrom(_part(index_pb2.BuildParameters, options))
    if plan is not None:
        header.labels.CopyFrom(plan)
    # A label model is trained with the seed of its build.
    training = {name: value for name, value in options.items() if name != "seed"}
    label_parameters = _part(labels_pb2.LabelParameters, training)
    if label_parameters.ListFields():
        header.labels.parameters.CopyFrom(label_parameters)
    if not isinstance(replace, bool):
        raise _unfit("replace", FieldDescriptor.CPPTYPE_BOOL, replace)
    header.replace = replace
    header.expected_rows = expected_rows
    return index_pb2.BuildRequest(header=header)


def _part(kind: type[MessageT], options: Mapping[str, object]) -> MessageT:
    """Return the message of the options that are its fields."""
    fields = fields_of(kind)
    values = {name: value for name, value in options.items() if name in fields}
    _refuse_stand_ins(kind, values, BUILD_DEFAULTS)
    return build_message(kind, _with_enums(kind, values))


def next_page(response: index_pb2.ListIndexesResponse) -> index_pb2.ListIndexesRequest | None:
    """Return the request for the page after this one, None after the last."""
    token = response.next_page_token
    return index_pb2.ListIndexesRequest(page_token=token) if token else None


def build_message(kind: type[MessageT], fields: Mapping[str, object]) -> MessageT:
    """Return a message; raises `InvalidArgumentError` with the field whose value does not fit."""
    if fields.get("index", "") is None:
        # protobuf would leave the field unset.
        raise _unfit("index", FieldDescriptor.CPPTYPE_STRING, None)
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            _blame(kind, name, value)
        raise


def _blame(kind: type[Message], name: str, value: object) -> None:
    try:
        kind(**{name: value})
    except (TypeError, ValueError):
        expected = kind.DESCRIPTOR.fields_by_name[name].cpp_type
        raise _unfit(name, expected, value) from None


def _unfit(name: str, expected: int, value: object) -> InvalidArgumentError:
    return InvalidArgumentError(name, f"{name} must be {_KINDS[expected]}, got {value!r}")


def _refuse_stand_ins(
    kind: type[Message], options: Mapping[str, object], defaults: Mapping[str, object]
) -> None:
    """Raise for values that protobuf would take for others.

    It would carry True as the number 1, and leave None out, which the core takes only if it is the
    default. `enum_value` refuses both for words.
    """
    for name, value in options.items():
        expected = kind.DESCRIPTOR.fields_by_name[name].cpp_type
        if expected == FieldDescriptor.CPPTYPE_ENUM:
            continue
        is_truth = isinstance(value, bool) and expected != FieldDescriptor.CPPTYPE_BOOL
        if is_truth or (value is None and defaults[name] is not None):
            raise _unfit(name, expected, value)


def _with_enums(kind: type[Message], options: Mapping[str, object]) -> dict[str, object]:
    """Return the options with numbers for words."""
    enums = _enums(cast(Descriptor, kind.DESCRIPTOR))
    return {
        name: enum_value(enums[name], value) if name in enums else value
        for name, value in options.items()
    }


@cache
def _enums(kind: Descriptor) -> dict[str, FieldDescriptor]:
    return {field.name: field for field in kind.fields if field.enum_type is not None}


def enum_value(field: FieldDescriptor, word: object) -> int:
    """Return the number of a field's word; raises `InvalidArgumentError` for an unknown one."""
    known = as_metric(cast(MetricWord, word)) if field.name == "metric" else word
    number = words.to_enum(field, known) if isinstance(known, str) else None
    if number is None:
        numbers = field.enum_type.values_by_number if field.enum_type else {}
        choices = [choice for number in numbers if (choice := words.to_word(field, number))]
        if "Labels" not in field.full_name:
            # Selectors of points and of labels share one enum.
            choices = [choice for choice in choices if choice != "hierarchy"]
        refuse_word(field.name, word, choices)
    return number
