"""Loading the compiled kernels when a process starts, and reporting how many are compiled."""

import contextlib
import time
from typing import Final

from divgrpc import compilation
from divgrpc.compilation import Compilation
from divgrpc.kernels import cache_files
from divgrpc.warmup import warm_kernels
from divgrpc_server.ipc import control
from divgrpc_server.logging import logs

# The minimum seconds between log lines, and between messages to the fronts, during compilation.
_LOG_SECONDS: Final = 5.0
_MESSAGE_SECONDS: Final = 0.5


def warm(channel: control.Channel, log: logs.Logger) -> None:
    """Load all kernels and compile missing ones; report the progress to the log and the fronts."""
    start = time.monotonic()
    log_time = message_time = 0.0

    def send_count(ready: int, total: int) -> None:
        with contextlib.suppress(OSError):
            # If the channel is full, skip this message; the next one replaces it.
            channel.send(control.Message("kernels", ready, str(total)))

    def report(now: Compilation) -> None:
        """Report a change of state immediately, and progress at intervals."""
        nonlocal log_time, message_time
        if now.state != "running" or now.seconds - message_time >= _MESSAGE_SECONDS:
            message_time = now.seconds
            send_count(now.ready, now.total)
        if now.state == "started":
            log.info("compiling kernels, once", about_seconds=compilation.expected_seconds())
        elif now.state == "running" and now.seconds - log_time >= _LOG_SECONDS:
            log_time = now.seconds
            log.info("compiling kernels", ready=now.ready, total=now.total)
        elif now.state == "done":
            log.info("kernels are compiled", seconds=round(now.seconds, 3))
        elif now.state in ("failed", "uncached"):
            log.warning(compilation.describe_failure(now))

    compilation.report_to(report)
    warm_kernels()
    total = len(cache_files.kernel_names())
    send_count(total, total)
    log.info("kernels are warm", seconds=round(time.monotonic() - start, 3))
