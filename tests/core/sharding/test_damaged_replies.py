"""Whatever the bytes of a reply are, a router answers, asks further, or names what is damaged."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.columns.filters import as_filter
from divgrpc.engine import Engine
from divgrpc.errors import IndexDamagedError
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding import layouts
from divgrpc.sharding.messages import divide, join
from divgrpc.sharding.rounds import Exchange, Round, ShardFaultError
from divgrpc.sharding.router import Call, Request
from divgrpc.types import HashFamily, Metric, Points
from divgrpc.types.filters import Field
from divgrpc.types.quotas import GroupBy, Quota
from support.data.attributed_indexes import with_attributes
from support.data.divided_indexes import DividedIndex
from support.data.mixed_indexes import an_index, queries, stored_as

_SHARDS = 3


class Record(NamedTuple):
    """A call that shards have answered, and all rounds of it."""

    pieces: DividedIndex
    request: Call[Any]
    exchanges: list[Exchange]


def record_of(index: Index, request: Call[Any]) -> Record:
    pieces = DividedIndex(index.engine, _SHARDS)
    exchanges: list[Exchange] = []
    while isinstance(step := pieces.router.go_on(request, exchanges), Round):
        messages = step.messages.items()
        replies = {shard: pieces.shards[shard].ask(step.name, part) for shard, part in messages}
        exchanges.append(Exchange(step, replies))
    return Record(pieces, request, exchanges)


@cache
def records() -> list[Record]:
    """Return queries of all searches and kinds of points, with all operations."""
    cases: list[tuple[HashFamily, Metric, Points, str]] = [
        ("lsh_div", "cosine", "dense", "scan"),
        ("lsh_div", "cosine", "sparse", "exact"),
        ("lsh_div", "inner_product", "sparse", "tables"),
        ("lsh_div", "inner_product", "dense", "exact"),
        ("cells", "euclidean", "dense", "scan"),
        ("cells", "euclidean", "dense", "tables"),
    ]
    answers = []
    for family, metric, kind, search in cases:
        # Few vectors come with the first reply, so some are fetched.
        options: dict[str, Any] = {"k": 4, "search": search, "duplicate_threshold": None}
        parameters = QueryParameters(hash_limit=90, candidates_limit=40, **options)
        rows = stored_as(queries(2, metric), kind)
        answers.append(record_of(an_index(family, metric, kind), Request(rows, parameters)))
    condition = as_filter(Field("price") < 0.7)
    for texts in (False, True):
        index = with_attributes(texts=texts, family="cells")
        parameters = QueryParameters(k=9, with_attributes=True, with_payload=True)
        rows = np.random.default_rng(2).standard_normal((1, 16)).astype(np.float32)
        answers.append(record_of(index, Request(rows, parameters, condition)))
    answers.append(record_of(_annotated_index(), _read_annotations))
    answers += [record_of(index, call) for call in (_pick_within_quotas, _fill_groups)]
    for texts in (False, True):
        index = with_attributes(texts=texts, family="cells")
        answers.append(record_of(index, _read_points))
    return answers


def _annotated_index() -> Index:
    rows = np.arange(60)
    return Index.build(
        np.random.default_rng(3).standard_normal((60, 8)).astype(np.float32),
        categories=rows % 4 - 1, subtopics=rows % 5 - 1, labels=np.eye(7)[rows % 7],
        attributes={"price": rows},
    )  # fmt: skip


def _read_annotations(engine: Engine) -> object:
    """Ask for what evaluations read."""
    passing = engine.passing(as_filter(Field("price") < 40))
    assert passing is not None
    flags = engine.flags_of(np.arange(0, 60, 7), passing, "ids")
    return engine.topics_within(passing), engine.label_counts, flags


def _pick_within_quotas(engine: Engine) -> object:
    """Ask for the values of found points, and for the values of all."""
    row = np.ones((1, 16), np.float32)
    quotas = [Quota("brand", max_each=2, min_each=1), Quota("tags", max_each=3)]
    return Index(engine).query(row, k=4, quotas=quotas, on_infeasible="relax")


def _fill_groups(engine: Engine) -> object:
    """Ask about several filters in the same round."""
    row = np.ones((1, 16), np.float32)
    return Index(engine).query(row, group_by=GroupBy("brand", groups=3, per_group=9))


def _read_points(engine: Engine) -> object:
    """Ask for points in the order of their ids, and for some of these by their ids."""
    index = Index(engine)
    batch = next(index.scroll(page_size=6))
    index.query(like=batch.ids[:1].tolist(), k=3, already_shown=batch.ids[1:4].tolist())
    return index.get(batch.ids[:5].tolist())


def with_reply(record: Record, number: int, shard: int, reply: bytes) -> list[Exchange]:
    """Return the rounds up to round `number`, with another reply of a shard."""
    question, replies = record.exchanges[number]
    return [*record.exchanges[:number], Exchange(question, {**replies, shard: reply})]


def go_on(record: Record, exchanges: list[Exchange]) -> object:
    """Go on with a router that has kept nothing of earlier replies."""
    return record.pieces.new_router().go_on(record.request, exchanges)


def outcome_of(record: Record, exchanges: list[Exchange]) -> str:
    try:
        step = go_on(record, exchanges)
    except IndexDamagedError as error:
        return str(error)
    return "asks" if isinstance(step, Round) else "answers"


def test_the_records_have_all_rounds() -> None:
    names = {exchange.round.name for record in records() for exchange in record.exchanges}
    kinds = {"find", "fetch", "count", "describe", "get", "scroll"}
    assert names >= kinds | {"topics", "categories", "labels"}
    for record in records():
        assert outcome_of(record, record.exchanges) == "answers"


# The record, the round, the shard, and a reply of this shard to one message.
_PLACES = st.tuples(*(st.integers(0, most) for most in (12, 11, _SHARDS - 1, 3)))


def place_of(numbers: tuple[int, ...]) -> tuple[Record, int, int, list[bytes], int]:
    record = records()[numbers[0]]
    number = numbers[1] % len(record.exchanges)
    replies = record.exchanges[number].replies
    shard = list(replies)[numbers[2] % len(replies)]
    parts = [bytes(part) for part in divide(replies[shard])]
    return record, number, shard, parts, numbers[3] % len(parts)


@settings(max_examples=600)
@given(numbers=_PLACES, data=st.data())
def test_changed_bytes(numbers: tuple[int, ...], data: st.DataObject) -> None:
    record, number, shard, parts, place = place_of(numbers)
    changed = bytearray(parts[place])
    for _ in range(data.draw(st.integers(1, 4))):
        # Changes of sizes and of the first numbers are worse than those of vectors.
        last = data.draw(st.sampled_from([len(changed), min(len(changed), 160)])) - 1
        changed[data.draw(st.integers(0, last))] = data.draw(st.integers(0, 255))
    parts[place] = bytes(changed)
    outcome_of(record, with_reply(record, number, shard, join(parts)))


@settings(max_examples=600)
@given(numbers=_PLACES, data=st.data())
def test_changed_words(numbers: tuple[int, ...], data: st.DataObject) -> None:
    record, number, shard, parts, place = place_of(numbers)
    words = np.frombuffer(parts[place], np.int64).copy()
    extremes = st.sampled_from([0, -1, 1, 2**31, -(2**63), 2**63 - 1, 0x7FF0000000000000])
    for _ in range(data.draw(st.integers(1, 3))):
        words[data.draw(st.integers(0, len(words) - 1))] = data.draw(extremes)
    parts[place] = words.tobytes()
    outcome_of(record, with_reply(record, number, shard, join(parts)))


def test_words_that_no_point_has() -> None:
    record = record_of(with_attributes(texts=False, family="cells"), _fill_groups)
    (reply,) = divide(record.exchanges[0].replies[1])
    points, values = divide(reply)
    layout = layouts.values_reply(layouts.describe_reply(
        record.pieces.pieces.manifest.attributes, has_texts=False, has_payloads=True
    ))  # fmt: skip
    columns = layout.unpack(values)
    for word in (9, 2**31 - 1):
        brands = np.full_like(columns["attribute.0.values"], word)
        changed = layout.pack({**columns, "attribute.0.values": brands})
        exchanges = with_reply(record, 0, 1, join([join([points, changed])]))
        assert "cannot be read" in outcome_of(record, exchanges)


def test_points_without_sizes_or_places() -> None:
    record = records()[-1]
    stored = layouts.get_reply(
        layouts.describe_reply(
            record.pieces.pieces.manifest.attributes, has_texts=True, has_payloads=True
        ),
        tuple(record.pieces.pieces.manifest.arrays),
    )
    faults: set[tuple[str, str]] = set()
    for number, (question, replies) in enumerate(record.exchanges):
        if question.name not in {"get", "scroll"}:
            continue
        layout = stored if question.name == "get" else layouts.SCROLL_REPLY
        shard = max(replies, key=lambda shard: len(replies[shard]))
        (part,) = divide(replies[shard])
        columns = layout.unpack(part)
        for name in {"sizes", "places"} & columns.keys():
            for column in (columns[name][:0], np.full_like(columns[name], 0)):
                changed = layout.pack({**columns, name: column})
                outcome = outcome_of(record, with_reply(record, number, shard, join([changed])))
                if "which points it is about" in outcome:
                    faults.add((question.name, name))
    assert faults == {("get", "sizes"), ("get", "places"), ("scroll", "sizes")}


@settings(max_examples=200)
@given(numbers=_PLACES, data=st.data())
def test_a_cut_reply_is_refused(numbers: tuple[int, ...], data: st.DataObject) -> None:
    record, number, shard, parts, place = place_of(numbers)
    parts[place] = parts[place][: data.draw(st.integers(0, len(parts[place]) - 1))]
    with pytest.raises(ShardFaultError, match=f"a reply of shard {shard} ") as error_info:
        go_on(record, with_reply(record, number, shard, join(parts)))
    assert error_info.value.shard == shard


@settings(max_examples=200)
@given(numbers=_PLACES, other=_PLACES)
def test_the_reply_to_another_question(numbers: tuple[int, ...], other: tuple[int, ...]) -> None:
    record, number, shard, parts, place = place_of(numbers)
    _, _, _, other_parts, other_place = place_of(other)
    parts[place] = other_parts[other_place]
    outcome_of(record, with_reply(record, number, shard, join(parts)))


@pytest.mark.parametrize("reply", [b"", b"\0" * 24, join([])])
def test_a_reply_that_holds_no_messages_is_refused(reply: bytes) -> None:
    record = records()[0]
    with pytest.raises(ShardFaultError, match="shard 1"):
        go_on(record, with_reply(record, 0, 1, reply))
