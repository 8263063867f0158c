"""One process of a run and the connection to it."""

import multiprocessing
import os
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final, Self, cast

from divgrpc.errors import UnavailableError
from divgrpc_client.load.generator import DONE, Task
from divgrpc_client.load.recorder import Part

_EXIT_SECONDS: Final = 5.0
# The longest pause within one message of a process.
_MESSAGE_SECONDS: Final = 10


class Process:
    """One generator and the connection to it: a context manager."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __enter__(self) -> Self:
        self.connection, theirs = multiprocessing.Pipe()
        limit_pauses(self.connection)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", "divgrpc_client.load", str(number)]
            self._process = subprocess.Popen(command, pass_fds=[number])  # noqa: S603  # our own program
        self.kill, self.send_signal = self._process.kill, self._process.send_signal
        self.connection.send(self._task)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It ends when nobody is at the other end.
        self.connection.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def limit_pauses(connection: Connection) -> None:
    """Let no `recv` wait for ever for a process that stopped in the middle of a message."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        limit = struct.pack("ll", _MESSAGE_SECONDS, 0)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def receive(connection: Connection, seconds: float | None = None) -> Part | None:
    """Return the next part, None where the process is done; raises `UnavailableError`.

    `seconds` bounds the wait for the message to begin.
    """
    try:
        if not connection.poll(seconds):
            raise UnavailableError("a load generator did not start")
        part: Part | str = connection.recv()
    except BlockingIOError:
        raise UnavailableError("a load generator stopped in the middle of a message") from None
    except (EOFError, OSError):
        raise UnavailableError("a load generator died; its last words are above") from None
    return None if part == DONE else cast(Part, part)
