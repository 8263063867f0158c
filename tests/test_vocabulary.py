"""The core, the clients and the .proto files use the same names for parameters and results."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from divgrpc import types
from divgrpc.evaluation import Grid, evaluate
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.index import Index
from divgrpc.labels.build_inputs import Labelling
from divgrpc.parameters import LIMITS, BuildParameters, LabelParameters, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc_client import AsyncClient, Client, ServerInfo
from divgrpc_protos.v1 import (
    evaluate_labels_pb2,
    evaluate_pb2,
    index_pb2,
    labels_pb2,
    predict_pb2,
    query_pb2,
)

# Parameters that only one side has. The core has `path`, and the clients have parameters of calls
# over a network.
CORE_BUILD = {"path"}
# Values of an enum that Query and PredictLabels share, but that Query refuses.
OF_LABELS = {"hierarchy"}
CLIENT_CALL = {"timeout", "request_id", "in_flight", "time_limit", "on_error", "allow_partial"}
# Arguments of a call that restrict the points, beside its parameters.
FILTER: dict[str, object] = {"filter": None}
OF_QUERY: dict[str, object] = {"filter": None, "exclude_ids": None}
LIKE: dict[str, object] = {"like": None}
# Arguments of a query that continues what was shown before.
PAGES: dict[str, object] = {"already_shown": None, "page_token": None, "min_sequence": 0}
# Arguments of a query that bound how many results have a value of an attribute.
QUOTAS: dict[str, object] = {"quotas": None, "group_by": None, "on_infeasible": "fail"}
# Fields of a request that are no parameters.
FILTER_FIELDS = {"filter", "exclude_ids", "exclude_string_ids", "like_ids", "like_string_ids"}
PAGE_FIELDS = {"already_shown", "already_shown_ids", "already_shown_string_ids"}
PAGE_FIELDS |= {"paged", "page_token"}
# Arguments of a build that are no build parameters.
BUILD_CALL: dict[str, object] = {
    **dict.fromkeys(("ids", "attributes", "attribute_types", "payloads")),
    **dict.fromkeys(("categories", "subtopics", "labels", "progress")),
    "replace": False,
}

SCALARS: dict[int, type] = {
    FieldDescriptor.CPPTYPE_UINT32: int,
    FieldDescriptor.CPPTYPE_UINT64: int,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_BOOL: bool,
}


def parameters(method: Callable[..., object], *, without: Iterable[str] = ()) -> dict[str, object]:
    """Return the keyword parameters of a method with their defaults."""
    all_parameters = inspect.signature(method).parameters.values()
    return {
        p.name: p.default
        for p in all_parameters
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in set(without)
    }


def table(kind: Any) -> dict[str, object]:  # noqa: ANN401  # a dataclass
    """Return the names and defaults of a dataclass of parameters."""
    return {field.name: field.default for field in fields(kind)}


BUILD: dict[str, object] = {**table(BuildParameters), **BUILD_CALL}
BUILD |= dict.fromkeys(["label_model", "label_names", "hierarchy", "roots"])
BUILD |= {name: value for name, value in table(LabelParameters).items() if name != "seed"}
# For each method of the clients, the core's method, and the expected names and defaults of
# parameters. In the core, `evaluate` takes all axes of the grid as one argument.
COUNTERPARTS: dict[str, tuple[Callable[..., object] | None, dict[str, object]]] = {
    "query": (
        Index.query,
        LIKE | OF_QUERY | QUOTAS | PAGES | {"paged": False} | table(QueryParameters),
    ),
    "pages": (Index.pages, LIKE | OF_QUERY | PAGES | table(QueryParameters)),
    "query_stream": (None, OF_QUERY | QUOTAS | table(QueryParameters)),
    "build": (Index.build, BUILD),
    "predict_labels": (Index.predict_labels, FILTER | table(PredictParameters)),
    "evaluate": (None, parameters(evaluate, without={"grid"}) | table(Grid)),
    "evaluate_labels": (None, parameters(evaluate_labels, without={"grid"}) | table(LabelGrid)),
}


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("method", COUNTERPARTS)
def test_a_method_takes_the_same_everywhere(client: type, method: str) -> None:
    """The core and both clients have the same names and defaults of parameters."""
    of_core, expected = COUNTERPARTS[method]
    if of_core is not None:
        assert parameters(of_core, without=CORE_BUILD) == expected
    assert parameters(getattr(client, method), without=CLIENT_CALL) == expected


def test_label_options_are_the_remaining_options_of_a_build() -> None:
    assert set(Labelling.__annotations__) == set(BUILD) - (
        set(table(BuildParameters)) | set(BUILD_CALL)
    )


@pytest.mark.parametrize(
    ("method", "message", "extra_names"),
    [
        ("evaluate", evaluate_pb2.EvaluateRequest, {"index", "queries", "categories"}),
        (
            "evaluate_labels",
            evaluate_labels_pb2.EvaluateLabelsRequest,
            {"index", "documents", "labels"},
        ),
    ],
)
def test_messages_of_evaluations_have_every_option(
    method: str,
    message: Any,  # noqa: ANN401  # a message
    extra_names: set[str],
) -> None:
    expected = set(COUNTERPARTS[method][1]) - {"progress"}
    assert set(names(message.DESCRIPTOR)) == expected | extra_names


def test_build_once_takes_what_build_takes() -> None:
    """BuildOnceRequest has the fields of a header and a chunk, except `expected_rows`."""
    header = shapes(index_pb2.BuildHeader.DESCRIPTOR)
    stream_names = header | shapes(index_pb2.BuildChunk.DESCRIPTOR)
    stream_names["label_plan"] = header["labels"]
    stream_names["label_chunk"] = shapes(index_pb2.BuildRequest.DESCRIPTOR)["label_chunk"]
    del stream_names["expected_rows"]
    once = shapes(index_pb2.BuildOnceRequest.DESCRIPTOR)
    assert once == stream_names
    # BuildOnceRequest has two messages for label arguments, but the clients have a parameter for
    # each argument.
    common = set(once) - {"index", "parameters", "vectors", "label_plan", "label_chunk"}
    # `ids` of the clients are either kind of ids, and `attribute_types` are part of declarations.
    # Points without a vector are None in `vectors`.
    of_messages = {"string_ids", "declarations", "rows_without_vector"}
    assert common == set(BUILD_CALL) - {"progress", "attribute_types"} | of_messages
    answer = shapes(index_pb2.BuildOnceResponse.DESCRIPTOR)
    assert answer == {"index": shapes(index_pb2.BuildResponse.DESCRIPTOR)["done"]}


def shapes(message: Descriptor) -> dict[str, tuple[int, int, str]]:
    """Return each field's type and label, and the name of its message or enum."""
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return {field.name: (field.type, field.label, field.type_name) for field in proto.field}


def optional(field: FieldDescriptor) -> bool:
    """Tell whether a message distinguishes an unset field from a zero."""
    return field.has_presence or field.enum_type is not None


@pytest.mark.parametrize(
    ("core", "message", "extra_names"),
    [
        # `diversity` is a number or a string, so the message has two fields for it.
        (
            QueryParameters,
            query_pb2.QueryRequest,
            {"index", "queries", "diversity_auto", "min_sequence", "allow_partial"}
            | {*FILTER_FIELDS, *PAGE_FIELDS, *QUOTAS},
        ),
        (BuildParameters, index_pb2.BuildParameters, set()),
        (LabelParameters, labels_pb2.LabelParameters, set()),
        (
            PredictParameters,
            predict_pb2.PredictLabelsRequest,
            {"index", "documents", "filter", "allow_partial"},
        ),
    ],
)
def test_the_contract_has_the_same_parameters(
    core: Any,  # noqa: ANN401  # a dataclass
    message: Any,  # noqa: ANN401  # a message
    extra_names: set[str],
) -> None:
    message_fields = [field for field in message.DESCRIPTOR.fields if field.name not in extra_names]
    assert [field.name for field in message_fields] == list(table(core))
    hints = get_type_hints(core)
    for field in message_fields:
        assert optional(field), field.name
        if field.enum_type is not None:
            enum_words = words(field.enum_type) - (OF_LABELS if core is QueryParameters else set())
            assert enum_words == choices(hints[field.name]), field.name
        else:
            plain = get_args(hints[field.name]) or (hints[field.name],)
            assert SCALARS[field.cpp_type] in plain, field.name


def choices(hint: Any) -> set[str]:  # noqa: ANN401  # a Literal, or one that may be None
    """Return the values that a parameter accepts."""
    parts = (get_args(part) or (part,) for part in get_args(hint))
    return {word for part in parts for word in part} - {type(None)}


def words(enum: EnumDescriptor) -> set[str]:
    """Return the values of an enum as Python spells them, without UNSPECIFIED."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {v.name.removeprefix(prefix).lower() for v in enum.values if v.number}


@pytest.mark.parametrize(
    ("word", "field"),
    [("Search", "auto_search"), ("Search", "auto_search_dense"), ("Points", "points")],
)
def test_choices_of_an_index_are_spelled_alike(word: str, field: str) -> None:
    enum = index_pb2.IndexInfo.DESCRIPTOR.fields_by_name[field].enum_type
    assert enum is not None
    assert words(enum) == set(get_args(getattr(types, word)))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (types.IndexInfo, index_pb2.IndexInfo),
        (types.ArrayInfo, index_pb2.ArrayInfo),
        (types.SearchCost, query_pb2.SearchCost),
        (types.Choice, index_pb2.Choice),
        (types.TrainingProgress, index_pb2.BuildProgress),
        (types.QueryDefault, index_pb2.QueryDefault),
        (types.EvaluateRow, evaluate_pb2.EvaluateRow),
        (types.EvaluateLabelRow, evaluate_labels_pb2.EvaluateLabelRow),
        (types.LabelInfo, labels_pb2.LabelInfo),
        (types.EffectiveLabelParameters, predict_pb2.EffectiveLabelParameters),
        (types.WarningInfo, query_pb2.WarningInfo),
        (types.QueryStats, query_pb2.QueryStats),
        (types.EffectiveParameters, query_pb2.EffectiveParameters),
        (ServerInfo, index_pb2.GetServerInfoResponse),
    ],
)
def test_results_have_the_fields_of_the_contract(result: Any, message: Any) -> None:  # noqa: ANN401  # a dataclass and a message
    assert [field.name for field in fields(result)] == names(message.DESCRIPTOR)


def names(message: Descriptor) -> list[str]:
    """Return the names of a message's fields in order."""
    return [field.name for field in message.fields]


def test_query_results_are_columns_of_the_contract() -> None:
    """A result has the fields of its message, except that `offsets` become `counts`."""
    columns = {field.name for field in fields(types.QueryResult)}
    # The message `groups` has columns too.
    columns = columns - {"group_values", "group_offsets", "group_counts"} | {"groups"}
    # `ids` and `collapsed_ids` of a result are of either kind.
    of_texts = {"string_ids", "collapsed_string_ids", "id_kind"}
    response_names = set(names(query_pb2.QueryResponse.DESCRIPTOR))
    assert columns - {"counts"} | of_texts == response_names - {"offsets"}
    columns = {field.name for field in fields(types.LabelResult)}
    label_names = set(names(predict_pb2.PredictLabelsResponse.DESCRIPTOR))
    assert columns - {"counts"} == label_names - {"offsets"}


def test_limits_are_numbers_the_contract_can_carry() -> None:
    assert all(0 < limit < 2**64 for limit in LIMITS.values())
