"""Conversion of filters and of lists of ids from messages.

Workers and evaluators use this module. Errors name the field by its path in the .proto files.
"""

from collections.abc import Sequence

from divgrpc.columns.filters import as_filter
from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS
from divgrpc.types.filters import Condition, Exists, Filter, HasId, Match, Range
from divgrpc.types.records import Scalar
from divgrpc_protos.v1 import filters_pb2


def parse_filter(message: filters_pb2.Filter) -> Filter | None:
    """Return a filter, or None if it has no condition.

    Raises `InvalidArgumentError` with the field `filter`.
    """
    return as_filter(_filter(message, 1))


def parse_ids(field: str, ids: Sequence[int], texts: Sequence[str]) -> list[int] | list[str]:
    """Return ids of one kind; raises `InvalidArgumentError` if there are ids of both kinds.

    `field` is the name of the ids of both kinds in error messages.
    """
    if ids and texts:
        raise invalid(field, "must be integers or texts, not both")
    return list(texts) if texts else list(ids)


def _filter(message: filters_pb2.Filter, depth: int) -> Filter:
    if depth > LIMITS["filter_depth_max"]:
        raise invalid("filter", f"must be at most {LIMITS['filter_depth_max']} levels deep")
    kinds = (message.must, message.should, message.must_not)
    return Filter(*(tuple(_condition(part, depth + 1) for part in parts) for parts in kinds))


def _condition(message: filters_pb2.Condition, depth: int) -> Condition:
    kind = message.WhichOneof("kind")
    if kind == "filter":
        return _filter(message.filter, depth)
    if kind == "has_id":
        return HasId(tuple(parse_ids("filter", message.has_id.ids, message.has_id.string_ids)))
    if kind == "field":
        return _field(message.field)
    raise invalid("filter", "has a condition without a kind")


def _field(message: filters_pb2.FieldCondition) -> Condition:
    name, test = message.attribute, message.WhichOneof("test")
    if test == "any_of":
        return Match(name, tuple(parse_value(value, name) for value in message.any_of.values))
    if test == "range":
        bounds = {
            field.name: parse_value(value, name) for field, value in message.range.ListFields()
        }
        return Range(name, **bounds)  # type: ignore[arg-type]  # `as_filter` checks the bounds
    if test == "exists" and message.exists:
        return Exists(name)
    problem = "without a test" if test is None else "whose `exists` is false"
    raise invalid("filter", f"has a condition on {name!r:.80} {problem}")


def parse_value(message: filters_pb2.Value, name: str, field: str = "filter") -> Scalar:
    """Return a value of the attribute `name`; raises `InvalidArgumentError` with `field`."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise invalid(field, f"has a value of {name!r:.80} without a kind")
    value: Scalar = getattr(message, kind)
    return value
