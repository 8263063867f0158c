"""Kernels made ready in a worker before it serves, and who hears how far that is."""

import contextlib
import time
from typing import Final

from divgrpc import compilation
from divgrpc.compilation import Compilation
from divgrpc.kernels import keeping
from divgrpc.warming import warm_kernels
from divgrpc_server import control, logs

# How often the log says how far the compilation of the kernels is, and how often the fronts hear.
_LOG_SECONDS: Final = 5.0
_HEARD_SECONDS: Final = 0.5


class _Told:
    """Tells the log and, through the supervisor, the fronts how far the kernels are."""

    def __init__(self, channel: control.Channel, log: logs.Logger) -> None:
        self._channel = channel
        self._log = log
        self._logged = self._heard = 0.0

    def hear(self, now: Compilation) -> None:
        """Pass on what is news, and the rest now and then."""
        passed = now.seconds - self._heard
        if now.state != "going on" or passed >= _HEARD_SECONDS:
            self._heard = now.seconds
            self.count(now.ready, now.total)
        if now.state == "begun":
            self._log.info("compiling kernels, once", about_seconds=compilation.expected_seconds())
        elif now.state == "going on" and now.seconds - self._logged >= _LOG_SECONDS:
            self._logged = now.seconds
            self._log.info("compiling kernels", ready=now.ready, total=now.total)
        elif now.state == "done":
            self._log.info("kernels are compiled", seconds=round(now.seconds, 3))
        elif now.state in ("failed", "unkept"):
            self._log.warning(compilation.describe_failure(now))

    def count(self, ready: int, total: int) -> None:
        """Let the fronts know how many kernels are compiled, of how many."""
        with contextlib.suppress(OSError):
            # A supervisor that reads nothing just now misses no more than a number.
            self._channel.send(control.Message("kernels", ready, str(total)))


def warm(channel: control.Channel, log: logs.Logger) -> None:
    """Make every kernel ready, and say what that costs where it costs much."""
    begun = time.monotonic()
    told = _Told(channel, log)
    compilation.report_to(told.hear)
    warm_kernels()
    told.count(len(keeping.kernel_names()), len(keeping.kernel_names()))
    log.info("kernels are warm", seconds=round(time.monotonic() - begun, 3))
