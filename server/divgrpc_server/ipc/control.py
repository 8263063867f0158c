"""The channel between the supervisor and each of its children.

A SEQPACKET socket pair carries small JSON messages and, with some of them, one descriptor. The
child finds its end as standard input. It ends when the channel does: whatever happens to the
supervisor, nobody is left behind.
"""

import ctypes
import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from divgrpc_server.config import Config

Kind = Literal[
    "hello",  # to every child, first: number is its serial, text what `Self` is made of
    "ready",  # worker: kernels are warm; front: listening
    "kernels",  # worker, and then to every front: `number` of `text` kernels are compiled
    "worker",  # to a front: the descriptor leads to worker `number`
    "front",  # to a worker: the descriptor leads to a front
    "lost",  # front: worker `number` hangs or hung up
    "again",  # front: the descriptor that leads to worker `number` was lost on the way
    "build",  # front: start a builder; number is the front's own mark for it, text the request id
    "builder",  # to a front: the descriptor leads to the builder with that mark
    "refused",  # to a front: there are builds enough, or what `text` says stands in the way
    "upload",  # to a builder: the descriptor leads to its front, text is the request id
    "serving",  # to a front: the server is up
    "drain",  # to a front: finish what is under way, then end
]

_MESSAGE_BYTES: Final = 65536
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Message:
    """One message on a channel; what `number` and `text` mean is said beside each kind."""

    kind: Kind
    number: int = 0
    text: str = ""


class Channel:
    """One end of a control channel."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor, for whoever polls."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send without waiting; the caller keeps, and closes, its own copy of `descriptor`.

        Raises OSError where the other side is gone, and BlockingIOError where it reads nothing.
        """
        data = json.dumps([message.kind, message.number, message.text]).encode()
        passed = [] if descriptor is None else [descriptor]
        socket.send_fds(self._socket, [data], passed, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[Message, int] | None:
        """Wait for a message and its descriptor; None at the end of the channel.

        The descriptor is -1 where none came, and where this process had no room for it.
        """
        try:
            data, passed, _, _ = socket.recv_fds(
                self._socket, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return None
        if not data:
            return None
        return Message(*json.loads(data)), passed[0] if passed else -1


@dataclass(frozen=True, slots=True)
class Self:
    """What a child learns first: who it is and how the server is configured."""

    channel: Channel
    config: Config
    root: Path
    serial: int


def hello(config: Config, root: Path, serial: int) -> Message:
    """Return the first message to a child; `root` is where indexes are kept."""
    return Message("hello", serial, json.dumps([str(root), config.to_json()]))


def enter() -> Self:
    """Begin life as a child of the supervisor.

    Only the supervisor decides when a child ends. Signals that a terminal or an init system sends
    to every process at once are therefore ignored, or workers would go before calls are answered.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A child that cannot read its channel, stopped or deep in a computation, still dies with the
    # supervisor. Where that one died before this line, the channel has ended already.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel(socket.socket(fileno=os.dup(0)))
    os.set_inheritable(channel.fileno(), False)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    received = channel.receive()
    if received is None:
        raise SystemExit(1)
    message, _ = received
    root, config = json.loads(message.text)
    return Self(channel, Config.from_json(config), Path(root), message.number)
