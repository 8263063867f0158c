"""Values of attributes in columnar form, made from Python values and turned back into them.

Each type has a dtype and a number that stands for a missing value:

    type      dtype     missing value
    keyword   int32     -1; other numbers are places in `Column.words`
    integer   int64     -2**63
    float     float64   NaN
    bool      int8      -1; 0 is false and 1 is true
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from datetime import UTC, date, datetime, time
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters.limits import LIMITS
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
        """Return the rows `start` to `stop` - 1, with all words."""
        if not multi:
            return self._replace(values=self.values[start:stop])
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop else 0
        ends = self.ends[start:stop] - first
        return self._replace(values=self.values[first:last], ends=ends)

    def take(self, mask: npt.NDArray[np.bool_] | slice, *, multi: bool) -> "Column":
        """Return the rows that a mask (n,) keeps, with all words."""
        if isinstance(mask, slice) or mask.all():
            return self
        if not multi:
            return self._replace(values=self.values[mask])
        widths = np.diff(self.ends, prepend=0)
        kept = self.values[np.repeat(mask, widths)]
        return self._replace(values=kept, ends=np.cumsum(widths[mask]))


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


def columns_of(
    attributes: Mapping[str, object],
    rows: int,
    types: AttributeTypes | None = None,
) -> dict[Attribute, Column]:
    """Convert values of attributes for `rows` rows; return columns by their declarations.

    attributes: one value per row, by name: an array or a sequence. None is a missing value. If any
        value is a list, tuple or set, the attribute is `multi`.
    types: types of some attributes. Other types are found from the values: texts are keywords, and
        times are integers. Integers mixed with floats are floats.

    Raises `InvalidArgumentError` with the field `attributes.NAME`.
    """
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
    if declared_type is not None and declared_type not in DTYPES:
        names = ", ".join(DTYPES)
        raise invalid(
            "attribute_types", f"must be of {names}, got {declared_type!r:.80} for {name!r}"
        )
    if isinstance(values, str | bytes) or not isinstance(values, Sized):
        raise invalid(field, f"must be a list or an array, got {type(values).__name__}")
    if len(values) != rows:
        raise invalid(field, f"must have one value per row, {rows}, got {len(values)}")
    multi = False
    if isinstance(values, np.ndarray) and values.dtype.kind in "buifM" and values.ndim == 1:
        kind, column = _of_array(field, values, declared_type)
    else:
        plain: Any = values.tolist() if hasattr(values, "tolist") else values
        items = list(plain)
        multi = any(isinstance(item, _LISTS) for item in items)
        lists = [_as_list(item) for item in items] if multi else []
        flat = [item for values_of_row in lists for item in values_of_row] if multi else items
        if multi and None in flat:
            raise invalid(field, "must have no None among the values of a row")
        kind, column = _of_items(field, flat, declared_type)
        if multi:
            widths = np.fromiter(map(len, lists), np.int64, len(lists))
            column = column._replace(ends=np.cumsum(widths))
    attribute = Attribute(name, kind, multi)
    check_column(attribute, column, rows)
    return attribute, column


def _as_list(item: Any) -> list[Any]:  # noqa: ANN401  # any value
    if item is None:
        return []
    if isinstance(item, np.ndarray):
        return item.ravel().tolist()
    if isinstance(item, set | frozenset):
        # A set has no order, and equal sets must give equal indexes.
        return sorted(item, key=str)
    return list(item) if isinstance(item, list | tuple) else [item]


def _of_array(
    field: str, values: Array, declared_type: AttributeType | None
) -> tuple[AttributeType, Column]:
    """Convert an array of numbers or times without a loop in Python."""
    kind: AttributeType = {"b": "bool", "f": "float"}.get(values.dtype.kind, "integer")  # type: ignore[assignment]
    if values.dtype.kind == "M":
        times = values.astype("datetime64[us]")
        values = times.astype(np.int64)  # NaT becomes MISSING_INTEGER
    elif kind == "integer" and len(values) and int(values.max()) >= 2**63:
        raise invalid(field, "must be integers of 64 bits")
    if declared_type == "float" and kind == "integer":
        kind = declared_type
    if declared_type not in (None, kind):
        raise invalid(field, f"must be {_nouns(declared_type)}, got an array of {values.dtype}")
    return kind, Column(values.astype(DTYPES[kind]), _NO_ENDS)


def _of_items(
    field: str, items: list[Any], declared_type: AttributeType | None
) -> tuple[AttributeType, Column]:
    kinds = {_kind_of(field, item): item for item in items if item is not None}
    found = set(kinds)
    if found == {"integer", "float"} or (declared_type == "float" and found == {"integer"}):
        found = {"float"}
    if len(found) > 1:
        some = ", ".join(f"{kinds[kind]!r:.40}" for kind in sorted(found))
        raise invalid(field, f"must have values of one type, got {some}")
    if not found and declared_type is None:
        raise invalid(field, "has no value, so attribute_types must give its type")
    kind = cast("AttributeType", next(iter(found), declared_type))
    if declared_type not in (None, kind):
        item = next(iter(kinds.values()))
        raise invalid(field, f"must be {_nouns(declared_type)}, got {item!r:.40}")
    if kind == "keyword":
        places: dict[str, int] = {}
        codes = [
            -1 if item is None else places.setdefault(str(item), len(places)) for item in items
        ]
        return kind, Column(np.array(codes, np.int32), _NO_ENDS, tuple(places))
    if kind == "integer":
        items = [
            _microseconds(item) if isinstance(item, date | np.datetime64) else item
            for item in items
        ]
        if any(item is not None and not MISSING_INTEGER < item < 2**63 for item in items):
            raise invalid(field, "must be integers of 64 bits, above -2**63")
    missing = MISSING[kind]
    numbers = [missing if item is None else item for item in items]
    return kind, Column(np.array(numbers, DTYPES[kind]), _NO_ENDS)


def _kind_of(field: str, item: object) -> AttributeType:
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
    raise invalid(field, f"must hold {allowed}, got {type(item).__name__}")


def _microseconds(item: date | np.datetime64) -> int:
    """Return a time as microseconds since 1970 in UTC; a time without a zone is in UTC."""
    if isinstance(item, np.datetime64):
        return int(item.astype("datetime64[us]").astype(np.int64))
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
