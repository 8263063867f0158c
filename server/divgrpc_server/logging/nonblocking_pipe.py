"""Where log lines leave the process, without ever waiting for whoever reads them.

Theory of operation. Standard error is shared by all processes of the server and mostly a pipe. Once
nobody reads it and it is full, a write would stop its process in mid-call, so lines are dropped
instead, and counted for when there is room again. Making the pipe non-blocking would do so for
whoever gave it to us too, which is why it is opened anew for this process alone. What cannot be
opened so, a socket or a terminal, is asked for room before each write.
"""

import contextlib
import json
import os
import select
import stat
import time
from typing import Final

# Writes up to this size stay whole when several processes share a pipe.
WRITE_BYTES: Final = 4096


class Outlet:
    """As much of a text file as loggers need, on a descriptor."""

    def __init__(self, descriptor: int, *, in_json: bool) -> None:
        self._given = descriptor
        self._in_json = in_json
        self._descriptor: int | None = None
        self._room = select.poll()
        self._dropped = 0

    def write(self, lines: str) -> None:
        """Write whole lines, or drop them where there is no room."""
        if self._dropped:
            if not self._put(self._notice().encode()):
                self._dropped += lines.count("\n")
                return
            self._dropped = 0
        if not self._put(lines.encode(errors="backslashreplace")):
            self._dropped = lines.count("\n")

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    def close(self) -> None:
        """Let go of what was opened; the descriptor that was given stays open."""
        if self._descriptor is not None and self._descriptor != self._given:
            os.close(self._descriptor)
        self._descriptor = None

    def _put(self, data: bytes) -> bool:
        rest = memoryview(data)
        try:
            descriptor = self._open()
            while rest:
                if not self._room.poll(0):
                    return False
                rest = rest[os.write(descriptor, rest[:WRITE_BYTES]) :]
        except OSError:
            return False  # full, or whoever read the log is gone; calls matter more
        return True

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = _of_our_own(self._given)
            self._room.register(self._descriptor, select.POLLOUT)
        return self._descriptor

    def _notice(self) -> str:
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"
        event = "log lines were dropped, for nobody read them"
        if not self._in_json:
            return f"{stamp} [warning  ] {event} count={self._dropped}\n"
        entry = {"count": self._dropped, "event": event, "level": "warning", "timestamp": stamp}
        return json.dumps(entry) + "\n"


def _of_our_own(descriptor: int) -> int:
    """Return a descriptor of the same pipe that never blocks, or the one given."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return descriptor
