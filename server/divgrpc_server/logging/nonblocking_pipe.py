"""The log sink: writes log lines to a descriptor without waiting for its reader.

Theory of operation. All processes of the server share standard error, which is mostly a pipe. If
its reader stops and the pipe is full, a write would block its process in the middle of a call.
Lines are dropped and counted instead, and the count is logged when there is room again. Making the
pipe non-blocking would affect every process that shares it, so this process opens it again for
itself. A socket or a terminal cannot be opened again; it is polled for room before each write.
"""

import contextlib
import json
import os
import select
import stat
import time
from typing import Final

# Writes of up to 4,096 bytes (PIPE_BUF) stay whole when several processes share a pipe.
WRITE_BYTES_MAX: Final = 4096


class LogSink:
    """The part of a text file that loggers need, on a descriptor."""

    def __init__(self, descriptor: int, *, in_json: bool) -> None:
        self._shared = descriptor
        self._in_json = in_json
        self._descriptor: int | None = None
        self._room = select.poll()
        self._dropped = 0

    def write(self, lines: str) -> None:
        """Write whole lines, or drop them if there is no room."""
        if self._dropped:
            if not self._put(self._notice().encode()):
                self._dropped += lines.count("\n")
                return
            self._dropped = 0
        if not self._put(lines.encode(errors="backslashreplace")):
            self._dropped = lines.count("\n")

    def flush(self) -> None:
        """Do nothing, because no line is held back."""

    def close(self) -> None:
        """Close the descriptor that this sink opened; the shared one stays open."""
        if self._descriptor is not None and self._descriptor != self._shared:
            os.close(self._descriptor)
        self._descriptor = None

    def _put(self, data: bytes) -> bool:
        rest = memoryview(data)
        try:
            descriptor = self._open()
            while rest:
                if not self._room.poll(0):
                    return False
                rest = rest[os.write(descriptor, rest[:WRITE_BYTES_MAX]) :]
        except OSError:
            return False  # full, or the reader is gone; calls matter more than log lines
        return True

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = _reopen(self._shared)
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


def _reopen(descriptor: int) -> int:
    """Open a pipe again without blocking; return any other descriptor as it is."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return descriptor
