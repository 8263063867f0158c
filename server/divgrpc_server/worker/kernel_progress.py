"""Kernels that a worker loads before it serves, and reports of how many are compiled so far."""

import contextlib
import time
from typing import Final

from divgrpc import compilation
from divgrpc.compilation import Compilation
from divgrpc.kernels import cache_files
from divgrpc.warmup import warm_kernels
from divgrpc_server.ipc import control
from divgrpc_server.logging import logs

# Seconds between two lines of the log, and between two messages to the fronts, while compiling.
_LOG_SECONDS: Final = 5.0
_MESSAGE_SECONDS: Final = 0.5


class _Reporter:
    """Reports the compilation to the log and, through the supervisor, to the fronts."""

    def __init__(self, channel: control.Channel, log: logs.Logger) -> None:
        self._channel = channel
        self._log = log
        self._log_time = self._message_time = 0.0

    def report(self, now: Compilation) -> None:
        """Report a change of state at once, and progress every few seconds."""
        pause = now.seconds - self._message_time
        if now.state != "running" or pause >= _MESSAGE_SECONDS:
            self._message_time = now.seconds
            self.send_count(now.ready, now.total)
        if now.state == "started":
            self._log.info("compiling kernels, once", about_seconds=compilation.expected_seconds())
        elif now.state == "running" and now.seconds - self._log_time >= _LOG_SECONDS:
            self._log_time = now.seconds
            self._log.info("compiling kernels", ready=now.ready, total=now.total)
        elif now.state == "done":
            self._log.info("kernels are compiled", seconds=round(now.seconds, 3))
        elif now.state in ("failed", "uncached"):
            self._log.warning(compilation.describe_failure(now))

    def send_count(self, ready: int, total: int) -> None:
        """Send the fronts the number of compiled kernels and of all kernels."""
        with contextlib.suppress(OSError):
            # A supervisor that does not read just now misses only this number.
            self._channel.send(control.Message("kernels", ready, str(total)))


def warm(channel: control.Channel, log: logs.Logger) -> None:
    """Load every kernel, have the missing ones compiled, and report progress and time."""
    start = time.monotonic()
    reporter = _Reporter(channel, log)
    compilation.report_to(reporter.report)
    warm_kernels()
    total = len(cache_files.kernel_names())
    reporter.send_count(total, total)
    log.info("kernels are warm", seconds=round(time.monotonic() - start, 3))
