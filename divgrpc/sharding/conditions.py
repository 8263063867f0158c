"""Filters as bytes: JSON lists that begin with the kind of the condition."""

import json
from collections.abc import Sequence
from typing import Any, Final

from divgrpc.columns.filters import as_filter
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.types.filters import Condition, Exists, Filter, HasId, Match, Others, Range

_BOUNDS: Final = ("gt", "gte", "lt", "lte")


def encode(filters: Sequence[Filter], exclude_ids: Sequence[int] | Sequence[str] = ()) -> bytes:
    """Return checked filters, and ids of points that do not pass, as bytes; b"" if there are none.

    Points must pass all filters.
    """
    if not filters and not len(exclude_ids):
        return b""
    return json.dumps([list(map(_listed, filters)), list(exclude_ids)]).encode()


def decode(message: bytes) -> list[Filter]:
    """Return the filters that `encode` has encoded; ids are those of a further one.

    Raises `InvalidArgumentError` for other bytes.
    """
    if not message:
        return []
    try:
        conditions, ids = json.loads(message)
        filters = [as_filter(_condition(parts)) for parts in conditions]
    except InvalidArgumentError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise invalid("filter", "cannot be read") from error
    kinds = {type(item) for item in ids} if isinstance(ids, list) else {list}
    if kinds not in (set(), {int}, {str}) or len(ids) > LIMITS["exclude_ids_max"]:
        raise invalid("exclude_ids", "cannot be read")
    if ids:
        filters.append(Filter(must_not=(HasId(tuple(ids)),)))
    return [condition for condition in filters if condition is not None]


def _listed(condition: Condition) -> list[Any]:
    if isinstance(condition, Filter):
        kinds = (condition.must, condition.should, condition.must_not)
        return ["filter", *([_listed(part) for part in parts] for parts in kinds)]
    if isinstance(condition, Match | Others):
        kind = "match" if isinstance(condition, Match) else "others"
        return [kind, condition.attribute, list(condition.values)]
    if isinstance(condition, Range):
        return ["range", condition.attribute, [getattr(condition, name) for name in _BOUNDS]]
    if isinstance(condition, Exists):
        return ["exists", condition.attribute]
    assert isinstance(condition, HasId)  # noqa: S101  # all other conditions
    return ["ids", list(condition.ids)]


def _condition(parts: Any) -> Condition:  # noqa: ANN401  # whatever JSON holds
    kind, *rest = parts
    if kind == "filter":
        must, should, must_not = (tuple(map(_condition, conditions)) for conditions in rest)
        return Filter(must, should, must_not)
    if kind in ("match", "others"):
        name, values = rest
        return (Match if kind == "match" else Others)(name, tuple(values))
    if kind == "range":
        name, bounds = rest
        return Range(name, **dict(zip(_BOUNDS, bounds, strict=True)))
    if kind == "exists":
        (name,) = rest
        return Exists(name)
    if kind == "ids":
        (ids,) = rest
        return HasId(tuple(ids))
    raise ValueError(kind)
