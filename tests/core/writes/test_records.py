"""Records of the log are unpacked as they were packed, and blocks of rows are joined."""

import itertools
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from divgrpc.columns.values import columns_of
from divgrpc.types.records import Attribute
from divgrpc.vectors import SparseRows
from divgrpc.writes.records import Record, Rows, join_rows, pack, unpack

DIMS, CODE_BYTES = 5, 8
VALUES: dict[str, list[Any]] = {
    "brand": ["b", None, "a", "b", "ä"],
    "price": [1.5, None, -0.0, 1e300, 2.0],
    "count": [None, -(2**62), 3, 4, 5],
    "sold": [True, False, None, True, True],
    "tags": [["x", "y"], [], ["y"], ["z", "x", "z"], []],
    "sizes": [[1], [2, 3], [], [], [4]],
}
COUNT = 5


def some_rows(
    start: int = 0, stop: int = COUNT, *, texts: bool = True, payloads: bool = True
) -> Rows:
    """Return rows `start` to `stop` - 1 of a fixed block."""
    rng = np.random.default_rng(3)
    values = {name: column[start:stop] for name, column in VALUES.items()}
    types: Any = {a.name: a.type for a in ATTRIBUTES}
    columns = columns_of(values, stop - start, types)
    columns = {
        a: column if a in columns else column._replace(ends=np.zeros(stop - start, np.int64))
        for a, column in zip(ATTRIBUTES, columns.values(), strict=True)
    }
    texts_of = (b"one", "zwölf".encode(), b"x" * 256, b"4", b"five")
    payloads_of = (b"", b"{}", bytes(9), b"", b"last")
    part = slice(start, stop)
    return Rows(
        keys=rng.integers(0, 2**63 - 1, COUNT)[part],
        texts=texts_of[start:stop] if texts else (),
        vectors=rng.standard_normal((COUNT, DIMS)).astype(np.float32)[part],
        cells=rng.integers(-1, 9, COUNT).astype(np.int32)[part],
        terms=rng.integers(0, 2**32, COUNT).astype(np.uint32)[part],
        codes=rng.integers(0, 256, (COUNT, CODE_BYTES)).astype(np.uint8)[part],
        columns=columns,
        payloads=payloads_of[start:stop] if payloads else (),
    )


ATTRIBUTES = tuple(columns_of(VALUES, COUNT))


def values_of(rows: Rows) -> dict[str, list[Any]]:
    """Return the values of each attribute; numbers of words become words."""
    result = {}
    for attribute, column in rows.columns.items():
        numbers: list[Any] = column.values.tolist()
        if attribute.type == "keyword":
            numbers = [column.words[number] if number >= 0 else None for number in numbers]
        result[attribute.name] = [repr(numbers), column.ends.tolist()]
    return result


def check_equal(rows: Rows, expected: Rows) -> None:
    for field in fields(Rows):
        value, other = getattr(rows, field.name), getattr(expected, field.name)
        if isinstance(other, np.ndarray):
            assert value.dtype == other.dtype, field.name
            np.testing.assert_array_equal(value, other, strict=True)
        elif field.name != "columns":
            assert value == other, field.name
    assert list(rows.columns) == list(expected.columns)
    assert values_of(rows) == values_of(expected)


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize("payloads", [True, False])
@pytest.mark.parametrize("stop", [0, 1, COUNT])
def test_rows_are_unpacked_as_they_were_packed(stop: int, texts: bool, payloads: bool) -> None:
    record = Record(
        some_rows(0, stop, texts=texts, payloads=payloads), np.array([4, 2**62]), "ref é", "5a"
    )
    body = pack(record)
    assert len(body) % 8 == 0
    result = unpack(body, ATTRIBUTES)
    assert (result.write_id, result.digest) == ("ref é", "5a")
    np.testing.assert_array_equal(result.removed, record.removed, strict=True)
    assert result.rows is not None
    assert record.rows is not None
    check_equal(result.rows, record.rows)
    assert pack(result) == body


@pytest.mark.parametrize("removed", [[], [0], [2**63 - 1, 3, 8]])
def test_a_deletion_has_keys_alone(removed: list[int]) -> None:
    result = unpack(pack(Record(None, np.array(removed, np.int64))), ATTRIBUTES)
    assert (result.rows, result.write_id) == (None, "")
    assert result.removed.tolist() == removed


@pytest.mark.parametrize("cuts", [[0, 5], [0, 2, 5], [0, 0, 1, 3, 5]])
def test_sparse_rows_are_unpacked_and_joined(cuts: list[int]) -> None:
    """The second row has no values."""
    indptr, indices = np.array([0, 2, 2, 3, 5, 9]), np.array([1, 7, 0, 2, 3, 0, 4, 5, 8])
    values = np.arange(9, dtype=np.float32) - 4
    whole = SparseRows(indptr, indices.astype(np.int32), values, 2**22)
    parts = []
    for start, stop in itertools.pairwise(cuts):
        rows = replace(some_rows(start, stop), vectors=whole[start:stop])
        body = pack(Record(rows, np.empty(0, np.int64)))
        result = unpack(body, ATTRIBUTES)
        assert pack(result) == body
        assert result.rows is not None
        parts.append(result.rows)
    joined = join_rows(parts, ATTRIBUTES).vectors
    assert isinstance(joined, SparseRows)
    assert joined.dims == whole.dims
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name), strict=True)


def test_rows_without_attributes() -> None:
    rows = some_rows()
    plain = Rows(rows.keys, (), rows.vectors, rows.cells, rows.terms, rows.codes)
    result = unpack(pack(Record(plain, np.empty(0, np.int64))), ())
    assert result.rows is not None
    check_equal(result.rows, plain)


def test_other_attributes_are_an_error() -> None:
    body = pack(Record(some_rows(), np.empty(0, np.int64)))
    with pytest.raises(ValueError, match="zip"):
        unpack(body, ATTRIBUTES[:-1])


@pytest.mark.parametrize("cuts", [[0, 5], [0, 2, 5], [0, 1, 2, 3, 4, 5], [0, 0, 3, 3, 5]])
def test_blocks_are_joined_to_the_whole(cuts: list[int]) -> None:
    parts = [some_rows(a, b) for a, b in itertools.pairwise(cuts)]
    check_equal(join_rows(parts, ATTRIBUTES), some_rows())


def test_joined_blocks_may_lack_payloads() -> None:
    parts = [some_rows(0, 2, payloads=False), some_rows(2, 5)]
    assert join_rows(parts, ATTRIBUTES).payloads == (b"", b"", *some_rows().payloads[2:])
    parts = [some_rows(0, 2, payloads=False), some_rows(2, 5, payloads=False)]
    assert join_rows(parts, ATTRIBUTES).payloads == ()


def test_each_attribute_is_declared_with_its_type() -> None:
    assert Attribute("tags", "keyword", multi=True) in ATTRIBUTES
    assert Attribute("sizes", "integer", multi=True) in ATTRIBUTES
    assert len(ATTRIBUTES) == len(VALUES)
