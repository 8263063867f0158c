"""LlamaIndex's metadata filters as conditions of divgrpc."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from divgrpc.types.filters import Condition, Filter, HasId
from divgrpc_client.documents import Metadata, MetadataField, Where
from llama_index.vector_stores.divgrpc.conversion import REF_DOC_ID

_COMPARISONS: Mapping[FilterOperator, Callable[[MetadataField, Any], Condition]] = {
    FilterOperator.EQ: MetadataField.__eq__,
    FilterOperator.NE: MetadataField.__ne__,
    FilterOperator.GT: MetadataField.__gt__,
    FilterOperator.GTE: MetadataField.__ge__,
    FilterOperator.LT: MetadataField.__lt__,
    FilterOperator.LTE: MetadataField.__le__,
}
_LISTS = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
# Operators on metadata with several values.
_COLLECTIONS = (FilterOperator.ANY, FilterOperator.ALL, FilterOperator.CONTAINS)
_OPERATORS = (*_COMPARISONS, *_LISTS, FilterOperator.CONTAINS, FilterOperator.IS_EMPTY)


def where(
    filters: MetadataFilters | None,
    *,
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
) -> Where:
    """Return a filter for `divgrpc_client.documents`, which raises `ValueError` if invalid.

    node_ids, doc_ids: pass only nodes with these ids, and of documents with these ids.
    """
    if filters is None and node_ids is None and doc_ids is None:
        return None
    return partial(_joint, filters, node_ids, doc_ids)


def _joint(
    filters: MetadataFilters | None,
    node_ids: Sequence[str] | None,
    doc_ids: Sequence[str] | None,
    metadata: Metadata,
) -> Condition:
    parts: list[Condition] = []
    if filters is not None:
        parts.append(_group(filters, metadata))
    if node_ids is not None:
        parts.append(HasId(tuple(node_ids)))
    if doc_ids is not None:
        parts.append(metadata[REF_DOC_ID].is_in(doc_ids))
    return parts[0] if len(parts) == 1 else Filter(must=tuple(parts))


def _group(filters: MetadataFilters, metadata: Metadata) -> Condition:
    """Return the condition of a group; NOT passes nodes that pass none of its filters."""
    parts = tuple(
        _group(part, metadata) if isinstance(part, MetadataFilters) else _comparison(part, metadata)
        for part in filters.filters
    )
    if filters.condition == FilterCondition.OR:
        return Filter(should=parts)
    if filters.condition == FilterCondition.NOT:
        return Filter(must_not=parts)
    return Filter(must=parts)


def _comparison(condition: MetadataFilter, metadata: Metadata) -> Condition:
    operator = condition.operator
    if operator not in _OPERATORS:
        words = ", ".join(word.value for word in _OPERATORS)
        raise ValueError(f"filter: {operator.value!r} is not among the operators {words}")
    field = metadata[condition.key]
    kind, is_multi = _declaration(condition.key, metadata)
    if operator == FilterOperator.IS_EMPTY:
        return ~field.exists() | (field == "") if kind == "keyword" else ~field.exists()
    value = _typed(condition.value, kind)
    if operator in _COLLECTIONS and not is_multi:
        rule = f"{condition.key!r} has one value, but {operator.value!r} needs several"
        raise ValueError(f'filter: {rule}; declare {{{condition.key!r}: ["{kind}"]}}, or use "in"')
    if isinstance(value, list) != (operator in _LISTS):
        count = "a list" if operator in _LISTS else "one value"
        raise ValueError(f"filter: {operator.value!r} needs {count}, got {value!r:.80}")
    if operator in _LISTS:
        return _membership(field, operator, value)
    return _COMPARISONS.get(operator, MetadataField.__eq__)(field, value)


def _membership(field: MetadataField, operator: FilterOperator, values: list[Any]) -> Condition:
    if operator == FilterOperator.ALL:
        return Filter(must=(field.exists(), *(field == value for value in values)))
    condition = field.is_in(values)
    return ~condition if operator == FilterOperator.NIN else condition


def _declaration(name: str, metadata: Metadata) -> tuple[str, bool]:
    """Return the type of a declared attribute, and whether it may have several values."""
    return next((item.type, item.multi) for item in metadata.attributes if item.name == name)


def _typed(value: Any, kind: str) -> Any:
    """Return a value of a filter, where 1 and 0 stand for true and false, which filters lack."""
    if kind != "bool":
        return value
    if isinstance(value, list):
        return [_typed(item, kind) for item in value]
    return bool(value) if value in (0, 1) else value
