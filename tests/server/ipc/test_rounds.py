"""Rounds of messages to shards, packed and read again."""

from hypothesis import given
from hypothesis import strategies as st

from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.packets import Op, Request, pack_request, unpack_requests
from divgrpc_server.ipc.rounds import (
    Exchange,
    missing_in,
    pack_exchanges,
    pack_missing,
    pack_round,
    unpack_exchanges,
    unpack_round,
)

SHARDS = st.integers(0, 2**32 - 1)
MESSAGES = st.dictionaries(SHARDS, st.binary(max_size=40), max_size=6)


@given(messages=MESSAGES, may_lack=st.booleans())
def test_a_round_is_read_as_it_was_packed(messages: dict[int, bytes], may_lack: bool) -> None:
    assert unpack_round(pack_round(messages, may_lack=may_lack)) == (messages, may_lack)


@given(shards=st.lists(SHARDS, max_size=5), messages=MESSAGES)
def test_missing_shards_are_named_before_exchanges(
    shards: list[int], messages: dict[int, bytes]
) -> None:
    messages.pop(2**32 - 1, None)
    packed = pack_missing(shards) + pack_exchanges(messages, messages)
    first, *further = unpack_exchanges(packed)
    assert missing_in(first) == tuple(shards)
    assert [missing_in(one) for one in further] == [None] * len(messages)


@given(first=MESSAGES, second=MESSAGES)
def test_exchanges_of_several_rounds_follow_one_another(
    first: dict[int, bytes], second: dict[int, bytes]
) -> None:
    rounds = [(one, {shard: one[shard] * 2 for shard in one}) for one in (first, second)]
    packed = b"".join(pack_exchanges(*one) for one in rounds)
    exchanges = [Exchange(s, m, replies[s]) for ms, replies in rounds for s, m in ms.items()]
    assert unpack_exchanges(packed) == exchanges


@given(data=st.binary(max_size=80))
def test_other_bytes_are_read_whole_or_refused(data: bytes) -> None:
    """What is read packs to the same bytes, so nothing was left out or made up."""
    try:
        messages, may_lack = unpack_round(data)
    except FrameError:
        pass
    else:
        assert pack_round(messages, may_lack=may_lack) == data
    try:
        exchanges = unpack_exchanges(data)
    except FrameError:
        return
    packed = (pack_exchanges({one.shard: one.message}, {one.shard: one.reply}) for one in exchanges)
    assert b"".join(packed) == data


@given(data=st.binary(min_size=1, max_size=60), payload=st.binary(max_size=30))
def test_a_request_carries_its_exchanges(data: bytes, payload: bytes) -> None:
    requests = [
        Request(number, 1.5, Op.QUERY, "tag", payload, bool(number % 2), exchanges)
        for number, exchanges in enumerate((data, b"", data + data))
    ]
    packet = b"".join(map(pack_request, requests))
    assert unpack_requests(memoryview(packet), -1) == requests
