"""Conversion of quotas from messages, and of groups and shortfalls to messages."""

from collections.abc import Sequence
from typing import Any

from divgrpc.columns.quotas import as_quotas
from divgrpc.columns.values import Column
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters import LIMITS
from divgrpc.types import Diversification, QueryResult
from divgrpc.types.quotas import GroupBy, Quota, QuotaRule, Quotas
from divgrpc.types.records import Attribute
from divgrpc_protos.columns import decode_column
from divgrpc_protos.records import UnknownWordError, fields_of, word_of
from divgrpc_protos.v1 import diversify_pb2, points_pb2, query_pb2, quotas_pb2
from divgrpc_server.codec.filters import parse_value
from divgrpc_server.codec.points import pack_attributes, pack_value, parse_columns


def parse_quotas(
    request: query_pb2.QueryRequest | diversify_pb2.DiversifyRequest,
) -> Quotas | None:
    """Return the quotas or groups of a request, or None if it has none.

    Raises `InvalidArgumentError` with the field `quotas`, `group_by` or `on_infeasible`.
    """
    group_by = None
    if request.HasField("group_by"):
        message = request.group_by
        per_group = message.per_group if message.HasField("per_group") else 1
        group_by = GroupBy(message.attribute, message.groups, per_group)
    elif not request.quotas and not request.on_infeasible:
        return None
    word: Any = "fail"
    if request.on_infeasible:
        field = fields_of(query_pb2.QueryRequest)["on_infeasible"]
        try:
            word = word_of(field, request.on_infeasible)
        except UnknownWordError as error:
            raise InvalidArgumentError(error.field, str(error)) from None
    return as_quotas(map(_quota, request.quotas), group_by, word)


def _quota(message: quotas_pb2.Quota) -> Quota:
    return Quota(
        message.attribute,
        max_each=message.max_each if message.HasField("max_each") else None,
        min_each=message.min_each if message.HasField("min_each") else None,
        rules=[_rule(rule, message.attribute) for rule in message.rules],
    )


def _rule(message: quotas_pb2.QuotaRule, name: str) -> QuotaRule:
    value = parse_value(message.value, name, "quotas") if message.HasField("value") else None
    return QuotaRule(
        value,
        message.min if message.HasField("min") else None,
        message.max if message.HasField("max") else None,
    )


def parse_values(
    messages: Sequence[points_pb2.AttributeColumn],
) -> dict[Attribute, Column]:
    """Return the values of candidates, by attributes that the messages themselves declare.

    Raises `InvalidArgumentError` with the field `attributes` or `attributes.NAME`.
    """
    if len(messages) > LIMITS["quotas_max"]:
        most = LIMITS["quotas_max"]
        raise invalid("attributes", f"must be at most {most}, got {len(messages)}")
    declared = []
    for message in messages:
        try:
            column = decode_column(message)
        except ValueError as error:
            raise invalid(f"attributes.{message.name}", str(error)) from None
        # A column without values has no type, and its values need none.
        kind: Any = column.type or "keyword"
        declared.append(Attribute(message.name, kind, multi=len(column.ends) > 0))
    return parse_columns(messages, declared)


def pack_groups(result: QueryResult) -> quotas_pb2.Groups | None:
    """Return the groups of a result, or None if the query has none."""
    if not len(result.group_counts):
        return None
    (values,) = pack_attributes({"": result.group_values})
    return quotas_pb2.Groups(
        counts=result.group_counts.tolist(), offsets=result.group_offsets.tolist(), values=values
    )


def pack_place_groups(result: Diversification) -> quotas_pb2.Groups | None:
    """Return the groups of picks, or None if there are none."""
    if not len(result.group_offsets):
        return None
    (values,) = pack_attributes({"": result.group_values})
    offsets = result.group_offsets.tolist()
    return quotas_pb2.Groups(counts=[len(offsets) - 1], offsets=offsets, values=values)


def pack_shortfalls(result: QueryResult | Diversification) -> list[quotas_pb2.QuotaShortfall]:
    """Return what the results lack."""
    return [
        quotas_pb2.QuotaShortfall(
            row=lack.row,
            attribute=lack.attribute,
            value=None if lack.value is None else pack_value(lack.value),
            required=lack.required,
            count=lack.count,
        )
        for lack in result.quota_shortfalls
    ]
