"""Haystack's filters as conditions of divgrpc."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import and_, or_
from typing import Any

from haystack.errors import FilterError

from divgrpc.types.filters import Condition, Filter, HasId
from divgrpc_client.documents import Metadata, MetadataField, Where

_ORDERS = {
    ">": MetadataField.__gt__,
    ">=": MetadataField.__ge__,
    "<": MetadataField.__lt__,
    "<=": MetadataField.__le__,
}
_LOGIC = ("AND", "OR", "NOT")


def where(filters: Mapping[str, Any] | None) -> Where:
    """Return a filter for `divgrpc_client.documents`, which raises `FilterError` if invalid."""
    if not filters:
        return None
    if not isinstance(filters, Mapping):
        raise FilterError(f"filters must be a dictionary, got {filters!r:.80}")
    return partial(_checked, filters)


def _checked(filters: Mapping[str, Any], metadata: Metadata) -> Condition:
    try:
        return _condition(filters, metadata)
    except ValueError as error:
        raise FilterError(str(error)) from error


def _condition(filters: Mapping[str, Any], metadata: Metadata) -> Condition:
    if "field" in filters:
        return _comparison(filters, metadata)
    operator, conditions = _value(filters, "operator"), _value(filters, "conditions")
    if operator not in _LOGIC:
        raise FilterError(f"operator {operator!r:.80} is none of {', '.join(_LOGIC)}")
    if not isinstance(conditions, Sequence) or isinstance(conditions, str) or not conditions:
        raise FilterError(f"conditions must be a list of filters, got {conditions!r:.80}")
    parts = [_condition(part, metadata) for part in conditions]
    if operator == "OR":
        return reduce(or_, parts)
    joint = reduce(and_, parts)
    return Filter(must_not=(joint,)) if operator == "NOT" else joint


def _comparison(filters: Mapping[str, Any], metadata: Metadata) -> Condition:
    operator, value = _value(filters, "operator"), _value(filters, "value")
    field = metadata[str(filters["field"]).removeprefix("meta.")]
    if operator in ("==", "!="):
        return field == value if operator == "==" else field != value
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"{operator!r} needs a list, got {value!r:.80}")
        condition = field.is_in(value)
        return condition if operator == "in" else Filter(must_not=(condition,))
    if operator not in _ORDERS:
        words = ", ".join(["==", "!=", "in", "not in", *_ORDERS])
        raise FilterError(f"operator {operator!r:.80} is none of {words}")
    if value is None:
        return HasId(())  # nothing is greater or less than a missing value
    return _ORDERS[operator](field, value)


def _value(filters: Mapping[str, Any], key: str) -> Any:
    if not isinstance(filters, Mapping) or key not in filters:
        raise FilterError(f"{key!r} is missing in the filter {filters!r:.200}")
    return filters[key]
