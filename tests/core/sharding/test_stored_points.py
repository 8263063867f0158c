"""Points are read from shards as from one index: by id, by filter, and page by page."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import sparse as sparse_arrays

from divgrpc.engine import Engine
from divgrpc.errors import DivgrpcError, InvalidArgumentError
from divgrpc.index import Index
from divgrpc.sharding import layouts
from divgrpc.sharding.messages import Layout, join
from divgrpc.types.filters import Condition, Field
from divgrpc.types.records import IdArray, Parts, Records
from support.data.divided_indexes import DIVISIONS, DividedIndex, record_differences

_ROWS = 300
_PARTS = [
    Parts(),
    Parts(vectors=True, attributes=False, payload=False),
    Parts(attributes=False, payload=False, labels=True),
    Parts(vectors=True, labels=True),
]
_KINDS = [(texts, sparse) for texts in (False, True) for sparse in (False, True)]
_FILTERS: list[Condition | None] = [
    None, Field("brand") == "brand 3", Field("tags").exists() & ~Field("new"), Field("price") > 2,
]  # fmt: skip
each_kind = pytest.mark.parametrize(("texts", "sparse"), _KINDS)


@cache
def an_index(*, texts: bool, sparse: bool) -> Index:
    rng = np.random.default_rng(1)
    vectors: Any = rng.standard_normal((_ROWS, 12)).astype(np.float32)
    if sparse:
        vectors = sparse_arrays.csr_array(np.where(vectors > 0.3, vectors, 0) + np.arange(12) // 11)
    numbers = rng.permutation(10**6)[:_ROWS]
    return Index.build(
        vectors,
        ids=[f"item {number:x}" for number in numbers] if texts else numbers,
        attributes={
            "brand": [f"brand {number}" if number < 9 else None for number in range(10)] * 30,
            "price": rng.random(_ROWS),
            "tags": [["red", "blue"][: number % 3] for number in range(_ROWS)],
            "new": [number % 5 == 0 for number in range(_ROWS)],
        },
        payloads=[b"x" * (number % 7) if number % 4 else None for number in range(_ROWS)],
        labels=rng.random((_ROWS, 6)) < 0.3,
        categories=rng.integers(-1, 4, _ROWS),
        label_model="leml",
        rank=3,
    )


@cache
def pieces(*, texts: bool, sparse: bool, shards: int, division: str) -> DividedIndex:
    return DividedIndex(an_index(texts=texts, sparse=sparse).engine, shards, division)


def pages(count: int, condition: Condition | None, parts: Parts) -> Callable[[Engine], Any]:
    words = {f"with_{name}": flag for name, flag in parts._asdict().items()}

    def scroll(engine: Engine) -> list[Records]:
        return list(Index(engine).scroll(condition, page_size=count, **words))

    return scroll


def get(ids: Any, parts: Parts) -> Callable[[Engine], Records]:  # noqa: ANN401  # ids of any kind
    def find(engine: Engine) -> Records:
        rows = engine.find(ids)
        records = engine.records(rows, parts)
        # Servers refuse answers by this size.
        sizes = engine.bytes_of_rows(rows, parts)
        return records if sizes.sum() < 10**6 else Records(rows)

    return find


def check(index: Index, division: DividedIndex, call: Callable[[Engine], Records]) -> Records:
    whole, answer = call(index.engine), division.answer(call)
    assert record_differences(whole, answer) == []
    return whole


@each_kind
def test_points_by_id(texts: bool, sparse: bool) -> None:
    index = an_index(texts=texts, sparse=sparse)
    ids: IdArray = next(index.scroll()).ids
    absent: list[Any] = ["nothing", "item"] if texts else [7, 2**62]
    lists = [ids.tolist(), ids[:3].tolist() * 2, [*absent, ids[9]], absent, []]
    for shards, division in ((1, "hash"), (4, "hash"), (7, "on two")):
        divided = pieces(texts=texts, sparse=sparse, shards=shards, division=division)
        for parts in _PARTS:
            for some in lists:
                check(index, divided, get(some, parts))


@each_kind
def test_sizes_of_points(texts: bool, sparse: bool) -> None:
    index = an_index(texts=texts, sparse=sparse)
    divided = pieces(texts=texts, sparse=sparse, shards=4, division="hash")
    ids = next(index.scroll()).ids[::7]
    for parts in _PARTS:

        def sizes(engine: Engine, parts: Parts = parts) -> list[int]:
            sizes: list[int] = engine.bytes_of_rows(engine.find(ids), parts).tolist()
            return sizes

        assert divided.answer(sizes) == sizes(index.engine)


@each_kind
@pytest.mark.parametrize("number", range(len(_FILTERS)))
def test_pages_and_counts(texts: bool, sparse: bool, number: int) -> None:
    index, condition = an_index(texts=texts, sparse=sparse), _FILTERS[number]
    for shards, division in ((1, "hash"), (3, "hash"), (7, "on two"), (4, "skewed")):
        divided = pieces(texts=texts, sparse=sparse, shards=shards, division=division)
        assert divided.answer(lambda engine: Index(engine).count(condition)) == index.count(
            condition
        )
        for size, parts in ((40, _PARTS[number % 4]), (1_000, _PARTS[3])):
            whole = pages(size, condition, parts)(index.engine)
            answer = divided.answer(pages(size, condition, parts))
            assert [len(page) for page in answer] == [len(page) for page in whole]
            for a, b in zip(answer, whole, strict=True):
                assert record_differences(a, b) == []


def test_keys_go_on_after_any_key() -> None:
    """The token of a page is the key of its last point."""
    index = an_index(texts=True, sparse=False)
    divided = pieces(texts=True, sparse=False, shards=4, division="hash")
    keys = index.engine.following(-1, _ROWS)[1]
    for key, _ in pairwise([-1, *keys[::50].tolist(), 2**62]):
        for count in (0, 1, 30):
            whole = index.engine.following(key, count)[1]
            answer = divided.answer(lambda engine: engine.following(key, count)[1])  # noqa: B023  # called at once
            assert answer.tolist() == whole.tolist()


@pytest.mark.parametrize("texts", [False, True])
def test_ids_of_another_kind_are_refused(texts: bool) -> None:
    index = an_index(texts=texts, sparse=False)
    divided = pieces(texts=texts, sparse=False, shards=2, division="hash")
    kinds: list[Any] = [[1], ["a"], [1.5], [2**63], [""], ["a" * 300], list(range(10_001))]
    for ids in kinds:

        def outcome(answer: Callable[[Callable[[Engine], Any]], Any], ids: Any = ids) -> Any:  # noqa: ANN401  # any result
            try:
                return answer(get(ids, Parts())).ids.tolist()
            except DivgrpcError as error:
                return str(error)

        assert outcome(divided.answer) == outcome(lambda call: call(index.engine))


@pytest.mark.parametrize("division", sorted(DIVISIONS))
def test_vectors_by_id(division: str) -> None:
    for sparse in (False, True):
        index = an_index(texts=False, sparse=sparse)
        divided = pieces(texts=False, sparse=sparse, shards=4, division=division)
        ids = next(index.scroll()).ids[:20].tolist()
        whole = index.engine.vectors_of(ids)
        answer = divided.answer(lambda engine: engine.vectors_of(ids))  # noqa: B023  # called at once
        assert repr(answer) == repr(whole)


@pytest.mark.parametrize(
    ("name", "layout", "columns", "sentence"),
    [
        ("get", layouts.GET_REQUEST, {"parts": [1]}, "must have 4 parts, got 1"),
        ("get", layouts.GET_REQUEST, {"ends": [3, 2], "texts": [65] * 2}, "impossible ends"),
        ("get", layouts.GET_REQUEST, {"ends": [1, 3], "texts": [65] * 2}, "impossible ends"),
        ("get", layouts.GET_REQUEST, {"ends": [-1, 2], "texts": [65] * 2}, "impossible ends"),
        ("get", layouts.GET_REQUEST, {"ends": [1], "texts": [255]}, "not UTF-8"),
        ("scroll", layouts.SCROLL_REQUEST, {"after": [], "count": [1]}, "must have a key"),
        ("scroll", layouts.SCROLL_REQUEST, {"after": [-2], "count": [1]}, "must have a key"),
        ("scroll", layouts.SCROLL_REQUEST, {"after": [0], "count": [-1]}, "must have a key"),
    ],
)
def test_malformed_requests_are_refused(
    name: str, layout: Layout, columns: dict[str, list[int]], sentence: str
) -> None:
    shard = pieces(texts=True, sparse=False, shards=2, division="hash").shards[0]
    dtypes = {column.name: column.dtype for column in layout.columns}
    whole = {"parts": [0] * 4} if name == "get" else {}
    arrays = {key: np.array(value, dtypes[key]) for key, value in (whole | columns).items()}
    with pytest.raises(InvalidArgumentError, match=sentence):
        shard.ask(name, join([layout.pack(arrays)]))
