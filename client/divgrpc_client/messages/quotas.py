"""Conversion of quotas and groups to messages, and of groups and shortfalls from messages."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from divgrpc.columns.quotas import OptionsT, columns_within, k_of_groups, rules_of
from divgrpc.columns.values import Column, row_values
from divgrpc.types.quotas import Quota, Quotas, QuotaShortfall
from divgrpc.types.records import Attribute, AttributesLike, AttributeValue, Scalar
from divgrpc_client.messages.filters import pack_value
from divgrpc_protos.columns import WireColumn, decode_column, encode_column
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import diversify_pb2, filters_pb2, points_pb2, query_pb2, quotas_pb2


def quota_fields(quotas: Quotas | None, options: OptionsT) -> tuple[dict[str, Any], OptionsT]:
    """Return the fields of a request with quotas or groups, and the options of the call.

    With groups, `k` is among the options. Raises `InvalidArgumentError` with the field `k`.
    """
    if quotas is None:
        return {}, options
    fields: dict[str, Any] = {"quotas": [_quota(quota) for quota in quotas.quotas]}
    if quotas.group_by is not None:
        fields["group_by"] = to_message(quotas.group_by, quotas_pb2.GroupBy)
    if quotas.on_infeasible != "fail":
        fields["on_infeasible"] = quotas_pb2.ON_INFEASIBLE_RELAX
    return fields, k_of_groups(quotas, options)


def _quota(quota: Quota) -> quotas_pb2.Quota:
    rules = [
        quotas_pb2.QuotaRule(
            value=None if rule.value is None else pack_value(rule.value, "quotas"),
            min=rule.min,
            max=rule.max,
        )
        for rule in rules_of(quota)
    ]
    return quotas_pb2.Quota(
        attribute=quota.attribute, rules=rules, max_each=quota.max_each, min_each=quota.min_each
    )


def group_fields(response: query_pb2.QueryResponse) -> dict[str, Any]:
    """Return the fields of a result with groups and shortfalls."""
    fields: dict[str, Any] = {"quota_shortfalls": tuple(map(_shortfall, response.quota_shortfalls))}
    if response.HasField("groups"):
        groups = response.groups
        (values,) = values_of([groups.values]).values()
        fields["group_values"] = values
        fields["group_offsets"] = np.array(groups.offsets, np.int64)
        fields["group_counts"] = np.array(groups.counts, np.uint32)
    return fields


def place_group_fields(response: diversify_pb2.DiversifyResponse) -> dict[str, Any]:
    """Return the fields of a diversification with groups and shortfalls."""
    fields: dict[str, Any] = {"quota_shortfalls": tuple(map(_shortfall, response.quota_shortfalls))}
    if response.HasField("groups"):
        (values,) = values_of([response.groups.values]).values()
        fields["group_values"] = values
        fields["group_offsets"] = np.array(response.groups.offsets, np.int64)
    return fields


def pack_values(
    quotas: Quotas, attributes: AttributesLike, rows: int
) -> list[points_pb2.AttributeColumn]:
    """Return the values of candidates that quotas are about as messages."""
    return [
        encode_column(WireColumn(attribute.name, attribute.type, *column))
        for attribute, column in columns_within(quotas, attributes, rows).items()
    ]


def _shortfall(message: quotas_pb2.QuotaShortfall) -> QuotaShortfall:
    value = value_of(message.value)
    return QuotaShortfall(message.row, message.attribute, value, message.required, message.count)


def value_of(message: filters_pb2.Value) -> Scalar | None:
    """Return a value, None for a missing one."""
    kind = message.WhichOneof("kind")
    value: Scalar | None = None if kind is None else getattr(message, kind)
    return value


def values_of(
    messages: Iterable[points_pb2.AttributeColumn],
) -> dict[str, tuple[AttributeValue, ...]]:
    """Return the values of attributes by name."""
    values = {}
    for message in messages:
        column = decode_column(message)
        # A column without values has no type, and its values need none.
        kind: Any = column.type or "keyword"
        attribute = Attribute(column.name, kind, multi=len(column.ends) > 0)
        values[column.name] = row_values(
            attribute, Column(column.values, column.ends, column.words)
        )
    return values
