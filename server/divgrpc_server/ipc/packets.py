"""Packets between a front and a worker, or between a front and the writer.

Theory of operation. Each front shares one SEQPACKET socket with each worker. Such a socket
preserves the boundaries of packets, and if one side dies, the other side sees the end of the
stream. A packet contains several items, so that small requests can be sent together:

    request packet  items: id, deadline, op, whether it is a suspect, tag (see `tags`), payload,
                    and what shards have replied to earlier rounds (see `rounds`)
    reply packet    credits returned, one credit lent, then items: id, kind, payload

A packet has at most `PACKET_BYTES` bytes. An item with a larger payload is sent alone in a packet,
and its payload is passed in a memfd. The receiver reads it at once and closes it. The sender closes
it too, so it does not outlive the packet; or it keeps a memfd of up to `KEPT_BYTES_MAX` bytes, and
writes the next payload into it when the receiver has read all before. To make a new memfd of some
hundred kilobytes takes several times as long as to write them. Deadlines are in seconds of
`time.monotonic`, a clock that all processes of a machine share.

Flow is controlled by credits. A front spends a credit for each packet, and the worker returns the
credit when it is ready for another packet. For each worker, a front has `SMALL_CREDITS` credits for
packets of small requests and `LARGE_CREDITS` for packets of large requests, so that large requests
do not delay small ones. If the last slice of a large batch is expected to be short, the worker
lends the front one more credit before that slice, so that the next batch arrives in time. When the
batch ends, the worker returns its credit and takes the lent credit back.
"""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from divgrpc_server.ipc.errors import FrameError

PACKET_BYTES: Final = 64 * 1024
SMALL_CREDITS: Final = 2
LARGE_CREDITS: Final = 1
# A worker closes the socket to a front that has not read its answers for so long.
SEND_SECONDS: Final = 10.0
TAG_BYTES_MAX: Final = 181  # a request id, a trace id, a span id and flags (`tags`)

_REQUEST: Final = struct.Struct("<QdIBB2x")
_REPLY: Final = struct.Struct("<QIB3x")
_CREDITS: Final = struct.Struct("<BBbx")
_BUFFER_BYTES: Final = 212_992  # the usual net.core.wmem_max; a larger buffer needs privileges
_DESCRIPTOR_ROOM: Final = socket.CMSG_SPACE(4)
# Bits beside the operation of a request and the kind of a reply.
_IN_MEMFD: Final = 0x80
_IS_SUSPECT: Final = 0x40
_HAS_EXCHANGES: Final = 0x20
_OPTIONS: Final = _IN_MEMFD | _IS_SUSPECT | _HAS_EXCHANGES
_LENGTH: Final = struct.Struct("<I")

KEPT_BYTES_MAX: Final = 1 << 20
CREDITS_BYTES: Final = _CREDITS.size
SMALL_MAX: Final = PACKET_BYTES - _REQUEST.size - TAG_BYTES_MAX
REPLY_MAX: Final = PACKET_BYTES - _REPLY.size - CREDITS_BYTES


class Op(IntEnum):
    """The operation of a request item."""

    QUERY = 1  # payload: QueryRequest; answered with QueryResponse
    STREAM = 2  # payload: QueryStreamRequest; answered with QueryStreamResponse
    PREPARE = 3  # payload: a `StagedGeneration` to open; answered when it is open
    REFRESH = 4  # payload: the name of an index that may have changed; not answered
    CANCEL = 5  # no payload: the caller of this id no longer waits; not answered
    RECHECK = 6  # payload: the name of an index that may have killed a worker; not answered
    LOST = 7  # never sent: the receiver had no free descriptor for the payload's memfd
    PREDICT = 8  # payload: PredictLabelsRequest; answered with PredictLabelsResponse
    GET = 9  # payload: GetRequest; answered with GetResponse
    COUNT = 10  # payload: CountRequest; answered with CountResponse
    SCROLL = 11  # payload: ScrollRequest; answered with ScrollResponse
    UPSERT = 12  # to the writer; payload: UpsertRequest; answered with UpsertResponse
    DELETE = 13  # to the writer; payload: DeleteRequest; answered with DeleteResponse
    DIVERSIFY = 15  # payload: DiversifyRequest; answered with DiversifyResponse
    PICKS = 16  # payload: DiversifyStreamRequest; each pick is a PART, and the answer is empty
    ASK = 17  # to a worker of a shard server; payload: AskRequest; answered with AskResponse
    WRITES = 14  # to the writer; a batch of a WriteStream (`write_batches`); answered with outcomes


class Outcome(IntEnum):
    """The kind of a reply item."""

    ANSWER = 0
    STATUS = 1  # the payload is the google.rpc.Status of an error
    LOST = 2  # never sent: the receiver had no free descriptor for the payload's memfd
    PART = 3  # the payload is a message of a stream, and more replies follow
    START = 4  # no payload: the worker does nothing but this suspect until it replies
    ROUND = 5  # the payload is a packed `rounds.Round` of messages to shards


_OUTCOMES: Final = frozenset(Outcome)


class Request(NamedTuple):
    """One item of a request packet.

    is_suspect: whether a worker has ended while it held this request.
    exchanges: packed rounds and the replies of shards to them; empty before the first round.
    """

    id: int
    deadline: float
    op: int
    tag: str
    payload: bytes
    is_suspect: bool = False
    exchanges: bytes = b""

    @property
    def size(self) -> int:
        """The number of bytes of what the packet or the memfd holds of this request."""
        extra = _LENGTH.size + len(self.exchanges) if self.exchanges else 0
        return len(self.payload) + extra

    @property
    def body(self) -> bytes:
        """What the packet or the memfd holds of this request."""
        if not self.exchanges:
            return self.payload
        return b"".join((_LENGTH.pack(len(self.payload)), self.payload, self.exchanges))


class Reply(NamedTuple):
    """One item of a reply packet."""

    id: int
    outcome: int
    payload: bytes


class KeptMemory:
    """A memfd that is written again when the receiver has read it."""

    def __init__(self) -> None:
        self._memfd = -1

    def close(self) -> None:
        """Close the memfd."""
        if self._memfd >= 0:
            os.close(self._memfd)
            self._memfd = -1

    @contextlib.contextmanager
    def file(self, payload: bytes, *, all_read: bool) -> Iterator[int]:
        """Yield the descriptor of a memfd that contains `payload`, for `Link.send`.

        all_read: whether the peer has read all payloads so far.
        """
        if not all_read or len(payload) > KEPT_BYTES_MAX:
            with memory_file(payload) as memfd:
                yield memfd
            return
        if self._memfd < 0:
            self._memfd = _new_memfd()
        _write(self._memfd, payload)
        yield self._memfd


class Link:
    """One end of the socket between a front and a worker; only `send_waiting` blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._socket = end
        self._buffer = memoryview(bytearray(PACKET_BYTES))
        self._memory = KeptMemory()

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._memory.close()

    def memory_file(
        self, payload: bytes, *, all_read: bool
    ) -> contextlib.AbstractContextManager[int]:
        """Yield the descriptor of a memfd that contains `payload`, as `KeptMemory` does."""
        return self._memory.file(payload, all_read=all_read)

    def send(self, packet: bytes, memfd: int = -1) -> None:
        """Send a packet without waiting.

        Raises BlockingIOError if the socket's buffer is full, and OSError if the peer is gone.
        """
        if memfd < 0:
            self._socket.send(packet)
        else:
            socket.send_fds(self._socket, [packet], [memfd])

    def send_waiting(self, packet: bytes, memfd: int, seconds: float) -> None:
        """Send a packet; raises TimeoutError if the buffer stays full for `seconds`."""
        while True:
            try:
                return self.send(packet, memfd)
            except BlockingIOError:
                waiter = select.poll()
                waiter.register(self._socket, select.POLLOUT)
                if not waiter.poll(seconds * 1000):
                    raise TimeoutError("the other side of a link reads nothing") from None

    def receive(self) -> tuple[memoryview, int]:
        """Return the next packet, and its memfd or -1; the packet is empty if the peer is gone.

        The packet is a view that is valid until the next call of `receive`. Raises BlockingIOError
        if no packet is available.
        """
        try:
            size, ancillary, _, _ = self._receive()
        except ConnectionResetError:
            # The peer has left packets unread. Linux says so once, before the packets it has sent.
            return self.receive()
        except BrokenPipeError:
            return self._buffer[:0], -1
        memfd = int.from_bytes(ancillary[0][2], "little") if ancillary else -1
        return self._buffer[:size], memfd

    def _receive(self) -> tuple[int, list[tuple[int, int, bytes]], int, object]:
        return self._socket.recvmsg_into([self._buffer], _DESCRIPTOR_ROOM, socket.MSG_CMSG_CLOEXEC)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, for a front and a worker."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def adopt(descriptor: int) -> socket.socket:
    """Return the socket of a descriptor that was received over a control channel."""
    return socket.socket(fileno=descriptor)


def pack_request(request: Request, *, in_memfd: bool = False) -> bytes:
    """Return a request item, without its payload if the payload is passed in a memfd."""
    tag = request.tag.encode()
    op = request.op | in_memfd * _IN_MEMFD | request.is_suspect * _IS_SUSPECT
    op |= bool(request.exchanges) * _HAS_EXCHANGES
    head = _REQUEST.pack(request.id, request.deadline, request.size, op, len(tag))
    return head + tag if in_memfd else head + tag + request.body


def request_bytes(request: Request) -> int:
    """Return the size of a request item in a packet."""
    return _REQUEST.size + len(request.tag) + request.size


def unpack_requests(packet: memoryview, memfd: int) -> list[Request]:
    """Return the items of a request packet; closes `memfd`.

    Raises `FrameError` if an item cannot be read, or does not end with the packet.
    """
    with _reading(memfd):
        requests: list[Request] = []
        at = 0
        while at < len(packet):
            number, deadline, length, op, tag_length = _REQUEST.unpack_from(packet, at)
            at += _REQUEST.size + tag_length
            tag = str(packet[at - tag_length : at], "ascii")
            payload = _payload(packet[at:], length, memfd if op & _IN_MEMFD else None)
            is_suspect = bool(op & _IS_SUSPECT)
            if op & _IN_MEMFD:
                op = Op.LOST if memfd < 0 else op
            else:
                at += length
            exchanges = b""
            if op & _HAS_EXCHANGES:
                payload, exchanges = _divided(payload)
            op &= ~_OPTIONS
            requests.append(Request(number, deadline, op, tag, payload, is_suspect, exchanges))
        _check_end(packet, at)
    return requests


def _divided(body: bytes) -> tuple[bytes, bytes]:
    """Return the payload and the exchanges of a request that has both; raises struct.error."""
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    if end >= len(body):
        raise struct.error("a payload is longer than its item")
    return body[_LENGTH.size : end], body[end:]


def pack_credits(small: int, large: int, loan: int = 0) -> bytes:
    """Return the head of a reply packet.

    `small` and `large` are the credits to return. `loan` is 1 to lend a credit, -1 to take it back,
    and otherwise 0.
    """
    return _CREDITS.pack(small, large, loan)


def pack_reply(reply: Reply, *, in_memfd: bool = False) -> bytes:
    """Return a reply item, without its payload if the payload is passed in a memfd."""
    outcome = reply.outcome | _IN_MEMFD if in_memfd else reply.outcome
    head = _REPLY.pack(reply.id, len(reply.payload), outcome)
    return head if in_memfd else head + reply.payload


def unpack_credits(packet: memoryview) -> tuple[int, int, int]:
    """Return `small`, `large` and `loan` of a reply packet, as given to `pack_credits`.

    Raises `FrameError`.
    """
    if len(packet) < CREDITS_BYTES:
        raise FrameError("a packet of replies has no credits")
    small, large, loan = _CREDITS.unpack_from(packet)
    return small, large, loan


def unpack_replies(packet: memoryview, memfd: int) -> list[Reply]:
    """Return the items of a reply packet; closes `memfd`.

    Raises `FrameError` if an item has an unknown outcome, or does not end with the packet.
    """
    with _reading(memfd):
        replies: list[Reply] = []
        at = CREDITS_BYTES
        while at < len(packet):
            number, length, outcome = _REPLY.unpack_from(packet, at)
            at += _REPLY.size
            payload = _payload(packet[at:], length, memfd if outcome & _IN_MEMFD else None)
            if outcome & _IN_MEMFD:
                outcome = Outcome.LOST if memfd < 0 else outcome & ~_IN_MEMFD
            else:
                at += length
            if outcome not in _OUTCOMES:
                raise FrameError("a packet has a reply of an unknown kind")
            replies.append(Reply(number, outcome, payload))
        _check_end(packet, at)
    return replies


def _payload(rest: memoryview, length: int, memfd: int | None) -> bytes:
    """Return the payload of an item, which is in a memfd or at the beginning of `rest`.

    A memfd below 0 did not arrive.
    """
    if memfd is None:
        return bytes(rest[:length])
    return b"" if memfd < 0 else read_memfd(memfd, length)


@contextlib.contextmanager
def _reading(memfd: int) -> Iterator[None]:
    """Close a memfd, if there is one; an error of a reader becomes `FrameError`."""
    try:
        yield
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"a packet cannot be read: {error}") from error
    finally:
        if memfd >= 0:
            os.close(memfd)


def _check_end(packet: memoryview, at: int) -> None:
    if at != len(packet):
        raise FrameError("the last item of a packet is longer than the packet")


@contextlib.contextmanager
def memory_file(payload: bytes) -> Iterator[int]:
    """Yield the descriptor of a new memfd that contains `payload`, and close it afterwards."""
    memfd = _new_memfd()
    try:
        _write(memfd, payload)
        yield memfd
    finally:
        os.close(memfd)


def _new_memfd() -> int:
    return os.memfd_create("divgrpc-frame", os.MFD_CLOEXEC)


def _write(memfd: int, payload: bytes) -> None:
    """Write a payload at the beginning of a memfd."""
    rest, at = memoryview(payload), 0
    while rest:
        written = os.pwrite(memfd, rest, at)
        rest, at = rest[written:], at + written


def read_memfd(memfd: int, length: int) -> bytes:
    """Return the first `length` bytes of a memfd; raises `FrameError` if it has fewer.

    The memfd is read rather than mapped. If its writer truncated a mapped file, SIGBUS would kill
    this process.
    """
    payload = os.pread(memfd, length, 0) if length <= os.fstat(memfd).st_size else b""
    if len(payload) != length:
        raise FrameError("a memory file is shorter than its item")
    return payload
