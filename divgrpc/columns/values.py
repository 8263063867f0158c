"""Values of attributes in columnar form, made from Python values and turned back into them.

Each type has a dtype and a number that stands for a missing value:

    type      dtype     missing value
    keyword   int32     -1; other numbers are places in `Column.words`
    integer   int64     -2**63
    float     float64   NaN
    bool      int8      -1; 0 is false and 1 is true
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, spans
from divgrpc.columns.ids import plain
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute, AttributeType, AttributeTypes, AttributeValue

ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
MISSING_INTEGER: Final = -(2**63)
DTYPES: Final[Mapping[AttributeType, type[np.generic]]] = {
    "keyword": np.int32,
    "integer": np.int64,
    "float": np.float64,
    "bool": np.int8,
}
MISSING: Final[Mapping[AttributeType, float]] = {
    "keyword": -1,
    "integer": MISSING_INTEGER,
    "float": np.nan,
    "bool": -1,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Column(NamedTuple):
    """The values of one attribute for n rows.

    values: (n,) numbers of the attribute's dtype. If the attribute is `multi`, the values of all
        rows, one row after another.
    ends: (n,) int64, the end of each row's part of `values`; empty unless the attribute is `multi`.
    words: the texts that the numbers of a keyword stand for; empty for other types.
    """

    values: Array
    ends: npt.NDArray[np.int64]
    words: tuple[str, ...] = ()

    def rows(self, *, multi: bool) -> int:
        """Return the number of rows."""
        return len(self.ends if multi else self.values)

    def cut(self, start: int, stop: int, *, multi: bool) -> "Column":
        """Return the rows `start` to `stop` - 1, with the words that they use."""
        if not multi:
            return self._replace(values=self.values[start:stop]).compact()
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop else 0
        ends = self.ends[start:stop] - first
        return self._replace(values=self.values[first:last], ends=ends).compact()

    def compact(self) -> "Column":
        """Return the same values without the words that no value uses."""
        if not self.words:
            return self
        has_word = self.values >= 0
        used, places = np.unique(self.values[has_word], return_inverse=True)
        values = np.full(len(self.values), -1, np.int32)
        values[has_word] = places
        return Column(values, self.ends, tuple(self.words[place] for place in used.tolist()))

    def bytes_of_rows(self, *, multi: bool) -> npt.NDArray[np.int64]:
        """Return an upper bound of the bytes that each row takes in a message."""
        sizes = np.full(len(self.values), NUMBER_BYTES, np.int64)
        if self.words:
            has_word = self.values >= 0
            lengths = np.fromiter((len(word.encode()) for word in self.words), np.int64)
            sizes[has_word] += lengths[self.values[has_word]]
        if not multi:
            return sizes
        totals = np.concatenate(([0], np.cumsum(sizes)))[np.concatenate(([0], self.ends))]
        return np.diff(totals) + NUMBER_BYTES

    def take(self, mask: npt.NDArray[np.bool_] | slice, *, multi: bool) -> "Column":
        """Return the rows that a mask (n,) keeps, with all words."""
        if isinstance(mask, slice) or mask.all():
            return self
        if not multi:
            return self._replace(values=self.values[mask])
        widths = np.diff(self.ends, prepend=0)
        kept = self.values[np.repeat(mask, widths)]
        return self._replace(values=kept, ends=np.cumsum(widths[mask]))


# Maximum number of bytes of a number in a message.
NUMBER_BYTES: Final = 10
_NO_ENDS: Final = np.empty(0, np.int64)
_LISTS: Final = (list, tuple, set, frozenset, np.ndarray)


def check_attributes(attributes: Iterable[Attribute]) -> tuple[Attribute, ...]:
    """Return the declarations if they are valid and their names differ.

    Raises `InvalidArgumentError` with the field `attributes`.
    """
    declared = tuple(attributes)
    if len(declared) > LIMITS["attributes_max"]:
        most = LIMITS["attributes_max"]
        raise invalid("attributes", f"must be at most {most}, got {len(declared)}")
    names: set[str] = set()
    for attribute in declared:
        check_name(attribute.name)
        if attribute.type not in DTYPES:
            raise invalid("attributes", f"{attribute.name!r} has no type {attribute.type!r}")
        if attribute.name in names:
            raise invalid("attributes", f"has {attribute.name!r} twice")
        names.add(attribute.name)
    return declared


def check_name(name: object) -> str:
    """Return `name` if it is a valid name of an attribute, else raise `InvalidArgumentError`."""
    if isinstance(name, str) and ATTRIBUTE_NAME.fullmatch(name):
        return name
    rule = "must have names of 1 to 63 letters, digits and underscores that begin with no digit"
    raise invalid("attributes", f"{rule}, got {name!r:.80}")


def arguments_of_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `ids`, `vectors`, `attributes` and `payloads` of records, as arguments of an upsert.

    records: mappings with the keys `id` and perhaps `vector` and `payload`. All other keys are
        attributes. A record without a vector has None among the vectors.

    Raises `InvalidArgumentError` with the field `id` for a record without one.
    """
    for record in records:
        if "id" not in record:
            raise invalid("id", f"must be in each record, got {sorted(record)!r:.80}")
    names = {name for record in records for name in record} - {"id", "vector", "payload"}
    payloads = [record.get("payload") for record in records]
    return {
        "ids": [record["id"] for record in records],
        "vectors": [record.get("vector") for record in records],
        "attributes": {name: [record.get(name) for record in records] for name in sorted(names)},
        "payloads": payloads if any(payload is not None for payload in payloads) else None,
    }


def columns_of(
    attributes: Mapping[str, object],
    rows: int,
    types: AttributeTypes = None,
) -> dict[Attribute, Column]:
    """Convert values of attributes for `rows` rows; return columns by their declarations.

    attributes: one value per row, by name: an array or a sequence. None is a missing value. If any
        value is a list, tuple or set, the attribute is `multi`.
    types: types of some attributes. Other types are found from the values: texts are keywords, and
        times are integers. Integers mixed with floats are floats.

    Raises `InvalidArgumentError` with the field `attributes.NAME`.
    """
    if not isinstance(attributes, Mapping):
        rule = 'must have the values of all rows by name, such as {"brand": [...], "price": [...]}'
        raise invalid("attributes", f"{rule}, got {type(attributes).__name__}")
    types = types or {}
    for name in types:
        if name not in attributes:
            raise invalid("attribute_types", f"names {name!r:.80}, which is not in attributes")
    columns = {}
    for name, values in attributes.items():
        attribute, column = _column_of(check_name(name), values, rows, types.get(name))
        columns[attribute] = column
    check_attributes(columns)
    return columns


def _column_of(
    name: str, values: object, rows: int, declared_type: AttributeType | None
) -> tuple[Attribute, Column]:
    field = f"attributes.{name}"
    if declared_type is not None and declared_type not in list(DTYPES):
        names = ", ".join(DTYPES)
        raise invalid(
            "attribute_types", f"must be of {names}, got {declared_type!r:.80} for {name!r}"
        )
    values = plain(values)
    # The order of a set is arbitrary, and a dict would yield its keys.
    is_column = isinstance(values, Sequence) or (isinstance(values, np.ndarray) and values.ndim > 0)
    if isinstance(values, str | bytes) or not is_column:
        raise invalid(field, f"must be a list or an array, got {type(values).__name__}")
    values = cast("Sequence[Any] | Array", values)
    if len(values) != rows:
        raise invalid(field, f"must have one value per row, {rows}, got {len(values)}")
    multi = False
    if isinstance(values, np.ndarray) and values.dtype.kind in "Mm":
        values = _as_microseconds(field, values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "buif" and values.ndim == 1:
        kind, column = _of_array(field, values, declared_type)
    else:
        items: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
        multi = any(isinstance(item, _LISTS) for item in items)
        if multi:
            lists = [_as_list(field, item) for item in items]
            kind, column = _of_lists(field, lists, declared_type)
        else:
            kind, column = _of_items(field, items, declared_type, lambda place: place)
    attribute = Attribute(name, kind, multi)
    check_column(attribute, column, rows)
    return attribute, column


def _of_lists(
    field: str, lists: list[list[Any]], declared_type: AttributeType | None
) -> tuple[AttributeType, Column]:
    """Convert the values of each row."""
    items = [item for values in lists for item in values]
    ends = np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)))

    def row_of(place: int) -> int:
        return int(np.searchsorted(ends, place, side="right"))

    for place, item in enumerate(items):
        if item is None or _is_nan(item):
            rule = f"must have no None among the values of a row, as row {row_of(place)} has"
            raise invalid(field, rule)
    kind, column = _of_items(field, items, declared_type, row_of)
    return kind, column._replace(ends=ends)


def _as_microseconds(field: str, times: Array) -> IntArray:
    """Return times as integers; NaT becomes MISSING_INTEGER."""
    if times.dtype.kind == "m":
        raise invalid(field, "must hold times, not differences of times")
    microseconds = times.astype("datetime64[us]")
    if not ((microseconds.astype(times.dtype) == times) | np.isnat(times)).all():
        # The conversion overflows for years far from 1970. Nanoseconds are cut, not refused.
        unit = np.datetime_data(times.dtype)[0]
        if unit not in ("ns", "ps", "fs", "as"):
            raise invalid(field, "must hold times between the years -290308 and 294247")
    return microseconds.astype(np.int64)


def _as_list(field: str, item: Any) -> list[Any]:  # noqa: ANN401  # any value
    if item is None:
        return []
    if isinstance(item, np.ndarray):
        is_time = item.dtype.kind in "Mm"
        numbers: list[Any] = (_as_microseconds(field, item) if is_time else item).ravel().tolist()
        return numbers
    if isinstance(item, set | frozenset):
        # A set has no order, and equal sets must give equal indexes.
        return sorted(item, key=str)
    return list(item) if isinstance(item, list | tuple) else [item]


def _of_array(
    field: str, values: Array, declared_type: AttributeType | None
) -> tuple[AttributeType, Column]:
    """Convert an array of numbers or times without a loop in Python."""
    kind: AttributeType = {"b": "bool", "f": "float"}.get(values.dtype.kind, "integer")  # type: ignore[assignment]
    if kind == "integer" and len(values) and int(values.max()) >= 2**63:
        raise invalid(field, "must be integers of 64 bits")
    if declared_type == "float" and kind == "integer":
        kind = declared_type
    if declared_type not in (None, kind):
        raise invalid(field, f"must be {_nouns(declared_type)}, got an array of {values.dtype}")
    return kind, Column(values.astype(DTYPES[kind]), _NO_ENDS)


def _of_items(
    field: str,
    items: list[Any],
    declared_type: AttributeType | None,
    row_of: Callable[[int], int],
) -> tuple[AttributeType, Column]:
    """Return the type and the column of Python values; `row_of` returns the row of an item."""
    items = [None if item is None or _is_nan(item) else item for item in items]
    # The place of the first item of each type.
    firsts: dict[AttributeType, int] = {}
    for place, item in enumerate(items):
        if item is not None:
            firsts.setdefault(_kind_of(field, item, row_of, place), place)
    kind = declared_type or _common_type(field, items, firsts, row_of)
    for other, place in firsts.items():
        if other != kind and (kind, other) != ("float", "integer"):
            nouns = _nouns(kind)
            raise invalid(
                field, f"must be {nouns}, got {items[place]!r:.40} in row {row_of(place)}"
            )
    if kind == "keyword":
        places: dict[str, int] = {}
        # `str.__str__` returns the text of a member of an enumeration, and `str` its name.
        codes = [
            -1 if item is None else places.setdefault(str.__str__(item), len(places))
            for item in items
        ]
        return kind, Column(np.array(codes, np.int32), _NO_ENDS, tuple(places))
    if kind == "integer":
        items = _as_integers(field, items, row_of)
    missing = MISSING[kind]
    numbers = [missing if item is None else item for item in items]
    try:
        return kind, Column(np.array(numbers, DTYPES[kind]), _NO_ENDS)
    except OverflowError:
        raise invalid(field, "must hold numbers of 64 bits") from None


def _as_integers(field: str, items: list[Any], row_of: Callable[[int], int]) -> list[Any]:
    """Return items with integers in place of times; raises for an integer of more than 64 bits."""
    numbers = [
        microseconds(field, item) if isinstance(item, date | np.datetime64) else item
        for item in items
    ]
    for place, number in enumerate(numbers):
        if number is not None and not MISSING_INTEGER < number < 2**63:
            rule = f"must be integers of 64 bits, above -2**63, got {number!r:.40}"
            raise invalid(field, f"{rule} in row {row_of(place)}")
    return numbers


def _common_type(
    field: str,
    items: list[Any],
    firsts: Mapping[AttributeType, int],
    row_of: Callable[[int], int],
) -> AttributeType:
    """Return the type of all items, given the place of the first item of each type."""
    if not firsts:
        raise invalid(field, "has no value, so attribute_types must give its type")
    if firsts.keys() == {"integer", "float"}:
        return "float"
    if len(firsts) > 1:
        values = [f"{items[p]!r:.40} in row {row_of(p)}" for p in sorted(firsts.values())]
        raise invalid(field, f"must have values of one type, got {' and '.join(values)}")
    return next(iter(firsts))


def _kind_of(field: str, item: object, row_of: Callable[[int], int], place: int) -> AttributeType:
    # A bool is an int in Python, and a datetime is a date.
    if isinstance(item, str):
        return "keyword"
    if isinstance(item, bool | np.bool_):
        return "bool"
    if isinstance(item, int | np.integer | date | np.datetime64):
        return "integer"
    if isinstance(item, float | np.floating):
        return "float"
    allowed = "texts, integers, floats, bools, times, None, or lists of them"
    got = f"{type(item).__name__} in row {row_of(place)}"
    raise invalid(field, f"must hold {allowed}, got {got}")


def _is_nan(item: object) -> bool:
    """Whether a value is NaN, or NaT of numpy or pandas: these differ from themselves."""
    return isinstance(item, float | np.floating | date | np.datetime64) and bool(item != item)  # noqa: PLR0124


def microseconds(field: str, item: date | np.datetime64) -> int:
    """Return a time as microseconds since 1970 in UTC; a time without a zone is in UTC.

    Raises `InvalidArgumentError` with the field `field` for a time that 64 bits cannot hold.
    """
    if isinstance(item, np.datetime64):
        return int(_as_microseconds(field, np.array([item]))[0])
    moment = item if isinstance(item, datetime) else datetime.combine(item, time(), UTC)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    span = moment - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def check_words(field: str, words: Iterable[str]) -> None:
    """Raise `InvalidArgumentError` for a keyword that is too long or cannot be encoded."""
    most = LIMITS["keyword_bytes_max"]
    for word in words:
        try:
            size = len(word.encode())
        except UnicodeEncodeError:
            raise invalid(field, f"must be valid Unicode, got {word!r:.80}") from None
        if size > most:
            raise invalid(field, f"must have at most {most} bytes per keyword, got {size}")


def check_column(attribute: Attribute, column: Column, rows: int) -> None:
    """Check a column that came from elsewhere; raises `InvalidArgumentError`."""
    field = f"attributes.{attribute.name}"
    values, ends, words = column
    if column.rows(multi=attribute.multi) != rows:
        count = column.rows(multi=attribute.multi)
        raise invalid(field, f"must have one value per row, {rows}, got {count}")
    if attribute.multi:
        widths = np.diff(ends, prepend=0)
        if (widths < 0).any() or (int(ends[-1]) if rows else 0) != len(values):
            raise invalid(field, f"must have ends that rise to the number of values, {len(values)}")
        most = LIMITS["attribute_values_max"]
        if rows and widths.max() > most:
            raise invalid(field, f"must have at most {most} values per row, got {widths.max()}")
    elif len(ends):
        raise invalid(field, "must have ends only if it is declared as multi")
    least, most_value = _bounds(attribute, len(words))
    if len(values) and attribute.type == "float":
        if np.isinf(values).any() or (attribute.multi and np.isnan(values).any()):
            raise invalid(field, "must be finite; None is a missing value")
    elif len(values) and not (least <= values.min() and values.max() <= most_value):
        raise invalid(field, f"must hold numbers from {least} to {most_value}")
    check_words(field, words)


def check_row_bytes(
    columns: Mapping[Attribute, Column],
    rows: int,
    row_numbers: range | IntArray | None = None,
    other_bytes: IntArray | None = None,
) -> IntArray:
    """Return the bytes that all attributes of each row take in a message, at most.

    row_numbers: (rows,) the numbers that error messages name rows by; default 0 to `rows` - 1.
    other_bytes: (rows,) bytes of further attributes of these rows.

    Raises `InvalidArgumentError` with the field `attributes` for a row whose attributes take more
    than a message has room for.
    """
    sizes = np.zeros(rows, np.int64) if other_bytes is None else other_bytes.copy()
    for attribute, column in columns.items():
        sizes += column.bytes_of_rows(multi=attribute.multi)
    most = LIMITS["attribute_bytes_max"]
    if rows and sizes.max() > most:
        row = int(sizes.argmax())
        number = row if row_numbers is None else row_numbers[row]
        text = f"must take at most {most} bytes per row, row {number} takes {sizes[row]}"
        raise invalid("attributes", text)
    return sizes


def _bounds(attribute: Attribute, words: int) -> tuple[int, int]:
    """Return the least and the greatest number that a column may hold."""
    if attribute.type == "integer":
        return MISSING_INTEGER + attribute.multi, 2**63 - 1
    return -1 + attribute.multi, words - 1 if attribute.type == "keyword" else 1


def python_values(
    attribute: Attribute, values: Array, words: Sequence[str]
) -> list[AttributeValue]:
    """Return the values of an attribute as Python values, None where a value is missing."""
    items: list[Any] = values.tolist()
    match attribute.type:
        case "keyword":
            return [None if item < 0 else words[item] for item in items]
        case "integer":
            return [None if item == MISSING_INTEGER else item for item in items]
        case "float":
            return [None if item != item else item for item in items]  # noqa: PLR0124  # NaN
        case _:
            return [None if item < 0 else bool(item) for item in items]


def row_values(attribute: Attribute, column: Column) -> tuple[AttributeValue, ...]:
    """Return the value of each row of a column: a scalar or None, or a tuple if it is `multi`."""
    values = python_values(attribute, column.values, column.words)
    if not attribute.multi:
        return tuple(values)
    ends = pairwise([0, *column.ends.tolist()])
    return tuple(cast("AttributeValue", tuple(values[start:stop])) for start, stop in ends)


def _nouns(kind: AttributeType | None) -> str:
    return {"keyword": "texts", "integer": "integers", "float": "numbers"}.get(kind or "", "bools")


def as_lists(attribute: Attribute, column: Column) -> Column:
    """Return a column with one value or none per row as one of an attribute that is `multi`."""
    missing = MISSING[attribute.type]
    is_missing = np.isnan(column.values) if attribute.type == "float" else column.values == missing
    return Column(column.values[~is_missing], np.cumsum(~is_missing, dtype=np.int64), column.words)


def rows_of_column(attribute: Attribute, column: Column, entries: IntArray) -> Column:
    """Return the values at `entries` (m,) of a column; an entry of -1 has no value."""
    has_entry = entries >= 0
    places = entries[has_entry]
    if not attribute.multi:
        values = np.full(len(entries), MISSING[attribute.type], DTYPES[attribute.type])
        values[has_entry] = column.values[places]
        return column._replace(values=values).compact()
    starts = np.where(places > 0, column.ends[places - 1], 0)
    widths = np.zeros(len(entries), np.int64)
    widths[has_entry] = counts = column.ends[places] - starts
    values = column.values[spans(starts, counts)]
    return column._replace(values=values, ends=np.cumsum(widths)).compact()


def missing_column(attribute: Attribute, rows: int) -> Column:
    """Return a column of `rows` missing values."""
    dtype = DTYPES[attribute.type]
    if attribute.multi:
        return Column(np.empty(0, dtype), np.zeros(rows, np.int64))
    return Column(np.full(rows, MISSING[attribute.type], dtype), _NO_ENDS)


def unknown_attribute(name: object, declared: Iterable[Attribute]) -> InvalidArgumentError:
    """Return the error for an attribute that the index does not declare."""
    names = ", ".join(attribute.name for attribute in declared) or "none"
    return invalid("attributes", f"has no {name!r:.80}; the index declares {names}")
