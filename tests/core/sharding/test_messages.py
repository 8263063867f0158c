"""Columns and filters survive packing, and malformed messages are refused."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from divgrpc.columns.filters import as_filter
from divgrpc.errors import InvalidArgumentError
from divgrpc.sharding import conditions
from divgrpc.sharding.messages import Column, Layout, divide, join
from divgrpc.types.filters import Condition, Exists, Filter, HasId, Match, Others, Range

_LAYOUT = Layout(
    7,
    (
        Column.of("numbers", np.int64),
        Column.of("vectors", np.float32, 2),
        Column.of("text", np.uint8),
    ),
)


def arrays(dtype: npt.DTypeLike, dimensions: int) -> st.SearchStrategy[Any]:
    shapes = hnp.array_shapes(min_dims=dimensions, max_dims=dimensions, min_side=0, max_side=5)
    return hnp.arrays(dtype, shapes)


columns = st.fixed_dictionaries(
    {"numbers": arrays(np.int64, 1), "vectors": arrays(np.float32, 2), "text": arrays(np.uint8, 1)}
)


@given(columns)
def test_columns_survive(message_columns: dict[str, Any]) -> None:
    received = _LAYOUT.unpack(_LAYOUT.pack(message_columns))
    assert sorted(received) == sorted(message_columns)
    for name, array in message_columns.items():
        assert received[name].tobytes() == array.tobytes()
        # A matrix without numbers loses its shape.
        assert received[name].shape == (array.shape if array.size else (0,) * array.ndim)
        assert not received[name].flags.writeable


def test_missing_columns_are_empty() -> None:
    received = _LAYOUT.unpack(_LAYOUT.pack({"text": np.arange(3, dtype=np.uint8)}))
    assert received["vectors"].shape == (0, 0)
    assert len(received["numbers"]) == 0


@given(columns, st.data())
def test_a_cut_message_is_refused(message_columns: dict[str, Any], data: st.DataObject) -> None:
    message = _LAYOUT.pack(message_columns)
    size = data.draw(st.integers(0, len(message) - 1))
    for other in (message[:size], message + b"\0"):
        with pytest.raises(InvalidArgumentError, match="message"):
            _LAYOUT.unpack(other)


@given(columns, st.data())
def test_changed_bytes_are_refused_or_read(
    message_columns: dict[str, Any], data: st.DataObject
) -> None:
    message = bytearray(_LAYOUT.pack(message_columns))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = _LAYOUT.unpack(bytes(message))
    except InvalidArgumentError:
        pass
    else:
        assert sum(array.nbytes for array in received.values()) <= len(message)


def test_another_layout_or_version_is_refused() -> None:
    message = _LAYOUT.pack({})
    with pytest.raises(InvalidArgumentError, match="layout 8, got 7"):
        Layout(8, _LAYOUT.columns).unpack(message)
    with pytest.raises(InvalidArgumentError, match="version 1, got 2"):
        _LAYOUT.unpack(b"\2" + message[1:])


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_joined_messages_are_divided(messages: list[bytes]) -> None:
    assert divide(join(messages)) == messages


def test_impossible_ends_are_refused() -> None:
    message = bytearray(join([b"ab", b"c"]))
    place = bytes(message).index((2).to_bytes(8, "little") + (3).to_bytes(8, "little"))
    message[place + 16 - 8] = 1
    with pytest.raises(InvalidArgumentError, match="impossible ends"):
        divide(bytes(message))


scalars = st.one_of(
    st.text(max_size=5),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
numbers = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
leaves: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Match, st.text(max_size=5), st.lists(scalars, min_size=1, max_size=3).map(tuple)),
    st.builds(Others, st.text(max_size=5), st.lists(scalars, max_size=3).map(tuple)),
    st.builds(Range, st.text(max_size=5), numbers, numbers, numbers, numbers),
    st.builds(Exists, st.text(max_size=5)),
    st.builds(HasId, st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple)),
    st.builds(HasId, st.lists(st.text(max_size=3), max_size=3).map(tuple)),
)


def filters(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(parts, max_size=3).map(tuple)
    return st.builds(Filter, several, several, several)


@given(st.lists(filters(st.recursive(leaves, filters, max_leaves=6)), max_size=3))
def test_filters_survive(parts: list[Condition]) -> None:
    several = [part for part in parts if isinstance(part, Filter)]
    try:
        checked = [part for part in map(as_filter, several) if part is not None]
    except InvalidArgumentError:
        with pytest.raises(InvalidArgumentError):
            conditions.decode(conditions.encode(several))
        return
    # True equals 1, so the texts are compared.
    assert repr(conditions.decode(conditions.encode(several))) == repr(checked)


def test_as_many_ids_as_a_query_excludes_survive() -> None:
    condition = as_filter(Exists("a"))
    assert condition is not None
    for ids in (list(range(100_000)), ["a", "b"]):
        without = Filter(must_not=(HasId(tuple(ids)),))
        for several in ([], [condition], [condition, condition]):
            assert conditions.decode(conditions.encode(several, ids)) == [*several, without]
    with pytest.raises(InvalidArgumentError, match="exclude_ids"):
        conditions.decode(conditions.encode([], list(range(100_001))))


@pytest.mark.parametrize(
    "text",
    [
        b"{", b"[]", b"3", b'[["match", "a", [1]]]', b'[[["filter", [], []]], []]', b"\xff",
        b"[1, []]", b"[null, []]", b'[[], [1, "a"]]', b"[[3], []]",
        b'[[["filter", [["match", "a"]], [], []]], []]',
        b'[[["filter", [["run", "a"]], [], []]], []]',
        b'[[["range", "a", [1]]], []]', b'[[["match", 3, [1]]], []]',
        b'[[["match", "a", [[]]]], []]', b'[[["ids", [1.5]]], []]', b"[[], 3]",
        b"[[], [1.5]]", b"[[], [true]]",
    ],
)  # fmt: skip
def test_other_bytes_are_no_filter(text: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"filter|exclude_ids"):
        conditions.decode(text)
