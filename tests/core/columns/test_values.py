"""Values of attributes become columns, and columns become the same values again."""

from collections import deque
from collections.abc import Sized
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, StrEnum
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.columns.values import Column, check_attributes, check_column, columns_of, row_values
from divgrpc.errors import InvalidArgumentError
from divgrpc.types.records import Attribute, AttributeType

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_SCALARS: dict[AttributeType, Any] = {
    "keyword": _TEXTS,
    "integer": st.integers(-(2**63) + 1, 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
}


@st.composite
def _attributes(draw: st.DrawFn) -> tuple[AttributeType, list[Any], bool]:
    """Draw the type, the values and whether rows may have several of them."""
    kind: AttributeType = draw(st.sampled_from(sorted(_SCALARS)))
    multi = draw(st.booleans())
    item = st.lists(_SCALARS[kind], max_size=4) if multi else st.none() | _SCALARS[kind]
    return kind, draw(st.lists(item, min_size=1, max_size=20)), multi


@given(_attributes())
def test_values_come_back(case: tuple[AttributeType, list[Any], bool]) -> None:
    kind, values, multi = case
    ((attribute, column),) = columns_of({"a": values}, len(values), {"a": kind}).items()
    assert attribute == Attribute("a", kind, multi)
    expected = [tuple(value) for value in values] if multi else values
    assert list(row_values(attribute, column)) == expected


@given(_attributes(), st.integers(0, 20), st.integers(0, 20), st.randoms(use_true_random=False))
def test_cuts_and_masks_keep_rows(
    case: tuple[AttributeType, list[Any], bool], start: int, stop: int, random: Random
) -> None:
    kind, values, multi = case
    start, stop = sorted((min(start, len(values)), min(stop, len(values))))
    ((attribute, column),) = columns_of({"a": values}, len(values), {"a": kind}).items()
    rows = row_values(attribute, column)
    assert row_values(attribute, column.cut(start, stop, multi=multi)) == rows[start:stop]
    mask = np.array([random.random() < 0.5 for _ in values])
    rest = tuple(row for row, keep in zip(rows, mask, strict=True) if keep)
    assert row_values(attribute, column.take(mask, multi=multi)) == rest


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["x", None, "y"], "keyword", ["x", None, "y"]),
        (np.array(["x", "y"]), "keyword", ["x", "y"]),
        ([1, 2.5, None], "float", [1.0, 2.5, None]),
        ([1, None], "integer", [1, None]),
        ([True, None], "bool", [True, None]),
        (np.array([1, 2], np.uint8), "integer", [1, 2]),
        (np.array([0.5, np.nan], np.float32), "float", [0.5, None]),
        (np.array([True, False]), "bool", [True, False]),
        (np.array(["1970-01-01", "NaT"], "datetime64[s]"), "integer", [0, None]),
        ([date(1970, 1, 2)], "integer", [86_400_000_000]),
        ([datetime(1970, 1, 1, 1, tzinfo=UTC)], "integer", [3_600_000_000]),
        ([datetime(1970, 1, 1, 1)], "integer", [3_600_000_000]),  # UTC
        ([datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))], "integer", [0]),
        ([np.datetime64("1970-01-01T00:00:01")], "integer", [1_000_000]),
    ],
)
def test_types_are_found_from_values(values: Sized, kind: str, expected: list[Any]) -> None:
    ((attribute, column),) = columns_of({"a": values}, len(values)).items()
    assert attribute == Attribute("a", kind)  # type: ignore[arg-type]
    assert list(row_values(attribute, column)) == expected


class Colour(StrEnum):
    """An enumeration of texts."""

    RED = "red"


class Shade(str, Enum):  # noqa: UP042  # users have such enumerations
    """An enumeration of texts of the older kind."""

    DARK = "dark"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([Colour.RED, Shade.DARK], ["red", "dark"]),
        (np.array(["x", np.nan, None], object), ["x", None, None]),
        ([1, float("nan")], [1.0, None]),
        ([np.datetime64("NaT"), np.datetime64("1970-01-01T00:00:01")], [None, 1_000_000]),
        (np.array(["1970-01-01T00:00:01", "NaT"], "M8[ns]"), [1_000_000, None]),
        (np.array([["1970-01-01T00:00:01"]], "M8[ns]"), [(1_000_000,)]),
        ([np.array(["1970-01-01T00:00:01"], "M8[ns]")], [(1_000_000,)]),
        (deque(["x", "y"]), ["x", "y"]),
        (range(3), [0, 1, 2]),
    ],
)
def test_unusual_values(values: Any, expected: list[Any]) -> None:  # noqa: ANN401  # any container
    ((attribute, column),) = columns_of({"a": values}, len(values)).items()
    assert list(row_values(attribute, column)) == expected


def test_columns_of_other_libraries_are_taken() -> None:
    class Series:
        """A column of pandas, polars or pyarrow."""

        def to_numpy(self) -> Any:  # noqa: ANN401  # an array
            return np.array(["x", "y"], object)

    ((attribute, column),) = columns_of({"a": Series()}, 2).items()
    assert row_values(attribute, column) == ("x", "y")


def test_lists_give_several_values() -> None:
    values = [["x", "y"], None, "z", {"b", "a"}, ()]
    ((attribute, column),) = columns_of({"a": values}, 5).items()
    assert attribute == Attribute("a", "keyword", multi=True)
    assert row_values(attribute, column) == (("x", "y"), (), ("z",), ("a", "b"), ())


def test_a_type_may_be_named() -> None:
    columns = columns_of(
        {"a": [None, None], "b": [1, 2], "c": np.array([1, 2])},
        2,
        {"a": "bool", "b": "float", "c": "float"},
    )
    assert [attribute.type for attribute in columns] == ["bool", "float", "float"]


@pytest.mark.parametrize(
    ("values", "types", "field", "words"),
    [
        ([[1, "x"]], {}, "attributes.a", "one type, got 1 in row 0 and 'x' in row 0"),
        (["x", 1], {}, "attributes.a", "one type, got 'x' in row 0 and 1 in row 1"),
        ([[], ["x"], [], [1]], {}, "attributes.a", "got 'x' in row 1 and 1 in row 3"),
        ([1], {"a": "keyword"}, "attributes.a", "must be texts, got 1 in row 0"),
        ([0.5], {"a": "integer"}, "attributes.a", "must be integers, got 0.5 in row 0"),
        ([1.0, "5,0"], {"a": "float"}, "attributes.a", "must be numbers, got '5,0' in row 1"),
        (np.array([0.5]), {"a": "integer"}, "attributes.a", "got an array of float64"),
        ([None], {}, "attributes.a", "attribute_types must give its type"),
        ([1, 2], {}, "attributes.a", "one value per row, 1, got 2"),
        ("x", {}, "attributes.a", "must be a list or an array, got str"),
        (5, {}, "attributes.a", "must be a list or an array, got int"),
        ([b"x"], {}, "attributes.a", "got bytes"),
        ([[1], [1, None]], {}, "attributes.a", "no None among the values of a row, as row 1 has"),
        ([float("inf")], {}, "attributes.a", "finite"),
        (np.array([np.inf]), {}, "attributes.a", "finite"),
        ([[float("nan")]], {}, "attributes.a", "no None among the values"),
        ([2**63], {}, "attributes.a", "64 bits"),
        ([10**400, 0.5], {}, "attributes.a", "64 bits"),
        ([[np.array([1, 2])]], {}, "attributes.a", "got ndarray in row 0"),
        (np.array(5), {}, "attributes.a", "must be a list or an array"),
        ({"p", "q"}, {}, "attributes.a", "must be a list or an array, got set"),
        ({0: "A"}, {}, "attributes.a", "must be a list or an array, got dict"),
        (np.array([1], "m8[us]"), {}, "attributes.a", "not differences of times"),
        (np.array(["400000"], "M8[s]"), {}, "attributes.a", "times between the years"),
        ([np.datetime64("400000-01-01")], {}, "attributes.a", "times between the years"),
        ([1], {"a": ["integer"]}, "attribute_types", "must be of keyword"),
        (np.array([2**63], np.uint64), {}, "attributes.a", "64 bits"),
        (["\ud800"], {}, "attributes.a", "valid Unicode"),
        (["x" * 1025], {}, "attributes.a", "at most 1024 bytes per keyword, got 1025"),
        ([[0] * 1001], {}, "attributes.a", "at most 1000 values per row, got 1001"),
        ([1], {"a": "text"}, "attribute_types", "must be of keyword"),
        ([1], {"b": "keyword"}, "attribute_types", "not in attributes"),
    ],
)
def test_wrong_values_are_refused(
    values: object, types: dict[str, Any], field: str, words: str
) -> None:
    has_rows = isinstance(values, list) or (isinstance(values, np.ndarray) and values.ndim > 0)
    rows = 1 if "per row, 1" in words or not has_rows else len(cast("Sized", values))
    with pytest.raises(InvalidArgumentError, match=words) as error_info:
        columns_of({"a": values}, rows, types)
    assert error_info.value.field == field


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "x" * 64, 5])
def test_wrong_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must have names") as error_info:
        columns_of({name: [1]}, 1)
    assert error_info.value.field == "attributes"


def test_rows_instead_of_columns_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="values of all rows by name") as error_info:
        columns_of([{"price": 1}], 1)  # type: ignore[arg-type]
    assert error_info.value.field == "attributes"


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'a' twice"):
        check_attributes([Attribute("a", "bool"), Attribute("a", "float")])
    with pytest.raises(InvalidArgumentError, match="no type 'text'"):
        check_attributes([Attribute("a", "text")])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="at most 64, got 65"):
        check_attributes([Attribute(f"a{number}", "bool") for number in range(65)])


@pytest.mark.parametrize(
    ("attribute", "values", "ends", "rows", "words"),
    [
        (Attribute("a", "keyword"), [2], [], 1, "from -1 to 1"),
        (Attribute("a", "keyword"), [-2], [], 1, "from -1 to 1"),
        (Attribute("a", "keyword", multi=True), [-1], [1], 1, "from 0 to 1"),
        (Attribute("a", "bool"), [2], [], 1, "from -1 to 1"),
        (Attribute("a", "bool"), [0], [1], 1, "only if it is declared as multi"),
        (Attribute("a", "bool", multi=True), [0, 1], [2, 1], 2, "must have ends that rise"),
        (Attribute("a", "bool", multi=True), [0, 1], [1, 1], 2, "must have ends that rise"),
        (Attribute("a", "bool", multi=True), [0, 1], [2], 2, "one value per row, 2, got 1"),
        (Attribute("a", "float"), [0.5], [], 2, "one value per row, 2, got 1"),
    ],
)
def test_columns_from_elsewhere_are_checked(
    attribute: Attribute, values: list[float], ends: list[int], rows: int, words: str
) -> None:
    texts = ("x", "y") if attribute.type == "keyword" else ()
    column = Column(np.array(values), np.array(ends, np.int64), texts)
    with pytest.raises(InvalidArgumentError, match=words):
        check_column(attribute, column, rows)
