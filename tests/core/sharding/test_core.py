"""A shard refuses messages that do not fit it."""

import contextlib
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.columns.filters import as_filter
from divgrpc.errors import (
    DivgrpcError,
    InvalidArgumentError,
    LimitExceededError,
    UnsupportedError,
)
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding import conditions, core, layouts
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.cutting import cut
from divgrpc.sharding.messages import divide, join
from divgrpc.sharding.rounds import Round
from divgrpc.sharding.router import Request
from divgrpc.storage.generations import Generation
from divgrpc.types import HashFamily, Points
from divgrpc.types.filters import Condition, Field
from support.data.attributed_indexes import with_attributes
from support.data.divided_indexes import DividedIndex
from support.data.mixed_indexes import an_index, queries


def a_shard(family: HashFamily = "lsh_div", kind: Points = "dense") -> ShardCore:
    return DividedIndex(an_index(family, "cosine", kind).engine, 2).shards[0]


def request(**changes: Any) -> bytes:  # noqa: ANN401  # columns of any type
    numbers = np.zeros(layouts.REQUEST_NUMBERS, np.int64)
    numbers[layouts.HOW], numbers[layouts.ROWS], numbers[layouts.VECTORS] = layouts.SCAN, 5, 5
    columns: dict[str, Any] = {
        "numbers": numbers,
        "margins": np.ones(256, np.float32),
        "dense": np.ones(20, np.float32),
    }
    return join([layouts.FIND_REQUEST.pack(columns | changes)])


def test_a_request_is_answered() -> None:
    shard = a_shard()
    (reply,) = divide(shard.ask("find", request()))
    columns = layouts.FIND_REPLY.unpack(reply)
    assert columns["vectors"].shape == (5, 20)
    assert columns["numbers"].tolist() == [shard.rows, 5, 0]


def test_a_shard_that_is_closed_leaves_memory_at_once() -> None:
    """An idle worker collects no garbage, so the files of a removed copy would stay mapped."""
    shard = a_shard()
    shard.ask("find", request())
    reference = weakref.ref(shard)
    gc.disable()
    try:
        del shard
        assert reference() is None
    finally:
        gc.enable()


_CONDITIONS: list[Condition] = [
    Field("brand") == "brand 3",
    Field("brand").is_in(["brand 3", "brand 4"]),
    Field("new") == True,  # noqa: E712  # a condition, not a truth
    Field("price") < 0.05,
    Field("price") >= 0,
    ~(Field("tags") == "red"),
    Field("price") > 2,
]


@given(
    messages=st.lists(
        st.tuples(
            st.lists(st.sampled_from(range(len(_CONDITIONS))), max_size=3),
            st.lists(st.integers(0, 399), max_size=3),
            st.lists(st.integers(0, 399), max_size=2),
        ),
        min_size=1,
        max_size=12,
    ),
    family=st.sampled_from(["lsh_div", "cells"]),
    most=st.sampled_from([0, 2_000, 6_000, 64 << 20]),
)
def test_filters_that_are_kept_pass_the_same_points(
    messages: list[tuple[list[int], list[int], list[int]]], family: HashFamily, most: int
) -> None:
    """Whatever a shard was asked before, it replies as one that was asked nothing."""
    index = with_attributes(texts=False, family=family)
    (part, _) = cut(Generation(index.engine.manifest, index.engine.arrays), 2).parts
    ids = index.engine.arrays["ids"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "_FILTER_BYTES_MAX", most)
        shard = ShardCore(part)
        for numbers, rows, more_rows in messages:
            filters = [as_filter(_CONDITIONS[number]) for number in numbers]
            encoded = conditions.encode([f for f in filters if f is not None], ids[rows].tolist())
            columns = {
                "filter": np.frombuffer(encoded, np.uint8),
                "exclude": np.unique(ids[more_rows]),
                "attributes": np.zeros(1, np.int32),
            }
            count = join([layouts.COUNT_REQUEST.pack(columns)])
            patch.setattr(core, "_FEW_RATIO", 8)
            counts = shard.ask("count", count)
            columns |= {"after": np.array([-1]), "count": np.array([400])}
            del columns["attributes"]
            scroll = join([layouts.SCROLL_REQUEST.pack(columns)])
            # Cells are counted in the other way.
            patch.setattr(core, "_FEW_RATIO", 1 << 40)
            assert counts == ShardCore(part).ask("count", count)
            assert shard.ask("scroll", scroll) == ShardCore(part).ask("scroll", scroll)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"margins": np.ones(255, np.float32)}, "margin for each hyperplane"),
        ({"dense": np.ones(21, np.float32)}, "20 numbers, got 21"),
        ({"numbers": np.zeros(3, np.int64)}, "must have 9 numbers"),
        ({"numbers": np.full(layouts.REQUEST_NUMBERS, layouts.CELLS)}, "another search"),
        ({"numbers": np.full(layouts.REQUEST_NUMBERS, 77)}, "another search"),
        ({"numbers": np.full(layouts.REQUEST_NUMBERS, -1)}, "negative"),
        ({"dense": np.full(20, np.nan, np.float32)}, "dense that are not finite"),
        ({"attributes": np.array([layouts.TEXTS], np.int32)}, "asks for text ids"),
        ({"filter": np.frombuffer(b"{", np.uint8)}, "cannot be read"),
        ({"filter": np.frombuffer(b'[[["exists", "a"]], []]', np.uint8)}, "'a'"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        a_shard().ask("find", request(**changes))


def test_cells_must_exist() -> None:
    numbers = np.full(layouts.REQUEST_NUMBERS, 5)
    numbers[layouts.HOW] = layouts.CELLS
    shard = a_shard("cells")
    margins = np.ones(
        DividedIndex(an_index("cells", "cosine", "dense").engine, 1)
        .pieces.shared["hyperplanes"]
        .shape[1],
        np.float32,
    )
    for cells, sentence in (
        ([0, 10_000], "cell that does not exist"),
        ([-1, 0], "cell that does not exist"),
        ([0, 0], "a cell twice"),
        ([0, 1, 2], "distance for each cell"),
    ):
        columns = {"cells": np.array(cells, np.int32), "bases": np.zeros(2, np.float32)}
        message = request(numbers=numbers, margins=margins, **columns)
        with pytest.raises(InvalidArgumentError, match=sentence):
            shard.ask("find", message)


def measure_request(family: HashFamily = "lsh_div", **changes: Any) -> bytes:  # noqa: ANN401  # columns of any type
    """Return a request about two queries that a shard answers, with some columns changed."""
    how = layouts.CELLS_BY_CODE if family == "cells" else layouts.SCAN
    planes = an_index(family, "cosine", "dense").engine.arrays["hyperplanes"].shape[1]
    columns: dict[str, Any] = {
        "numbers": np.array([how, 0, 0, 5, 0]),
        "margins": np.ones((2, planes), np.float32),
    }
    if family == "cells":
        columns |= {"cells": np.array([1, 0, 1], np.int32), "ends": np.array([1, 3])}
        columns["bases"] = np.zeros(3, np.float32)
    return join([layouts.MEASURE_REQUEST.pack(columns | changes)])


@pytest.mark.parametrize("family", ["lsh_div", "cells"])
def test_hashed_points_have_ids_and_distances_by_code_alone(family: HashFamily) -> None:
    for shard in DividedIndex(an_index(family, "cosine", "dense").engine, 7, "on two").shards[:2]:
        (reply,) = divide(shard.ask("measure", measure_request(family)))
        columns = layouts.MEASURE_REPLY.unpack(reply)
        count = int(columns["ends"][-1])
        assert columns["ends"].shape == (2,)
        assert len(columns["ids"]) == len(columns["codes"]) == count
        assert (count > 0) == (shard.rows > 0)


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("lsh_div", {"margins": np.ones((2, 255), np.float32)}, "margin for each hyperplane"),
        ("lsh_div", {"margins": np.full((1, 256), np.inf, np.float32)}, "margins that are not"),
        ("lsh_div", {"margins": np.empty((0, 256), np.float32)}, "1 to 16 queries"),
        ("lsh_div", {"margins": np.ones((17, 256), np.float32)}, "1 to 16 queries"),
        ("lsh_div", {"numbers": np.zeros(4, np.int64)}, "must have 5 numbers"),
        ("lsh_div", {"numbers": np.array([layouts.SCAN, 0, 0, 0, 0])}, "asks for no point"),
        ("lsh_div", {"numbers": np.array([layouts.SCAN, -1, 0, 5, 0])}, "negative"),
        ("lsh_div", {"numbers": np.array([layouts.TABLES, 0, 9_999, 5, 0])}, "probes"),
        ("lsh_div", {"numbers": np.array([layouts.ALL, 0, 0, 5, 0])}, "another search than 0"),
        ("lsh_div", {"numbers": np.array([layouts.CELLS, 0, 0, 5, 0])}, "another search than 1"),
        ("lsh_div", {"ends": np.array([0, 0])}, "end of the cells"),
        ("lsh_div", {"cells": np.array([1], np.int32)}, "end of the cells"),
        ("cells", {"numbers": np.array([layouts.SCAN, 0, 0, 5, 0])}, "another search than 3"),
        ("cells", {"ends": np.array([1, 2])}, "end of the cells"),
        ("cells", {"ends": np.array([4, 3])}, "end of the cells"),
        ("cells", {"ends": np.array([-1, 3])}, "end of the cells"),
        ("cells", {"ends": np.array([3])}, "end of the cells"),
        # The difference of these overflows int64.
        ("cells", {"ends": np.array([2**63 - 1, -(2**63)])}, "end of the cells"),
        ("cells", {"bases": np.zeros(2, np.float32)}, "distance for each cell"),
        ("cells", {"bases": np.full(3, np.nan, np.float32)}, "bases that are not finite"),
        ("cells", {"cells": np.array([1, 0, 10_000], np.int32)}, "cell that does not exist"),
        ("cells", {"cells": np.array([1, -1, 0], np.int32)}, "cell that does not exist"),
        ("cells", {"cells": np.array([1, 0, 0], np.int32)}, "a cell twice"),
    ],
)
def test_a_request_to_measure_that_does_not_fit_is_refused(
    family: HashFamily, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        a_shard(family).ask("measure", measure_request(family, **changes))


# The differences of the last columns overflow int32.
@pytest.mark.parametrize(
    "columns",
    [[3, 3], [4, 2], [-1, 3], [3, 20], [0, 2**31 - 1, -(2**31), -1, 5]],
)
def test_columns_of_a_sparse_query_must_ascend(columns: list[int]) -> None:
    sparse = {"dense": np.empty(0, np.float32), "indices": np.array(columns, np.int32)}
    with pytest.raises(InvalidArgumentError, match="ascending columns"):
        a_shard(kind="sparse").ask("find", request(values=np.ones(2, np.float32), **sparse))


def test_points_have_tags_if_the_search_may_end_before_them() -> None:
    """It may if a shard probes more buckets than asked for, or ends at a number of points."""
    shard = a_shard()

    def tags(least: int, enough: int) -> int:
        numbers = np.full(layouts.REQUEST_NUMBERS, 5)
        numbers[layouts.HOW], numbers[layouts.PROBES] = layouts.TABLES, 20
        numbers[layouts.MIN_POINTS], numbers[layouts.ENOUGH] = least, enough
        (reply,) = divide(shard.ask("find", request(numbers=numbers)))
        columns = layouts.FIND_REPLY.unpack(reply)
        assert len(columns["ids"]) > 0
        assert len(columns["tags"]) in {0, len(columns["ids"])}
        return len(columns["tags"])

    assert tags(least=0, enough=0) == 0
    assert tags(least=0, enough=shard.rows) > 0
    assert tags(least=shard.rows, enough=0) > 0


def test_an_empty_shard_finds_nothing() -> None:
    for family in ("lsh_div", "cells"):
        engine = an_index(family, "cosine", "dense").engine
        shard = DividedIndex(engine, 7, "on two").shards[3]
        assert shard.rows == 0
        width = engine.arrays["hyperplanes"].shape[1]
        searches = (layouts.SCAN, layouts.TABLES) if family == "lsh_div" else (layouts.CELLS,)
        for how in (layouts.ALL, *searches):
            numbers = np.full(layouts.REQUEST_NUMBERS, 5)
            numbers[layouts.HOW] = how
            message = request(numbers=numbers, margins=np.ones(width, np.float32))
            (reply,) = divide(shard.ask("find", message))
            assert len(layouts.FIND_REPLY.unpack(reply)["ids"]) == 0


def test_an_id_is_fetched_once() -> None:
    shard = a_shard()
    for name, layout in (("fetch", layouts.FETCH_REQUEST), ("describe", layouts.DESCRIBE_REQUEST)):
        with pytest.raises(InvalidArgumentError, match="an id twice"):
            shard.ask(name, join([layout.pack({"ids": np.array([4, 4])})]))


def test_an_unknown_operation_is_refused() -> None:
    names = "find, more, fetch, count, describe, get, scroll, topics, categories, labels"
    names += ", measure"
    with pytest.raises(UnsupportedError, match=f"{names}, got 'drop'"):
        a_shard().ask("drop", join([]))


def test_only_points_of_the_shard_are_fetched() -> None:
    with pytest.raises(InvalidArgumentError, match="no point of the shard"):
        a_shard().ask("fetch", join([layouts.FETCH_REQUEST.pack({"ids": np.array([-5])})]))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_shard_sends_no_more_vectors_than_a_query_may_have(
    kind: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse points may be longer than the router, which knows the mean, expects."""
    shard = a_shard(kind=kind)
    ids = shard._searcher.keys_of(np.arange(shard.rows, dtype=np.int32))
    message = join([layouts.FETCH_REQUEST.pack({"ids": ids})])
    size = len(shard.ask("fetch", message))
    monkeypatch.setattr(core, "VECTOR_BYTES_MAX", size // 4)
    with pytest.raises((LimitExceededError, InvalidArgumentError)) as error_info:
        shard.ask("fetch", message)
    assert isinstance(error_info.value, LimitExceededError) == (kind == "sparse")


@given(st.data())
def test_changed_messages_never_crash_a_shard(data: st.DataObject) -> None:
    """A message of a query with a filter, or to measure cells, with up to three changed bytes."""
    name, message, shard = data.draw(st.sampled_from(_MESSAGES))
    changed = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DivgrpcError):
        shard.ask(name, bytes(changed))


def _message_of(index: Index) -> tuple[str, bytes, ShardCore]:
    pieces = DividedIndex(index.engine, 2)
    parameters = QueryParameters(k=5, search="tables", hash_limit=50)
    step = pieces.router.begin(Request(queries(1, "cosine"), parameters))
    assert isinstance(step, Round)
    return step.name, step.messages[0], pieces.shards[0]


_MESSAGES = (
    _message_of(an_index("lsh_div", "cosine", "dense")),
    ("measure", measure_request("cells"), a_shard("cells")),
)
