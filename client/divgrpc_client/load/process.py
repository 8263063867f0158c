"""One process of a run and the connection to it."""

import multiprocessing
import os
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Final

from divgrpc.errors import UnavailableError
from divgrpc_client.load.generator import Task
from divgrpc_client.load.record import Part

_EXIT_SECONDS: Final = 5.0
# The longest pause within one message of a process.
_MESSAGE_SECONDS: Final = 10


class Process:
    """One generator and the connection to it, until `close`."""

    def __init__(self, task: Task) -> None:
        self.connection, remote = multiprocessing.Pipe()
        limit_pauses(self.connection)
        with remote:
            number = remote.fileno()
            command = [sys.executable, "-m", "divgrpc_client.load", str(number)]
            self.program = subprocess.Popen(command, pass_fds=[number])  # noqa: S603  # our own program
        self.connection.send(task)

    def close(self) -> None:
        """End the process, which ends by itself if nobody is at the other end."""
        self.connection.close()
        try:
            self.program.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()


def limit_pauses(connection: Connection) -> None:
    """Let no `recv` wait for ever for a process that stopped in the middle of a message."""
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        limit = struct.pack("ll", _MESSAGE_SECONDS, 0)
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def receive(connection: Connection, seconds: float | None = None) -> Part | None:
    """Return the next part, None if the process is done; raises `UnavailableError`.

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
    return part if isinstance(part, Part) else None
