"""A worker's view of a front."""

import time
from collections import deque
from typing import Final, Protocol

from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Reply, Request

# An answer is sent immediately if no answers were sent for this many seconds.
_GATHER_SECONDS: Final = 0.006
_ALIVE_SECONDS: Final = 1.0
# While a worker answers more than this number of a front's batches in slices, it returns no small
# credits to the front. The next small packets then wait at the front, where another worker can take
# them.
_BATCHES_MAX: Final = 1
# Operations that are no calls of callers.
_NOTES: Final = (Op.PREPARE, Op.REFRESH, Op.CANCEL, Op.RECHECK)


class Withdrawable(Protocol):
    """Work that a caller may withdraw."""

    is_withdrawn: bool


class FrontLink:
    """A worker's view of a front: its requests, the credits to return to it, and its answers."""

    def __init__(self, link: packets.Link) -> None:
        self.link = link
        self.packets: deque[list[Request]] = deque()
        self.pending: dict[int, Request] = {}
        # Batches that were started, by request id. They are answered in slices or wait for their
        # index.
        self.batches: dict[int, Withdrawable] = {}
        self.sliced = 0
        self.owed_small = 0
        self.owed_large = 0
        self.loan = 0
        self.is_gone = False
        self._items: list[bytes] = []
        self._size = 0
        self._send_time = time.monotonic()
        # When the packets of the front were last read.
        self.read_time = time.monotonic()

    def read(self) -> list[Request]:
        """Read a packet and queue its queries; return its requests if they are not queries.

        Raises `FrameError`.
        """
        self.read_time = time.monotonic()
        packet, memfd = self.link.receive()
        if not packet:
            self.is_gone = True
            return []
        requests = packets.unpack_requests(packet, memfd)
        if requests[0].op in _NOTES:
            return requests  # a packet contains either queries or other requests
        self.packets.append(requests)
        self.pending.update((request.id, request) for request in requests)
        return []

    def withdraw(self, number: int) -> None:
        """Drop a request whose caller no longer waits."""
        self.pending.pop(number, None)
        if number in self.batches:
            self.batches[number].is_withdrawn = True

    def reply(self, reply: Reply) -> None:
        """Queue a reply to be sent with the next `flush`; a large reply is sent alone."""
        if len(reply.payload) > packets.REPLY_MAX:
            self.flush()
            with packets.memory_file(reply.payload) as memfd:
                item = packets.pack_reply(reply, in_memfd=True)
                self._send(packets.pack_credits(0, 0) + item, memfd)
            return
        item = packets.pack_reply(reply)
        if self._size + len(item) > packets.PACKET_BYTES - packets.CREDITS_BYTES:
            self.flush()
        self._items.append(item)
        self._size += len(item)
        if time.monotonic() - self._send_time > _GATHER_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the queued replies, and return the credits that are due."""
        small = self.owed_small if self.sliced <= _BATCHES_MAX else 0
        large, self.owed_large = self.owed_large, 0
        loan, self.loan = self.loan, 0
        self.owed_small -= small
        if self._items or small or large or loan:
            items, self._items, self._size = self._items, [], 0
            self._send(packets.pack_credits(small, large, loan) + b"".join(items), -1)

    def show_life(self) -> None:
        """Send an empty packet if none was sent for `_ALIVE_SECONDS`."""
        if time.monotonic() - self._send_time > _ALIVE_SECONDS:
            self._send(packets.pack_credits(0, 0), -1)

    def begin_packet(self) -> None:
        """Restart the timer that sends answers before their packet ends."""
        self._send_time = time.monotonic()

    def _send(self, packet: bytes, memfd: int) -> None:
        self._send_time = time.monotonic()
        if self.is_gone:
            # Each try would wait for as long again, and other fronts would get no sign of life.
            return
        try:
            self.link.send_waiting(packet, memfd, packets.SEND_SECONDS)
        except OSError:
            self.is_gone = True


def is_large_packet(packet: list[Request]) -> bool:
    """Return whether a front spent a large credit for a packet: its one payload was in a memfd."""
    first = packet[0]
    return first.op == Op.LOST or first.size > packets.SMALL_MAX
