"""Packets of requests and replies, and the memory files that carry large payloads."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request

requests = st.builds(
    Request,
    st.integers(0, 2**64 - 1),
    st.floats(0, 1e12),
    st.sampled_from([int(op) for op in Op]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=128),
    st.binary(max_size=200),
)
replies = st.builds(
    Reply,
    st.integers(0, 2**64 - 1),
    st.sampled_from([int(Outcome.ANSWER), int(Outcome.STATUS)]),
    st.binary(max_size=200),
)


@given(st.lists(requests, max_size=20))
def test_requests_survive_packing(items: list[Request]) -> None:
    """Unpacking returns the requests in order, and `request_bytes` returns their packed sizes."""
    packet = b"".join(packets.pack_request(item) for item in items)
    assert list(packets.unpack_requests(memoryview(packet), -1)) == items
    assert len(packet) == sum(packets.request_bytes(item) for item in items)


@given(st.lists(replies, max_size=20), st.integers(0, 2), st.integers(0, 1), st.integers(-1, 1))
def test_replies_survive_packing(items: list[Reply], small: int, large: int, loan: int) -> None:
    packet = packets.pack_credits(small, large, loan)
    packet += b"".join(packets.pack_reply(item) for item in items)
    assert packets.unpack_credits(memoryview(packet)) == (small, large, loan)
    assert list(packets.unpack_replies(memoryview(packet), -1)) == items


@pytest.mark.parametrize("is_suspect", [False, True])
def test_a_large_payload_travels_by_memory_file(*, is_suspect: bool) -> None:
    """Both sides close their descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    payload = os.urandom(3_000_000)
    near, far = map(packets.Link, packets.pair())
    request = Request(7, 1.5, Op.QUERY, "tag", payload, is_suspect)
    with packets.memory_file(payload) as memfd:
        near.send(packets.pack_request(request, in_memfd=True), memfd)
    (received_request,) = packets.unpack_requests(*far.receive())
    assert received_request == request
    reply = Reply(7, Outcome.ANSWER, payload[::-1])
    with packets.memory_file(reply.payload) as memfd:
        packet = packets.pack_credits(0, 1) + packets.pack_reply(reply, in_memfd=True)
        far.send_waiting(packet, memfd, 1)
    assert list(packets.unpack_replies(*near.receive())) == [reply]
    near.close()
    assert not far.receive()[0]
    far.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_memory_file_is_written_again_when_all_was_read() -> None:
    before = len(os.listdir("/proc/self/fd"))
    near, far = map(packets.Link, packets.pair())
    descriptors = []
    for payload in (b"first payload", b"second", bytes(packets.KEPT_BYTES_MAX)):
        with near.memory_file(payload, all_read=True) as memfd:
            assert packets.read_memfd(memfd, len(payload)) == payload
            descriptors.append(memfd)
            with near.memory_file(b"other", all_read=False) as other:
                assert packets.read_memfd(other, 5) == b"other"
            assert packets.read_memfd(memfd, len(payload)) == payload
    assert len(set(descriptors)) == 1
    with near.memory_file(bytes(packets.KEPT_BYTES_MAX + 1), all_read=True) as memfd:
        assert memfd not in descriptors
    near.close()
    far.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def links() -> Iterator[tuple[packets.Link, packets.Link]]:
    """Yield the two ends of a link."""
    near, far = map(packets.Link, packets.pair())
    yield near, far
    near.close()
    far.close()


def test_a_reply_without_its_memory_file_is_lost() -> None:
    """If a receiver gets no descriptor, it unpacks the reply with the outcome LOST."""
    packet = packets.pack_credits(1, 0) + packets.pack_reply(
        Reply(7, Outcome.ANSWER, b"large"), in_memfd=True
    )
    assert list(packets.unpack_replies(memoryview(packet), -1)) == [Reply(7, Outcome.LOST, b"")]


def test_a_request_without_its_memory_file_is_lost() -> None:
    """The worker still gets the request's id and tag, which it needs to report the error."""
    request = Request(7, 1.0, Op.QUERY, "tag", b"large")
    packet = memoryview(packets.pack_request(request, in_memfd=True))
    assert list(packets.unpack_requests(packet, -1)) == [Request(7, 1.0, Op.LOST, "tag", b"")]


def test_the_last_packets_of_a_peer_that_has_ended_are_received(
    links: tuple[packets.Link, packets.Link],
) -> None:
    """Linux reports first that the peer has left a packet unread."""
    near, far = links
    near.send(b"unread")
    far.send(b"last")
    far.close()
    assert bytes(near.receive()[0]) == b"last"
    assert not near.receive()[0]
    assert not near.receive()[0]


def test_only_send_waiting_waits(links: tuple[packets.Link, packets.Link]) -> None:
    """Packets within the credits fit; beyond, `send` raises at once and `send_waiting` waits."""
    near, far = links
    with pytest.raises(BlockingIOError):
        far.receive()
    for _ in range(packets.SMALL_CREDITS + packets.LARGE_CREDITS):
        near.send(bytes(packets.PACKET_BYTES))
    with pytest.raises(BlockingIOError):  # noqa: PT012  # one of them raises
        for _ in range(100):
            near.send(bytes(packets.PACKET_BYTES))
    with pytest.raises(TimeoutError):
        near.send_waiting(b"x", -1, 0.05)
