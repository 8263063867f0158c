"""Control channels: messages arrive in order with their descriptors, and no sender waits."""

import os
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from divgrpc_server.ipc.control import Channel, Message
from divgrpc_server.supervisor.child import Child

# More than any channel has room for.
MANY = 10_000


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Return both ends of a channel."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channels = Channel(pair[0]), Channel(pair[1])
    yield channels
    for channel in channels:
        channel.close()


def fill(channel: Channel, descriptor: int | None) -> int:
    """Send messages until there is no more room; return how many."""
    for number in range(MANY):
        try:
            channel.send(Message("worker", number), descriptor)
        except BlockingIOError:
            return number
    raise AssertionError("the channel is never full")


@pytest.mark.parametrize("with_descriptor", [False, True])
def test_a_full_channel_refuses_until_its_messages_are_read(
    ends: tuple[Channel, Channel], with_descriptor: bool
) -> None:
    sender, reader = ends
    with open(os.devnull, "rb") as file:
        count = fill(sender, file.fileno() if with_descriptor else None)
        assert count > 100
        for number in range(count):
            delivery = reader.receive()
            assert delivery is not None
            assert delivery[0] == Message("worker", number)
            assert (delivery[1] >= 0) == with_descriptor
            if with_descriptor:
                os.close(delivery[1])
        sender.send(Message("drain"))
        assert reader.receive() == (Message("drain"), -1)


def test_a_channel_whose_peer_is_gone_raises(ends: tuple[Channel, Channel]) -> None:
    sender, reader = ends
    reader.close()
    with pytest.raises(BrokenPipeError):
        sender.send(Message("drain"))
    assert sender.receive() is None


def test_a_child_that_reads_nothing_is_killed(ends: tuple[Channel, Channel]) -> None:
    """The supervisor does not wait for it, because all other children would wait too."""
    child = Child.__new__(Child)
    child.channel = ends[0]
    child.kill = Mock()  # type: ignore[method-assign]
    fill(ends[0], None)
    child.kill.assert_not_called()
    end, peer = socket.socketpair()
    with peer:
        child.send(Message("drain"), end)
    child.kill.assert_called_once_with()
    assert end.fileno() < 0
