"""Frames that a front exchanges with a builder, an evaluator or the writer.

A frame consists of a length, a kind and a payload. Frames are sent over a stream socket. Between
front and builder, data is buffered only in this socket, whose buffer is small, so an upload cannot
run ahead of the build.
"""

import asyncio
import socket
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from divgrpc_server.ipc.errors import FrameError

_HEAD: Final = struct.Struct("<IB3x")
# Four times as many bytes as a front takes in one message (`RECEIVED_BYTES_MAX`).
_BYTES_MAX: Final = 2**26


class Frame(IntEnum):
    """The kind of a frame."""

    MESSAGE = 1  # to a builder: a BuildRequest
    END = 2  # to a builder or evaluator: the caller has sent its last message
    EVENT = 3  # from a builder or evaluator: a response for the caller
    COMMIT = 4  # from a builder: the upload is complete; from an evaluator: rows follow
    STAGED = 5  # from a builder: a `StagedGeneration`; the builder then waits for PUBLISH
    PUBLISH = 6  # to a builder: all workers have opened the generation, so publish it
    RESULT = 7  # from either, as the last frame: a response, empty from an evaluator
    STATUS = 8  # from either, as the last frame: the google.rpc.Status of an error
    ONCE = 9  # to a builder: a BuildOnceRequest, in place of MESSAGE frames
    EVALUATE = 10  # to an evaluator: an EvaluateRequest
    EVALUATE_LABELS = 11  # to an evaluator: an EvaluateLabelsRequest
    ATTRIBUTES = 12  # to a builder or the writer: an AddAttributesRequest, as MESSAGE frames
    COMPACT = 13  # to the writer: a CompactRequest
    RETRAIN = 14  # to the writer: a RetrainRequest
    DIAGNOSE = 15  # to an evaluator: a DiagnoseRequest
    ASK = 16  # from either: a part of a round of messages to shards (`ipc.job_rounds`)
    REPLIES = 17  # to either: a part of the replies to a round


_KINDS: Final = frozenset(Frame)


class StagedGeneration(NamedTuple):
    """A complete generation that is not published yet, or a shard of it.

    name: the name of its index. folder: its folder, or that of the shard in it, in the data folder.
    """

    name: str
    folder: str

    def pack(self) -> bytes:
        """Return the payload of a STAGED frame."""
        return "/".join(self).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> "StagedGeneration":
        """Read the payload of a STAGED frame; raises `FrameError`."""
        try:
            name, folder = payload.decode().split("/", 1)
        except ValueError as error:
            raise FrameError("a staged generation must be the names of two folders") from error
        return cls(name, folder)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, for a front and for a builder or an evaluator."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def send(link: socket.socket, kind: Frame, payload: bytes = b"") -> None:
    """Send a frame; block while the socket's buffer is full."""
    link.sendall(_HEAD.pack(len(payload), kind))
    link.sendall(payload)


def receive(link: socket.socket) -> tuple[Frame, bytes]:
    """Wait for a frame; raises EOFError if the peer has closed the socket, and `FrameError`."""
    kind, length = _unpack(_receive_exactly(link, _HEAD.size))
    return kind, _receive_exactly(link, length)


def peek(link: socket.socket) -> Frame:
    """Wait for a frame and return its kind; the frame stays for `receive`.

    Raises EOFError if the peer has closed the socket, and `FrameError`.
    """
    head = link.recv(_HEAD.size, socket.MSG_PEEK | socket.MSG_WAITALL)
    if len(head) < _HEAD.size:
        raise EOFError
    return _unpack(head)[0]


async def send_async(link: socket.socket, kind: Frame, payload: bytes = b"") -> None:
    """Send a frame from an event loop; `link` must be non-blocking."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(link, _HEAD.pack(len(payload), kind))
    await loop.sock_sendall(link, payload)


async def receive_async(link: socket.socket) -> tuple[Frame, bytes]:
    """Wait for a frame in an event loop, as `receive` does; `link` must be non-blocking."""
    kind, length = _unpack(await _receive_exactly_async(link, _HEAD.size))
    return kind, await _receive_exactly_async(link, length)


def _unpack(head: bytes) -> tuple[Frame, int]:
    """Return the kind of a frame, and the length of its payload."""
    length, number = _HEAD.unpack(head)
    if number not in _KINDS or length > _BYTES_MAX:
        raise FrameError(f"a frame has the kind {number} and {length} bytes")
    return Frame(number), length


def _receive_exactly(link: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        size = link.recv_into(rest)
        if not size:
            raise EOFError
        rest = rest[size:]
    return bytes(data)


async def _receive_exactly_async(link: socket.socket, length: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        size = await loop.sock_recv_into(link, rest)
        if not size:
            raise EOFError
        rest = rest[size:]
    return bytes(data)
