"""The control channel between the supervisor and each child process.

The channel is a SEQPACKET socket pair that carries small JSON messages, some with a descriptor. The
child inherits one end of the channel as standard input, and exits when the channel closes. So no
child outlives the supervisor.
"""

import array
import ctypes
import json
import os
import signal
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from divgrpc_server.config import Config
from divgrpc_server.monitoring.page import Page

Kind = Literal[
    # To a child, the first message: `number` is its serial, `text` the rest of `Process`. The
    # descriptor is its `monitoring.page`, if it is to count.
    "hello",
    # From a child: a worker or the fork server has loaded kernels, a front listens, an evaluator is
    # idle.
    "ready",
    # From the engine, passed on to fronts: `text` is a `topology.Topology`, `number` its version.
    "topology",
    # To a front: the engine has started all shard servers (`number` 1), or is about to (0).
    "engine",
    # From the engine: the server cannot start, and `text` is the reason.
    "hopeless",
    # From a process that loads kernels, passed on to fronts: `number` of `text` are compiled.
    "kernels",
    # To the fork server: fork process `number` of the role `text`. The descriptor is the end of its
    # channel.
    "fork",
    "forked",  # from the fork server: `number` is the id of the process, 0 if there is none
    "worker",  # to a front: the descriptor is a socket to worker `number`
    "writer",  # to a front: the descriptor is a socket to the writer, child `number`
    "write",  # from a front: start the writer, unless it runs
    "front",  # to a worker or the writer: the descriptor is a socket to a front
    "lost",  # from a front: worker `number` hangs, or has closed its socket
    "again",  # from a front: the socket to worker `number` was lost, so send another
    "build",  # from a front: start a builder; `number` is the job id, `text` its tag
    # From a front: its builds may take `text` bytes of memory. Passed on to all fronts with the
    # number of that front.
    "promise",
    "renew",  # from a front: connect a job to the writer, which it starts; fields as in "build"
    "evaluate",  # from a front: start an evaluator or use an idle one; fields as in "build"
    "job",  # to a front: the descriptor is a socket to the process of job `number`
    "refused",  # to a front: job `number` cannot start; `text` is the reason, "" the job limit
    "call",  # to a process for jobs: the descriptor is a socket to a front, `text` a tag (`tags`)
    "serving",  # to a front: the server is ready
    "drain",  # to a front: finish the running calls, then exit
]

# A default Linux has room for a message of about 200 kilobytes. `Config` limits the longest one.
_MESSAGE_BYTES: Final = 128 << 10
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Message:
    """A message on a control channel; see `Kind` for the meaning of `number` and `text`."""

    kind: Kind
    number: int = 0
    text: str = ""


class Channel:
    """One end of a control channel."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the channel."""
        self._socket.close()

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message without waiting; the caller must close its copy of `descriptor`.

        Raises BlockingIOError if the channel is full, and OSError if the peer has closed it.
        """
        data = json.dumps([message.kind, message.number, message.text]).encode()
        descriptors = array.array("i", [] if descriptor is None else [descriptor])
        # `socket.send_fds` ignores the flags, and would wait.
        self._socket.sendmsg(
            [data],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else [],
            socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
        )

    def receive(self) -> tuple[Message, int] | None:
        """Wait for a message and its descriptor; return None if the channel is closed.

        The descriptor is -1 if the message has none, or if this process has reached its limit on
        descriptors.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._socket, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return None
        if not data:
            return None
        return Message(*json.loads(data)), descriptors[0] if descriptors else -1


@dataclass(frozen=True, slots=True)
class Process:
    """The identity of a child process: its channel, the configuration and its serial number.

    `root` is the folder of the indexes. `page` takes what the process counts, None if it is not to
    count. `secret` is the token of the cluster, "" without one.
    """

    channel: Channel
    config: Config
    root: Path
    serial: int
    page: Page | None = None
    secret: str = ""


def hello(config: Config, root: Path, serial: int, secret: str = "") -> Message:
    """Return the first message to a child; see `Process` for the arguments."""
    return Message("hello", serial, json.dumps([str(root), asdict(config), secret]))


def enter() -> Process:
    """Set up this process as a child of the supervisor, and wait for its identity.

    To end a server, a terminal or an init system signals all of its processes. The child ignores
    these signals, because workers must first answer the running calls. Only the supervisor ends a
    child.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Make Linux kill this process when the supervisor dies, even if this process is stopped or too
    # busy to read its channel. If the supervisor died before this call, this process finds its
    # channel closed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel(socket.socket(fileno=os.dup(0)))
    os.set_inheritable(channel.fileno(), False)
    with open(os.devnull, "rb") as devnull:
        os.dup2(devnull.fileno(), 0)
    delivery = channel.receive()
    if delivery is None:
        raise SystemExit(1)
    message, descriptor = delivery
    page = None
    if descriptor >= 0:
        page = Page(descriptor)
        os.close(descriptor)
    root, config, secret = json.loads(message.text)
    return Process(channel, Config(**config), Path(root), message.number, page, secret)
