"""Checks of filters, and the rows of an index that pass them.

`as_filter` turns what a caller passes into a `Filter` of plain values. `FilterReader` finds the
rows that pass. It reads the places of an attribute's values in ascending order of the values. So a
condition takes two binary searches, and the time to write the rows that pass. Build stores this
order. For an index of an older version, the order is made when a filter first needs it.
"""

import functools
import math
import numbers
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.ids import Ids, plain
from divgrpc.columns.reader import array_name
from divgrpc.columns.texts import Texts
from divgrpc.columns.values import DTYPES, MISSING, MISSING_INTEGER, microseconds, unknown_attribute
from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.types.filters import (
    Condition,
    Exists,
    Filter,
    FilterLike,
    HasId,
    Match,
    Others,
    Range,
    in_order,
)
from divgrpc.types.records import Attribute, AttributeType, Scalar

Flags = npt.NDArray[np.bool_]
# Places of values: int32, or int64 if there are more values than int32 can count.
Order = npt.NDArray[np.int32] | npt.NDArray[np.int64]

# Maximum number of cached conditions that an attribute has one value, and of characters of its name
# and of a text.
_CACHED_FILTERS_MAX: Final = 1_024
_CACHED_CHARACTERS_MAX: Final = 256
_INTEGER_BITS: Final = 64
_BOUNDS: Final = ("gt", "gte", "lt", "lte")
_LISTS: Final = (list, tuple, set, frozenset, np.ndarray)


def as_filter(value: FilterLike, field: str = "filter") -> Filter | None:
    """Return a filter of plain values, or None if `value` is None or has no condition.

    Raises `InvalidArgumentError` with the field `field` for anything that is no filter, for values
    of a wrong type, and for a filter that exceeds a limit.
    """
    if value is None:
        return None
    if type(value) is Match and len(value.values) == 1:
        attribute, (scalar,) = value.attribute, value.values
        if _is_cacheable(attribute) and _is_cacheable(scalar):
            # Most calls repeat a condition.
            return _match_one_value(attribute, scalar, field)
    return _convert(value, field)


def _is_cacheable(scalar: object) -> bool:
    """Tell whether a value is small, and equal to no other value of its type.

    Two times that differ only in `fold` are equal, for example.
    """
    if type(scalar) is str:
        return len(scalar) <= _CACHED_CHARACTERS_MAX
    return type(scalar) is bool or (type(scalar) is int and scalar.bit_length() < _INTEGER_BITS)


@functools.lru_cache(maxsize=_CACHED_FILTERS_MAX, typed=True)
def _match_one_value(attribute: str, value: Scalar, field: str) -> Filter | None:
    """Return the filter that an attribute has a value; raises as `as_filter`."""
    return _convert(Match(attribute, (value,)), field)


def _convert(value: Condition | Mapping[str, Any], field: str) -> Filter | None:
    """Do the same as `as_filter` for a value that is not None."""
    if isinstance(value, Mapping):
        value = _from_dictionary(value, field, 1)
    if not isinstance(value, Condition):
        sentence = 'must be conditions such as Field("price") < 20, or a dictionary'
        raise invalid(field, f"{sentence}, got {type(value).__name__}")
    checked = _checked(value, field, 1)
    result = checked if isinstance(checked, Filter) else Filter(must=(checked,))
    conditions, values = _sizes(result)
    for noun, count in (("conditions", conditions), ("values", values)):
        most = LIMITS[f"filter_{noun}_max"]
        if count > most:
            raise invalid(field, f"must have at most {most} {noun}, got {count}")
    return result if tuple(result) else None


def _sizes(condition: Condition) -> tuple[int, int]:
    """Return the numbers of conditions and of values in a filter."""
    if isinstance(condition, Filter):
        sizes = [_sizes(part) for part in condition]
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    if isinstance(condition, Match | Others):
        return 1, len(condition.values)
    return 1, len(condition.ids) if isinstance(condition, HasId) else 1


def _checked(condition: Condition, field: str, depth: int) -> Condition:
    """Return a condition with plain values."""
    if depth > LIMITS["filter_depth_max"]:
        raise invalid(field, f"must be at most {LIMITS['filter_depth_max']} levels deep")
    if isinstance(condition, Filter):
        parts = [
            tuple(_checked(part, field, depth + 1) for part in _conditions(parts, field))
            for parts in (condition.must, condition.should, condition.must_not)
        ]
        return Filter(*parts)
    if isinstance(condition, HasId):
        return HasId(tuple(_plain_id(item, field) for item in plain(condition.ids)))
    name = getattr(condition, "attribute", None)
    if not isinstance(name, str):
        raise invalid(field, f"must name attributes by texts, got {name!r:.80}")
    if isinstance(condition, Match | Others):
        values = tuple(plain_scalar(value, field, name) for value in condition.values)
        return type(condition)(name, values)
    if isinstance(condition, Range):
        bounds = {bound: getattr(condition, bound) for bound in _BOUNDS}
        return Range(name, **{key: _bound(value, field, name) for key, value in bounds.items()})
    return condition


def _conditions(parts: object, field: str) -> Iterable[Condition]:
    if not isinstance(parts, tuple | list) or not all(isinstance(p, Condition) for p in parts):
        raise invalid(field, f"must combine conditions, got {parts!r:.80}")
    return parts


def plain_scalar(value: object, field: str, name: str) -> Scalar:
    """Return a value as a Python text, bool, integer or float; a time becomes an integer."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, date | np.datetime64):
        return microseconds(field, value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and not math.isnan(value):
        return float(value)
    allowed = "texts, integers, floats, bools or times"
    raise invalid(field, f"must compare {name!r:.80} with {allowed}, got {value!r:.80}")


def _bound(value: object, field: str, name: str) -> int | float | None:
    bound = None if value is None else plain_scalar(value, field, name)
    if isinstance(bound, str | bool):
        rule = f"must compare {name!r:.80} by < or > with numbers or times only"
        raise invalid(field, f"{rule}, got {value!r:.80}")
    return bound


def _plain_id(item: object, field: str) -> int | str:
    if isinstance(item, str):
        return str.__str__(item)
    if isinstance(item, numbers.Integral) and not isinstance(item, bool | np.bool_):
        return int(item)
    raise invalid(field, f"must have ids that are integers or texts, got {item!r:.80}")


# Dictionaries in the form of Qdrant's filters.


def _from_dictionary(entries: Mapping[Any, Any], field: str, depth: int) -> Filter:
    """Return the filter of a dictionary with the keys `must`, `should` and `must_not`."""
    if depth > LIMITS["filter_depth_max"]:
        raise invalid(field, f"must be at most {LIMITS['filter_depth_max']} levels deep")
    kinds = ("must", "should", "must_not")
    unknown = [key for key in entries if key not in kinds]
    if unknown:
        raise invalid(field, f"must have the keys {', '.join(kinds)}, got {unknown[0]!r:.80}")
    parts = []
    for kind in kinds:
        items = entries.get(kind) or ()
        items = items if isinstance(items, list | tuple) else [items]
        parts.append(tuple(_from_entry(item, field, depth + 1) for item in items))
    return Filter(*parts)


def _from_entry(entry: object, field: str, depth: int) -> Condition:
    """Return the condition of an entry such as {"key": "price", "range": {"lt": 20}}."""
    if isinstance(entry, Condition):
        return entry
    if not isinstance(entry, Mapping):
        raise invalid(field, f"must hold conditions as dictionaries, got {entry!r:.80}")
    if "has_id" in entry and len(entry) == 1:
        return HasId(_listed(entry["has_id"], field))
    for key in ("is_empty", "is_null"):
        if key in entry and len(entry) == 1 and isinstance(entry[key], Mapping):
            return ~Exists(_key_of(entry[key], field))
    if not {"key", "match", "range"} & entry.keys():
        return _from_dictionary(entry, field, depth)
    name, tests = _key_of(entry, field), [key for key in entry if key != "key"]
    if tests == ["match"]:
        return _from_match(name, entry["match"], field)
    if tests == ["range"]:
        bounds = entry["range"]
        if not isinstance(bounds, Mapping) or not bounds.keys() <= set(_BOUNDS):
            raise invalid(field, f"must have ranges of {', '.join(_BOUNDS)}, got {bounds!r:.80}")
        return Range(name, **bounds)
    raise invalid(field, f"must test {name!r:.80} by match or range, got {', '.join(tests)!r:.80}")


def _key_of(entry: Mapping[Any, Any], field: str) -> str:
    name = entry.get("key")
    if isinstance(name, str):
        return name
    raise invalid(field, f"must name an attribute by `key`, got {name!r:.80}")


def _from_match(name: str, match: object, field: str) -> Condition:
    if isinstance(match, Mapping) and len(match) == 1:
        ((kind, value),) = match.items()
        if kind == "value":
            return Match(name, (value,))
        if kind == "any":
            return Match(name, _listed(value, field))
        if kind == "except":
            return Filter(must=(Exists(name),), must_not=(Match(name, _listed(value, field)),))
    raise invalid(field, f"must match {name!r:.80} by value, any or except, got {match!r:.80}")


def _listed(values: object, field: str) -> tuple[Any, ...]:
    if isinstance(values, _LISTS):
        return in_order(values)
    raise invalid(field, f"must have a list, got {values!r:.80}")


class FilterReader:
    """Finds the rows of one generation that pass a filter."""

    def __init__(
        self, arrays: Mapping[str, Array], rows: int, ids: Ids, attributes: Sequence[Attribute]
    ) -> None:
        self._arrays = arrays
        self._rows = rows
        self._ids = ids
        self._attributes = {attribute.name: n for n, attribute in enumerate(attributes)}
        self._declared = tuple(attributes)
        # Orders that the index does not store, by the name of the array.
        self._orders: dict[str, Order] = {}

    def flags(self, condition: Condition, field: str = "filter") -> Flags:
        """Return for each row (n,) whether it passes.

        Raises `InvalidArgumentError` with the field `field` for an attribute that the index does
        not declare, and for values or ids of another type than the index has.
        """
        if not isinstance(condition, Filter):
            return self._flags_of(condition, field)
        flags: Flags | None = None
        for part in condition.must:
            flags = _joined(np.logical_and, flags, self.flags(part, field))
        one: Flags | None = None
        for part in condition.should:
            one = _joined(np.logical_or, one, self.flags(part, field))
        if one is not None:
            flags = _joined(np.logical_and, flags, one)
        for part in condition.must_not:
            flags = _joined(np.logical_and, flags, ~self.flags(part, field))
        return np.ones(self._rows, np.bool_) if flags is None else flags

    def flags_of_ids(self, ids: Any, field: str) -> Flags:  # noqa: ANN401  # any sequence of ids
        """Return for each row (n,) whether its id is one of `ids`; raises as `flags` does."""
        flags = np.zeros(self._rows, np.bool_)
        rows = self._ids.rows_of(ids, field)
        flags[rows[rows >= 0]] = True
        return flags

    def _flags_of(self, condition: Condition, field: str) -> Flags:
        if isinstance(condition, HasId):
            return self.flags_of_ids(list(condition.ids), field)
        assert isinstance(condition, Match | Others | Range | Exists)  # noqa: S101  # all others
        number = self._attributes.get(condition.attribute)
        if number is None:
            text = str(unknown_attribute(condition.attribute, self._declared))
            raise invalid(field, text.replace("attributes has no", "has no attribute", 1))
        flags = np.zeros(self._rows, np.bool_)
        for first, stop in self._slices(number, condition, field):
            flags[self._rows_of(number, first, stop)] = True
        return flags

    def _rows_of(self, number: int, first: int, stop: int) -> npt.NDArray[np.integer[Any]]:
        """Return the rows with the values from place `first` to `stop` - 1 in ascending order."""
        places = self._order(number)[first:stop]
        if not self._declared[number].multi:
            return places
        return np.searchsorted(self._arrays[array_name(number, "ends")], places, side="right")

    def _order(self, number: int) -> Order:
        """Return the places of an attribute's values in ascending order of the values."""
        name = array_name(number, "order")
        if name not in self._arrays and name not in self._orders:
            self._orders[name] = order_of(self._arrays[array_name(number, "values")])
        return self._arrays[name] if name in self._arrays else self._orders[name]

    def _order_of_words(self, number: int, words: Texts) -> Order:
        """Return the numbers of an attribute's keywords in ascending order of their texts."""
        name = array_name(number, "words.order")
        if name not in self._arrays and name not in self._orders:
            self._orders[name] = order_of_texts([words[place] for place in range(len(words))])
        return self._arrays[name] if name in self._arrays else self._orders[name]

    def _slices(
        self, number: int, condition: Match | Others | Range | Exists, field: str
    ) -> Iterable[tuple[int, int]]:
        """Yield where the values that pass begin and end, in ascending order of the values."""
        attribute = self._declared[number]
        if isinstance(condition, Others):
            yield from self._gaps(number, condition, field)
            return
        if isinstance(condition, Match):
            for value in condition.values:
                number_of_value = self._number(number, attribute, value, field)
                if number_of_value is not None:
                    yield self._between(number, number_of_value, number_of_value)
            return
        low: Any = -math.inf
        high: Any = math.inf
        if attribute.type != "float":
            low = MISSING[attribute.type] + 1
            high = np.iinfo(np.dtype(DTYPES[attribute.type])).max
        if isinstance(condition, Range):
            if attribute.type not in ("integer", "float"):
                rule = f"must compare {attribute.name!r} by equality, because its values are"
                raise invalid(field, f"{rule} {_NOUNS[attribute.type]}")
            low, high = _limits(condition, attribute.type)
        if low is not None:
            yield self._between(number, low, high)

    def _gaps(self, number: int, condition: Others, field: str) -> Iterable[tuple[int, int]]:
        """Yield where the values that are none of some values begin and end, as `_slices`."""
        name = condition.attribute
        ((place, end),) = self._slices(number, Exists(name), field)
        for first, stop in sorted(self._slices(number, Match(name, condition.values), field)):
            yield place, first
            place = stop
        yield place, end

    def _between(self, number: int, low: Any, high: Any) -> tuple[int, int]:  # noqa: ANN401  # numbers
        """Return where the values from `low` to `high` begin and end."""
        values, order = self._arrays[array_name(number, "values")], self._order(number)

        # numpy's `searchsorted` would convert the whole order to another dtype in every call.
        def value_at(place: int) -> Any:  # noqa: ANN401  # a number of the column's dtype
            return values[order[place]]

        end = len(order)
        if values.dtype.kind == "f":
            end = bisect_left(range(end), 1, key=lambda place: math.isnan(value_at(place)))
        places, kind = range(end), values.dtype.type
        first = bisect_left(places, kind(low), key=value_at)
        return first, bisect_right(places, kind(high), key=value_at)

    def _number(
        self, number: int, attribute: Attribute, value: Scalar, field: str
    ) -> int | float | None:
        """Return the number that stands for a value in a column; None if no point can have it."""
        fits = {
            "keyword": isinstance(value, str),
            "bool": isinstance(value, bool),
            "integer": isinstance(value, int | float) and not isinstance(value, bool),
            "float": isinstance(value, int | float) and not isinstance(value, bool),
        }[attribute.type]
        if not fits:
            rule = f"must compare {attribute.name!r} with {_NOUNS[attribute.type]}"
            raise invalid(field, f"{rule}, got {value!r:.80}")
        if isinstance(value, str):
            return self._word(number, value)
        if attribute.type == "bool":
            return int(value)
        low, high = _limits(Range(attribute.name, gte=value, lte=value), attribute.type)
        return low if low is not None and low == high else None

    def _word(self, number: int, word: str) -> int | None:
        """Return the number of a keyword, or None if no point has it."""
        words = Texts(self._arrays, array_name(number, "words"))
        try:
            text = word.encode()
        except UnicodeEncodeError:
            return None
        order = self._order_of_words(number, words)
        place = bisect_left(range(len(order)), text, key=lambda place: words[int(order[place])])
        is_known = place < len(order) and words[int(order[place])] == text
        return int(order[place]) if is_known else None


_NOUNS: Final[Mapping[AttributeType, str]] = {
    "keyword": "texts",
    "integer": "integers",
    "float": "numbers",
    "bool": "true or false",
}


def order_of(values: Array) -> Order:
    """Return the places (n,) of values in ascending order of the values; NaN comes last."""
    order = np.argsort(values, kind="stable")
    return order.astype(np.int32) if len(order) <= np.iinfo(np.int32).max else order


def order_of_texts(texts: Sequence[bytes]) -> Order:
    """Return the places (n,) of texts in ascending order of the texts."""
    return np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int32)


def _joined(combine: np.ufunc, flags: Flags | None, more: Flags) -> Flags:
    if flags is None:
        return more
    result: Flags = combine(flags, more, out=flags)
    return result


def _limits(condition: Range, kind: AttributeType) -> tuple[Any, Any]:
    """Return the least and the greatest number within a range; (None, None) if there is none.

    The comparison is exact, also of integers with floats.
    """
    whole = kind == "integer"
    low: Any = MISSING_INTEGER + 1 if whole else -math.inf
    high: Any = 2**63 - 1 if whole else math.inf
    for name in _BOUNDS:
        bound = getattr(condition, name)
        if bound is None:
            continue
        least, greatest = (_whole_limits if whole else _float_limits)(name, bound)
        low, high = max(low, least), min(high, greatest)
    return (low, high) if low <= high else (None, None)


def _whole_limits(name: str, bound: int | float) -> tuple[float, float]:
    """Return the least and the greatest integer that one bound allows."""
    if isinstance(bound, float) and math.isinf(bound):
        allows_all = (bound > 0) == name.startswith("l")
        return (-math.inf, math.inf) if allows_all else (math.inf, -math.inf)
    if name == "gt":
        return math.floor(bound) + 1, math.inf
    if name == "gte":
        return math.ceil(bound), math.inf
    return -math.inf, (math.ceil(bound) - 1 if name == "lt" else math.floor(bound))


def _float_limits(name: str, bound: int | float) -> tuple[float, float]:
    """Return the least and the greatest float64 that one bound allows."""
    try:
        number = float(bound)
    except OverflowError:
        number = math.inf if bound > 0 else -math.inf
    is_above = name.startswith("g")
    # An integer of more than 53 bits may lie between two floats.
    allows_number = (number > bound if is_above else number < bound) or (
        number == bound and name.endswith("e")
    )
    if not allows_number:
        number = math.nextafter(number, math.inf if is_above else -math.inf)
    return (number, math.inf) if is_above else (-math.inf, number)
