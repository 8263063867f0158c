"""Packets and the memory files that go with them."""

import os

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
def test_requests_come_out_as_they_went_in(items: list[Request]) -> None:
    """A packet gives back its items in their order, and its size is known before."""
    packet = b"".join(packets.pack_request(item) for item in items)
    assert list(packets.unpack_requests(memoryview(packet), -1)) == items
    assert len(packet) == sum(packets.request_bytes(item) for item in items)


@given(st.lists(replies, max_size=20), st.integers(0, 2), st.integers(0, 1), st.integers(-1, 1))
def test_replies_come_out_as_they_went_in(
    items: list[Reply], small: int, large: int, lent: int
) -> None:
    """So do replies, and the credits before them."""
    packet = packets.pack_credits(small, large, lent)
    packet += b"".join(packets.pack_reply(item) for item in items)
    assert packets.unpack_credits(memoryview(packet)) == (small, large, lent)
    assert list(packets.unpack_replies(memoryview(packet), -1)) == items


def test_a_large_payload_travels_by_memory_file() -> None:
    """Neither side keeps its descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    payload = os.urandom(3_000_000)
    ours, other_end = packets.pair()
    near, far = packets.Link(ours), packets.Link(other_end)
    request = Request(7, 1.5, Op.QUERY, "tag", payload)
    with packets.memory_file(payload) as memfd:
        near.send(packets.pack_request(request, in_memfd=True), memfd)
    (received,) = packets.unpack_requests(*far.receive())
    assert received == request
    reply = Reply(7, Outcome.ANSWER, payload[::-1])
    with packets.memory_file(reply.payload) as memfd:
        packet = packets.pack_credits(0, 1) + packets.pack_reply(reply, in_memfd=True)
        far.send_waiting(packet, memfd, 1)
    assert list(packets.unpack_replies(*near.receive())) == [reply]
    near.close()
    assert not far.receive()[0]
    far.close()
    assert len(os.listdir("/proc/self/fd")) == before


def fill(link: packets.Link) -> None:
    """Send more than a socket holds."""
    for _ in range(100):
        link.send(bytes(packets.PACKET_BYTES))


def test_a_payload_without_its_file_is_lost() -> None:
    """Where the kernel had no descriptor to give, the receiver hears of it, once per payload."""
    packet = packets.pack_credits(1, 0) + packets.pack_reply(
        Reply(7, Outcome.ANSWER, b"large"), in_memfd=True
    )
    assert list(packets.unpack_replies(memoryview(packet), -1)) == [Reply(7, Outcome.LOST, b"")]


def test_a_request_without_its_file_is_lost() -> None:
    """The worker has its id and its tag, and can say why it is not answered."""
    request = Request(7, 1.0, Op.QUERY, "tag", b"large")
    packet = memoryview(packets.pack_request(request, in_memfd=True))
    assert list(packets.unpack_requests(packet, -1)) == [Request(7, 1.0, Op.LOST, "tag", b"")]


def test_a_link_never_waits_unless_asked_to() -> None:
    """An empty link says so, a full one too, and waiting has an end."""
    ours, other_end = packets.pair()
    near, far = packets.Link(ours), packets.Link(other_end)
    with pytest.raises(BlockingIOError):
        far.receive()
    with pytest.raises(BlockingIOError):
        fill(near)
    with pytest.raises(TimeoutError):
        near.send_waiting(b"x", -1, 0.05)
    near.close()
    far.close()


def test_three_full_packets_fit_a_link() -> None:
    """What credits allow to be on the way never fills the socket."""
    ours, other_end = packets.pair()
    near, far = packets.Link(ours), packets.Link(other_end)
    for _ in range(packets.SMALL_CREDITS + packets.LARGE_CREDITS):
        near.send(bytes(packets.PACKET_BYTES))
    near.close()
    far.close()
