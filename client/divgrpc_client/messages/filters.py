"""Conversion of filters and of lists of ids to messages."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from divgrpc.columns.filters import as_filter
from divgrpc.columns.ids import as_ids, encode_texts, has_vectors, is_texts
from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS
from divgrpc.parameters.checks import check_bool
from divgrpc.types.filters import Condition, Exists, Filter, FilterLike, HasId, Match, Range
from divgrpc.types.records import IdsOf, Scalar, ShownLike
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode, whole_numbers
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import filters_pb2


def filter_fields(condition: FilterLike) -> dict[str, Any]:
    """Return the field `filter` of a request, or no field if there is no condition.

    Raises `InvalidArgumentError` with the field `filter`.
    """
    checked = as_filter(condition)
    return {} if checked is None else {"filter": pack_filter(checked)}


def id_fields(field: str, ids: IdsOf, *, most: int) -> dict[str, list[int] | list[str]]:
    """Return the field `NAME_ids` or `NAME_string_ids` of a request, or no field without ids.

    field: the name of the argument, such as `exclude_ids` or `like`, for errors.
    most: maximum number of ids.

    Raises `InvalidArgumentError` with the field `field`.
    """
    if ids is None:
        return {}
    id_list = as_ids(ids, field)
    if len(id_list) > most:
        raise invalid(field, f"must be at most {most}, got {len(id_list)}")
    prefix = field.removesuffix("_ids")
    if is_texts(id_list):
        return {f"{prefix}_string_ids": [text.decode() for text in encode_texts(id_list, field)]}
    return {f"{prefix}_ids": whole_numbers(field, id_list, np.int64).tolist()}


def like_ids(ids: IdsOf) -> tuple[str, list[int] | list[str]]:
    """Return the name of the field for the ids of points that are queries, and the ids.

    Raises `InvalidArgumentError` with the field `like`.
    """
    fields = id_fields("like", ids, most=LIMITS["query_rows_max"])
    for name, id_list in fields.items():
        if id_list:
            return name, id_list
    raise invalid("like", f"must be 1 to {LIMITS['query_rows_max']} ids, got 0")


def query_filter_fields(condition: FilterLike, exclude_ids: IdsOf) -> dict[str, Any]:
    """Return the fields of a request that restrict the points that a query may return."""
    excluded = id_fields("exclude_ids", exclude_ids, most=LIMITS["exclude_ids_max"])
    return filter_fields(condition) | excluded


def partial_fields(allow_partial: bool) -> dict[str, Any]:
    """Return the fields of a request whose answer may lack missing shards."""
    check_bool(None, "allow_partial", allow_partial)
    return {"allow_partial": True} if allow_partial else {}


def continuation_fields(
    already_shown: ShownLike, *, paged: bool = False, page_token: str | None = None
) -> dict[str, Any]:
    """Return the fields of a request that continues what was shown before.

    Raises `InvalidArgumentError` with the field `already_shown`, `paged` or `page_token`.
    """
    check_bool(None, "paged", paged)
    fields: dict[str, Any] = {"paged": True} if paged else {}
    if page_token is not None:
        if not isinstance(page_token, str):
            raise invalid("page_token", f"must be a text, got {page_token!r:.80}")
        fields["page_token"] = page_token
    if already_shown is not None and has_vectors(already_shown):
        matrix = as_matrix("already_shown", cast("VectorsLike", already_shown))
        most, rows = LIMITS["already_shown_max"], row_count(matrix)
        if rows > most:
            raise invalid("already_shown", f"must be at most {most} points, got {rows}")
        return fields | {"already_shown": encode(matrix, 0, rows)}
    ids = cast("IdsOf", already_shown)
    return fields | id_fields("already_shown", ids, most=LIMITS["already_shown_max"])


def pack_filter(condition: Filter) -> filters_pb2.Filter:
    """Return a filter that `as_filter` has checked as a message."""
    return filters_pb2.Filter(
        must=map(_condition, condition.must),
        should=map(_condition, condition.should),
        must_not=map(_condition, condition.must_not),
    )


def _condition(condition: Condition) -> filters_pb2.Condition:
    if isinstance(condition, Filter):
        return filters_pb2.Condition(filter=pack_filter(condition))
    if isinstance(condition, HasId):
        return filters_pb2.Condition(has_id=_has_id(condition))
    assert isinstance(condition, Match | Range | Exists)  # noqa: S101  # all other conditions
    return filters_pb2.Condition(field=_field(condition))


def _has_id(condition: HasId) -> filters_pb2.HasId:
    if condition.ids and is_texts(condition.ids):
        texts = [text.decode() for text in encode_texts(condition.ids, "filter")]
        return filters_pb2.HasId(string_ids=texts)
    ids = whole_numbers("filter", list(condition.ids), np.int64)
    return filters_pb2.HasId(ids=ids.tolist())


def _field(condition: Match | Range | Exists) -> filters_pb2.FieldCondition:
    message = filters_pb2.FieldCondition(attribute=condition.attribute)
    if isinstance(condition, Match):
        message.any_of.SetInParent()
        message.any_of.values.extend(map(pack_value, condition.values))
    elif isinstance(condition, Range):
        message.range.SetInParent()
        for name in ("gt", "gte", "lt", "lte"):
            bound = getattr(condition, name)
            if bound is not None:
                getattr(message.range, name).CopyFrom(pack_value(bound))
    else:
        message.exists = True
    return message


def pack_value(value: Scalar, field: str = "filter") -> filters_pb2.Value:
    """Return a value as a message; raises `InvalidArgumentError` with the field `field`."""
    try:
        return _PACKERS[type(value)](value)
    except (ValueError, UnicodeEncodeError):
        # An integer of more than 64 bits, or a text that is no valid Unicode.
        raise invalid(field, f"cannot compare with {value!r:.80}") from None


_PACKERS: dict[type, Callable[[Any], filters_pb2.Value]] = {
    str: lambda value: filters_pb2.Value(keyword=value),
    bool: lambda value: filters_pb2.Value(boolean=value),
    int: lambda value: filters_pb2.Value(integer=value),
    float: lambda value: filters_pb2.Value(number=value),
}
