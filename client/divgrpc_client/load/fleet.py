"""The processes that make calls, from the side that tells them to."""

import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Final, Self, cast

from divgrpc.errors import UnavailableError
from divgrpc_client.load.orders import Ended, Sent, Task, Trial

# Between the order and the first call: every process hears of it, and none is late.
LEAD_SECONDS: Final = 0.2
# Of a process, beyond the deadline of its last call.
_GRACE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 5.0
# Between two parts of one message.
_MESSAGE_SECONDS: Final = 10


class Fleet:
    """Generators of one kind of traffic: a context manager, for as many trials as one likes."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for task in self._tasks:
                self._start(task)
            # None may be late because it is still starting.
            for connection in self._connections:
                _received(connection, _START_SECONDS)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def stop(self) -> None:
        """Let the trial under way end early; calls that were sent are still awaited."""
        for connection in self._connections:
            with suppress(OSError):
                connection.send(None)

    def run(
        self, trial: Trial, hear: Callable[[int, Sent], None], tick: Callable[[], None]
    ) -> bool:
        """Run a trial: `hear` gets what each process tells, `tick` is called ten times a second.

        Returns whether all processes came to its end; those that do not are killed when it is
        overdue, and no trial can follow. Raises `UnavailableError` where a process dies.
        """
        for connection in self._connections:
            connection.send(trial)
        longest = trial.schedule.seconds + self._tasks[0].timeout + _GRACE_SECONDS
        waiting = {connection: n for n, connection in enumerate(self._connections)}
        while waiting:
            for ready in wait(list(waiting), _LOOK_SECONDS):
                told = _received(cast(Connection, ready))
                if isinstance(told, Ended):
                    del waiting[cast(Connection, ready)]
                else:
                    hear(waiting[cast(Connection, ready)], told)
            tick()
            if time.monotonic() > trial.begin + longest:
                for place in waiting.values():
                    self._processes[place].kill()
                return False
        return True

    def _start(self, task: Task) -> None:
        ours, theirs = multiprocessing.Pipe()
        _limit(ours)
        self._connections.append(ours)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", "divgrpc_client.load.generator", str(number)]
            self._processes.append(
                subprocess.Popen(command, pass_fds=[number])  # noqa: S603  # our own program
            )
        ours.send(task)

    def _stop(self) -> None:
        # They end when nobody is at the other end.
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _limit(connection: Connection) -> None:
    """Let no `recv` wait for ever for a process that stopped in the middle of a message."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        limit = struct.pack("ll", _MESSAGE_SECONDS, 0)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _received(connection: Connection, seconds: float | None = None) -> Sent | Ended:
    try:
        if not connection.poll(seconds):
            raise UnavailableError("a load generator did not start")
        told: Sent | Ended = connection.recv()
    except BlockingIOError:
        raise UnavailableError("a load generator stopped in the middle of a message") from None
    except (EOFError, OSError):
        raise UnavailableError("a load generator died; its last words are above") from None
    return told
