"""Filters in the form that LangChain's stores have in common, as conditions of divgrpc."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import and_, or_
from typing import Any, TypeAlias

from divgrpc_client import Filter
from divgrpc_client.documents import Metadata, MetadataField, Where

# Conditions such as {"source": "a.pdf", "year": {"$gte": 2020}}, a condition of divgrpc, or None.
FilterLike: TypeAlias = Mapping[str, Any] | Where

_COMPARISONS = {
    "$eq": MetadataField.__eq__,
    "$ne": MetadataField.__ne__,
    "$lt": MetadataField.__lt__,
    "$lte": MetadataField.__le__,
    "$gt": MetadataField.__gt__,
    "$gte": MetadataField.__ge__,
}


def where(conditions: FilterLike) -> Where:
    """Return a filter for a search; raises `ValueError` for operators that do not exist."""
    if isinstance(conditions, Mapping):
        return partial(_all_of, conditions) if conditions else None
    return conditions


def _all_of(conditions: Mapping[str, Any], metadata: Metadata) -> Any:  # a condition
    return reduce(and_, [_one(key, value, metadata) for key, value in conditions.items()])


def _one(key: str, value: Any, metadata: Metadata) -> Any:  # any value
    if key in ("$and", "$or"):
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise ValueError(f"filter: {key} needs a list of conditions, got {value!r:.80}")
        parts = [_group(part, metadata) for part in value]
        return reduce(and_ if key == "$and" else or_, parts)
    if key == "$not":
        return Filter(must_not=(_group(value, metadata),))
    if key.startswith("$"):
        raise ValueError(f"filter: {key} is none of $and, $or and $not")
    field = metadata[key]
    if not isinstance(value, Mapping):
        return field == value
    if not value:
        raise ValueError(f"filter: {key!r} needs an operator such as $eq, got {{}}")
    return reduce(and_, [_compare(field, word, operand) for word, operand in value.items()])


def _group(part: Any, metadata: Metadata) -> Any:  # any value
    if not isinstance(part, Mapping) or not part:
        raise ValueError(f"filter: expected conditions such as {{'year': 2020}}, got {part!r:.80}")
    return _all_of(part, metadata)


def _compare(field: MetadataField, word: str, operand: Any) -> Any:  # any value
    if word in _COMPARISONS:
        return _COMPARISONS[word](field, operand)
    if word in ("$in", "$nin"):
        if not isinstance(operand, list | tuple | set | frozenset):
            raise ValueError(f"filter: {word} needs a list of values, got {operand!r:.80}")
        condition = field.is_in(list(operand))
        return condition if word == "$in" else ~condition
    if word == "$exists":
        return field.exists() if operand else ~field.exists()
    words = ", ".join([*_COMPARISONS, "$in", "$nin", "$exists"])
    raise ValueError(f"filter: {word} is not among the operators {words}")
