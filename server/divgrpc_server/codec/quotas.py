"""Conversion of quotas from messages, and of groups and shortfalls to messages."""

from typing import Any

from divgrpc.columns.quotas import as_quotas
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import QueryResult
from divgrpc.types.quotas import GroupBy, Quota, QuotaRule, Quotas
from divgrpc_protos.records import UnknownWordError, fields_of, word_of
from divgrpc_protos.v1 import query_pb2, quotas_pb2
from divgrpc_server.codec.filters import parse_value
from divgrpc_server.codec.points import pack_attributes, pack_value


def parse_quotas(request: query_pb2.QueryRequest) -> Quotas | None:
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


def pack_groups(result: QueryResult) -> quotas_pb2.Groups | None:
    """Return the groups of a result, or None if the query has none."""
    if not len(result.group_counts):
        return None
    (values,) = pack_attributes({"": result.group_values})
    return quotas_pb2.Groups(
        counts=result.group_counts.tolist(), offsets=result.group_offsets.tolist(), values=values
    )


def pack_shortfalls(result: QueryResult) -> list[quotas_pb2.QuotaShortfall]:
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
