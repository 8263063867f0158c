"""Text ids get integer keys, and rows are point_ids by ids."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.columns import ids as module
from divgrpc.columns.ids import ID_ORDER, Ids, as_ids, ascends, encode_texts, is_texts, keys_of
from divgrpc.columns.texts import Texts, TextWriter
from divgrpc.columns.writer import write_order
from divgrpc.errors import InvalidArgumentError
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import IntArray

_TEXTS = st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=30, unique=True)


def text_arrays(texts: list[bytes], name: str = "id_texts") -> dict[str, Any]:
    """Return the arrays that store `texts`."""
    store = MemoryStore()
    store.begin(f"{name}.bytes", np.uint8, ())
    store.begin(f"{name}.ends", np.int64, ())
    writer = TextWriter(store.append, name)
    writer.append(texts[:1])
    writer.append(texts[1:])
    return {f"{name}.{part}": store.read(f"{name}.{part}") for part in ("bytes", "ends")}


@given(st.lists(st.binary(max_size=5)))
def test_texts_come_back(texts: list[bytes]) -> None:
    stored = Texts(text_arrays(texts), "id_texts")
    assert stored.take(np.arange(len(texts))) == texts
    assert len(stored) == len(texts)


@pytest.mark.parametrize("bits", [63, 3])
@given(_TEXTS, st.randoms(use_true_random=False))
def test_keys_depend_on_the_set_of_texts_alone(
    bits: int, texts: list[bytes], random: Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # With three bits, most texts have the hash of another text.
        patch.setattr(module, "_KEY_MASK", 2**bits - 1 if bits == 63 else 63)
        hash_of = module.hash_of
        patch.setattr(module, "hash_of", lambda text: hash_of(text) & (2**bits - 1))
        keys = dict(zip(texts, keys_of(texts).tolist(), strict=True))
        assert len(set(keys.values())) == len(texts)
        assert min(keys.values()) >= 0
        mixed = random.sample(texts, len(texts))
        assert keys == dict(zip(mixed, keys_of(mixed).tolist(), strict=True))
        arrays = text_arrays([text.hex().encode() for text in texts])
        names = [text.hex() for text in texts]
        arrays["ids"] = keys_of([name.encode() for name in names])
        point_ids = Ids(arrays, len(texts))
        assert point_ids.rows_of([*names, "absent"]).tolist() == [*range(len(texts)), -1]
        assert point_ids.of_rows(np.arange(len(texts))).tolist() == names


def test_a_text_that_occurs_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'b' occurs twice"):
        keys_of([b"a", b"b", b"c", b"b"])


@given(st.lists(st.integers(0, 50), unique=True, min_size=1), st.booleans())
def test_integer_ids_are_found(ids: list[int], has_order: bool) -> None:
    arrays = {"ids": np.array(ids)}
    store = MemoryStore()
    write_order(store, arrays["ids"])
    if has_order and not ascends(arrays["ids"]):
        arrays[ID_ORDER] = store._arrays[ID_ORDER]
    point_ids = Ids(arrays, len(ids))
    expected = [ids.index(number) if number in ids else -1 for number in range(-1, 52)]
    assert point_ids.rows_of(np.arange(-1, 52)).tolist() == expected
    assert point_ids.kind == "int64"
    assert _pages(point_ids, 3) == sorted(range(len(ids)), key=lambda row: ids[row])


def test_row_numbers_are_the_ids_without_stored_ids() -> None:
    point_ids = Ids({}, 5)
    assert point_ids.rows_of([4, 5, 0, -1]).tolist() == [4, -1, 0, -1]
    assert point_ids.of_rows(np.array([3, 1])).tolist() == [3, 1]
    assert _pages(point_ids, 2) == [0, 1, 2, 3, 4]


def _pages(ids: Ids, count: int) -> list[int]:
    """Return all rows, read in pages of `count`."""
    rows: list[int] = []
    key = -1
    while len(page := ids.after(key, count)[0]):
        key = int(ids.after(key, count)[1][-1])
        rows += page.tolist()
    return rows


def test_an_id_that_occurs_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="7 occurs twice"):
        write_order(MemoryStore(), np.array([7, 3, 7]))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a", 5], "all texts or all integers, got 5"),
        ([""], "1 to 256 bytes each as UTF-8, got 0"),
        (["x" * 257], "1 to 256 bytes each as UTF-8, got 257"),
        (["\ud800"], "valid Unicode"),
    ],
)
def test_wrong_texts_are_refused(ids: list[Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as error_info:
        encode_texts(ids)
    assert error_info.value.field == "ids"


def test_ids_of_another_kind_are_refused() -> None:
    arrays = text_arrays([b"a", b"b"]) | {"ids": keys_of([b"a", b"b"])}
    with pytest.raises(InvalidArgumentError, match="must be texts"):
        Ids(arrays, 2).rows_of([1])
    for ids in (["a"], [0.5], [[1]], [2**70]):
        with pytest.raises(InvalidArgumentError, match="integers"):
            Ids({}, 2).rows_of(ids)  # type: ignore[arg-type]
    assert Ids({}, 2).rows_of([]).tolist() == Ids(arrays, 2).rows_of([]).tolist() == []


def test_one_id_or_several() -> None:
    ids: list[Any] = [as_ids(5), as_ids(np.int64(5)), as_ids("a"), as_ids([1, 2])]
    assert ids == [[5], [5], ["a"], [1, 2]]
    for wrong_ids in (None, b"a", {1}, (i for i in range(2))):
        with pytest.raises(InvalidArgumentError, match="an id or a list of ids") as error_info:
            as_ids(wrong_ids)
        assert error_info.value.field == "ids"


def test_kinds_of_ids() -> None:
    texts: list[Any] = [["a"], np.array(["a"]), np.array(["a"], object), ("a",)]
    not_texts: list[Any] = [[1], np.array([1]), np.array([1], object), [], None, range(3), 5]
    assert all(map(is_texts, texts))
    assert not any(map(is_texts, not_texts))


def test_ascending_ids_need_no_order() -> None:
    store = MemoryStore()
    ids: IntArray = np.array([1, 5, 9])
    write_order(store, ids)
    assert ID_ORDER not in store._arrays
