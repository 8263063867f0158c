"""Filters pass the same rows as a test of each point in Python."""

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.arrays import Array
from divgrpc.columns import filters as filter_module
from divgrpc.columns.filters import FilterReader, as_filter
from divgrpc.columns.ids import Ids
from divgrpc.columns.values import columns_of
from divgrpc.columns.writer import ColumnWriter
from divgrpc.errors import InvalidArgumentError
from divgrpc.types.filters import (
    Condition,
    Exists,
    Field,
    Filter,
    FilterLike,
    HasId,
    Match,
    Others,
    Range,
)

TYPES: dict[str, Any] = {
    "brand": "keyword",
    "size": "integer",
    "price": "float",
    "sold": "bool",
    "tags": "keyword",
    "years": "integer",
    "rates": "float",
}
LISTS = ("tags", "years", "rates")
WORDS = ["", "a", "b", "ab", "é"]
WHOLE = [-(2**63) + 1, -3, 0, 1, 2, 3, 2**53 + 1, 2**63 - 1]
REAL = [-math.inf, -2.5, -0.0, 0.0, 1.0, 1.5, 3.0, 2.0**53, 2.0**53 + 2, 1e300, math.inf]
STORED = {
    "keyword": st.sampled_from(WORDS),
    "integer": st.sampled_from(WHOLE),
    "float": st.sampled_from(REAL[1:-1]),
    "bool": st.booleans(),
}
Point = dict[str, Any]


def points() -> st.SearchStrategy[list[Point]]:
    """Points with some missing values; the last three attributes have lists."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, kind in TYPES.items():
        value = STORED[kind]
        fields[name] = st.lists(value, max_size=3) if name in LISTS else st.none() | value
    return st.lists(st.fixed_dictionaries(fields), min_size=1, max_size=12)


def conditions_on(name: str) -> st.SearchStrategy[Condition]:
    """Conditions on one attribute, also with values that no point can have."""
    kind = TYPES[name]
    number = st.sampled_from(WHOLE + REAL)
    values = number if kind in ("integer", "float") else STORED[kind] | st.just(True)
    if kind == "keyword":
        values = st.sampled_from([*WORDS, "absent", "aa"])
    conditions: st.SearchStrategy[Condition] = st.just(Exists(name)) | st.builds(
        lambda kind, items: kind(name, tuple(items)),
        st.sampled_from([Match, Others]),
        st.lists(values, max_size=3),
    )
    if kind in ("integer", "float"):
        bound = st.none() | number
        conditions |= st.builds(
            lambda gt, gte, lt, lte: Range(name, gt, gte, lt, lte), bound, bound, bound, bound
        )
    return conditions


def filters() -> st.SearchStrategy[Condition]:
    leaf = st.sampled_from(list(TYPES)).flatmap(conditions_on)
    leaf |= st.builds(lambda ids: HasId(tuple(ids)), st.lists(st.integers(0, 15), max_size=4))
    parts = st.lists(leaf, max_size=3).map(tuple)
    return st.recursive(
        leaf,
        lambda inner: st.builds(
            Filter,
            st.lists(inner, max_size=2).map(tuple),
            parts,
            st.lists(inner, max_size=2).map(tuple),
        ),
        max_leaves=8,
    )


def passes(condition: Condition, row: int, point: Point) -> bool:
    """Tell whether a condition passes a point, by the definition of filters."""
    match condition:
        case Filter(must, should, must_not):
            return (
                all(passes(part, row, point) for part in must)
                and (not should or any(passes(part, row, point) for part in should))
                and not any(passes(part, row, point) for part in must_not)
            )
        case HasId(ids):
            return row in ids
        case Exists(name):
            return bool(values_of(point[name]))
        case Match(name, values):
            return any(value in values for value in values_of(point[name]))
        case Others(name, values):
            return any(value not in values for value in values_of(point[name]))
        case Range(name, gt, gte, lt, lte):
            return any(
                (gt is None or value > gt)
                and (gte is None or value >= gte)
                and (lt is None or value < lt)
                and (lte is None or value <= lte)
                for value in values_of(point[name])
            )
    raise AssertionError(condition)


def values_of(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


class Arrays(dict[str, Array]):
    """A store of a build, as plain arrays by name."""

    def begin(
        self, name: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...], rows: int = 0
    ) -> None:
        """Create an array for `append`."""
        self[name] = np.empty((rows, *row_shape), dtype)

    def append(self, name: str, block: Array) -> None:
        """Append rows."""
        self[name] = np.concatenate((self[name], block))

    def read(self, name: str) -> Array:
        """Return the rows appended so far."""
        return self[name]

    def create(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a new array of this shape."""
        self[name] = np.zeros(shape, dtype)
        return self[name]


def reader_of(items: list[Point], *, ordered: bool = True) -> FilterReader:
    """Return the reader of points; an older version did not store orders."""
    rows = len(items)
    named = {name: [point[name] for point in items] for name in TYPES}
    columns = columns_of(named, rows, TYPES)
    store = Arrays()
    writer = ColumnWriter(store, list(columns), has_texts=False, has_payloads=False)
    writer.append(slice(None), [], columns, [])
    writer.finish(store)
    arrays = {n: a for n, a in store.items() if ordered or not n.endswith("order")}
    return FilterReader(arrays, rows, Ids({}, rows), list(columns))


@settings(max_examples=200, deadline=None)
@given(points(), filters(), st.booleans())
def test_a_filter_passes_the_rows_that_its_definition_passes(
    items: list[Point], condition: Condition, ordered: bool
) -> None:
    reader = reader_of(items, ordered=ordered)
    expected = [passes(condition, row, point) for row, point in enumerate(items)]
    checked = as_filter(condition)
    flags = np.ones(len(items), np.bool_) if checked is None else reader.flags(checked)
    assert flags.tolist() == expected


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dictionary", "filter_"),
    [
        ({"must": [{"key": "size", "range": {"lt": 3, "gte": 1}}]}, Field("size") < 3),
        ({"must": {"key": "brand", "match": {"value": "a"}}}, Field("brand") == "a"),
        ({"should": [{"key": "brand", "match": {"any": ["a"]}}]}, Field("brand").is_in(["a"])),
        ({"must_not": [{"key": "brand", "match": {"value": "a"}}]}, Field("brand") != "a"),
        (
            {"must": [{"key": "brand", "match": {"except": ["a"]}}]},
            Field("brand").exists() & (Field("brand") != "a"),
        ),
        ({"must": [{"has_id": [0, 1]}]}, HasId((0, 1))),
        ({"must": [{"is_empty": {"key": "size"}}]}, ~Field("size").exists()),
        ({"must": [{"should": [{"has_id": [0]}, {"has_id": [2]}]}]}, HasId((0,)) | HasId((2,))),
        ({"must": [Field("sold") == True]}, Field("sold") == True),  # noqa: E712
        ({"must_not": [{"key": "sold", "match": {"value": True}}]}, ~Field("sold")),
    ],
)
def test_a_dictionary_is_a_filter(dictionary: FilterLike, filter_: Condition) -> None:
    lists: Point = {name: [] for name in LISTS}
    items: list[Point] = [
        {"brand": "a", "size": 1, "price": 1.0, "sold": True, **lists},
        {"brand": "b", "size": 2, "price": None, "sold": False, **lists, "years": [1]},
        {"brand": None, "size": None, "price": 2.0, "sold": None, **lists, "tags": ["a"]},
    ]
    reader = reader_of(items)
    flags = [as_filter(condition) for condition in (dictionary, filter_)]
    assert all(flag is not None for flag in flags)
    first, second = (reader.flags(flag).tolist() for flag in flags if flag is not None)
    assert first == second


def test_a_time_is_compared_with_microseconds() -> None:
    assert as_filter(Field("at") >= NOW) == Filter(must=(Range("at", gte=1767323045000000),))


def test_a_filter_without_conditions_is_none() -> None:
    assert as_filter(None) is None
    assert as_filter({}) is None
    assert as_filter(Filter()) is None


def test_conditions_have_no_truth_value() -> None:
    with pytest.raises(TypeError, match="two conditions"):
        _ = 1 < Field("size") < 3
    with pytest.raises(TypeError, match="a list of values"):
        Field("brand").is_in("acme")


DEEP: Any = Exists("brand")
for _ in range(9):
    DEEP = Filter(must_not=(DEEP,))


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (3, "must be conditions"),
        ({"most": []}, "must have the keys must, should, must_not"),
        ({"must": [3]}, "conditions as dictionaries"),
        ({"must": [{"key": "size"}]}, "by match or range"),
        ({"must": [{"key": 3, "match": {"value": 1}}]}, "name an attribute by `key`"),
        ({"must": [{"key": "size", "match": {"text": "a"}}]}, "by value, any or except"),
        ({"must": [{"key": "size", "range": {"below": 1}}]}, "ranges of gt, gte, lt, lte"),
        ({"must": [{"has_id": 3}]}, "must have a list"),
        (Field("size") < "a", "numbers or times only"),
        (Match("size", (math.nan,)), "got nan"),
        (Field("size") == None, "got None"),  # noqa: E711
        (HasId((1.5,)), "ids that are integers or texts"),  # type: ignore[arg-type]
        (Filter(must=(3,)), "must combine conditions"),  # type: ignore[arg-type]
        (Match(3, ()), "must name attributes by texts"),  # type: ignore[arg-type]
        (DEEP, "at most 8 levels deep"),
        (Filter(must=(Exists("a"),) * 257), "at most 256 conditions, got 257"),
        (HasId(tuple(range(10_001))), "at most 10000 values, got 10001"),
    ],
)
def test_a_wrong_filter_is_refused(value: FilterLike, rule: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rule) as raised:
        as_filter(value, "filter")
    assert raised.value.field == "filter"


@pytest.mark.parametrize(
    ("condition", "rule"),
    [
        (Field("colour") == "red", "has no attribute 'colour'; the index declares brand, size"),
        (Field("size") == "a", "'size' with integers, got 'a'"),
        (Field("size") == True, "'size' with integers, got True"),  # noqa: E712
        (Field("brand") == 3, "'brand' with texts, got 3"),
        (Field("sold") == 1, "'sold' with true or false, got 1"),
        (Field("brand") < 3, "'brand' by equality, because its values are texts"),
        (HasId(("a",)), "must be integers"),
    ],
)
def test_a_filter_that_does_not_fit_the_index_is_refused(condition: Condition, rule: str) -> None:
    reader = reader_of([dict.fromkeys(TYPES) | {name: [] for name in LISTS}])
    checked = as_filter(condition)
    assert checked is not None
    with pytest.raises(InvalidArgumentError, match=rule) as raised:
        reader.flags(checked)
    assert raised.value.field == "filter"


class _TwoHours(tzinfo):
    """A clock that shows each hour twice."""

    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(hours=2 - (dt.fold if dt else 0))

    def dst(self, dt: datetime | None) -> None:
        """Return None: it is not known."""

    def tzname(self, dt: datetime | None) -> None:
        """Return None: there is no name."""


def test_times_that_differ_in_their_fold_are_other_times() -> None:
    """Python says that they are equal, but an hour lies between them."""
    first = datetime(2026, 10, 25, 2, 30, tzinfo=_TwoHours())
    second = first.replace(fold=1)
    assert first == second
    for _ in range(2):
        assert as_filter(Field("time") == first) != as_filter(Field("time") == second)


def test_true_and_one_are_other_values() -> None:
    for value in (1, True, 1, True):
        assert repr(value) in repr(as_filter(Field("number") == value))


@pytest.mark.parametrize("name", ["x" * 300, "number"])
def test_what_a_cache_of_filters_keeps(name: str) -> None:
    """Long names and texts, which a caller could send without end, are not kept."""
    before = filter_module._match_one_value.cache_info().currsize
    for value in ("y" * 300, 1 << 70):
        with suppress(InvalidArgumentError):
            as_filter(Field(name) == value)
    assert filter_module._match_one_value.cache_info().currsize == before
