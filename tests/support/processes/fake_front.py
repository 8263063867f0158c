"""A front (a process that takes calls and sends them to workers) that a test controls."""

import select
from typing import NamedTuple

from google.rpc import status_pb2

from divgrpc_server.ipc import control, packets
from divgrpc_server.ipc.packets import Outcome, Reply, Request


class Packet(NamedTuple):
    """A reply packet: returned credits for small and large requests, replies, and a lent credit."""

    small: int
    large: int
    replies: list[Reply]
    loan: int = 0


class Front:
    """The front's end of a link."""

    def __init__(self, channel: control.Channel) -> None:
        front_end, worker_end = packets.pair()
        with worker_end:
            channel.send(control.Message("front", 1), worker_end.fileno())
        self.link = packets.Link(front_end)

    def send(self, *requests: Request) -> None:
        """Send requests in one packet, or a single large request in a memory file."""
        (first, *_) = requests
        if len(first.payload) > packets.SMALL_MAX:
            with packets.memory_file(first.payload) as memfd:
                self.link.send(packets.pack_request(first, in_memfd=True), memfd)
        else:
            self.link.send(b"".join(packets.pack_request(request) for request in requests))

    def hear(self) -> Packet:
        """Wait for a packet that is not just a sign of life."""
        while True:
            readable, _, _ = select.select([self.link.fileno()], [], [], 20)
            assert readable
            view, memfd = self.link.receive()
            small, large, loan = packets.unpack_credits(view)
            packet = Packet(small, large, list(packets.unpack_replies(view, memfd)), loan)
            if packet != (0, 0, [], 0):
                return packet

    def hear_credit(self) -> Packet:
        """Wait for a packet with a credit; return it with all replies received until then."""
        replies: list[Reply] = []
        while True:
            packet = self.hear()
            replies += packet.replies
            if packet.small or packet.large:
                return packet._replace(replies=replies)

    def answer(self) -> Reply:
        """Wait for the next packet with replies, which must contain exactly one reply."""
        while not (replies := self.hear().replies):
            pass
        (reply,) = replies
        return reply

    def hear_until(self, number: int) -> list[int]:
        """Return the ids of replies in order of arrival, up to the packet that answers `number`."""
        ids: list[int] = []
        while number not in ids:
            ids += [reply.id for reply in self.hear().replies]
        return ids


def code_of(reply: Reply) -> int:
    assert reply.outcome == Outcome.STATUS
    return int(status_pb2.Status.FromString(reply.payload).code)
