"""The log sink, which writes log lines to a descriptor and never blocks.

Theory of operation. All processes of the server share standard error, which is usually a pipe. If
the reader of the pipe stops and the pipe fills up, a write would block the process in the middle of
a call. So while the pipe is full, the sink drops lines and counts them. It logs the count when the
pipe has space again. Making the shared pipe non-blocking would affect every process that uses it,
so the sink opens the pipe again for itself. Sockets and terminals cannot be opened again, so the
sink polls them before each write.
"""

import contextlib
import json
import os
import select
import stat
import time
from collections.abc import Mapping
from typing import Final

# Maximum size of a write in bytes. Linux writes up to 4,096 bytes (PIPE_BUF) atomically to a pipe,
# so lines of several processes do not mix.
WRITE_BYTES_MAX: Final = 4096


class LogSink:
    """A file-like object for a descriptor, with the methods that loggers need."""

    def __init__(
        self, descriptor: int, *, in_json: bool, fields: Mapping[str, int] | None = None
    ) -> None:
        """Take the descriptor, and the fields of the lines that this object adds."""
        self._shared = descriptor
        self._fields = dict(fields or {})
        self._in_json = in_json
        self._descriptor: int | None = None
        self._room = select.poll()
        self._dropped = 0

    def write(self, lines: str) -> None:
        """Write complete lines, or drop them if the write would block."""
        if self._dropped:
            if not self._put(self._notice().encode()):
                self._dropped += lines.count("\n")
                return
            self._dropped = 0
        if not self._put(lines.encode(errors="backslashreplace")):
            self._dropped = lines.count("\n")

    def flush(self) -> None:
        """Do nothing, because lines are not buffered."""

    def close(self) -> None:
        """Close the descriptor if this sink opened it; the shared descriptor stays open."""
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
            fields = "".join(f" {name}={value}" for name, value in self._fields.items())
            return f"{stamp} [warning  ] {event}{fields} count={self._dropped}\n"
        entry = {
            **self._fields,
            "count": self._dropped, "event": event, "level": "warning", "timestamp": stamp,
        }  # fmt: skip
        return json.dumps(entry) + "\n"


def _reopen(descriptor: int) -> int:
    """Return a new non-blocking descriptor of a pipe; return any other descriptor unchanged."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return descriptor
